"""Every value of the row, as it lies in memory or in 16 bits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import bits, blocks, header, numbers
from covey.codecs.blocks import Reader, Sent
from covey.codecs.header import Tag
from covey.codecs.numbers import Format
from covey.errors import DecodeError
from covey.fields import check


@dataclass(frozen=True)
class Dense:
    """All values: a message of one size, whatever the values are.

    A mask is sent beside the row and saves nothing. Lossless with its own `values`.

    >>> message = Dense().encode(torch.tensor([1.0, 0.0, 2.0]))
    >>> len(message), Dense().decode(message, limit=3)[0].tolist()
    (18, [1.0, 0.0, 2.0])
    """

    values: Format = "own"  # format of the values on the wire
    tag: ClassVar[Tag] = Tag.DENSE
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """dense, dense_f16 or dense_bf16."""
        return "dense" if self.lossless else f"dense_{self.values}"

    @property
    def lossless(self) -> bool:
        """Where the values are sent as they are."""
        return self.values == "own"

    def encode(self, row: Tensor, mask: Tensor | None = None, key: int | None = None) -> bytes:
        """The header and all values.

        Values outside the mask are sent as zeros, so that they do not leak.
        """
        return self.write(blocks.sent(row, mask, self.values))

    def decode(
        self, message: bytes, *, limit: int, borrow: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent.

        With `borrow` the row may lie in the memory of the message, and must not be written.
        """
        return blocks.decode([self], message, values=self.values, limit=limit, borrow=borrow)

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same for every row."""
        blocks.check_rows(rows, mask, ndim=2)
        sent = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        width = rows.shape[1]
        return self.lengths(sent, width=width, size=rows.element_size(), masked=mask is not None)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """The same whatever is sent."""
        return torch.full_like(sent, _length(width, numbers.size(self.values, size), masked))

    def roundtrip(
        self,
        rows: Tensor,
        mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Each value as it arrives."""
        return blocks.arriving(rows, mask, self.values)

    def length(self, sent: Sent) -> int:
        """Of one message."""
        return _length(sent.width, sent.size, sent.mask is not None)

    def write(self, sent: Sent) -> bytes:
        """The mask if there is one, and all values."""
        mask = b"" if sent.mask is None else sent.bits
        return blocks.join(sent.header(self.tag), mask, sent.all_values())

    def read(self, reader: Reader) -> tuple[Tensor, Tensor | None]:
        """The reverse."""
        packed = reader.bits() if reader.head.masked else None
        values = reader.values(reader.head.width)
        if packed is None and reader.borrow:
            return numbers.borrowed(values), None
        if not values.flags.owndata:
            values = values.copy()
        row = numbers.to_tensor(values)
        if packed is None:
            return row, None
        mask = torch.from_numpy(bits.unpack(packed, reader.head.width))
        if extra := int(blocks.patterns(row)[~mask].count_nonzero()):
            raise DecodeError(f"{extra} values outside the mask are not 0, expected none.")
        return row, mask


def _length(width: int, size: int, masked: bool) -> int:
    length = header.SIZE + size * width
    if masked:
        length += bits.length(width)
    return length


CODECS = (Dense(), Dense("f16"), Dense("bf16"))
