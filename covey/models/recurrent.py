"""Networks of LSTM or GRU layers over token ids: an embedding, these layers and a linear one."""

from __future__ import annotations

from torch import Tensor, nn

from covey.models.pooling import Pool, check, pooled


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
    """A network of LSTM layers over token ids, for the next token or a class of the whole sequence.

    It embeds token ids and passes them through the LSTM layers and a linear one. `width` is that of
    the embedding, `hidden` that of the LSTM layers. Outputs are per position, or else of the `pool`
    of the positions. `padding` is an id whose embedding stays zero.

    >>> import torch
    >>> lstm(30, 30)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 30])
    """
    check("lstm", pool, width=width, hidden=hidden, layers=layers, tokens=tokens, outputs=outputs)
    recurrent = nn.LSTM(width, hidden, num_layers=layers, batch_first=True)
    return Recurrent(recurrent, tokens, outputs, dropout, padding, by_position, pool)


def gru(
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
    """A network of GRU layers over token ids, for the next token or a class of the whole sequence.

    All arguments are those of `lstm`.

    >>> import torch
    >>> gru(30, 30)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 30])
    """
    check("gru", pool, width=width, hidden=hidden, layers=layers, tokens=tokens, outputs=outputs)
    recurrent = nn.GRU(width, hidden, num_layers=layers, batch_first=True)
    return Recurrent(recurrent, tokens, outputs, dropout, padding, by_position, pool)


class Recurrent(nn.Module):
    """A recurrent network over token ids [B, T].

    Outputs are per position, [B, T, outputs], or per sequence, [B, outputs]. The embedding of the
    id `padding` is zero and stays so.
    """

    def __init__(
        self,
        layers: nn.RNNBase,
        tokens: int,
        outputs: int,
        dropout: float,
        padding: int | None,
        by_position: bool,
        pool: Pool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, layers.input_size, padding_idx=padding)
        self.drop_inputs = nn.Dropout(dropout)
        self.layers = layers
        self.drop_outputs = nn.Dropout(dropout)
        self.head = nn.Linear(layers.hidden_size, outputs)
        self.padding = padding
        self.by_position = by_position
        self.pool: Pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """The scores of every class."""
        inputs = self.drop_inputs(self.embedding(x))
        hidden, _ = self.layers(inputs)
        if not self.by_position:
            hidden = pooled(hidden, x, self.pool, self.padding)
        out: Tensor = self.head(self.drop_outputs(hidden))
        return out
