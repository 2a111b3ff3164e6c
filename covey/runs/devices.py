"""How every single device does: each model on each device's own examples, in the round that is
reported and in the last.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

PARTS = ("train", "validation", "test")
RIGHT, LOSS, COUNT, HOLDS, ABSOLUTE, SQUARED = range(6)
Sums = dict[str, Tensor]
"""By part of the data: right answers, summed loss, examples, whether the device holds the model,
[devices, 4]; where numbers are predicted, [devices, 6] with the sums of |error| and error^2."""


@dataclass(frozen=True)
class DeviceScore:
    """One model on one device's examples of one part; accuracies are shares, None for regression."""

    device: str  # as the data calls it, or its number
    edge: str | None
    model: str
    part: str
    examples: int
    round: int  # the reported one, counted from 1
    accuracy: float | None
    loss: float | None
    last_round: int
    last_accuracy: float | None
    last_loss: float | None
    holds: bool  # False: the device keeps no such model, nor does its edge, and the global one stands in
    rmse: float | None = None  # these four where numbers are predicted, else None
    mae: float | None = None
    last_rmse: float | None = None
    last_mae: float | None = None


def sums_of(reports: Mapping[str, tuple[Tensor, Tensor]], devices: int) -> dict[str, Sums]:
    """How every device did, by model and part, from what devices reported as "MODEL/PART" when
    models were scored.
    """
    out: dict[str, Sums] = {}
    for name, (ids, figures) in reports.items():
        model, _, part = name.rpartition("/")
        sums = torch.zeros(devices, figures.shape[1], dtype=torch.float64)
        sums[ids] = figures
        out.setdefault(model, {})[part] = sums
    return out


def table(
    chosen: Mapping[str, tuple[int, Sums]], last: Mapping[str, tuple[int, Sums]],
    names: Sequence[str], edges: Sequence[str | None], *, classifies: bool,
) -> list[DeviceScore]:  # fmt: skip
    """One line per model, part and device that has examples; each model's round and sums, then and
    in the end.
    """
    out = []
    for model, (round, parts) in chosen.items():
        last_round, last_parts = last.get(model, (round, parts))
        for part in (part for part in PARTS if part in parts):
            sums = parts[part]
            ends = last_parts.get(part, sums)
            for k, (row, end) in enumerate(zip(sums.tolist(), ends.tolist(), strict=True)):
                if not row[COUNT]:
                    continue
                figures = (
                    round + 1,
                    *_figures(row, classifies),
                    last_round + 1,
                    *_figures(end, classifies),
                )
                errors = (*_errors(row), *_errors(end))
                facts = (int(row[COUNT]), *figures, bool(row[HOLDS]), *errors)
                out.append(DeviceScore(names[k], edges[k], model, part, *facts))
    return out


def fits(sums: Tensor, devices: int) -> bool:
    """Whether sums from a file have the form of a run's."""
    return (
        sums.dtype == torch.float64
        and sums.ndim == 2
        and len(sums) == devices
        and sums.shape[1] in (4, 6)
    )


def _figures(row: Sequence[float], classifies: bool) -> tuple[float | None, float | None]:
    count = row[COUNT]
    if not count:
        return None, None
    return row[RIGHT] / count if classifies else None, row[LOSS] / count


def _errors(row: Sequence[float]) -> tuple[float | None, float | None]:
    """RMSE and MAE; None for classes."""
    count = row[COUNT]
    if not count or len(row) <= SQUARED:
        return None, None
    return math.sqrt(row[SQUARED] / count), row[ABSOLUTE] / count


_NUMBERS = ("rmse", "mae", "last_rmse", "last_mae")


def to_csv(scores: Iterable[DeviceScore]) -> str:
    """The table as a CSV file; None is an empty cell. Errors have columns where numbers are
    predicted.
    """
    rows = [asdict(score) for score in scores]
    numbers = any(row["rmse"] is not None for row in rows)
    columns = [field.name for field in fields(DeviceScore) if numbers or field.name not in _NUMBERS]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


_READ: dict[str, Any] = {
    "examples": int, "round": int, "last_round": int, "accuracy": float, "loss": float, "last_accuracy": float,
    "last_loss": float, "holds": lambda text: text == "True", **dict.fromkeys(_NUMBERS, float),
}  # fmt: skip
_TEXT = ("device", "edge", "model", "part")


def from_csv(text: str) -> list[DeviceScore]:
    """What `to_csv` wrote."""
    out = []
    for row in csv.DictReader(io.StringIO(text)):
        values: dict[str, Any] = {key: row[key] or None for key in _TEXT}
        values |= {key: read(row[key]) if row.get(key) else None for key, read in _READ.items()}
        out.append(DeviceScore(**values))
    return out
