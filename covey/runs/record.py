"""The record of one round: cohorts, traffic, scores, seconds, notes; to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from covey.links.meter import Meter, Traffic
from covey.runs import html
from covey.runs.scoring import Model, Score
from covey.runtimes import cohort
from covey.runtimes.notes import Note
from covey.wireless.clock import RadioRecord


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    `round` counts from 0; what is printed counts from 1. `cohorts` are the nodes that were asked,
    by tier; more than 1,000 are ranges or a hash (covey/runtimes/cohort.py). `traffic` is by link,
    direction ("down", "up") and lane ("train", "score"). `models` are the kept models by name,
    "global" first; there are none in a round that is not scored. With several seeds side by side,
    `seconds` is this seed's share. `spent` says what the seconds went to: training, links, cohorts,
    scores, other, and the checkpoint before. `notes` are what programs noted of the nodes that were
    asked, by tier and name. `radio` is the round on the virtual clock, where the experiment has a
    radio. `gradients` were evaluated by all devices on their data, idle ones that train included.
    """

    round: int
    cohorts: dict[str, Sequence[int]]
    traffic: dict[tuple[str, str, str], Traffic]
    models: dict[str, Model]
    seconds: float
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    notes: dict[str, dict[str, Note]] = field(default_factory=dict)
    radio: RadioRecord | None = None
    gradients: int = 0

    def bytes(self, link: str | None = None, direction: str | None = None) -> int:
        """What training sent in this round, in bytes."""
        return Meter(self.traffic).bytes(link=link, direction=direction)

    def accuracy(self, model: str = "global", part: str = "test") -> float | None:
        """The accuracy of a model, all examples alike; None where it was not scored."""
        scored = self.models.get(model)
        if scored is None or part not in scored.scores:
            return None
        return scored.scores[part].accuracy

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
            for part, score in model.scores.items():
                prefix = f"{name}/{part}"
                out |= _numbers(prefix, vars(score))
                out |= _numbers(prefix, score.metrics)
                for metric, value in score.metrics_fallback.items():
                    out |= _numbers(prefix, {f"{metric}_fallback": value})
                for metric, value in score.standard_errors_fallback.items():
                    out |= _numbers(prefix, {f"{metric}_standard_error": value})
        for tier, notes in self.notes.items():
            for name, note in notes.items():
                out |= _numbers(f"notes/{tier}/{name}", vars(note))
        if self.radio is not None:
            out |= _numbers("radio", vars(self.radio))
            out["radio/left_out"] = len(self.radio.left_out)
            out["radio/late"] = len(self.radio.late)
        return out

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        return dict(self._plain)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """Made once: every checkpoint holds all records so far."""
        out = asdict(replace(self, traffic={}, cohorts={}))
        out["cohorts"] = {tier: cohort.plain(ids) for tier, ids in self.cohorts.items()}
        for key, traffic in self.traffic.items():
            out["traffic"]["/".join(key)] = asdict(traffic)
        for model in out["models"].values():
            if not model["select"]:
                del model["select"]
            scores = model["scores"]
            for part, score in scores.items():
                scores[part] = _plain_score(score)
        return out

    def scores(self) -> str:
        """The figure of every model, on test where that was scored; empty in an unscored round."""
        return "  ".join(f"{name} {_figure(model)}" for name, model in self.models.items())

    def _repr_html_(self) -> str:
        """The models of the round, in a notebook."""
        return html.of_round(self)

    def __str__(self) -> str:
        scores = self.scores()
        sent = f"{self.bytes() / 1e6:.3f} MB"
        text = f"round {self.round + 1:4d}  {scores}  {sent}  {self.seconds:.2f} s"
        if self.radio is not None:
            text += f"  air {self.radio.seconds:.3g} s {self.radio.joules:.3g} J"
        return text


def _numbers(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, each under the prefix and its own name."""
    return {
        f"{prefix}/{name}": value
        for name, value in values.items()
        if isinstance(value, int | float)
    }


_SAMPLED = ("sampled", "standard_error", "standard_error_fallback")
_PERPLEXITIES = ("perplexity", "perplexity_fallback")
_METRICS = ("metrics", "metrics_fallback")
_ERRORS = ("standard_errors", "standard_errors_fallback")


def _plain_score(score: dict[str, Any]) -> dict[str, Any]:
    """A score without the facts of a sample where all devices were scored.

    Perplexities and metrics are left out where there are none.
    """
    left_out: tuple[str, ...] = ()
    if score["sampled"] is None:
        left_out += _SAMPLED
    if score["perplexity_fallback"] is None:
        left_out += _PERPLEXITIES
    if not score["metrics"]:
        left_out += _METRICS
    if not score["standard_errors"]:
        left_out += _ERRORS
    for name in ("confusion", "uncounted"):
        if score[name] is None:
            left_out += (name,)
    return {name: value for name, value in score.items() if name not in left_out}


def _figure(model: Model) -> str:
    """The figures of a model that one line has room for, on test where that was scored."""
    score = model.scores.get("test") or next(iter(model.scores.values()))
    figure = _first_figure(score)
    known = {name: value for name, value in score.metrics.items() if value is not None}
    if not known:
        return figure
    listed = [f"{name} {_with_error(score, name, value)}" for name, value in known.items()]
    return f"{figure} [{', '.join(listed)}]"


def _with_error(score: Score, name: str, value: float) -> str:
    """As 0.8123, or as 0.8123 ± 0.011 where devices were drawn to be scored."""
    error = score.standard_errors.get(name)
    if error is None:
        return f"{value:.4g}"
    return f"{value:.4g} ± {error:.2g}"


def _first_figure(score: Score) -> str:
    if score.accuracy is not None and score.perplexity is not None:
        return f"{score.accuracy:.4f} (perplexity {score.perplexity:.4g})"
    if score.accuracy is not None and score.standard_error is not None:
        return f"{score.accuracy:.4f} ± {score.standard_error:.4f}"
    if score.accuracy is not None:
        return f"{score.accuracy:.4f}"
    if score.rmse is not None:
        return f"rmse {_with_error(score, 'rmse', score.rmse)}"
    return f"loss {score.loss}"


def read(facts: dict[str, Any]) -> Round:
    """A record from what `Round.as_dict` gave.

    Records of earlier versions have no notes, radio and gradients.
    """
    traffic = {}
    for key, value in facts["traffic"].items():
        link, direction, lane = key.split("/")
        traffic[link, direction, lane] = Traffic(**value)
    notes = {}
    for tier, by_name in facts.get("notes", {}).items():
        notes[tier] = {name: Note(**note) for name, note in by_name.items()}
    models = {}
    for name, model in facts["models"].items():
        models[name] = _read_model(model)
    radio = None
    if facts.get("radio") is not None:
        radio = RadioRecord(**facts["radio"])
    return Round(
        round=facts["round"],
        cohorts={tier: cohort.read(ids) for tier, ids in facts["cohorts"].items()},
        traffic=traffic,
        models=models,
        seconds=facts["seconds"],
        spent=facts["spent"],
        notes=notes,
        radio=radio,
        gradients=facts.get("gradients", 0),
    )


def _read_model(facts: dict[str, Any]) -> Model:
    scores = {part: Score(**score) for part, score in facts["scores"].items()}
    return Model(**{**facts, "scores": scores})
