"""The networks of `benchmarks.architectures`, written as users write them.

Some are `nn.Sequential`, most are classes with a forward. None knows anything of covey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey.data import Shards, own

CLASSES = 10
VOCABULARY = 64


@dataclass(frozen=True)
class Architecture:
    """A network, and the examples that it takes."""

    model: Callable[[], nn.Module]
    example: tuple[int, ...]
    devices: int = 8
    inputs: Literal["numbers", "tokens"] = "numbers"
    outputs: int | None = None  # numbers predicted per example; None: one of CLASSES
    random: bool = False  # whether forward draws, so that two runs differ
    settings: dict[str, Any] = field(default_factory=dict)  # of the experiment

    def data(self, examples: int = 100) -> Shards:
        """The examples of all devices: noise, because speed does not depend on what they show."""
        generator = torch.Generator().manual_seed(0)
        pairs = [self._pair(examples, generator) for _ in range(self.devices)]
        classes = None
        if self.outputs is None:
            classes = CLASSES
        tokens: bool | int = False
        if self.inputs == "tokens":
            tokens = VOCABULARY
        return own(pairs, classes=classes, tokens=tokens)

    def _pair(self, examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shape = (examples, *self.example)
        x = torch.rand(shape, generator=generator)
        if self.inputs == "tokens":
            x = torch.randint(VOCABULARY, shape, generator=generator)
        if self.outputs is None:
            y = torch.randint(CLASSES, (examples,), generator=generator)
        else:
            y = torch.rand(examples, self.outputs, generator=generator)
        return x, y


class MLP(nn.Module):
    """The usual two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 100)
        self.fc2 = nn.Linear(100, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        x = F.relu(self.fc1(x))
        out: Tensor = self.fc2(x)
        return out


class LeakyMLP(nn.Module):
    """Three layers with LeakyReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 128)
        self.fc2 = nn.Linear(128, 64)
        self.fc3 = nn.Linear(64, CLASSES)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc1(x))
        x = self.act(self.fc2(x))
        out: Tensor = self.fc3(x)
        return out


class NormMLP(nn.Module):
    """A LayerNorm after each hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 128)
        self.norm1 = nn.LayerNorm(128)
        self.fc2 = nn.Linear(128, 128)
        self.norm2 = nn.LayerNorm(128)
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.fc1(x)))
        x = F.relu(self.norm2(self.fc2(x)))
        out: Tensor = self.out(x)
        return out


class DropoutMLP(nn.Module):
    """Dropout after the hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 128)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x))
        out: Tensor = self.fc2(self.drop(x))
        return out


class CNN(nn.Module):
    """Two convolutions and two linear layers, as in most tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        out: Tensor = self.fc2(x)
        return out


def cnn() -> nn.Module:
    """The same as a Sequential."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


class LeNet(nn.Module):
    """LeNet-5 with its tanh and mean pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        out: Tensor = self.classifier(x.flatten(1))
        return out


class ResidualCNN(nn.Module):
    """Convolutions with a skip connection, without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.max_pool2d(x, 2)
        x = F.relu(x + self.conv2(F.relu(self.conv1(x))))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        out: Tensor = self.head(x)
        return out


class Block(nn.Module):
    """A residual block with GroupNorm."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Conv2d(inside, outside, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class GroupNormResNet(nn.Module):
    """Two residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, 16)
        self.block1 = Block(16, 16, 2)
        self.block2 = Block(16, 32, 2)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.block2(self.block1(x))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class BatchNormCNN(nn.Module):
    """A BatchNorm after each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32 * 7 * 7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        out: Tensor = self.fc(x.flatten(1))
        return out


def conv1d() -> nn.Module:
    """Time series of six channels, as in activity recognition."""
    return nn.Sequential(
        nn.Conv1d(6, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


class DilatedConv1d(nn.Module):
    """A temporal convolutional network with dilations and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(6, 32, 1)
        self.conv1 = nn.Conv1d(32, 32, 3, padding=1)
        self.conv2 = nn.Conv1d(32, 32, 3, padding=2, dilation=2)
        self.conv3 = nn.Conv1d(32, 32, 3, padding=4, dilation=4)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv in (self.conv1, self.conv2, self.conv3):
            x = x + F.relu(conv(x))
        out: Tensor = self.head(x.mean(-1))
        return out


class Separable(nn.Module):
    """Depthwise convolutions, each followed by one of single points."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise1 = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise1 = nn.Conv2d(16, 32, 1)
        self.depthwise2 = nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32)
        self.pointwise2 = nn.Conv2d(32, 64, 1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        x = F.relu6(self.pointwise1(self.depthwise1(x)))
        x = F.relu6(self.pointwise2(self.depthwise2(x)))
        out: Tensor = self.head(x.mean(dim=(2, 3)))
        return out


class Autoencoder(nn.Module):
    """A convolutional encoder and a decoder of transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x))
        return out.flatten(1)


def vgg() -> nn.Module:
    """Pairs of 3x3 convolutions, with ReLUs in place as in torchvision."""
    layers: list[nn.Module] = []
    before = 3
    for channels in (16, 32, 64):
        for _ in range(2):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
            before = channels
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(inplace=True), nn.Linear(128, CLASSES)]
    return nn.Sequential(*layers, *head)


class SqueezeExcite(nn.Module):
    """Channels weighed by a small network of their means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.squeeze = nn.Linear(32, 8)
        self.excite = nn.Linear(8, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        weight = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        x = x * weight[:, :, None, None]
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Inception(nn.Module):
    """Convolutions of three sizes side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.branch1 = nn.Conv2d(16, 16, 1)
        self.branch3 = nn.Conv2d(16, 16, 3, padding=1)
        self.branch5 = nn.Conv2d(16, 16, 5, padding=2)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        branches = [self.branch1(x), self.branch3(x), self.branch5(x)]
        x = F.relu(torch.cat(branches, dim=1))
        x = F.adaptive_avg_pool2d(x, 1)
        out: Tensor = self.head(torch.flatten(x, 1))
        return out


class BagOfWords(nn.Module):
    """The mean of word vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(dim=1)
        out: Tensor = self.fc2(F.relu(self.fc1(x)))
        return out


class Recurrent(nn.Module):
    """A recurrent layer over word vectors; its last output is classified."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.rnn = kind(16, 64, batch_first=True)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x, _ = self.rnn(x)
        out: Tensor = self.fc(x[:, -1])
        return out


class Transformer(nn.Module):
    """One encoder layer over word vectors with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.position = nn.Parameter(torch.zeros(16, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        x = self.encoder(x)
        out: Tensor = self.fc(x.mean(dim=1))
        return out


class Mixer(nn.Module):
    """An MLP-mixer of one layer on patches of 7 by 7."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 7, stride=7)
        self.norm1 = nn.LayerNorm(32)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm2 = nn.LayerNorm(32)
        self.channels = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        out: Tensor = self.head(x.mean(dim=1))
        return out


def gelu_mlp() -> nn.Module:
    """Three layers with GELU."""
    return nn.Sequential(
        nn.Linear(784, 128),
        nn.GELU(),
        nn.Linear(128, 64),
        nn.GELU(),
        nn.Linear(64, CLASSES),
    )


def regression() -> nn.Module:
    """Eight numbers to one."""
    return nn.Sequential(
        nn.Linear(8, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 1),
    )


_FLAT = (784,)
_GREY = (1, 28, 28)
_COLOUR = (3, 32, 32)
_SERIES = (6, 128)
_SENTENCE = (16,)
ARCHITECTURES: dict[str, Architecture] = {
    "linear": Architecture(lambda: nn.Linear(784, CLASSES), _FLAT),
    "mlp-sequential": Architecture(lambda: covey.models.mlp(784, 100, CLASSES), _FLAT),
    "mlp-class": Architecture(MLP, _GREY),
    "mlp-leaky-class": Architecture(LeakyMLP, _FLAT),
    "mlp-gelu": Architecture(gelu_mlp, _FLAT),
    "mlp-layernorm-class": Architecture(NormMLP, _FLAT),
    "mlp-dropout-class": Architecture(DropoutMLP, _FLAT, random=True),
    "regression": Architecture(regression, (8,), outputs=1),
    "cnn-sequential": Architecture(cnn, _GREY, devices=4),
    "cnn-class": Architecture(CNN, _GREY, devices=4),
    "lenet-class": Architecture(LeNet, _GREY),
    "vgg-sequential": Architecture(vgg, _COLOUR, devices=4),
    "residual-class": Architecture(ResidualCNN, _COLOUR, devices=4),
    "resnet-groupnorm-class": Architecture(GroupNormResNet, _COLOUR, devices=4),
    "cnn-batchnorm-class": Architecture(BatchNormCNN, _GREY, devices=4),
    "separable-class": Architecture(Separable, _COLOUR, devices=4),
    "inception-class": Architecture(Inception, _COLOUR, devices=4),
    "squeeze-excite-class": Architecture(SqueezeExcite, _COLOUR, devices=4),
    "transposed-class": Architecture(Autoencoder, _GREY, outputs=784),
    "conv1d-sequential": Architecture(conv1d, _SERIES),
    "conv1d-dilated-class": Architecture(DilatedConv1d, _SERIES),
    "mixer-class": Architecture(Mixer, _GREY),
    "bag-of-words-class": Architecture(BagOfWords, _SENTENCE, inputs="tokens"),
    "lstm-class": Architecture(lambda: Recurrent(nn.LSTM), _SENTENCE, inputs="tokens"),
    "gru-class": Architecture(lambda: Recurrent(nn.GRU), _SENTENCE, inputs="tokens"),
    "transformer-class": Architecture(Transformer, _SENTENCE, inputs="tokens"),
}
