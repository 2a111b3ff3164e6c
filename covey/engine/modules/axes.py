"""Operations along axes: for many models they run on one axis more, the rows, in front.

An axis counted from the front moves by one. An axis counted from the back stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.modules import rowwise
from covey.engine.modules.batched import INPUTS, PASS, RULES, Compiler, Rule, at_size, rule
from covey.engine.modules.graph import FLOAT, Multiple, Shared, Unknown, Value
from covey.engine.modules.rules import widened

_AXES = ("dim", "dims", "dim0", "dim1", "source", "destination", "start_dim", "end_dim")
"""Arguments that are axes."""


def _moved(dim: Any) -> Any:
    """An axis, or some, of [B, ...] as axes of [n, B, ...]."""
    if isinstance(dim, tuple):
        return tuple(_moved(one) for one in dim)
    if not isinstance(dim, int):
        raise Unknown("an axis is not a number")
    if dim < 0:
        return dim
    return dim + 1


def _changed(c: Compiler, x: Any, change: Callable[[Tensor], Tensor]) -> None:
    """A change of one operand by rows."""
    c.emit(change, c.rows(x))


def _along(change: Callable[..., Any]) -> Rule:
    """The rule of a change whose arguments have torch's names; those that are axes move by one."""
    signature = inspect.signature(change)

    def apply(c: Compiler, input: Any, *given: Any, **named: Any) -> None:
        call = signature.bind(input, *given, **named)
        call.apply_defaults()
        if call.arguments.get("dtype") is not None:
            raise Unknown("a type is given")
        _, *arguments = call.arguments.items()
        values = [_moved(value) if name in _AXES else value for name, value in arguments]
        _changed(c, input, lambda x: change(x, *values))

    return apply


def _gated(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * _sigmoid(gate)


def _spread(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The variance or standard deviation over some axes."""

    def spread(
        x: Tensor,
        dim: Any,
        unbiased: bool = True,
        keepdim: bool = False,
        correction: int | None = None,
    ) -> Tensor:
        if correction is None:
            correction = int(unbiased)
        return function(x, dim, correction=correction, keepdim=keepdim)

    return spread


_sigmoid = rowwise.elementwise(torch.sigmoid)
_CHANGES: dict[str, Callable[..., Any]] = {
    "chunk": lambda x, chunks, dim=0, part=0: x.chunk(chunks, dim)[part],
    "detach": lambda x: x.detach(),
    "flatten": lambda x, start_dim=0, end_dim=-1: x.flatten(start_dim, end_dim),
    "glu": _gated,
    "log_softmax": lambda x, dim, _stacklevel=3, dtype=None: x.log_softmax(dim),
    "long": lambda x: x.long(),
    "mT": lambda x: x.mT,
    "movedim": lambda x, source, destination: x.movedim(source, destination),
    "narrow": lambda x, dim, start, length: x.narrow(dim, start, length),
    "normalize": lambda x, p=2.0, dim=1, eps=1e-12, out=None: F.normalize(x, p, dim, eps),
    "pixel_shuffle": lambda x, upscale_factor: F.pixel_shuffle(x, upscale_factor),
    "roll": lambda x, shifts, dims: x.roll(shifts, dims),
    "select": lambda x, dim, index: x.select(dim, index),
    "softmax": lambda x, dim, _stacklevel=3, dtype=None: x.softmax(dim),
    "split": lambda x, size, dim=0, part=0: torch.split(x, size, dim)[part],
    "std": _spread(torch.std),
    "swapaxes": lambda x, dim0, dim1: x.transpose(dim0, dim1),
    "transpose": lambda x, dim0, dim1: x.transpose(dim0, dim1),
    "unbind": lambda x, dim=0, part=0: x.select(dim, part),
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
    "var": _spread(torch.var),
}
RULES.update({name: _along(change) for name, change in _CHANGES.items()})


@rule("T", "t")
def _reversed(c: Compiler, input: Any) -> None:
    """The transposed matrix: `x.T` and `x.t()`."""
    if c.axes(input) == 2:
        _changed(c, input, lambda x: x.transpose(1, 2))


@rule("permute")
def _permute(c: Compiler, input: Any, *dims: Any) -> None:
    axes = c.axes(input)
    order = [dim % axes + 1 for dim in _numbers(dims)]
    _changed(c, input, lambda x: x.permute(0, *order))


@rule("flip")
def _flip(c: Compiler, input: Any, *dims: Any) -> None:
    axes = _moved(_numbers(dims))
    _changed(c, input, lambda x: x.flip(axes))


@rule("squeeze")
def _squeeze(c: Compiler, input: Any, dim: Any = None) -> None:
    if dim is None:
        dim = tuple(axis for axis, length in enumerate(c.shape(input)) if length == 1)
    axes = _moved(dim)
    _changed(c, input, lambda x: x.squeeze(axes))


@rule("getitem")
def _getitem(c: Compiler, input: Any, index: Any) -> None:
    if not isinstance(index, tuple):
        index = (index,)
    for part in index:
        if isinstance(part, Value | Shared | tuple):
            raise Unknown("an index is a tensor")
    _resized(c, input, lambda x, inside: x[(slice(None), *inside)], index)


# Changes of shape


def _numbers(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers given one by one or as one tuple."""
    if len(given) == 1 and isinstance(given[0], tuple):
        [given] = given
    for number in given:
        if not isinstance(number, int | Multiple):
            raise Unknown("a size is not a number")
    return given


def _resized(
    c: Compiler,
    x: Any,
    change: Callable[[Tensor, tuple[Any, ...]], Tensor],
    sizes: tuple[Any, ...],
) -> None:
    """A change by sizes, some of which may be multiples of the batch size."""
    c.emit(lambda x, inputs: change(x, at_size(sizes, inputs.shape[1])), c.rows(x), INPUTS)


@rule("unflatten")
def _unflatten(
    c: Compiler,
    input: Any,
    dim: int,
    sizes: tuple[int, ...],
) -> None:
    axis = _moved(dim)
    _resized(c, input, lambda x, numbers: torch.unflatten(x, axis, numbers), _numbers((sizes,)))


@rule("reshape", "view")
def _reshape(c: Compiler, input: Any, *shape: Any) -> None:
    _resized(c, input, lambda x, sizes: x.reshape(len(x), *sizes), _numbers(shape))


@rule("expand")
def _expand(c: Compiler, input: Any, *sizes: Any) -> None:
    numbers = _numbers(sizes)
    missing = len(numbers) - c.axes(input)
    _resized(c, input, lambda x, lengths: widened(x, missing).expand(-1, *lengths), numbers)


@rule("expand_as")
def _expand_as(c: Compiler, input: Any, other: Any) -> None:
    _expand(c, input, *c.shape(other))


@rule("repeat")
def _repeat(c: Compiler, input: Any, *repeats: Any) -> None:
    numbers = _numbers(repeats)
    missing = len(numbers) - c.axes(input)
    _resized(c, input, lambda x, times: widened(x, missing).repeat(1, *times), numbers)


def _joining(join: Callable[..., Tensor]) -> Rule:
    def apply(c: Compiler, tensors: tuple[Any, ...], dim: int = 0) -> None:
        axis = _moved(dim)
        c.emit(lambda *parts: join(parts, axis), *[c.rows(tensor) for tensor in tensors])

    return apply


RULES.update({"stack": _joining(torch.stack)})
RULES.update(dict.fromkeys(("cat", "concat"), _joining(torch.cat)))


# Numbers along axes


def _reduced(reduce: Callable[..., Tensor]) -> Rule:
    """A reduction over some axes; over all of them where none is named."""

    def apply(
        c: Compiler, input: Any, dim: Any = None, keepdim: bool = False, **named: Any
    ) -> None:
        if dim is None or dim == ():
            dim = tuple(range(c.axes(input)))
        if any(value is not None for value in named.values()):
            raise Unknown("a reduction has settings that are not known")
        axes = _moved(dim)
        _changed(c, input, lambda x: reduce(x, axes, keepdim))

    return apply


RULES.update({name: _reduced(getattr(torch, name)) for name in ("amax", "amin", "mean", "sum")})


@rule("max")
def _extreme(
    c: Compiler,
    input: Any,
    dim: Any,
    keepdim: bool = False,
    *,
    part: int,
) -> None:
    """`x.max(dim)`: the values, not where they stand."""
    axis = _moved(dim)
    if part == 0:
        _changed(c, input, lambda x: x.max(axis, keepdim).values)


# Values as they are


@rule("clone", "contiguous")
def _same(c: Compiler, input: Any, *settings: Any, **named: Any) -> None:
    c.same(input)


@rule(FLOAT)
def _float(c: Compiler, input: Any) -> None:
    c.emit(lambda pass_, x: x.to(pass_.parameters[0].dtype), PASS, c.rows(input))


@rule("to")
def _to(c: Compiler, input: Any, *settings: Any, **named: Any) -> None:
    """A move to a device; `x.to(...)` with a type is not known."""
    for setting in (*settings, *named.values()):
        if not isinstance(setting, str | torch.device | bool):
            return
    c.same(input)
