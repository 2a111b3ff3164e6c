"""What a module does at random or by the batch, replaced by what the pass was given.

A module that is not made of known layers calls torch's functions itself. One mode stands between
the two while its `forward` runs. It sees the functions of its own thread alone.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from covey.engine.dropout import Met, drop, is_site
from covey.engine.norm import BatchNorm
from covey.engine.passing import Pass
from covey.errors import ModelError

_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_OTHER_SITES = (
    "the model drops entries in other places, or of other shapes, than when it was tried; drop in "
    "the same places in every pass."
)


class Interception(TorchFunctionMode):
    """A mode in which dropout takes its masks from a pass of one model.

    `batched` says that vmap runs it, which has no rule for fused attention.
    """

    def __init__(self, pass_: Pass, *, batched: bool = False) -> None:
        super().__init__()
        self.drops = bool(pass_.masks)
        self.batched = batched
        self._masks: Iterator[Tensor] = iter(pass_.masks)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        handler = _HANDLERS.get(func)
        if handler is None:
            return func(*args, **(kwargs or {}))
        return handler(self, *args, **(kwargs or {}))

    def need(self) -> None:
        """Called where a module must run in a mode even if nothing is dropped."""

    def mask(self, p: float, shape: Sequence[int], *, alpha: bool = False) -> Tensor | None:
        """The mask of the next site; None: nothing is dropped there."""
        mask = next(self._masks, None)
        if mask is None or mask.shape != torch.Size(shape):
            raise ModelError(_OTHER_SITES)
        return mask

    def check_batch_norm(self, running_mean: Tensor | None) -> None:
        """Called before F.batch_norm runs."""

    def finish(self) -> None:
        """Called after the pass, which must have met every site."""
        if next(self._masks, None) is not None:
            raise ModelError(_OTHER_SITES)


class Recorder(Interception):
    """A mode in which nothing is dropped, and the sites that a pass meets are noted."""

    def __init__(self, pass_: Pass, module: nn.Module) -> None:
        super().__init__(pass_)
        self.drops = True
        self.met: list[Met] = []
        self.needed = False
        layers = [layer for layer in module.modules() if isinstance(layer, BatchNorm)]
        self.running_means = [layer.running_mean for layer in layers]

    def need(self) -> None:
        """Note it."""
        self.needed = True

    def check_batch_norm(self, running_mean: Tensor | None) -> None:
        """Refuse a call of F.batch_norm that is no layer's: only layers follow a pass."""
        if not any(running_mean is mean for mean in self.running_means):
            raise ModelError(
                "the model's forward calls F.batch_norm itself, so that its statistics are no "
                "device's; use a layer, as nn.BatchNorm1d."
            )

    def mask(self, p: float, shape: Sequence[int], *, alpha: bool = False) -> None:
        """Note the site."""
        self.met.append(Met(p, tuple(shape), alpha))


def needs_mode(module: nn.Module) -> bool:
    """Whether a module has layers that must run in a mode even if nothing is dropped.

    Layers of attention have a shortcut of other bits in eval mode, which is not taken in a mode.
    """
    return any(isinstance(layer, _ATTENTION) for layer in module.modules())


def _dropped(
    mode: Interception,
    x: Tensor,
    p: float,
    training: bool,
    inplace: bool,
    *,
    shape: Sequence[int] | None = None,
    alpha: bool = False,
) -> Tensor:
    """x with the entries dropped that the mode says; `shape` is that of the mask."""
    if p < 0 or p > 1:
        raise ModelError(f"dropout with p = {p}: a probability is at least 0 and below 1.")
    if not training or not is_site(p):
        return x
    if not mode.drops:
        raise ModelError(_always("F.dropout", "training=self.training"))
    mask = mode.mask(p, x.shape if shape is None else shape, alpha=alpha)
    if mask is None:
        return x
    out = drop(x, mask, p if alpha else None)
    if inplace:
        return x.copy_(out)
    return out


def _always(function: str, fix: str) -> str:
    """What to say of a model that drops in eval mode too."""
    return f"the model drops at random in eval mode too; give {function} {fix}."


def _elements(mode: Interception, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropped(mode, input, p, train, False)


def _elements_in_place(mode: Interception, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropped(mode, input, p, train, True)


def _dropout(
    mode: Interception,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    return _dropped(mode, input, p, training, inplace)


def _channels(x: Tensor) -> list[int]:
    """The shape of a mask that drops whole channels."""
    ones = [1] * (x.dim() - 2)
    return [*x.shape[:2], *ones]


def _dropout_of_channels(
    mode: Interception,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    return _dropped(mode, input, p, training, inplace, shape=_channels(input))


def _dropout1d(
    mode: Interception,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    if input.dim() != 2:
        return _dropout_of_channels(mode, input, p, training, inplace)
    # Two axes are the channels of one example.
    return _dropped(mode, input, p, training, inplace, shape=[len(input), 1])


def _channels_of(mode: Interception, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout_of_channels(mode, input, p, train)


def _alpha_dropout(
    mode: Interception,
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    return _dropped(mode, input, p, training, inplace, alpha=True)


def _feature_alpha_dropout(
    mode: Interception,
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    shape = _channels(input)
    return _dropped(mode, input, p, training, inplace, shape=shape, alpha=True)


def _attention(
    mode: Interception,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention whose weights are dropped by a mask; torch's own where that will do."""
    mode.need()
    drops = is_site(dropout_p)
    if not drops and (enable_gqa or not mode.batched):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if drops and not mode.drops:
        fix = "dropout_p = 0.0 unless self.training"
        raise ModelError(_always("F.scaled_dot_product_attention", fix))
    if enable_gqa:
        raise ModelError("attention with enable_gqa cannot drop its weights; set dropout_p = 0.")
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    if drops:
        mask = mode.mask(dropout_p, weights.shape)
        if mask is not None:
            weights = drop(weights, mask)
    return weights @ value


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """The softmax of the scores, [..., queries, keys]."""
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = (query @ key.transpose(-2, -1)) * scale
    if is_causal:
        size = scores.shape[-2:]
        causal = torch.ones(size, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~causal, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, dim=-1)


def _batch_norm(
    mode: Interception,
    input: Tensor,
    running_mean: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    mode.check_batch_norm(running_mean)
    return F.batch_norm(input, running_mean, *args, **kwargs)


def _multi_head_attention(mode: Interception, *args: Any, **kwargs: Any) -> Any:
    """torch's own, whose body calls dropout and attention through the mode."""
    body = inside(F.multi_head_attention_forward)
    with mode:
        return body(*args, **kwargs)


def inside(function: Any) -> Callable[..., Any]:
    """A function of torch that asks no mode whether to replace it as a whole."""
    names = {**function.__globals__, "has_torch_function": lambda arguments: False}
    inside = types.FunctionType(function.__code__, names, function.__name__)
    inside.__defaults__ = function.__defaults__
    inside.__kwdefaults__ = function.__kwdefaults__
    return inside


def _embedding(
    mode: Interception,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Embedding whose padding learns nothing; vmap would see to that in the first model alone."""
    if padding_idx is None:
        return F.embedding(input, weight, None, *args, **kwargs)
    mode.need()
    if not mode.batched:
        return F.embedding(input, weight, padding_idx, *args, **kwargs)
    out = F.embedding(input, weight, None, *args, **kwargs)
    padding = (input == padding_idx % len(weight)).unsqueeze(-1)
    return torch.where(padding, out.detach(), out)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.dropout: _dropout,
    F.dropout1d: _dropout1d,
    F.dropout2d: _dropout_of_channels,
    F.dropout3d: _dropout_of_channels,
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _feature_alpha_dropout,
    F.embedding: _embedding,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head_attention,
    torch.dropout: _elements,
    torch.dropout_: _elements_in_place,
    torch.feature_dropout: _channels_of,
    torch.alpha_dropout: _alpha_dropout,
    torch.feature_alpha_dropout: _feature_alpha_dropout,
}
"""What stands in for the functions of torch that draw; each takes the mode and their arguments."""
