"""A module's parameters as one flat row: their order, the private part, the initial values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from covey import draws
from covey.engine.generator import Seeded
from covey.errors import CoveyError, ModelError
from covey.origin import told
from covey.types import Rows

_MIXES_EXAMPLES = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)
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
        """The column after the last."""
        return self.start + self.shape.numel()

    def view(self, rows: Rows) -> Tensor:
        """This parameter of every row, [n, *stored shape], sharing the rows' memory."""
        shape = self.shape
        if self.transposed:
            shape = shape[::-1]
        columns = rows[:, self.start : self.stop]
        return columns.view(len(rows), *shape)

    def oriented(self, value: Tensor) -> Tensor:
        """One row's parameter turned from the shape in the module to the stored one, or back."""
        if self.transposed:
            return value.t()
        return value


class ParameterLayout:
    """The rows of a module: its trainable parameters, the shared ones first, the private ones last.

    Private are those that match a pattern of `private`. A pattern names parameters ("3.bias"),
    layers ("3") or kinds of layers ("conv*"). "head" is the last layer, if no layer has that name.

    >>> space = ParameterLayout(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), private=["1.*"])
    >>> space.width, space.shared
    (11, 8)
    """

    def __init__(self, module: nn.Module, *, private: Sequence[str] = ()) -> None:
        _check(module)
        self.module = module
        if isinstance(private, str):
            private = (private,)
        trainable = _trainable(module)
        names = list(trainable)
        private_names = _private(module, names, private)
        names.sort(key=lambda name: name in private_names)
        linear = _linear_weights(module)
        start = 0
        slots = []
        for name in names:
            shape = trainable[name].shape
            slots.append(Slot(name, shape, start, transposed=name in linear))
            start += shape.numel()
        self.slots: tuple[Slot, ...] = tuple(slots)
        self._dtype = next(iter(trainable.values())).dtype
        self.width = start
        private_starts = [slot.start for slot in slots if slot.name in private_names]
        self.shared = min(private_starts, default=start)

    @property
    def numbers(self) -> dict[str, int]:
        """The number of every parameter's slot, by its name."""
        return {slot.name: number for number, slot in enumerate(self.slots)}

    def oriented(self, values: Sequence[Tensor]) -> list[Tensor]:
        """One row's parameters turned from the shapes in the module to the stored ones, or back."""
        pairs = zip(self.slots, values, strict=True)
        return [slot.oriented(value) for slot, value in pairs]

    def initial(self, seed: int) -> Tensor:
        """The row everybody starts from, [width]: a function of the seed alone.

        Every layer has its own initialisation. Layers draw in float32 whatever the module's type:
        float64 starts from the same numbers.
        Parameters of layers without `reset_parameters` keep the values the module came with.
        """
        module = copy.deepcopy(self.module).cpu()
        before = {}
        for name, parameter in module.named_parameters():
            before[name] = parameter.detach().clone()
        module = module.float()
        versions = {}
        for name, parameter in module.named_parameters():
            versions[name] = _version(parameter)
        _reset(module, draws.key(seed, "initial"))
        values: dict[str, Tensor] = {}
        for name, old in before.items():
            value = module.get_parameter(name)
            same_version = _version(value) == versions[name]
            if same_version and torch.equal(value, old.float()):
                values[name] = old
            else:
                values[name] = value
        dtype = torch.promote_types(self._dtype, torch.float32)
        return self._flat(values).to(dtype)

    def row(self, module: nn.Module) -> Tensor:
        """The parameters of a module of the same kind, as a row [width]."""
        values = dict(module.named_parameters())
        return self._flat(values).cpu()

    def _flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """The parameters of these names, as a row [width]."""
        parts = []
        for slot in self.slots:
            value = values[slot.name].detach()
            stored = slot.oriented(value)
            parts.append(stored.reshape(-1))
        return torch.cat(parts)

    def fill(self, row: Tensor) -> nn.Module:
        """A copy of the module with this row's parameters."""
        module = copy.deepcopy(self.module)
        values = dict(module.named_parameters())
        with torch.no_grad():
            for slot in self.slots:
                stored = slot.view(row[None])[0]
                values[slot.name].copy_(slot.oriented(stored))
        return module


def private_default(module: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """The first pattern that matches some but not all of the module's parameters.

    Empty where there is none.

    >>> private_default(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), ["conv*", "head"])
    ('head',)
    >>> private_default(nn.Linear(3, 2), ["head"])
    ()
    """
    aliases = _aliases(module, list(_trainable(module)))
    for pattern in patterns:
        matches = [_matches(names, pattern) for names in aliases.values()]
        if any(matches) and not all(matches):
            return (pattern,)
    return ()


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    parameters = module.named_parameters()
    return {name: parameter for name, parameter in parameters if parameter.requires_grad}


def _linear_weights(module: nn.Module) -> set[str]:
    """The names of the weights of linear layers."""
    names = set()
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            names.add(f"{name}.weight".lstrip("."))
    return names


def _matches(names: set[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


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
            mode.drawer = f"layer {name!r} ({type(layer).__name__})"
            try:
                reset()
            except CoveyError:
                raise
            except Exception as error:
                raise ModelError(f"{mode.drawer} cannot be initialised: {told(error)}") from error


def _private(module: nn.Module, names: list[str], patterns: Sequence[str]) -> set[str]:
    aliases = _aliases(module, names)
    out = set()
    for pattern in patterns:
        matching = {name for name in names if _matches(aliases[name], pattern)}
        if not matching:
            kinds = "a kind of layer such as 'conv*', or 'head', the last layer"
            raise ModelError(
                f"private pattern {pattern!r} matches no parameter; they are {', '.join(names)}; "
                f"or give {kinds}."
            )
        out |= matching
    return out


def _aliases(module: nn.Module, names: list[str]) -> dict[str, set[str]]:
    """The names by which a pattern may call each parameter.

    They are its own, its layer's and its layer's kind. "head" is also an alias in the last layer.
    """
    layers = {}
    kinds = {}
    for name in names:
        layer, _, _ = name.rpartition(".")
        kind = type(module.get_submodule(layer))
        layers[name] = layer
        kinds[layer] = kind.__name__.lower()
    last = "head"
    if names and "head" not in kinds:
        last = layers[names[-1]]
    aliases = {}
    for name, layer in layers.items():
        aliases[name] = {name, layer, kinds[layer]}
        if layer == last:
            aliases[name].add("head")
    return aliases


def _check(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _MIXES_EXAMPLES):
            raise ModelError(
                f"layer {name!r} is {type(layer).__name__}: its running statistics would leak "
                "between devices and are not part of a row; use nn.GroupNorm instead."
            )
        if isinstance(layer, _DROPS) and layer.p > 0:
            raise ModelError(
                f"layer {name!r} drops at random (p = {layer.p}), which no address decides; "
                "set p = 0 or leave it out."
            )
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ModelError(
            f"{type(module).__name__} has no trainable parameter, so there is nothing to learn."
        )
    lazy = nn.parameter.UninitializedParameter
    if any(isinstance(parameter, lazy) for parameter in parameters):
        raise ModelError(
            "the module has lazy layers; run one example through it first, so that their shapes "
            "are known."
        )
