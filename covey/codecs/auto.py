"""For each row the shortest of the lossless layouts: dense, bitmap or coo."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import blocks
from covey.codecs.bitmap import Bitmap
from covey.codecs.coo import Coo
from covey.codecs.dense import Dense

_LAYOUTS = (Dense(), Bitmap(), Coo())


@dataclass(frozen=True)
class Auto:
    """A codec whose messages are never longer than those of dense, bitmap or coo.

    For rows whose sparsity is unknown, or changes in training.

    >>> [len(Auto().encode(torch.arange(800.0) % every)) for every in (1, 2, 100)]
    [10, 1706, 3206]
    """

    name: ClassVar[str] = "auto"
    lossless: ClassVar[bool] = True
    draws: ClassVar[bool] = False

    def encode(
        self,
        row: Tensor,
        mask: Tensor | None = None,
        key: int | None = None,
    ) -> bytes:
        """The shortest message, in the order of the header's tags where several are."""
        return blocks.shortest(_LAYOUTS, blocks.sent(row, mask, "own"))

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        return blocks.decode(_LAYOUTS, message, values="own", limit=limit)

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """That of the shortest."""
        return torch.stack([layout.nbytes(rows, mask) for layout in _LAYOUTS]).amin(dim=0)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> None:
        """Unknown, as that of `Coo` is."""

    def roundtrip(
        self,
        rows: Tensor,
        mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Each value as it is."""
        return blocks.arriving(rows, mask, "own")


CODECS = (Auto(),)
