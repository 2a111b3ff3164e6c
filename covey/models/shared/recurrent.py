"""What LSTM and GRU models share: an embedding, recurrent layers and a linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from covey.models.shared.pooling import Pool, check, pooled


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
        *,
        dropout: float,
        padding: int | None,
        by_position: bool,
        pool: Pool,
    ) -> None:
        super().__init__()
        name = type(layers).__name__.lower()
        check(name, pool, tokens=tokens, outputs=outputs)
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
