"""The figures a run ends with: every model in its chosen round, and what every link carried; over
several seeds with spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from covey.kernel.algorithm import Algorithm
from covey.links.meter import Meter, Traffic, bitmap_bits, dense_bits, paper_bits
from covey.runs.devices import DeviceScore
from covey.runs.run import Round
from covey.runs.selection import Selection, select


@dataclass(frozen=True)
class Figure:
    """A mean over seeds and its standard deviation; the deviation is None for one seed."""

    mean: float
    deviation: float | None

    def percent(self) -> str:
        """As 98.40 or 98.40 ± 0.31."""
        spread = f" ± {100 * self.deviation:.2f}" if self.deviation is not None else ""
        return f"{100 * self.mean:.2f}{spread}"

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + (
            f" ± {self.deviation:.2g}" if self.deviation is not None else ""
        )


@dataclass(frozen=True)
class ModelFigures:
    """One model: accuracy in the round chosen on validation, in the last and in the best on test;
    the rest in the chosen one.
    """

    model: str
    tier: str
    chosen_round: list[int]  # of each seed, counted from 0
    holders: Figure  # nodes that keep one
    age: Figure  # mean rounds since they kept it
    accuracy: Figure | None  # over all devices, the global model standing in where none is kept
    accuracy_holders: Figure | None
    accuracy_uniform: (
        Figure | None
    )  # every device that holds it counts alike, however many examples it has
    last: Figure | None
    best_on_test: Figure | None
    worst_decile: Figure | None
    loss: Figure | None  # over all devices, as `accuracy`
    loss_holders: Figure | None
    loss_last: Figure | None
    nonzeros: Figure
    cut: float
    angle: Figure | None  # between a sparse model and its signs, in degrees
    layers: dict[
        str, float
    ]  # share of non-zeros of every parameter of a sparse model, mean over seeds
    rmse: Figure | None = None  # these where numbers are predicted; over all devices, as `accuracy`
    mae: Figure | None = None
    r2: Figure | None = None
    rmse_holders: Figure | None = None
    rmse_last: Figure | None = None
    rmse_best_on_test: Figure | None = None


@dataclass(frozen=True)
class LinkFigures:
    """One link, both directions, all rounds of one run: bytes as encoded, as dense, and by the
    papers' formulas.
    """

    link: str
    down: int
    up: int
    dense: int
    nonzeros: float | None
    formula_dense: float
    formula_paper: float
    formula_bitmap: float


@dataclass(frozen=True)
class RadioFigures:
    """All rounds on the virtual clock: by what was measured, and by the plan's formulas where there
    is a plan.
    """

    seconds: Figure
    formula_seconds: Figure | None
    joules: Figure  # of all devices
    upload_joules: Figure
    upload_bytes: Figure
    formula_bytes: Figure | None
    left_out: Figure  # devices in a round
    late: Figure
    certificate: float | None  # the largest figure of any round's plan


@dataclass(frozen=True)
class Gain:
    """Devices' own models against the global one, on test data in the reported rounds, of all
    seeds' devices.

    In points of accuracy or, where numbers are predicted, by how many per cent the RMSE falls; more
    is better.
    """

    model: str
    other: str
    devices: int
    better: int
    worse: int
    median: float
    least: float
    most: float
    figure: Literal["accuracy", "rmse"] = "accuracy"


@dataclass(frozen=True)
class SampleFigures:
    """Scores on a sample of the devices: how many were drawn in a round, and the standard error of
    each reported figure.

    It is the error of one seed's test accuracy over all devices (loss, for regression) by model,
    the largest of any seed.
    """

    devices: int
    standard_errors: dict[str, float | None]


@dataclass(frozen=True)
class Yardstick:
    """Another algorithm on the same data and tree."""

    method: str
    models: list[ModelFigures]


@dataclass(frozen=True)
class Summary:
    """What a run has come to."""

    rounds: int
    seeds: int
    seconds: float
    models: list[ModelFigures]
    links: list[LinkFigures]
    protocol: Literal["honest", "paper"] = "honest"
    spent: dict[str, float] = field(
        default_factory=dict
    )  # seconds by what they went into, largest first
    radio: RadioFigures | None = None
    gains: list[Gain] = field(default_factory=list)
    labels: dict[str, str] = field(
        default_factory=dict
    )  # what tables call a model where its name would mislead
    yardsticks: list[Yardstick] = field(default_factory=list)
    sample: SampleFigures | None = None  # None: all devices were scored

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `sample` is there if devices were drawn."""
        out = asdict(self)
        if self.sample is None:
            del out["sample"]
        return out


def summarise(
    histories: Sequence[Sequence[Round]],
    protocol: Literal["honest", "paper"] = "honest",
    devices: Sequence[Sequence[DeviceScore]] = (),
    algorithm: Algorithm | None = None,
    private: str = "",
) -> Summary:
    """The summary of one history per seed and, where they are known, of every seed's devices.

    `algorithm` says whether there is a global model to report, `private` what devices kept to
    themselves.
    """
    scored = [[record for record in history if record.models] for history in histories]
    names = list(scored[0][-1].models) if scored and scored[0] else []
    no_global = algorithm is not None and not algorithm.learns_global
    if no_global:
        names = [name for name in names if name not in ("global", "new_global")]
    selections = {name: [select(history, name, protocol) for history in scored] for name in names}
    models = [_model(name, chosen) for name, chosen in selections.items()]
    seconds = sum(record.seconds for history in histories for record in history)
    facts = (len(histories[0]), len(histories), seconds, models, _links(histories[0]), protocol)
    gains = [] if no_global else _gains(devices)
    labels = _labels(models, private)
    sample = _sample(selections)
    return Summary(*facts, _spent(histories), _radio(histories), gains, labels, sample=sample)


def _sample(selections: Mapping[str, Sequence[Selection]]) -> SampleFigures | None:
    """How many devices were drawn to be scored, and the standard errors that follow; None where all
    were scored.
    """
    drawn = set()
    errors: dict[str, float | None] = {}
    for name, selected in selections.items():
        scores = [selection.chosen.models[name].scores["test"] for selection in selected]
        sizes = [score.sampled for score in scores if score.sampled is not None]
        if sizes:
            known = [score.standard_error_fallback for score in scores]
            errors[name] = max((error for error in known if error is not None), default=None)
            drawn.update(sizes)
    if not drawn:
        return None
    return SampleFigures(max(drawn), errors)


def _labels(models: Sequence[ModelFigures], private: str) -> dict[str, str]:
    """A model from above is scored with each device's own private layers, so it is not one model
    for all.
    """
    if not private:
        return {}
    above = [m.model for m in models if m.tier != "device" and not m.model.startswith("new_")]
    return {name: f"{name} (each device's own {private})" for name in above}


def _gains(
    devices: Sequence[Sequence[DeviceScore]],
    model: str = "personal",
    other: str = "global",
) -> list[Gain]:
    """What devices' own models are worth to them; empty where there are none."""
    points = []
    figure: Literal["accuracy", "rmse"] = "accuracy"
    for seed in devices:
        by = {(line.model, line.device): line for line in seed if line.part == "test"}
        for (name, device), line in by.items():
            base = by.get((other, device))
            if name != model or not line.holds or base is None:
                continue
            if line.accuracy is not None and base.accuracy is not None:
                points.append(100 * (line.accuracy - base.accuracy))
            elif line.rmse is not None and base.rmse:
                figure = "rmse"
                points.append(100 * (1 - line.rmse / base.rmse))
    if not points:
        return []
    better, worse = sum(p > 0 for p in points), sum(p < 0 for p in points)
    spread = (statistics.median(points), min(points), max(points))
    return [Gain(model, other, len(points), better, worse, *spread, figure)]


def _radio(histories: Sequence[Sequence[Round]]) -> RadioFigures | None:
    every = [
        [record.radio for record in history if record.radio is not None] for history in histories
    ]
    if not any(every):
        return None

    def total(name: str) -> Figure | None:
        values = [[getattr(aired, name) for aired in history] for history in every]
        return None if None in values[0] else _over([sum(seed) for seed in values])

    def number(name: str) -> Figure:
        return _over(
            [statistics.mean(len(getattr(aired, name)) for aired in history) for history in every]
        )

    none = Figure(0.0, None)
    return RadioFigures(
        seconds=total("seconds") or none,
        formula_seconds=total("formula_seconds"),
        joules=total("joules") or none,
        upload_joules=total("upload_joules") or none,
        upload_bytes=total("upload_bytes") or none,
        formula_bytes=total("formula_bytes"),
        left_out=number("left_out"),
        late=number("late"),
        certificate=max(
            (a.certificate for history in every for a in history if a.certificate is not None),
            default=None,
        ),
    )


def _spent(histories: Sequence[Sequence[Round]]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for record in (record for history in histories for record in history):
        for name, seconds in record.spent.items():
            spent[name] = spent.get(name, 0.0) + seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def _model(name: str, chosen: list[Selection]) -> ModelFigures:
    first = chosen[0].chosen.models[name]
    return ModelFigures(
        model=name,
        tier=first.tier,
        chosen_round=[c.chosen.round for c in chosen],
        holders=_figure(chosen, lambda c: c.chosen.models[name].holders) or Figure(0.0, None),
        age=_figure(chosen, lambda c: c.chosen.models[name].age) or Figure(0.0, None),
        accuracy=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].accuracy_fallback),
        accuracy_holders=_figure(chosen, lambda c: c.chosen.accuracy(name)),
        accuracy_uniform=_figure(
            chosen, lambda c: c.chosen.models[name].scores["test"].accuracy_uniform
        ),
        last=_figure(chosen, lambda c: c.last.models[name].scores["test"].accuracy_fallback),
        best_on_test=_figure(
            chosen, lambda c: c.best_on_test.models[name].scores["test"].accuracy_fallback
        ),
        worst_decile=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].worst_decile),
        loss=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].loss_fallback),
        loss_holders=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].loss),
        loss_last=_figure(chosen, lambda c: c.last.models[name].scores["test"].loss_fallback),
        nonzeros=_figure(chosen, lambda c: c.chosen.models[name].nonzeros) or Figure(0.0, None),
        cut=first.cut,
        angle=_figure(chosen, lambda c: c.chosen.models[name].angle),
        layers={
            layer: statistics.mean(c.chosen.models[name].layers[layer] for c in chosen)
            for layer in first.layers
        },
        rmse=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].rmse_fallback),
        mae=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].mae_fallback),
        r2=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].r2_fallback),
        rmse_holders=_figure(chosen, lambda c: c.chosen.models[name].scores["test"].rmse),
        rmse_last=_figure(chosen, lambda c: c.last.models[name].scores["test"].rmse_fallback),
        rmse_best_on_test=_figure(
            chosen, lambda c: c.best_on_test.models[name].scores["test"].rmse_fallback
        ),
    )


def _figure(chosen: list[Selection], read: Callable[[Selection], float | None]) -> Figure | None:
    values = [value for value in map(read, chosen) if value is not None]
    return _over(values) if values else None


def _over(values: Sequence[float]) -> Figure:
    return Figure(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)


def _links(history: Sequence[Round]) -> list[LinkFigures]:
    meter = Meter()
    for record in history:
        for (link, direction, lane), traffic in record.traffic.items():
            meter.count(link, direction, lane, traffic)
    names = dict.fromkeys(link for link, _, lane in meter.totals if lane == "train")
    return [
        _link(link, *(meter.traffic(link=link, direction=way) for way in ("down", "up")))
        for link in names
    ]


def _link(
    link: str,
    down: Traffic,
    up: Traffic,
) -> LinkFigures:
    both = down + up
    share = both.nonzeros / both.values if both.values else None
    formulas = (dense_bits(both.values) / 8, paper_bits(down, up) / 8, bitmap_bits(down, up) / 8)
    return LinkFigures(link, down.bytes, up.bytes, both.dense, share, *formulas)
