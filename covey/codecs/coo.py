"""The values that are not zero, each with the gap since the last one.

The shortest layout for rows with very few values.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import blocks, gaps, header, numbers
from covey.codecs.blocks import Reader, Sent
from covey.codecs.dense import Dense
from covey.codecs.header import Tag
from covey.errors import DecodeError

_COUNT = 4  # bytes of the number of values sent
_SPARSE = (
    64  # values of a row per byte of its message from which on the row is filled place by place
)


@dataclass(frozen=True)
class Coo:
    """For rows with less than about one value in eight: the values, and the gaps between them.

    Zeros, masks, and when a row is sent dense: as in `Bitmap`.

    >>> message = Coo().encode(torch.tensor([0.0] * 300 + [1.0, 2.0]))
    >>> len(message), Coo().decode(message, limit=302)[0].tolist()[-3:]
    (21, [0.0, 1.0, 2.0])
    """

    values: str = "own"
    tag: ClassVar[Tag] = Tag.COO
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers.check(self.values)

    @property
    def name(self) -> str:
        """coo, coo_f16 or coo_bf16."""
        return "coo" if self.lossless else f"coo_{self.values}"

    @property
    def lossless(self) -> bool:
        """Where the values are sent as they are."""
        return self.values == "own"

    def encode(self, row: Tensor, mask: Tensor | None = None, key: int | None = None) -> bytes:
        """The header, the gaps and their values, or the dense message if that is not longer."""
        return blocks.shortest((Dense(self.values), self), blocks.sent(row, mask, self.values))

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        return blocks.decode((Dense(self.values), self), message, values=self.values, limit=limit)

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Counted from the places of what would be sent."""
        sent = blocks.which(rows, mask, self.values)
        size = numbers.size(self.values, rows.element_size())
        short = header.SIZE + _COUNT + gaps.lengths(sent) + size * blocks.count(sent)
        return torch.minimum(short, Dense(self.values).nbytes(rows, mask))

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> None:
        """Unknown: far places take more bytes than near ones."""

    def roundtrip(
        self, rows: Tensor, mask: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        """Each value as it arrives."""
        return blocks.arriving(rows, mask, self.values)

    def length(self, sent: Sent) -> int:
        """Of one message with gaps."""
        return header.SIZE + _COUNT + sent.gap_length + sent.size * sent.count

    def write(self, sent: Sent) -> bytes:
        """How many are sent, the gaps before them, and their values."""
        places = gaps.write(sent.bits, sent.width, sent.gap_length)
        return blocks.join(
            sent.header(self.tag), sent.count.to_bytes(_COUNT, "little"), places, sent.some_values()
        )

    def read(self, reader: Reader) -> tuple[Tensor, Tensor | None]:
        """The reverse; the bytes that are left for the gaps follow from the number of values."""
        sent = reader.number(_COUNT, "the number of values sent")
        if sent > reader.head.width:
            raise DecodeError(
                f"message with {sent} values, expected at most the {reader.head.width} of its row."
            )
        places = reader.block(
            max(sent, reader.left - sent * reader.value_size), f"the gaps before {sent} values"
        )
        values = reader.values(sent)
        width = reader.head.width
        if width > _SPARSE * len(reader):  # a few bytes may declare a row of any width
            return reader.scatter(gaps.places(places, sent, width), values)
        return reader.spread(gaps.read(places, sent, width), values)
