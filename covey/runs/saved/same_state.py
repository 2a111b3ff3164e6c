"""Whether two runs stand at the same state, to the bit, as their checkpoints tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from covey.kernel.store.store import PRESENT
from covey.runs.saved import saving
from covey.runs.saved.checkpoint import Checkpoint
from covey.runs.scores.record import Round

_TIMES = ("seconds", "spent")
"""The parts of a record that no two runs have in common."""
_FACTS = {"round": "the round", "chosen": "the chosen rounds", "scored": "the scored rounds"}


def state_differences(left: Checkpoint, right: Checkpoint) -> list[str]:
    """What differs between two checkpoints, in words: rows, choices, traffic, scores of devices.

    Their records are compared by `record_differences`.
    """
    out = []
    for fact, words in _FACTS.items():
        if left.facts.get(fact) != right.facts.get(fact):
            out.append(words)
    if sorted(left.facts["meter"]) != sorted(right.facts["meter"]):
        out.append("the traffic of links")
    if not _same(_totals(left), _totals(right)):
        out.append("the bytes of nodes")
    if not torch.equal(left.tensors["server"], right.tensors["server"]):
        out.append("the global model")
    if not _same(_named(left, "chosen."), _named(right, "chosen.")):
        out.append("the global model of a chosen round")
    if not _same(_named(left, "devices."), _named(right, "devices.")):
        out.append("the scores of devices")
    rows = _rows(left)
    others = _rows(right)
    for key in sorted(rows.keys() | others.keys()):
        if key not in rows or key not in others or not _same(rows[key], others[key]):
            tier, name, label = key
            version = "" if label == PRESENT else f", held as {label}"
            out.append(f"the rows {name!r} of {tier}s{version}")
    return out


def record_differences(left: Sequence[Round], right: Sequence[Round]) -> list[str]:
    """What differs between the records of two runs, round by round; times are left out."""
    out = []
    if len(left) != len(right):
        out.append(f"the number of rounds ({len(left)} and {len(right)})")
    for one, other in zip(left, right, strict=False):
        facts = one.as_dict()
        others = other.as_dict()
        names = [name for name in facts.keys() | others.keys() if name not in _TIMES]
        unlike = sorted(name for name in names if facts.get(name) != others.get(name))
        if unlike:
            out.append(f"{', '.join(unlike)} of round {one.round + 1}")
    return out


def _same(left: Mapping[Any, Tensor], right: Mapping[Any, Tensor]) -> bool:
    """Whether all bits are the same; a NaN equals itself."""
    if left.keys() != right.keys():
        return False
    for key, values in left.items():
        other = right[key]
        if values.shape != other.shape or values.dtype != other.dtype:
            return False
        bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (values, other)]
        if not torch.equal(*bits):
            return False
    return True


def _named(saved: Checkpoint, prefix: str) -> dict[str, Tensor]:
    return {name: values for name, values in saved.tensors.items() if name.startswith(prefix)}


def _totals(saved: Checkpoint) -> dict[tuple[str, ...], Tensor]:
    """The sums of nodes by tier and name, whatever their order in the file."""
    keys = saved.facts.get("totals", [])
    return {tuple(key): saved.tensors[f"totals.{number}"] for number, key in enumerate(keys)}


_Rows = dict[tuple[str, str, str], dict[str, Tensor]]
"""(tier, name, label) of kept rows: ids, rounds and rows."""


def _rows(saved: Checkpoint) -> _Rows:
    """Every version of every column; a held one that nobody has is none."""
    columns = saving.read_columns(saved, saved.facts["round"], saved.tensors["server"])
    out: _Rows = {}
    for column in columns:
        for label, entry in column.entries.items():
            if len(entry.ids) or label == PRESENT:
                out[column.tier, column.name, label] = {
                    "ids": entry.ids,
                    "rounds": entry.rounds,
                    "rows": column.rows[entry.places],
                }
    return out
