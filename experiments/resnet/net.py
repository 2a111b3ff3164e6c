"""ResNet-18 for images of 32 x 32, with batch normalization, as one writes it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """Eight blocks in four stages; `width` channels in the first stage, 64 in the paper."""

    def __init__(self, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages = []
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            stride = 1 if stage == 0 else 2
            stages.append(Block(inputs, outputs, stride))
            stages.append(Block(outputs, outputs, 1))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm(self.conv(x)))
        out = self.stages(out)
        out = F.adaptive_avg_pool2d(out, 1).flatten(1)
        logits: Tensor = self.head(out)
        return logits
