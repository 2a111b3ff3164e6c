"""The results of a comparison: one row per method, and paired differences of seeds and devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import mean, median
from typing import Any

from covey.grid.cells import best_model, chosen
from covey.grid.grid import Grid
from covey.grid.plan import BASELINES, Method, check_model
from covey.report.paired import holm, interval, t_test, wilcoxon
from covey.report.summary import (
    Devices,
    Histories,
    ModelFigures,
    compared_models,
    drop_no_metrics,
    summarise,
)
from covey.runs.csv_text import csv_text
from covey.runs.run import Round
from covey.runs.scores import record
from covey.runs.scores.devices import DeviceScore, from_csv, paired
from covey.runs.scores.headline import Headline, for_devices, headline


@dataclass(frozen=True)
class MethodRow:
    """One method: the model that is best on validation data, in the rounds chosen on it.

    `label` is the model in words, `validation` its quality on validation data; more is better.
    `gradients`, `bytes` and `seconds` are of all rounds of one seed. Seconds are modelled where
    the file has a clock, else measured. A method without a result has an `error`.
    """

    method: str
    title: str
    trials: int
    failed_trials: int
    settings: dict[str, Any]
    error: str = ""
    seeds: int = 0
    model: str = ""
    label: str = ""
    validation: float = 0.0
    rounds: float = 0.0
    gradients: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    models: list[ModelFigures] = field(default_factory=list)

    @property
    def reported(self) -> ModelFigures | None:
        """The figures of the reported model."""
        return next((figures for figures in self.models if figures.model == self.model), None)

    def as_line(self, figures: ModelFigures | None, names: Sequence[str]) -> dict[str, Any]:
        """A line of the CSV file; figures that there are not are empty."""
        line: dict[str, Any] = {
            "method": self.title,
            "model": figures.model if figures else "",
            "tier": figures.tier if figures else "",
            "reported": figures is not None and figures.model == self.model,
            "seeds": self.seeds,
        }
        for name in names:
            figure = figures.figure(name) if figures else None
            line[name] = figure.mean if figure else ""
            line[f"{name}_sd"] = figure.deviation if figure else ""
        for name in ("rounds", "gradients", "bytes", "seconds", "trials", "failed_trials"):
            line[name] = getattr(self, name)
        line["settings"] = "; ".join(f"{key}={value}" for key, value in self.settings.items())
        line["error"] = self.error
        return line


_FIGURES = ("accuracy", "worst_decile", "last", "loss", "rmse", "mae", "r2")
"""The columns of every CSV file."""


@dataclass(frozen=True)
class PairedModels:
    """A method's model against a baseline's, on test data; more is better.

    The first figures are of the seeds' differences over all devices. They are None where there is
    no test. The others are of the devices, each with its mean difference over seeds in `metric`.
    Differences are in points of accuracy, or in another metric's own unit.
    """

    method: str
    baseline: str
    seeds: int
    mean: float | None
    interval: tuple[float, float] | None  # of 95 %
    p_seeds: float | None
    p_seeds_holm: float | None
    devices: int
    better: int
    worse: int
    median: float
    p: float
    p_holm: float
    metric: str = "accuracy"


@dataclass(frozen=True)
class Result:
    """A whole comparison; `histories` are by title, seed by seed.

    The first of the pairs is the file's own method, or the first named, against the best other.
    """

    rows: list[MethodRow]
    pairs: list[PairedModels]
    budget: dict[str, Any]
    modelled: bool  # whether seconds are those of the environment
    histories: dict[str, list[list[Round]]]
    asked: str = ""  # the model that is reported where a method has it; "": the best

    @cached_property
    def metric(self) -> Headline:
        """The metric by which methods are compared: that of `select`, or a default."""
        return headline(chain(*chain(*self.histories.values())))

    @property
    def classifies(self) -> bool:
        """Whether models have an accuracy."""
        return any(row.reported and row.reported.accuracy for row in self.rows)

    @property
    def selected(self) -> bool:
        """Whether the file names the metric by which rounds are chosen."""
        records = chain(*chain(*self.histories.values()))
        return any(model.select for record in records for model in record.models.values())

    @property
    def metrics(self) -> list[str]:
        """The metrics that the file asks for."""
        reported = [row.reported.metrics for row in self.rows if row.reported]
        return list(dict.fromkeys(chain(*reported)))

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it, without the records of rounds."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            for model in row["models"]:
                drop_no_metrics(model)
        return {
            "budget": self.budget,
            "seconds": "modelled" if self.modelled else "measured",
            "metric": self.metric.name,
            "higher_is_better": self.metric.higher,
            "comparisons": len(self.pairs),
            "rows": rows,
            "pairs": [asdict(pairs) for pairs in self.pairs],
        }

    def csv(self) -> str:
        """One line per method and model; the reported model of a method is marked."""
        names = list(_FIGURES)
        if any(row.reported and row.reported.perplexity for row in self.rows):
            names.append("perplexity")
        names += self.metrics
        lines = []
        for row in self.rows:
            of_models: list[ModelFigures | None] = [*row.models]
            lines += [row.as_line(figures, names) for figures in of_models or [None]]
        return csv_text(list(lines[0]), lines)


def collect(grid: Grid, model: str = "") -> Result:
    """The results so far, of this model, or of the plan's, where a method has it."""
    plan = grid.store.plan
    model = model or str(plan.get("model", ""))
    modelled = bool(grid.config.environments)
    rows = []
    histories: dict[str, list[list[Round]]] = {}
    devices: dict[str, list[list[DeviceScore]]] = {}
    for method in grid.methods:
        finals = list(grid.finals(method).values())
        whole = [answer for answer in finals if "history" in answer]
        if whole:
            read = [[record.read(each) for each in answer["history"]] for answer in whole]
            histories[method.title] = read
            devices[method.title] = [from_csv(answer["devices"]) for answer in whole]
        rows.append(_row(grid, method, finals, histories.get(method.title, []), model))
    if any(row.models for row in rows):
        check_model(model, {figures.model for row in rows for figures in row.models})
    result = Result(rows, [], plan["budget"], modelled, histories, model)
    own = str(grid.config.algorithm["name"])
    return replace(result, pairs=_all_pairs(result, devices, own))


def _row(
    grid: Grid,
    method: Method,
    finals: Sequence[dict[str, Any]],
    histories: list[list[Round]],
    asked: str,
) -> MethodRow:
    scores = list(grid.scores(method).values())
    failed = scores.count(-math.inf)
    settings = grid.chosen(method) or {}
    row = MethodRow(method.name, method.title, max(len(scores), 1), failed, settings)
    errors = [answer["error"] for answer in finals if "error" in answer]
    if errors:
        return replace(row, error=f"{len(errors)} of {len(finals)} seeds failed: {errors[0]}")
    if scores and failed == len(scores) == grid.trials(method):
        first = grid.answers(method)[0]["error"]
        return replace(row, error=f"all {failed} trials failed: {first}")
    if not histories:
        return replace(row, error="not run yet")
    model, quality = best_model(histories, asked)
    compared = compared_models(histories[0])
    summary = summarise(histories, described={"private": finals[0].get("private", "")})
    modelled = bool(grid.config.environments)
    return replace(
        row,
        seeds=len(histories),
        model=model,
        label=summary.labels.get(model, model),
        validation=quality,
        rounds=mean(len(history) for history in histories),
        gradients=_per_seed(histories, lambda each: float(each.gradients)),
        bytes=_per_seed(histories, lambda each: float(each.bytes())),
        seconds=_per_seed(
            histories, lambda each: each.modelled_seconds if modelled else each.seconds
        ),
        models=[each for each in summary.models if each.model in compared],
    )


def _all_pairs(result: Result, devices: Mapping[str, Devices], own: str) -> list[PairedModels]:
    """The file's own method against the best other, and every method against the baselines.

    Where the file's own has no result, the first one named stands for it. The best is that on
    validation data. The p-values are corrected for the number of pairs.
    """
    whole = [row for row in result.rows if not row.error]
    baselines = [row for name in BASELINES for row in whole if row.method == name]
    tested = [
        (row, baseline)
        for number, baseline in enumerate(baselines, 1)
        for row in whole
        if row not in baselines[:number]
    ]
    firsts = [row for row in whole if row.method == own]
    firsts += [row for row in whole if row.method not in BASELINES]
    others = [row for row in whole if row not in firsts[:1]]
    if firsts and others:
        best = max(others, key=lambda row: row.validation)
        pair = (firsts[0], best)
        tested = [pair, *(other for other in tested if other not in (pair, pair[::-1]))]
    out = [_pairs(row, baseline, result, devices) for row, baseline in tested]
    over_seeds = iter(holm([pairs.p_seeds for pairs in out if pairs.p_seeds is not None]))
    over_devices = holm([pairs.p for pairs in out])
    return [
        replace(pairs, p_holm=p, p_seeds_holm=None if pairs.p_seeds is None else next(over_seeds))
        for pairs, p in zip(out, over_devices, strict=True)
    ]


def _per_seed(histories: Histories, used: Callable[[Round], float]) -> float:
    """The mean over seeds of what all rounds used."""
    sums = [sum(used(each) for each in history) for history in histories]
    return sum(sums) / len(sums)


def _pairs(
    row: MethodRow, baseline: MethodRow, result: Result, devices: Mapping[str, Devices]
) -> PairedModels:
    every = [line for seeds in devices.values() for lines in seeds for line in lines]
    metric = for_devices(result.metric, every)
    gains: dict[str, list[float]] = {}
    largest = 0.0
    for seeds in zip(devices[row.title], devices[baseline.title], strict=False):
        for line, other in paired(*seeds, row.model, baseline.model):
            value = metric.of_device(line)
            base = metric.of_device(other)
            if value is not None and base is not None:
                gains.setdefault(line.device, []).append(metric.difference(value, base))
                largest = max(largest, abs(value), abs(base))
    rounded = _rounded([mean(values) for values in gains.values()], metric.scaled(largest))
    figures = zip(_by_seed(row, result), _by_seed(baseline, result), strict=False)
    known = [(value, base) for value, base in figures if value is not None and base is not None]
    largest = max((abs(value) for pair in known for value in pair), default=0.0)
    differences = [result.metric.difference(value, base) for value, base in known]
    of_seeds = _rounded(differences, result.metric.scaled(largest))
    p_seeds = t_test(of_seeds)
    return PairedModels(
        method=row.title,
        baseline=baseline.title,
        seeds=len(of_seeds),
        mean=mean(of_seeds) if of_seeds else None,
        interval=None if p_seeds is None else interval(of_seeds),
        p_seeds=p_seeds,
        p_seeds_holm=None,
        devices=len(rounded),
        better=sum(value > 0 for value in rounded),
        worse=sum(value < 0 for value in rounded),
        median=median(rounded) if rounded else 0.0,
        p=wilcoxon(rounded),
        p_holm=1.0,
        metric=metric.name,
    )


def _rounded(differences: Sequence[float], largest: float) -> list[float]:
    """Differences to nine digits of the largest figure, so that equal ones tie.

    >>> _rounded([0.1 + 0.2, 0.3], 1.0), _rounded([1e-11, 2e-11], 4e-11)
    ([0.3, 0.3], [1e-11, 2e-11])
    """
    digits = 9
    if 0 < largest < math.inf:
        digits -= math.ceil(math.log10(largest))
    return [round(difference, digits) for difference in differences]


def _by_seed(row: MethodRow, result: Result) -> list[float | None]:
    """The test figure of the reported model over all devices in the chosen round of every seed."""
    histories = result.histories[row.title]
    records = [chosen(history, row.model).models[row.model] for history in histories]
    return [result.metric.of(record.scores["test"]) for record in records]
