"""A module, a loss and everybody's examples: stacked gradients and scores for many models at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from covey import draws, native
from covey.data import Shards
from covey.data.shards import SPLITS, some
from covey.engine import calibration, gram
from covey.engine.descend import step_without_data
from covey.engine.forward import forward
from covey.engine.generator import Drawn, NoDraws
from covey.engine.layout import Space
from covey.engine.native_call import kernel, takes
from covey.engine.objective import Terms
from covey.engine.population import BLOCK, Population, block_size, most_labels
from covey.engine.smooth_l1 import soft
from covey.engine.stack import stack
from covey.errors import ConfigError, DataError, ModelError
from covey.origin import FAULTS, told
from covey.types import Ids, Rows

Loss = Literal["auto", "cross_entropy", "squared_error", "mse"] | Callable[[Tensor, Tensor], Tensor]
"""By name, or a function of outputs [N, ...] and targets [N, ...] to one loss per example [N].

"auto" is cross_entropy for classes and squared_error for numbers; "mse" is another name of squared_error.
"""
Batches = Literal["uniform", "cyclic"]

_RANDOM = (
    "the model's forward draws at random, which no address decides: two passes of the same examples "
    "through the same weights must give the same; leave out dropout."
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Which examples n devices take, [n, B], of all of `data` (x and y); `weight` [n, B] is 0 where a device had none left."""

    data: tuple[Tensor, Tensor]
    examples: Tensor
    weight: Tensor | None = None

    @cached_property
    def x(self) -> Tensor:
        """[n, B, ...], gathered when first asked for."""
        return self.data[0][self.examples]

    @cached_property
    def y(self) -> Tensor:
        """[n, B, ...]."""
        return self.data[1][self.examples]


@dataclass(frozen=True, eq=False)
class Tally:
    """What a pass over one part of the data adds up to per device, float64 [n] each."""

    right: Tensor
    loss: Tensor
    count: Tensor
    honesty: Tensor | None = None  # [n, 3 bins + 2], the sums of `calibrate`
    errors: Tensor | None = None  # [n, 3 + outputs], for numbers: the sums of `_error_sums`


Predict = Callable[[Batch, Tensor], Tensor]
"""Outputs [m, B, ...] for a batch of m devices, given which of the rows they are, [m]; for classes, as good as logits."""


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
        population: Population | None = None,
    ) -> None:
        loss = resolved_loss(loss, shards)
        self.device, self.dtype, self.l2 = torch.device(device), dtype, l2
        self.space = Space(copy.deepcopy(module).to(device=self.device, dtype=dtype), private=private)
        self.forward = forward(self.space, shards.x.shape[1:], self.device.type)
        known = loss != "cross_entropy" or shards.classes is not None  # targets that are chances have another derivative
        self._stack = stack(self.space, loss, shards.x.shape[1:]) if known else None
        self.shards = shards
        self.x = shards.x.to(self.device, dtype)
        self.y = shards.y.to(self.device) if shards.classes is not None else shards.y.to(self.device, dtype)
        self.population = population
        self._index = {s: shards.part(s).index.to(self.device) for s in SPLITS}
        self._offset = {s: shards.part(s).offset for s in SPLITS}
        self._totals = self._told_offset()
        self._offset_there = {s: offset.to(self.device) for s, offset in self._offset.items()}
        self._loss = _loss(loss)
        self._kernel = kernel(self._stack, self.space, loss, self.x, self.y)
        self._constants: dict[tuple[float, ...], Tensor] = {}
        self.targets = 0  # numbers predicted per example; 0 for classes, and where outputs are not compared with targets
        self._check()

    @property
    def path(self) -> str:
        """How gradients are made: "fused", "batched", "each" or "vmap"."""
        return "fused" if self._stack is not None else self.forward.path

    @property
    def kernel(self) -> str:
        """What runs the steps on mini-batches: "native" with the instruction set, or "torch"."""
        return "torch" if self._kernel is None else f"native {native.status()}"

    @property
    def classifies(self) -> bool:
        """Whether accuracy means something."""
        return self.shards.classes is not None

    def constant(self, values: Sequence[float]) -> Tensor:
        """Numbers beside the data, moved there once."""
        key = tuple(values)
        if key not in self._constants:
            self._constants[key] = torch.tensor(key, dtype=self.dtype, device=self.device)
        return self._constants[key]

    def counts(self, split: str, ids: Ids) -> Tensor:
        """How many examples of a part each device holds, [n], where `ids` are: in main memory or with the data."""
        self._check_present(ids)
        offset = self._offset[split] if ids.device.type == "cpu" else self._offset_there[split]
        return offset[ids + 1] - offset[ids]

    def total(self, split: str, first: Ids, stop: Ids) -> Tensor:
        """How many examples of a part the devices first, ..., stop - 1 hold together, [n]."""
        return self._totals[split][stop] - self._totals[split][first]

    def _told_offset(self) -> Mapping[str, Tensor]:
        """How many examples all devices hold, by differences: as told, else as seen."""
        if self.population is None or self.population.offset is None:
            return self._offset
        for split, offset in self.population.offset.items():
            held = self.shards.part(split).counts()
            wrong = (held != offset.diff()) & self.shards.present
            if bool(wrong.any()):
                device = int(wrong.nonzero()[0])
                told = int(offset.diff()[device])
                raise DataError(
                    f"device {device} holds {int(held[device])} {split} examples, but the population "
                    f"says {told}; make both from the same shards."
                )
        return self.population.offset

    def _check_present(self, ids: Ids) -> None:
        """Refuse to read the examples of a device that are not in these shards."""
        if self.shards.partial:
            self.shards.check_present(ids.cpu())

    def draw(
        self, address: draws.Address, ids: Ids, size: int, steps: range = range(1), *, local: Ids | None = None
    ) -> list[Batch]:
        """For each step, `size` training examples of each device's own: uniform with replacement.

        Step s has the slots from s * size on, so that many steps are drawn at the price of one and none depends on the others.
        `local` are the ids that the draw goes by, where they are not `ids`.
        """
        ids = ids.to(self.device)
        width, below = size * len(steps), self.counts("train", ids)
        chosen = draws.integers(address, ids if local is None else local, width, below=below, start=size * steps.start)
        whole = self._take("train", ids, chosen, None)
        return [Batch(whole.data, examples) for examples in torch.split(whole.examples, size, dim=1)]

    def cyclic(self, ids: Ids, size: int, turn: Tensor) -> Batch:
        """Batch number `turn` [n] of an endless walk over each device's examples in order; the last of a lap is short."""
        counts = self.counts("train", ids)
        laps = (counts + size - 1) // size
        slots = (turn % laps)[:, None] * size + torch.arange(size)
        inside = slots < counts[:, None]
        slots = torch.where(inside, slots, 0).to(self.device)
        return self._take("train", ids, slots, inside.to(self.device, self.dtype))

    def block(self, split: str) -> int:
        """How many examples of a part go through the model at once."""
        if self.population is not None:
            return self.population.blocks[split]
        return block_size(self.shards.part(split))

    def blocks(self, split: str, ids: Ids) -> Iterator[tuple[Tensor | None, Batch]]:
        """All examples of a part in blocks of one fixed size: (which rows have any left, None for all; the block).

        The size does not depend on who is in `ids`, so neither do the bits of a row.
        """
        counts = self.counts(split, ids)
        size = self.block(split)
        for start in range(0, max(int(counts.max()) if len(counts) else 0, 1), size):
            rows = (counts > start).nonzero()[:, 0]
            some = None if len(rows) == len(ids) else rows
            slots = torch.arange(start, start + size)[None, :]
            inside = slots < counts[rows, None]
            slots = torch.where(inside, slots, 0).to(self.device)
            yield some, self._take(split, ids[rows], slots, inside.to(self.device, self.dtype))

    def gradient(self, x: Rows, batch: Batch) -> Rows:
        """The gradient of each row's mean loss on its batch, [n, P]; without l2."""
        out = torch.empty_like(x)
        views = self._views(out)
        if self._stack is not None:
            factors = self._stack.factors(self._views(x), batch.x, batch.y, batch.weight)
            self._stack.add(views, factors, scale=1.0, keep=0.0)
        else:
            for view, g in zip(views, self._gradients(x, batch), strict=True):
                view.copy_(g)
        return out

    def hessian_product(self, x: Rows, batch: Batch, v: Rows) -> Rows:
        """H v per row, H being the Hessian of the row's mean loss on its batch, [n, P]; without l2.

        It is the derivative of <gradient, v> by autograd. A difference of gradients is far off if
        a ReLU switches between its two points.
        """
        apart = self._stack is None and self.device.type == "cpu"
        if apart and len(x) > 1:  # bits of a norm's second derivative depend on the number of rows
            alone = [slice(i, i + 1) for i in range(len(x))]
            products = [self.hessian_product(x[i], _row(batch, i.start), v[i]) for i in alone]
            return torch.cat(products)
        out = torch.zeros_like(x)
        if not len(x):
            return out
        leaves = [view.detach().requires_grad_() for view in self._views(x)]
        with torch.enable_grad():
            gradients = self._differentiable_gradients(leaves, batch)
            curved = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]
            if not curved:  # the loss is linear in the parameters
                return out
            along = self._views(v)
            outputs = [gradients[i] for i in curved]
            weights = [along[i] for i in curved]
            parts = torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)
        for view, product in zip(self._views(out), parts, strict=True):
            view.copy_(product)
        return out

    @cached_property
    def no_hessian(self) -> str | None:
        """Why autograd has no second derivative of this module and loss; None where it has one.

        Some layers have a gradient but no derivative of it, such as fused attention.
        """
        row = self.space.initial(0).to(self.device, self.dtype)[None]
        leaves = [view.detach().requires_grad_() for view in self._views(row)]
        x, y = self._sample
        examples = torch.arange(len(x), device=self.device)[None]
        try:
            with torch.enable_grad():
                batch = Batch((x, y), examples)
                gradients = self._differentiable_gradients(leaves, batch)
            curved = [gradient for gradient in gradients if gradient.requires_grad]
            if curved:  # through the whole graph: `grad` would pass over what leads to no leaf
                torch.autograd.backward(curved, [torch.ones_like(gradient) for gradient in curved])
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def loss(self, x: Rows, batch: Batch) -> Tensor:
        """Each row's mean loss on its batch, [n]; without l2."""
        if not len(x):
            return x.new_zeros(0)
        losses = self.losses(self.forward(self._views(x), batch.x), batch.y)
        return losses.mean(1) if batch.weight is None else (losses * batch.weight).sum(1) / batch.weight.sum(1)

    def full_gradient(self, x: Rows, ids: Ids) -> Rows:
        """The gradient of each row's mean loss over its whole training part, [n, P]; without l2."""
        return self._over_all(x, ids, lambda rows, batch: self.gradient(x[rows], batch))

    def full_hessian_product(self, x: Rows, ids: Ids, v: Rows) -> Rows:
        """H v per row, H being the Hessian of the loss on all training examples; without l2."""

        def of_block(rows: Tensor | slice, batch: Batch) -> Rows:
            return self.hessian_product(x[rows], batch, v[rows])

        return self._over_all(x, ids, of_block)

    def _over_all(
        self,
        x: Rows,
        ids: Ids,
        of_block: Callable[[Tensor | slice, Batch], Rows],
    ) -> Rows:
        """The mean over each row's training examples, given the mean over any block of them."""
        out = torch.zeros_like(x)
        counts = self.counts("train", ids)
        for rows, batch in self.blocks("train", ids):
            assert batch.weight is not None
            held = counts[slice(None) if rows is None else rows, None].to(x)
            share = batch.weight.sum(1, keepdim=True) / held
            if rows is None:
                out += share * of_block(slice(None), batch)
            else:
                there = rows.to(x.device)
                out[there] += share * of_block(there, batch)
        return out

    def evaluate(
        self,
        x: Rows,
        split: str,
        ids: Ids,
        *,
        predict: Predict | None = None,
        bins: int = 0,
        errors: bool = False,
    ) -> Tally:
        """Right answers, summed loss and count of each row on its device's part.

        With `bins` also what calibration needs, with `errors` also the sums of errors where numbers are predicted.
        The outputs are the module's, or what `predict` makes of the examples.
        """
        errors = errors and self.targets > 0
        by_label = self.classifies and self._kernel is not None and self._kernel.loss == "squared_error"
        plain = predict is None and not bins and not by_label
        if self._kernel is not None and x.dtype == self.dtype and native.serves(x) and plain:
            counts = self.counts(split, ids)
            right, loss = self._kernel.score(x, self._index[split], self._offset[split][ids], counts)
            sums = self._errors(x, split, ids) if errors else None  # the kernel knows the loss alone
            return Tally(right, loss, counts.double(), errors=sums)
        zero = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        right, loss = zero.clone(), zero.clone()
        honesty = zero.new_zeros(len(ids), 3 * bins + 2) if bins else None
        sums = zero.new_zeros(len(ids), 3 + self.targets) if errors else None
        for rows, batch in self.blocks(split, ids):
            where = torch.arange(len(ids), device=self.device) if rows is None else rows.to(self.device)
            outputs = self.outputs(x if rows is None else x[where], batch) if predict is None else predict(batch, where)
            assert batch.weight is not None
            losses = self.losses(outputs, batch.y) * batch.weight
            loss[where] += losses.double().sum(1)
            if self.classifies:
                right[where] += ((outputs.argmax(-1) == batch.y) * batch.weight).double().sum(1)
            if honesty is not None:
                honesty[where] += calibration.sums(outputs, batch.y, batch.weight, bins)
            if sums is not None:
                sums[where] += _error_sums(outputs, batch.y, batch.weight)
        return Tally(right, loss, self.counts(split, ids).double().to(self.device), honesty, sums)

    def _errors(self, x: Rows, split: str, ids: Ids) -> Tensor:
        """The sums of errors of each row on its device's part, [n, 3 + outputs]."""
        sums = torch.zeros(len(ids), 3 + self.targets, dtype=torch.float64, device=self.device)
        for rows, batch in self.blocks(split, ids):
            assert batch.weight is not None
            where = slice(None) if rows is None else rows.to(self.device)
            sums[where] += _error_sums(self.outputs(x[where], batch), batch.y, batch.weight)
        return sums

    def outputs(self, x: Rows, batch: Batch) -> Tensor:
        """What each row's module makes of its examples, [n, B, ...]."""
        return self.forward(self._views(x), batch.x)

    def gradient_of(self, x: Rows, batch: Batch, loss: Callable[[Tensor], Tensor]) -> Rows:
        """The gradient of a loss of one's own, which takes the outputs [n, B, ...] and gives one number per row, [n]."""
        leaf = x.detach().requires_grad_()
        if not len(x):
            loss(self.outputs(x, batch))  # a rehearsal is to find what cannot work
            return torch.zeros_like(x)
        with torch.enable_grad():
            return torch.autograd.grad(loss(self.outputs(leaf, batch)).sum(), leaf)[0]

    def spread(self, ids: Ids, size: int) -> Batch:
        """Up to `size` training examples of each device: all where it has no more, else as many, evenly spaced."""
        size = size if self.block("train") == BLOCK else min(size, self.block("train"))  # nobody has more
        counts = self.counts("train", ids.to(self.device))[:, None]
        slots = torch.arange(size, device=self.device)[None, :]
        inside = slots < counts
        slots = torch.where(counts > size, slots * counts // size, torch.where(inside, slots, 0))
        return self._take("train", ids, slots, inside.to(self.dtype))

    @cached_property
    def _labels(self) -> Tensor:
        return torch.from_numpy(self.shards.labels() > 0).to(self.device)

    def labels(self, ids: Ids) -> Tensor:
        """Which classes each device has training examples of, bool [n, classes]."""
        if not self.classifies:
            raise ConfigError("these targets are numbers, but the algorithm needs classes; give integer labels.")
        self._check_present(ids)
        return self._labels[ids.to(self.device)]

    @cached_property
    def most_labels(self) -> int:
        """The most classes that one device has."""
        if self.population is not None:
            return self.population.most_labels
        return most_labels(self.shards)

    def descend(self, start: Rows, batch_of: Callable[[int], Batch], terms: Terms, *, one: Batch | None = None) -> Rows | None:
        """Plain steps on mini-batches, in place on one buffer of rows; None for what this path does not do.

        `one` is the batch where all steps use the same.
        """
        ours = one is None or (one.data[0] is self.x and one.data[1] is self.y)
        if self._kernel is not None and ours and start.dtype == self.dtype and takes(start, terms):
            return self._kernel.descend(start, batch_of, terms, l2=self.l2, one=one)
        if terms.method != "gradient" or terms.tol is not None or terms.mask is not None or terms.part is not None:
            return None
        lr, steps = terms.lr, terms.steps
        if isinstance(steps, Tensor) or isinstance(lr, Tensor) or (terms.prox and isinstance(terms.prox[0], Tensor)):
            return None
        if one is not None and self._stack is not None and gram.pays(self._stack, self.space, terms, one.y.shape[1]):
            return gram.descend(self._stack, self.space, start, one.x, one.y, one.weight, terms=terms, lr=lr, l2=self.l2)
        x = start.clone()
        views = self._views(x)
        for step in range(steps):
            self._step(x, views, batch_of(step), terms, lr)
            if terms.l1 is not None and terms.l1[1] == 0:
                x.copy_(soft(x, lr * terms.l1[0]))
        return x

    def _step(self, x: Rows, views: list[Tensor], batch: Batch, terms: Terms, lr: float) -> None:
        """One step in place: every term, the data's too, is evaluated at the x that comes in."""
        if self._stack is not None:
            factors = self._stack.factors(views, batch.x, batch.y, batch.weight)
            step_without_data(x, terms, lr, self.l2)
            self._stack.add(views, factors, scale=-lr)
            return
        gradients = self._gradients(x, batch)
        step_without_data(x, terms, lr, self.l2)
        for view, g in zip(views, gradients, strict=True):
            view.add_(g, alpha=-lr)

    def _views(self, x: Rows) -> list[Tensor]:
        return [slot.view(x) for slot in self.space.slots]

    def row_bytes(self) -> int:
        """About how much memory one row in training takes."""
        example = self.x.shape[1:].numel()
        return (8 * self.space.width + 2 * BLOCK * example) * self.x.element_size()

    def _gradients(self, x: Rows, batch: Batch) -> tuple[Tensor, ...]:
        if self.forward.path == "each" and len(x) > 1:  # so that only one row's activations are held at a time
            apart = [self._gradients(x[i : i + 1], _row(batch, i)) for i in range(len(x))]
            return tuple(torch.cat(gradients) for gradients in zip(*apart, strict=True))
        leaves = [view.detach().requires_grad_() for view in self._views(x)]
        if not len(x):
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        with torch.enable_grad():
            losses = self.losses(self.forward(leaves, batch.x), batch.y)
            weight = torch.ones_like(losses) if batch.weight is None else batch.weight
            total = ((losses * weight).sum(1) / weight.sum(1)).sum()
            return torch.autograd.grad(total, leaves)

    def _differentiable_gradients(self, leaves: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of each row's mean loss, itself a function of the leaves."""
        outputs = self.forward(leaves, batch.x)
        if self._loss is _cross_entropy and self.classifies and outputs.ndim == 3:
            # As softmax - one_hot: the second derivative of log_softmax has bits that depend on n.
            weight = batch.weight
            if weight is None:
                weight = torch.ones_like(batch.y, dtype=outputs.dtype)
            share = (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
            minus_one = outputs.new_full((), -1.0).expand(*batch.y.shape, 1)
            errors = torch.softmax(outputs, dim=2).scatter_add(2, batch.y.unsqueeze(2), minus_one)
            return torch.autograd.grad(outputs, leaves, errors * share, create_graph=True)
        losses = self.losses(outputs, batch.y)
        weight = torch.ones_like(losses) if batch.weight is None else batch.weight
        total = ((losses * weight).sum(1) / weight.sum(1)).sum()
        return torch.autograd.grad(total, leaves, create_graph=True)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per example, [n, B]."""
        n, size = y.shape[:2]
        losses = self._loss(outputs.flatten(0, 1), y.flatten(0, 1))
        return losses.view(n, size) if losses.numel() == n * size else losses

    def _take(self, split: str, ids: Ids, slots: Tensor, weight: Tensor | None) -> Batch:
        start = self._offset_there[split][ids.to(self.device)]
        index = self._index[split]
        chosen = (start[:, None] + slots).clamp(max=max(len(index) - 1, 0))
        return Batch((self.x, self.y), index[chosen] if len(index) else chosen, weight)

    @property
    def _sample(self) -> tuple[Tensor, Tensor]:
        """Two examples at most, to try the model on; zeros where there are none."""
        if len(self.x):
            return self.x[:2], self.y[:2]
        return self.x.new_zeros(2, *self.x.shape[1:]), self.y.new_zeros(2, *self.y.shape[1:])

    def _check(self) -> None:
        """Two examples through the model, so that shapes fail before training starts."""
        x, y = self._sample
        row = self.space.initial(0).to(self.device, self.dtype)[None]
        outputs = self._try(row)
        again = self._try(row)
        if not _same(outputs, again):
            raise ModelError(_RANDOM)
        if self.shards.classes is not None and outputs.shape[-1] < self.shards.classes:
            raise ModelError(_too_few(outputs.shape[-1], self.shards))
        try:
            losses = self.losses(outputs, y[None])
        except FAULTS as error:
            shape = tuple(outputs.shape[2:])
            what = f"the loss does not take outputs {shape} and these targets"
            raise DataError(f"{what}: {told(error)}") from error
        if losses.shape != (1, len(x)):
            raise ConfigError("the loss must return one number per example, not their mean; use reduction='none'.")
        # Outputs of a cross-entropy are logits, and a loss of one's own may take a mean and a variance.
        comparable = self._loss is not _cross_entropy and outputs[0].numel() == y.numel()
        if not self.classifies and comparable:
            self.targets = y[:1].numel()

    def _try(self, row: Rows) -> Tensor:
        """The outputs for two examples; an error if the model fails on them or draws at random."""
        name = type(self.space.module).__name__
        try:
            with torch.no_grad(), NoDraws():
                outputs: object = self.forward(self._views(row), self._sample[0][None])
        except Drawn as error:
            raise ModelError(f"{_RANDOM} It draws by {error}.") from error
        except FAULTS as error:
            if "random" in str(error):  # vmap refuses such a model by itself
                raise ModelError(_RANDOM) from error
            what = f"the model {name} does not take examples of shape {tuple(self.x.shape[1:])}"
            raise ModelError(f"{what}: {told(error)}") from error
        if not isinstance(outputs, Tensor):
            kind = type(outputs).__name__
            raise ModelError(f"the model {name} returns {kind}; return one tensor.")
        return outputs


def _same(outputs: Tensor, again: Tensor) -> bool:
    """Whether they are equal; on a GPU, which may sum in any order, but for the last digits."""
    if outputs.shape != again.shape:
        return False
    rtol, atol = (0.0, 0.0) if outputs.device.type == "cpu" else (1e-3, 1e-5)
    return torch.allclose(outputs, again, rtol=rtol, atol=atol, equal_nan=True)


def _row(batch: Batch, i: int) -> Batch:
    here = slice(i, i + 1)
    return Batch(batch.data, batch.examples[here], None if batch.weight is None else batch.weight[here])


def _too_few(outputs: int, shards: Shards) -> str:
    """Why a model has too few outputs; labels that skip numbers are the usual reason."""
    classes = shards.classes or 0
    text = f"the model has {outputs} outputs, but the labels need {classes}"
    absent = (shards.y.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if not absent or shards.names.classes:
        return f"{text}."
    return (
        f"{text}: classes are numbered from 0, so labels up to {classes - 1} mean {classes} of them; "
        f"no example has the label {some(absent)}. Number the {classes - len(absent)} labels that occur "
        f"from 0 to {classes - len(absent) - 1}, or give the model {classes} outputs."
    )


def resolved_loss(loss: Loss, shards: Shards) -> Loss:
    """The loss that "auto" and "mse" mean for this data; any other as it is."""
    if callable(loss):
        return loss
    if loss == "auto":
        return "squared_error" if shards.classes is None else "cross_entropy"
    return "squared_error" if loss == "mse" else loss


def _error_sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Of each row, float64 [n, 3 + outputs]: the sums of |error|, error^2 and y^2, and of y for each output.

    They are all that RMSE, MAE and R2 need, whoever adds them up.
    """
    targets = y.double().flatten(2) if y.ndim > 2 else y.double()[..., None]
    error = (outputs.double().reshape(targets.shape) - targets) * weight[..., None]
    targets = targets * weight[..., None]
    totals = [error.abs().sum((1, 2)), error.square().sum((1, 2)), targets.square().sum((1, 2))]
    return torch.cat([torch.stack(totals, dim=1), targets.sum(1)], dim=1)


def _loss(loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    if callable(loss):
        return loss
    if loss not in _LOSSES:
        raise ConfigError(f"loss = {loss!r}: choose one of {', '.join(_LOSSES)} (also called mse), or give a function.")
    return _LOSSES[loss]


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance, so that its gradient is the error."""
    return 0.5 * (outputs - y.view_as(outputs)).square().flatten(1).sum(1)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, reduction="none")


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "squared_error": _squared_error,
}
