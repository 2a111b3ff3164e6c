"""Scores per device: each model on each device's own examples, in the chosen and the last round."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from covey.runs.csv_text import csv_text, unquoted
from covey.runs.figures import NodeFigures

PARTS = ("train", "validation", "test")
RIGHT, LOSS, COUNT, HOLDS, ABSOLUTE, SQUARED = range(6)
Sums = dict[str, NodeFigures]
"""By part of the data: right answers, summed loss, examples, whether the device holds the model,
[m, 4], of the m devices that were scored; where numbers are predicted, [m, 6] with the sums of
|error| and error^2. Values of metrics follow as columns 6 and up; where there are no errors,
columns 4 and 5 are then NaN."""
METRICS = 6
MOST_EXAMPLES = 2**32 - 2
"""Of one device: its right answers are recorded in four bytes (covey/runs/packing.py)."""


@dataclass(frozen=True)
class DeviceScore:
    """One model on one device's examples of one part.

    Accuracies are fractions, None for regression.
    """

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
    holds: bool  # False: neither device nor edge keeps the model, and the global one stands in
    rmse: float | None = None  # these four where numbers are predicted, else None
    mae: float | None = None
    last_rmse: float | None = None
    last_mae: float | None = None
    tokens: int | None = None  # positions with a label; these three where labels are per position
    perplexity: float | None = None
    last_perplexity: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)  # that the experiment asks for
    last_metrics: dict[str, float | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Every figure under one name; a metric of the last scored round has "last_" before it."""
        out = asdict(self)
        del out["metrics"], out["last_metrics"]
        for name, value in self.metrics.items():
            out[name] = value
            out[f"last_{name}"] = self.last_metrics.get(name)
        return out


def sums_of(reports: Mapping[str, tuple[Tensor, Tensor]], devices: int) -> dict[str, Sums]:
    """The figures of every device, by model and part.

    `reports` are what devices reported as "MODEL/PART" when models were scored.
    """
    out: dict[str, Sums] = {}
    for name, (ids, figures) in reports.items():
        model, _, part = name.rpartition("/")
        if part not in PARTS:
            continue
        sums = NodeFigures(devices, ids, figures.double())
        out.setdefault(model, {})[part] = sums
    return out


def table(
    chosen: Mapping[str, tuple[int, Sums]],
    last: Mapping[str, tuple[int, Sums]],
    names: Sequence[str],
    edges: Sequence[str | None],
    *,
    classifies: bool,
    examples: Mapping[str, Sequence[int]] | None = None,
    has_perplexity: bool = False,
    metrics: Sequence[str] = (),
    most: int | None = None,
) -> list[DeviceScore]:
    """One line per model, part and device that has examples.

    Where more than `most` devices have figures, they are every so many of all devices.

    `chosen` and `last` hold each model's round and sums, in its chosen and in its last scored
    round. Where sums count positions, `examples` are the devices' examples by part. `metrics` names
    those that sums hold.
    """
    out = []
    for model, (round, parts) in chosen.items():
        last_round, last_parts = last.get(model, (round, parts))
        for part in PARTS:
            if part not in parts:
                continue
            figures = _spaced(parts[part], most)
            last_sums = last_parts.get(part, parts[part]).dense()[figures.ids]
            rows = zip(
                figures.ids.tolist(), figures.values.tolist(), last_sums.tolist(), strict=True
            )
            for k, row, last_row in rows:
                if not 0 < row[COUNT] < math.inf:  # it may come from another machine
                    continue
                accuracy, loss = _figures(row, classifies)
                last_accuracy, last_loss = _figures(last_row, classifies)
                rmse, mae = _errors(row)
                last_rmse, last_mae = _errors(last_row)
                score = DeviceScore(
                    device=names[k],
                    edge=edges[k],
                    model=model,
                    part=part,
                    examples=int(row[COUNT]),
                    round=round + 1,
                    accuracy=accuracy,
                    loss=loss,
                    last_round=last_round + 1,
                    last_accuracy=last_accuracy,
                    last_loss=last_loss,
                    holds=bool(row[HOLDS]),
                    rmse=rmse,
                    mae=mae,
                    last_rmse=last_rmse,
                    last_mae=last_mae,
                    metrics=_metrics(row, metrics),
                    last_metrics=_metrics(last_row, metrics),
                )
                if examples is not None:
                    score = _by_token(score, examples[part][k], has_perplexity)
                out.append(score)
    return out


def _spaced(figures: NodeFigures, most: int | None) -> NodeFigures:
    """The figures in the order of nodes; of more than `most`, those of every so many nodes.

    >>> figures = NodeFigures(10, torch.tensor([9, 0, 3, 4, 6]), torch.arange(5))
    >>> _spaced(figures, 4).ids.tolist(), _spaced(figures, 5).ids.tolist()
    ([0, 3, 6, 9], [0, 3, 4, 6, 9])
    """
    order = torch.argsort(figures.ids)
    if most is not None and len(order) > most:
        step = math.ceil(figures.nodes / most)
        order = order[figures.ids[order] % step == 0]
    return replace(figures, ids=figures.ids[order], values=figures.values[order])


def _by_token(score: DeviceScore, examples: int, has_perplexity: bool) -> DeviceScore:
    """A line whose sums counted positions."""
    score = replace(score, examples=examples, tokens=score.examples)
    if not has_perplexity:
        return score
    return replace(
        score,
        perplexity=perplexity(score.loss),
        last_perplexity=perplexity(score.last_loss),
    )


_LARGEST_LOSS = 700.0  # whose exponential is still a float


def perplexity(loss: float | None) -> float | None:
    """The exponential of a mean loss per token; infinite where it is too large for a float.

    >>> round(perplexity(math.log(26)), 6)
    26.0
    """
    if loss is None:
        return None
    if loss > _LARGEST_LOSS:
        return math.inf
    return math.exp(loss)


def fits(sums: Tensor, devices: int) -> bool:
    """Whether sums from a file have the form of a run's."""
    if sums.dtype != torch.float64 or sums.ndim != 2:
        return False
    rows, columns = sums.shape
    return rows == devices and (columns == 4 or columns >= METRICS)


def _figures(row: Sequence[float], classifies: bool) -> tuple[float | None, float | None]:
    count = row[COUNT]
    if not count:
        return None, None
    loss = row[LOSS] / count
    if not classifies:
        return None, loss
    return row[RIGHT] / count, loss


def _errors(row: Sequence[float]) -> tuple[float | None, float | None]:
    """RMSE and MAE; None for classes."""
    count = row[COUNT]
    if not count or len(row) <= SQUARED or math.isnan(row[SQUARED]):
        return None, None
    rmse = root(row[SQUARED] / count)
    mae = row[ABSOLUTE] / count
    return rmse, mae


def root(mean: float) -> float:
    """The root of a mean of squares; NaN where it is negative, as another machine may have said.

    >>> root(4.0), root(-4.0)
    (2.0, nan)
    """
    if mean < 0:
        return math.nan
    return math.sqrt(mean)


def _metrics(row: Sequence[float], names: Sequence[str]) -> dict[str, float | None]:
    """The values of metrics by name; None where they are not known."""
    values = row[METRICS:]
    if not row[COUNT]:
        return dict.fromkeys(names)
    pairs = zip(names, values, strict=True)
    return {name: None if math.isnan(value) else value for name, value in pairs}


_NUMBERS = ("rmse", "mae", "last_rmse", "last_mae")
_TOKENS = ("tokens", "perplexity", "last_perplexity")


def to_csv(scores: Iterable[DeviceScore]) -> str:
    """The table as a CSV file; None is an empty cell.

    Errors have columns where numbers are predicted, tokens where labels are per position.
    """
    rows = [score.as_dict() for score in scores]
    columns = [field.name for field in fields(DeviceScore)]
    columns = [name for name in columns if name not in ("metrics", "last_metrics")]
    columns += [name for name in _names_of(rows) if name not in columns]
    if all(row["rmse"] is None for row in rows):
        columns = [name for name in columns if name not in _NUMBERS]
    if all(row["tokens"] is None for row in rows):
        columns = [name for name in columns if name not in _TOKENS]
    return csv_text(columns, rows)


def _names_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the first row; all rows have the same."""
    return list(rows[0]) if rows else []


_WHOLE = ("examples", "round", "last_round")
_FLOATS = (
    "accuracy",
    "loss",
    "last_accuracy",
    "last_loss",
    *_NUMBERS,
    "perplexity",
    "last_perplexity",
)
_TEXT = ("device", "edge", "model", "part")


def from_csv(text: str) -> list[DeviceScore]:
    """The scores that `to_csv` wrote."""
    return [_device_score(row) for row in csv.DictReader(io.StringIO(text))]


def _device_score(row: Mapping[str, str]) -> DeviceScore:
    values: dict[str, Any] = {name: unquoted(row[name]) or None for name in _TEXT}
    values["holds"] = row["holds"] == "True"
    for name in _WHOLE:
        values[name] = int(row[name])
    if row.get("tokens"):
        values["tokens"] = int(row["tokens"])
    for name in _FLOATS:
        values[name] = _float_in(row, name)
    known = {field.name for field in fields(DeviceScore)}
    names = [name for name in row if name not in known and not name.startswith("last_")]
    values["metrics"] = {name: _float_in(row, name) for name in names}
    values["last_metrics"] = {name: _float_in(row, f"last_{name}") for name in names}
    return DeviceScore(**values)


def _float_in(row: Mapping[str, str], name: str) -> float | None:
    """The number in a cell; None where it is empty or missing."""
    if not row.get(name):
        return None
    return float(row[name])
