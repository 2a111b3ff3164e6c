"""Operations along axes: for many models they run on one axis more, the rows, in front.

An axis counted from the front moves by one. An axis counted from the back stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine import rowwise
from covey.engine.batched import Compiler, Registers, Rule, at_size
from covey.engine.graph import FLOAT, Multiple, Shared, Unknown, Value
from covey.engine.passing import Pass
from covey.engine.rules import widened

Change = Callable[[Tensor], Tensor]


def _moved(dim: Any) -> Any:
    """An axis, or some, of [B, ...] as axes of [n, B, ...]."""
    if isinstance(dim, tuple):
        return tuple(_moved(one) for one in dim)
    if not isinstance(dim, int):
        raise Unknown("an axis is not a number")
    if dim < 0:
        return dim
    return dim + 1


def _changed(c: Compiler, x: Any, change: Change) -> None:
    """A change of one operand by rows."""
    source = c.rows(x)
    c.emit(lambda pass_, v: change(v[source]), source)


def _numbers(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers given one by one or as one tuple."""
    if len(given) == 1 and isinstance(given[0], tuple):
        [given] = given
    for number in given:
        if not isinstance(number, int | Multiple):
            raise Unknown("a size is not a number")
    return given


def _flatten(c: Compiler, input: Any, start_dim: int = 0, end_dim: int = -1) -> None:
    start = start_dim % c.axes(input)
    end = end_dim % c.axes(input)
    _changed(c, input, lambda x: x.flatten(start + 1, end + 1))


def _unflatten(c: Compiler, input: Any, dim: int, sizes: tuple[int, ...]) -> None:
    if not isinstance(dim, int):
        return
    axis = _moved(dim)
    _resized(c, input, lambda x, numbers: torch.unflatten(x, axis, numbers), _numbers((sizes,)))


def _reshape(c: Compiler, input: Any, *shape: Any) -> None:
    _resized(c, input, lambda x, sizes: x.reshape(len(x), *sizes), _numbers(shape))


def _expand(c: Compiler, input: Any, *sizes: Any) -> None:
    numbers = _numbers(sizes)
    missing = len(numbers) - c.axes(input)
    _resized(c, input, lambda x, lengths: widened(x, missing).expand(-1, *lengths), numbers)


def _expand_as(c: Compiler, input: Any, other: Any) -> None:
    _expand(c, input, *c.shape(other))


def _repeat(c: Compiler, input: Any, *repeats: Any) -> None:
    numbers = _numbers(repeats)
    missing = len(numbers) - c.axes(input)
    _resized(c, input, lambda x, times: widened(x, missing).repeat(1, *times), numbers)


def _resized(
    c: Compiler,
    x: Any,
    change: Callable[[Tensor, tuple[int, ...]], Tensor],
    sizes: tuple[Any, ...],
) -> None:
    """A change by sizes, some of which may be multiples of the batch size."""
    source = c.rows(x)

    def run(pass_: Pass, v: Registers) -> Tensor:
        return change(v[source], at_size(sizes, v[-1].shape[1]))

    c.emit(run, source)


def _transpose(c: Compiler, input: Any, dim0: int, dim1: int) -> None:
    first = _moved(dim0)
    second = _moved(dim1)
    _changed(c, input, lambda x: x.transpose(first, second))


def _permute(c: Compiler, input: Any, *dims: Any) -> None:
    axes = c.axes(input)
    order = [dim % axes + 1 for dim in _numbers(dims)]
    _changed(c, input, lambda x: x.permute(0, *order))


def _movedim(c: Compiler, input: Any, source: Any, destination: Any) -> None:
    first = _moved(source)
    second = _moved(destination)
    _changed(c, input, lambda x: x.movedim(first, second))


def _reversed(c: Compiler, input: Any) -> None:
    """The transposed matrix: `x.T` and `x.t()`."""
    if c.axes(input) == 2:
        _changed(c, input, lambda x: x.transpose(1, 2))


def _matrix_transposed(c: Compiler, input: Any) -> None:
    _changed(c, input, lambda x: x.mT)


def _unsqueeze(c: Compiler, input: Any, dim: int) -> None:
    axis = _moved(dim)
    _changed(c, input, lambda x: x.unsqueeze(axis))


def _squeeze(c: Compiler, input: Any, dim: Any = None) -> None:
    shape = c.shape(input)
    if dim is None:
        dim = tuple(axis for axis, length in enumerate(shape) if length == 1)
    axes = _moved(dim)
    _changed(c, input, lambda x: x.squeeze(axes))


def _getitem(c: Compiler, input: Any, index: Any) -> None:
    if not isinstance(index, tuple):
        index = (index,)
    for part in index:
        if isinstance(part, Value | Shared | tuple):
            raise Unknown("an index is a tensor")
    source = c.rows(input)

    def run(pass_: Pass, v: Registers) -> Tensor:
        inside = at_size(index, v[-1].shape[1])
        x: Tensor = v[source]
        return x[(slice(None), *inside)]

    c.emit(run, source)


def _narrow(c: Compiler, input: Any, dim: int, start: int, length: int) -> None:
    axis = _moved(dim)
    _changed(c, input, lambda x: x.narrow(axis, start, length))


def _select(c: Compiler, input: Any, dim: int, index: int) -> None:
    axis = _moved(dim)
    _changed(c, input, lambda x: x.select(axis, index))


def _roll(c: Compiler, input: Any, shifts: Any, dims: Any) -> None:
    axes = _moved(dims)
    _changed(c, input, lambda x: x.roll(shifts, axes))


def _pixel_shuffle(c: Compiler, input: Any, upscale_factor: int) -> None:
    _changed(c, input, lambda x: F.pixel_shuffle(x, upscale_factor))


def _flip(c: Compiler, input: Any, *dims: Any) -> None:
    axes = _moved(_numbers(dims))
    _changed(c, input, lambda x: x.flip(axes))


def _chunk(c: Compiler, input: Any, chunks: int, dim: int = 0, part: int = 0) -> None:
    axis = _moved(dim)
    _changed(c, input, lambda x: x.chunk(chunks, axis)[part])


def _split(c: Compiler, input: Any, size: Any, dim: int = 0, part: int = 0) -> None:
    axis = _moved(dim)
    if isinstance(size, tuple):
        size = list(size)
    _changed(c, input, lambda x: torch.split(x, size, axis)[part])


def _unbind(c: Compiler, input: Any, dim: int = 0, part: int = 0) -> None:
    axis = _moved(dim)
    _changed(c, input, lambda x: x.select(axis, part))


def _joined(join: Callable[[list[Tensor], int], Tensor]) -> Rule:
    def rule(c: Compiler, tensors: tuple[Any, ...], dim: int = 0) -> None:
        axis = _moved(dim)
        parts = [c.rows(tensor) for tensor in tensors]
        c.emit(lambda pass_, v: join([v[part] for part in parts], axis), *parts)

    return rule


def _cat(c: Compiler, tensors: tuple[Any, ...], dim: int = 0) -> None:
    if c.alone and dim == 1 and all(c.is_folded(tensor) for tensor in tensors):
        parts = [c.folded(tensor) for tensor in tensors]
        c.emit(lambda pass_, v: torch.cat([v[part] for part in parts], 1), *parts, folded=True)
    else:
        _joined(torch.cat)(c, tensors, dim)


def _reduced(reduce: Callable[..., Tensor]) -> Rule:
    """A reduction over some axes; over all of them where none is named."""

    def rule(c: Compiler, input: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> None:
        if dim is None or dim == ():
            dim = tuple(range(c.axes(input)))
        if any(value is not None for value in named.values()):
            raise Unknown("a reduction has settings that are not known")
        axes = _moved(dim)
        _changed(c, input, lambda x: reduce(x, axes, keepdim))

    return rule


def _spread(spread: Callable[..., Tensor]) -> Rule:
    """The variance or standard deviation over some axes."""

    def rule(
        c: Compiler,
        input: Any,
        dim: Any,
        unbiased: bool = True,
        keepdim: bool = False,
        correction: int | None = None,
    ) -> None:
        if correction is None:
            correction = int(unbiased)
        axes = _moved(dim)
        _changed(c, input, lambda x: spread(x, axes, correction=correction, keepdim=keepdim))

    return rule


def _extreme(c: Compiler, input: Any, dim: Any, keepdim: bool = False, *, part: int) -> None:
    """`x.max(dim)`: the values, not where they stand."""
    axis = _moved(dim)
    if part == 0:
        _changed(c, input, lambda x: x.max(axis, keepdim).values)


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Rule:
    def rule(
        c: Compiler, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
    ) -> None:
        if dim is None or dtype is not None:
            return
        axis = _moved(dim)
        _changed(c, input, lambda x: function(x, axis))

    return rule


def _normalize(
    c: Compiler,
    input: Any,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: None = None,
) -> None:
    axis = _moved(dim)
    _changed(c, input, lambda x: F.normalize(x, p, axis, eps))


def _glu(c: Compiler, input: Any, dim: int = -1) -> None:
    axis = _moved(dim)
    sigmoid: Change = torch.sigmoid
    if not c.alone:
        sigmoid = rowwise.elementwise(torch.sigmoid)

    def gated(x: Tensor) -> Tensor:
        value, gate = x.chunk(2, axis)
        return value * sigmoid(gate)

    _changed(c, input, gated)


def _same(c: Compiler, input: Any, *settings: Any, **named: Any) -> None:
    c.same(input)


def _detach(c: Compiler, input: Any) -> None:
    _changed(c, input, torch.detach)


def _long(c: Compiler, input: Any) -> None:
    _changed(c, input, Tensor.long)


def _float(c: Compiler, input: Any) -> None:
    source = c.rows(input)
    c.emit(lambda pass_, v: v[source].to(pass_.parameters[0].dtype), source)


def _to(c: Compiler, input: Any, *settings: Any, **named: Any) -> None:
    """A move to a device; `x.to(...)` with a type is not known."""
    for setting in (*settings, *named.values()):
        if not isinstance(setting, str | torch.device | bool):
            return
    c.same(input)


RULES: dict[str, Rule] = {
    "T": _reversed,
    "amax": _reduced(torch.amax),
    "amin": _reduced(torch.amin),
    "cat": _cat,
    "chunk": _chunk,
    "clone": _same,
    "concat": _cat,
    "contiguous": _same,
    "detach": _detach,
    "expand": _expand,
    "expand_as": _expand_as,
    FLOAT: _float,
    "flatten": _flatten,
    "flip": _flip,
    "getitem": _getitem,
    "glu": _glu,
    "log_softmax": _softmax(torch.log_softmax),
    "long": _long,
    "mT": _matrix_transposed,
    "max": _extreme,
    "mean": _reduced(torch.mean),
    "movedim": _movedim,
    "narrow": _narrow,
    "normalize": _normalize,
    "permute": _permute,
    "repeat": _repeat,
    "pixel_shuffle": _pixel_shuffle,
    "reshape": _reshape,
    "roll": _roll,
    "select": _select,
    "softmax": _softmax(torch.softmax),
    "split": _split,
    "squeeze": _squeeze,
    "stack": _joined(torch.stack),
    "std": _spread(torch.std),
    "sum": _reduced(torch.sum),
    "swapaxes": _transpose,
    "t": _reversed,
    "to": _to,
    "transpose": _transpose,
    "unbind": _unbind,
    "unflatten": _unflatten,
    "unsqueeze": _unsqueeze,
    "var": _spread(torch.var),
    "view": _reshape,
}
"""The rules of this file, by the name of torch's function."""
