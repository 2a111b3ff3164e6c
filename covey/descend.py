"""The inner solvers: an author says what is descended, the engine chooses how.

`descend` minimises f(x) + lam/2 |x - anchor|^2 + gamma phi_rho(x) + <linear, x> + decay/2 |x|^2 row by row, where f is known by
its gradient. Every term is evaluated at the same x; `start` is never changed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from covey import compiled, smooth_l1
from covey.errors import ProgramError
from covey.replies import Rows
from covey.terms import Coefficient, Method, Terms

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
    `part` (a column slice) say which coordinates move. Steps may be [n], lr, lam and gamma [n, 1].

    >>> descend(torch.zeros(1, 2), lambda x: x - 1, steps=2, lr=0.5).tolist()
    [[0.75, 0.75]]
    """
    if l1 is not None and not isinstance(l1[0], Tensor) and l1[0] == 0:
        l1 = None
    lr = lr if isinstance(lr, Tensor) else float(lr)
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
    if compiled.takes(start, terms):
        return compiled.without_data(start, terms)
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


def _adam(x: Rows, gradient: Gradient, terms: Terms, beta1: float = 0.9, beta2: float = 0.999) -> Rows:
    mean, square, active = torch.zeros_like(x), torch.zeros_like(x), None
    for step in range(terms.longest):
        total = terms.gradient(x, gradient(x))
        mean = beta1 * mean + (1 - beta1) * total
        square = beta2 * square + (1 - beta2) * total * total
        size = (square / (1 - beta2 ** (step + 1))).sqrt() + 1e-8
        moved = terms.shrink(x - terms.lr * mean / (1 - beta1 ** (step + 1)) / size, terms.lr)
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
