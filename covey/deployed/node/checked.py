"""Answers of children, checked before they are believed.

A child may be broken or hostile. A check returns why an answer is refused, or None. It does not
raise for anything that an answer may hold; what else it raises is a fault of this node.

Rows must be finite. A child whose own training diverged says so with an error in place of rows
(docs/decisions/0070-answers-are-checked.md).
"""

from __future__ import annotations

import json
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey import native
from covey.deployed.node import checked_facts, node_rows
from covey.deployed.node.checked_facts import (
    ROWS_OF_NODE,
    Rehearsed,
    Subtree,
    header_limit,
    rows_limit,
)
from covey.deployed.node.forms import check_form, check_once, field_of, is_text
from covey.deployed.node.node_rows import NodeRow, in_part, open_order
from covey.deployed.transport.transport import AskKey, Diverged, Seat
from covey.errors import CoveyError, DecodeError, DivergedError, shown
from covey.kernel.replies import rows_of
from covey.kernel.store.store import ColumnKey
from covey.links.link import Link
from covey.links.packed import Schema
from covey.runs.scores.scoring import Scorer
from covey.runtimes.alone.envelope import open_sealed, raised
from covey.types import Rows

_DECODING = threading.Lock()
"""One row at a time is decoded to be checked, so that not all are in memory at once."""
_LARGEST = 1e290
"""Of a number that is only added up: the sum over all nodes is finite too."""
_WITH_ROWS = ("read", "freeze")
"""The orders to which rows come back."""
_OWN_FAULTS = (MemoryError, NameError, ImportError, OSError, AssertionError, NotImplementedError)
"""What no answer within its limits can cause: the child is not to blame."""
_LONGEST_ERROR = 4_000
"""Characters of the error of a child that go on to the node above."""
_PLACED = 8
"""Bytes of a number of a row beside its value, where a codec sends its position."""


class _Dropped(CoveyError):
    """The training of a child diverged, and the round is to go on without it."""


@dataclass(eq=False)
class ChildCheck(ABC):
    """Calls `examine`, and turns what it raises into a reason."""

    asked: int | None = field(default=None, init=False)
    """How many children are asked, where a quorum of them is enough."""
    failed: set[Seat] = field(default_factory=set, init=False)
    """The seats whose answer is an error of their own that ends the round."""
    _kinds: dict[Seat, str] = field(default_factory=dict, init=False)
    """The kinds of the errors that seats have answered."""

    def __call__(self, seat: Seat, data: bytes) -> str | None:
        """Why the answer of a seat is refused; None: it is good.

        A fault of this node is raised, and ends the ask: no child is struck for it.
        """
        self.failed.discard(seat)  # the seat may have answered before, and was refused
        self._kinds.pop(seat, None)
        try:
            if self.examine(seat, data):
                self.failed.add(seat)
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
    def examine(self, seat: Seat, data: bytes) -> bool:
        """Raise an error that says what is wrong with the answer of a seat.

        True: nothing is, but the answer is an error of the child.
        """

    def _ends_round(self, seat: Seat, failure: tuple[str, str]) -> bool:
        """Whether the error of a seat ends the round, which is true; a bad answer is raised.

        With a quorum one child must not stop all others: more than half of those asked must give
        the same kind of error, such as that of a program with a fault.
        """
        kind, text = failure
        self._kinds[seat] = kind
        alike = list(self._kinds.values()).count(kind)
        if self.asked is not None and 2 * alike <= self.asked:
            raise DecodeError(f"an error of its own, {kind!r:.40}: {text!r:.300}")
        return True

    @property
    @abstractmethod
    def most(self) -> int | None:
        """Bytes of the longest answer that an honest child gives; None: there is no such bound."""


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
    scorer: Scorer | None = None
    """Whose answers these are, where they are scores."""

    numbers: dict[Seat, int] = field(default_factory=dict, init=False)
    """The numbers of the last changes of the disks of those who have answered."""

    @property
    def most(self) -> int:
        """Bytes of all rows and of the facts of a subtree, each more than they can have."""
        rows = sum(schema.width * (schema.dtype.itemsize + _PLACED) for schema in self.schemas)
        limits = (header_limit(subtree, self.rehearsed) for subtree in self.subtrees.values())
        return rows + 2 * max(limits, default=0)

    def examine(self, seat: Seat, data: bytes) -> bool:
        header, messages = open_sealed(data, header_limit(self.subtrees[seat], self.rehearsed))
        failure = _error_in(header, messages)
        if failure is not None:
            if self.drops_diverged and failure[0] == DivergedError.__name__:
                raise _Dropped(f"its training diverged: {shown(failure[1])}")
            return self._ends_round(seat, failure)
        named = (field_of(header, "key"), field_of(header, "seat"))
        if named != (str(self.key), seat):
            raise DecodeError(f"an answer of seat {shown(named[1])} to {shown(named[0])}.")
        checked_facts.check(header, self.subtrees[seat], self.rehearsed)
        expected = self.schemas if seat in self.answering else ()
        if len(messages) != len(expected):
            raise DecodeError(f"{len(messages)} messages, expected {len(expected)}.")
        for packed, schema in zip(messages, expected, strict=True):
            with _DECODING:
                count = int(schema.kind != "nothing")
                rows = rows_of(self.link.unpack(packed, expect=schema, count=count, borrow=True))
                if rows is not None:
                    self._check_values(seat, rows, schema)
                    self._check_scores(rows, header["facts"]["reports"])
        self.numbers[seat] = header["number"]
        return False

    def _check_scores(self, rows: Rows, reports: Sequence[Any]) -> None:
        """Refuse sums of scores that cannot be true, or are not those that devices report."""
        if self.scorer is None:
            return
        figures: dict[str, list[list[float]]] = {}
        for name, _, _, values in reports:
            figures.setdefault(name, []).extend(values)
        by_name = {name: torch.tensor(own, dtype=torch.float64) for name, own in figures.items()}
        reason = self.scorer.refusal(rows.double(), by_name)
        if reason is not None:
            raise DecodeError(reason)

    def _check_values(self, seat: Seat, rows: Rows, schema: Schema) -> None:
        """Refuse a row that is not finite, or longer than its bound."""
        if not native.finite(rows):
            why = "of a child that does not say that it diverged"
            raise DecodeError(f"a row that is not finite, {why}.")
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

    @property
    def most(self) -> int | None:
        """Bytes of the facts of a subtree; rows that come back may be many."""
        if self.name in _WITH_ROWS:
            return None
        return 2 * max(map(header_limit, self.subtrees.values()), default=0)

    def examine(self, seat: Seat, data: bytes) -> bool:
        subtree = self.subtrees[seat]
        header, rows = open_order(data, header_limit(subtree), rows_limit(subtree))
        failure = _error_in(header, rows)
        if failure is not None:
            return self._ends_round(seat, failure)
        checked_facts.check_followed(header, subtree)
        if rows and self.name not in _WITH_ROWS:
            raise DecodeError(f"rows in the answer to the order {self.name}.")
        described: Counter[tuple[str, int]] = Counter()
        for kept in rows:
            self._check_row(subtree, kept)
            described[kept.tier, kept.number] += len(json.dumps(node_rows.described(kept)))
        places = [(kept.tier, kept.number, kept.name, kept.label) for kept in rows]
        check_once(places, "a row")
        if any(size > ROWS_OF_NODE for size in described.values()):
            raise DecodeError(f"rows of a node described in more than {ROWS_OF_NODE} bytes.")
        return False

    def _check_row(self, subtree: Subtree, kept: NodeRow) -> None:
        """Refuse a row of another node, name or shape, and values that are not finite."""
        checked_facts.check_ids(kept.tier, [kept.number], subtree)
        texts = (kept.name, kept.label)
        asked = (self.arguments.get("name"), self.arguments.get("label"))
        if self.name == "freeze":  # all versions of one name, or of all
            asked = (self.arguments.get("name", kept.name), kept.label)
        if texts != asked:
            raise DecodeError(f"the row {shown(kept.name)}, asked for {asked[0]!r}.")
        if not in_part(self.arguments.get("part"), kept.tier, kept.number):
            raise DecodeError(f"a row of {kept.tier} {kept.number}, which was not asked for.")
        checked_facts.check_row(kept, self.templates.get((kept.tier, kept.name)))


def _error_in(header: Any, rows: Sequence[Any]) -> tuple[str, str] | None:
    """The kind and the text of a child's error; None: no error."""
    failure = field_of(header, "error")
    if failure is None:
        return None
    check_form(failure, (is_text, is_text), "an error")
    if rows:
        raise DecodeError("an error with rows.")
    return failure[0], failure[1]


def child_error(
    kind: str,
    text: str,
    child: tuple[str, int],
    subtree: Subtree,
    tiers: Sequence[str],
) -> CoveyError:
    """The error that a child answered; it says from which child it came.

    The text is left as it is where it names nodes of the child's subtree and no others.
    """
    named = re.findall(rf"\b({'|'.join(map(re.escape, tiers))}) ([0-9]{{1,18}})\b", text)
    own = [int(number) in subtree.get(tier, ()) for tier, number in named]
    if len(text) > _LONGEST_ERROR:
        text = f"{text[:_LONGEST_ERROR]}..."
    if not own or not all(own):
        tier, number = child
        text = f"{tier} {number}: {text}"
    return raised(kind, text)
