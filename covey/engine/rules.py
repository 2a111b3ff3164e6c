"""How each operation of a graph runs for many models at once: one rule per operation.

A rule takes the compiler and the arguments of torch's function of that name. It emits the
instruction that makes the node's value, by rows or folded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine import norm, rowwise
from covey.engine.batched import Compiler, Registers, Rule, fold
from covey.engine.dropout import drop
from covey.engine.graph import BATCH_NORM, SITE, Shared, Unknown, Value
from covey.engine.passing import Pass

_STEADY: dict[str, Callable[..., Tensor]] = {
    "abs": torch.abs,
    "clamp": torch.clamp,
    "clamp_max": torch.clamp_max,
    "clamp_min": torch.clamp_min,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "neg": torch.neg,
    "relu": F.relu,
    "relu6": F.relu6,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}
"""Elementwise functions that have the same bits in a vector's tail."""
_UNSTEADY: dict[str, Callable[..., Tensor]] = {
    "celu": F.celu,
    "cos": torch.cos,
    "elu": F.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": F.gelu,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "log": torch.log,
    "log1p": torch.log1p,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "rsqrt": torch.rsqrt,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
_CONVOLUTIONS: dict[str, Callable[..., Tensor]] = {
    "conv1d": F.conv1d,
    "conv2d": F.conv2d,
    "conv3d": F.conv3d,
}
_TRANSPOSED: dict[str, Callable[..., Tensor]] = {
    "conv_transpose1d": F.conv_transpose1d,
    "conv_transpose2d": F.conv_transpose2d,
    "conv_transpose3d": F.conv_transpose3d,
}
CONVOLUTIONS = (*_CONVOLUTIONS, *_TRANSPOSED)
_POOLS: dict[str, Callable[..., Tensor]] = {
    "max_pool1d": F.max_pool1d,
    "max_pool2d": F.max_pool2d,
    "max_pool3d": F.max_pool3d,
    "avg_pool1d": F.avg_pool1d,
    "avg_pool2d": F.avg_pool2d,
    "avg_pool3d": F.avg_pool3d,
    "adaptive_max_pool1d": F.adaptive_max_pool1d,
    "adaptive_max_pool2d": F.adaptive_max_pool2d,
    "adaptive_max_pool3d": F.adaptive_max_pool3d,
    "adaptive_avg_pool1d": F.adaptive_avg_pool1d,
    "adaptive_avg_pool2d": F.adaptive_avg_pool2d,
    "adaptive_avg_pool3d": F.adaptive_avg_pool3d,
}


# Elementwise


def elementwise(c: Compiler, x: Any, function: Callable[[Tensor], Tensor], *, steady: bool) -> None:
    """A function of single numbers, in the layout in which its operand is there."""
    if not steady and not c.alone:
        function = rowwise.elementwise(function)
    folded = c.is_folded(x)
    if folded:
        source = c.folded(x)
    else:
        source = c.rows(x)
    c.emit(lambda pass_, v: function(v[source]), source, folded=folded)


def _unary(function: Callable[..., Tensor], *, steady: bool) -> Rule:
    def rule(c: Compiler, input: Any, *numbers: Any, inplace: bool = False, **named: Any) -> None:
        _check_numbers(numbers, named)
        if numbers and isinstance(numbers[-1], bool):
            numbers = numbers[:-1]  # inplace, by position
        elementwise(c, input, partial(_called, function, numbers, named), steady=steady)

    return rule


def _called(
    function: Callable[..., Tensor], numbers: tuple[Any, ...], named: dict[str, Any], x: Tensor
) -> Tensor:
    return function(x, *numbers, **named)


def _check_numbers(numbers: tuple[Any, ...], named: dict[str, Any]) -> None:
    for number in (*numbers, *named.values()):
        if isinstance(number, Value | Shared):
            raise Unknown("a tensor stands where a number is expected")


def _binary(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(c: Compiler, input: Any, other: Any) -> None:
        if _both_folded(c, input, other):
            a = c.folded(input)
            b = c.folded(other)
            c.emit(lambda pass_, v: function(v[a], v[b]), a, b, folded=True)
        elif _is_number(input) or _is_number(other):
            _with_number(c, input, other, function)
        else:
            first, second = beside(c, input, other)
            reads = (first.register, second.register)
            c.emit(lambda pass_, v: function(first(v), second(v)), *reads)

    return rule


def _with_number(c: Compiler, input: Any, other: Any, function: Callable[[Any, Any], Any]) -> None:
    if _is_number(input):
        elementwise(c, other, lambda x: function(input, x), steady=True)
    else:
        elementwise(c, input, lambda x: function(x, other), steady=True)


def _is_number(operand: Any) -> bool:
    return isinstance(operand, int | float)


def _both_folded(c: Compiler, one: Any, other: Any) -> bool:
    """Whether two operands of the same channels can be combined as they are folded."""
    if not isinstance(one, Value) or not isinstance(other, Value):
        return False
    alike = c.shape(one)[:2] == c.shape(other)[:2] and c.axes(one) == c.axes(other)
    return alike and c.axes(one) > 2 and (c.is_folded(one) or c.is_folded(other))


class Beside:
    """Reads an operand with as many axes as the others have, so that torch can broadcast."""

    def __init__(self, c: Compiler, operand: Any, axes: int) -> None:
        self.missing = 0
        if isinstance(operand, Shared):
            self.register = c.constant(operand)
        else:
            self.register = c.rows(operand)
            self.missing = axes - c.axes(operand)

    def __call__(self, v: Registers) -> Tensor:
        return widened(v[self.register], self.missing)


def beside(c: Compiler, *operands: Any) -> list[Beside]:
    """The operands of an operation that broadcasts, by rows."""
    axes = max(c.axes(operand) for operand in operands)
    return [Beside(c, operand, axes) for operand in operands]


def widened(x: Tensor, missing: int) -> Tensor:
    """x [n, ...] with so many axes of length 1 after the first."""
    if not missing:
        return x
    ones = [1] * missing
    return x.view(len(x), *ones, *x.shape[1:])


def _pow(c: Compiler, input: Any, exponent: Any) -> None:
    if _is_number(exponent):
        steady = exponent in (1, 2)
        elementwise(c, input, lambda x: x**exponent, steady=steady)
    elif _is_number(input):
        elementwise(c, exponent, lambda x: input**x, steady=False)


def _reciprocal(c: Compiler, input: Any) -> None:
    elementwise(c, input, torch.reciprocal, steady=True)


def _masked_fill(c: Compiler, input: Any, mask: Any, value: Any) -> None:
    if _is_number(value):
        x, where = beside(c, input, mask)
        reads = (x.register, where.register)
        c.emit(lambda pass_, v: x(v).masked_fill(where(v), value), *reads)


def _prelu(c: Compiler, input: Any, weight: Any) -> None:
    """One slope for all numbers, or one for every channel, the second axis."""
    x = c.rows(input)
    w = c.rows(weight)
    behind = max(c.axes(input) - 2, 0)

    def run(pass_: Pass, v: Registers) -> Tensor:
        before = [1] * min(c.axes(input) - 1, 1)
        ones = [1] * behind
        slope = v[w].view(len(v[w]), *before, -1, *ones)
        return torch.where(v[x] > 0, v[x], slope * v[x])

    c.emit(run, x, w)


def _where(c: Compiler, condition: Any, input: Any, other: Any) -> None:
    operands = [condition, input, other]
    tensors = [operand for operand in operands if not _is_number(operand)]
    readers = iter(beside(c, *tensors))
    reads = [operand if _is_number(operand) else next(readers) for operand in operands]
    registers = [reader.register for reader in reads if isinstance(reader, Beside)]

    def run(pass_: Pass, v: Registers) -> Tensor:
        values = [reader(v) if isinstance(reader, Beside) else reader for reader in reads]
        out: Tensor = torch.where(values[0], values[1], values[2])
        return out

    c.emit(run, *registers)


def _dropout(c: Compiler, input: Any, site: int, alpha_p: float | None) -> None:
    """A site of a mask; where the pass has no masks, nothing is dropped."""
    folded = c.is_folded(input)
    source = c.folded(input) if folded else c.rows(input)

    def run(pass_: Pass, v: Registers) -> Tensor:
        x: Tensor = v[source]
        if not pass_.masks:
            return x
        mask = pass_.masks[site]
        if folded:
            mask = fold(mask)
        return drop(x, mask, alpha_p)

    c.emit(run, source, folded=folded)


# Layers with parameters


def _linear(c: Compiler, input: Any, weight: Any, bias: Any = None) -> None:
    if c.axes(input) < 2 or c.axes(weight) != 2:
        raise Unknown("linear is used on a single vector")
    x = c.rows(input)
    w = matrix(c, weight)
    reads = [x, w]
    b = None
    if bias is not None:
        b = c.rows(bias)
        reads.append(b)

    def product(inputs: Tensor, v: Registers) -> Tensor:
        if b is None:
            return rowwise.bmm(inputs, v[w])
        return rowwise.baddbmm(v[b].unsqueeze(1), inputs, v[w])

    def on_the_last_axis(pass_: Pass, v: Registers) -> Tensor:
        points = v[x].shape[1:-1]
        out = product(v[x].flatten(1, -2), v)
        return torch.unflatten(out, 1, points)

    if c.axes(input) == 2:
        c.emit(lambda pass_, v: product(v[x], v), *reads)
    else:
        c.emit(on_the_last_axis, *reads)


def _addmm(c: Compiler, input: Any, mat1: Any, mat2: Any) -> None:
    """A linear layer whose weight lies [in, out]."""
    if c.axes(input) != 1:
        raise Unknown("addmm adds something else than a bias")
    b = c.rows(input)
    x = c.rows(mat1)
    w = c.rows(mat2)

    def run(pass_: Pass, v: Registers) -> Tensor:
        return rowwise.baddbmm(v[b].unsqueeze(1), v[x], v[w])

    c.emit(run, b, x, w)


def matrix(c: Compiler, weight: Any) -> int:
    """The register of a linear layer's weight turned to [n, in, out]."""
    stored = c.stored(weight)
    if stored is not None:
        return stored
    w = c.rows(weight)
    return c.then(lambda pass_, v: v[w].transpose(1, 2), w)


def _convolution(convolve: Callable[..., Tensor], dimensions: int) -> Rule:
    def rule(
        c: Compiler,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        def run(x: Tensor, w: Tensor, b: Tensor | None, models: int) -> Tensor:
            return convolve(x, w, b, stride, padding, dilation, models * groups)

        _convolved(c, input, weight, bias, dimensions, run)

    return rule


def _transposed(convolve: Callable[..., Tensor], dimensions: int) -> Rule:
    def rule(
        c: Compiler,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> None:
        def run(x: Tensor, w: Tensor, b: Tensor | None, models: int) -> Tensor:
            many = models * groups
            return convolve(x, w, b, stride, padding, output_padding, many, dilation)

        _convolved(c, input, weight, bias, dimensions, run)

    return rule


def _convolved(
    c: Compiler,
    input: Any,
    weight: Any,
    bias: Any,
    dimensions: int,
    convolve: Callable[[Tensor, Tensor, Tensor | None, int], Tensor],
) -> None:
    """The convolutions of all models as one grouped convolution."""
    if c.axes(input) != dimensions + 2:
        raise Unknown("a convolution is used on a single example")
    x = c.folded(input)
    w = c.rows(weight)
    reads = [x, w]
    b = None
    if bias is not None:
        b = c.rows(bias)
        reads.append(b)

    def run(pass_: Pass, v: Registers) -> Tensor:
        kernel = v[w].flatten(0, 1)
        offset = None
        if b is not None:
            offset = v[b].flatten()
        return convolve(v[x], kernel, offset, pass_.models)

    c.emit(run, *reads, folded=True)


def _pool(function: Callable[..., Tensor], dimensions: int) -> Rule:
    def rule(c: Compiler, input: Any, *numbers: Any, part: int = 0, **named: Any) -> None:
        indices = named.pop("return_indices", False)
        if c.axes(input) != dimensions + 2 or indices or part:
            return
        _check_numbers(numbers, named)
        x = c.folded(input)
        c.emit(lambda pass_, v: function(v[x], *numbers, **named), x, folded=True)

    return rule


def _interpolate(c: Compiler, input: Any, *numbers: Any, **named: Any) -> None:
    if c.axes(input) < 3:
        return
    _check_numbers(numbers, named)
    x = c.folded(input)
    c.emit(lambda pass_, v: F.interpolate(v[x], *numbers, **named), x, folded=True)


def _pad(
    c: Compiler,
    input: Any,
    pad: tuple[int, ...],
    mode: str = "constant",
    value: float | None = None,
) -> None:
    padded_axes = len(pad) // 2
    if c.axes(input) > 2 and padded_axes <= c.axes(input) - 2:
        x = c.folded(input)
        c.emit(lambda pass_, v: F.pad(v[x], pad, mode, value), x, folded=True)
    elif mode == "constant":
        x = c.rows(input)
        c.emit(lambda pass_, v: F.pad(v[x], pad, mode, value), x)


def _group_norm(
    c: Compiler,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> None:
    if c.axes(input) < 2:
        return
    x = c.folded(input)
    scale = _optional(c, weight)
    offset = _optional(c, bias)
    reads = [r for r in (x, scale, offset) if r is not None]

    def run(pass_: Pass, v: Registers) -> Tensor:
        groups = pass_.models * num_groups
        w = None if scale is None else v[scale].flatten()
        b = None if offset is None else v[offset].flatten()
        return F.group_norm(v[x], groups, w, b, eps)

    c.emit(run, *reads, folded=True)


def _batch_norm(c: Compiler, input: Any, weight: Any, bias: Any, number: int, eps: float) -> None:
    """BatchNorm, by the statistics that the pass has for the layer of this number."""
    scale = _optional(c, weight)
    offset = _optional(c, bias)
    folded = c.axes(input) > 2
    x = c.folded(input) if folded else c.rows(input)

    def run(pass_: Pass, v: Registers) -> Tensor:
        w = None if scale is None else v[scale]
        b = None if offset is None else v[offset]
        if folded:
            alone = c.alone
            return norm.folded(pass_, number, v[x], weight=w, bias=b, eps=eps, alone=alone)
        return norm.batch_norm(pass_, number, v[x], weight=w, bias=b, eps=eps)

    reads = [register for register in (x, scale, offset) if register is not None]
    c.emit(run, *reads, folded=folded)


def _optional(c: Compiler, operand: Any) -> int | None:
    if operand is None:
        return None
    return c.rows(operand)


def _layer_norm(
    c: Compiler,
    input: Any,
    normalized_shape: tuple[int, ...],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> None:
    _normed(c, input, partial(_layer_normed, normalized_shape, eps), weight, bias)


def _layer_normed(shape: tuple[int, ...], eps: float, x: Tensor) -> Tensor:
    return F.layer_norm(x, shape, eps=eps)


def _rms_norm(
    c: Compiler,
    input: Any,
    normalized_shape: tuple[int, ...],
    weight: Any = None,
    eps: float | None = None,
) -> None:
    _normed(c, input, partial(_rms_normed, normalized_shape, eps), weight, None)


def _rms_normed(shape: tuple[int, ...], eps: float | None, x: Tensor) -> Tensor:
    return F.rms_norm(x, shape, eps=eps)


def _normed(
    c: Compiler, input: Any, norm: Callable[[Tensor], Tensor], weight: Any, bias: Any
) -> None:
    """The norm of every point, then each model's own scale and offset."""
    x = c.rows(input)
    axes = c.axes(input)
    scale = None if weight is None else Beside(c, weight, axes)
    offset = None if bias is None else Beside(c, bias, axes)
    reads = [x, *(part.register for part in (scale, offset) if part is not None)]

    def run(pass_: Pass, v: Registers) -> Tensor:
        out = norm(v[x])
        if scale is not None:
            out = out * scale(v)
        if offset is not None:
            out = out + offset(v)
        return out

    c.emit(run, *reads)


def _embedding(
    c: Compiler,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return
    index = c.rows(input)
    if isinstance(weight, Shared):  # one frozen table for all models
        frozen = c.constant(weight)
        c.emit(lambda pass_, v: F.embedding(v[index], v[frozen]), index, frozen)
        return
    table = c.rows(weight)

    def run(pass_: Pass, v: Registers) -> Tensor:
        models, words = v[table].shape[:2]
        first = torch.arange(models, device=v[index].device) * words
        ones = [1] * (v[index].dim() - 1)
        where = v[index] + first.view(models, *ones)
        out = F.embedding(where, v[table].flatten(0, 1))
        if padding_idx is None:
            return out
        padding = (v[index] == padding_idx % words).unsqueeze(-1)
        return torch.where(padding, out.detach(), out)  # its vector does not train

    c.emit(run, index, table)


RULES: dict[str, Rule] = {
    **{name: _unary(function, steady=True) for name, function in _STEADY.items()},
    **{name: _unary(function, steady=False) for name, function in _UNSTEADY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: _convolution(run, int(name[-2])) for name, run in _CONVOLUTIONS.items()},
    **{name: _transposed(run, int(name[-2])) for name, run in _TRANSPOSED.items()},
    **{name: _pool(function, int(name[-2])) for name, function in _POOLS.items()},
    SITE: _dropout,
    BATCH_NORM: _batch_norm,
    "pow": _pow,
    "prelu": _prelu,
    "reciprocal": _reciprocal,
    "masked_fill": _masked_fill,
    "where": _where,
    "linear": _linear,
    "addmm": _addmm,
    "interpolate": _interpolate,
    "pad": _pad,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "embedding": _embedding,
}
"""The rules of this file, by the name of torch's function."""
