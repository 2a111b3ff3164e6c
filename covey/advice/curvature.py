"""The largest curvature of devices' training losses, by Lanczos on exact Hessian products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey import draws
from covey.data import Shards
from covey.engine.measures.losses import resolved_loss
from covey.engine.measures.named_losses import BinaryCrossEntropy, CrossEntropy, Huber
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
        trainers = shards.train.counts().nonzero()[:, 0]
        evenly = torch.linspace(0, len(trainers) - 1, min(len(trainers), _DEVICES))
        self._ids = trainers[evenly.round().long()]
        self._task = _task(experiment, shards.chosen(self._ids.tolist()))
        self._seed = experiment.seed
        self._l2 = experiment.l2

    def measure(self, rows: Rows, ids: Tensor | None = None) -> Curvature | None:
        """The curvature at one row for all, [1, P], or at the rows of these devices.

        It is None where it is not finite.
        """
        measured = torch.arange(len(self._ids))
        if ids is not None:
            row_of = {device: row for row, device in enumerate(ids.tolist())}
            has_row = [device in row_of for device in self._ids.tolist()]
            measured = measured[torch.tensor(has_row)]
            rows = rows[[row_of[device] for device in self._ids[measured].tolist()]]
        if not len(measured) or not bool(torch.isfinite(rows).all()):
            return None
        try:
            top = _largest(self._task, rows, measured, self._seed, _ITERATIONS, self._l2)
        except RuntimeError as error:  # torch has no second derivative
            reason = str(error).strip().splitlines()[0]
            problem = "the curvature of this model's loss cannot be measured"
            raise ConfigError(f"{problem}: {reason} `--fast` does without.") from error
        if not bool(torch.isfinite(top).all()):
            return None
        return Curvature(float(top.median()), float(top.quantile(0.9)))


def smoothness(experiment: Experiment, *, iterations: int = 20, at: Tensor | None = None) -> float:
    """The largest curvature of any device's training loss, l2 included.

    It is measured at the initial row or `at` ([P], or [devices, P]), for full batches. At later
    rows, or on a mini-batch, it may be larger. The method is Lanczos' form of the power iteration,
    on all devices at once, in float64. It takes as many products with the Hessian as plain power
    iterations, but is exact for up to `iterations` different eigenvalues.
    """
    shards = experiment.data
    if experiment.protocol == "paper":
        shards = shards.paper()
    task = _task(experiment, shards)
    row = task.space.initial(experiment.seed) if at is None else at
    ids = torch.arange(shards.devices)
    return float(_largest(task, row, ids, experiment.seed, iterations, experiment.l2).max())


def strong_convexity(experiment: Experiment) -> float | None:
    """The mu of every device's loss: l2 for a linear model with a convex loss, else not known."""
    loss = resolved_loss(experiment.loss, experiment.data)
    convex = isinstance(loss, str | CrossEntropy | BinaryCrossEntropy | Huber)
    kinds = list(map(type, experiment.model.modules()))
    plain = {nn.Linear, nn.Sequential, nn.Flatten}
    linear = kinds.count(nn.Linear) == 1 and {*kinds} <= plain
    return experiment.l2 if convex and linear else None


def _task(experiment: Experiment, shards: Shards) -> Task:
    """The experiment's losses on these devices, in float64, so that rounding adds no curvature."""
    return Task(
        experiment.model,
        shards,
        loss=experiment.loss,
        private=experiment.private,
        dtype=torch.float64,
        device=experiment.device,
    )


def _largest(
    task: Task,
    row: Tensor,
    ids: Tensor,
    seed: int,
    iterations: int,
    l2: float,
) -> Tensor:
    """The eigenvalue of the largest size of every device's Hessian plus l2, [devices]."""
    width = task.space.width
    x = row.to(task.device, torch.float64).expand(len(ids), width)
    v = draws.normal(draws.key(seed, "smoothness"), ids, width).to(task.device)
    steps = min(iterations, width)
    with torch.enable_grad():
        matrices = _lanczos(lambda v: _hessian_product(task, x, v, ids), v, steps)
    eigenvalues: Tensor = torch.linalg.eigvalsh(matrices) + l2
    return eigenvalues.abs().amax(dim=1)


def _hessian_product(task: Task, x: Rows, v: Rows, ids: Tensor) -> Rows:
    """H v of each row's training loss, as the gradient of <gradient, v>.

    A difference of gradients is far too large where one of a network's many ReLUs switches within
    the step.
    """
    out = torch.zeros_like(x)
    counts = task.examples.target_counts("train", ids).to(x)
    for block, batch in task.examples.blocks("train", ids):
        rows = torch.arange(len(ids), device=x.device)
        if block is not None:
            rows = block.to(x.device)
        leaf = x[rows].requires_grad_()
        assert batch.target_weight is not None
        outputs = task.gradients.training_outputs(task.gradients.views(leaf), batch)
        losses = task.gradients.losses(outputs, batch.y)
        means = (losses * batch.target_weight).sum(1) / counts[rows]
        (gradient,) = torch.autograd.grad(means.sum(), leaf, create_graph=True)
        if gradient.requires_grad:  # a loss linear in the parameters has no curvature
            (product,) = torch.autograd.grad(gradient, leaf, v[rows])
            out[rows] += product
    return out


def _lanczos(product: Callable[[Rows], Rows], v: Rows, iterations: int) -> Tensor:
    """The tridiagonal matrices [n, k, k] of k steps.

    Their extreme eigenvalues are those of each row's operator.
    """
    matrices = v.new_zeros(len(v), iterations, iterations)
    previous = torch.zeros_like(v)
    v = v / v.norm(dim=1, keepdim=True)
    beta = v.new_zeros(len(v), 1)
    for k in range(iterations):
        residual = product(v) - beta * previous
        alpha = (residual * v).sum(1)
        matrices[:, k, k] = alpha
        residual = residual - alpha[:, None] * v
        beta = residual.norm(dim=1, keepdim=True)
        rounding = 1e-8 * alpha.abs()[:, None]  # a smaller residual: the space is used up
        beta = torch.where(beta > rounding, beta, 0.0)
        previous = v
        v = torch.where(beta > 0, residual / beta, 0.0)
        if k + 1 < iterations:
            matrices[:, k, k + 1] = beta[:, 0]
            matrices[:, k + 1, k] = beta[:, 0]
    return matrices
