"""Two examples through a task's model and loss, so that what cannot work fails before training."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from covey.data import Shards
from covey.data.shards import NO_TARGET, some
from covey.engine.augment import Augmentation, augmented
from covey.engine.batches import Batch, Draw
from covey.engine.measures.losses import by_target, predicts_numbers
from covey.engine.modules import dropout, norm
from covey.engine.modules.dropout import Met, Site
from covey.engine.modules.forward import run_module
from covey.engine.modules.generator import NoDraws, UnaddressedDraw
from covey.engine.modules.intercept import Interception, SiteRecorder
from covey.engine.modules.layout import ParameterLayout, aligned, sharing_copy
from covey.engine.modules.norm import BatchNorm
from covey.engine.modules.passing import Pass
from covey.engine.modules.tracing import is_plain
from covey.errors import ConfigError, DataError, ModelError
from covey.origin import FAULTS, told

if TYPE_CHECKING:
    from covey.engine.task import Task

Result = TypeVar("Result")
_RANDOM = (
    "the model's forward draws at random, which no address decides: two passes of the same "
    "examples through the same weights must give the same; only dropout may draw."
)
_CLOSE = {torch.float64: 1e-7}
_OTHERWISE_CLOSE = 1e-2
"""Largest difference by rounding, relative to the largest output, in other types."""
_STATE = (
    "two passes of the same examples differ: the model keeps something from one pass to the "
    "next{what}. No row holds it, so devices would share it; compute it from the inputs and the "
    "parameters in every pass."
)
_EXAMPLES = (
    "in {mode} mode the model's outputs for an example depend on the other examples of its batch: "
    "batches are filled up, and scores go through the model in blocks; treat every example alone, "
    "or normalize by nn.BatchNorm1d to 3d."
)
_ELSEWHERE = (
    "the model reads a parameter from somewhere else than its attributes, as from a list or a "
    "dict: devices could not have their own; hold parameters in nn.ParameterList, nn.ParameterDict "
    "or attributes."
)


def sites(space: ParameterLayout, x: Tensor) -> tuple[Site, ...]:
    """Where a module drops entries in training; an error if it draws in any other way."""
    row = space.row(space.module).to(x.device)
    parameters = [slot.view(row[None])[0] for slot in space.slots]
    module = sharing_copy(space.module).train()
    three = torch.cat([x, x, x])[:3]

    def met(examples: Tensor) -> list[Met]:
        mode = SiteRecorder(Pass(parameters), module)
        examples = examples.clone()
        version = examples._version
        with mode:
            run_module(space, module, Pass(parameters), examples)
        space.changes_inputs = space.changes_inputs or examples._version != version
        space.needs_mode = space.needs_mode or mode.needed
        return mode.met

    def in_eval_mode() -> None:
        with Interception(Pass(parameters)):
            run_module(space, module.eval(), Pass(parameters), three)

    of_two = _attempt(space, x, lambda: met(three[:2]))
    if not of_two:
        return ()
    of_three = _attempt(space, x, lambda: met(three))
    _attempt(space, x, in_eval_mode)
    return dropout.sites(of_two, of_three)


def check_augment(steps: Sequence[Augmentation], x: Tensor) -> None:
    """An error if these examples cannot be augmented, or a function draws by itself."""
    draw = Draw(0, torch.arange(1, device=x.device))
    for step in steps:
        step.check(x.shape[1:], x.dtype)
    try:
        with torch.no_grad(), NoDraws():
            once = augmented(steps, x[None], draw)
            again = augmented(steps, x[None], draw)
    except UnaddressedDraw as error:
        raise ConfigError(
            f"augment: a function draws by {error}, which no address decides; take random numbers "
            "from u, as in u(2)."
        ) from error
    if not _same(once, again):
        raise ConfigError("augment: a function gives two results for one u; draw by u alone.")


def check_metrics(task: Task) -> None:
    """An error if a metric of the user's own does not take the model's outputs and the targets."""
    _, y = task.examples.sample
    outputs, targets, _ = by_target(_outputs(task), y[None])
    weight = torch.ones(targets.shape[:2], device=targets.device)
    for metric in task.metrics:
        if metric.function is None or metric.own is None or metric.own.sums is None:
            continue
        try:
            metric.own.sums(outputs, targets, weight)
        except FAULTS as error:
            raise ConfigError(
                f"metric {metric.name} fails on outputs {tuple(outputs.flatten(0, 1).shape)} and "
                f"targets {tuple(targets.flatten(0, 1).shape)}, with {told(error)}"
            ) from error


def targets(task: Task) -> int:
    """How many numbers are predicted per example; an error if model, loss and data do not fit.

    0 for classes, and where outputs are not compared with targets.
    """
    x, y = task.examples.sample
    outputs = _outputs(task)
    _check_shape(task, outputs)
    _check_norms(task)
    if not is_plain(task.space.module):
        _attempt(task.space, x, lambda: _check_dependence(task.space, x))
    if not _same(outputs, _outputs(task)):
        raise ModelError(_RANDOM)
    width = outputs.shape[-1]
    classes = task.shards.classes
    if classes is not None and width < classes:
        raise ModelError(_too_few(width, task.shards))
    try:
        losses = task.gradients.losses(outputs, y[None])
    except FAULTS as error:
        shape = tuple(outputs.shape[2:])
        fault = f"the loss does not take outputs {shape} and these targets"
        raise DataError(f"{fault}: {told(error)}") from error
    count = y.numel() if task.shards.by_position else len(x)
    if losses.shape != (1, count):
        have = f"a tensor of shape {tuple(losses.shape[1:])} for {count} examples"
        raise ConfigError(f"the loss returns {have}; return one number per example.")
    # Outputs of a cross-entropy are logits, and a loss of one's own may take a mean and a variance.
    same_size = outputs[0].numel() == y.numel()
    comparable = predicts_numbers(task.gradients.loss) and same_size
    if task.classifies or not comparable:
        return 0
    return y[:1].numel()


def _check_shape(task: Task, outputs: Tensor) -> None:
    """That outputs have an axis of examples, of positions where these have labels, of classes."""
    x, _ = task.examples.sample
    shape = tuple(outputs.shape[1:])
    axes, wanted = 1, "[examples, numbers]"
    if task.classifies:
        axes, wanted = 2, "[examples, classes]"
    if len(shape) < axes or shape[0] != len(x):
        raise ModelError(
            f"the model gives outputs of shape {shape} for {len(x)} examples; return {wanted}."
        )
    positions = task.y.shape[1:]
    if task.shards.by_position and shape[1:-1] != positions:
        raise ModelError(
            f"each of the {positions[0]} positions has a label, but the model gives an example "
            f"outputs of shape {shape[1:]}; return [examples, positions, classes]."
        )


def _check_norms(task: Task) -> None:
    """Refuse batches and devices of one example where a norm layer would have one value of each.

    The variance of one value is 0.
    """
    if not task.space.norms:
        return
    task.examples.check_norms()
    x, _ = task.examples.sample
    for name, count in norm.points(task.space.module, task.space.norms, x).items():
        if count == 1:
            reason = f"the BatchNorm layer {name!r} needs two examples or more"
            task.examples.check_not_single(reason)
            return


def check_backward(task: Task) -> None:
    """An error if a gradient cannot be taken, or would draw.

    Fused layers need no such check. A module that runs as it is may draw again in the backward
    pass, by torch.utils.checkpoint.
    """
    if not isinstance(task.stack, str):
        return
    x, y = task.examples.sample
    examples = torch.arange(len(x), device=x.device)
    batch = Batch((x, y), examples.expand(2, -1), draw=Draw(0, examples[:1].expand(2)))
    row = task.space.row(task.space.module).to(task.device, task.dtype)
    try:
        with NoDraws():
            task.gradients.by_autograd(torch.stack([row, row]), batch)
    except UnaddressedDraw as error:
        raise ModelError(
            f"the model draws by {error} in the backward pass, where no address decides it; "
            "leave out torch.utils.checkpoint around dropout."
        ) from error
    except ModelError:
        raise
    except FAULTS as error:
        name = type(task.space.module).__name__
        raise ModelError(f"no gradient of {name} can be taken: {told(error)}") from error


def _outputs(task: Task) -> Tensor:
    """The outputs for two examples; an error if the model fails on them or draws at random."""
    x, _ = task.examples.sample
    row = task.space.row(task.space.module)  # any weights do
    pass_ = Pass(task.gradients.views(row.to(task.device, task.dtype)[None]))
    outputs: object = _attempt(task.space, x, lambda: task.forward(pass_, x[None]))
    if not isinstance(outputs, Tensor):
        name = type(task.space.module).__name__
        kind = type(outputs).__name__
        raise ModelError(f"the model {name} returns {kind}; return one tensor.")
    return outputs


def check_largest_id(module: nn.Module, shards: Shards) -> None:
    """That the model takes the largest token id.

    It is tried on a CPU: a GPU cannot go on after an id that is not there.
    """
    tokens = shards.tokens
    if tokens is None:
        return
    module = copy.deepcopy(module).cpu().eval()
    shape = shards.x.shape[1:]
    largest = torch.full((2, *shape), tokens - 1)
    try:
        with torch.no_grad():
            module(largest)
    except IndexError as error:
        name = type(module).__name__
        raise ModelError(
            f"the model {name} does not take the token id {tokens - 1} ({told(error)}), but the "
            f"data has the ids 0 to {tokens - 1}; give its nn.Embedding {tokens} entries."
        ) from error
    except FAULTS:
        return  # the trial on examples says it better


def _attempt(space: ParameterLayout, x: Tensor, run: Callable[[], Result]) -> Result:
    """What a pass of examples x gives; an error if it fails or draws at random."""
    try:
        with torch.no_grad(), NoDraws():
            return run()
    except UnaddressedDraw as error:
        raise ModelError(f"{_RANDOM} It draws by {error}.") from error
    except ModelError:
        raise
    except FAULTS as error:
        if "random" in str(error):  # vmap refuses such a model by itself
            raise ModelError(_RANDOM) from error
        name = type(space.module).__name__
        fault = f"the model {name} does not take examples of shape {tuple(x.shape[1:])}"
        if not x.is_floating_point():
            fault = f"{fault}, which are token ids (nn.Embedding looks them up)"
        raise ModelError(f"{fault}: {told(error)}") from error


def _same(outputs: Tensor, again: Tensor) -> bool:
    """Whether they are equal; on a GPU, which may sum in any order, but for the last digits."""
    if outputs.shape != again.shape:
        return False
    if outputs.device.type == "cpu":
        return torch.allclose(outputs, again, rtol=0.0, atol=0.0, equal_nan=True)
    return torch.allclose(outputs, again, rtol=1e-3, atol=1e-5, equal_nan=True)


def _too_few(outputs: int, shards: Shards) -> str:
    """Why a model has too few outputs; labels that skip numbers are the usual reason."""
    classes = shards.classes or 0
    text = f"the model has {outputs} outputs, but the labels need {classes}"
    labels = shards.y[shards.y != NO_TARGET]
    counts = labels.bincount(minlength=classes)
    absent = (counts == 0).nonzero().flatten().tolist()
    if not absent or shards.names.classes:
        return f"{text}."
    return (
        f"{text}: classes are numbered from 0, so labels up to {classes - 1} mean {classes} of "
        f"them; no example has the label {some(absent)}. Number the {classes - len(absent)} labels "
        f"that occur from 0 to {classes - len(absent) - 1}, or give the model {classes} outputs."
    )


def _check_dependence(space: ParameterLayout, x: Tensor) -> None:
    """An error if outputs depend on more than the parameters and one example.

    Only then do rows and addresses decide them, in whatever batch. Training passes are tried in
    training mode and scoring passes in eval mode, with nothing dropped. `x` is one example or two.
    """
    with torch.no_grad(), NoDraws(), _no_other_draws():
        trial = _Trial(space)
        # Refuse BatchNorm layers that the module itself keeps in eval mode.
        trial.module.train()
        for norm_layer in space.norms:
            layer = trial.module.get_submodule(norm_layer.name)
            if isinstance(layer, BatchNorm) and not layer.training:
                raise ModelError(
                    f"layer {norm_layer.name!r} ({type(layer).__name__}) stays in eval mode when "
                    "the model trains; norm = 'frozen' keeps the running statistics as they are."
                )
        scored = trial.outputs(x, training=False)
        trained = trial.outputs(x, training=True)
        trial.check_again(x, trained, training=True)
        trial.check_again(x, scored, training=False)
        trial.check_others(x, trained, training=True)
        trial.check_others(x, scored, training=False)
        trial.check_parameters(x)


class _Trial:
    """A copy of a module that runs with parameters near its own."""

    def __init__(self, space: ParameterLayout) -> None:
        self.space = space
        self.module = sharing_copy(space.module)
        self.before = {name: value.clone() for name, value in space.module.named_buffers()}
        row = space.row(space.module)
        pattern = torch.cos(1.7 * torch.arange(len(row), dtype=row.dtype))
        self.row = row + 0.01 * pattern
        placed = self.row.to(next(space.module.parameters()).device)
        self.values = {}
        for slot in space.slots:
            self.values[slot.name] = slot.oriented(aligned(slot.view(placed[None])[0]))

    def outputs(self, x: Tensor, *, training: bool) -> Tensor:
        """The outputs, where norm layers have constant statistics."""
        return self.outputs_of(self.module, x, self.values, training=training)

    def outputs_of(
        self, module: nn.Module, x: Tensor, values: dict[str, Tensor], *, training: bool
    ) -> Tensor:
        module.train(training)
        for norm_layer in self.space.norms:
            module.get_submodule(norm_layer.name).eval()
        with SiteRecorder(Pass([]), module):
            out: Tensor = torch.func.functional_call(module, values, (x.clone(),))
        return out

    def check_again(self, x: Tensor, outputs: Tensor, *, training: bool) -> None:
        """Refuse a module that gives other outputs than before."""
        again = self.outputs(x, training=training)
        if not _close(outputs, again, exact=True):
            buffers = self.module.named_buffers()
            kept = [name for name, value in buffers if not torch.equal(value, self.before[name])]
            what = f", in its buffer {kept[0]!r}" if kept else ""
            raise ModelError(_STATE.format(what=what))

    def check_others(self, x: Tensor, outputs: Tensor, *, training: bool) -> None:
        """Refuse a module whose outputs change with another example in the batch."""
        more = self.outputs(torch.cat([x, x[:1]]), training=training)
        if not _close(outputs, more[: len(x)]):
            mode = "training" if training else "eval"
            raise ModelError(_EXAMPLES.format(mode=mode))

    def check_parameters(self, x: Tensor) -> None:
        """Refuse a module that does not see the parameters it is given."""
        outputs = self.outputs(x, training=False)
        filled = self.outputs_of(self.space.fill(self.row), x, {}, training=False)
        if not _close(outputs, filled) or self._is_independent(x):
            raise ModelError(_ELSEWHERE)

    def _is_independent(self, x: Tensor) -> bool:
        """Whether outputs have gradients, but by none of the parameters."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.values.items()}
        try:
            with torch.enable_grad():
                outputs = self.outputs_of(self.module, x, leaves, training=False)
            if not outputs.requires_grad:
                return False
            ones = torch.ones_like(outputs)
            gradients = torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)
        except FAULTS:
            return False  # the trial of the backward pass says why
        return all(gradient is None for gradient in gradients)


def _close(one: Tensor, other: Tensor, *, exact: bool = False) -> bool:
    """Whether outputs are equal; but for rounding, unless they must be equal on a CPU."""
    if one.shape != other.shape:
        return False
    if exact and one.device.type == "cpu":
        return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    if not one.numel() or not bool(torch.isfinite(one).all()):
        return True
    bound = _CLOSE.get(one.dtype, _OTHERWISE_CLOSE) * one.abs().max()
    return bool((one - other).abs().max() <= bound)


@contextmanager
def _no_other_draws() -> Iterator[None]:
    """Refuse draws by Python's or numpy's generators."""
    of_python = random.getstate()
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    try:
        yield
    finally:
        by = None
        if random.getstate() != of_python:
            by = "the module random"
        elif not _same_state(of_numpy, np.random.get_state(legacy=False)):  # noqa: NPY002
            by = "numpy.random"
        if by is not None:
            raise ModelError(
                f"the model's forward draws by {by}, which no address decides; only dropout may "
                "draw, as nn.Dropout or F.dropout."
            )


def _same_state(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same_state(one[key], other[key]) for key in one)
    return np.array_equal(np.asarray(one), np.asarray(other))
