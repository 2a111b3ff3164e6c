"""A message on a link: the bytes of each row, and the facts that every row shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from covey.codecs.header import TYPES, WIDEST
from covey.errors import DecodeError
from covey.kernel.replies import Exact, Masked, Message, rows_of

Kind = Literal["nothing", "rows", "masked", "exact"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Schema:
    """What kind of message a program sends: whether rows have masks, their width and type.

    It does not depend on who sends, so a receiver that has seen one message, or a rehearsal on no
    rows, can refuse every other that does not look like it.

    >>> Schema.of(torch.zeros(2, 3))
    Schema(kind='rows', width=3, dtype=torch.float32)
    """

    kind: Kind
    width: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            kinds = ", ".join(KINDS)
            raise DecodeError(f"a message of kind {self.kind!r}, expected one of {kinds}.")
        if self.dtype not in TYPES:
            raise DecodeError(f"a message of {self.dtype}, but links carry float32 and float64.")
        if type(self.width) is not int or not 0 <= self.width <= WIDEST:
            raise DecodeError(f"a message of rows {self.width!r} wide, expected 0 to {WIDEST}.")

    @classmethod
    def of(cls, message: Message) -> Schema:
        """The schema of a message."""
        rows = rows_of(message)
        if rows is None:
            return NOTHING
        kind: Kind = "rows"
        if isinstance(message, Masked):
            kind = "masked"
        elif isinstance(message, Exact):
            kind = "exact"
        return cls(kind, rows.shape[1], rows.dtype)

    def check_row(self, row: Tensor, mask: Tensor | None) -> None:
        """Refuse a decoded row that is not of this schema."""
        if row.dtype != self.dtype or len(row) != self.width:
            have = f"{len(row)} values of {row.dtype}"
            raise DecodeError(f"a row of {have}, expected {self.width} of {self.dtype}.")
        if (mask is not None) != (self.kind == "masked"):
            have = "with"
            if mask is None:
                have = "without"
            raise DecodeError(f"a row {have} a mask in a message of kind {self.kind!r}.")

    def __str__(self) -> str:
        """In words, for an error message."""
        if self.kind == "nothing":
            return "nothing"
        return f"{self.kind}, {self.width} of {self.dtype}"


NOTHING = Schema("nothing", 0, torch.float32)
"""The schema of None: a program that answers nothing."""


@dataclass(frozen=True, eq=False)
class Packed:
    """One encoded message per row, and what all of them share.

    `sent` says how many values each row sends, for the meter of the sender; the receiver needs
    the schema and the messages only.
    """

    schema: Schema
    messages: tuple[bytes, ...]
    sent: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.messages)

    @property
    def lengths(self) -> Tensor:
        """How many bytes each row takes, [n] int64."""
        lengths = [len(message) for message in self.messages]
        return torch.tensor(lengths, dtype=torch.int64)

    def only(self, position: int) -> Packed:
        """The message of one row, without its count of values."""
        return Packed(self.schema, (self.messages[position],))

    def check(self, expect: Schema | None, count: int | None) -> None:
        """Refuse another schema or another number of rows than the receiver expects."""
        if expect is not None and self.schema != expect:
            raise DecodeError(f"a message of {self.schema}, expected {expect}.")
        if count is not None and len(self) != count:
            raise DecodeError(f"a message of {len(self)} rows, expected {count}.")
        if self.schema.kind == "nothing" and self.messages:
            raise DecodeError(f"a message of nothing with {len(self)} rows, expected none.")
