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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from covey import native
from covey.deployed.node.forms import (
    MOST,
    check_form,
    check_once,
    is_count,
    is_name,
    is_number,
    is_path,
    is_round,
    is_table_of_lists,
    one_of,
    up_to,
)
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
_LARGEST = 1e290  # of a noted number: the sum over all nodes is finite too
_BYTES = 2**40  # counted for a node in one ask: int64 holds the sum of 8 million such
_SUMS = 64  # floats that hold an exact sum: about 40 are enough for any
_COLUMNS = 1_000  # kept names of a subtree
_DIMENSIONS = 8
_ENDED = 64
_KEY = 20_000  # characters of the key of an ask
_MISSING = 256  # missing answers of an ask, and of all ended ones, for each child
_MISSING_BYTES = 80  # of a missing answer as text, besides the name of its tier
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


def ask_form(
    lane: str,
    tier: str,
    program: str,
    schemas: Iterable[Schema],
) -> AskForm:
    """The form of an ask whose messages have these schemas."""
    return lane, tier, program, tuple((schema.kind, schema.dtype) for schema in schemas)


def subtrees(tree: Tree, tier: str) -> list[Subtree]:
    """The subtree of every node of a tier.

    >>> subtrees(Tree.grouped([2, 3]), "edge")[1]
    {'edge': range(1, 2), 'device': range(2, 5)}
    """
    below = tree.below(tier)
    children = iter(()) if below is None else iter(subtrees(tree, below))
    counts = tree.counts(tier, torch.arange(tree.size(tier))).tolist()
    return [subtree(tier, node, islice(children, count)) for node, count in enumerate(counts)]


def subtree(tier: str, number: int, children: Iterable[Subtree]) -> Subtree:
    """The subtree of a node, from those of its children in the order of their ids."""
    out = {tier: range(number, number + 1)}
    for child in children:
        for below, ids in child.items():
            out[below] = range(out.get(below, ids).start, ids.stop)
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


def check(header: Any, subtree: Subtree, rehearsed: Rehearsed) -> None:
    """Refuse what stands beside an answer and cannot be of this subtree.

    Facts that pass can be added up (covey/runtimes/facts.py).
    """
    check_missing(header, subtree)
    tier, direction = one_of(subtree), one_of(DIRECTIONS)
    counts = [up_to(_BYTES * nodes_of(subtree))] * 5
    form = {
        "traffic": [(one_of(rehearsed.links), direction, one_of(LANES), *counts)],
        "node_bytes": [(tier, direction, [is_count], [up_to(_BYTES)])],
        "cohorts": is_table_of_lists,
        "notes": [(tier, is_name, [_is_summand], _is_summand, _is_summand, is_count)],
        "gradients": lambda value: is_number(value) and 0 <= value <= MOST,
        "reports": [(is_name, tier, [is_count], [[_is_figure]])],
        "needs": is_table_of_lists,
    }
    kept = (tier, is_name, is_name, [is_count])
    check_form(header, {"number": is_count, "facts": form, "kept": [kept]}, "an answer")
    facts = header["facts"]
    for name, size in (("traffic", 3), ("node_bytes", 2), ("notes", 2)):
        check_once([entry[:size] for entry in facts[name]], name)
    for _, name, sums, *_, count in facts["notes"]:
        if not 0 < len(sums) <= _SUMS or not count:
            raise DecodeError(f"a note {name!r} of {count} nodes in {len(sums)} sums.")
    _check_nodes(facts, subtree, rehearsed)
    for model, names in facts["needs"].items():
        known = rehearsed.needs.get(model)
        if known is None or any(not isinstance(name, str) or name not in known for name in names):
            raise DecodeError(f"{shown(model)} needs {shown(names)}, which no rehearsal did.")
    _check_kept(header["kept"], rehearsed)


def _check_nodes(facts: Mapping[str, Any], subtree: Subtree, rehearsed: Rehearsed) -> None:
    """Refuse facts of nodes elsewhere, two of one node, and reports that no rehearsal has."""
    for tier, ids in facts["cohorts"].items():
        check_ids(tier, ids, subtree)
    for tier, direction, ids, lengths in facts["node_bytes"]:
        check_ids(tier, ids, subtree)
        if len(ids) != len(lengths) or len(set(ids)) < len(ids):
            raise DecodeError(f"bytes of one node twice, or of none, in the direction {direction}.")
    reported = []
    for name, tier, ids, figures in facts["reports"]:
        check_ids(tier, ids, subtree)
        reported += [(name, number) for number in ids]
        width = rehearsed.widths.get((tier, name))
        if width is None or not ids or [len(values) for values in figures] != [width] * len(ids):
            raise DecodeError(f"a report {name!r} of {len(ids)} nodes, which no rehearsal has.")
    check_once(reported, "a report")


def _check_kept(described: Sequence[Any], rehearsed: Rehearsed) -> None:
    """Refuse too many kept rows, long ones, and other shapes or types than are known."""
    if len(described) > _COLUMNS:
        raise DecodeError(f"{len(described)} kept names, more than {_COLUMNS}.")
    for tier, name, dtype, shape in described:
        form = (dtype_of(dtype), tuple(shape))
        known = rehearsed.templates.get((tier, name), rehearsed.residuals.get((tier, name)))
        other = known is not None and form != (known.dtype, tuple(known.shape[1:]))
        # The short ones first: a product of many numbers takes long.
        if other or len(shape) > _DIMENSIONS or math.prod(max(size, 1) for size in shape) > MOST:
            raise DecodeError(f"a kept row {name!r} of {dtype} and shape {shown(shape)}.")


def check_missing(header: Any, subtree: Subtree) -> None:
    """Refuse lists of missing nodes, of this ask and of ended ones, that cannot be true.

    Those that a child can miss are below it.
    """
    entry = (is_count, one_of(LANES), is_path, is_name, is_count, one_of(_STATUSES))
    ended = (lambda key: isinstance(key, str) and len(key) <= _KEY, [entry])
    check_form(header, {"missing": [entry], "ended": [ended]}, "an answer")
    if len(header["ended"]) > _ENDED:
        raise DecodeError(f"{len(header['ended'])} ended asks, more than {_ENDED}.")
    below = dict(list(subtree.items())[1:])
    most = _most_missing(subtree)
    for entries in (header["missing"], list(chain(*(missing for _, missing in header["ended"])))):
        if len(entries) > most:
            raise DecodeError(f"{len(entries)} missing answers, more than {most}.")
        for *_, tier, number, _ in entries:
            check_ids(tier, [number], below)


def check_followed(header: Any, subtree: Subtree) -> None:
    """Refuse what stands beside the answer to an order and cannot be of this subtree."""
    check_missing(header, subtree)
    check_form(header, {"number": is_count, "unreached": [(is_name, is_count)]}, "an answer")
    if len(header["unreached"]) > nodes_of(subtree):
        raise DecodeError(f"{len(header['unreached'])} nodes that did not follow an order.")
    for tier, number in header["unreached"]:
        check_ids(tier, [number], subtree)


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


def check_ids(tier: Any, ids: Sequence[Any], subtree: Subtree) -> None:
    """Refuse nodes that are not in a subtree."""
    if not isinstance(tier, str) or tier not in subtree:
        raise DecodeError(f"a fact of the tier {shown(tier)}, which is not below.")
    for number in ids:
        if type(number) is not int or number not in subtree[tier]:
            raise DecodeError(f"a fact of node {shown(number)}, which is not in this subtree.")


def _is_summand(value: Any) -> bool:
    return is_number(value) and abs(value) <= _LARGEST


def _is_figure(value: Any) -> bool:
    """Whether a value can be a figure; one that is unknown is no number, but a float."""
    return type(value) is float or is_number(value)
