"""The values that are not zero, each with the gap since the last one.

The shortest layout for rows with very few values.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.codecs import blocks, gaps, header, numbers
from covey.codecs.blocks import Reader, Sent
from covey.codecs.dense import Dense, Sparse
from covey.codecs.header import Tag
from covey.errors import DecodeError

_COUNT = 4  # bytes of the number of values sent
_SPARSE = 64  # from so many values per byte of a message, a row is filled value by value


@dataclass(frozen=True)
class Coo(Sparse):
    """For rows with less than about one value in eight: the values, and the gaps between them.

    `Sparse` says what is zero, what a mask does, and when a row is sent dense.

    >>> message = Coo().encode(torch.tensor([0.0] * 300 + [1.0, 2.0]))
    >>> len(message), Coo().decode(message, limit=302)[0].tolist()[-3:]
    (21, [0.0, 1.0, 2.0])
    """

    layout: ClassVar[str] = "coo"
    tag: ClassVar[Tag] = Tag.COO

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Counted from the positions of the values that would be sent."""
        sent = blocks.which(rows, mask, self.values)
        size = numbers.size(self.values, rows.element_size())
        short = header.SIZE + _COUNT + gaps.lengths(sent) + size * blocks.count(sent)
        return torch.minimum(short, Dense(self.values).nbytes(rows, mask))

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> None:
        """Unknown: a wide gap takes more bytes than a narrow one."""

    def length(self, sent: Sent) -> int:
        """Of one message with gaps."""
        return header.SIZE + _COUNT + sent.gap_length + sent.size * sent.count

    def write(self, sent: Sent) -> bytes:
        """The number of values sent, the gaps before them, and the values."""
        count = sent.count.to_bytes(_COUNT, "little")
        distances = gaps.write(sent.bits, sent.width, sent.gap_length)
        return blocks.join(sent.header(self.tag), count, distances, sent.some_values())

    def read(self, reader: Reader) -> tuple[Tensor, Tensor | None]:
        """The reverse of `write`; the length of the gaps follows from the number of values."""
        sent = reader.number(_COUNT, "the number of values sent")
        width = reader.head.width
        if sent > width:
            raise DecodeError(
                f"message with {sent} values, expected at most the {width} of its row."
            )
        length = max(sent, reader.left - sent * reader.value_size)
        distances = reader.block(length, f"the gaps before {sent} values")
        values = reader.values(sent)
        if width > _SPARSE * len(reader):  # a few bytes may declare a row of any width
            return reader.scatter(gaps.places(distances, sent, width), values)
        return reader.spread(gaps.read(distances, sent, width), values)


CODECS = (Coo(), Coo("f16"), Coo("bf16"))
