"""Every value of the row, as it lies in memory or in 16 bits.

`Sparse` is what the codecs share that send only some values, or a dense message if that is shorter.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
class Values(ABC):
    """A codec that sends values of a row in a number format; lossless in the row's own.

    It is also a layout: a way to write one row after the header, and to read it.
    """

    values: Format = "own"  # format of the values on the wire
    layout: ClassVar[str]
    tag: ClassVar[Tag]  # number without a mask; the next one is that with a mask
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """The layout, and the number format of the values if it is not the row's own."""
        return self.layout if self.lossless else f"{self.layout}_{self.values}"

    @property
    def lossless(self) -> bool:
        """Where the values are sent as they are."""
        return self.values == "own"

    @property
    def layouts(self) -> "Sequence[Values]":
        """Those of its messages; the first wins a tie."""
        return (self,)

    def encode(
        self,
        row: Tensor,
        mask: Tensor | None = None,
        key: int | None = None,
    ) -> bytes:
        """The shortest message; values outside the mask are not told."""
        return blocks.shortest(self.layouts, blocks.sent(row, mask, self.values))

    def decode(
        self, message: bytes, *, limit: int, borrow: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent.

        With `borrow` a dense row may lie in the memory of the message, and must not be written.
        """
        return blocks.decode(self.layouts, message, values=self.values, limit=limit, borrow=borrow)

    def roundtrip(
        self,
        rows: Tensor,
        mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Each value as it arrives."""
        return blocks.arriving(rows, mask, self.values)

    @abstractmethod
    def length(self, sent: Sent) -> int:
        """The length of a message in this layout."""

    @abstractmethod
    def write(self, sent: Sent) -> bytes:
        """The message in this layout."""

    @abstractmethod
    def read(self, reader: Reader) -> tuple[Tensor, Tensor | None]:
        """The row of a message in this layout, and its mask if one was sent."""


@dataclass(frozen=True)
class Dense(Values):
    """All values: a message of one size, whatever the values are.

    A mask is sent beside the row and saves nothing: values outside it are sent as zeros.

    >>> message = Dense().encode(torch.tensor([1.0, 0.0, 2.0]))
    >>> len(message), Dense().decode(message, limit=3)[0].tolist()
    (18, [1.0, 0.0, 2.0])
    """

    layout: ClassVar[str] = "dense"
    tag: ClassVar[Tag] = Tag.DENSE

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same for every row."""
        blocks.check_rows(rows, mask, ndim=2)
        sent = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        width = rows.shape[1]
        return self.lengths(sent, width=width, size=rows.element_size(), masked=mask is not None)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """The same whatever is sent."""
        return torch.full_like(sent, _length(width, numbers.size(self.values, size), masked))

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


@dataclass(frozen=True)
class Sparse(Values):
    """A layout of the values that are not zero, beside the dense layout.

    "Zero" is the bit pattern of +0.0, so that -0.0 is sent. With a mask the values inside the mask
    are sent, whatever they are: the receiver averages over the senders that kept a weight, and a
    kept weight may be 0. A row is sent dense where that is not longer.
    """

    @property
    def layouts(self) -> "Sequence[Values]":
        """The dense layout, which wins a tie, and this one."""
        return Dense(self.values), self


CODECS = (Dense(), Dense("f16"), Dense("bf16"))
