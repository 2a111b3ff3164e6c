"""A model as it was in one round, with everything its predictions need: what
`models/NAME.safetensors` holds.

The file has `ids` and, stacked over these nodes, every parameter under its own name. Besides, where
there is any:

    fallback/PARAMETER      the global model of that round, used for nodes that have no model of
    this name private/ids, private/PARAMETER   devices' own layers, where the algorithm leaves some
    on the device NAME/ids, NAME/...      other rows that devices kept and predict with, such as a
    variance

so that `module.load_state_dict` of one entry gives the model that was scored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from covey.engine.layout import ParameterLayout, Slot
from covey.errors import CheckpointError
from covey.runs import checkpoint

PRIVATE = "private"


@dataclass(frozen=True, eq=False)
class Beside:
    """Rows of devices that belong to a model they were not kept under: of some columns, or of a
    shape of their own.
    """

    ids: Tensor
    rows: Tensor
    start: int = 0  # the first column of a model's row that these are


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One model in one round: who keeps it, their rows [m, P], and what else its predictions need."""

    model: str
    tier: str
    round: int  # counted from 0
    ids: Tensor
    rows: Tensor
    fallback: Tensor | None = None  # [P]; None where every node of the tier has a row
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def row(self, node: int, device: int | None = None) -> Tensor | None:
        """The row of a node [P], completed with a device's private layers; None where there is
        none.
        """
        where = (self.ids == node).nonzero()
        row = self.rows[int(where[0, 0])] if len(where) else self.fallback
        if row is None or device is None:
            return row
        private = self.beside.get(PRIVATE)
        if private is not None and bool((private.ids == device).any()):
            row = torch.cat([row[: private.start], private.rows[private.ids == device][0]])
        return row


def write(
    path: Path,
    snapshot: Snapshot,
    space: ParameterLayout,
    algorithm: str,
) -> None:
    """The file, replaced in one step; the same bytes for the same model."""
    tensors = {"ids": snapshot.ids, **dict(_parameters(snapshot.rows, space.slots))}
    if snapshot.fallback is not None:
        row = snapshot.fallback[None]
        tensors |= {f"fallback/{name}": value[0] for name, value in _parameters(row, space.slots)}
    for name, part in snapshot.beside.items():
        tensors[f"{name}/ids"] = part.ids
        if part.rows.ndim == 2 and part.start + part.rows.shape[1] == space.width:
            slots = [slot for slot in space.slots if slot.start >= part.start]
            rows = torch.zeros(len(part.rows), space.width, dtype=part.rows.dtype)
            rows[:, part.start :] = part.rows
            tensors |= {f"{name}/{key}": value for key, value in _parameters(rows, slots)}
        else:
            tensors[f"{name}/rows"] = part.rows
    metadata = {
        "model": snapshot.model,
        "tier": snapshot.tier,
        "round": str(snapshot.round + 1),
        "algorithm": algorithm,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_tensors(path, tensors, metadata)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write {path}: {error}; what was saved before is untouched."
        ) from error


def read(path: str | os.PathLike[str], space: ParameterLayout) -> Snapshot:
    """What `write` wrote, for models of the same layers."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        ids = tensors.pop("ids")
        rows = _rows(tensors, "", len(ids), space.slots, space.width)
        fallback = None
        if any(name.startswith("fallback/") for name in tensors):
            single = {
                name: value[None] for name, value in tensors.items() if name.startswith("fallback/")
            }
            fallback = _rows(single, "fallback/", 1, space.slots, space.width)[0]
        beside = {}
        for key in sorted(tensors):
            if key.endswith("/ids"):
                beside[key.removesuffix("/ids")] = _beside(tensors, key.removesuffix("ids"), space)
        return Snapshot(
            facts["model"], facts["tier"], int(facts["round"]) - 1, ids, rows, fallback, beside
        )
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"cannot read the model in {path}: {error}; run the experiment again."
        ) from error


def _beside(
    tensors: Mapping[str, Tensor],
    prefix: str,
    space: ParameterLayout,
) -> Beside:
    ids = tensors[f"{prefix}ids"]
    if f"{prefix}rows" in tensors:
        return Beside(ids, tensors[f"{prefix}rows"])
    slots = [slot for slot in space.slots if f"{prefix}{slot.name}" in tensors]
    start = min(slot.start for slot in slots)
    rows = _rows(tensors, prefix, len(ids), slots, space.width)
    return Beside(ids, rows[:, start:], start)


def _parameters(rows: Tensor, slots: Sequence[Slot]) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of stacked rows, in the shape its module has it."""
    for slot in slots:
        view = slot.view(rows)
        yield slot.name, view.transpose(1, 2) if slot.transposed else view


def _rows(
    tensors: Mapping[str, Tensor],
    prefix: str,
    count: int,
    slots: Sequence[Slot],
    width: int,
) -> Tensor:
    """The inverse of `_parameters`; columns of other slots are 0."""
    rows = torch.zeros(count, width, dtype=tensors[f"{prefix}{slots[0].name}"].dtype)
    for slot in slots:
        values = tensors[f"{prefix}{slot.name}"]
        slot.view(rows).copy_(values.transpose(1, 2) if slot.transposed else values)
    return rows
