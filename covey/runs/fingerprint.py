"""The facts that decide the bits of a run, as text and hashes.

A checkpoint is for one experiment only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import isfunction
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import covey
from covey import draws
from covey.codecs import codec
from covey.data import Shards
from covey.engine.augment import Augmentation, Own
from covey.engine.layout import ParameterLayout
from covey.engine.metrics import MetricSpec
from covey.engine.norm import has_batch_norm
from covey.engine.optimiser import PLAIN, Optimiser
from covey.engine.task import Loss
from covey.installed import declared
from covey.links.spec import Spec
from covey.runs import source

if TYPE_CHECKING:
    from covey.runs.experiment import Experiment

_PLAIN = (
    "l2",
    "private",
    "seed",
    "idle",
    "batches",
    "protocol",
    "start",
    "dtype",
    "holdout_devices",
)
_NEWER = ("state", "own")
"""Settings of a solver that are told only where they are set: older checkpoints have none."""


def of(experiment: Experiment, initial: torch.Tensor | None = None) -> dict[str, str]:
    """Each fact as text or a hash, simple facts first.

    Of two experiments, the first difference is named. The data comes before what follows from it:
    the model's shapes, the loss, the tree. `initial` is the experiment's initial row, where the
    caller has it already.
    """
    out: dict[str, str] = {}
    for name, fact in program_fingerprint(experiment, initial).items():
        if name == "model":
            out |= data_fingerprint(experiment.data)
        out[name] = fact
    return out


def program_fingerprint(
    experiment: Experiment, initial: torch.Tensor | None = None
) -> dict[str, str]:
    """What every node of a run must have in common: the algorithm, the model, the settings.

    It says nothing of the examples, so nodes that hold different ones can compare it.
    """
    if initial is None:
        initial = experiment.initial()
    algorithm = type(experiment.algorithm)
    tree = experiment.tree
    out = {"draws": str(draws.VERSION), "covey": covey.__version__}
    out |= {name: str(getattr(experiment, name)) for name in _PLAIN}
    out["algorithm"] = describe(experiment.algorithm)
    out["code"] = f"{_full_name(algorithm)} {source.digest([algorithm])}"
    if experiment.norm != "device" or has_batch_norm(experiment.model):
        out["norm"] = experiment.norm
    frozen = [p for p in experiment.model.parameters() if not p.requires_grad]
    if frozen:
        out["frozen"] = _digest(*frozen)
    out["model"] = _model(experiment.model, experiment.private)
    out["initial"] = _digest(initial)
    out["loss"] = _loss(experiment.loss)
    out["codec"] = _codec(experiment.codec)
    out["tree"] = f"{tree.tiers} {tree.children}"
    if experiment.compute != "fp32":
        out["compute"] = experiment.compute
    if experiment.store_rows == "float16":
        out["store_rows"] = experiment.store_rows
    out |= _steps(experiment)
    if experiment.augment:
        out["augment"] = _augment(experiment.augmentations())
    if experiment.metrics:
        out["metrics"] = ", ".join(map(_metric, experiment.metrics))
    scores = {"least": experiment.least, "select": experiment.select}
    out |= {name: str(value) for name, value in scores.items() if value not in (1, "")}
    if experiment.radio is not None:
        out["radio"] = str(experiment.radio)
    return out


def data_fingerprint(shards: Shards) -> dict[str, str]:
    """A hash of the examples in these shards: those of all devices, or of one."""
    return {"data": shards.fingerprint()}


def describe(value: Any) -> str:
    """A dataclass by its name and all its fields."""
    if not is_dataclass(value):
        return _shown(value)
    return _described(value, _names(value))


def _names(value: Any) -> list[str]:
    return [field.name for field in fields(value)]


def _described(value: Any, names: Sequence[str]) -> str:
    inside = [f"{name}={describe(getattr(value, name))}" for name in names]
    return f"{type(value).__name__}({', '.join(inside)})"


def _model(model: nn.Module, private: str | tuple[str, ...]) -> str:
    """The module's layers, and what training does not change: frozen parameters and buffers.

    The layers may be the same and `forward` another, so the code of every layer counts too.
    """
    space = ParameterLayout(model, private=private)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    layers: list[Any] = [type(module) for module in model.modules()]
    values = [value for module in model.modules() for value in vars(module).values()]
    functions = [value for value in values if isfunction(value)]
    code = source.digest(layers + functions)
    slots = [(slot.name, tuple(slot.shape)) for slot in space.slots]
    return f"{_shown(model)} {slots} {_digest(*frozen, *model.buffers())} {code}"


def _loss(loss: Loss) -> str:
    """A loss by name and a hash of its code; an object also by how it shows itself."""
    if not callable(loss):
        return str(loss)
    return _function(loss)


def _metric(metric: MetricSpec) -> str:
    """A metric by name; a function also by a hash of its code."""
    if isinstance(metric, str):
        return metric
    return _function(metric)


def _function(function: Callable[..., Any]) -> str:
    """A function by its name and a hash of its code; an object also by how it shows itself."""
    if hasattr(function, "__qualname__"):
        return f"{_full_name(function)} {source.digest([function])}"
    kind = type(function)
    return f"{_full_name(kind)} {_shown(function)} {source.digest([kind])}"


def _steps(experiment: Experiment) -> dict[str, str]:
    """The solver and the schedules of rates, where there are any."""
    out = {}
    if experiment.optimiser() != PLAIN:
        out["solver"] = _solver(experiment.optimiser())
    if experiment.rates().schedules:
        out["schedules"] = describe(experiment.rates())
    return out


def _solver(optimiser: Optimiser) -> str:
    """A solver with its settings; one of the user's own also by a hash of its code."""
    text = _described(optimiser, [name for name in _names(optimiser) if name not in _NEWER])
    if optimiser.state != "reset":
        text += f" state={optimiser.state}"
    if optimiser.own is not None:
        rule: Any = optimiser.own.rule
        text += f" {_function(rule)} {_shown(optimiser.own.settings)}"
    return text


def _augment(steps: Sequence[Augmentation]) -> str:
    """Every augmentation with its options; a function also by a hash of its code."""
    out = []
    for step in steps:
        if isinstance(step, Own):
            out.append(f"{_function(step.function)} {_shown(dict(step.options))}")
        else:
            out.append(describe(step))
    return ", ".join(out)


def _codec(spec: Spec) -> str:
    code = _codec_code(spec)
    if isinstance(spec, str):
        return spec + code
    return json.dumps(spec, sort_keys=True, default=str) + code


def _codec_code(spec: Any) -> str:
    """A hash of the code of every codec that an installed package brings, or nothing."""
    values = [spec]
    if isinstance(spec, Mapping):
        values = list(spec.values())
    installed = declared("codecs")
    names = [value for value in values if isinstance(value, str) and value in installed]
    code = [f" {name} {source.digest([type(codec(name))])}" for name in names]
    inside = [_codec_code(value) for value in values if isinstance(value, Mapping)]
    return "".join(code + inside)


def _full_name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(plain.numpy().data)
    return digest.hexdigest()


def _shown(value: object) -> str:
    """How a value shows itself, without addresses in memory, which no other process has."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
