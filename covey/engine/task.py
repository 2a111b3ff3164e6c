"""A module, a loss and everybody's examples: stacked gradients and scores for many models at once.

Batches are made in `batches.py`, gradients in `gradients.py`, scores in `tally.py`, losses in
`losses.py`; `trial.py` tries model, loss and data together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from covey import native
from covey.data import Shards
from covey.engine.augment import Augmentation
from covey.engine.batches import Batch, Batches, Draw, Examples
from covey.engine.gradients import Gradients, weighted_mean
from covey.engine.measures import tally
from covey.engine.measures.losses import Loss, loss_function, losses_of, resolved_loss
from covey.engine.measures.metrics import MetricSpec, Targets, every_metric, metrics_of, terms_of
from covey.engine.measures.tally import PartScore, Predict
from covey.engine.modules import trial
from covey.engine.modules.dropout import Site
from covey.engine.modules.forward import graph_pass, module_pass
from covey.engine.modules.graph import site_count
from covey.engine.modules.layout import ParameterLayout, placed_copy
from covey.engine.population import BLOCK, Population, block_size
from covey.engine.solvers import native_call
from covey.engine.solvers.native_call import NativeKernel, kernel
from covey.engine.solvers.optimiser import PLAIN, Optimiser
from covey.engine.solvers.precision import Compute, precision
from covey.engine.solvers.stack import stack
from covey.types import Ids, Rows

STATISTICS = BLOCK
"""The statistics of a norm layer are those of at most so many training examples of a device."""

__all__ = [
    "Batch",
    "Batches",
    "Loss",
    "PartScore",
    "Predict",
    "Task",
    "block_size",
    "resolved_loss",
]


class Task:
    """What every device learns: its loss on its own shard, plus l2/2 |x|^2.

    The shards may hold the examples of some devices only (`Shards.only`) or of none. Then
    `population` tells what the task cannot see in them; by default it is seen in the shards.
    """

    def __init__(
        self,
        module: nn.Module,
        shards: Shards,
        *,
        loss: Loss = "cross_entropy",
        l2: float = 0.0,
        private: Sequence[str] = (),
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        compute: Compute = "fp32",
        population: Population | None = None,
        augment: Sequence[Augmentation] = (),
        metrics: Sequence[MetricSpec] = (),
        optimiser: Optimiser = PLAIN,
    ) -> None:
        loss = resolved_loss(loss, shards)
        example = shards.x.shape[1:]
        self.device = torch.device(device)
        self.dtype = dtype
        self.l2 = l2
        self.augment = tuple(augment)
        self.optimiser = optimiser
        self.shards = shards
        self.classifies = shards.classes is not None
        """Whether accuracy means something."""
        own = placed_copy(module, self.device, dtype)
        trial.check_largest_id(own, shards)
        self.space = ParameterLayout(own, private=private)
        self.population = population
        self.examples = Examples(shards, self.device, dtype, population)
        sample, _ = self.examples.sample
        trial.check_augment(self.augment, sample)
        passes = graph_pass(self.space, example, self.device.type, sample)
        self.sites: tuple[Site, ...] = ()
        """Where the module drops entries in training."""
        if isinstance(passes, str) or site_count(passes.graph):
            self.sites = trial.sites(self.space, sample)
        self.draws_in_training = bool(self.sites or self.augment)
        """Whether training draws at random inside the engine, for dropout or augmentation."""
        if isinstance(passes, str):
            passes = module_pass(self.space, self.device.type, sample, passes)
        self.forward = passes
        self.x = self.examples.x
        self.y = self.examples.y
        self.target = shards.target
        if self.target is not None:
            self.target = self.target.on(self.device)
        self._in_units = loss_function(loss)
        self.stack = stack(self.space, loss, shards, self.forward.graph)
        fused = not isinstance(self.stack, str)
        self.precision = precision(compute, self.device.type, stack=fused * self.space.width)
        if fused and self.precision.compute == "bf16":
            self.stack = "products are computed in bf16"
        self.native: NativeKernel | str = kernel(self.stack, self.space, loss, self.x, self.y)
        self.gradients = Gradients(
            space=self.space,
            forward=self.forward,
            stack=self.stack,
            loss=loss_function(loss, shards.target),
            classifies=self.classifies,
            precision=self.precision,
            sites=self.sites,
            augment=self.augment,
        )
        self.path = self.forward.path if isinstance(self.stack, str) else "fused"
        """How gradients are made: "fused", "batched", "each" or "vmap"."""
        self.solvers: dict[str, dict[str, str]] = {}
        """The solvers that descents on data used, each with why the faster ones did not fit."""
        self._constants: dict[tuple[float, ...], Tensor] = {}
        self.targets = trial.targets(self)
        """Numbers predicted per example; 0 where outputs are not compared with targets."""
        trial.check_backward(self)
        targets = Targets.of(shards, loss)
        asked = metrics_of(metrics, targets)
        self.asked = tuple(metric.name for metric in asked if not metric.table)
        """The figures that the experiment asks for."""
        self.metrics = every_metric(asked, targets)
        """Those of every record, then the others that are asked for."""
        if not self.targets:  # outputs that are no predictions have no errors
            self.metrics = tuple(metric for metric in self.metrics if not metric.terms[0].outputs)
        self.terms = terms_of(self.metrics)
        """What devices add up for them."""
        if asked:
            trial.check_metrics(self)

    @property
    def kernel(self) -> str:
        """What runs the steps on mini-batches: "native" with the instruction set, or "torch"."""
        if isinstance(self.native, str):
            return "torch"
        return f"native {native.status()}"

    @property
    def scores_together(self) -> bool:
        """Whether several models are scored at once: on a GPU every kernel costs its launch."""
        return self.examples.remembers and not self.space.norms

    def constant(self, values: Sequence[float]) -> Tensor:
        """Numbers beside the data, moved there once."""
        key = tuple(values)
        constant = self._constants.get(key)
        if constant is None:
            constant = torch.tensor(key, dtype=self.dtype, device=self.device)
            self._constants[key] = constant
        return constant

    def row_bytes(self) -> int:
        """About how much memory one row in training takes."""
        example = self.x.shape[1:].numel()
        if self.shards.by_position:
            example *= 8 * (self.shards.classes or 1)
        own = sum(metric.own.columns for metric in self.metrics if metric.own)
        numbers = 8 * self.space.width + 2 * BLOCK * example + 8 * own
        return numbers * self.x.element_size()

    # Gradients, all without l2

    def outputs(self, x: Rows, batch: Batch) -> Tensor:
        """Each row's outputs on its batch, [n, B, ...], as in scoring."""
        statistics = None
        if self.space.norms:
            assert batch.ids is not None
            statistics = self.by_layer(self.statistics(x, batch.ids))
        return self.gradients.outputs(x, batch, statistics)

    def statistics(self, x: Rows, ids: Ids) -> Rows:
        """The statistics of the norm layers of each row on its device's training examples, [n, S].

        They are those of all examples or, where a device has more than `STATISTICS`, of as many at
        even distances.
        """
        return self.gradients.statistics(x, self.examples.spread(ids, STATISTICS))

    def by_layer(self, statistics: Rows) -> tuple[Tensor, ...]:
        """Rows of statistics [n, S] as a pass takes them, [n, 2, C] for each layer."""
        return tuple(layer.view(statistics) for layer in self.space.norms)

    def in_units(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, targets and their losses in the units of the data; training may have others."""
        if self.target is not None:
            outputs = self.target.undone(outputs.double())
            y = self.target.undone(y.double())
        return outputs, y, losses_of(self._in_units, outputs, y)

    def loss(self, x: Rows, batch: Batch) -> Tensor:
        """Each row's mean loss on its batch, [n]."""
        if not len(x):
            return x.new_zeros(0)
        losses = self.gradients.losses(self.outputs(x, batch), batch.y)
        weight = batch.target_weight
        return losses.mean(1) if weight is None else weighted_mean(losses, weight)

    def fast_gradient(self, x: Rows, batch: Batch) -> Rows:
        """The gradient of each row's mean loss, by the native kernel where it serves such rows."""
        if native_call.gradient_refusal(self, x, batch) is None:
            return native_call.gradient(self, x, batch)
        return self.gradients.gradient(x, batch)

    def gradient_of(
        self,
        x: Rows,
        batch: Batch,
        loss: Callable[[Tensor], Tensor],
    ) -> Rows:
        """The gradient of a loss of one's own: of outputs [n, B, ...], one number per row, [n]."""
        self.solvers.setdefault("step by step", {"in place": "the algorithm has a loss of its own"})
        return self.gradients.gradient_of(x, batch, loss)

    def full_gradient(self, x: Rows, ids: Ids, draw: Draw | None = None) -> Rows:
        """The gradient of each row's mean loss over its whole training part, [n, P]."""

        def of_block(rows: Tensor | slice, batch: Batch) -> Rows:
            return self.gradients.gradient(x[rows], batch)

        return self._over_all(x, ids, of_block, draw)

    def full_hessian_product(
        self,
        x: Rows,
        ids: Ids,
        v: Rows,
        draw: Draw | None = None,
    ) -> Rows:
        """H v per row, H being the Hessian of the loss on all training examples."""

        def of_block(rows: Tensor | slice, batch: Batch) -> Rows:
            return self.gradients.hessian_product(x[rows], batch, v[rows])

        return self._over_all(x, ids, of_block, draw)

    @cached_property
    def no_hessian(self) -> str | None:
        """Why autograd has no second derivative of this module and loss; None where it has one."""
        row = self.space.initial(0).to(self.device, self.dtype)
        x, y = self.examples.sample
        examples = torch.arange(len(x), device=self.device)
        draw = Draw(0, examples[:1])
        batch = Batch((x, y), examples[None], draw=draw)
        return self.gradients.no_hessian(row[None], batch)

    def _over_all(
        self,
        x: Rows,
        ids: Ids,
        of_block: Callable[[Tensor | slice, Batch], Rows],
        draw: Draw | None,
    ) -> Rows:
        """The mean over each row's training examples, given the mean over any block of them."""
        self.examples.check_size(self.examples.block("train"), epochs=1)
        out = torch.zeros_like(x)
        counts = self.examples.target_counts("train", ids)[:, None].to(x)
        for number, (rows, batch) in enumerate(self.examples.blocks("train", ids)):
            if draw is not None:
                batch = batch.drawing(draw.at(number), rows)
            assert batch.target_weight is not None
            taken = batch.target_weight.sum(1, keepdim=True)
            where = slice(None) if rows is None else rows.to(x.device)
            out[where] += taken / counts[where] * of_block(where, batch)
        return out

    # Scores

    def predictor(self, x: Rows, ids: Ids) -> Predict | None:
        """How these rows predict, with their statistics computed once for all parts of the data.

        None where there is nothing to compute: the model has no norm layers.
        """
        if not self.space.norms:
            return None
        statistics = self.by_layer(self.statistics(x, ids))

        def predict(batch: Batch, which: Tensor) -> Tensor:
            own = tuple(values[which] for values in statistics)
            return self.gradients.outputs(x[which], batch, own)

        return predict

    evaluate = tally.evaluate
