"""The works that are timed: what is trained, how much arithmetic it is, and how covey is asked for
it.

W1 is pFedMe's MNIST run: 20 devices, 784-100-10, R = 20 local rounds of K = 5 steps on one batch of
20. W2 is FedAvg on the same devices, 20 steps. W3 is FedAvg with 100 of 1,000 devices a round, 5
steps, a network or a linear model. W4 is FedAvg with a convolutional network of 1.66 M parameters,
20 devices, 20 steps. sFedHP, FedMac and PerMFL take as many steps as W1, the first two with an l1
term and bitmap links. pFedBayes takes 4 local rounds of 5 steps on W1's devices. CIFAR is the public setting of pfl-research: 1,000 devices of 50 examples, 50
asked, 5 steps of 10. Images are random: speed does not depend on what they show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import covey
from covey.algorithms import FedAvg, FedMac, PerMFL, PFedBayes, PFedMe, SFedHP
from covey.data import Shards, own

BATCH = 20


@dataclass(frozen=True)
class Work:
    """One work. `loop` names the method of `benchmarks.loop.Loop` that does the same by hand."""

    name: str
    algorithm: covey.Algorithm
    model: Callable[[], nn.Module]
    devices: int
    steps: int  # gradient steps of one device in a round
    loop: str
    asked: int | None = None
    shape: tuple[int, ...] = (784,)
    examples: int = 200
    batch: int = BATCH
    edges: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> int:
        """Devices that train in a round."""
        return self.asked or self.devices

    def data(self) -> Shards:
        """Everybody's examples."""
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(self.devices, self.examples, *self.shape, generator=generator)
        y = torch.randint(10, (self.devices, self.examples), generator=generator)
        return own([(x[d], y[d]) for d in range(self.devices)], classes=10)

    def tree(self) -> covey.Tree:
        """The devices, directly under the server or in equal edges."""
        return (
            covey.Tree.uniform(self.edges, self.devices // self.edges)
            if self.edges
            else covey.Tree.flat(self.devices)
        )

    def experiment(self, shards: Shards, rounds: int, **changes: Any) -> covey.Experiment:
        """Through the ordinary API: bytes metered, scores in the last round only."""
        plain = {"rounds": rounds, "score_every": rounds, **self.settings, **changes}
        return covey.Experiment(
            algorithm=self.algorithm, data=shards, model=self.model(), tree=self.tree(), **plain
        )

    def flops(self) -> float:
        """Operations of one round's gradients: forward, and backward to all weights and to the
        inputs of every layer but one.
        """
        return 2.0 * self.trained * self.steps * self.batch * _products(self.model(), self.shape)

    def bytes(self) -> float:
        """The least a round moves: each trained device's row is read and written once, and its
        batches are read.
        """
        width = sum(p.numel() for p in self.model().parameters())
        example = torch.Size(self.shape).numel()
        return 4.0 * self.trained * (2 * width + self.steps * self.batch * example)


def _products(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Products per example: each weight of a linear layer, or of a convolution at each place,
    forward and twice backward.
    """
    sizes: list[int] = []

    def note(layer: Any, _: Any, out: torch.Tensor) -> None:
        places = out.shape[2:].numel() if isinstance(layer, nn.Conv2d) else 1
        sizes.append(layer.weight.numel() * places)

    hooks = [
        m.register_forward_hook(note)
        for m in model.modules()
        if isinstance(m, nn.Linear | nn.Conv2d)
    ]
    model(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return 3 * sum(sizes) - sizes[0]


def dnn() -> nn.Module:
    """784-100-10, as in the papers."""
    return covey.models.mlp(784, 100, 10)


def mlr() -> nn.Module:
    """Multinomial logistic regression."""
    return covey.models.linear(784, 10)


def cifar() -> nn.Module:
    """The two convolutions and two linear layers of pfl-research's benchmark, without dropout."""
    layers = [
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10))


SPARSE = {"codec": "bitmap"}
_SFEDHP = SFedHP(gamma1=1e-3, gamma2=1e-3, lam1=25.0, lam2=25.0, lr1=0.05, lr2=0.05)
WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work("W1", PFedMe(lam=15.0, lr=0.005, personal_lr=0.09), dnn, 20, 100, "pfedme"),
        Work("W2", FedAvg(lr=0.02), dnn, 20, 20, "fedavg"),
        Work("W3 DNN", FedAvg(sample=100, steps=5, lr=0.02), dnn, 1000, 5, "fedavg", asked=100),
        Work("W3 MLR", FedAvg(sample=100, steps=5, lr=0.02), mlr, 1000, 5, "fedavg", asked=100),
        Work("W4", FedAvg(lr=0.02), covey.models.cnn, 20, 20, "fedavg", shape=(1, 28, 28)),
        Work("sFedHP", _SFEDHP, dnn, 20, 100, "sfedhp", edges=4, settings=SPARSE),
        Work(
            "FedMac",
            FedMac(gamma=1e-3, gamma_w=1e-7, steps=5),
            dnn,
            20,
            100,
            "fedmac",
            settings=SPARSE,
        ),
        Work(
            "PerMFL",
            PerMFL(edge_rounds=5, steps=20, lam=0.5, lr=0.01, edge_lr=0.03),
            dnn,
            20,
            100,
            "permfl",
            edges=4,
        ),
        Work(
            "pFedBayes",
            PFedBayes(zeta=1.0, local_rounds=4, batch=BATCH),
            dnn,
            20,
            20,
            "pfedbayes",
        ),
        Work(
            "CIFAR",
            FedAvg(sample=50, steps=5, batch=10, lr=0.1),
            cifar,
            1000,
            5,
            "fedavg",
            50,
            (3, 32, 32),
            50,
            10,
        ),
    )
}
