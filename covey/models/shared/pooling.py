"""One vector for a sequence: that of its last token, or the mean over its tokens."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from covey.errors import ModelError

Pool = Literal["last", "mean"]


def pooled(hidden: Tensor, x: Tensor, pool: Pool, padding: int | None) -> Tensor:
    """The vectors [B, T, D] of sequences [B, T] as one per sequence, [B, D].

    Tokens that are `padding` do not count. A sequence of padding alone is zero.

    >>> import torch
    >>> hidden = torch.tensor([[[1.0], [3.0], [9.0]]])
    >>> x = torch.tensor([[4, 4, 0]])
    >>> pooled(hidden, x, "last", 0).item(), pooled(hidden, x, "mean", 0).item()
    (3.0, 2.0)
    """
    if padding is None:
        return hidden[:, -1] if pool == "last" else hidden.mean(1)
    there = (x != padding).to(hidden.dtype).unsqueeze(2)
    if pool == "mean":
        total = (hidden * there).sum(1)
        return total / there.sum(1).clamp(min=1)
    # The last token is the one with no token after it.
    after = there.flip(1).cumsum(1).flip(1)
    last = there * (after == 1)
    return (hidden * last).sum(1)


def check(name: str, pool: str, **sizes: int) -> None:
    """Refuse sizes below 1 and another way of pooling."""
    for size_name, size in sizes.items():
        if size < 1:
            raise ModelError(f"{name}(..., {size_name}={size}): give 1 or more.")
    if pool not in ("last", "mean"):
        raise ModelError(f"{name}(..., pool={pool!r}): give 'last' or 'mean'.")
