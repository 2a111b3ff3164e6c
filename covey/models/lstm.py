"""A network of LSTM layers over token ids, for the next token or a class of the whole sequence."""

from __future__ import annotations

from torch import nn

from covey.models.shared.pooling import Pool, check
from covey.models.shared.recurrent import Recurrent


def lstm(
    tokens: int,
    outputs: int,
    *,
    width: int = 32,
    hidden: int = 64,
    layers: int = 1,
    dropout: float = 0.0,
    padding: int | None = None,
    by_position: bool = True,
    pool: Pool = "last",
) -> nn.Module:
    """A network that embeds token ids and passes them through LSTM layers and a linear one.

    `width` is that of the embedding, `hidden` that of the LSTM layers. Outputs are per position, or
    else of the `pool` of the positions. `padding` is an id whose embedding stays zero.

    >>> import torch
    >>> lstm(30, 30)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 30])
    """
    check("lstm", pool, width=width, hidden=hidden, layers=layers)
    return Recurrent(
        nn.LSTM(width, hidden, num_layers=layers, batch_first=True),
        tokens,
        outputs,
        dropout=dropout,
        padding=padding,
        by_position=by_position,
        pool=pool,
    )
