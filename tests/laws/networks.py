"""Small networks with data, each a kind of model, and the experiment a law runs them in.

A new kind of model is one entry of `NETWORKS`: the laws of `test_networks.py` then hold it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey import Algorithm, Experiment, Tree, data, models
from covey.algorithms import FedAvg, FedBN, FedPer, PerMFL, PFedMe
from covey.engine.augment import RandomNumbers
from covey.engine.solvers.precision import multiplies_bf16
from covey.models import lora

CLASSES = 3
SIZES = (7, 12, 5, 9, 16)
"""Examples per device."""
ROUNDS = 2
TOKENS = 6
LENGTH = 5
FLAT = Tree.flat(len(SIZES))
GROUPED = Tree.grouped([2, 3])

FEDBN = FedBN(steps=3, lr=0.3, batch=4, sample=3)
FEDAVG = FedAvg(steps=3, lr=0.3, batch=4)
FEDPER = FedPer(steps=3, lr=0.3, batch=4)
FEDAVG_FULL = FedAvg(steps=2, lr=0.3, batch=None)
PFEDME = PFedMe(lam=2.0, local_rounds=2, steps=2, lr=0.3, personal_lr=0.3, batch=4)
PERMFL = PerMFL(lam=1.0, gamma=1.5, lr=0.3, edge_lr=0.4, edge_rounds=2, steps=2, batch=4)


@dataclass(frozen=True)
class Network:
    """How to build a model, the shape of an example, and what trains it."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    algorithm: Algorithm = FEDAVG
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the experiment; `data` replaces the examples that `shape` describes."""

    def experiment(self, **changes: Any) -> Experiment:
        """The experiment, with some fields changed."""
        plain: dict[str, Any] = {
            "data": examples(self.shape),
            "model": self.model(),
            "tree": GROUPED if len(self.algorithm.tiers()) == 3 else FLAT,
            "rounds": ROUNDS,
            "score_every": 1,
            "workers": 1,
        }
        plain["algorithm"] = self.algorithm
        return Experiment(**{**plain, **self.settings, **changes})


def examples(shape: tuple[int, ...]) -> data.Shards:
    """Devices of different sizes, each with its own rule from features to labels."""
    draw = torch.Generator().manual_seed(7)
    pairs = []
    for size in SIZES:
        x = torch.randn(size, *shape, generator=draw)
        rule = torch.randn(x[0].numel(), CLASSES, generator=draw)
        y = (x.flatten(1) @ rule).argmax(1)
        pairs.append((x, y))
    return data.own(pairs, classes=CLASSES)


class Mlp(nn.Module):
    """Two linear layers, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        out: Tensor = self.head(hidden)
        return out


class Cnn(nn.Module):
    """A convolution, a pooling and a linear layer, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        maps = F.max_pool2d(torch.relu(self.conv(x)), 2)
        out: Tensor = self.head(maps.flatten(1))
        return out


class NormedMlp(nn.Module):
    """A linear layer, its batch normalization and a head, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.body(x)))
        out: Tensor = self.head(hidden)
        return out


class NormedOtherwise(NormedMlp):
    """The same with an operation that no graph knows."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(x))
        out: Tensor = self.head(torch.fmax(hidden, torch.zeros_like(hidden)))
        return out


class NormedCnn(nn.Module):
    """A residual block with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, bias=False)
        self.first = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.second = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.stem(x)))
        x = torch.relu(x + self.second(self.conv(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def normed_sequence() -> nn.Module:
    """Linear layers with batch normalization between them."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


class Residual(nn.Module):
    """Residuals, a norm, a scale of its own and a constant, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.second = nn.Linear(7, 7)
        self.norm = nn.LayerNorm(7)
        self.scale = nn.Parameter(torch.ones(7))
        self.head = nn.Linear(14, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.first(x))
        hidden = hidden + self.scale * F.silu(self.second(self.norm(hidden)))
        both = torch.cat([hidden, hidden.softmax(-1)], dim=1)
        out: Tensor = self.head(both / math.sqrt(both.shape[1]))
        return out


class Transformer(nn.Module):
    """Attention over four positions, by hand, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.1 * torch.ones(4, 6))
        self.norm = nn.LayerNorm(6)
        self.queries = nn.Linear(6, 18)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        parts = self.queries(self.norm(x)).view(len(x), 4, 3, 2, 3)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = x + mixed.transpose(1, 2).reshape(x.shape)
        out: Tensor = self.head(hidden.mean(dim=1))
        return out


class Adapted(nn.Module):
    """One block of a transformer, pretrained; adapters on its linear layers and its head train."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 6)
        self.value = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(self.query(x), x, self.value(x))
        out: Tensor = self.head(self.norm(x + mixed).mean(-2))
        return out


def adapted() -> nn.Module:
    """The same module whenever it is made: frozen values are part of an experiment."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return lora(Adapted(), rank=2, layers=["query", "value"], train="head")


class Attention(nn.Module):
    """A transformer layer over four positions, with dropout in all its places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        out: Tensor = self.head(hidden.flatten(1))
        return out


class DroppingCnn(nn.Module):
    """A convolution whose channels are dropped, and a functional dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.channels = nn.Dropout2d(0.3)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.channels(torch.relu(self.conv(x)))
        features = F.max_pool2d(maps, 2).flatten(1)
        out: Tensor = self.head(F.dropout(features, 0.2, self.training))
        return out


def dropping_layers() -> nn.Module:
    """A stack of known layers, two of them dropout."""
    return nn.Sequential(
        nn.Dropout(0.1), nn.Linear(6, 8), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(8, CLASSES)
    )


def stack() -> nn.Module:
    """Linear layers, which run fused where nothing is augmented."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def brighter(x: Tensor, u: RandomNumbers) -> Tensor:
    """An augmentation of one's own."""
    return x * torch.exp(u(1) - 0.5)


def everything() -> nn.Module:
    """A convolution with normalization and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(),
        nn.Linear(48, CLASSES),
    )  # fmt: skip


AUGMENT = [{"name": "crop", "pad": 2}, "flip"]


def sentences() -> data.Shards:
    """Token ids of different lengths; the next one is the target, and padding has none."""
    draw = torch.Generator().manual_seed(5)
    pairs = []
    for size in SIZES:
        tokens = torch.randint(1, TOKENS, (size, LENGTH + 1), generator=draw)
        lengths = torch.randint(2, LENGTH + 1, (size, 1), generator=draw)
        inside = torch.arange(LENGTH) < lengths
        x = torch.where(inside, tokens[:, :-1], 0)
        y = torch.where(inside, tokens[:, 1:], data.NO_TARGET)
        pairs.append((x, y))
    return data.own(pairs, classes=TOKENS, tokens=TOKENS)


def lstm() -> nn.Module:
    return models.lstm(TOKENS, TOKENS, width=4, hidden=6, padding=0)


def transformer() -> nn.Module:
    return models.transformer(
        TOKENS, TOKENS, shape=(LENGTH,), width=8, heads=2, layers=1, feed=2, padding=0
    )


NETWORKS: dict[str, Network] = {
    "class MLP": Network(Mlp, (6,), PFEDME),
    "class CNN": Network(Cnn, (1, 6, 6), PERMFL),
    "class with residuals": Network(Residual, (6,), PFEDME),
    "class of a transformer": Network(Transformer, (4, 6), PERMFL),
    "BatchNorm": Network(normed_sequence, (6,), FEDBN, {"holdout_devices": 1}),
    "class BatchNorm": Network(NormedOtherwise, (6,), PFEDME, {"batches": "cyclic"}),
    "BatchNorm2d": Network(NormedCnn, (1, 6, 6), FEDBN),
    "adapters": Network(adapted, (4, 6), PFEDME),
    "private adapters": Network(adapted, (4, 6), FEDPER, {"private": "*lora*"}),
    "dropout layers": Network(dropping_layers, (6,), PFEDME),
    "dropout in a CNN": Network(DroppingCnn, (1, 6, 6), FEDAVG_FULL),
    "augmented images": Network(everything, (1, 6, 6), PFEDME, {"augment": AUGMENT}),
    "augmented vectors": Network(stack, (6,), PFEDME, {"augment": [brighter, "noise"]}),
    "dropout in attention": Network(Attention, (4, 4), PERMFL),
    "LSTM on tokens": Network(lstm, (LENGTH,), FEDAVG, {"data": sentences()}),
    "transformer on tokens": Network(transformer, (LENGTH,), PERMFL, {"data": sentences()}),
}
"""Every kind of model, by name."""
if multiplies_bf16("cpu"):
    NETWORKS["CNN in bf16"] = Network(Cnn, (1, 6, 6), FEDAVG, {"compute": "bf16"})
    NETWORKS["adapters in bf16"] = Network(adapted, (4, 6), FEDAVG, {"compute": "bf16"})
