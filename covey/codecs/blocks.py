"""One message, block by block: what is sent of a row, and how it is read.

Every length is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey import native
from covey.codecs import bits, gaps, header, numbers
from covey.codecs.bits import Bytes, Values
from covey.codecs.header import Header, Tag
from covey.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from covey.codecs.dense import Values as Layout

LITTLE_ENDIAN: dict[torch.dtype, np.dtype[np.floating[Any]]] = {
    torch.float32: np.dtype("<f4"),
    torch.float64: np.dtype("<f8"),
}
PATTERNS = {torch.float32: torch.int32, torch.float64: torch.int64}
_LARGE = 1 << 22  # bytes from which on a message is written into large pages


def patterns(rows: Tensor) -> Tensor:
    """The same memory read as integers.

    An integer is 0 exactly where all bits are 0, so that -0.0 counts as a value.
    """
    check_dtype(rows)
    return rows.detach().view(PATTERNS[rows.dtype])


def count(sent: Tensor) -> Tensor:
    """How many of each row are not 0, `[n]` int64."""
    if sent.device.type != "cpu":
        return sent.count_nonzero(dim=1)
    # numpy here is four times as fast as torch, which would make counting as slow as encoding
    return torch.from_numpy(np.count_nonzero(sent.numpy(), axis=1).astype(np.int64, copy=False))


def check_dtype(rows: Tensor) -> None:
    """Refuse what the header has no number for."""
    if rows.dtype not in PATTERNS:
        raise ConfigError(
            f"a codec carries float32 or float64 rows, not {rows.dtype}; convert the row first."
        )


def check_rows(rows: Tensor, mask: Tensor | None, *, ndim: int) -> None:
    """Refuse rows of another shape, and masks that do not say yes or no to each of their values."""
    check_dtype(rows)
    if rows.ndim != ndim:
        wanted = "one row [P]" if ndim == 1 else "rows [n, P]"
        raise ConfigError(f"expected {wanted}, got shape {list(rows.shape)}.")
    if mask is not None and (
        mask.dtype != torch.bool or mask.shape not in (rows.shape, rows.shape[-1:])
    ):
        raise ConfigError(
            f"a mask for {list(rows.shape)} must be bool and as wide, "
            f"got {mask.dtype} {list(mask.shape)}."
        )


def kept(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The rows with zeros outside the mask; the rows themselves without one."""
    return rows if mask is None else rows.masked_fill(~mask, 0)


def arriving(rows: Tensor, mask: Tensor | None, values: str) -> Tensor:
    """What is left of rows [n, P] whose values travel in this format."""
    check_rows(rows, mask, ndim=2)
    return kept(numbers.rounded(rows, values), mask)


def which(rows: Tensor, mask: Tensor | None, values: str) -> Tensor:
    """Not 0 where a value of rows [n, P] is sent by a layout that does not send all."""
    check_rows(rows, mask, ndim=2)
    if mask is None:
        return patterns(numbers.rounded(rows, values))
    return mask.expand(rows.shape)


@dataclass(frozen=True, eq=False)
class Sent:
    """One row to send, and the number format of its values.

    Values outside the mask, if there is a mask, are 0.
    """

    row: Values
    dtype: torch.dtype
    values: str
    mask: Tensor | None

    @cached_property
    def bits(self) -> Bytes:
        """Which values are sent by a layout that does not send all.

        They are the values inside the mask or, without a mask, those that arrive as not 0.
        """
        if self.mask is None:
            return numbers.bits_of(self.row, self.values)
        return bits.of_mask(self.mask.numpy())

    @cached_property
    def count(self) -> int:
        """How many those are."""
        return bits.count(self.bits, self.width)

    @cached_property
    def gap_length(self) -> int:
        """How many bytes the gaps between them take."""
        return gaps.length(self.bits, self.width)

    @property
    def width(self) -> int:
        """How many values the row has."""
        return len(self.row)

    @property
    def size(self) -> int:
        """Bytes of one value on the wire."""
        return numbers.size(self.values, self.row.itemsize)

    def header(self, tag: Tag) -> bytes:
        """The first bytes; `tag` is the layout's without a mask."""
        return Header(
            Tag(tag + (self.mask is not None)),
            self.dtype,
            self.width,
            self.values,
        ).pack()

    def all_values(self) -> NDArray[Any]:
        """Every value as it travels."""
        return numbers.to_wire(self.row, self.values)

    def some_values(self) -> NDArray[Any]:
        """The values under the bits as they travel."""
        return numbers.to_wire(bits.squeeze(self.row, self.bits, self.count), self.values)


def sent(row: Tensor, mask: Tensor | None, values: str) -> Sent:
    """What there is to send of a row; nothing outside the mask, lest it leak."""
    check_rows(row, mask, ndim=1)
    if mask is not None:
        row = row.detach().cpu()
        mask = mask.cpu()
    return Sent(numbers.to_little(kept(row, mask)), row.dtype, values, mask)


def join(*parts: bytes | NDArray[Any]) -> bytes:
    """The parts of a message, one after the other."""
    raw = [
        np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part.view(np.uint8)
        for part in parts
    ]
    size = sum(len(part) for part in raw)
    if size > _LARGE and native.packs():
        return native.join(raw, size)
    return b"".join(part.data for part in raw)


class Reader:
    """Reads the blocks of one message from front to back.

    An incomplete block is a DecodeError.
    """

    def __init__(self, message: bytes, head: Header, *, borrow: bool = False) -> None:
        self.head = head
        self.borrow = borrow
        """Whether a row may lie in the memory of the message."""
        self._message = np.frombuffer(message, np.uint8)
        self._at = header.SIZE

    def __len__(self) -> int:
        """Bytes of the whole message."""
        return len(self._message)

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._message) - self._at

    def block(self, size: int, name: str) -> Bytes:
        """The next `size` bytes; `what` they are, should they not be there."""
        if self.left < size:
            raise DecodeError(f"message ends early: {name} need {size} bytes, found {self.left}.")
        self._at += size
        return self._message[self._at - size : self._at]

    def number(self, size: int, name: str) -> int:
        """The next `size` bytes as one number."""
        return int.from_bytes(self.block(size, name).tobytes(), "little")

    def bits(self) -> Bytes:
        """A bit for each value of the row."""
        width = self.head.width
        packed = self.block(bits.length(width), f"{width} mask bits")
        if width % 8 and packed[-1] >> (width % 8):
            raise DecodeError(
                f"last mask byte is {packed[-1]:#04x}, "
                f"expected only its low {width % 8} bits to be used."
            )
        return packed

    def values(self, count: int) -> Values:
        """The next `count` values, perhaps in the memory of the message."""
        size = self.value_size
        dtype = self.head.dtype
        name = f"{count} values of {dtype}"
        if self.head.values != "own":
            name += f" as {self.head.values}"
        return numbers.from_wire(
            self.block(count * size, name),
            self.head.values,
            LITTLE_ENDIAN[dtype],
        )

    @property
    def value_size(self) -> int:
        """Bytes of one value on the wire."""
        return numbers.size(self.head.values, self.head.dtype.itemsize)

    def spread(self, packed: Bytes, values: Values) -> tuple[Tensor, Tensor | None]:
        """The row with these values under the bits, and the bits as its mask if it has one."""
        return numbers.to_tensor(bits.spread(values, packed, self.head.width)), self.mask(packed)

    def scatter(self, places: NDArray[np.int64], values: Values) -> tuple[Tensor, Tensor | None]:
        """The row with these values at these places, and the places as its mask if it has one.

        Only the pages of memory that hold a value are written: however wide the row, what it
        occupies until somebody writes to it grows with the number of values.
        """
        row = _zeros(self.head.width, values.dtype)
        row[places] = values
        if not self.head.masked:
            return numbers.to_tensor(row), None
        mask = _zeros(self.head.width, np.dtype(np.bool_))
        mask[places] = True
        return numbers.to_tensor(row), torch.from_numpy(mask)

    def mask(self, packed: Bytes) -> Tensor | None:
        """The bits as a mask, if the message has one."""
        if self.head.masked:
            return torch.from_numpy(bits.unpack(packed, self.head.width))
        return None

    def end(self) -> None:
        """Refuse bytes after the last block."""
        if self.left:
            raise DecodeError(
                f"message of {len(self._message)} bytes, expected it to end after {self._at}."
            )


def _zeros(width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros that the system hands out when they are written."""
    try:
        return np.zeros(width, dtype)
    except MemoryError:
        text = f"a row of {width} values of {dtype} does not fit in memory; lower the limit."
        raise DecodeError(text) from None


def shortest(layouts: Sequence[Layout], sent: Sent) -> bytes:
    """The message in the layout that makes it shortest, the first of them if there are several."""
    return min(layouts, key=lambda layout: layout.length(sent)).write(sent)


def decode(
    layouts: Sequence[Layout], message: bytes, *, values: str, limit: int, borrow: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The row in a message of one of these layouts, and its mask if it has one.

    With `borrow` it may lie in the memory of the message, and must not be written.
    """
    by_tag = {Tag(layout.tag + masked): layout for layout in layouts for masked in (0, 1)}
    head = header.read(message, tags=by_tag, values=values, limit=limit)
    reader = Reader(message, head, borrow=borrow)
    row, mask = by_tag[head.tag].read(reader)
    reader.end()
    return row, mask
