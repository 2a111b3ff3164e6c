"""Products of two values and attention, for many models at once."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.modules import rowwise
from covey.engine.modules.batched import PASS, Compiler, rule
from covey.engine.modules.dropout import drop
from covey.engine.modules.graph import ATTENTION, Unknown
from covey.engine.modules.intercept import attention_weights
from covey.engine.modules.passing import Pass
from covey.engine.modules.rules import beside, broadcast


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
    terms, result = equation.split("->")
    inside = ",".join(f"{rows}{term}" for term in terms.split(","))

    def run(*values: Tensor) -> Tensor:
        if len(values[0]) > 1:
            return torch.einsum(f"{inside}->{rows}{result}", values)
        twice = [torch.cat([value, value]) for value in values]  # one row has other bits
        return torch.einsum(f"{inside}->{rows}{result}", twice)[:1]

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

    def run(pass_: Pass, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
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
