"""The results of a comparison: one row per method, and paired differences of devices."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from statistics import mean, median
from typing import Any, Literal

from covey.cli.grid.cells import best_model
from covey.cli.grid.comparing import Comparison
from covey.cli.grid.method import Method
from covey.cli.grid.planning import BASELINES
from covey.report.paired import holm, wilcoxon
from covey.report.reported import models
from covey.report.summary import Figure, ModelFigures, device_gain, drop_no_metrics, summarise
from covey.runs import record
from covey.runs.devices import DeviceScore, from_csv
from covey.runs.headline import Headline, for_devices, headline
from covey.runs.run import Round


@dataclass(frozen=True)
class Row:
    """One method: the model that is best on validation data, in the rounds chosen on it.

    `gradients`, `bytes` and `seconds` are of all rounds of one seed. Seconds are modelled where
    the file has a radio, else measured. A method without a result has an `error`.
    """

    method: str
    title: str
    trials: int
    failed_trials: int
    settings: dict[str, Any]
    error: str = ""
    seeds: int = 0
    model: str = ""
    rounds: float = 0.0
    gradients: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    models: list[ModelFigures] = field(default_factory=list)

    @property
    def reported(self) -> ModelFigures | None:
        """The figures of the reported model."""
        for figures in self.models:
            if figures.model == self.model:
                return figures
        return None


@dataclass(frozen=True)
class Pairs:
    """Devices with a method's model against the same devices with a baseline's, on test data.

    A device's difference is its mean over seeds, in `metric`: points of accuracy, per cent by which
    an error such as the RMSE falls, or the difference of another metric. More is better.
    """

    method: str
    baseline: str
    devices: int
    better: int
    worse: int
    median: float
    p: float
    p_holm: float
    test: Literal["exact", "normal", "none"]
    metric: str = "accuracy"


@dataclass(frozen=True)
class Result:
    """A whole comparison; `histories` are by title, seed by seed."""

    rows: list[Row]
    pairs: list[Pairs]
    budget: dict[str, Any]
    modelled: bool  # whether seconds are those of a radio
    histories: dict[str, list[list[Round]]]

    @cached_property
    def metric(self) -> Headline:
        """The metric by which methods are compared: that of `select`, or a default."""
        return headline(chain(*chain(*self.histories.values())))

    @property
    def classifies(self) -> bool:
        """Whether models have an accuracy."""
        reported = [row.reported for row in self.rows]
        return any(figures.accuracy is not None for figures in reported if figures is not None)

    @property
    def selected(self) -> bool:
        """Whether the file names the metric by which rounds are chosen."""
        records = chain(*chain(*self.histories.values()))
        return any(model.select for record in records for model in record.models.values())

    @property
    def metrics(self) -> list[str]:
        """The metrics that the file asks for."""
        reported = [row.reported for row in self.rows]
        return list(dict.fromkeys(name for each in reported if each for name in each.metrics))

    @property
    def has_perplexity(self) -> bool:
        """Whether models have a perplexity per token."""
        reported = [row.reported for row in self.rows]
        return any(figures.perplexity is not None for figures in reported if figures is not None)

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
        lines = []
        names: tuple[str, ...] = _FIGURES
        if self.has_perplexity:
            names = (*_FIGURES, "perplexity")
        for row in self.rows:
            of_models = [_line(row, figures, names, self.metrics) for figures in row.models]
            lines += of_models or [_line(row, None, names, self.metrics)]
        out = io.StringIO()
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return out.getvalue()


def collect(comparison: Comparison) -> Result:
    """The results so far."""
    rows = []
    histories: dict[str, list[list[Round]]] = {}
    devices: dict[str, list[list[DeviceScore]]] = {}
    modelled = comparison.config.radio is not None
    for method in comparison.methods:
        finals = list(comparison.finals(method).values())
        whole = [answer for answer in finals if "history" in answer]
        if whole:
            read = [[record.read(each) for each in answer["history"]] for answer in whole]
            histories[method.title] = read
            devices[method.title] = [from_csv(answer["devices"]) for answer in whole]
        rows.append(_row(comparison, method, finals, histories.get(method.title, []), modelled))
    metric = headline(chain(*chain(*histories.values())))
    pairs = _all_pairs(rows, devices, metric)
    return Result(rows, pairs, asdict(comparison.budget), modelled, histories)


def _row(
    comparison: Comparison,
    method: Method,
    finals: Sequence[dict[str, Any]],
    histories: list[list[Round]],
    modelled: bool,
) -> Row:
    scores = comparison.scores(method)
    settings = comparison.chosen(method) or {}
    failed = [score for score in scores if score == -math.inf]
    row = Row(method.name, method.title, max(len(scores), 1), len(failed), settings)
    error = _error(comparison, method, finals)
    if error or not histories:
        return Row(**{**vars(row), "error": error or "not run yet"})
    model, _ = best_model(histories)
    compared = models(histories[0])
    figures = [each for each in summarise(histories).models if each.model in compared]
    return Row(
        **{
            **vars(row),
            "seeds": len(histories),
            "model": model,
            "rounds": mean(len(history) for history in histories),
            "gradients": _per_seed(histories, lambda each: float(each.gradients)),
            "bytes": _per_seed(histories, lambda each: float(each.bytes())),
            "seconds": _per_seed(histories, _modelled if modelled else _measured),
            "models": figures,
        }
    )


def _per_seed(histories: Sequence[Sequence[Round]], used: Callable[[Round], float]) -> float:
    """The mean over seeds of what all rounds used."""
    sums = [sum(used(each) for each in history) for history in histories]
    return sum(sums) / len(sums)


def _measured(each: Round) -> float:
    return each.seconds


def _modelled(each: Round) -> float:
    if each.radio is None:
        return 0.0
    return each.radio.seconds


def _error(comparison: Comparison, method: Method, finals: Sequence[dict[str, Any]]) -> str:
    """Why a method has no result: no trial ended well, or a seed did not."""
    errors = [answer["error"] for answer in finals if "error" in answer]
    if errors:
        return f"{len(errors)} of {len(finals)} seeds failed: {errors[0]}"
    scores = comparison.scores(method)
    ended = bool(scores) and len(scores) == len(comparison.trial_names(method))
    if ended and max(scores) == -math.inf:
        first = comparison.store.answers[f"{method.label}/trial-1"]
        return f"all {len(scores)} trials failed: {first['error']}"
    return ""


def _all_pairs(
    rows: Sequence[Row],
    devices: Mapping[str, Sequence[Sequence[DeviceScore]]],
    wanted: Headline,
) -> list[Pairs]:
    """Every method against the baselines; the p-values are corrected for their number."""
    every = [line for seeds in devices.values() for lines in seeds for line in lines]
    metric = for_devices(wanted, every)
    whole = [row for row in rows if not row.error]
    baselines = [row for row in whole if row.method in BASELINES]
    baselines.sort(key=lambda row: BASELINES.index(row.method))
    out = []
    for number, baseline in enumerate(baselines):
        tested = [row for row in whole if row not in baselines[: number + 1]]
        out += [_pairs(row, baseline, devices, metric) for row in tested]
    corrected = holm([pairs.p for pairs in out])
    return [Pairs(**{**vars(pairs), "p_holm": p}) for pairs, p in zip(out, corrected, strict=True)]


def _pairs(
    row: Row,
    baseline: Row,
    devices: Mapping[str, Sequence[Sequence[DeviceScore]]],
    metric: Headline,
) -> Pairs:
    gains: dict[str, list[float]] = {}
    for own, other in zip(devices[row.title], devices[baseline.title], strict=False):
        bases = _by_device(other, baseline.model)
        for device, score in _by_device(own, row.model).items():
            if device not in bases:
                continue
            difference = device_gain(score, bases[device], metric)
            if difference is not None:
                gains.setdefault(device, []).append(difference)
    means = [mean(values) for values in gains.values()]
    rounded = [round(value, 9) for value in means]  # equal differences tie in spite of rounding
    tested = wilcoxon(rounded)
    return Pairs(
        method=row.title,
        baseline=baseline.title,
        devices=len(rounded),
        better=sum(value > 0 for value in rounded),
        worse=sum(value < 0 for value in rounded),
        median=median(rounded) if rounded else 0.0,
        p=tested.p,
        p_holm=1.0,
        test=tested.method,
        metric=metric.name,
    )


def _by_device(scores: Sequence[DeviceScore], model: str) -> dict[str, DeviceScore]:
    """The test scores of one model, by device."""
    own = [score for score in scores if score.model == model and score.part == "test"]
    return {score.device: score for score in own}


_FIGURES = ("accuracy", "worst_decile", "last", "loss", "rmse", "mae", "r2")


def _line(
    row: Row, figures: ModelFigures | None, names: Sequence[str], metrics: Sequence[str]
) -> dict[str, Any]:
    """A line of the CSV file; figures that there are not are empty."""
    model = ""
    tier = ""
    if figures is not None:
        model = figures.model
        tier = figures.tier
    line: dict[str, Any] = {
        "method": row.title,
        "model": model,
        "tier": tier,
        "reported": bool(model) and model == row.model,
        "seeds": row.seeds,
    }
    known: dict[str, Figure | None] = {name: getattr(figures, name, None) for name in names}
    for name in metrics:
        if name not in known:
            known[name] = None if figures is None else figures.figure(name)
    for name, figure in known.items():
        line[name] = "" if figure is None else figure.mean
        line[f"{name}_sd"] = "" if figure is None or figure.deviation is None else figure.deviation
    settings = "; ".join(f"{key}={value}" for key, value in row.settings.items())
    return line | {
        "rounds": row.rounds,
        "gradients": row.gradients,
        "bytes": row.bytes,
        "seconds": row.seconds,
        "trials": row.trials,
        "failed_trials": row.failed_trials,
        "settings": settings,
        "error": row.error,
    }
