"""What the sparse codecs share: only some values of a row are sent, or all if that is shorter."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from covey.codecs import blocks
from covey.codecs.blocks import Layout, Reader, Sent
from covey.codecs.dense import Dense
from covey.codecs.header import Tag
from covey.codecs.numbers import Format
from covey.fields import check


@dataclass(frozen=True)
class Sparse(ABC):
    """A layout of the values that are not zero, beside the dense layout.

    "Zero" is the bit pattern of +0.0, so that -0.0 is sent. With a mask the values inside the mask
    are sent, whatever they are: the receiver averages over the senders that kept a weight, and a
    kept weight may be 0. A row is sent dense where that is not longer. Lossless with its own
    `values`.
    """

    values: Format = "own"  # format of the values on the wire
    layout: ClassVar[str]
    tag: ClassVar[Tag]
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """The layout, and the number format of the values if it is not the row's own."""
        return self.layout if self.lossless else f"{self.layout}_{self.values}"

    @property
    def lossless(self) -> bool:
        """Whether the values are sent as they are."""
        return self.values == "own"

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """The dense layout, which wins a tie, and this one."""
        return Dense(self.values), self

    def encode(self, row: Tensor, mask: Tensor | None = None, key: int | None = None) -> bytes:
        """The shorter of the two messages, the dense one if they are equally long."""
        return blocks.shortest(self.layouts, blocks.sent(row, mask, self.values))

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        return blocks.decode(self.layouts, message, values=self.values, limit=limit)

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
