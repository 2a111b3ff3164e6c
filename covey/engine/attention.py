"""Products of two values and attention, for many models at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine import rowwise
from covey.engine.batched import Compiler, Registers, Rule
from covey.engine.graph import Shared, Unknown
from covey.engine.passing import Pass
from covey.engine.rules import beside, matrix


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


def _on_the_last_axis(x: Tensor, w: Tensor) -> Tensor:
    """x [n, ..., i] times w [n, i, o]."""
    out = rowwise.bmm(x.flatten(1, -2), w)
    return torch.unflatten(out, 1, x.shape[1:-1])


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as products of many pairs of matrices."""
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left = a.expand(*shape, *a.shape[-2:])
    right = b.expand(*shape, *b.shape[-2:])
    out = rowwise.bmm(left.flatten(0, -3), right.flatten(0, -3))
    return out.view(*shape, *out.shape[-2:])


def _attention(
    c: Compiler,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """`F.scaled_dot_product_attention` on [B, heads, T, E]."""
    alike = {c.axes(query), c.axes(key), c.axes(value)} == {4}
    if not alike or dropout_p or enable_gqa or not _is_common(attn_mask):
        return
    sources = [c.rows(operand) for operand in (query, key, value)]
    mask = None if attn_mask is None else c.constant(attn_mask)
    reads = sources if mask is None else [*sources, mask]

    def run(pass_: Pass, v: Registers) -> Tensor:
        q, k, w = (v[source].flatten(0, 1) for source in sources)
        chosen = None if mask is None else v[mask]
        out = attended(q, k, w, chosen, is_causal=is_causal, scale=scale)
        return torch.unflatten(out, 0, v[sources[0]].shape[:2])

    c.emit(run, *reads)


def _is_common(mask: Any) -> bool:
    """Whether a mask is the same for all models and all examples."""
    return mask is None or (isinstance(mask, Shared) and mask.tensor.dim() == 2)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    scale: float | None = None,
) -> Tensor:
    """Attention of [N, heads, T, E]."""
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale)


def _multi_head(
    c: Compiler,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    part: int,
) -> None:
    """`nn.MultiheadAttention` on [T, B, E]: the outputs, not the weights."""
    unusual = (bias_k, bias_v, key_padding_mask, static_k, static_v)
    if part or add_zero_attn or use_separate_proj_weight or dropout_p:
        return
    if any(operand is not None for operand in unusual):
        return
    if not _is_common(attn_mask) or c.axes(query) != 3 or in_proj_bias is None:
        return
    sources = [c.rows(operand) for operand in (query, key, value)]
    weight = matrix(c, in_proj_weight)
    bias = c.rows(in_proj_bias)
    out_weight = matrix(c, out_proj_weight)
    out_bias = c.rows(out_proj_bias)
    mask = None if attn_mask is None else c.constant(attn_mask)
    causal = is_causal and mask is None

    def run(pass_: Pass, v: Registers) -> Tensor:
        inputs = [v[source] for source in sources]
        q, k, w = _projected(inputs, v[weight], v[bias])
        chosen = None if mask is None else v[mask]
        heads = [_heads(part, num_heads) for part in (q, k, w)]
        out = attended(*heads, chosen, is_causal=causal)
        together = _together(out, len(inputs[0]))
        return _affine(together, v[out_weight], v[out_bias])

    reads = [*sources, weight, bias, out_weight, out_bias]
    c.emit(run, *reads)


def _projected(inputs: list[Tensor], weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Queries, keys and values, [n, T, B, E] each."""
    query, key, value = inputs
    if query is key and key is value:
        return list(_affine(query, weight, bias).chunk(3, -1))
    weights = weight.chunk(3, -1)
    biases = bias.chunk(3, -1)
    triples = zip(inputs, weights, biases, strict=True)
    return [_affine(x, w, b) for x, w, b in triples]


def _affine(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x [n, ..., i] times w [n, i, o] plus b [n, o]."""
    out = rowwise.baddbmm(b.unsqueeze(1), x.flatten(1, -2), w)
    return torch.unflatten(out, 1, x.shape[1:-1])


def _heads(x: Tensor, heads: int) -> Tensor:
    """From [n, T, B, E] to [n * B, heads, T, E / heads]."""
    by_head = torch.unflatten(x, -1, (heads, -1))
    return by_head.permute(0, 2, 3, 1, 4).flatten(0, 1)


def _together(x: Tensor, models: int) -> Tensor:
    """From [n * B, heads, T, E / heads] to [n, T, B, E]."""
    by_model = torch.unflatten(x, 0, (models, -1))
    return by_model.permute(0, 3, 1, 2, 4).flatten(-2)


RULES: dict[str, Rule] = {
    "bmm": _matmul,
    "matmul": _matmul,
    "multi_head_attention_forward": _multi_head,
    "scaled_dot_product_attention": _attention,
}
"""The rules of this file, by the name of torch's function."""
