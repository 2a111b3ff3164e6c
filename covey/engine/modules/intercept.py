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

from covey.engine.modules.dropout import Met, drop, is_site
from covey.engine.modules.norm import BatchNorm
from covey.engine.modules.passing import Pass
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

    def mask(
        self,
        p: float,
        shape: Sequence[int],
        *,
        alpha: bool = False,
    ) -> Tensor | None:
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


class SiteRecorder(Interception):
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

    def mask(
        self,
        p: float,
        shape: Sequence[int],
        *,
        alpha: bool = False,
    ) -> None:
        """Note the site."""
        self.met.append(Met(p, tuple(shape), alpha))


def needs_mode(module: nn.Module) -> bool:
    """Whether a module has layers that must run in a mode even if nothing is dropped.

    Layers of attention have a shortcut of other bits in eval mode, which is not taken in a mode.
    """
    return any(isinstance(layer, _ATTENTION) for layer in module.modules())


def _always(function: str, fix: str) -> str:
    """What to say of a model that drops in eval mode too."""
    return f"the model drops at random in eval mode too; give {function} {fix}."


def _channels(x: Tensor) -> list[int]:
    """The shape of a mask that drops whole channels."""
    ones = [1] * (x.dim() - 2)
    return [*x.shape[:2], *ones]


def _dropping(
    shape: Callable[[Tensor], Sequence[int]] = Tensor.size,
    *,
    default: bool = True,
    in_place: bool = False,
    alpha: bool = False,
) -> Callable[..., Tensor]:
    """Drops the entries that the mode says; `shape` is that of a mask, `default` of `training`."""

    def dropped(
        mode: Interception,
        input: Tensor,
        p: float = 0.5,
        training: bool = default,
        inplace: bool = in_place,
        *,
        train: bool = True,
    ) -> Tensor:
        if p < 0 or p > 1:
            raise ModelError(f"dropout with p = {p}: a probability is at least 0 and below 1.")
        if not (training and train) or not is_site(p):
            return input
        if not mode.drops:
            raise ModelError(_always("F.dropout", "training=self.training"))
        mask = mode.mask(p, shape(input), alpha=alpha)
        if mask is None:
            return input
        out = drop(input, mask, p if alpha else None)
        return input.copy_(out) if inplace else out

    return dropped


_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropping(),
    # Two axes are the channels of one example.
    F.dropout1d: _dropping(lambda x: [len(x), 1] if x.dim() == 2 else _channels(x)),
    F.dropout2d: _dropping(_channels),
    F.dropout3d: _dropping(_channels),
    F.alpha_dropout: _dropping(default=False, alpha=True),
    F.feature_alpha_dropout: _dropping(_channels, default=False, alpha=True),
    torch.dropout: _dropping(),
    torch.dropout_: _dropping(in_place=True),
    torch.feature_dropout: _dropping(_channels),
    torch.alpha_dropout: _dropping(alpha=True),
    torch.feature_alpha_dropout: _dropping(_channels, alpha=True),
}
"""What stands in for the functions of torch that draw; each takes the mode and their arguments."""


def _stands_in_for(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lets a handler take the calls of a function of torch."""

    def registered(handler: Callable[..., Any]) -> Callable[..., Any]:
        _HANDLERS[function] = handler
        return handler

    return registered


@_stands_in_for(F.scaled_dot_product_attention)
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
        settings: Any = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **settings)
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


@_stands_in_for(F.batch_norm)
def _batch_norm(
    mode: Interception,
    input: Tensor,
    running_mean: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    mode.check_batch_norm(running_mean)
    return F.batch_norm(input, running_mean, *args, **kwargs)


@_stands_in_for(F.multi_head_attention_forward)
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


@_stands_in_for(F.embedding)
def _embedding(
    mode: Interception,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Embedding whose padding learns nothing; vmap would see to that in the first model alone."""
    if padding_idx is not None:
        mode.need()
    if padding_idx is None or not mode.batched:
        return F.embedding(input, weight, padding_idx, *args, **kwargs)
    out = F.embedding(input, weight, None, *args, **kwargs)
    padding = (input == padding_idx % len(weight)).unsqueeze(-1)
    return torch.where(padding, out.detach(), out)
