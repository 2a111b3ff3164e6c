"""The metric by which a run is judged: its name, its direction, and how it is written.

It is the metric that `select` names. By default it is the accuracy, the perplexity of tokens, the
RMSE of numbers, or else the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.engine.measures.metrics import DEFAULTS, USUAL, face
from covey.errors import ConfigError, shown
from covey.runs.scores.devices import DeviceScore
from covey.runs.scores.scoring import Model, Score

if TYPE_CHECKING:
    from covey.runs.scores.record import Round


@dataclass(frozen=True)
class Headline:
    """A metric by its name in records, and whether higher values are better."""

    name: str
    higher: bool

    @property
    def percent(self) -> bool:
        """Whether it is written in per cent; the accuracy alone is."""
        return face(self.name).percent

    @property
    def title(self) -> str:
        """As in "RMSE", "f1" or "accuracy"."""
        return face(self.name).title or self.name

    @property
    def unit(self) -> str:
        """What stands beside a number: "%" for the accuracy, else the title."""
        return "%" if self.percent else self.title

    @property
    def axis(self) -> str:
        """The label of an axis, as in "accuracy (%)"."""
        return "accuracy (%)" if self.percent else self.title

    @property
    def relative(self) -> bool:
        """Whether a gain is told in per cent of the other value."""
        return face(self.name).relative

    def of(self, score: Score) -> float | None:
        """Over all devices; the global model stands in where none is held."""
        return score.figure(self.name)

    def of_holders(self, score: Score) -> float | None:
        """Over the devices that hold the model."""
        return score.of(self.name).held

    def of_device(self, line: DeviceScore) -> float | None:
        """On one device's examples."""
        return line.figures.get(self.name)

    def scaled(self, value: float) -> float:
        """The value in the unit in which it is written."""
        return 100 * value if self.percent else value

    def text(self, value: float | None, digits: int = 2) -> str:
        """The value as it is written, without its unit; `digits` are those of per cent.

        >>> Headline("accuracy", True).text(0.98765), Headline("f1", True).text(0.98765)
        ('98.77', '0.9877')
        """
        if value is None:
            return "-"
        if self.percent:
            return f"{100 * value:.{digits}f}"
        return f"{value:.4g}"

    def with_unit(self, value: float | None) -> str:
        """As in "98.77 %" or "f1 0.9877"."""
        text = self.text(value)
        if value is None:
            return text
        return f"{text} %" if self.percent else f"{self.title} {text}"

    def gain(self, value: float | None, base: float | None) -> float | None:
        """By how much a value is better than a base; more is better.

        It is in points of accuracy, in per cent of an error, or else the difference.

        >>> Headline("accuracy", True).gain(0.75, 0.5), Headline("rmse", False).gain(1.0, 2.0)
        (25.0, 50.0)
        >>> Headline("ece", False).gain(0.25, 0.5)
        0.25
        """
        if value is None or base is None:
            return None
        if self.relative:
            return 100 * (1 - value / base) if base else None
        return self.difference(value, base)

    def difference(self, value: float, base: float) -> float:
        """By how much a value is better, in the unit in which it is written; -x where swapped."""
        return self.scaled(value - base if self.higher else base - value)

    def badness(self, value: float | None) -> float:
        """A number that is the smallest for the best value; infinite where it is not known."""
        if value is None:
            return float("inf")
        return -value if self.higher else value


def named(name: str) -> Headline:
    """The metric of a name; a minus before it says that lower is better.

    >>> named("-margin"), named("f1").higher, named("rmse").higher
    (Headline(name='margin', higher=False), True, False)
    """
    bare = name.removeprefix("-")
    return Headline(bare, higher=bare == name and face(bare).higher)


def selected(model: Model) -> Headline:
    """The metric by which a model's round is chosen (`Model.quality`)."""
    if model.select:
        return named(model.select)
    choosers = [named(score.chooser) for score in model.scores.values()]
    return next((metric for metric in choosers if metric.percent), named("loss"))


def headline(records: Iterable[Round]) -> Headline:
    """The metric by which a run is judged, from its records."""
    for record in records:
        for model in record.models.values():
            if model.select:
                return named(model.select)
            for name in DEFAULTS:
                if any(score.figure(name) is not None for score in model.scores.values()):
                    return named(name)
    return named("loss")


def for_devices(wanted: Headline, lines: Sequence[DeviceScore]) -> Headline:
    """The metric, or the first default that devices have where they do not have it."""
    for metric in (wanted, *map(named, DEFAULTS)):
        if any(metric.of_device(line) is not None for line in lines):
            return metric
    return named("loss")


def asked_for(name: str, wanted: Headline, lines: Sequence[DeviceScore]) -> Headline:
    """The metric of a name that a user gives; a ConfigError where devices do not have it."""
    metric = wanted if wanted.name == name else named(name)
    if any(metric.of_device(line) is not None for line in lines):
        return metric
    known = names_of_devices(lines)
    raise ConfigError(f"--metric {shown(name)}: devices have {', '.join(known)}.")


def names_of_devices(lines: Sequence[DeviceScore]) -> list[str]:
    """The metrics that devices have a figure of."""
    first = lines[0].figures if lines else {}
    names = dict.fromkeys([*USUAL, *first])
    return [name for name in names if any(line.figures.get(name) is not None for line in lines)]
