"""What an experiment may hold.

Every mistake is named with its value and the rule, before anything runs. Values that may be given
in several forms, such as one pattern or a list, are put into the one that runs use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn

from covey.data import Shards
from covey.data.shards import some
from covey.engine.augment import augmentations
from covey.engine.measures.losses import check_loss_name, scales_targets
from covey.engine.measures.metrics import USUAL, Targets, metrics_of
from covey.engine.measures.named_losses import Huber
from covey.engine.modules import layout, norm
from covey.engine.modules.layout import freeze, private_default
from covey.engine.solvers.optimiser import PLAIN
from covey.engine.task import resolved_loss
from covey.errors import ConfigError, DataError, is_number, shown
from covey.fields import checked
from covey.kernel.algorithm import Algorithm
from covey.runs.settings import Part
from covey.runs.stopping import VALIDATION, early_stop
from covey.tree import Tree

if TYPE_CHECKING:
    from covey.runs.experiment import Experiment

PARTS: tuple[Part, ...] = get_args(Part)

_KINDS: tuple[tuple[str, type, str], ...] = (
    ("algorithm", Algorithm, "an instance of an algorithm, for instance FedAvg()"),
    ("data", Shards, "shards, for instance covey.data.digits() or covey.data.own(...)"),
    ("model", nn.Module, "an instance of a module, for instance covey.models.mlp(64, 32, 10)"),
    ("tree", Tree, "a tree, for instance Tree.flat(20)"),
)
_SUM_TOLERANCE = 1e-3  # of the probabilities of an example, which sum to 1


def check(experiment: Experiment) -> None:
    """An error for the first mistake.

    Lists become tuples, and "auto" becomes what it stands for.
    """
    for name, kind, example in _KINDS:
        value = getattr(experiment, name)
        if not isinstance(value, kind):
            raise ConfigError(f"{name} = {shown(value)}: give {example}.")
    if isinstance(experiment.metrics, str) or callable(experiment.metrics):
        _set(experiment, "metrics", (experiment.metrics,))
    for name, value in checked(experiment).items():
        _set(experiment, name, value)
    layout.check(experiment.model)
    _check_model(experiment)
    _check_training(experiment)
    experiment.rates()
    _check_loss(experiment)
    if experiment.metrics:
        metrics_of(experiment.metrics, Targets.of(experiment.data, experiment.loss))
    if experiment.select:
        _set(experiment, "select", _add_metric(experiment, experiment.select, "select"))
    _check_stop(experiment)
    _check_devices(experiment)
    _check_receivers(experiment)
    if experiment.environment is not None:
        experiment.environment.check(experiment)
    check_device(experiment.device)


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    """One pattern or several as a tuple; an empty one is none."""
    if isinstance(value, str):
        value = (value,)
    return tuple(filter(None, value))


def _check_model(experiment: Experiment) -> None:
    """Set the module, in a copy: some layers are frozen, and norm layers are as `norm` says.

    Private layers that are "auto" are what the algorithm says.
    """
    frozen = _patterns(experiment.frozen)
    _set(experiment, "frozen", frozen)
    if frozen:
        _set(experiment, "model", freeze(experiment.model, frozen))
    private = experiment.private
    if private == "auto":
        private = ()
        if experiment.algorithm.splits:
            private = private_default(experiment.model, experiment.algorithm.private_default)
    _set(experiment, "private", _patterns(private))
    if experiment.norm == "frozen" and experiment.start != "module":
        raise ConfigError(
            "norm = 'frozen' takes the running statistics that the module came with, which are not "
            "those of new weights; use start = 'module' with a pretrained module."
        )
    _set(experiment, "model", norm.prepared(experiment.model, experiment.norm))


def _check_training(experiment: Experiment) -> None:
    """Set what `augment` means; an error for settings that mean nothing, or not together."""
    algorithm = experiment.algorithm
    name = type(algorithm).__name__
    if experiment.compute == "bf16" and experiment.dtype != torch.float32:
        raise ConfigError(
            'compute = "bf16" is for rows of float32; leave out dtype = "float64", or compute.'
        )
    if not experiment.parts:
        raise ConfigError(
            f"parts = {shown(experiment.parts)}: give one or more of {', '.join(PARTS)}."
        )
    steps = augmentations(experiment.augment)
    x = experiment.data.x
    for step in steps:
        step.check(x.shape[1:], x.dtype)
    _set(experiment, "augment", steps)
    if experiment.private and not algorithm.splits:
        why = f"but {name} shares all layers, so they would be sent; leave it out"
        raise ConfigError(f"private = {shown(experiment.private)}, {why}.")
    if experiment.idle == "train" and not algorithm.idle_trains:
        why = f"but {name} counts on what devices keep when they are asked; use 'skip'"
        raise ConfigError(f"idle = 'train', {why}.")
    reason = algorithm.plain_steps
    if experiment.optimiser() != PLAIN and reason is not None:
        raise ConfigError(f"solver: {name} takes plain steps, because {reason}; leave out solver.")


def _check_loss(experiment: Experiment) -> None:
    """Set the loss that "auto" and "mse" mean.

    Labels become numbers where numbers are predicted.
    """
    check_loss_name(experiment.loss)
    loss = resolved_loss(experiment.loss, experiment.data)
    _set(experiment, "loss", loss)
    if loss == "squared_error" or isinstance(loss, Huber):
        _set(experiment, "data", experiment.data.numbers())
    data = experiment.data
    if data.target is not None and not scales_targets(loss, data):
        _set(experiment, "data", replace(data, target=None))
    if loss != "cross_entropy" or data.classes is not None:
        return
    if data.y.ndim == 1:
        raise ConfigError(
            "loss = 'cross_entropy', but the targets are numbers, not classes; leave loss out for "
            "squared_error, or give integer labels."
        )
    if data.y.ndim == 2:
        sums = data.y.sum(1)
        wrong = ((sums - 1).abs() > _SUM_TOLERANCE) | (data.y < 0).any(1)
        if wrong.any():
            example = int(wrong.nonzero()[0])
            raise ConfigError(
                f"loss = 'cross_entropy', but the {data.y.shape[1]} targets of example {example} "
                f"are no probabilities: their sum is {sums[example]:g}, or one is negative; "
                "for several yes-or-no labels per example, set loss = 'bce'."
            )


def _add_metric(
    experiment: Experiment,
    text: str,
    setting: str,
    known: Sequence[str] = (),
) -> str:
    """The name of the metric that a setting names, after a minus where lower is better.

    It is computed beside those asked for, unless it is `known` anyway. The `text` may say of a
    function of the user's own that lower is better.
    """
    targets = Targets.of(experiment.data, experiment.loss)
    by_name = {metric.name: metric for metric in metrics_of(experiment.metrics, targets)}
    name = text.removeprefix("-")
    try:
        metric = by_name.get(name) or metrics_of([name], targets)[0]
    except ConfigError as error:
        raise ConfigError(f"{setting} = {shown(text)}; {error}") from error
    if metric.table:
        raise ConfigError(f"{setting} = {shown(name)} is a table; select a figure such as 'f1'.")
    if metric.name not in (*by_name, *known):
        _set(experiment, "metrics", (*experiment.metrics, metric.name))
    lower = not metric.higher
    if metric.function is not None:
        lower = lower or text.startswith("-")
    elif text.startswith("-") and metric.higher:
        fix = "leave out the minus, which is for functions of your own"
        raise ConfigError(f"{setting} = {shown(text)}: the largest {name} is the best; {fix}.")
    return f"-{metric.name}" if lower else metric.name


def _check_stop(experiment: Experiment) -> None:
    """Set the rule of `stop`, its metric as `select` is; an error where it cannot decide."""
    stop = early_stop(experiment.stop)
    if stop is None:
        return
    if experiment.protocol == "paper":
        why = "but protocol = 'paper' has no validation part, and test data must not end a run"
        raise ConfigError(f"stop is set, {why}; leave out stop, or use protocol = 'honest'.")
    if VALIDATION not in experiment.parts:
        parts = shown(experiment.parts)
        raise ConfigError(f"stop needs scores on validation data, but parts = {parts}; add it.")
    if not experiment.data.part(VALIDATION).counts().sum():
        why = "no device has validation examples; give the data a validation part"
        raise ConfigError(f"stop needs validation data, but {why}, or leave out stop.")
    if stop.metric:
        name = _add_metric(experiment, stop.metric, "stop: metric", USUAL)
        stop = replace(stop, metric=name)
    _set(experiment, "stop", stop)


def _check_devices(experiment: Experiment) -> None:
    """An error unless the tree is that of the data, and some devices are left to train.

    No device is held out twice.
    """
    data = experiment.data.devices
    tree = experiment.tree.devices
    if data != tree:
        raise DataError(f"the data has {data} devices, the tree {tree}; they must be the same.")
    wanted = experiment.holdout_devices
    devices = experiment.tree.devices
    if isinstance(wanted, tuple):
        count = len(wanted)
        numbered = all(is_number(each, whole=True) and 0 <= each < devices for each in wanted)
        fits = numbered and len(set(wanted)) == count
    else:
        count = wanted
        fits = is_number(wanted, whole=True) and 0 <= wanted <= devices
    if not fits:
        rule = f"how many of the {devices} devices, or a list of different ones, 0 to {devices - 1}"
        raise ConfigError(f"holdout_devices = {shown(wanted)}: give {rule}.")
    if count == devices:
        why = f"leaves none of the {devices} devices to train on"
        raise ConfigError(f"holdout_devices = {shown(wanted)} {why}.")


def _check_receivers(experiment: Experiment) -> None:
    """An error where devices without training examples cannot take part as receivers."""
    if not len(experiment.data.receivers):
        return
    reason = experiment.algorithm.needs_examples
    if reason is not None:
        name = type(experiment.algorithm).__name__
        check_no_receivers(experiment, f"{name} needs some of every device, because {reason}")


def check_no_receivers(experiment: Experiment, reason: str) -> None:
    """An error with the reason where some devices have no training examples."""
    data = experiment.protocol_data()
    receivers = data.receivers.tolist()
    if receivers:
        devices = f"{len(receivers)} of {data.devices} devices have no training examples"
        raise DataError(f"{devices} (devices {some(receivers)}), but {reason}; leave them out.")


def check_device(name: Any) -> None:
    """An error that lists the devices of this machine unless it is one of them."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device = {name!r} is not a device; use {_devices()}.") from error
    count = {"cpu": 1, "cuda": _cuda_devices()}.get(device.type)
    reason = ""
    if count is None:
        reason = f": covey does not run on {device.type}"
    elif count == 0:
        reason = ", but this machine has no CUDA device"
    elif device.index is not None and device.index >= count:
        reason = f", but this machine has {count} of the type {device.type}"
    if reason:
        raise ConfigError(f"device = {name!r}{reason}; use {_devices()}.")


def _cuda_devices() -> int:
    if not torch.cuda.is_available():
        return 0
    return torch.cuda.device_count()


def _devices() -> str:
    """The devices of this machine, as a file would name them."""
    count = _cuda_devices()
    if count == 0:
        return "'cpu'"
    if count == 1:
        return "'cpu', 'cuda' or 'cuda:0'"
    return f"'cpu', 'cuda' or 'cuda:0' to 'cuda:{count - 1}'"


def _set(experiment: Experiment, name: str, value: Any) -> None:
    object.__setattr__(experiment, name, value)
