"""A link between two tiers: what it does to rows that cross it, and what that costs in bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey import smooth_l1
from covey.codecs import CODECS, Codec
from covey.meter import Meter, Traffic
from covey.replies import Exact, Masked, Message


@dataclass(frozen=True)
class Link:
    """One link: the codec of its model rows, and the meter that counts what is really encoded."""

    name: str
    codec: Codec
    meter: Meter

    def send(self, message: Message, *, copies: Tensor, cut: float | None, direction: str, lane: str) -> Message:
        """What the receiver gets; `copies` [n] says to how many receivers each row goes."""
        if message is None:
            return None
        if isinstance(message, Exact):
            sizes = CODECS["dense"].nbytes(message.rows)
            self._count(sizes, sizes, message.rows[:, :0], copies, direction, lane)
            return message
        rows, mask = (message.rows, message.mask) if isinstance(message, Masked) else (message, None)
        rows = self.codec.roundtrip(smooth_l1.cut(rows, cut))
        if mask is not None:
            rows = rows.masked_fill(~mask, 0)
        sizes, dense = self.codec.nbytes(rows, mask), CODECS["dense"].nbytes(rows, mask)
        self._count(sizes, dense, rows if mask is None else mask, copies, direction, lane)
        return rows if mask is None else Masked(rows, mask)

    def _count(self, sizes: Tensor, dense: Tensor, values: Tensor, copies: Tensor, direction: str, lane: str) -> None:
        def total(numbers: Tensor) -> int:
            return int((numbers.cpu() * copies).sum())

        traffic = Traffic(
            bytes=total(sizes),
            messages=int(copies.sum()),
            values=values.shape[1] * int(copies.sum()),
            nonzeros=total(_nonzeros(values)) if values.shape[1] else 0,
            dense=total(dense),
        )
        self.meter.count(self.name, direction, lane, traffic)


def _nonzeros(values: Tensor) -> Tensor:
    """[n]; numpy counts several times faster than torch on a CPU."""
    if values.is_cuda:
        return torch.count_nonzero(values, dim=1)
    return torch.from_numpy(np.count_nonzero(values.numpy(), axis=1))
