"""The facts beside an answer, checked: types, ranges, and that they are of the child's own subtree.

A fact that passes can be added up, and recorded, without an error. Whether it is true is another
question: a child may count its own bytes as it likes.

A parent knows from rehearsals what nodes below may keep. A child that names other rows is not
believed, and not refused either: a parent that was just started may have rehearsed less than it.
The same holds for the names of notes.

How long answers may be. A node passes the facts of its children on, so no child may send facts that
make the answer of an honest node above it too long:

- `header_limit` bounds the JSON beside an answer. It is the sum of a constant, for what nobody
  passes on, of a number for each node of the subtree, and of what rehearsals tell.
- A fact that a node passes on is of one node, once, and under a rehearsed name. So all facts that
  it passes on have at most as many bytes as the limits of its children have for their nodes.
- A missing answer may come twice from a child: in this answer, and in an ended ask that the parent
  settles. So `_MISSING` are counted for each node of the tier below, twice as many for each of the
  tier below that, and so on; the sum is what a subtree may have.
- `rows_limit` bounds the JSON that describes rows in the answer to an order; those of one node have
  at most `ROWS_OF_NODE` bytes, as they are sent on.
- `ChildCheck.most` bounds a whole answer: twice these limits, and the encoded rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from covey import native
from covey.deployed.node.node_rows import NodeRow, dtype_of
from covey.errors import DecodeError, shown
from covey.kernel.nodes import Call
from covey.kernel.store.store import ColumnKey
from covey.links.meter import DIRECTIONS, LANES
from covey.links.packed import Schema
from covey.runtimes.facts import NoteKey
from covey.tree import Tree

Subtree = Mapping[str, range]
"""The ids of a node and of all nodes below it, by tier."""
AskForm = tuple[str, str, str, tuple[tuple[str, torch.dtype], ...]]
"""The lane, the tier, the owner and name of a program, and the kind and type of what goes down."""
_LONGEST = 300  # characters of a name
_MOST = 2**53  # of a count: a float holds every whole number up to it
_LARGEST = 1e290  # of a noted number: the sum over all nodes is finite too
_BYTES = 2**40  # counted for a node in one ask: int64 holds the sum of 8 million such
_SUMS = 64  # floats that hold an exact sum: about 40 are enough for any
_COLUMNS = 1_000  # kept names of a subtree
_DIMENSIONS = 8
_ENDED = 64
_KEY = 20_000  # characters of the key of an ask
_MISSING = 256  # missing answers of an ask, and of all ended ones, for each child
_MISSING_BYTES = 80  # of a missing answer as text, besides the name of its tier
_ROUNDS = 2**31
_HEAD = 2**18  # bytes of a header besides those of nodes: names of kept rows, the text of an error
_HEAD_OF_NODE = 2**13  # bytes of a node besides reports and missing answers: ids and lengths
_HEAD_OF_FIGURE = 32  # bytes of a float as text, and more
_HEAD_OF_REPORT = 64  # bytes of the id and the brackets of a report
ROWS_OF_NODE = 2**15
"""Bytes of the descriptions of the rows of one node: hundreds of versions."""
_STATUSES = ("late", "absent", "bad")


@dataclass(eq=False)
class Rehearsed:
    """What programs of the tiers below report and need, as rehearsals on no rows tell."""

    links: Sequence[str] = ()
    widths: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many figures a node reports, by tier and name."""
    needs: dict[str, set[str]] = field(default_factory=dict)
    """The names of the rows that predictions with each model recall."""
    templates: Mapping[ColumnKey, Tensor] = field(default_factory=dict)
    """Empty rows of what nodes below keep, as far as it is known."""
    residuals: dict[ColumnKey, Tensor] = field(default_factory=dict)
    """Empty rows of the residuals of links, which nodes keep when they first send."""
    notes: set[NoteKey] = field(default_factory=set)
    """What programs note, by tier and name."""
    kept: dict[ColumnKey, Tensor] = field(default_factory=dict)
    """Empty rows of what nodes of all tiers keep."""
    asks: dict[AskForm, int] = field(default_factory=dict)
    """What nodes of all tiers are asked for, and the number of values in the widest message."""

    def learn(self, tier: str, call: Call) -> None:
        """A program of another tier, or of its own, has run on no rows."""
        for name, rows in call.kept.items():
            self.kept[tier, name] = rows.detach()
        for name, figures in call.reports.items():
            self.widths[tier, name] = figures.shape[1]
        for model, names in call.needs.items():
            self.needs.setdefault(model, set()).update(names)
        self.notes.update((tier, name) for name in call.notes)

    def believed(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of a child without notes that no rehearsal has, which are not passed on."""
        notes = [entry for entry in facts["notes"] if tuple(entry[:2]) in self.notes]
        return {**facts, "notes": notes}


def ask_form(lane: str, tier: str, program: str, schemas: Iterable[Schema]) -> AskForm:
    """The form of an ask whose messages have these schemas."""
    return lane, tier, program, tuple((schema.kind, schema.dtype) for schema in schemas)


def subtrees(tree: Tree, tier: str) -> list[Subtree]:
    """The subtree of every node of a tier.

    >>> subtrees(Tree.grouped([2, 3]), "edge")[1]
    {'edge': range(1, 2), 'device': range(2, 5)}
    """
    level = tree.index(tier)
    first = torch.arange(tree.size(tier))
    spans = [(first, first + 1)]
    for above, below in pairwise(tree.tiers[level:]):
        starts = tree.first(above, torch.arange(tree.size(above)))
        starts = torch.cat([starts, torch.tensor([tree.size(below)])])
        first, stop = spans[-1]
        spans.append((starts[first], starts[stop]))
    listed = [(begin.tolist(), end.tolist()) for begin, end in spans]
    out: list[Subtree] = []
    for number in range(tree.size(tier)):
        ranges = [range(begin[number], end[number]) for begin, end in listed]
        out.append(dict(zip(tree.tiers[level:], ranges, strict=True)))
    return out


def nodes_of(subtree: Subtree) -> int:
    """How many nodes a subtree has."""
    return sum(len(ids) for ids in subtree.values())


def header_limit(subtree: Subtree, rehearsed: Rehearsed | None = None) -> int:
    """How many bytes of JSON may stand beside an answer of a subtree: several times the honest.

    They are bounded before they are read: JSON takes up to 25 times its bytes in memory.

    >>> header_limit({"device": range(3, 4)}, Rehearsed(widths={("device", "global/test"): 9}))
    270713
    """
    limit = _HEAD + _HEAD_OF_NODE * nodes_of(subtree)
    limit += 2 * _most_missing(subtree) * (_MISSING_BYTES + max(map(_length, subtree)))
    if rehearsed is None:
        return limit
    for (tier, name), width in rehearsed.widths.items():
        report = _HEAD_OF_REPORT + _length([name, tier]) + _HEAD_OF_FIGURE * width
        limit += report * len(subtree.get(tier, ()))
    for key in rehearsed.notes:
        limit += _length(key) + _HEAD_OF_FIGURE * (_SUMS + 3)
    return limit


def rows_limit(subtree: Subtree) -> int:
    """How many bytes of JSON may describe the rows of a subtree."""
    return _HEAD + ROWS_OF_NODE * nodes_of(subtree)


def _length(value: Any) -> int:
    """Bytes of a value as JSON, where every letter that is not ASCII has six or twelve."""
    return len(json.dumps(value))


def _most_missing(subtree: Subtree) -> int:
    """How many answers of nodes below the top of a subtree may be missing.

    >>> _most_missing({"edge": range(2), "device": range(10), "sensor": range(20)})
    12800
    """
    out = 0
    for level, ids in enumerate(list(subtree.values())[1:]):
        out += _MISSING * 2**level * len(ids)
    return out


def field_of(table: Any, name: str) -> Any:
    """A field of a table; a DecodeError where there is no table, or no such field."""
    if not isinstance(table, dict) or name not in table:
        raise DecodeError(f"a message without {name!r}.")
    return table[name]


def check(header: Mapping[str, Any], subtree: Subtree, rehearsed: Rehearsed) -> None:
    """Refuse what stands beside an answer and cannot be of this subtree."""
    _check_sums(field_of(header, "facts"), subtree, rehearsed)
    _check_kept(list_of(header, "kept"), subtree, rehearsed)
    check_missing(header, subtree)
    check_number(header)


def check_number(header: Any) -> None:
    """Refuse what cannot be the number of the last change of a child's disk."""
    number = field_of(header, "number")
    if not is_count(number):
        raise DecodeError(f"number = {shown(number)}.")


def check_missing(header: Any, subtree: Subtree) -> None:
    """Refuse lists of missing nodes, of this ask and of ended ones, that cannot be true.

    Those that a child can miss are below it.
    """
    _check_all_missing(list_of(header, "missing"), subtree)
    ended = list_of(header, "ended")
    if len(ended) > _ENDED:
        raise DecodeError(f"{len(ended)} ended asks, more than {_ENDED}.")
    missing = []
    for pair in ended:
        _, entries = parts_of(pair, _is_key, is_list, what="an ended ask")
        missing += entries
    _check_all_missing(missing, subtree)


def check_unreached(header: Any, subtree: Subtree) -> None:
    """Refuse lists of nodes that did not follow an order which cannot be true."""
    unreached = list_of(header, "unreached")
    if len(unreached) > nodes_of(subtree):
        raise DecodeError(f"{len(unreached)} nodes that did not follow an order.")
    for node in unreached:
        tier, number = parts_of(node, is_name, is_count, what="an unreached node")
        check_place(tier, number, subtree)


def check_row(kept: NodeRow, template: Tensor | None) -> None:
    """Refuse a row without a name, of another shape or type than is known, or not finite."""
    if not is_name(kept.name) or not is_name(kept.label) or not is_round(kept.round):
        raise DecodeError("a row without a name, a label or a round.")
    row = kept.row
    if row is None:
        raise DecodeError(f"a row {shown(kept.name)} without values.")
    if template is not None and (row.dtype, row.shape) != (template.dtype, template.shape[1:]):
        wanted = f"{list(template.shape[1:])} of {template.dtype}"
        form = f"{list(row.shape)} of {row.dtype}"
        raise DecodeError(f"the row {kept.name!r} of shape {form}, expected {wanted}.")
    if row.is_floating_point() and not native.finite(row):
        raise DecodeError(f"the row {shown(kept.name)} is not finite.")


def _check_sums(facts: Any, subtree: Subtree, rehearsed: Rehearsed) -> None:
    """Refuse facts that cannot be added up (covey/runtimes/facts.py)."""
    most = _BYTES * nodes_of(subtree)
    traffic = list_of(facts, "traffic")
    kinds = [is_name, is_name, is_name, *[is_count] * 5]
    for entry in traffic:
        link, direction, lane, *counts = parts_of(entry, *kinds, what="traffic")
        if max(counts) > most:
            raise DecodeError(f"traffic of {max(counts)}, more than {most}.")
        if link not in rehearsed.links or direction not in DIRECTIONS or lane not in LANES:
            raise DecodeError(f"traffic of {shown(entry[:3])}.")
    check_once([entry[:3] for entry in traffic], "traffic")
    counted = list_of(facts, "node_bytes")
    for entry in counted:
        _check_bytes(entry, subtree)
    check_once([entry[:2] for entry in counted], "bytes of nodes")
    for tier, ids in _tables(facts, "cohorts"):
        _ids_of(tier, ids, subtree)
    notes = list_of(facts, "notes")
    for entry in notes:
        _check_note(entry, subtree)
    check_once([entry[:2] for entry in notes], "a note")
    gradients = field_of(facts, "gradients")
    if not _is_number(gradients) or not 0 <= gradients <= _MOST:
        raise DecodeError(f"gradients = {shown(gradients)}.")
    _check_reports(list_of(facts, "reports"), subtree, rehearsed)
    for model, names in _tables(facts, "needs"):
        known = rehearsed.needs.get(model)
        if known is None or any(not isinstance(n, str) or n not in known for n in names):
            raise DecodeError(f"{shown(model)} needs {shown(names)}, which no rehearsal did.")


def list_of(table: Any, name: str) -> list[Any]:
    values = field_of(table, name)
    if not isinstance(values, list):
        raise DecodeError(f"{name} that are no list.")
    return values


def _tables(table: Any, name: str) -> list[tuple[str, list[Any]]]:
    """The entries of a table of lists."""
    values = field_of(table, name)
    if not isinstance(values, dict) or not all(isinstance(v, list) for v in values.values()):
        raise DecodeError(f"{name} that are no lists by name.")
    return list(values.items())


def parts_of(entry: Any, *kinds: Callable[[Any], bool], what: str) -> list[Any]:
    """The parts of an entry, each of its kind."""
    if not isinstance(entry, list) or len(entry) != len(kinds):
        raise DecodeError(f"{what} {shown(entry)}.")
    for value, kind in zip(entry, kinds, strict=True):
        if not kind(value):
            raise DecodeError(f"{what} with {shown(value)}.")
    return entry


def check_once(keys: Sequence[Sequence[Any]], what: str) -> None:
    """Refuse two entries of one key."""
    if len(set(map(tuple, keys))) < len(keys):
        raise DecodeError(f"{what} of one kind twice.")


def is_name(value: Any) -> bool:
    """Whether a value can be a name: a log, a table and a terminal take it."""
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()


def is_path(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _KEY


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    if type(value) is int:
        return abs(value) <= _MOST
    return type(value) is float and math.isfinite(value)


def is_round(value: Any) -> bool:
    """Whether a value can be the number of a round; -1 is before the first."""
    return type(value) is int and -1 <= value < _ROUNDS


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def check_place(tier: Any, number: Any, subtree: Subtree) -> None:
    """Refuse a node that is not in a subtree."""
    _ids_of(tier, [number], subtree)


def _ids_of(tier: Any, ids: Sequence[Any], subtree: Subtree) -> None:
    if not isinstance(tier, str) or tier not in subtree:
        raise DecodeError(f"a fact of the tier {shown(tier)}, which is not below.")
    for number in ids:
        if type(number) is not int or number not in subtree[tier]:
            raise DecodeError(f"a fact of node {shown(number)}, which is not in this subtree.")


def _check_bytes(entry: Any, subtree: Subtree) -> None:
    kinds = (is_name, is_name, is_list, is_list)
    tier, direction, ids, lengths = parts_of(entry, *kinds, what="bytes of nodes")
    _ids_of(tier, ids, subtree)
    if direction not in DIRECTIONS or len(ids) != len(lengths):
        raise DecodeError(f"bytes of nodes in the direction {shown(direction)}.")
    if not all(is_count(length) and length <= _BYTES for length in lengths):
        raise DecodeError("bytes of nodes that are no counts.")
    if len(set(ids)) < len(ids):
        raise DecodeError("bytes of one node twice.")


def _check_note(entry: Any, subtree: Subtree) -> None:
    kinds = (is_name, is_name, is_list, _is_number, _is_number, is_count)
    tier, name, sums, least, most, count = parts_of(entry, *kinds, what="a note")
    _ids_of(tier, [], subtree)
    if not 0 < len(sums) <= _SUMS or not count:
        raise DecodeError(f"a note {name!r} of {count} nodes in {len(sums)} sums.")
    if not all(_is_number(value) and abs(value) <= _LARGEST for value in (*sums, least, most)):
        raise DecodeError(f"a note {name!r} that is not finite, or beyond {_LARGEST:g}.")


def _check_reports(entries: Sequence[Any], subtree: Subtree, rehearsed: Rehearsed) -> None:
    """Refuse reports that no rehearsal has, and two of one node."""
    reported: set[tuple[str, int]] = set()
    kinds = (is_name, is_name, is_list, is_list)
    for entry in entries:
        name, tier, ids, figures = parts_of(entry, *kinds, what="a report")
        _ids_of(tier, ids, subtree)
        width = rehearsed.widths.get((tier, name))
        if width is None or not ids or len(figures) != len(ids):
            raise DecodeError(f"a report {name!r} of {len(ids)} nodes, which no rehearsal has.")
        for values in figures:
            if not isinstance(values, list) or len(values) != width:
                raise DecodeError(f"a report {name!r} without {width} figures of a node.")
            # A figure that is unknown is no number, but a float.
            if not all(type(value) is float or _is_number(value) for value in values):
                raise DecodeError(f"a report {name!r} with figures that are no numbers.")
        for number in ids:
            if (name, number) in reported:
                raise DecodeError(f"two reports {name!r} of node {number}.")
            reported.add((name, number))


def _check_kept(described: Sequence[Any], subtree: Subtree, rehearsed: Rehearsed) -> None:
    """Refuse kept rows of other tiers, and other shapes or types than are known."""
    if len(described) > _COLUMNS:
        raise DecodeError(f"{len(described)} kept names, more than {_COLUMNS}.")
    for entry in described:
        kinds = (is_name, is_name, is_name, is_list)
        tier, name, dtype, shape = parts_of(entry, *kinds, what="a kept row")
        _ids_of(tier, [], subtree)
        if len(shape) > _DIMENSIONS or not all(is_count(size) for size in shape):
            raise DecodeError(f"a kept row {name!r} of shape {shown(shape)}.")
        if math.prod(max(size, 1) for size in shape) > _MOST:
            raise DecodeError(f"a kept row {name!r} of shape {shown(shape)}.")
        form = (dtype_of(dtype), tuple(shape))
        template = rehearsed.templates.get((tier, name), rehearsed.residuals.get((tier, name)))
        if template is not None and form != (template.dtype, tuple(template.shape[1:])):
            raise DecodeError(f"a kept row {name!r} of {dtype} and shape {shown(shape)}.")


def _check_all_missing(entries: Sequence[Any], subtree: Subtree) -> None:
    most = _most_missing(subtree)
    if len(entries) > most:
        raise DecodeError(f"{len(entries)} missing answers, more than {most}.")
    below = dict(list(subtree.items())[1:])
    kinds = (is_count, is_name, is_path, is_name, is_count, is_name)
    for entry in entries:
        _, lane, _, tier, number, status = parts_of(entry, *kinds, what="a missing node")
        check_place(tier, number, below)
        if lane not in LANES or status not in _STATUSES:
            raise DecodeError(f"a missing node {shown(entry)}.")
