"""The models that a node uses, written as files into its own folder.

A device has its own model, and those of the nodes above it that it predicts with: its edge's and
the global one. Each is as it was in the round that was chosen for it. The files are those of a run
folder (covey/runs/saved/snapshot.py), with this node's entry alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from covey.deployed.node.node_rows import NodeRow
from covey.runs.models import GLOBAL, PERSONAL
from covey.runs.saved import snapshot
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.snapshot import PRIVATE, Beside, Snapshot
from covey.runs.seed import Seed

if TYPE_CHECKING:
    from covey.deployed.node.node import Node

DISK = "node.sqlite"
FALLBACK = "fallback "
"""Before the name of a model: the name of the global row of its chosen round."""


@dataclass(frozen=True)
class ChosenModel:
    """Which version of a model is reported, and what else its predictions need."""

    model: str
    tier: str
    label: str
    """Under which nodes hold it, or "present"."""
    round: int
    beside: tuple[str, ...]
    """The names of other rows of devices."""


def chosen_models(run: Seed) -> tuple[list[ChosenModel], list[NodeRow]]:
    """The models of a run, and the global row of each one's chosen round."""
    top = run.runtime.tree.tiers[0]
    models = []
    rows = []
    for name in run.models():
        one = run.version(name)
        models.append(ChosenModel(name, one.tier, one.label, one.round, one.beside))
        rows.append(NodeRow(top, 0, f"{FALLBACK}{name}", one.label, one.round, one.w[0]))
    return models, rows


def as_arguments(models: Sequence[ChosenModel]) -> dict[str, Any]:
    """An order to write these models."""
    return {"models": [asdict(model) for model in models], "broadcast": True}


def rows_for_below(node: Node, arguments: Any) -> list[NodeRow]:
    """The rows of this node that those below it predict with."""
    out = []
    for model in _read(arguments):
        if model.tier == node.place.tier and model.model != GLOBAL:
            out += node.own.rows(model.model, model.label)
    return out


def write(node: Node, arguments: Any, rows: Sequence[NodeRow]) -> list[Path]:
    """Write the models that a node uses; `rows` are those of the nodes above it.

    A file is replaced in one step, and the one before stays where that fails.
    """
    device = node.place.tiers[-1]
    folder = RunFolder(node.database.path.parent)
    out = []
    rounds = {}
    for model in _read(arguments):
        own = model.tier == node.place.tier
        if not own and node.place.tier != device:
            continue
        taken = _snapshot(node, model, rows)
        if taken is None:
            continue
        path = folder.model(model.model)
        snapshot.write(path, taken, node.task.space, type(node.algorithm).__name__)
        out.append(path)
        rounds[model.model] = taken.round
    facts = {"tier": node.place.tier, "number": node.place.number, "models": rounds}
    folder.write(folder.node, json.dumps(facts) + "\n")
    return out


def _read(arguments: Any) -> list[ChosenModel]:
    models = arguments["models"]
    return [ChosenModel(**{**values, "beside": tuple(values["beside"])}) for values in models]


def _snapshot(node: Node, model: ChosenModel, rows: Sequence[NodeRow]) -> Snapshot | None:
    """A model with this node's entry alone; None where neither it nor one above has one."""
    fallback = next((kept.row for kept in rows if kept.name == f"{FALLBACK}{model.model}"), None)
    column = (model.tier, model.model, model.label)
    versions = [kept for kept in rows if (kept.tier, kept.name, kept.label) == column]
    if model.tier == node.place.tier:
        versions = node.own.rows(model.model, model.label)
    if model.model == GLOBAL and fallback is not None:
        versions = [NodeRow(model.tier, 0, GLOBAL, model.label, model.round, fallback)]
    values = [kept.row[None] for kept in versions if kept.row is not None]
    if values:
        fallback = None
    elif fallback is None:
        return None
    ids = torch.tensor([kept.number for kept in versions], dtype=torch.int64)
    none = torch.zeros(0, node.task.space.width, dtype=node.task.dtype)
    stacked = values[0] if len(values) == 1 else torch.cat(values or [none])  # one is not copied
    taken = Snapshot(model.model, model.tier, model.round, ids, stacked, fallback)
    return _completed(node, model, taken)


def _completed(node: Node, model: ChosenModel, taken: Snapshot) -> Snapshot:
    """With the other rows that a device's predictions need."""
    if node.place.tier != node.place.tiers[-1]:
        return taken
    beside = {}
    number = torch.tensor([node.place.number])
    for name in model.beside:
        for kept in node.own.rows(name, model.label):
            assert kept.row is not None
            if name == PERSONAL and node.algorithm.splits:
                shared = node.task.space.shared
                beside[PRIVATE] = Beside(number, kept.row[None, shared:], shared)
            else:
                beside[name] = Beside(number, kept.row[None])
    row = taken.rows[0] if len(taken.rows) else taken.fallback
    statistics = None
    if node.task.space.norms and row is not None:
        statistics = Beside(number, node.task.statistics(row[None], number))
    return replace(taken, beside=beside, statistics=statistics)
