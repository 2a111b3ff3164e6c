"""The inner solvers: an author says what is descended, the engine chooses how.

`descend` minimises f(x) + lam/2 |x - anchor|^2 + gamma phi_rho(x) + <linear, x> + decay/2 |x|^2 row by row, where f is known by
its gradient. Every term is evaluated at the same x; `start` is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from covey.engine import native_call, smooth_l1
from covey.engine.objective import Coefficient, Method, Terms
from covey.errors import ProgramError
from covey.types import Rows

Gradient = Callable[[Rows], Rows]


def descend(
    start: Rows,
    gradient: Gradient,
    *,
    steps: int | Tensor,
    lr: Coefficient,
    prox: tuple[Coefficient, Rows] | None = None,
    l1: tuple[Coefficient, float] | None = None,
    linear: Rows | None = None,
    mask: Tensor | None = None,
    part: slice | None = None,
    decay: float = 0.0,
    method: Method = "gradient",
    tol: float | None = None,
) -> Rows:
    """Rows after `steps` steps from `start`, or fewer for a row whose gradient norm falls to `tol`.

    `prox` is (lam, anchor), `l1` is (gamma, rho): smooth for rho > 0, a soft threshold with exact zeros for rho = 0. `mask` and
    `part` (a column slice) say which coordinates move. Steps may be [n], lr, lam and gamma [n, 1]; lr also a row [1, P].

    >>> descend(torch.zeros(1, 2), lambda x: x - 1, steps=2, lr=0.5).tolist()
    [[0.75, 0.75]]
    """
    if l1 is not None and not isinstance(l1[0], Tensor) and l1[0] == 0:
        l1 = None
    lr = lr if isinstance(lr, Tensor) else float(lr)
    if part is not None:
        columns = range(*part.indices(start.shape[1]))
        if not columns:
            return start.clone()
        part = None if len(columns) == start.shape[1] else part
    terms = Terms(steps, lr, prox, l1, linear, mask, part, decay, method, tol)
    if not isinstance(steps, int | Tensor):
        raise ProgramError(f"descend with steps = {steps!r}: give a whole number, or one per row [n].")
    if terms.longest < 0 or (tol is not None and tol < 0):
        raise ProgramError(f"descend with steps = {steps} and tol = {tol}: both must be 0 or more.")
    fused = getattr(gradient, "descend", None)
    rows: Rows | None = None if fused is None else fused(start, terms)
    if gradient is torch.zeros_like:
        rows = _without_data(start, terms)
    if rows is not None:
        return rows
    if method not in _METHODS:
        raise ProgramError(f"method = {method!r}: choose one of {', '.join(_METHODS)}.")
    return _METHODS[method](start.clone(), gradient, terms)


class Stepper:
    """Steps on rows whose objective changes from one to the next, where `descend` would have one: "gradient" or "adam".

    >>> stepper = Stepper("adam", lr=0.1)
    >>> [x] = stepper.step((torch.ones(1, 2),), (torch.tensor([[5.0, -3.0]]),))
    >>> [round(value, 4) for value in x[0].tolist()]
    [0.9, 1.1]
    """

    def __init__(self, method: Literal["gradient", "adam"], lr: Coefficient, beta1: float = 0.9, beta2: float = 0.999) -> None:
        self._method, self._lr, self._betas = method, lr, (beta1, beta2)
        self._moments: list[tuple[Rows, Rows]] = []
        self._taken = 0

    def step(self, rows: tuple[Rows, ...], gradients: tuple[Rows, ...]) -> tuple[Rows, ...]:
        """The rows after a step along each one's gradient; nothing is changed in place."""
        if self._method == "gradient":
            return tuple(x - self._lr * g for x, g in zip(rows, gradients, strict=True))
        if not self._moments:
            self._moments = [(torch.zeros_like(x), torch.zeros_like(x)) for x in rows]
        beta1, beta2 = self._betas
        self._taken += 1
        out = []
        for at, (x, g) in enumerate(zip(rows, gradients, strict=True)):
            mean, square = self._moments[at]
            mean, square = beta1 * mean + (1 - beta1) * g, beta2 * square + (1 - beta2) * g * g
            self._moments[at] = mean, square
            size = (square / (1 - beta2**self._taken)).sqrt() + 1e-8
            out.append(x - self._lr * mean / (1 - beta1**self._taken) / size)
        return tuple(out)


def step_without_data(x: Rows, terms: Terms, lr: float, l2: float = 0.0) -> None:
    """One step in place on everything but the data loss, each term at the x that came in; plain numbers, all coordinates."""
    decay, sign = terms.decay + l2, None
    if terms.l1 is not None and terms.l1[1] > 0:
        sign = smooth_l1.grad(x, terms.l1[1])
    if terms.prox is not None and not decay:
        x.lerp_(terms.prox[1], lr * terms.prox[0])
    elif terms.prox is not None:
        lam, anchor = terms.prox
        x.mul_(1 - lr * (lam + decay)).add_(lr * lam * anchor)
    elif decay:
        x.mul_(1 - lr * decay)
    if terms.linear is not None:
        x.add_(terms.linear, alpha=-lr)
    if sign is not None and terms.l1 is not None:
        gamma = terms.l1[0]
        x.sub_(sign.mul_(lr * gamma)) if isinstance(gamma, Tensor) else x.sub_(sign, alpha=lr * gamma)


def _without_data(start: Rows, terms: Terms) -> Rows | None:
    """Steps where there is no data loss, as an edge takes them; None for what is not plain enough."""
    if native_call.takes(start, terms):
        return native_call.without_data(start, terms)
    lr, steps, lam = terms.lr, terms.steps, terms.prox[0] if terms.prox else 0.0
    if terms.method != "gradient" or terms.tol is not None or terms.mask is not None or terms.part is not None:
        return None
    if isinstance(lr, Tensor) or isinstance(steps, Tensor) or isinstance(lam, Tensor):
        return None
    x = start.clone()
    for _ in range(steps):
        step_without_data(x, terms, lr)
        if terms.l1 is not None and terms.l1[1] == 0:
            x = smooth_l1.soft(x, lr * terms.l1[0])
    return x


def _plain(x: Rows, gradient: Gradient, terms: Terms) -> Rows:
    active = None
    for step in range(terms.longest):
        total = terms.gradient(x, gradient(x))
        moved = terms.shrink(x - terms.lr * total, terms.lr)
        active = terms.active(step, total, active)
        x, done = _settle(x, moved, active)
        if done:
            break
    return x


def _nesterov(x: Rows, gradient: Gradient, terms: Terms) -> Rows:
    """Accelerated steps; the momentum uses the strong convexity that prox and decay give, else Nesterov's own sequence."""
    ahead, active = x, None
    strong = terms.lr * ((terms.prox[0] if terms.prox else 0.0) + terms.decay)
    for step in range(terms.longest):
        total = terms.gradient(ahead, gradient(ahead))
        moved = terms.shrink(ahead - terms.lr * total, terms.lr)
        active = terms.active(step, total, active)
        kept, done = _settle(x, moved, active)
        ahead = _settle(ahead, moved + _momentum(strong, step) * (moved - x), active)[0]
        x = kept
        if done:
            break
    return x


def _momentum(strong: Coefficient, step: int) -> Coefficient:
    if isinstance(strong, Tensor):
        root = strong.clamp(min=0).sqrt()
        return torch.where(root > 0, (1 - root) / (1 + root), step / (step + 3))
    root = max(strong, 0.0) ** 0.5
    return (1 - root) / (1 + root) if root > 0 else step / (step + 3)


def _adam(x: Rows, gradient: Gradient, terms: Terms) -> Rows:
    stepper, active = Stepper("adam", terms.lr), None
    for step in range(terms.longest):
        total = terms.gradient(x, gradient(x))
        moved = terms.shrink(stepper.step((x,), (total,))[0], terms.lr)
        active = terms.active(step, total, active)
        x, done = _settle(x, moved, active)
        if done:
            break
    return x


_METHODS: dict[str, Callable[[Rows, Gradient, Terms], Rows]] = {
    "gradient": _plain,
    "nesterov": _nesterov,
    "adam": _adam,
}


def _settle(x: Rows, moved: Rows, active: Tensor | None) -> tuple[Rows, bool]:
    """Rows that are done stay where they are; True when all are."""
    if active is None:
        return moved, False
    return torch.where(active, moved, x), not bool(active.any())
