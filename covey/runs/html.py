"""Runs and rounds as HTML tables, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from covey import markup
from covey.runs.scoring import Model, Score

if TYPE_CHECKING:
    from covey.runs.record import Round
    from covey.runs.seed import Seed


def of_round(record: Round, caption: str = "") -> str:
    """The models of a round: who keeps them, and their scores."""
    sent = f"{record.bytes() / 1e6:.3f} MB, {record.seconds:.2f} s"
    caption = caption or f"round {record.round + 1}: {sent}"
    if not record.models:
        return markup.table(["not scored"], [], caption)
    parts = list(dict.fromkeys(part for model in record.models.values() for part in model.scores))
    heads = ["model", "kept by", *(f"{part} {_unit(record)}" for part in parts)]
    tested = parts[-1]
    heads += ["worst 10 %", "non-zero %"]
    rows = [
        [name, _holders(model), *_scores(model, parts), _worst(model, tested), _nonzeros(model)]
        for name, model in record.models.items()
    ]
    return markup.table(heads, rows, caption)


def of_run(run: Seed) -> str:
    """A run: what it runs, how far it is, and the models of its last scored round."""
    experiment = run.experiment
    done = f"{run.round} of {experiment.rounds} rounds"
    if run.stopped is not None:
        done = f"stopped early after {done}"
    method = type(experiment.algorithm).__name__
    caption = f"{method} on {experiment.data.name}, {run.runtime.tree}: {done}"
    scored = [record for record in run.history if record.models]
    if not scored:
        return markup.table(["not scored yet"], [], caption)
    last = scored[-1]
    sent = sum(record.bytes() for record in run.history) / 1e6
    seconds = sum(record.seconds for record in run.history)
    figures = f"scores of round {last.round + 1}; {sent:.3f} MB and {seconds:.2f} s so far"
    return of_round(last, f"{caption}; {figures}")


def _unit(record: Round) -> str:
    scores = [score for model in record.models.values() for score in model.scores.values()]
    if any(score.perplexity is not None for score in scores):
        return "perplexity"
    if any(score.accuracy is not None for score in scores):
        return "%"
    if any(score.rmse is not None for score in scores):
        return "RMSE"
    return "loss"


def _holders(model: Model) -> str:
    plural = "s" if model.holders != 1 else ""
    return f"{model.holders} {model.tier}{plural}"


def _scores(model: Model, parts: Iterable[str]) -> list[str]:
    return [_figure(model.scores.get(part)) for part in parts]


def _figure(score: Score | None) -> str:
    if score is None:
        return "-"
    if score.perplexity_fallback is not None:
        return f"{score.perplexity_fallback:.4g}"
    if score.accuracy_fallback is not None:
        return f"{100 * score.accuracy_fallback:.2f}"
    if score.rmse_fallback is not None:
        return f"{score.rmse_fallback:.4g}"
    return "-" if score.loss_fallback is None else f"{score.loss_fallback:.4g}"


def _worst(model: Model, part: str) -> str:
    score = model.scores.get(part)
    if score is None or score.worst_decile is None:
        return "-"
    return f"{100 * score.worst_decile:.2f}"


def _nonzeros(model: Model) -> str:
    return f"{100 * model.nonzeros:.1f}"
