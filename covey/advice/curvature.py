"""The largest curvature of devices' training losses, by Lanczos on exact products with the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey import draws
from covey.data import Shards
from covey.engine.task import Task
from covey.errors import ConfigError
from covey.runs.experiment import Experiment
from covey.types import Rows

_DEVICES = 8  # measured along a run: the median and the 90 % quantile need no more
_ITERATIONS = 10  # the largest eigenvalue to a few per cent


@dataclass(frozen=True)
class Curvature:
    """The largest curvature of a device's loss: of the median device, and of the one at 90 %."""

    typical: float
    high: float

    def joined(self, other: Curvature) -> Curvature:
        """The larger of both."""
        return Curvature(max(self.typical, other.typical), max(self.high, other.high))


class Probe:
    """Measures curvature on a few devices of an experiment, evenly spread over all."""

    def __init__(self, experiment: Experiment, shards: Shards) -> None:
        count = min(shards.devices, _DEVICES)
        self._ids = torch.linspace(0, shards.devices - 1, count).round().long()
        self._task = _task(experiment, shards.chosen(self._ids.tolist()))
        self._seed = experiment.seed
        self._l2 = experiment.l2

    def measure(self, rows: Rows, ids: Tensor | None = None) -> Curvature | None:
        """The curvature at one row for all, [1, P], or at the rows of these devices; None where it
        is not finite.
        """
        local = list(range(len(self._ids)))
        if ids is not None:
            position = {device: row for row, device in enumerate(ids.tolist())}
            local = [
                number for number, device in enumerate(self._ids.tolist()) if device in position
            ]
            rows = rows[[position[int(self._ids[number])] for number in local]]
        if not local or not bool(torch.isfinite(rows).all()):
            return None
        try:
            top = _largest(self._task, rows, torch.tensor(local), self._seed, _ITERATIONS, self._l2)
        except (
            RuntimeError,
            NotImplementedError,
        ) as error:  # of torch, where an operation has no second derivative
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"the curvature of this model's loss cannot be measured: {reason} `--fast` does without."
            ) from error
        if not bool(torch.isfinite(top).all()):
            return None
        return Curvature(float(top.median()), float(top.quantile(0.9)))


def smoothness(experiment: Experiment, *, iterations: int = 20, at: Tensor | None = None) -> float:
    """The largest curvature of any device's training loss, l2 included, at the initial row or `at`
    ([P], or [devices, P]).

    Lanczos' form of the power iteration, on all devices at once, in float64: as many products with
    the Hessian as plain power iterations, but exact for up to `iterations` different eigenvalues.
    It is the curvature at one point, for full batches; further on, or on a mini-batch, it may be
    larger.
    """
    e = experiment
    shards = e.data.paper() if e.protocol == "paper" else e.data
    task = _task(e, shards)
    row = task.space.initial(e.seed) if at is None else at
    return float(_largest(task, row, torch.arange(shards.devices), e.seed, iterations, e.l2).max())


def _task(e: Experiment, shards: Shards) -> Task:
    """The experiment's losses on these devices, in float64: rounding must not look like curvature."""
    return Task(
        e.model,
        shards,
        loss=e.loss,
        private=e.private,
        dtype=torch.float64,
        device=e.device,
    )


def _largest(task: Task, row: Tensor, ids: Tensor, seed: int, iterations: int, l2: float) -> Tensor:
    """The eigenvalue of the largest size of every device's Hessian plus l2, [devices]."""
    x = row.to(task.device, torch.float64).expand(len(ids), task.space.width)
    v = draws.normal(draws.key(seed, "smoothness"), ids, task.space.width).to(task.device)
    steps = min(iterations, task.space.width)
    with torch.enable_grad():
        inside = _lanczos(lambda v: _hessian_product(task, x, v, ids), v, steps)
    top: Tensor = (torch.linalg.eigvalsh(inside) + l2).abs().amax(dim=1)
    return top


def _hessian_product(task: Task, x: Rows, v: Rows, ids: Tensor) -> Rows:
    """H v of each row's training loss, as the gradient of <gradient, v>.

    Not as a difference of gradients: where one of a network's many ReLUs switches within the step,
    that is far too large.
    """
    out, counts = torch.zeros_like(x), task.counts("train", ids).to(x)
    for rows, batch in task.blocks("train", ids):
        here = torch.arange(len(ids), device=x.device) if rows is None else rows.to(x.device)
        leaf = x[here].requires_grad_()
        assert batch.weight is not None
        losses = task.losses(
            task.forward([slot.view(leaf) for slot in task.space.slots], batch.x), batch.y
        )
        total = ((losses * batch.weight).sum(1) / counts[here]).sum()
        (gradient,) = torch.autograd.grad(total, leaf, create_graph=True)
        if gradient.requires_grad:  # a loss linear in the parameters has no curvature
            out[here] += torch.autograd.grad(gradient, leaf, v[here])[0]
    return out


def _lanczos(product: Callable[[Rows], Rows], v: Rows, iterations: int) -> Tensor:
    """The tridiagonal matrices [n, k, k] of k steps, whose extreme eigenvalues are those of each
    row's operator.
    """
    inside = v.new_zeros(len(v), iterations, iterations)
    before, v, beta = torch.zeros_like(v), v / v.norm(dim=1, keepdim=True), v.new_zeros(len(v), 1)
    for k in range(iterations):
        rest = product(v) - beta * before
        inside[:, k, k] = alpha = (rest * v).sum(1)
        rest = rest - alpha[:, None] * v
        beta = rest.norm(dim=1, keepdim=True)
        beta = torch.where(
            beta > 1e-8 * alpha.abs()[:, None], beta, 0.0
        )  # below it is rounding: the space is used up
        before, v = v, torch.where(beta > 0, rest / beta, 0.0)
        if k + 1 < iterations:
            inside[:, k, k + 1] = inside[:, k + 1, k] = beta[:, 0]
    return inside
