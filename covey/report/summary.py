"""The figures of a whole run: of every model in its chosen round, and of every link.

Over several seeds, figures are means with standard deviations.
"""

from __future__ import annotations

import math
import statistics
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from covey import rooms
from covey.links.meter import Meter, bitmap_bits, dense_bits, paper_bits
from covey.report.paired import Vector, interval
from covey.runs.run import Round
from covey.runs.scores.devices import DeviceScore, paired
from covey.runs.scores.headline import Headline, for_devices, headline, named
from covey.runs.scores.record import scored_rounds
from covey.runs.scores.scoring import Model, Score
from covey.runs.selection import Protocol, Selection, select

Histories = Sequence[Sequence[Round]]
"""The rounds of every seed."""
Devices = Sequence[Sequence[DeviceScore]]
"""The scores of every seed's devices."""


@dataclass(frozen=True)
class OverSeeds:
    """A mean over seeds and its standard deviation; the deviation is None for one seed."""

    mean: float
    deviation: float | None

    def percent(self) -> str:
        """As 98.40 or 98.40 ± 0.31."""
        text = f"{100 * self.mean:.2f}"
        if self.deviation is not None:
            text += f" ± {100 * self.deviation:.2f}"
        return text

    def __str__(self) -> str:
        text = f"{self.mean:.4g}"
        if self.deviation is not None:
            text += f" ± {self.deviation:.2g}"
        return text


@dataclass(frozen=True)
class ModelFigures:
    """One model: accuracy in the round chosen on validation, in the last and in the best on test.

    All other figures are of the chosen round.
    """

    model: str
    tier: str
    chosen_round: list[int]  # of each seed, counted from 0
    holders: OverSeeds  # nodes that keep one
    age: OverSeeds  # mean rounds since they kept it
    accuracy: OverSeeds | None  # over all devices, the global model standing in where none is kept
    accuracy_holders: OverSeeds | None
    accuracy_uniform: OverSeeds | None  # mean of all devices, however many examples each has
    last: OverSeeds | None
    best_on_test: OverSeeds | None
    worst_decile: OverSeeds | None
    loss: OverSeeds | None  # over all devices, as `accuracy`
    loss_holders: OverSeeds | None
    loss_last: OverSeeds | None
    nonzeros: OverSeeds
    cut: float
    angle: OverSeeds | None  # between a sparse model and its signs, in degrees
    layers: dict[str, float]  # of a sparse model, the share of non-zeros of every parameter
    # These where numbers are predicted; over all devices, as `accuracy`.
    rmse: OverSeeds | None = None
    mae: OverSeeds | None = None
    r2: OverSeeds | None = None
    rmse_holders: OverSeeds | None = None
    rmse_last: OverSeeds | None = None
    rmse_best_on_test: OverSeeds | None = None
    perplexity: OverSeeds | None = None  # per token, where labels are per position; as `accuracy`
    perplexity_holders: OverSeeds | None = None
    metrics: dict[str, OverSeeds | None] = field(default_factory=dict)
    """Those that the experiment asks for, by name; over all devices, as `accuracy`."""
    metrics_holders: dict[str, OverSeeds | None] = field(default_factory=dict)
    metrics_last: dict[str, OverSeeds | None] = field(default_factory=dict)
    metrics_best_on_test: dict[str, OverSeeds | None] = field(default_factory=dict)

    def figure(self, name: str) -> OverSeeds | None:
        """A metric by its name, over all devices; None where it is not known."""
        if name in self.metrics:
            return self.metrics[name]
        value: OverSeeds | None = getattr(self, name, None)
        return value


@dataclass(frozen=True)
class LinkFigures:
    """The bytes of one link in all rounds of one run: encoded, dense, and by papers' formulas."""

    link: str
    down: int
    up: int
    dense: int
    nonzeros: float | None
    formula_dense: float
    formula_paper: float
    formula_bitmap: float


class EnvironmentFigures(typing.Protocol):
    """The environment over all rounds; a data class of what JSON can hold."""

    name: ClassVar[str]
    """Its key in a summary."""

    def lines(self) -> list[str]:
        """What is printed below the tables."""
        ...


@dataclass(frozen=True)
class Gain:
    """A run's model against the global one or another algorithm's, in the reported rounds.

    It is on test data, over the devices of all seeds; the global model stands in where a device
    holds none. `figure` is the metric by which the run is judged. Gains are in points of accuracy,
    in per cent by which an error such as the RMSE falls, or differences of another metric; more is
    better. `all` is the gain over all test examples, from `low` to `high` with 95 % confidence:
    paired over devices for one seed, which holds for its models alone, else over seeds.
    """

    model: str
    other: str
    devices: int
    better: int
    worse: int
    median: float
    least: float
    most: float
    figure: str = "accuracy"
    all: float | None = None  # None of metrics that do not follow from devices' figures, as F1
    low: float | None = None
    high: float | None = None
    over: str = "devices"  # or seeds

    def signed(self, value: float) -> str:
        """A gain as it is written; of an error, its change in per cent."""
        metric = named(self.figure)
        if metric.percent:
            return f"{value:+.1f} points"
        return f"{-value:+.1f} %" if metric.relative else f"{value:+.3g}"

    def ends(self, low: float, high: float) -> str:
        """A range of gains as it is written, without the unit."""
        if named(self.figure).relative:
            low, high = high, low
        return f"{self.signed(low).split()[0]} to {self.signed(high).split()[0]}"

    @property
    def difference(self) -> str:
        """The gain over all examples with its interval; empty where it is not known."""
        if self.all is None or self.low is None or self.high is None:
            return ""
        ends = self.ends(self.low, self.high)
        unsure = ", not distinguishable" if self.low <= 0 <= self.high else ""
        return f"{self.signed(self.all)} (95 % over {self.over}: {ends}{unsure})"


@dataclass(frozen=True)
class SampleFigures:
    """Scores on a sample of the devices: its size, and the standard error of each figure.

    It is the error of `metric` on one seed's test examples over all devices, by model, the largest
    of any seed.
    """

    devices: int
    standard_errors: dict[str, float | None]
    metric: str = "accuracy"


@dataclass(frozen=True)
class Yardstick:
    """Another algorithm on the same data and tree."""

    method: str
    models: list[ModelFigures]


@dataclass(frozen=True)
class Summary:
    """The results of a run."""

    rounds: int
    seeds: int
    seconds: float
    models: list[ModelFigures]
    links: list[LinkFigures]
    protocol: Protocol = "honest"
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by what they went into, largest first."""
    environment: EnvironmentFigures | None = None
    gains: list[Gain] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """The names of models in tables, where their own would mislead."""
    yardsticks: list[Yardstick] = field(default_factory=list)
    sample: SampleFigures | None = None  # None: all devices were scored
    uncounted: int | None = None  # devices with fewer than `least` test examples; None: it is 1
    select: str = ""  # the metric by which rounds were chosen; "": accuracy, or else the loss
    rounds_by_seed: list[int] = field(default_factory=list)
    """Where seeds ran different numbers of rounds; else empty, and all ran `rounds`."""

    def __getattr__(self, name: str) -> Any:
        """The figures of an environment by its own name; None in a run of another one."""
        return rooms.environment_of(self, "summaries", name)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it; it has a `sample` if devices were drawn.

        Metrics are there if the experiment asks for any.
        """
        out: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "environment":
                out |= {
                    room: value if getattr(self, room) else None
                    for room in rooms.added("summaries")
                }
            else:
                out[name] = value
        others = [other["models"] for other in out["yardsticks"]]
        for model in chain(out["models"], *others):
            drop_no_metrics(model)
        if not self.select:
            del out["select"]
        for name in ("sample", "uncounted"):
            if out[name] is None:
                del out[name]
        if not self.rounds_by_seed:
            del out["rounds_by_seed"]
        return out


def sent_in(history: Sequence[Round]) -> Meter:
    """What all rounds have sent."""
    meter = Meter()
    for record in history:
        meter = meter.plus(record.traffic)
    return meter


def trained_links(meter: Meter) -> list[str]:
    """The links that training used; where there is none, the global model stays as it began."""
    return list(dict.fromkeys(link for link, _, lane in meter.totals if lane == "train"))


def compared_models(history: Sequence[Round]) -> list[str]:
    """The models to compare: not new devices', and no global one where nothing was ever sent.

    The one that is best on validation data stands for the algorithm, whichever tier keeps it.
    """
    scored = scored_rounds(history)
    if not scored:
        return []
    names = [name for name in scored[-1].models if not name.startswith("new_")]
    if trained_links(sent_in(history)):
        return names
    return [name for name in names if name != "global"]


def most_personal(names: Iterable[str]) -> str | None:
    """The model nearest to the devices."""
    listed = list(names)
    for name in ("personal", "edge", "global", *listed):
        if name in listed:
            return name
    return None


def drop_no_metrics(model: dict[str, Any]) -> None:
    """Take the metrics out of a model's figures where there are none."""
    if not model["metrics"]:
        for name in ("metrics", "metrics_holders", "metrics_last", "metrics_best_on_test"):
            del model[name]


def summarise(
    histories: Histories,
    protocol: Protocol = "honest",
    devices: Devices = (),
    described: Mapping[str, Any] | None = None,
    beside: Mapping[str, tuple[Histories, Devices]] | None = None,
) -> Summary:
    """The summary of one history per seed and, where they are known, of every seed's devices.

    `described` is what the run's folder says of its nodes: whether there is a global model to
    report (`learns_global`), and what devices kept to themselves (`private`). `beside` has other
    algorithms by method, over which the gains are.
    """
    about = described or {}
    scored = [scored_rounds(history) for history in histories]
    names = list(scored[0][-1].models) if scored[0] else []
    gains = []
    if about.get("learns_global", True):
        gains = gains_over(devices, devices, headline(scored[0]), "personal", "global")
    else:
        names = [name for name in names if name not in ("global", "new_global")]
    selections = {}
    for name in names:
        selections[name] = [select(history, name, protocol) for history in scored]
    models = [_model(name, chosen) for name, chosen in selections.items()]
    yardsticks = []
    own = most_personal(line.model for line in chain(*devices))
    for method, (others, scores) in (beside or {}).items():
        compared = compared_models(others[0])
        every = summarise(others, protocol).models
        yardsticks.append(Yardstick(method, [each for each in every if each.model in compared]))
        wanted = headline(others[0])
        gains += gains_over(devices, scores, wanted, own, most_personal(compared), method)
    sample, uncounted = _scored_devices(selections, headline(scored[0]))
    lengths = [len(history) for history in histories]
    spent: dict[str, float] = {}
    for record in chain(*histories):
        for what, seconds in record.spent.items():
            spent[what] = spent.get(what, 0.0) + seconds
    by = scored[0][-1].models[names[0]].select if names else ""
    return Summary(
        rounds=len(histories[0]),
        seeds=len(histories),
        seconds=sum(record.seconds for record in chain(*histories)),
        models=models,
        links=_links(histories[0]),
        protocol=protocol,
        spent=dict(sorted(spent.items(), key=itemgetter(1), reverse=True)),
        environment=_environment(histories),
        gains=gains,
        yardsticks=yardsticks,
        labels=labels({model.model: model.tier for model in models}, about.get("private", "")),
        sample=sample,
        uncounted=uncounted,
        select=by.removeprefix("-"),
        rounds_by_seed=lengths if len(set(lengths)) > 1 else [],
    )


def _scored_devices(
    selections: Mapping[str, Sequence[Selection]], metric: Headline
) -> tuple[SampleFigures | None, int | None]:
    """The devices drawn to be scored, and how many had too few test examples to be counted.

    None where all were scored, and where `least` is 1.
    """
    drawn: list[int] = []
    uncounted: list[int] = []
    errors: dict[str, float | None] = {}
    for name, selected in selections.items():
        scores = [selection.chosen.models[name].scores["test"] for selection in selected]
        uncounted += [score.uncounted for score in scores if score.uncounted is not None]
        sizes = [score.sampled for score in scores if score.sampled is not None]
        if sizes:
            errors[name] = largest([score.error(metric.name) for score in scores])
            drawn += sizes
    sample = None
    if drawn:
        sample = SampleFigures(max(drawn), errors, metric.name)
    return sample, max(uncounted, default=None)


def largest(values: Sequence[float | None]) -> float | None:
    """The largest of the values that are known."""
    known = [value for value in values if value is not None]
    return max(known, default=None)


def labels(tiers: Mapping[str, str], private: str) -> dict[str, str]:
    """The names of models from above the devices, where devices keep layers to themselves.

    `tiers` are those of all models. Each device scores such a model with its own private layers, so
    it is not one model for all.
    """
    if not private:
        return {}
    scored = [name for name in tiers if not name.startswith("new_")]
    above = [name for name in scored if tiers[name] != "device"]
    shared = {name: "shared" if name == "global" else name for name in above}
    return {name: f"{layers} layers, own {private}" for name, layers in shared.items()}


def gains_over(
    devices: Devices,
    others: Devices,
    wanted: Headline,
    model: str | None,
    other: str | None,
    method: str = "",
) -> list[Gain]:
    """The gain by a model over another one, of every seed's devices; empty where there are none.

    `others` has the scores of the other model, which may be another algorithm's: `method`.
    """
    both = zip(devices, others, strict=False)
    seeds = [paired(lines, bases, model, other) for lines, bases in both]
    pairs = list(chain(*seeds))
    metric = for_devices(wanted, [line for line, _ in pairs])
    gains = [metric.gain(metric.of_device(line), metric.of_device(base)) for line, base in pairs]
    points = [gain for gain in gains if gain is not None]
    if not points:
        return []
    shares = [_shares(each, metric) for each in seeds]
    overall = [float(each.mean()) for each in shares]
    low, high = interval(shares[0] if len(shares) == 1 else overall)
    bounded = math.isfinite(high - low)
    gain = Gain(
        model=model or "",
        other=f"{method} {other}".strip(),
        devices=len(points),
        better=sum([point > 0 for point in points]),
        worse=sum([point < 0 for point in points]),
        median=statistics.median(points),
        least=min(points),
        most=max(points),
        figure=metric.name,
        all=statistics.mean(overall) if bounded else None,
        low=low if bounded else None,
        high=high if bounded else None,
        over="devices" if len(seeds) == 1 else "seeds",
    )
    return [gain]


_MEANS = dict.fromkeys(("accuracy", "loss", "mae"), (np.positive, np.positive)) | {
    "rmse": (np.square, np.sqrt),
    "perplexity": (np.log, np.exp),
}
"""What devices' figures are means of, and the figure of all examples from the mean of these."""


def _shares(pairs: Sequence[tuple[DeviceScore, DeviceScore]], metric: Headline) -> Vector:
    """Every device's share in the gain G over all examples; the mean of the shares is G.

    They are the jackknife's pseudo-values, m G - (m - 1) G without the device, moved to G. NaN
    where G does not follow from the devices' figures.
    """
    if metric.name not in _MEANS or len(pairs) < 2:
        return np.array([math.nan])
    inner, outer = _MEANS[metric.name]
    weights: Vector = np.array([line.tokens or line.examples for line, _ in pairs], np.float64)
    left = [weights.sum(), *(weights.sum() - weights)]  # of all devices, then without each
    both = []
    for lines in zip(*pairs, strict=True):
        figures = np.array([metric.of_device(line) for line in lines], np.float64)
        sums = weights * inner(figures)
        both.append(outer(np.array([sums.sum(), *(sums.sum() - sums)]) / left).tolist())
    gains = [metric.gain(own, base) for own, base in zip(*both, strict=True)]
    whole, *without = np.array(gains, np.float64)
    out: Vector = whole - (len(pairs) - 1) * (without - np.mean(without))
    return out


def _environment(histories: Histories) -> EnvironmentFigures | None:
    """What the environment of the runs makes of their rounds; None where there is none."""
    if not histories[0] or histories[0][0].environment is None:
        return None
    where = rooms.added("summaries").get(histories[0][0].environment.name)
    if where is None:  # the user's own, which no room knows
        return None
    every = [[record.environment for record in history] for history in histories]
    return typing.cast(EnvironmentFigures, rooms.load(where)(every))


@dataclass(frozen=True)
class _Rounds:
    """One model in one of the selected rounds, for every seed."""

    models: list[Model]

    def score(self, name: str) -> OverSeeds | None:
        """A figure of the score on test."""
        return _figure([getattr(model.scores["test"], name) for model in self.models])

    def metrics(
        self, names: Iterable[str], of: Callable[[Headline, Score], float | None] = Headline.of
    ) -> dict[str, OverSeeds | None]:
        """Metrics on test, over all devices or `of` those that hold the model."""
        out = {}
        for name in names:
            out[name] = _figure([of(named(name), model.scores["test"]) for model in self.models])
        return out

    def fact(self, name: str) -> OverSeeds:
        """A fact of the model itself."""
        return over_seeds([getattr(model, name) for model in self.models])


def _model(name: str, selections: list[Selection]) -> ModelFigures:
    chosen = _Rounds([selection.chosen.models[name] for selection in selections])
    last = _Rounds([selection.last.models[name] for selection in selections])
    best = _Rounds([selection.best_on_test.models[name] for selection in selections])
    first = chosen.models[0]
    metrics = first.scores["test"].metrics
    layers = {}
    for layer in first.layers:
        layers[layer] = statistics.mean([model.layers[layer] for model in chosen.models])
    return ModelFigures(
        model=name,
        tier=first.tier,
        chosen_round=[selection.chosen.round for selection in selections],
        holders=chosen.fact("holders"),
        age=chosen.fact("age"),
        accuracy=chosen.score("accuracy_fallback"),
        accuracy_holders=chosen.score("accuracy"),
        accuracy_uniform=chosen.score("accuracy_uniform"),
        last=last.score("accuracy_fallback"),
        best_on_test=best.score("accuracy_fallback"),
        worst_decile=chosen.score("worst_decile"),
        loss=chosen.score("loss_fallback"),
        loss_holders=chosen.score("loss"),
        loss_last=last.score("loss_fallback"),
        nonzeros=chosen.fact("nonzeros"),
        cut=first.cut,
        angle=_figure([model.angle for model in chosen.models]),
        layers=layers,
        rmse=chosen.score("rmse_fallback"),
        mae=chosen.score("mae_fallback"),
        r2=chosen.score("r2_fallback"),
        rmse_holders=chosen.score("rmse"),
        rmse_last=last.score("rmse_fallback"),
        rmse_best_on_test=best.score("rmse_fallback"),
        perplexity=chosen.score("perplexity_fallback"),
        perplexity_holders=chosen.score("perplexity"),
        metrics=chosen.metrics(metrics),
        metrics_holders=chosen.metrics(metrics, Headline.of_holders),
        metrics_last=last.metrics(metrics),
        metrics_best_on_test=best.metrics(metrics),
    )


def _figure(values: Sequence[float | None]) -> OverSeeds | None:
    """The figure of the values that are known; None where none is."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return over_seeds(numbers)


def over_seeds(values: Sequence[float]) -> OverSeeds:
    """The mean of one figure of every seed, and its deviation."""
    mean = statistics.mean(values)
    if len(values) == 1:
        return OverSeeds(mean, None)
    return OverSeeds(mean, statistics.stdev(values))


def _links(history: Sequence[Round]) -> list[LinkFigures]:
    meter = sent_in(history)
    out = []
    for name in trained_links(meter):
        down = meter.traffic(link=name, direction="down")
        up = meter.traffic(link=name, direction="up")
        both = down + up
        out.append(
            LinkFigures(
                link=name,
                down=down.bytes,
                up=up.bytes,
                dense=both.dense,
                nonzeros=both.nonzeros / both.values if both.values else None,
                formula_dense=dense_bits(both.values) / 8,
                formula_paper=paper_bits(down, up) / 8,
                formula_bitmap=bitmap_bits(down, up) / 8,
            )
        )
    return out
