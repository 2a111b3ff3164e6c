"""One bit per value, and only the values that are not zero: sparse rows get short."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import bits, blocks, header, numbers
from covey.codecs.blocks import Reader, Sent
from covey.codecs.dense import Dense, Sparse
from covey.codecs.header import Tag


@dataclass(frozen=True)
class Bitmap(Sparse):
    """For rows with some zeros: one bit per value, then the values that are not zero.

    With a mask the bits are the mask. `Sparse` says what is zero, and when a row is sent dense.

    >>> message = Bitmap().encode(torch.tensor([0.0] * 30 + [1.0, 2.0]))
    >>> len(message), Bitmap().decode(message, limit=32)[0].tolist()[-3:]
    (18, [0.0, 1.0, 2.0])
    """

    layout: ClassVar[str] = "bitmap"
    tag: ClassVar[Tag] = Tag.BITMAP

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Counted from the bits that would be set."""
        sent = blocks.count(blocks.which(rows, mask, self.values))
        width = rows.shape[1]
        return self.lengths(sent, width=width, size=rows.element_size(), masked=mask is not None)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """A bit for each value and the values sent, or all values where that is not longer."""
        short = header.SIZE + bits.length(width) + numbers.size(self.values, size) * sent
        dense = Dense(self.values).lengths(sent, width=width, size=size, masked=masked)
        return torch.minimum(short, dense)

    def length(self, sent: Sent) -> int:
        """Of one message with bits."""
        return header.SIZE + len(sent.bits) + sent.size * sent.count

    def write(self, sent: Sent) -> bytes:
        """The bits and the values under them."""
        return blocks.join(sent.header(self.tag), sent.bits, sent.some_values())

    def read(self, reader: Reader) -> tuple[Tensor, Tensor | None]:
        """The reverse of `write`."""
        packed = reader.bits()
        sent = bits.count(packed, reader.head.width)
        return reader.spread(packed, reader.values(sent))


CODECS = (Bitmap(), Bitmap("f16"), Bitmap("bf16"))
