"""A sweep over settings of one file: its plan, its trials, and the best of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import covey
from covey.cli import config as files
from covey.cli import modules
from covey.cli.config import Config
from covey.cli.grid import search, store
from covey.cli.grid.axes import Axis, product, split_axes
from covey.cli.grid.cells import Cell, metric_of
from covey.cli.grid.compare import Told, run_cells
from covey.cli.grid.comparing import read_axis
from covey.cli.grid.pool import Answer, Job
from covey.cli.grid.search import Search, Settings
from covey.cli.grid.store import Store
from covey.cli.grid.tables import Table
from covey.cli.validate import spell
from covey.errors import ConfigError
from covey.runs.csv_text import csv_text
from covey.runs.headline import Headline, named

_SHOWN = 15  # trials in the printed table


@dataclass(frozen=True)
class Trial:
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
class Result:
    """All trials, the best first."""

    axes: list[Axis]
    trials: list[Trial]

    @property
    def best(self) -> Trial | None:
        """The best trial; None where all failed."""
        if not self.trials or self.trials[0].score == -math.inf:
            return None
        return self.trials[0]

    @property
    def metric(self) -> Headline | None:
        """The metric by which trials are ordered; None where all failed."""
        for trial in self.trials:
            if trial.metric:
                return named(trial.metric)
        return None

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
        keys = [axis.key for axis in self.axes]
        heads = ["trial", "metric", "value", "score", "model", "chosen_round"]
        rows = []
        for trial in self.trials:
            score = trial.score if math.isfinite(trial.score) else ""
            rounds = " ".join(map(str, trial.chosen_round))
            values = [trial.settings[key] for key in keys]
            name = trial.metric.removeprefix("-")
            value = "" if trial.value is None else trial.value
            row = [trial.number, name, value, score, trial.model, rounds]
            rows.append([*row, *values, trial.seconds, trial.error])
        return csv_text([*heads, *keys, "seconds", "error"], rows)


def start(
    path: Path | None, changes: Sequence[str], name: str, trials: int | None, out: Path | None
) -> Store:
    """A new folder with the plan of a sweep; everything wrong with it is said before."""
    search.check(name, trials)
    axes, plain = split_axes(changes)
    base = _read(path, plain)
    if not axes:
        raise ConfigError(
            "a sweep needs a key with several values, as in algorithm.lr=0.01:1:log "
            "or algorithm.lam=1,5,15."
        )
    _check_values(path, plain, axes)
    plan = {
        "kind": "sweep",
        "config": base.resolved(),
        "beside": None if path is None else str(path.parent.resolve()),
        "axes": [asdict(axis) for axis in axes],
        "search": name,
        "trials": trials or search.TRIALS,
    }
    return store.new(plan, out, base.name)


def _read(path: Path | None, plain: Sequence[str]) -> Config:
    base = files.load(path, plain)
    if base.protocol == "paper":
        raise ConfigError(
            'protocol = "paper" has no validation data to choose by; set protocol = "honest".'
        )
    return base


def _check_values(path: Path | None, plain: Sequence[str], axes: Sequence[Axis]) -> None:
    """Refuse an unknown key and a value that its field refuses, and a first setting that fails."""
    for axis in axes:
        for value in axis.grid():
            files.load(path, [*plain, _change(axis.key, value)]).learner()
    first = [_change(axis.key, axis.grid()[0]) for axis in axes]
    config = files.load(path, [*plain, *first])
    covey.run(config.experiment(config.seed))


def _change(key: str, value: Any) -> str:
    return f"{key}={spell(value)}"


class Sweep:
    """A sweep in its folder: which trials can run next, and what they came to."""

    def __init__(self, folder: Store, processes: int) -> None:
        plan = folder.plan
        if plan["beside"] is not None:
            modules.look_beside(Path(plan["beside"]) / "file")
        self.store = folder
        self.config = files.read(plan["config"])
        self.axes = [read_axis(values) for values in plan["axes"]]
        self._processes = processes
        self._search = self._begin(str(plan["search"]), int(plan["trials"]))
        for number in self._numbers():
            self._search.tell(number, self._score(number))

    @property
    def total(self) -> int:
        return self._search.count

    @property
    def finished(self) -> int:
        return len(self.store.answers)

    def jobs(self) -> list[Job]:
        """The trials that may run by now."""
        jobs = []
        for number, settings in self._search.proposed(self._processes).items():
            name = f"trial-{number + 1}"
            if name not in self.store.answers:
                cell = Cell("trial", self.table(settings), self._seeds(), self.store.plan["beside"])
                jobs.append(Job(name, {**cell.as_dict()}))
        return jobs

    def add(self, job: Job, answer: Answer) -> None:
        """Save the answer of a trial with its settings."""
        number = int(job.name.removeprefix("trial-")) - 1
        settings = self._search.proposed(self._processes)[number]
        self.store.add(job.name, {"settings": settings, **answer})
        self._search.tell(number, self._score(number))

    def table(self, settings: Settings) -> dict[str, Any]:
        """The file with these settings, as a table."""
        table = json.loads(json.dumps(self.store.plan["config"]))
        names = [key for key in settings if key.endswith(".name")]
        for key in [*names, *(key for key in settings if key not in names)]:
            files.change(table, _change(key, settings[key]))
        return dict(table)

    def result(self) -> Result:
        """All trials that have ended, the best first."""
        trials = [self._trial(number) for number in self._numbers()]
        trials.sort(key=lambda trial: (-trial.score, trial.number))
        return Result(self.axes, trials)

    def _begin(self, name: str, trials: int) -> Search:
        seed = self.config.seed
        if name == "grid":
            return search.Listed(list(product(self.axes)))
        if name == "random":
            return search.Listed(search.random(self.axes, trials, seed))
        before = {number: self._answer(number)["settings"] for number in self._numbers()}
        return search.Optuna(self.axes, trials, seed, before)

    def _seeds(self) -> list[int]:
        return list(range(self.config.seed, self.config.seed + self.config.seeds))

    def _numbers(self) -> list[int]:
        """The trials that have ended."""
        return sorted(int(name.removeprefix("trial-")) - 1 for name in self.store.answers)

    def _answer(self, number: int) -> Answer:
        return self.store.answers[f"trial-{number + 1}"]

    def _score(self, number: int) -> float:
        return float(self._answer(number).get("score", -math.inf))

    def _trial(self, number: int) -> Trial:
        answer = self._answer(number)
        return Trial(
            number=number + 1,
            settings=answer["settings"],
            score=self._score(number),
            model=str(answer.get("model", "")),
            chosen_round=tuple(answer.get("chosen_round", ())),
            seconds=float(answer.get("seconds", 0.0)),
            error=str(answer.get("error", "")),
            metric=metric_of(answer),
        )


def run(
    folder: Store,
    jobs: int,
    told: Told,
    draw: Callable[[Store, Result], None] = lambda folder, result: None,
) -> Result:
    """All trials that are left, then the files; `draw` adds the pictures."""
    with store.locked(folder):
        folder.retry_failures()
        with store.understood(folder):
            sweep = Sweep(folder, jobs)
            sweep.result()
        run_cells(sweep, jobs, told)
        result = sweep.result()
        _write(sweep, result)
        draw(folder, result)
    return result


def _write(sweep: Sweep, result: Result) -> None:
    """sweep.json, sweep.csv and, of the best setting, best.toml."""
    folder = sweep.store.folder
    folder.write_json("sweep.json", result.as_dict())
    folder.write("sweep.csv", result.csv())
    if result.best is not None:
        folder.write("best.toml", files.read(sweep.table(result.best.settings)).text())


def table(result: Result) -> Table:
    """The best trials, as many as a screen has room for."""
    keys = [axis.key for axis in result.axes]
    metric = result.metric
    figure = "validation" if metric is None else f"validation {metric.unit}"
    heads = ["trial", "model", figure, "chosen round", *keys]
    rows = []
    for trial in result.trials[:_SHOWN]:
        values = [spell(trial.settings[key]) for key in keys]
        rounds = ", ".join(map(str, trial.chosen_round))
        rows.append([str(trial.number), trial.model or "-", _figure(trial), rounds, *values])
    count = len(result.trials)
    title = f"{count} trials, the best on validation data first"
    if count > _SHOWN:
        title += f"; {_SHOWN} are shown, sweep.csv has all"
    failed = [trial for trial in result.trials if trial.error]
    notes: tuple[str, ...] = ()
    if failed:
        notes = (f"{len(failed)} trials failed; trial {failed[0].number}: {failed[0].error}",)
    return Table(title, heads, rows, left=2, notes=notes)


def _figure(trial: Trial) -> str:
    if trial.value is None:
        return "failed"
    return named(trial.metric).text(trial.value)
