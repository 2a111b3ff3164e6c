"""A module's parameters as one flat row: where each lies, which are shared and which private, how
to begin.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from covey import draws
from covey.engine.generator import Seeded
from covey.errors import CoveyError, ModelError
from covey.origin import told
from covey.types import Rows

_MIXES_EXAMPLES = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_DROPS = (nn.modules.dropout._DropoutNd,)


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in a row.

    A linear weight lies [in, out]: batched products run three times faster so.
    """

    name: str
    shape: torch.Size
    start: int
    transposed: bool

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()

    def view(self, rows: Rows) -> Tensor:
        """This parameter of every row, [n, *stored shape], sharing the rows' memory."""
        shape = self.shape[::-1] if self.transposed else self.shape
        return rows[:, self.start : self.stop].view(len(rows), *shape)


class ParameterLayout:
    """The rows of a module: its trainable parameters, shared ones first, those matching a `private`
    pattern last.

    A pattern is for parameters ("3.bias"), layers ("3") or kinds of layers ("conv*"); "head" is the
    last layer, if none has that name.

    >>> space = Space(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), private=["1.*"])
    >>> space.width, space.shared
    (11, 8)
    """

    def __init__(self, module: nn.Module, *, private: Sequence[str] = ()) -> None:
        _check(module)
        self.module = module
        linear = {
            f"{name}.weight".lstrip(".")
            for name, m in module.named_modules()
            if isinstance(m, nn.Linear)
        }
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        secret = _private(
            module, [name for name, _ in named], (private,) if isinstance(private, str) else private
        )
        start, slots = 0, []
        for name, parameter in sorted(named, key=lambda item: item[0] in secret):
            slots.append(Slot(name, parameter.shape, start, transposed=name in linear))
            start += parameter.numel()
        self.slots: tuple[Slot, ...] = tuple(slots)
        self._dtype = named[0][1].dtype
        self.width = start
        self.shared = next((slot.start for slot in slots if slot.name in secret), start)

    def initial(self, seed: int) -> Tensor:
        """The row everybody starts from, [width]: every layer's own initialisation, from the seed
        alone.

        Layers draw in float32 whatever the module's type: float64 starts from the same numbers.
        Parameters of layers without `reset_parameters` keep the values the module came with.
        """
        module = copy.deepcopy(self.module).cpu()
        before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        module = module.float()
        versions = {name: _version(parameter) for name, parameter in module.named_parameters()}
        _reset(module, draws.key(seed, "initial"))
        parts = []
        for slot in self.slots:
            value: Tensor = module.get_parameter(slot.name)
            old = before[slot.name]
            untouched = _version(value) == versions[slot.name] and torch.equal(value, old.float())
            value = old if untouched else value.detach()
            parts.append((value.t() if slot.transposed else value).reshape(-1))
        return torch.cat(parts).to(torch.promote_types(self._dtype, torch.float32))

    def row(self, module: nn.Module) -> Tensor:
        """The parameters of a module of the same kind, as a row [width]."""
        values = dict(module.named_parameters())
        parts = [
            values[s.name].detach().t() if s.transposed else values[s.name].detach()
            for s in self.slots
        ]
        return torch.cat([part.reshape(-1) for part in parts]).cpu()

    def fill(self, row: Tensor) -> nn.Module:
        """A copy of the module with this row's parameters."""
        module = copy.deepcopy(self.module)
        values = dict(module.named_parameters())
        with torch.no_grad():
            for slot in self.slots:
                stored = slot.view(row[None])[0]
                values[slot.name].copy_(stored.t() if slot.transposed else stored)
        return module


def private_default(module: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """The first pattern that matches some of the module's parameters and not all; empty where there
    is none.

    >>> private_default(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), ["conv*", "head"])
    ('head',)
    >>> private_default(nn.Linear(3, 2), ["head"])
    ()
    """
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    called = _called(module, names)
    for pattern in patterns:
        matches = [any(fnmatchcase(call, pattern) for call in calls) for calls in called.values()]
        if any(matches) and not all(matches):
            return (pattern,)
    return ()


def _version(parameter: Tensor) -> tuple[int, int]:
    """Changes when a parameter is replaced, or its values are changed in place."""
    return id(parameter), parameter._version


def _reset(module: nn.Module, seed: int) -> None:
    """Every layer's own initialisation, in turn; other threads neither disturb it nor notice."""
    with Seeded(seed, "the module") as mode:
        for name, layer in module.named_modules():
            reset = getattr(layer, "reset_parameters", None)
            reset = reset or getattr(layer, "_reset_parameters", None)
            if not callable(reset):
                continue
            mode.place = f"layer {name!r} ({type(layer).__name__})"
            try:
                reset()
            except CoveyError:
                raise
            except Exception as error:
                raise ModelError(f"{mode.place} cannot be initialised: {told(error)}") from error


def _private(
    module: nn.Module,
    names: list[str],
    patterns: Sequence[str],
) -> set[str]:
    called = _called(module, names)
    for pattern in patterns:
        if not any(fnmatchcase(call, pattern) for calls in called.values() for call in calls):
            kinds = "a kind of layer such as 'conv*', or 'head', the last layer"
            raise ModelError(
                f"private pattern {pattern!r} matches no parameter; they are {', '.join(names)}; or give {kinds}."
            )
    return {
        name
        for name in names
        if any(fnmatchcase(call, pattern) for call in called[name] for pattern in patterns)
    }


def _called(module: nn.Module, names: list[str]) -> dict[str, set[str]]:
    """What a pattern may call each parameter: its own name, its layer's, its layer's kind; "head"
    also in the last layer.
    """
    layers = {name: name.rpartition(".")[0] for name in names}
    kinds = {layer: type(module.get_submodule(layer)).__name__.lower() for layer in layers.values()}
    last = layers[names[-1]] if names and "head" not in kinds else "head"
    return {
        name: {name, layer, kinds[layer]} | ({"head"} if layer == last else set())
        for name, layer in layers.items()
    }


def _check(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _MIXES_EXAMPLES):
            raise ModelError(
                f"layer {name!r} is {type(layer).__name__}: its running statistics would leak between devices and are not "
                "part of a row; use nn.GroupNorm instead."
            )
        if isinstance(layer, _DROPS) and layer.p > 0:
            raise ModelError(
                f"layer {name!r} drops at random (p = {layer.p}), which no address decides; set p = 0 or leave it out."
            )
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ModelError(
            f"{type(module).__name__} has no trainable parameter, so there is nothing to learn."
        )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in parameters):
        raise ModelError(
            "the module has lazy layers; run one example through it first, so that their shapes are known."
        )
