"""A model as it was in one round, with everything that its predictions need.

It is what `models/NAME.safetensors` holds. The file has `ids` and, stacked over these nodes, every
parameter under its own name. Besides, where there is any:

    fallback/PARAMETER                the global model of that round, for nodes without a row
    private/ids, private/PARAMETER    devices' own layers, where the algorithm leaves some private
    statistics/ids, statistics/...    devices' own running_mean and running_var of BatchNorm layers
    NAME/ids, NAME/...                other rows that devices predict with, such as a variance

so that `module.load_state_dict` of one entry gives the model that was scored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from covey.atomic import refused
from covey.engine.modules import norm
from covey.engine.modules.layout import ParameterLayout, Slot
from covey.errors import CheckpointError, ConfigError
from covey.runs.saved import checkpoint

Reader = Callable[[Tensor], Tensor]
"""Reads the rows of some nodes, whose ids it is given, from where they lie."""
PRIVATE = "private"
STATISTICS = "statistics"


@dataclass(frozen=True, eq=False)
class Beside:
    """Rows of devices that a model needs but that have another name.

    They are some columns of a model's row, or have a shape of their own.
    """

    ids: Tensor
    rows: Tensor
    start: int = 0  # the first column of a model's row that these are
    reader: Reader | None = None  # where rows stay in files; `rows` is then empty

    def columns_from(self, start: int) -> Beside:
        """The columns of these rows of models from `start` on, such as those of private layers."""
        reader = self.reader
        rows = self.rows[:, start:]
        if reader is None:
            return Beside(self.ids, rows, start)
        return Beside(self.ids, rows, start, lambda ids: reader(ids)[:, start:])

    def of(self, device: int) -> Tensor:
        """The row of a device, [1, ...]; [0, ...] where it has none."""
        have = self.ids == device
        if self.reader is not None:
            return self.reader(self.ids[have])
        return self.rows[have]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One model in one round: its nodes, their rows [m, P], and other rows for its predictions."""

    model: str
    tier: str
    round: int  # counted from 0
    ids: Tensor
    rows: Tensor
    fallback: Tensor | None = None  # [P]; None where every node of the tier has a row
    beside: Mapping[str, Beside] = field(default_factory=dict)
    statistics: Beside | None = None
    """The statistics of every device's norm layers [S], where the model has such layers."""
    reader: Reader | None = None  # where rows stay in files; `rows` is then empty

    def row(self, node: int, device: int | None = None) -> Tensor | None:
        """The row of a node [P], completed with a device's private layers.

        None where there is no row.
        """
        row = self.fallback
        where = (self.ids == node).nonzero()
        if len(where) and self.reader is not None:
            row = self.reader(self.ids[where[0]])[0]
        elif len(where):
            row = self.rows[int(where[0, 0])]
        private = self.beside.get(PRIVATE)
        if row is None or device is None or private is None:
            return row
        layers = private.of(device)
        if not len(layers):
            return row
        return torch.cat([row[: private.start], layers[0]])

    def statistics_of(self, devices: Sequence[int], space: ParameterLayout) -> Tensor | None:
        """The statistics of a device [S], or of several pooled; None without norm layers."""
        if not space.norms:
            return None
        if self.statistics is None:
            why = "the statistics of its BatchNorm layers are with the data of devices"
            fix = "use it in the folder of a device"
            raise ConfigError(f"the model {self.model!r} cannot be used here: {why}; {fix}.")
        wanted = torch.tensor(list(devices))
        rows = self.statistics.rows[torch.isin(self.statistics.ids, wanted)]
        if len(rows) == 1:
            return rows[0]
        return norm.pooled(space.norms, rows)


def write(path: Path, snapshot: Snapshot, space: ParameterLayout, algorithm: str) -> None:
    """The file, replaced in one step; the same bytes for the same model."""
    tensors = {"ids": snapshot.ids, **dict(_parameters(snapshot.rows, space.slots))}
    if snapshot.fallback is not None:
        for name, value in _parameters(snapshot.fallback[None], space.slots):
            tensors[f"fallback/{name}"] = value[0]
    for name, part in snapshot.beside.items():
        tensors[f"{name}/ids"] = part.ids
        for key, value in _beside_tensors(part, space):
            tensors[f"{name}/{key}"] = value
    if snapshot.statistics is not None:
        tensors[f"{STATISTICS}/ids"] = snapshot.statistics.ids
        for layer in space.norms:
            mean, variance = layer.view(snapshot.statistics.rows).unbind(1)
            tensors[f"{STATISTICS}/{layer.name}.running_mean"] = mean
            tensors[f"{STATISTICS}/{layer.name}.running_var"] = variance
    metadata = {
        "model": snapshot.model,
        "tier": snapshot.tier,
        "round": str(snapshot.round + 1),
        "algorithm": algorithm,
    }
    for name, tensor in tensors.items():
        tensors[name] = tensor.detach().cpu().contiguous()
    with refused(path, "what was saved before is untouched"):
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_tensors(path, tensors, metadata)


def _beside_tensors(part: Beside, space: ParameterLayout) -> Iterator[tuple[str, Tensor]]:
    """Other rows as parameters, where they are the last columns of a model's row."""
    if part.rows.ndim != 2 or part.start + part.rows.shape[1] != space.width:
        yield "rows", part.rows
        return
    slots = [slot for slot in space.slots if slot.start >= part.start]
    rows = torch.zeros(len(part.rows), space.width, dtype=part.rows.dtype)
    rows[:, part.start :] = part.rows
    yield from _parameters(rows, slots)


def read(path: str | os.PathLike[str], space: ParameterLayout) -> Snapshot:
    """The snapshot that `write` wrote, for models of the same layers."""
    try:
        return _read(path, space)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"cannot read the model in {path}: {error}; run the experiment again."
        ) from error


def _read(path: str | os.PathLike[str], space: ParameterLayout) -> Snapshot:
    with safe_open(path, framework="pt") as file:
        facts: dict[str, Any] = file.metadata() or {}
        tensors = checkpoint.tensors_of(file)
    ids = tensors.pop("ids")
    rows = _rows(tensors, "", len(ids), space.slots, space.width)
    fallback = None
    single = {name: row[None] for name, row in tensors.items() if name.startswith("fallback/")}
    if single:
        fallback = _rows(single, "fallback/", 1, space.slots, space.width)[0]
    statistics = None
    if f"{STATISTICS}/ids" in tensors:
        parts = []
        for layer in space.norms:
            parts.append(tensors[f"{STATISTICS}/{layer.name}.running_mean"])
            parts.append(tensors[f"{STATISTICS}/{layer.name}.running_var"])
        statistics = Beside(tensors[f"{STATISTICS}/ids"], torch.cat(parts, dim=1))
    beside = {}
    for name in sorted(tensors):
        key = name.removesuffix("/ids")
        if key not in (name, STATISTICS):
            prefix = f"{key}/"
            devices = tensors[name]
            if f"{prefix}rows" in tensors:
                beside[key] = Beside(devices, tensors[f"{prefix}rows"])
                continue
            slots = [slot for slot in space.slots if f"{prefix}{slot.name}" in tensors]
            start = min(slot.start for slot in slots)
            columns = _rows(tensors, prefix, len(devices), slots, space.width)[:, start:]
            beside[key] = Beside(devices, columns, start)
    return Snapshot(
        model=facts["model"],
        tier=facts["tier"],
        round=int(facts["round"]) - 1,
        ids=ids,
        rows=rows,
        fallback=fallback,
        beside=beside,
        statistics=statistics,
    )


def _parameters(rows: Tensor, slots: Sequence[Slot]) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of stacked rows, in the shape its module has it."""
    for slot in slots:
        yield slot.name, _turned(slot, slot.view(rows))


def _turned(slot: Slot, values: Tensor) -> Tensor:
    """Stacked values of a parameter, from the stored shape to the module's, or back."""
    if slot.transposed:
        return values.transpose(1, 2)
    return values


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
        slot.view(rows).copy_(_turned(slot, values))
    return rows
