"""A small causal transformer over token ids, for the next token or a class of the whole sequence.

It is a decoder with normalisation before each sublayer (Radford et al., 2019) and the fixed
positions of Vaswani et al. (2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from covey.errors import ModelError
from covey.models.shared.pooling import Pool, check, pooled


def transformer(
    tokens: int,
    outputs: int,
    *,
    shape: Sequence[int] = (64,),
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    feed: int = 4,
    dropout: float = 0.0,
    padding: int | None = None,
    by_position: bool = True,
    pool: Pool = "last",
) -> nn.Module:
    """A causal transformer for sequences of up to shape[0] tokens.

    A block's second sublayer is `feed` times as wide as the model. Outputs are per position, or
    else of the `pool` of the positions. `padding` is an id whose embedding stays zero.

    >>> transformer(30, 30)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 30])
    """
    check("transformer", pool, tokens=tokens, outputs=outputs, layers=layers, feed=feed)
    if heads < 1 or width < 2 or width % heads or width % 2:
        raise ModelError(
            f"transformer(..., width={width}, heads={heads}): "
            "give an even width that the heads divide."
        )
    blocks = [Block(width, heads, feed, dropout) for _ in range(layers)]
    return Transformer(
        nn.Embedding(tokens, width, padding_idx=padding),
        positions(shape[0], width),
        nn.Sequential(*blocks),
        nn.Linear(width, outputs),
        dropout=dropout,
        by_position=by_position,
        pool=pool,
    )


def positions(length: int, width: int) -> Tensor:
    """Sines and cosines of every position, [length, width]."""
    position = torch.arange(length).unsqueeze(1)
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = position * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Transformer(nn.Module):
    """An embedding with positions, blocks of attention, and a linear layer."""

    positions: Tensor

    def __init__(
        self,
        embedding: nn.Embedding,
        positions: Tensor,
        blocks: nn.Sequential,
        head: nn.Linear,
        *,
        dropout: float,
        by_position: bool,
        pool: Pool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.register_buffer("positions", positions)
        self.drop = nn.Dropout(dropout)
        self.blocks = blocks
        self.norm = nn.LayerNorm(head.in_features)
        self.head = head
        self.by_position = by_position
        self.pool: Pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """The scores of every class."""
        length = x.shape[1]
        hidden = self.embedding(x) + self.positions[:length]
        hidden = self.blocks(self.drop(hidden))
        hidden = self.norm(hidden)
        if not self.by_position:
            hidden = pooled(hidden, x, self.pool, self.embedding.padding_idx)
        out: Tensor = self.head(hidden)
        return out


class Block(nn.Module):
    """Attention and a feed-forward layer, each on normalised values and added to its inputs."""

    def __init__(self, width: int, heads: int, feed: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.drop_attention = nn.Dropout(dropout)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, feed * width),
            nn.GELU(),
            nn.Linear(feed * width, width),
        )
        self.drop_feed = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The values after both sublayers."""
        x = x + self.drop_attention(self.attention(self.norm_attention(x)))
        out: Tensor = x + self.drop_feed(self.feed(self.norm_feed(x)))
        return out


class Attention(nn.Module):
    """Causal attention of several heads.

    It is written as products and a softmax, which run for many models at once and have a second
    derivative.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The values that each position attends to, itself and those before it."""
        length = x.shape[1]
        by_head = torch.unflatten(self.inputs(x), 2, (3, self.heads, -1))
        # each [B, heads, T, width / heads]
        query, key, value = (part.transpose(1, 2) for part in by_head.unbind(2))
        scale = query.shape[-1] ** -0.5
        scores = (query * scale) @ key.transpose(2, 3)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
        mixed = scores.softmax(dim=-1) @ value
        out: Tensor = self.outputs(mixed.transpose(1, 2).flatten(2))
        return out
