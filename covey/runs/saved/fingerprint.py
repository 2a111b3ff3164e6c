"""The facts that decide the bits of a run, as text and hashes.

A checkpoint is for one experiment only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import isfunction
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

import covey
from covey import draws
from covey.codecs import codec
from covey.engine.augment import OwnAugmentation
from covey.engine.modules.layout import ParameterLayout
from covey.fields import options
from covey.installed import declared
from covey.runs.saved import source
from covey.runs.saved.checkpoint import CODE
from covey.runs.settings import ExperimentSettings

if TYPE_CHECKING:
    from covey.runs.experiment import Experiment


def of(experiment: Experiment, initial: torch.Tensor | None = None) -> dict[str, str]:
    """Each fact as text or a hash, simple facts first.

    Of two experiments, the first difference is named. The data comes before what follows from it:
    the model's shapes, the loss, the tree. `initial` is the experiment's initial row, where the
    caller has it already.
    """
    out: dict[str, str] = {}
    for name, fact in program_fingerprint(experiment, initial).items():
        if name == "model":
            out["data"] = experiment.data.fingerprint()
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
    tree = experiment.tree
    out = {"draws": str(draws.VERSION), "covey": covey.__version__}
    for name, option in options(ExperimentSettings).items():
        if option.decides_bits:
            out[name] = _fact(getattr(experiment, name))
    if experiment.store_rows != "float16":  # the other forms keep every bit
        del out["store_rows"]
    if experiment.least == 1:
        del out["least"]
    out["solver"] = _fact(experiment.optimiser())
    out["schedules"] = _fact(experiment.rates())
    out["algorithm"] = describe(experiment.algorithm)
    frozen = [p for p in experiment.model.parameters() if not p.requires_grad]
    if frozen:
        out["frozen"] = _digest(*frozen)
    space = ParameterLayout(experiment.model, private=experiment.private)
    slots = [(slot.name, tuple(slot.shape)) for slot in space.slots]
    unchanged = _digest(*frozen, *experiment.model.buffers())
    out["model"] = f"{_shown(experiment.model)} {slots} {unchanged}"
    out["initial"] = _digest(initial)
    out["loss"] = out.pop("loss")  # which may follow from the data
    out["tree"] = f"{tree.tiers} {tree.children}"
    if experiment.environment is not None:
        out[experiment.environment.name] = str(experiment.environment)
    return out | _code(experiment)


def _code(experiment: Experiment) -> dict[str, str]:
    """A hash of all code that a user may have written, by what it is of.

    A model's layers may be the same and `forward` another, so the code of every layer counts.
    """
    model = list(experiment.model.modules())
    values = [value for module in model for value in vars(module).values()]
    things: dict[str, list[Any]] = {
        "algorithm": [experiment.algorithm],
        "model": model + [value for value in values if isfunction(value)],
        "loss": list(filter(callable, [experiment.loss])),
        "codec": _codecs(experiment.codec),
        "metrics": list(filter(callable, experiment.metrics)),
    }
    if experiment.augment:
        steps = experiment.augmentations()
        things["augment"] = [s.function for s in steps if isinstance(s, OwnAugmentation)]
    solver = experiment.optimiser().own
    if solver is not None:
        things["solver"] = [solver.rule]
    out = {}
    for name, values in things.items():
        kinds = [value if hasattr(value, "__qualname__") else type(value) for value in values]
        if kinds:
            out[f"{name}{CODE}"] = source.digest(kinds)
    return out


def _codecs(spec: Any) -> list[Any]:
    """Every codec of a link's description that an installed package brings."""
    values = [spec]
    if isinstance(spec, Mapping):
        values = list(spec.values())
    installed = declared("codecs")
    names = [value for value in values if isinstance(value, str) and value in installed]
    inside = [_codecs(value) for value in values if isinstance(value, Mapping)]
    return [type(codec(name)) for name in names] + list(chain.from_iterable(inside))


def describe(value: Any) -> str:
    """A dataclass by its name and all its fields."""
    if not is_dataclass(value):
        return _shown(value)
    inside = [f"{each.name}={describe(getattr(value, each.name))}" for each in fields(value)]
    return f"{type(value).__name__}({', '.join(inside)})"


def _fact(value: Any) -> str:
    """A setting as text: a function by its name, another object also as it shows itself."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float | torch.dtype):
        return str(value)
    if isinstance(value, Mapping):
        return json.dumps({str(key): _fact(inside) for key, inside in sorted(value.items())})
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_fact, value))}]"
    if is_dataclass(value) and not callable(value):
        inside = [f"{each.name}={_fact(getattr(value, each.name))}" for each in fields(value)]
        return f"{type(value).__name__}({', '.join(inside)})"
    if hasattr(value, "__qualname__"):
        return _full_name(value)
    return f"{_full_name(type(value))} {_shown(value)}"


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
