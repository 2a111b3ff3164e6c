"""What a sweep came to: its trials, the best of them as a file, and their table."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covey.atomic import refused
from covey.fields import spelled
from covey.files import config as files
from covey.grid.axes import Axis, Settings
from covey.grid.grid import Grid
from covey.grid.tables import TextTable
from covey.runs.csv_text import csv_text
from covey.runs.saved.run_folder import Folder
from covey.runs.scores.headline import Headline, named

_SHOWN = 15  # trials in the printed table


@dataclass(frozen=True)
class SweepTrial:
    """A setting and its score on validation data, the mean over seeds; -inf if it failed.

    The score is that of `metric`, negative where lower is better.
    """

    number: int
    settings: Settings
    score: float
    model: str = ""
    chosen_round: tuple[int, ...] = ()
    seconds: float = 0.0
    error: str = ""
    metric: str = ""  # after a minus where lower is better, as in "-loss"

    @property
    def value(self) -> float | None:
        """The metric itself; None if the trial failed."""
        if self.score == -math.inf:
            return None
        if named(self.metric).higher:
            return self.score
        return 0.0 - self.score  # never -0


@dataclass(frozen=True)
class SweepResult:
    """All trials, the best first, and the best setting as the text of a file."""

    axes: list[Axis]
    trials: list[SweepTrial]
    best: str | None = None  # None where all failed

    @property
    def metric(self) -> Headline | None:
        """The metric by which trials are ordered; None where all failed."""
        return next((named(trial.metric) for trial in self.trials if trial.metric), None)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it; a trial that failed has no score."""
        rows = []
        for trial in self.trials:
            score = trial.score if math.isfinite(trial.score) else None
            row = {**asdict(trial), "score": score, "value": trial.value}
            rows.append({**row, "metric": trial.metric.removeprefix("-")})
        return {"keys": [axis.key for axis in self.axes], "trials": rows}

    def csv(self) -> str:
        """One line per trial."""
        first = ["trial", "metric", "value", "score", "model", "chosen_round"]
        rows = []
        for trial in self.as_dict()["trials"]:
            rounds = " ".join(map(str, trial["chosen_round"]))
            rows.append(
                {**trial["settings"], **trial, "trial": trial["number"], "chosen_round": rounds}
            )
        return csv_text([*first, *(axis.key for axis in self.axes), "seconds", "error"], rows)


def collect(grid: Grid) -> SweepResult:
    """All trials that have ended, the best first."""
    (method,) = grid.methods
    trials = [
        SweepTrial(
            number=number + 1,
            settings=answer["settings"],
            score=float(answer.get("score", -math.inf)),
            model=str(answer.get("model", "")),
            chosen_round=tuple(answer.get("chosen_round", ())),
            seconds=float(answer.get("seconds", 0.0)),
            error=str(answer.get("error", "")),
            metric=str(answer.get("metric", "")),
        )
        for number, answer in grid.answers(method).items()
    ]
    trials.sort(key=lambda trial: (-trial.score, trial.number))
    best = None
    if trials and trials[0].score > -math.inf:
        best = files.read(grid.table(method, trials[0].settings)).text()
    return SweepResult(grid.axes, trials, best)


def write(result: SweepResult, folder: Folder) -> None:
    """sweep.json, sweep.csv and, of the best setting, best.toml."""
    folder.write_json("sweep.json", result.as_dict())
    folder.write("sweep.csv", result.csv())
    if result.best is not None:
        folder.write("best.toml", result.best)


def draw(folder: Path, result: SweepResult) -> None:
    """sensitivity.png and parallel.png, of the trials that ended well."""
    from covey.report.pictures.sweep_picture import Point, Scale, draw_parallel, draw_sensitivity

    whole = [trial for trial in result.trials if math.isfinite(trial.score)]
    metric = result.metric
    if not whole or metric is None:
        return
    points = [Point(trial.settings, metric.scaled(trial.score)) for trial in whole]
    scales = [
        Scale.of(axis.key, [trial.settings[axis.key] for trial in whole], log=axis.log)
        for axis in result.axes
    ]
    label = f"validation {metric.axis}"
    if not metric.higher:
        label += ", less is better"
    for name, picture in (("sensitivity.png", draw_sensitivity), ("parallel.png", draw_parallel)):
        with refused(folder / name):
            picture(points, scales, folder / name, label, lower=not metric.higher)


def table(result: SweepResult) -> TextTable:
    """The best trials, as many as a screen has room for."""
    keys = [axis.key for axis in result.axes]
    metric = result.metric
    figure = "validation" if metric is None else f"validation {metric.unit}"
    rows = []
    for trial in result.trials[:_SHOWN]:
        value = "failed" if trial.value is None else named(trial.metric).text(trial.value)
        rounds = ", ".join(map(str, trial.chosen_round))
        values = [spelled(trial.settings[key]) for key in keys]
        rows.append([str(trial.number), trial.model or "-", value, rounds, *values])
    count = len(result.trials)
    title = f"{count} trials, the best on validation data first"
    if count > _SHOWN:
        title += f"; {_SHOWN} are shown, sweep.csv has all"
    failed = [trial for trial in result.trials if trial.error]
    notes: tuple[str, ...] = ()
    if failed:
        notes = (f"{len(failed)} trials failed; trial {failed[0].number}: {failed[0].error}",)
    heads = ["trial", "model", figure, "chosen round", *keys]
    return TextTable(title, heads, rows, left=2, notes=notes)
