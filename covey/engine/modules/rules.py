"""How each operation of a graph runs for many models at once: one rule per operation.

A rule takes the compiler and the arguments of torch's function of that name. It emits the
instruction that makes the node's value, by rows or folded.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.modules import norm, rowwise
from covey.engine.modules.batched import (
    INPUTS,
    NOTHING,
    PASS,
    RULES,
    Compiler,
    Rule,
    at_size,
    fold,
    rule,
)
from covey.engine.modules.dropout import drop
from covey.engine.modules.graph import ATTENTION, BATCH_NORM, FILLED, SITE, Shared, Unknown, Value
from covey.engine.modules.intercept import attention_weights
from covey.engine.modules.passing import Pass

_STEADY = ("abs", "clamp", "clamp_max", "clamp_min", "hardtanh", "leaky_relu", "neg", "relu",
           "relu6", "sqrt", "square", "tanh")  # fmt: skip
"""Elementwise functions that have the same bits in a vector's tail."""
_UNSTEADY = ("celu", "cos", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "log", "log1p",
             "logsigmoid", "mish", "rsqrt", "selu", "sigmoid", "silu", "sin", "softplus",
             "softsign", "tanhshrink")  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
CONVOLUTIONS = (*_CONVOLUTIONS, *_TRANSPOSED)
_POOLS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")


def _of_torch(name: str) -> Callable[..., Tensor]:
    """The function of torch with a name."""
    function: Callable[..., Tensor] = getattr(F, name, None) or getattr(torch, name)
    return function


# Elementwise


def elementwise(
    c: Compiler,
    x: Any,
    function: Callable[[Tensor], Tensor],
    *,
    steady: bool,
) -> None:
    """A function of single numbers, in the layout in which its operand is there."""
    if not steady:
        function = rowwise.elementwise(function)
    folded = c.is_folded(x)
    source = c.folded(x) if folded else c.rows(x)
    c.emit(function, source, folded=folded)


def _unary(name: str, *, steady: bool) -> Rule:
    function = _of_torch(name)

    def apply(c: Compiler, input: Any, *numbers: Any, inplace: bool = False, **named: Any) -> None:
        _check_numbers(numbers, named)
        if numbers and isinstance(numbers[-1], bool):
            numbers = numbers[:-1]  # inplace, by position
        elementwise(c, input, lambda x: function(x, *numbers, **named), steady=steady)

    return apply


def _check_numbers(numbers: tuple[Any, ...], named: dict[str, Any]) -> None:
    for number in (*numbers, *named.values()):
        if isinstance(number, Value | Shared):
            raise Unknown("a tensor stands where a number is expected")


def _binary(function: Callable[[Any, Any], Any]) -> Rule:
    def apply(c: Compiler, input: Any, other: Any) -> None:
        values = isinstance(input, Value) and isinstance(other, Value)
        alike = c.shape(input)[:2] == c.shape(other)[:2] and c.axes(input) == c.axes(other) > 2
        if values and alike and (c.is_folded(input) or c.is_folded(other)):
            c.emit(function, c.folded(input), c.folded(other), folded=True)
        elif isinstance(input, int | float):
            elementwise(c, other, lambda x: function(input, x), steady=True)
        elif isinstance(other, int | float):
            elementwise(c, input, lambda x: function(x, other), steady=True)
        else:
            c.emit(function, *beside(c, input, other))

    return apply


def beside(c: Compiler, *operands: Any) -> list[int]:
    """The registers of operands by rows, with as many axes as the others have, to broadcast."""
    axes = max(c.axes(operand) for operand in operands)
    return [broadcast(c, operand, axes) for operand in operands]


def broadcast(c: Compiler, operand: Any, axes: int) -> int:
    """The register of an operand, or of nothing, beside values of so many axes."""
    if operand is None:
        return NOTHING
    if isinstance(operand, int | float):
        return c.then(lambda: operand)
    if isinstance(operand, Shared):
        return c.constant(operand)
    missing = axes - c.axes(operand)
    register = c.rows(operand)
    if not missing:
        return register
    return c.then(lambda x: widened(x, missing), register)


def widened(x: Tensor, missing: int) -> Tensor:
    """x [n, ...] with so many axes of length 1 after the first."""
    if not missing:
        return x
    ones = [1] * missing
    return x.view(len(x), *ones, *x.shape[1:])


RULES.update({name: _unary(name, steady=True) for name in _STEADY})
RULES.update({name: _unary(name, steady=False) for name in _UNSTEADY})
RULES.update({name: _binary(function) for name, function in _BINARY.items()})


@rule("pow")
def _pow(c: Compiler, input: Any, exponent: Any) -> None:
    if isinstance(exponent, int | float):
        steady = exponent in (1, 2)
        elementwise(c, input, lambda x: x**exponent, steady=steady)
    elif isinstance(input, int | float):
        elementwise(c, exponent, lambda x: input**x, steady=False)


@rule("reciprocal")
def _reciprocal(c: Compiler, input: Any) -> None:
    elementwise(c, input, torch.reciprocal, steady=True)


@rule("masked_fill")
def _masked_fill(c: Compiler, input: Any, mask: Any, value: Any) -> None:
    if isinstance(value, int | float):
        c.emit(lambda x, where: x.masked_fill(where, value), *beside(c, input, mask))


@rule(FILLED)
def _filled(c: Compiler, shape: tuple[Any, ...], value: float) -> None:
    """A tensor that has one value everywhere."""

    def run(pass_: Pass, x: Tensor) -> Tensor:
        sizes = at_size(shape, x.shape[1])
        return pass_.parameters[0].new_full((pass_.models, *sizes), value)

    c.emit(run, PASS, INPUTS)


@rule("prelu")
def _prelu(c: Compiler, input: Any, weight: Any) -> None:
    """One slope for all numbers, or one for every channel, the second axis."""
    axes = c.axes(input)

    def run(x: Tensor, w: Tensor) -> Tensor:
        before = [1] * min(axes - 1, 1)
        behind = [1] * max(axes - 2, 0)
        slope = w.view(len(w), *before, -1, *behind)
        return torch.where(x > 0, x, slope * x)

    c.emit(run, c.rows(input), c.rows(weight))


@rule("where")
def _where(c: Compiler, condition: Any, input: Any, other: Any) -> None:
    c.emit(torch.where, *beside(c, condition, input, other))


@rule(SITE)
def _dropout(c: Compiler, input: Any, site: int, alpha_p: float | None) -> None:
    """A site of a mask; where the pass has no masks, nothing is dropped."""
    folded = c.is_folded(input)
    source = c.folded(input) if folded else c.rows(input)

    def run(pass_: Pass, x: Tensor) -> Tensor:
        if not pass_.masks:
            return x
        mask = pass_.masks[site]
        if folded:
            mask = fold(mask)
        return drop(x, mask, alpha_p)

    c.emit(run, PASS, source, folded=folded)


# Layers with parameters


@rule("linear")
def _linear(c: Compiler, input: Any, weight: Any, bias: Any = None) -> None:
    if c.axes(input) < 2 or c.axes(weight) != 2:
        raise Unknown("linear is used on a single vector")
    w = c.stored(weight)
    if w is None:  # turned to [n, in, out]
        w = c.then(lambda x: x.transpose(1, 2), c.rows(weight))

    def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        if b is None:
            return rowwise.bmm(x, w)
        return rowwise.baddbmm(b.unsqueeze(1), x, w)

    def on_the_last_axis(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        out = product(x.flatten(1, -2), w, b)
        return torch.unflatten(out, 1, x.shape[1:-1])

    run = product if c.axes(input) == 2 else on_the_last_axis
    c.emit(run, c.rows(input), w, c.optional(bias))


@rule("addmm")
def _addmm(c: Compiler, input: Any, mat1: Any, mat2: Any) -> None:
    """A linear layer whose weight lies [in, out]."""
    if c.axes(input) != 1:
        raise Unknown("addmm adds something else than a bias")

    def run(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return rowwise.baddbmm(b.unsqueeze(1), x, w)

    c.emit(run, c.rows(input), c.rows(mat1), c.rows(mat2))


def _convolution(name: str, settings: tuple[str, ...]) -> Rule:
    """The convolutions of all models as one grouped convolution; `settings` in torch's order."""
    convolve = _of_torch(name)
    axes = int(name[-2]) + 2

    def apply(
        c: Compiler, input: Any, weight: Any, bias: Any = None, *given: Any, **named: Any
    ) -> None:
        if c.axes(input) != axes:
            raise Unknown("a convolution is used on a single example")
        named |= zip(settings, given, strict=False)
        groups = named.pop("groups", 1)

        def run(pass_: Pass, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            if b is not None:
                b = b.flatten()
            return convolve(x, w.flatten(0, 1), b, groups=pass_.models * groups, **named)

        c.emit(run, PASS, c.folded(input), c.rows(weight), c.optional(bias), folded=True)

    return apply


_SETTINGS = ("stride", "padding", "dilation", "groups")
_SETTINGS_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")
RULES.update({name: _convolution(name, _SETTINGS) for name in _CONVOLUTIONS})
RULES.update({name: _convolution(name, _SETTINGS_TRANSPOSED) for name in _TRANSPOSED})


def _pool(kind: str, dimensions: int) -> Rule:
    function = _of_torch(f"{kind}{dimensions}d")

    def apply(c: Compiler, input: Any, *numbers: Any, part: int = 0, **named: Any) -> None:
        indices = named.pop("return_indices", False)
        if c.axes(input) != dimensions + 2 or indices or part:
            return
        _check_numbers(numbers, named)
        c.emit(lambda x: function(x, *numbers, **named), c.folded(input), folded=True)

    return apply


RULES.update({f"{kind}{axes}d": _pool(kind, axes) for kind in _POOLS for axes in (1, 2, 3)})


@rule("interpolate")
def _interpolate(c: Compiler, input: Any, *numbers: Any, **named: Any) -> None:
    if c.axes(input) < 3:
        return
    _check_numbers(numbers, named)
    c.emit(lambda x: F.interpolate(x, *numbers, **named), c.folded(input), folded=True)


@rule("pad")
def _pad(
    c: Compiler,
    input: Any,
    pad: tuple[int, ...],
    mode: str = "constant",
    value: float | None = None,
) -> None:
    padded_axes = len(pad) // 2
    if c.axes(input) > 2 and padded_axes <= c.axes(input) - 2:
        c.emit(lambda x: F.pad(x, pad, mode, value), c.folded(input), folded=True)
    elif mode == "constant":
        c.emit(lambda x: F.pad(x, pad, mode, value), c.rows(input))


@rule("group_norm")
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

    def run(pass_: Pass, x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        if w is not None:
            w = w.flatten()
        if b is not None:
            b = b.flatten()
        return F.group_norm(x, pass_.models * num_groups, w, b, eps)

    c.emit(run, PASS, c.folded(input), c.optional(weight), c.optional(bias), folded=True)


@rule(BATCH_NORM)
def _batch_norm(
    c: Compiler,
    input: Any,
    weight: Any,
    bias: Any,
    number: int,
    eps: float,
) -> None:
    """BatchNorm, by the statistics that the pass has for the layer of this number."""
    folded = c.axes(input) > 2
    x = c.folded(input) if folded else c.rows(input)

    def run(pass_: Pass, x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        if folded:
            return norm.folded(pass_, number, x, weight=w, bias=b, eps=eps, alone=False)
        return norm.batch_norm(pass_, number, x, weight=w, bias=b, eps=eps)

    c.emit(run, PASS, x, c.optional(weight), c.optional(bias), folded=folded)


def _normed(norm: Callable[..., Tensor]) -> Rule:
    """The norm of every point, then each model's own scale and offset."""
    signature = inspect.signature(norm)

    def apply(c: Compiler, *given: Any, **named: Any) -> None:
        call = signature.bind(*given, **named)
        call.apply_defaults()
        input, shape, weight, *bias, eps = call.arguments.values()

        def run(x: Tensor, scale: Tensor | None, *offset: Tensor | None) -> Tensor:
            out = norm(x, shape, eps=eps)
            if scale is not None:
                out = out * scale
            for values in offset:
                if values is not None:
                    out = out + values
            return out

        axes = c.axes(input)
        c.emit(run, c.rows(input), *[broadcast(c, values, axes) for values in (weight, *bias)])

    return apply


RULES.update({"layer_norm": _normed(F.layer_norm), "rms_norm": _normed(F.rms_norm)})


@rule("embedding")
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
    if isinstance(weight, Shared):  # one frozen table for all models
        c.emit(F.embedding, c.rows(input), c.constant(weight))
        return

    def run(index: Tensor, table: Tensor) -> Tensor:
        models, words = table.shape[:2]
        first = torch.arange(models, device=index.device) * words
        ones = [1] * (index.dim() - 1)
        out = F.embedding(index + first.view(models, *ones), table.flatten(0, 1))
        if padding_idx is None:
            return out
        padding = (index == padding_idx % words).unsqueeze(-1)
        return torch.where(padding, out.detach(), out)  # its vector does not train

    c.emit(run, c.rows(input), c.rows(weight))


# Products of two values, and attention


@rule("bmm", "matmul")
def _matmul(c: Compiler, input: Any, other: Any) -> None:
    """A product of matrices, on the last two axes of both."""
    if c.axes(input) < 2 or c.axes(other) < 2:
        raise Unknown("matmul is used on a single vector")

    def on_the_last_axis(x: Tensor, w: Tensor) -> Tensor:
        out = rowwise.bmm(x.flatten(1, -2), w)
        return torch.unflatten(out, 1, x.shape[1:-1])

    if c.axes(other) == 2 and c.axes(input) > 2:
        c.emit(on_the_last_axis, c.rows(input), c.rows(other))
    else:
        c.emit(_products, *beside(c, input, other))


@rule("einsum")
def _einsum(c: Compiler, equation: str, *operands: Any) -> None:
    """`torch.einsum` with one letter more, that of the rows."""
    if len(operands) == 1 and isinstance(operands[0], tuple):
        [operands] = operands
    equation = equation.replace(" ", "")
    unused = [letter for letter in ascii_letters if letter not in equation]
    if "->" not in equation or "." in equation or not unused:
        return
    rows = unused[0]
    by_rows = rows + equation.replace(",", f",{rows}").replace("->", f"->{rows}")

    def run(*values: Tensor) -> Tensor:
        if len(values[0]) > 1:
            return torch.einsum(by_rows, values)
        twice = [torch.cat([value, value]) for value in values]  # one row has other bits
        return torch.einsum(by_rows, twice)[:1]

    c.emit(run, *[c.rows(operand) for operand in operands])


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as products of many pairs of matrices."""
    leading = (a.shape[:-2], b.shape[:-2])
    shape: torch.Size = torch.broadcast_shapes(*leading)  # type: ignore[no-untyped-call]
    left = a.expand(*shape, *a.shape[-2:])
    right = b.expand(*shape, *b.shape[-2:])
    out = rowwise.bmm(left.flatten(0, -3), right.flatten(0, -3))
    return out.view(*shape, *out.shape[-2:])


@rule(ATTENTION)
def _attention(
    c: Compiler,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    site: int | None,
    is_causal: bool,
    scale: float | None,
) -> None:
    """`F.scaled_dot_product_attention`; its weights are dropped by the mask of the site."""

    def run(
        pass_: Pass,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        if site is None or not pass_.masks:
            return _attended(q, k, v, bias, is_causal, scale)
        weights = attention_weights(q, k, bias, is_causal, scale)
        return _products(drop(weights, pass_.masks[site]), v)

    c.emit(run, PASS, *beside(c, query, key, value), broadcast(c, mask, c.axes(query)))


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention of [n, ..., T, E]: torch's fused kernels take four axes at most."""
    common = mask is None or mask.dim() <= 3  # the same for all models and all examples
    if query.dim() != 5 or not common:
        return F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=is_causal, scale=scale
        )
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)
    return torch.unflatten(out, 0, query.shape[:2])
