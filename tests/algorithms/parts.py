"""Devices with a shared base and a head of their own, in plain torch: head(base(x)), squared error,
float64.
"""

from typing import Any

import torch
from torch import Tensor, nn

import covey
from covey import Algorithm, Run, Tree

Pair = tuple[Tensor, Tensor]
"""The base's weight [2, 3] and the head's [1, 2]."""


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.base = nn.Linear(2, 1, bias=False), nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.base(x))
        return out


def examples(n: int = 4) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(3)
    pairs = [
        (torch.randn(m, 3, generator=draw), torch.randn(m, generator=draw)) for m in range(4, 4 + n)
    ]
    return [(x.double(), y.double()) for x, y in pairs]


DATA = examples()


def start(algorithm: Algorithm, private: tuple[str, ...] = ("head.*",), **changes: Any) -> Run:
    settings = {
        "rounds": 3, "score_every": 3, "parts": ("train",), "workers": 1, "dtype": torch.float64, **changes,
    }  # fmt: skip
    shards = covey.data.own_parts(train=DATA)
    settings |= {"loss": "squared_error", "private": private}
    return covey.run(covey.Experiment(algorithm, shards, Parts(), Tree.flat(4), **settings))


def pair(module: nn.Module) -> Pair:
    assert isinstance(module, Parts)
    return module.base.weight.detach().clone(), module.head.weight.detach().clone()


def step(now: Pair, data: tuple[Tensor, Tensor], *, base: float = 0.0, head: float = 0.0) -> Pair:
    """One gradient step on the mean of (output - y)^2 / 2, with a size for each part."""
    leaves = [weight.clone().requires_grad_() for weight in now]
    loss = ((data[0] @ leaves[0].T @ leaves[1].T)[:, 0] - data[1]).square().mean() / 2
    of_base, of_head = torch.autograd.grad(loss, leaves)
    return now[0] - base * of_base, now[1] - head * of_head


def deviation(run: Run, model: str, node: int, wanted: Pair) -> float:
    have = pair(run.module(model, node))
    return max(float((mine - other).abs().max()) for mine, other in zip(have, wanted, strict=True))
