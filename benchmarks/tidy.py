"""The tidy loop of `benchmarks.architectures`: plain torch, device after device.

It is the strongest loop that an author writes without covey: one module, one `autograd.grad` per
step, multi-tensor (`_foreach`) updates in place, batches by one index, no copies of the module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey.data import Shards

Weights = list[Tensor]
BATCH = 20


def half_squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over examples of half the squared distance, as covey's `squared_error`."""
    return 0.5 * F.mse_loss(outputs, y, reduction="sum") / len(y)


class TidyLoop:
    """One algorithm on one module; a call is a round.

    `cyclic` batches are those of `batches="cyclic"`, so that two runs can be compared.
    """

    def __init__(
        self,
        algorithm: covey.Algorithm,
        module: nn.Module,
        shards: Shards,
        *,
        edges: int,
        cyclic: bool = False,
    ) -> None:
        self.algorithm: Any = algorithm
        self.module = module.train()
        self.parameters: Weights = list(module.parameters())
        self.loss: Callable[[Tensor, Tensor], Tensor] = half_squared_error
        if shards.classes is not None:
            self.loss = F.cross_entropy
        self.examples = []
        for device in range(shards.devices):
            held = shards.train.held(device)
            self.examples.append((shards.x[held], shards.y[held]))
        self.edges = edges
        self.cyclic = cyclic
        self.turns: dict[tuple[int, str], int] = {}
        self.w = _copies(self.parameters)
        self.personal: dict[int, Weights] = {}
        self._round: Callable[[], None] = getattr(self, type(algorithm).__name__.lower())

    @torch.no_grad()
    def __call__(self) -> None:
        """One round."""
        self._round()

    def batch(self, device: int, stream: str = "batch") -> tuple[Tensor, Tensor]:
        """The next batch of a device."""
        x, y = self.examples[device]
        if self.cyclic:
            turn = self.turns.get((device, stream), 0)
            self.turns[device, stream] = turn + 1
            laps = -(-len(x) // BATCH)
            start = turn % laps * BATCH
            return x[start : start + BATCH], y[start : start + BATCH]
        pick = torch.randint(len(x), (BATCH,))
        return x[pick], y[pick]

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """The gradient at the module's parameters."""
        with torch.enable_grad():
            loss = self.loss(self.module(x), y)
            return torch.autograd.grad(loss, self.parameters)

    @torch.no_grad()
    def start(self, w: Weights) -> None:
        """Put weights into the module."""
        torch._foreach_copy_(self.parameters, w)

    def step(self, device: int, lr: float, stream: str = "batch") -> None:
        """A plain step of the module on a fresh batch."""
        gradients = self.gradients(*self.batch(device, stream))
        torch._foreach_add_(self.parameters, gradients, alpha=-lr)

    def proximal_step(
        self, batch: tuple[Tensor, Tensor], lr: float, lam: float, anchor: Weights
    ) -> None:
        """A step on the loss + lam/2 |x - anchor|^2."""
        gradients = self.gradients(*batch)
        torch._foreach_lerp_(self.parameters, anchor, lr * lam)
        torch._foreach_add_(self.parameters, gradients, alpha=-lr)

    def mean(self, of_device: Callable[[int], Weights], devices: range) -> Weights:
        """The mean of what the devices answer."""
        total = [torch.zeros_like(w) for w in self.w]
        for device in devices:
            torch._foreach_add_(total, of_device(device))
        torch._foreach_div_(total, len(devices))
        return total

    def everyone(self) -> range:
        """All devices."""
        return range(len(self.examples))

    def fedavg(self) -> None:
        """McMahan et al., 2017."""
        self.w = self.mean(self._fedavg, self.everyone())

    def _fedavg(self, device: int) -> Weights:
        self.start(self.w)
        for _ in range(self.algorithm.steps):
            self.step(device, self.algorithm.lr)
        return self.parameters

    def pfedme(self) -> None:
        """Dinh, Tran, Nguyen, 2020."""
        self.w = self.mean(self._pfedme, self.everyone())

    def _pfedme(self, device: int) -> Weights:
        a = self.algorithm
        self.start(self.w)
        local = _copies(self.w)
        for _ in range(a.local_rounds):
            batch = self.batch(device)
            for _ in range(a.steps):
                self.proximal_step(batch, a.personal_lr, a.lam, local)
            torch._foreach_lerp_(local, self.parameters, a.lr * a.lam)
        self.personal[device] = _copies(self.parameters)
        return local

    def permfl(self) -> None:
        """Banerjee et al., 2024."""
        a = self.algorithm
        mean = self.mean(self._permfl_edge, range(self.edges))
        torch._foreach_lerp_(self.w, mean, a.beta * a.gamma)

    def _permfl_edge(self, edge: int) -> Weights:
        a = self.algorithm
        size = len(self.examples) // self.edges
        devices = range(edge * size, edge * size + size)
        w = _copies(self.w)
        for _ in range(a.edge_rounds):
            theta = self.mean(lambda device: self._permfl(device, w), devices)
            kept = 1 - a.edge_lr * (a.lam + a.gamma)
            torch._foreach_mul_(w, kept)
            torch._foreach_add_(w, theta, alpha=a.edge_lr * a.lam)
            torch._foreach_add_(w, self.w, alpha=a.edge_lr * a.gamma)
        return w

    def _permfl(self, device: int, w: Weights) -> Weights:
        a = self.algorithm
        self.start(w)
        for _ in range(a.steps):
            self.proximal_step(self.batch(device), a.lr, a.lam, w)
        self.personal[device] = _copies(self.parameters)
        return self.parameters

    def fedmac(self) -> None:
        """Li, Liu et al., 2021; small entries are sent as zeros."""
        self.w = _cut(self.w, self.algorithm)
        self.w = self.mean(self._fedmac, self.everyone())

    def _fedmac(self, device: int) -> Weights:
        a = self.algorithm
        self.start(self.w)
        local = _copies(self.w)
        for _ in range(a.local_rounds):
            batch = self.batch(device)
            for _ in range(a.steps):
                gradients = self.gradients(*batch)
                slopes = _slopes(self.parameters, a.rho)
                torch._foreach_add_(self.parameters, gradients, alpha=-a.personal_lr)
                torch._foreach_add_(self.parameters, slopes, alpha=-a.personal_lr * a.gamma)
                torch._foreach_add_(self.parameters, local, alpha=a.personal_lr * a.lam)
            slopes = _slopes(local, a.rho)
            torch._foreach_lerp_(local, self.parameters, a.lr * a.lam)
            torch._foreach_add_(local, slopes, alpha=-a.lr * a.gamma_w)
        self.personal[device] = _copies(self.parameters)
        return _cut(local, a)

    def perfedavg(self) -> None:
        """Fallah et al., 2020, first order."""
        self.w = self.mean(self._perfedavg, self.everyone())

    def _perfedavg(self, device: int) -> Weights:
        a = self.algorithm
        self.start(self.w)
        self.step(device, a.alpha, "personal")
        self.personal[device] = _copies(self.parameters)
        x = _copies(self.w)
        for _ in range(a.steps):
            self.start(x)
            self.step(device, a.alpha, "inner")
            gradients = self.gradients(*self.batch(device))
            torch._foreach_add_(x, gradients, alpha=-a.lr)
        return x

    def ditto(self) -> None:
        """Li et al., 2021."""
        self.w = self.mean(self._ditto, self.everyone())

    def _ditto(self, device: int) -> Weights:
        a = self.algorithm
        self.start(self.personal.get(device, self.w))
        for _ in range(a.personal_steps):
            batch = self.batch(device, "personal")
            self.proximal_step(batch, a.personal_lr, a.lam, self.w)
        self.personal[device] = _copies(self.parameters)
        return self._fedavg(device)


def _copies(weights: Weights) -> Weights:
    return [w.detach().clone() for w in weights]


def _cut(weights: Weights, algorithm: covey.Algorithm) -> Weights:
    """Weights as they are sent, without small entries."""
    cut = algorithm.cut("device")
    assert cut is not None
    return [F.hardshrink(w, cut) for w in weights]


def _slopes(weights: Weights, rho: float) -> Weights:
    """The derivative of the smooth l1."""
    slopes = torch._foreach_div(weights, rho)
    torch._foreach_tanh_(slopes)
    return list(slopes)
