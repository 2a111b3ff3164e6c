"""Answers of children, checked before they are believed.

A child may be broken or hostile. A check returns why an answer is refused, or None. It does not
raise for anything that an answer may hold; what else it raises is a fault of this node.

Rows must be finite. A child whose own training diverged says so with an error in place of rows
(docs/decisions/0070-answers-are-checked.md).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey import native
from covey.deployed import checked_facts, parcel
from covey.deployed.checked_facts import Rehearsed, Subtree, field_of, header_limit
from covey.deployed.node_rows import NodeRow, Part
from covey.deployed.transport import AskKey, Diverged, Seat
from covey.errors import CoveyError, DecodeError, DivergedError, shown
from covey.kernel.replies import rows_of
from covey.kernel.store import ColumnKey
from covey.links.link import Link
from covey.links.packed import Packed, Schema
from covey.runtimes.envelope import open_sealed
from covey.types import Rows

_DECODING = threading.Lock()
"""One row at a time is decoded to be checked, so that not all are in memory at once."""
_LARGEST = 1e290
"""Of a number that is only added up: the sum over all nodes is finite too."""
_WITH_ROWS = ("read", "freeze")
"""The orders to which rows come back."""
_OWN_FAULTS = (MemoryError, NameError, ImportError, OSError, AssertionError, NotImplementedError)
"""What no answer within its limits can cause: the child is not to blame."""


_FACTS = 2**20
"""Bytes of the facts of one node in an answer, which are far fewer."""
_FIGURE = 32
"""Bytes of a number as a text."""
_PLACED = 8
"""Bytes of a number of a row beside its value, where a codec sends its position."""


class _Dropped(CoveyError):
    """The training of a child diverged, and the round is to go on without it."""


class ChildCheck(ABC):
    """Calls `_check`, and turns what it raises into a reason."""

    def __init__(self) -> None:
        self.failed: set[Seat] = set()
        """The seats whose answer is an error of their own, such as a training that diverged."""

    def __call__(self, seat: Seat, data: bytes) -> str | None:
        """Why the answer of a seat is refused; None: it is good.

        A fault of this node is raised, and ends the ask: no child is struck for it.
        """
        try:
            self._check(seat, data)
        except _Dropped as error:
            return Diverged(error)
        except CoveyError as error:
            return str(error)
        except _OWN_FAULTS:
            raise
        except Exception as error:  # an answer may hold anything: what is unforeseen is refused too
            return f"it cannot be read: {type(error).__name__}: {shown(str(error))}."
        return None

    @abstractmethod
    def _check(self, seat: Seat, data: bytes) -> None:
        """Raise an error that says what is wrong with the answer of a seat."""

    @property
    @abstractmethod
    def most(self) -> int | None:
        """Bytes of the longest answer that an honest child gives; None: there is no such bound."""

    def _says_error(self, seat: Seat, header: Any) -> bool:
        """Whether an answer is an error of the child, which ends the round everywhere."""
        failure = field_of(header, "error")
        if failure is None:
            return False
        if not isinstance(failure, list) or [type(word) for word in failure] != [str, str]:
            raise DecodeError("an error that is not a kind and a text.")
        self.failed.add(seat)
        return True


@dataclass(eq=False)
class ReplyCheck(ChildCheck):
    """Checks the answers to one ask of a program."""

    key: AskKey
    schemas: Sequence[Schema]
    """Those of the messages of one answer, from the rehearsal."""
    answering: frozenset[Seat]
    """The seats that send rows; others run the program only."""
    link: Link
    subtrees: Mapping[Seat, Subtree]
    rehearsed: Rehearsed
    bounds: Mapping[Seat, float] = field(default_factory=dict)
    """The largest norm of a row in training, by seat; others have no bound."""
    drops_diverged: bool = False
    """Whether an answer is dropped if it says that the training diverged."""

    def __post_init__(self) -> None:
        super().__init__()
        self.numbers: dict[Seat, int] = {}
        """The numbers of the last changes of the disks of those who have answered."""

    @property
    def most(self) -> int:
        """Bytes of all rows and of the facts of a subtree, each more than they can have."""
        rows = sum(schema.width * (schema.dtype.itemsize + _PLACED) for schema in self.schemas)
        return rows + _most_facts(self.subtrees, self.rehearsed)

    def _check(self, seat: Seat, data: bytes) -> None:
        limit = header_limit(self.subtrees[seat], self.rehearsed.widths)
        header, messages = open_sealed(data, limit)
        if self._says_error(seat, header):
            if messages:
                raise DecodeError("an error with rows.")
            self._check_diverged(seat, *header["error"])
            return
        named = (field_of(header, "key"), field_of(header, "seat"))
        if named != (str(self.key), seat):
            raise DecodeError(f"an answer of seat {shown(named[1])} to {shown(named[0])}.")
        checked_facts.check(header, self.subtrees[seat], self.rehearsed)
        expected = self.schemas
        if seat not in self.answering:
            expected = ()
        if len(messages) != len(expected):
            raise DecodeError(f"{len(messages)} messages, expected {len(expected)}.")
        for packed, schema in zip(messages, expected, strict=True):
            self._check_message(seat, packed, schema)
        self.numbers[seat] = header["number"]

    def _check_diverged(self, seat: Seat, kind: str, text: str) -> None:
        """Refuse an answer that says that the training diverged, where that is to be dropped."""
        if self.drops_diverged and kind == DivergedError.__name__:
            self.failed.discard(seat)
            raise _Dropped(f"its training diverged: {shown(text)}")

    def _check_message(self, seat: Seat, packed: Packed, schema: Schema) -> None:
        """Refuse another schema, more than one row, and values that are not finite."""
        count = 1
        if schema.kind == "nothing":
            count = 0
        with _DECODING:
            rows = rows_of(self.link.unpack(packed, expect=schema, count=count, borrow=True))
            if rows is not None:
                self._check_values(seat, rows, schema)

    def _check_values(self, seat: Seat, rows: Rows, schema: Schema) -> None:
        """Refuse a row that is not finite, or longer than its bound."""
        if not native.finite(rows):
            text = "a row that is not finite, of a child that does not say that it diverged"
            raise DecodeError(f"{text}.")
        if schema.kind == "exact" and rows.numel() and float(rows.abs().max()) > _LARGEST:
            raise DecodeError(f"a row with numbers beyond {_LARGEST:g}.")
        bound = self.bounds.get(seat)
        if bound is None or self.key.lane != "train" or schema.kind == "exact":
            return
        norm = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
        if norm > bound:
            raise DecodeError(f"a row of the norm {norm:.6g}, more than norm_bound = {bound:g}.")


@dataclass(eq=False)
class OrderCheck(ChildCheck):
    """Checks the answers to one order."""

    name: str
    arguments: Mapping[str, Any]
    subtrees: Mapping[Seat, Subtree]
    templates: Mapping[ColumnKey, Tensor]
    """Empty rows of what nodes below keep, as far as it is known."""

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def most(self) -> int | None:
        """Bytes of the facts of a subtree; rows that come back may be many."""
        if self.name in _WITH_ROWS:
            return None
        return _most_facts(self.subtrees)

    def _check(self, seat: Seat, data: bytes) -> None:
        header, rows = parcel.unpack(data, header_limit(self.subtrees[seat]))
        if self._says_error(seat, header):
            return
        checked_facts.check_missing(header, self.subtrees[seat])
        checked_facts.check_unreached(header, self.subtrees[seat])
        checked_facts.check_number(header)
        if rows and self.name not in _WITH_ROWS:
            raise DecodeError(f"rows in the answer to the order {self.name}.")
        seen = set()
        for kept in rows:
            self._check_row(self.subtrees[seat], kept)
            place = (kept.tier, kept.number, kept.name, kept.label)
            if place in seen:
                raise DecodeError(f"the row {kept.name!r} of {kept.tier} {kept.number} twice.")
            seen.add(place)

    def _check_row(self, subtree: Subtree, kept: NodeRow) -> None:
        """Refuse a row of another node, name or shape, and values that are not finite."""
        checked_facts.check_place(kept.tier, kept.number, subtree)
        checked_facts.check_version(kept.name, kept.label, kept.round)
        texts = (kept.name, kept.label)
        asked = (self.arguments.get("name"), self.arguments.get("label"))
        if self.name == "read" and texts != asked:
            raise DecodeError(f"the row {shown(kept.name)}, asked for {asked[0]!r}.")
        part = self.arguments.get("part")
        if part is not None and not Part(*part).has(kept.tier, kept.number):
            raise DecodeError(f"a row of {kept.tier} {kept.number}, which was not asked for.")
        row = kept.row
        if row is None:
            raise DecodeError(f"a row {shown(kept.name)} without values.")
        template = self.templates.get((kept.tier, kept.name))
        if template is not None:
            have = (row.dtype, row.shape)
            if have != (template.dtype, template.shape[1:]):
                wanted = f"{list(template.shape[1:])} of {template.dtype}"
                form = f"{list(row.shape)} of {row.dtype}"
                raise DecodeError(f"the row {kept.name!r} of shape {form}, expected {wanted}.")
        if row.is_floating_point() and not native.finite(row):
            raise DecodeError(f"the row {shown(kept.name)} is not finite.")


def _most_facts(subtrees: Mapping[Seat, Subtree], rehearsed: Rehearsed | None = None) -> int:
    """More bytes than the facts of any of these subtrees have."""
    figures = 0
    if rehearsed is not None:
        figures = sum(rehearsed.widths.values())
    nodes = [sum(map(len, subtree.values())) for subtree in subtrees.values()]
    return (1 + max(nodes, default=0)) * (_FACTS + _FIGURE * figures)
