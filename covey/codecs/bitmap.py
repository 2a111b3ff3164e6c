"""One bit per value, and only the values that are not zero: sparse rows get short and no bit is lost."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import header
from covey.codecs.blocks import Reader, bit_bytes, check_rows, count, pack_bits, patterns, to_bits, to_values
from covey.codecs.dense import Dense
from covey.codecs.header import Header, Tag


@dataclass(frozen=True)
class Bitmap:
    """Lossless: "zero" is the bit pattern of +0.0, so -0.0 travels. A row is sent dense where that is not longer.

    With a mask the bits are the mask, whatever the values: the receiver averages over those who kept a weight, and a
    kept weight may be 0.

    >>> message = Bitmap().encode(torch.tensor([0.0] * 30 + [1.0, 2.0]))
    >>> len(message), Bitmap().decode(message, limit=32)[0].tolist()[-3:]
    (18, [0.0, 1.0, 2.0])
    """

    name: ClassVar[str] = "bitmap"

    def encode(self, row: Tensor, mask: Tensor | None = None) -> bytes:
        """The header, the bits and the values under them, or the dense message if that is not longer."""
        check_rows(row, mask, ndim=1)
        tag, sent = (Tag.BITMAP, patterns(row) != 0) if mask is None else (Tag.BITMAP_MASKED, mask)
        bits = to_bits(sent)
        message = Header(tag, row.dtype, len(row)).pack() + pack_bits(bits) + to_values(row)[bits].tobytes()
        if mask is None and len(message) >= header.SIZE + row.element_size() * len(row):
            return Dense().encode(row)
        return message

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        head = header.read(message, tags=(Tag.DENSE, Tag.BITMAP, Tag.BITMAP_MASKED), limit=limit)
        if head.tag == Tag.DENSE:
            return Dense().decode(message, limit=limit)
        reader = Reader(message)
        sent = torch.from_numpy(reader.bits(head.width))
        values = torch.from_numpy(reader.values(int(sent.count_nonzero()), head.dtype))
        reader.end()
        row = torch.zeros(head.width, dtype=head.dtype)
        patterns(row)[sent] = patterns(values)  # as integers: torch quiets a signalling NaN that it fills in alone
        return row, sent if head.tag == Tag.BITMAP_MASKED else None

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Counted from the bits that would be set."""
        check_rows(rows, mask, ndim=2)
        sent = count(patterns(rows) if mask is None else mask.expand(rows.shape))
        return self.lengths(sent, width=rows.shape[1], size=rows.element_size(), masked=mask is not None)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """A bit for each value and the values sent, or all values where that is not longer."""
        short = header.SIZE + bit_bytes(width) + size * sent
        return short if masked else short.clamp(max=header.SIZE + size * width)

    def roundtrip(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows
