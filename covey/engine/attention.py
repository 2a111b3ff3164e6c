"""Products of two values and attention, for many models at once."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine import rowwise
from covey.engine.batched import Compiler, Registers, Rule
from covey.engine.dropout import drop
from covey.engine.graph import ATTENTION, Unknown
from covey.engine.intercept import attention_weights
from covey.engine.passing import Pass
from covey.engine.rules import Beside, beside


def _matmul(c: Compiler, input: Any, other: Any) -> None:
    """A product of matrices, on the last two axes of both."""
    if c.axes(input) < 2 or c.axes(other) < 2:
        raise Unknown("matmul is used on a single vector")
    if c.axes(other) == 2 and c.axes(input) > 2:
        a = c.rows(input)
        b = c.rows(other)
        c.emit(lambda pass_, v: _on_the_last_axis(v[a], v[b]), a, b)
        return
    first, second = beside(c, input, other)
    reads = (first.register, second.register)
    c.emit(lambda pass_, v: _products(first(v), second(v)), *reads)


def _einsum(c: Compiler, equation: str, *operands: Any) -> None:
    """`torch.einsum` with one letter more, that of the rows."""
    if len(operands) == 1 and isinstance(operands[0], tuple):
        [operands] = operands
    equation = equation.replace(" ", "")
    unused = [letter for letter in ascii_letters if letter not in equation]
    if "->" not in equation or "." in equation or not unused:
        return
    rows = unused[0]
    terms, result = equation.split("->")
    inside = ",".join(f"{rows}{term}" for term in terms.split(","))
    sources = [c.rows(operand) for operand in operands]

    def run(pass_: Pass, v: Registers) -> Tensor:
        values = [v[source] for source in sources]
        if pass_.models > 1:
            return torch.einsum(f"{inside}->{rows}{result}", values)
        twice = [torch.cat([value, value]) for value in values]  # one row has other bits
        return torch.einsum(f"{inside}->{rows}{result}", twice)[:1]

    c.emit(run, *sources)


def _on_the_last_axis(x: Tensor, w: Tensor) -> Tensor:
    """x [n, ..., i] times w [n, i, o]."""
    out = rowwise.bmm(x.flatten(1, -2), w)
    return torch.unflatten(out, 1, x.shape[1:-1])


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as products of many pairs of matrices."""
    leading = (a.shape[:-2], b.shape[:-2])
    shape: torch.Size = torch.broadcast_shapes(*leading)  # type: ignore[no-untyped-call]
    left = a.expand(*shape, *a.shape[-2:])
    right = b.expand(*shape, *b.shape[-2:])
    out = rowwise.bmm(left.flatten(0, -3), right.flatten(0, -3))
    return out.view(*shape, *out.shape[-2:])


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
    first, second, third = beside(c, query, key, value)
    reads = [first.register, second.register, third.register]
    bias = None
    if mask is not None:
        bias = Beside(c, mask, c.axes(query))
        reads.append(bias.register)

    def run(pass_: Pass, v: Registers) -> Tensor:
        inputs = (first(v), second(v), third(v))
        added = None if bias is None else bias(v)
        if site is None or not pass_.masks:
            return _attended(*inputs, added, is_causal, scale)
        weights = attention_weights(inputs[0], inputs[1], added, is_causal, scale)
        return _products(drop(weights, pass_.masks[site]), inputs[2])

    c.emit(run, *reads)


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention of [n, ..., T, E]: torch's fused kernels take four axes at most."""
    if query.dim() != 5 or not _is_common(mask):
        return F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=is_causal, scale=scale
        )
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)
    return torch.unflatten(out, 0, query.shape[:2])


def _is_common(mask: Tensor | None) -> bool:
    """Whether a mask is the same for all models and all examples."""
    return mask is None or mask.dim() <= 3


RULES: dict[str, Rule] = {
    "bmm": _matmul,
    "einsum": _einsum,
    "matmul": _matmul,
    ATTENTION: _attention,
}
"""The rules of this file, by the name of torch's function."""
