"""One bit per value, and only the values that are not zero: sparse rows get short."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import bits, blocks, header, numbers
from covey.codecs.blocks import Reader, Sent
from covey.codecs.dense import Dense
from covey.codecs.header import Tag


@dataclass(frozen=True)
class Bitmap:
    """For rows with some zeros: one bit per value, then the values that are not zero.

    "Zero" is the bit pattern of +0.0, so that -0.0 is sent. A row is sent dense where that is not
    longer. With a mask the bits are the mask, whatever the values: the receiver averages over those
    who kept a weight, and a kept weight may be 0. Lossless with its own `values`.

    >>> message = Bitmap().encode(torch.tensor([0.0] * 30 + [1.0, 2.0]))
    >>> len(message), Bitmap().decode(message, limit=32)[0].tolist()[-3:]
    (18, [0.0, 1.0, 2.0])
    """

    values: str = "own"
    tag: ClassVar[Tag] = Tag.BITMAP
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers.check(self.values)

    @property
    def name(self) -> str:
        """bitmap, bitmap_f16 or bitmap_bf16."""
        return "bitmap" if self.lossless else f"bitmap_{self.values}"

    @property
    def lossless(self) -> bool:
        """Where the values are sent as they are."""
        return self.values == "own"

    def encode(self, row: Tensor, mask: Tensor | None = None, key: int | None = None) -> bytes:
        """The header, the bits and their values, or the dense message if that is not longer."""
        return blocks.shortest((Dense(self.values), self), blocks.sent(row, mask, self.values))

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        return blocks.decode((Dense(self.values), self), message, values=self.values, limit=limit)

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Counted from the bits that would be set."""
        sent = blocks.count(blocks.which(rows, mask, self.values))
        return self.lengths(
            sent, width=rows.shape[1], size=rows.element_size(), masked=mask is not None
        )

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """A bit for each value and the values sent, or all values where that is not longer."""
        short = header.SIZE + bits.length(width) + numbers.size(self.values, size) * sent
        return torch.minimum(
            short, Dense(self.values).lengths(sent, width=width, size=size, masked=masked)
        )

    def roundtrip(
        self, rows: Tensor, mask: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        """Each value as it arrives."""
        return blocks.arriving(rows, mask, self.values)

    def length(self, sent: Sent) -> int:
        """Of one message with bits."""
        return header.SIZE + len(sent.bits) + sent.size * sent.count

    def write(self, sent: Sent) -> bytes:
        """The bits and the values under them."""
        return blocks.join(sent.header(self.tag), sent.bits, sent.some_values())

    def read(self, reader: Reader) -> tuple[Tensor, Tensor | None]:
        """The reverse."""
        packed = reader.bits()
        return reader.spread(packed, reader.values(bits.count(packed, reader.head.width)))
