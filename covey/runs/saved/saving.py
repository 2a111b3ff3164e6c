"""The contents of a run's checkpoint, and reading them back.

Every value is checked before anything of the run changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.kernel.store.store import Entry, Frozen, rising
from covey.links.meter import Meter
from covey.runs.experiment import Experiment
from covey.runs.models import FINAL, Chosen
from covey.runs.saved import checkpoint
from covey.runs.saved.checkpoint import Checkpoint
from covey.runs.scores import record
from covey.runs.scores.devices import fits
from covey.runs.scores.figures import (
    PARTS,
    NodeFigures,
    Sums,
    Totals,
    read_totals,
    total_tensors,
)
from covey.runs.state import History, SeedState, State

_LAST = "last "


@dataclass(frozen=True, eq=False)
class Saved:
    """One run as a checkpoint holds it.

    `columns` are what its nodes keep in memory. `state` is the state of this run alone, so
    `state.w` is one row, [1, P].
    """

    state: State
    columns: Sequence[Frozen]
    rows: Mapping[str, Any] | None = None
    """Where columns and sums of nodes are, if they lie in files of their own."""
    parts: Sequence[Mapping[str, Any]] = ()
    """The files in which several processes wrote the columns."""

    def in_main_memory(self) -> Saved:
        """The same with all rows in main memory, where no later round changes them."""
        columns = [replace(column, rows=column.rows.cpu()) for column in self.columns]
        (seed,) = self.state.seeds
        chosen = {label: replace(choice, w=choice.w.cpu()) for label, choice in seed.chosen.items()}
        seeds = (replace(seed, chosen=chosen),)
        return Saved(State(self.state.w.cpu(), self.state.round, seeds), columns)

    def checkpoint(
        self,
        *,
        history: dict[str, Any],
        fingerprint: dict[str, str],
        stopped: str | None = None,
    ) -> Checkpoint:
        """As tensors and facts; `history` says where the records are.

        `stopped` is the rule that stopped the run early, where one did.
        """
        (seed,) = self.state.seeds
        tensors = {"server": self.state.w}
        if self.rows is None:
            tensors |= dict(total_tensors(seed.totals))
        tensors |= _column_tensors(self.columns)
        chosen = []
        for label, choice in seed.chosen.items():
            chosen.append([label, choice.round, choice.quality])
            tensors[f"chosen.{choice.round}"] = choice.w
            tensors |= _sums_tensors(label, choice.sums)
        scored = []
        for model, (round, parts) in seed.scored.items():
            scored.append([model, round])
            tensors |= _sums_tensors(f"{_LAST}{model}", parts)
        facts = {
            "round": self.state.round,
            "columns": _column_facts(self.columns),
            "chosen": chosen,
            "scored": scored,
            "meter": seed.meter.state(),
            "totals": [list(key) for key in seed.totals],
            "history": history,
            "experiment": fingerprint,
            "versions": checkpoint.versions(),
        }
        if stopped is not None:
            facts["stopped"] = stopped
        if self.rows is not None:
            facts[checkpoint.ROWS] = self.rows
        if self.parts:
            facts[checkpoint.PARTS] = list(self.parts)
        return Checkpoint(tensors, facts)


def columns_alone(columns: Sequence[Frozen], round: int) -> Checkpoint:
    """The columns of a run that stands at a round, without its state."""
    facts = {"round": round, "columns": _column_facts(columns)}
    return Checkpoint(_column_tensors(columns), facts)


def _column_facts(columns: Sequence[Frozen]) -> list[list[Any]]:
    return [[column.tier, column.name, list(column.entries)] for column in columns]


def _column_tensors(columns: Sequence[Frozen]) -> dict[str, Tensor]:
    tensors = {}
    for number, column in enumerate(columns):
        tensors[f"{number}.rows"] = column.rows
        for k, entry in enumerate(column.entries.values()):
            for part, value in vars(entry).items():
                tensors[f"{number}.{k}.{part}"] = value
    return tensors


def _sums_tensors(label: str, parts: Sums) -> dict[str, Tensor]:
    """The figures of devices; with the ids of those scored, where not all were."""
    out = {}
    for part, sums in parts.items():
        name = f"devices.{label}.{part}"
        out[name] = sums.values.clone()
        if len(sums.ids) < sums.nodes:
            out[f"{name}.ids"] = sums.ids.clone()
    return out


def read(
    saved: Checkpoint,
    records: Sequence[dict[str, Any]],
    *,
    like: Tensor,
    sizes: Mapping[str, int],
) -> Saved:
    """A run from its checkpoint and the records beside it; a ValueError says what does not fit.

    `like` is a global row of this run, [1, P]. `sizes` are the nodes of each tier, from the top.
    """
    devices = list(sizes.values())[-1]
    facts = saved.facts
    round = facts["round"]
    w = saved.tensors["server"]
    _check_row(w, like)
    if len(records) != round:
        raise ValueError(f"{len(records)} records of {round} rounds")
    history = History(tuple(record.read(values) for values in records))
    sums: Totals = {}  # those beside the rows are read with them
    if checkpoint.ROWS not in facts:
        sums = read_totals(facts["totals"], saved.tensors, sizes)
    scored = {}
    for model, last in facts["scored"]:
        if not 0 <= int(last) < round:
            raise ValueError(f"{model} was scored in round {last!r}")
        scored[str(model)] = (int(last), _read_sums(saved, f"{_LAST}{model}", devices))
    seed = SeedState(
        history=history,
        chosen=_read_chosen(saved, like, devices),
        scored=scored,
        meter=Meter.from_state(facts["meter"]),
        totals=sums,
    )
    state = State(w.to(like.device), round, (seed,))
    return Saved(state, read_columns(saved, round, like))


def read_columns(saved: Checkpoint, round: int, like: Tensor) -> list[Frozen]:
    """The columns of a checkpoint of a run that stands at a round, or of a part of one."""
    columns = []
    for number, column in enumerate(saved.facts["columns"]):
        tier, name, labels = column
        listed = isinstance(labels, list) and len(set(labels)) == len(labels)
        if not isinstance(name, str) or not listed:
            raise ValueError(f"column {number} is {column!r:.80}")
        entries = {}
        for k, label in enumerate(labels):
            prefix = f"{number}.{k}"
            entry = Entry(
                saved.tensors[f"{prefix}.ids"],
                saved.tensors[f"{prefix}.rounds"],
                saved.tensors[f"{prefix}.places"],
            )
            if bool((entry.rounds >= round).any()):
                raise ValueError(f"{tier} {name}: a row kept after round {round}")
            entries[str(label)] = entry
        rows = saved.tensors[f"{number}.rows"]
        if rows.is_floating_point():  # rows of models lie where the run computes
            rows = rows.to(like.device)
        columns.append(Frozen(tier, name, rows, entries))
    return columns


def going_on(state: State, experiment: Experiment) -> tuple[State, int]:
    """(state, number of records that change) of one run that goes on.

    It has nothing left of what it owes to its last round having been the last.
    """
    (seed,) = state.seeds
    choices = seed.chosen.items()
    chosen = {label: choice for label, choice in choices if not label.startswith(FINAL)}
    history = list(seed.history)
    changed = 0
    if history:
        last = history[-1]
        models = {}  # with the scores that are due in that round
        due = experiment.due(last.round)
        if due:
            for name, model in last.models.items():
                scores = {part: score for part, score in model.scores.items() if part in due}
                models[name] = replace(model, scores=scores)
        changed = int(models != last.models)
        history[-1] = replace(last, models=models)
    before = seed.scored.items()
    scored = {model: entry for model, entry in before if history[entry[0]].models}
    seed = replace(seed, history=History(tuple(history)), chosen=chosen, scored=scored)
    return replace(state, seeds=(seed,)), changed


def _read_chosen(saved: Checkpoint, like: Tensor, devices: int) -> dict[str, Chosen]:
    out = {}
    for label, number, quality in saved.facts["chosen"]:
        row = saved.tensors[f"chosen.{number}"]
        _check_row(row, like)
        round = int(number)
        past = 0 <= round < saved.facts["round"]
        if not past or not math.isfinite(quality):
            raise ValueError(f"{label} was chosen in round {round + 1} with {quality!r}")
        out[str(label)] = Chosen(
            round=round,
            quality=float(quality),
            w=row.to(like.device),
            sums=_read_sums(saved, label, devices),
        )
    return out


def _read_sums(saved: Checkpoint, label: str, devices: int) -> Sums:
    """How every device did, by part of the data."""
    out = {}
    for part in PARTS:
        name = f"devices.{label}.{part}"
        values = saved.tensors.get(name)
        if values is None:
            continue
        ids = saved.tensors.get(f"{name}.ids")
        if ids is None:
            ids = torch.arange(devices)
        if not fits(values, len(ids)) or not rising(ids, devices):
            raise ValueError(f"{label}: scores of devices {tuple(values.shape)} {values.dtype}")
        out[part] = NodeFigures(devices, ids, values)
    return out


def _check_row(row: Tensor, like: Tensor) -> None:
    same_form = row.shape == like.shape and row.dtype == like.dtype
    if not same_form or not bool(torch.isfinite(row).all()):
        wanted = f"{tuple(like.shape)} {like.dtype}, all finite"
        raise ValueError(f"a global row {tuple(row.shape)} {row.dtype}, not {wanted}")
