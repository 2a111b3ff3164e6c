"""Every value of the row, as it lies in memory."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import header
from covey.codecs.blocks import Reader, bit_bytes, check_rows, pack_bits, patterns, to_bits, to_values
from covey.codecs.header import Header, Tag
from covey.errors import DecodeError


@dataclass(frozen=True)
class Dense:
    """Lossless, and of one size whatever the values are: a mask is sent beside the row and saves nothing.

    >>> message = Dense().encode(torch.tensor([1.0, 0.0, 2.0]))
    >>> len(message), Dense().decode(message, limit=3)[0].tolist()
    (18, [1.0, 0.0, 2.0])
    """

    name: ClassVar[str] = "dense"

    def encode(self, row: Tensor, mask: Tensor | None = None) -> bytes:
        """The header and all values; zeros outside the mask, so that nothing leaks that was not to be sent."""
        check_rows(row, mask, ndim=1)
        if mask is None:
            return Header(Tag.DENSE, row.dtype, len(row)).pack() + to_values(row).tobytes()
        kept = row.cpu().masked_fill(~mask.cpu(), 0)
        first = Header(Tag.DENSE_MASKED, row.dtype, len(row)).pack()
        return first + pack_bits(to_bits(mask)) + to_values(kept).tobytes()

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        head = header.read(message, tags=(Tag.DENSE, Tag.DENSE_MASKED), limit=limit)
        reader = Reader(message)
        mask = None if head.tag == Tag.DENSE else torch.from_numpy(reader.bits(head.width))
        row = torch.from_numpy(reader.values(head.width, head.dtype))
        reader.end()
        if mask is not None and (extra := int(patterns(row)[~mask].count_nonzero())):
            raise DecodeError(f"{extra} values outside the mask are not 0, expected none.")
        return row, mask

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same for every row."""
        check_rows(rows, mask, ndim=2)
        sent = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return self.lengths(sent, width=rows.shape[1], size=rows.element_size(), masked=mask is not None)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """The same whatever is sent."""
        return torch.full_like(sent, header.SIZE + size * width + (bit_bytes(width) if masked else 0))

    def roundtrip(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows
