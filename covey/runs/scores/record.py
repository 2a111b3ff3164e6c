"""The record of one round: cohorts, traffic, scores, seconds, notes; to JSON and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

from covey import rooms
from covey.engine.measures.metrics import DEFAULTS
from covey.links.meter import Meter, Traffic
from covey.runs import html
from covey.runs.scores.scoring import Figure, Model, Score
from covey.runtimes.facts import Note, plain_cohort, read_cohort


class EnvironmentRecord(Protocol):
    """What the environment of a run records of a round; a data class of what JSON can hold."""

    name: ClassVar[str]
    """Its key in the record of a round."""
    axes: ClassVar[Mapping[str, str]]
    """Its figures that pictures draw models against, and their labels."""

    @property
    def seconds(self) -> float:
        """What the round took on the clock of the environment."""
        ...

    def figures(self) -> dict[str, float]:
        """Every number by its name."""
        ...


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    `round` counts from 0; what is printed counts from 1. `cohorts` are the nodes that were asked,
    by tier; more than 1,000 are ranges or a hash (covey/runtimes/facts.py). `traffic` is by link,
    direction ("down", "up") and lane ("train", "score"). `models` are the kept models by name,
    "global" first; there are none in a round that is not scored. With several seeds side by side,
    `seconds` is this seed's share. `spent` says what the seconds went to: training, links, cohorts,
    scores, other, and the checkpoint before. `notes` are what programs noted of the nodes that were
    asked, by tier and name. `environment` is what the environment records, such as the round on
    a virtual clock; it has the name of its room too. `gradients` were evaluated by all devices on
    their data, idle ones that train included.
    """

    round: int
    cohorts: dict[str, Sequence[int]]
    traffic: dict[tuple[str, str, str], Traffic]
    models: dict[str, Model]
    seconds: float
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    notes: dict[str, dict[str, Note]] = field(default_factory=dict)
    environment: EnvironmentRecord | None = None
    gradients: int = 0

    def __getattr__(self, name: str) -> Any:
        """The record of an environment by its own name; None in a round of another one."""
        return rooms.environment_of(self, "records", name)

    def bytes(self, link: str | None = None, direction: str | None = None) -> int:
        """What training sent in this round, in bytes."""
        return Meter(self.traffic).bytes(link=link, direction=direction)

    @property
    def modelled_seconds(self) -> float:
        """What the round took on the clock of its environment; 0 without one."""
        return 0.0 if self.environment is None else self.environment.seconds

    def accuracy(self, model: str = "global", part: str = "test") -> float | None:
        """The accuracy of a model, all examples alike; None where it was not scored."""
        scored = self.models.get(model)
        if scored is None or part not in scored.scores:
            return None
        return scored.scores[part].of("accuracy").held

    def figures(self) -> dict[str, float]:
        """Every number of the round under one name, as in "personal/test/accuracy".

        `bytes` are those of training. A figure that is None is left out.
        """
        out: dict[str, float] = {"seconds": self.seconds, "gradients": self.gradients}
        for (link, direction, lane), traffic in self.traffic.items():
            if lane == "train":
                out[f"bytes/{link}/{direction}"] = traffic.bytes
        for name, model in self.models.items():
            out[f"{name}/holders"] = model.holders
            out[f"{name}/nonzeros"] = model.nonzeros
            for part, facts in self._plain["models"][name]["scores"].items():
                prefix = f"{name}/{part}"
                errors = facts.get("standard_errors_fallback", {})
                out |= _numbers(prefix, facts)
                out |= _numbers(prefix, facts.get("metrics", {}))
                out |= _numbers(prefix, facts.get("metrics_fallback", {}), "_fallback")
                out |= _numbers(prefix, errors, "_standard_error")
        for tier, notes in self.notes.items():
            for name, note in notes.items():
                out |= _numbers(f"notes/{tier}/{name}", vars(note))
        if self.environment is not None:
            out |= _numbers(self.environment.name, self.environment.figures())
        return out

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        return dict(self._plain)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """Made once: every checkpoint holds all records so far."""
        out: dict[str, Any] = {}
        for name, value in asdict(replace(self, traffic={}, cohorts={}, models={})).items():
            if name == "environment":
                names = rooms.added("records")
                out |= {room: value if getattr(self, room) else None for room in names}
            else:
                out[name] = value
        out["models"] = {name: model.as_dict() for name, model in self.models.items()}
        out["cohorts"] = {tier: plain_cohort(ids) for tier, ids in self.cohorts.items()}
        for key, traffic in self.traffic.items():
            out["traffic"]["/".join(key)] = asdict(traffic)
        return out

    def scores(self) -> str:
        """The figure of every model, on test where that was scored; empty in an unscored round."""
        words = []
        for name, model in self.models.items():
            score = model.tested
            known = [each for each in score.asked if score.of(each).held is not None]
            words.append(f"{name} {_first_figure(score)}")
            if known:
                listed = ", ".join(f"{each} {_with_error(score.of(each))}" for each in known)
                words[-1] += f" [{listed}]"
        return "  ".join(words)

    def _repr_html_(self) -> str:
        """The models of the round, in a notebook."""
        return html.of_round(self)

    def __str__(self) -> str:
        scores = self.scores()
        sent = f"{self.bytes() / 1e6:.3f} MB"
        text = f"round {self.round + 1:4d}  {scores}  {sent}  {self.seconds:.2f} s"
        if self.environment is not None:
            text += f"  {self.environment}"
        return text


def scored_rounds(history: Iterable[Round]) -> list[Round]:
    """The rounds in which models were scored."""
    return [record for record in history if record.models]


def _numbers(prefix: str, values: Mapping[str, Any], ending: str = "") -> dict[str, float]:
    """The values that are numbers, each under the prefix and its own name with an ending."""
    out = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            out[f"{prefix}/{name}{ending}"] = value
    return out


def _with_error(figure: Figure, form: str = ".4g", errors: str = ".2g") -> str:
    """As 0.8123, or as 0.8123 ± 0.011 where devices were drawn to be scored."""
    if figure.error is None or figure.error[0] is None:
        return f"{figure.held:{form}}"
    return f"{figure.held:{form}} ± {figure.error[0]:{errors}}"


def _first_figure(score: Score) -> str:
    """The figure by which a model is judged."""
    held = [name for name in DEFAULTS if score.of(name).held is not None]
    accuracy = score.of("accuracy")
    if accuracy.held is not None and held[0] != "accuracy":
        return f"{accuracy.held:.4f} ({held[0]} {_with_error(score.of(held[0]))})"
    if accuracy.held is not None:
        return _with_error(accuracy, ".4f", ".4f")
    if held and held[0] != "loss":
        return f"{held[0]} {_with_error(score.of(held[0]))}"
    return f"loss {score.of('loss').held}"


def read(facts: dict[str, Any]) -> Round:
    """A record from what `Round.as_dict` gave.

    Records of earlier versions have no notes, environment and gradients.
    """
    traffic = {}
    for key, value in facts["traffic"].items():
        link, direction, lane = key.split("/")
        traffic[link, direction, lane] = Traffic(**value)
    notes = {}
    for tier, by_name in facts.get("notes", {}).items():
        notes[tier] = {name: Note(**note) for name, note in by_name.items()}
    models = {name: Model.read(model) for name, model in facts["models"].items()}
    environment = None
    for name, where in rooms.added("records").items():
        if facts.get(name) is not None:
            environment = rooms.load(where)(**facts[name])
    return Round(
        round=facts["round"],
        cohorts={tier: read_cohort(ids) for tier, ids in facts["cohorts"].items()},
        traffic=traffic,
        models=models,
        seconds=facts["seconds"],
        spent=facts["spent"],
        notes=notes,
        environment=environment,
        gradients=facts.get("gradients", 0),
    )
