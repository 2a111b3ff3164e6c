"""Scores per device: each model on each device's own examples, in the chosen and the last round."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covey.engine.measures.metrics import ABSOLUTE, COUNT, HOLDS, USUAL, Metric, own_figures
from covey.runs.csv_text import csv_text, unquoted
from covey.runs.scores.figures import METRICS, PARTS, Sums

_ALWAYS = ("accuracy", "loss")
"""Metrics of every line, known or not."""


@dataclass(frozen=True)
class DeviceScore:
    """One model on one device's examples of one part.

    A metric is also an attribute: `line.accuracy`, `line.last_f1`. Fractions such as an accuracy
    are None for regression.
    """

    device: str  # as the data calls it, or its number
    edge: str | None
    model: str
    part: str
    examples: int
    round: int  # the reported one, counted from 1
    last_round: int
    holds: bool  # False: neither device nor edge keeps the model, and the global one stands in
    figures: dict[str, float | None]  # metrics by name
    last: dict[str, float | None]  # the same in the last scored round
    tokens: int | None = None  # positions with a label, where labels are per position

    def __getattr__(self, key: str) -> Any:
        name = key.removeprefix("last_")
        figures: dict[str, float | None] = vars(self).get("last" if name != key else "figures", {})
        if name in USUAL or name in figures:
            return figures.get(name)
        raise AttributeError(f"a line of a device has no {key!r}")

    @property
    def metrics(self) -> dict[str, float | None]:
        """The metrics that only some experiments ask for."""
        return {name: value for name, value in self.figures.items() if name not in USUAL}

    @property
    def last_metrics(self) -> dict[str, float | None]:
        """The same in the last scored round."""
        return {name: value for name, value in self.last.items() if name not in USUAL}

    def as_dict(self) -> dict[str, Any]:
        """Every figure under one name; a metric of the last scored round has "last_" before it."""
        out = vars(self) | self.figures
        out |= {f"last_{name}": value for name, value in self.last.items()}
        del out["figures"], out["last"]
        return out


def table(
    chosen: Mapping[str, tuple[int, Sums]],
    last: Mapping[str, tuple[int, Sums]],
    names: Sequence[str],
    edges: Sequence[str | None],
    metrics: Sequence[Metric],
    *,
    examples: Mapping[str, Sequence[int]] | None = None,
    most: int | None = None,
) -> list[DeviceScore]:
    """One line per model, part and device that has examples.

    Where more than `most` devices have figures, they are every so many of all devices.

    `chosen` and `last` hold each model's round and sums, in its chosen and in its last scored
    round. Where sums count positions, `examples` are the devices' examples by part. `metrics` are
    those of the run.
    """
    own = own_figures(metrics)
    out = []
    for model, (round, parts) in chosen.items():
        last_round, last_parts = last.get(model, (round, parts))
        for part in PARTS:
            if part not in parts:
                continue
            figures = parts[part]
            order = torch.argsort(figures.ids)
            if most is not None and len(order) > most:
                step = math.ceil(figures.nodes / most)
                order = order[figures.ids[order] % step == 0]
            ids = figures.ids[order]
            rows = figures.values[order].tolist()
            last_rows = last_parts.get(part, figures).dense()[ids].tolist()
            for k, row, last_row in zip(ids.tolist(), rows, last_rows, strict=True):
                if not 0 < row[COUNT] < math.inf:  # it may come from another machine
                    continue
                counted = int(row[COUNT])
                line = DeviceScore(
                    device=names[k],
                    edge=edges[k],
                    model=model,
                    part=part,
                    examples=counted if examples is None else examples[part][k],
                    round=round + 1,
                    last_round=last_round + 1,
                    holds=bool(row[HOLDS]),
                    figures=_figures(row, metrics, own),
                    last=_figures(last_row, metrics, own),
                    tokens=None if examples is None else counted,
                )
                out.append(line)
    return out


def paired(
    lines: Sequence[DeviceScore],
    others: Sequence[DeviceScore],
    model: str | None,
    other: str | None,
) -> list[tuple[DeviceScore, DeviceScore]]:
    """Every device's test score with a model, and that with the other model among the others."""
    bases = {line.device: line for line in others if (line.part, line.model) == ("test", other)}
    own = [line for line in lines if (line.part, line.model) == ("test", model)]
    return [(line, bases[line.device]) for line in own if line.device in bases]


def fits(sums: Tensor, devices: int) -> bool:
    """Whether sums from a file have the form of a run's."""
    if sums.dtype != torch.float64 or sums.ndim != 2:
        return False
    rows, columns = sums.shape
    return rows == devices and (columns == 4 or columns >= METRICS)


def _figures(
    row: Sequence[float], metrics: Sequence[Metric], own: Sequence[Metric]
) -> dict[str, float | None]:
    """The figures of one device by name, from what it reports; None where they are not known."""
    count = row[COUNT]
    out: dict[str, float | None] = dict.fromkeys(_ALWAYS)
    for metric in metrics:
        if metric.mean is not None:
            column = metric.mean.column
            total = row[column] if column < len(row) else math.nan
            lacks = column >= ABSOLUTE and math.isnan(total)  # of a file or another machine
            out[metric.name] = None if lacks or not count else metric.mean.outer(total / count)
    for number, metric in enumerate(own):
        value = row[METRICS + number] if count else math.nan
        out[metric.name] = None if math.isnan(value) else value
    return out


_COLUMNS = (
    *("device", "edge", "model", "part", "examples", "round", "accuracy", "loss"),
    *("last_round", "last_accuracy", "last_loss", "holds"),
)
"""The first columns of a file."""


def to_csv(scores: Iterable[DeviceScore]) -> str:
    """The table as a CSV file; None is an empty cell."""
    lines = list(scores)
    columns = list(_COLUMNS)
    if any(line.tokens is not None for line in lines):
        columns.append("tokens")
    names = list(lines[0].figures) if lines else []
    usual = [name for name in names if name in USUAL and name not in _ALWAYS]
    columns += [*usual, *(f"last_{name}" for name in usual)]
    for name in names:
        if name not in USUAL:
            columns += [name, f"last_{name}"]
    return csv_text(columns, [line.as_dict() for line in lines])


def from_csv(text: str) -> list[DeviceScore]:
    """The scores that `to_csv` wrote."""
    reader = csv.DictReader(io.StringIO(text))
    facts = ("device", "edge", "model", "part", "examples", "round", "last_round", "holds")
    known = {*facts, "tokens"}
    names = [name for name in reader.fieldnames or () if name not in known]
    last = [name for name in names if name.startswith("last_")]
    out = []
    for row in reader:
        line = DeviceScore(
            device=unquoted(row["device"]),
            edge=unquoted(row["edge"]) or None,
            model=unquoted(row["model"]),
            part=unquoted(row["part"]),
            examples=int(row["examples"]),
            round=int(row["round"]),
            last_round=int(row["last_round"]),
            holds=row["holds"] == "True",
            figures={name: _number(row[name]) for name in names if name not in last},
            last={name.removeprefix("last_"): _number(row[name]) for name in last},
            tokens=int(row["tokens"]) if row.get("tokens") else None,
        )
        out.append(line)
    return out


def _number(cell: str) -> float | None:
    """The number in a cell; None where it is empty."""
    return float(cell) if cell else None
