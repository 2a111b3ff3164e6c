"""Descents step by step, for any gradient and all terms: plain, Nesterov's and Adam's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from covey import native
from covey.engine.solvers.objective import Coefficient, Gradient, Objective
from covey.types import Rows


class Stepper:
    """Single steps, "gradient" or "adam", on rows whose objective changes from step to step.

    >>> stepper = Stepper("adam", lr=0.1)
    >>> [x] = stepper.step((torch.ones(1, 2),), (torch.tensor([[5.0, -3.0]]),))
    >>> [round(value, 4) for value in x[0].tolist()]
    [0.9, 1.1]
    """

    def __init__(
        self,
        method: Literal["gradient", "adam"],
        lr: Coefficient,
        beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:
        self._method = method
        self._lr = lr
        self._betas = (beta1, beta2)
        self._moments: list[tuple[Rows, Rows]] = []
        self._taken = 0

    def step(self, rows: tuple[Rows, ...], gradients: tuple[Rows, ...]) -> tuple[Rows, ...]:
        """The rows after a step along each one's gradient; nothing is changed in place."""
        pairs = zip(rows, gradients, strict=True)
        if self._method == "gradient":
            return tuple(x - self._lr * g for x, g in pairs)
        if not self._moments:
            for x in rows:
                zeros = torch.zeros_like(x, memory_format=torch.contiguous_format)
                self._moments.append((zeros, zeros.clone()))
        self._taken += 1
        return tuple(self._adam(number, x, g) for number, (x, g) in enumerate(pairs))

    def _adam(self, number: int, x: Rows, g: Rows) -> Rows:
        """Adam's step of one of the rows."""
        beta1, beta2 = self._betas
        mean, square = self._moments[number]
        mean_correction = 1 - beta1**self._taken
        square_correction = 1 - beta2**self._taken
        by_column = isinstance(self._lr, Tensor) and self._lr.shape[1:].numel() > 1
        alike = (x.shape, x.dtype, x.device) == (g.shape, g.dtype, g.device)
        if native.serves(x) and x.ndim == 2 and alike and not by_column:
            by_row = torch.as_tensor(self._lr, dtype=torch.float64).reshape(-1)
            return native.adam(
                x.contiguous(),
                g.contiguous(),
                self._moments[number],
                lr=by_row.expand(len(x)).contiguous(),
                numbers=native.NativeAdam(beta1, beta2, mean_correction, square_correction),
            )
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g * g
        self._moments[number] = mean, square
        size = (square / square_correction).sqrt() + 1e-8
        return x - self._lr * mean / mean_correction / size


def _stepped(
    method: Literal["gradient", "adam"], x: Rows, gradient: Gradient, terms: Objective
) -> Rows:
    """Plain steps along the negative gradient, or Adam's."""
    stepper = Stepper(method, terms.lr)
    active = None
    for step in range(terms.longest):
        total = terms.gradient(x, gradient(x))
        [moved] = stepper.step((x,), (total,))
        moved = terms.shrink(moved, terms.lr)
        active = terms.active(step, total, active)
        x, done = settle(x, moved, active)
        if done:
            break
    return x


plain = partial(_stepped, "gradient")


def nesterov(x: Rows, gradient: Gradient, terms: Objective) -> Rows:
    """Accelerated steps.

    The momentum uses the strong convexity that prox and decay give, else Nesterov's own sequence.
    """
    ahead = x
    active = None
    lam: Coefficient = 0.0
    if terms.prox is not None:
        lam = terms.prox[0]
    strong = terms.lr * (lam + terms.decay)
    for step in range(terms.longest):
        total = terms.gradient(ahead, gradient(ahead))
        moved = terms.shrink(ahead - terms.lr * total, terms.lr)
        active = terms.active(step, total, active)
        beyond = moved + _momentum(strong, step) * (moved - x)
        ahead, _ = settle(ahead, beyond, active)
        x, done = settle(x, moved, active)
        if done:
            break
    return x


def _momentum(strong: Coefficient, step: int) -> Coefficient:
    without_convexity = step / (step + 3)
    if isinstance(strong, Tensor):
        root = strong.clamp(min=0).sqrt()
        by_row = (1 - root) / (1 + root)
        return torch.where(root > 0, by_row, without_convexity)
    rate: float = max(strong, 0.0) ** 0.5
    if rate > 0:
        return (1 - rate) / (1 + rate)
    return without_convexity


def settle(x: Rows, moved: Rows, active: Tensor | None) -> tuple[Rows, bool]:
    """Rows that are done stay where they are; True when all are."""
    if active is None:
        return moved, False
    return torch.where(active, moved, x), not bool(active.any())


METHODS: dict[str, Callable[[Rows, Gradient, Objective], Rows]] = {
    "gradient": plain,
    "nesterov": nesterov,
    "adam": partial(_stepped, "adam"),
}
