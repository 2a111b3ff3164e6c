"""Two examples through a task's model and loss, so that what cannot work fails before training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from covey.data import Shards
from covey.data.shards import NO_TARGET, some
from covey.engine import conduct, dropout, norm
from covey.engine.augment import Augmentation, augmented
from covey.engine.batches import Batch, Draw
from covey.engine.dropout import Met, Site
from covey.engine.forward import run_module
from covey.engine.generator import Drawn, NoDraws
from covey.engine.intercept import Interception, Recorder
from covey.engine.layout import ParameterLayout, sharing_copy
from covey.engine.losses import by_target, predicts_numbers
from covey.engine.metrics import check_own
from covey.engine.passing import Pass
from covey.engine.tracing import is_plain
from covey.errors import ConfigError, DataError, ModelError
from covey.origin import FAULTS, told
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.task import Task

Result = TypeVar("Result")
_RANDOM = (
    "the model's forward draws at random, which no address decides: two passes of the same "
    "examples through the same weights must give the same; only dropout may draw."
)


def sites(space: ParameterLayout, x: Tensor) -> tuple[Site, ...]:
    """Where a module drops entries in training; an error if it draws in any other way."""
    row = space.row(space.module).to(x.device)
    parameters = [slot.view(row[None])[0] for slot in space.slots]
    module = sharing_copy(space.module).train()
    three = torch.cat([x, x, x])[:3]

    def met(examples: Tensor) -> list[Met]:
        mode = Recorder(Pass(parameters), module)
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
    except Drawn as error:
        raise ConfigError(
            f"augment: a function draws by {error}, which no address decides; take random numbers "
            "from u, as in u(2)."
        ) from error
    if not _same(once, again):
        raise ConfigError("augment: a function gives two results for one u; draw by u alone.")


def check_metrics(task: Task) -> None:
    """An error if a metric of the user's own does not take the model's outputs and the targets."""
    _, y = task.examples.sample
    row = task.space.row(task.space.module)  # any weights do
    rows = row.to(task.device, task.dtype)[None]
    outputs, targets, _ = by_target(_outputs(task, rows), y[None])
    check_own(task.metrics, outputs, targets)


def targets(task: Task) -> int:
    """How many numbers are predicted per example; an error if model, loss and data do not fit.

    0 for classes, and where outputs are not compared with targets.
    """
    x, y = task.examples.sample
    row = task.space.row(task.space.module)  # any weights do
    rows = row.to(task.device, task.dtype)[None]
    outputs = _outputs(task, rows)
    _check_shape(task, outputs)
    _check_norms(task)
    if not is_plain(task.space.module):
        _attempt(task.space, x, lambda: conduct.check(task.space, x))
    if not _same(outputs, _outputs(task, rows)):
        raise ModelError(_RANDOM)
    _check_positions(task, outputs)
    width = outputs.shape[-1]
    classes = task.shards.classes
    if classes is not None and width < classes:
        raise ModelError(_too_few(width, task.shards))
    try:
        losses = task.losses(outputs, y[None])
    except FAULTS as error:
        shape = tuple(outputs.shape[2:])
        fault = f"the loss does not take outputs {shape} and these targets"
        raise DataError(f"{fault}: {told(error)}") from error
    count = len(x)
    if task.shards.by_position:
        count = y.numel()
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
    """That outputs have an axis of examples and, for classes, one of classes."""
    x, _ = task.examples.sample
    shape = tuple(outputs.shape[1:])
    axes = 1
    if task.classifies:
        axes = 2
    if len(shape) < axes or shape[0] != len(x):
        wanted = "[examples, classes]" if task.classifies else "[examples, numbers]"
        raise ModelError(
            f"the model gives outputs of shape {shape} for {len(x)} examples; return {wanted}."
        )


def _check_norms(task: Task) -> None:
    """Refuse batches and devices of one example where a norm layer would have one value of each.

    The variance of one value is 0.
    """
    if not task.space.norms:
        return
    task.examples.check_norms()
    x, _ = task.examples.sample
    points = norm.points(task.space.module, task.space.norms, x)
    single = [name for name, count in points.items() if count == 1]
    if not single:
        return
    task.examples.check_not_single(f"the BatchNorm layer {single[0]!r} needs two examples or more")


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
    except Drawn as error:
        raise ModelError(
            f"the model draws by {error} in the backward pass, where no address decides it; "
            "leave out torch.utils.checkpoint around dropout."
        ) from error
    except ModelError:
        raise
    except FAULTS as error:
        name = type(task.space.module).__name__
        raise ModelError(f"no gradient of {name} can be taken: {told(error)}") from error


def _outputs(task: Task, rows: Rows) -> Tensor:
    """The outputs for two examples; an error if the model fails on them or draws at random."""
    x, _ = task.examples.sample
    pass_ = Pass(task.gradients.views(rows))
    outputs: object = _attempt(task.space, x, lambda: task.forward(pass_, x[None]))
    if not isinstance(outputs, Tensor):
        name = type(task.space.module).__name__
        kind = type(outputs).__name__
        raise ModelError(f"the model {name} returns {kind}; return one tensor.")
    return outputs


def _check_positions(task: Task, outputs: Tensor) -> None:
    """That outputs are per position where labels are."""
    positions = task.y.shape[1:]
    have = tuple(outputs.shape[2:])
    if task.shards.by_position and have[:-1] != positions:
        raise ModelError(
            f"each of the {positions[0]} positions has a label, but the model gives an example "
            f"outputs of shape {have}; return [examples, positions, classes]."
        )


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
    except Drawn as error:
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
