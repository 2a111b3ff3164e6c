"""A module's parameters as one flat row: their order, the private part, the initial values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, reduce

import torch
from torch import Tensor, nn

from covey import draws
from covey.engine.modules import norm
from covey.engine.modules.generator import Seeded
from covey.engine.modules.intercept import needs_mode
from covey.engine.modules.norm import NormLayer
from covey.engine.modules.passing import Pass
from covey.errors import CoveyError, ModelError, shown
from covey.origin import told
from covey.types import Rows

_NORMS = (
    nn.modules.batchnorm._NormBase,  # BatchNorm and InstanceNorm
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_KNOWN = ("torch.nn.", "covey.")
"""Whose classes of BatchNorm normalize by what a pass says."""


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in a row.

    A linear weight lies [in, out]: batched products run three times faster so.
    """

    name: str
    shape: torch.Size
    start: int
    transposed: bool

    @cached_property
    def stop(self) -> int:
        """The column after the last."""
        return self.start + self.shape.numel()

    def view(self, rows: Rows) -> Tensor:
        """This parameter of every row, [n, *stored shape], sharing the rows' memory."""
        shape = self.shape[::-1] if self.transposed else self.shape
        columns = rows[:, self.start : self.stop]
        return columns.view(len(rows), *shape)

    def oriented(self, value: Tensor) -> Tensor:
        """One row's parameter turned from the shape in the module to the stored one, or back."""
        return value.t() if self.transposed else value


@dataclass(frozen=True, eq=False)
class FrozenParameter:
    """A parameter that no row holds: one tensor for all rows."""

    name: str
    value: Tensor
    transposed: bool

    def beside(self, rows: int) -> Tensor:
        """The parameter beside so many rows, oriented as a slot's, all in the same memory."""
        stored = self.oriented(self.value)
        return stored.expand(rows, *stored.shape)

    def oriented(self, value: Tensor) -> Tensor:
        """The parameter turned from the shape in the module to the stored one, or back."""
        return value.t() if self.transposed else value


class ParameterLayout:
    """The rows of a module: its trainable parameters, the shared ones first, the private ones last.

    Frozen parameters (`requires_grad` is False) are in no row. They keep the module's values, once
    for all rows.

    Private are those that match a pattern of `private`. A pattern names parameters ("3.bias"),
    layers ("3") or kinds of layers ("conv*"). "head" is the last layer, if no layer has that name.
    "norm" stands for all normalization layers.

    >>> space = ParameterLayout(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), private=["1.*"])
    >>> space.width, space.shared
    (11, 8)
    """

    def __init__(self, module: nn.Module, *, private: Sequence[str] = ()) -> None:
        check(module)
        for name, layer in module.named_modules():
            norm.refuse(name, layer)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ModelError(
                f"{type(module).__name__} has no trainable parameter, so there is nothing to learn."
            )
        self.module = module
        self.needs_mode = needs_mode(module)
        """Whether the module must run in a mode; a trial finds what shows in a pass alone."""
        self.changes_inputs = False
        """Whether the module changes its inputs in place, as a trial finds."""
        if isinstance(private, str):
            private = (private,)
        trainable = _trainable(module)
        names = list(trainable)
        private_names = _matching(module, names, private, "private")
        names.sort(key=lambda name: name in private_names)
        layers = module.named_modules()
        linear = {f"{name}.weight".lstrip(".") for name, x in layers if isinstance(x, nn.Linear)}
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
        self.norms: tuple[NormLayer, ...] = norm.layers(module)
        """The layers that normalize by the statistics of a device."""
        self.frozen: tuple[FrozenParameter, ...] = tuple(
            FrozenParameter(name, parameter.detach(), transposed=name in linear)
            for name, parameter in module.named_parameters()
            if not parameter.requires_grad
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The number of every parameter's slot, by its name."""
        return {slot.name: number for number, slot in enumerate(self.slots)}

    def oriented(self, values: Sequence[Tensor]) -> list[Tensor]:
        """One row's parameters turned from the shapes in the module to the stored ones, or back."""
        pairs = zip(self.slots, values, strict=True)
        return [slot.oriented(value) for slot, value in pairs]

    @property
    def frozen_size(self) -> int:
        """How many numbers the frozen parameters have."""
        return sum(parameter.value.numel() for parameter in self.frozen)

    def with_frozen(self, pass_: Pass) -> Pass:
        """A pass that has the frozen parameters of every row too, after those of the slots."""
        if not self.frozen:
            return pass_
        frozen = [parameter.beside(pass_.models) for parameter in self.frozen]
        return replace(pass_, parameters=[*pass_.parameters, *frozen])

    def initial(self, seed: int) -> Tensor:
        """The row everybody starts from, [width]: a function of the seed alone.

        Every layer has its own initialisation. Layers draw in float32 whatever the module's type:
        float64 starts from the same numbers.
        Parameters of layers without `reset_parameters` keep the values the module came with.
        So do frozen parameters: a layer that is frozen as a whole draws nothing.
        """
        module = copy.deepcopy(self.module).cpu().float()
        versions = {name: _version(one) for name, one in module.named_parameters()}
        _reset(module, draws.key(seed, "initial"))
        values: dict[str, Tensor] = {}
        for name, parameter in self.module.named_parameters():
            old = parameter.detach().cpu()
            value = module.get_parameter(name)
            untouched = _version(value) == versions[name] and torch.equal(value, old.float())
            values[name] = old if untouched else value
        dtype = torch.promote_types(self._dtype, torch.float32)
        return self._flat(values).to(dtype)

    def row(self, module: nn.Module) -> Tensor:
        """The parameters of a module of the same kind, as a row [width]."""
        values = dict(module.named_parameters())
        return self._flat(values).cpu()

    def _flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """The parameters of these names, as a row [width]: a copy, and no other is made."""
        own = [values[slot.name].detach() for slot in self.slots]
        dtype = reduce(torch.promote_types, [value.dtype for value in own])
        out = torch.empty(self.width, dtype=dtype, device=own[0].device)
        for slot, value in zip(self.slots, own, strict=True):
            stored = slot.oriented(value)
            out[slot.start : slot.stop].view(stored.shape).copy_(stored)
        return out

    def fill(self, row: Tensor, statistics: Tensor | None = None) -> nn.Module:
        """A copy of the module with this row's parameters and, where given, these statistics.

        It is in eval mode. `statistics` are those of one device, as `NormLayer` has them: with
        them the module predicts what the device was scored with.
        """
        module = copy.deepcopy(self.module).eval()
        if statistics is not None:
            norm.set_statistics(module, self.norms, statistics)
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


def freeze(module: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """A copy of the module whose parameters that match a pattern do not train.

    Patterns are those of `private`. A tied parameter is frozen under all of its names. The module
    itself is returned where nothing is left to freeze.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    matching = _matching(module, list(parameters), patterns, "frozen")
    if all(not parameters[name].requires_grad for name in matching):
        return module
    copied = copy.deepcopy(module)
    own = dict(copied.named_parameters(remove_duplicate=False))
    for name in matching:
        own[name].requires_grad_(False)
    return copied


def sharing_copy(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its frozen parameters, so that threads hold them once."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    memo = {id(parameter): parameter for parameter in frozen}
    return copy.deepcopy(module, memo)


def aligned(parameter: Tensor) -> Tensor:
    """A parameter as a module gets it; in memory of its own if it may hold complex numbers.

    torch.view_as_complex takes pairs at even places alone, and a row has them anywhere.
    """
    if parameter.dim() and parameter.shape[-1] == 2:
        return parameter.clone()
    return parameter


def copy_to_run(module: nn.Module) -> nn.Module:
    """A copy of a module whose parameters are replaced for every pass.

    On a GPU a recurrent layer would move its parameters into one piece of memory, away from the
    rows. It leaves them where they are here.
    """
    copied = sharing_copy(module)
    for layer in copied.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = lambda: None  # type: ignore[method-assign]
    return copied


def placed_copy(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy of a module on a device, in a type.

    It shares frozen parameters that are there in that type: the nodes of a tree hold them once.
    """
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        wanted = dtype if parameter.is_floating_point() else parameter.dtype
        if parameter.dtype != wanted or parameter.device != device:
            return placed(copy.deepcopy(module), device, dtype)
    return placed(sharing_copy(module), device, dtype)


def placed(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module itself, moved to a device and a type; `module.to` would make complex tensors real.

    >>> rotation = nn.Buffer(torch.tensor([1j]))
    >>> module = nn.Module()
    >>> module.rotation = rotation
    >>> placed(module, torch.device("cpu"), torch.float64).rotation
    tensor([0.+1.j], dtype=torch.complex128)
    """

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(device, dtype.to_complex())
        if tensor.is_floating_point():
            return tensor.to(device, dtype)
        return tensor.to(device)

    module._apply(move)  # type: ignore[no-untyped-call]
    return module


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
            parameters = list(layer.parameters())
            frozen = bool(parameters) and not any(one.requires_grad for one in parameters)
            if not callable(reset) or frozen:
                continue
            mode.drawer = f"layer {name!r} ({type(layer).__name__})"
            try:
                reset()
            except CoveyError:
                raise
            except Exception as error:
                raise ModelError(f"{mode.drawer} cannot be initialised: {told(error)}") from error


def _matching(
    module: nn.Module, names: list[str], patterns: Sequence[str], option: str
) -> set[str]:
    """The parameters that match one of the patterns of an option such as `private`."""
    aliases = _aliases(module, names)
    out = set()
    for pattern in patterns:
        matching = {name for name in names if _matches(aliases[name], pattern)}
        if not matching:
            fault = f"{option} pattern {shown(pattern)} matches no parameter"
            kinds = "a kind of layer such as 'conv*', 'norm', or 'head', the last layer"
            raise ModelError(f"{fault}; they are {', '.join(names)}; or give {kinds}.")
        out |= matching
    return out


def _aliases(module: nn.Module, names: list[str]) -> dict[str, set[str]]:
    """The names by which a pattern may call each parameter.

    They are its own, its layer's and its layer's kind. "head" is also an alias in the last layer,
    "norm" in every normalization layer.
    """
    layers = {}
    kinds = {}
    norms = set()
    for name in names:
        layer, _, _ = name.rpartition(".")
        owner = module.get_submodule(layer)
        layers[name] = layer
        kinds[layer] = type(owner).__name__.lower()
        if isinstance(owner, _NORMS):
            norms.add(layer)
    last = "head"
    if names and "head" not in kinds:
        last = layers[names[-1]]
    aliases = {}
    for name, layer in layers.items():
        aliases[name] = {name, layer, kinds[layer]}
        if layer == last:
            aliases[name].add("head")
        if layer in norms:
            aliases[name].add("norm")
    return aliases


def check(module: nn.Module) -> None:
    """Refuse layers and parameters that no row can stand in for."""
    for name, parameter in module.named_parameters():
        _check_parameter(name, parameter)
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        what = f"layer {name!r} is {kind}"
        if isinstance(layer, torch.jit.ScriptModule):
            raise ModelError(
                f"{what} of torch.jit, whose parameters cannot be replaced; give the module as it "
                "was before torch.jit.script or torch.jit.trace."
            )
        if isinstance(layer, _EMBEDDINGS) and (layer.scale_grad_by_freq or layer.sparse):
            raise ModelError(
                f"{what} with scale_grad_by_freq or sparse; set both to False: rows are dense, and "
                "batches are filled up with examples that would be counted."
            )
        is_norm = isinstance(layer, norm.BatchNorm)
        if is_norm and not type(layer).forward.__module__.startswith(_KNOWN):
            raise ModelError(
                f"{what}, a BatchNorm with a forward of its own, which would not run; use "
                "nn.BatchNorm1d to 3d, and put the rest into a layer beside it."
            )
        for key, value in vars(layer).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                raise ModelError(
                    f"layer {name!r} ({kind}) holds {key!r}, which was computed from parameters "
                    "before the run, as torch.nn.utils.weight_norm does; compute it in forward, or "
                    "use torch.nn.utils.parametrizations."
                )
        if isinstance(layer, nn.RNNBase) and layer.dropout > 0 and layer.num_layers > 1:
            raise ModelError(
                f"{what} with dropout = {layer.dropout}, which torch draws inside, where no "
                f"address decides it; use {kind} layers with dropout = 0 and nn.Dropout between "
                "them."
            )


def _check_parameter(name: str, parameter: Tensor) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ModelError(
            "the module has lazy layers; run one example through it first, so that their shapes "
            "are known."
        )
    if parameter.is_meta:
        raise ModelError(
            f"parameter {name!r} has no values (it is on the device 'meta'); use "
            "module.to_empty(device='cpu') and initialise it."
        )
    if parameter.is_complex():
        raise ModelError(
            f"parameter {name!r} is complex, but rows are real; hold a real parameter "
            "[..., 2] and use torch.view_as_complex in forward."
        )
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise ModelError(
            f"parameter {name!r} has a hook, which would not be called; use a hook of a layer, or "
            "change the gradient in forward."
        )
