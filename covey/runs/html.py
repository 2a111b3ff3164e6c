"""Runs and rounds as HTML tables, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey import markup
from covey.runs.scores.headline import Headline, headline, named

if TYPE_CHECKING:
    from covey.runs.scores.record import Round
    from covey.runs.seed import Seed


def of_round(record: Round, caption: str = "") -> str:
    """The models of a round: who keeps them, and their scores."""
    sent = f"{record.bytes() / 1e6:.3f} MB, {record.seconds:.2f} s"
    caption = caption or f"round {record.round + 1}: {sent}"
    if not record.models:
        return markup.table(["not scored"], [], caption)
    parts = list(dict.fromkeys(part for model in record.models.values() for part in model.scores))
    metric = headline([record])
    columns = {f"{part} {metric.unit}": _scores(record, part, metric) for part in parts}
    tested = parts[-1]
    scores = [model.scores.get(tested) for model in record.models.values()]
    if metric.percent:
        worst = [None if score is None else score.of(metric.name).worst for score in scores]
        columns["worst 10 %"] = [metric.text(value) for value in worst]
    names = dict.fromkeys(name for score in scores if score for name in score.asked)
    names.pop(metric.name, None)
    for other in map(named, names):
        columns[f"{tested} {other.unit}"] = _scores(record, tested, other)
    columns["non-zero %"] = [f"{100 * model.nonzeros:.1f}" for model in record.models.values()]
    rows = []
    for number, (name, model) in enumerate(record.models.items()):
        plural = "s" if model.holders != 1 else ""
        holders = f"{model.holders} {model.tier}{plural}"
        rows.append([name, holders, *(cells[number] for cells in columns.values())])
    return markup.table(["model", "kept by", *columns], rows, caption)


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


def _scores(record: Round, part: str, metric: Headline) -> list[str]:
    """The metric of every model on a part."""
    out = []
    for model in record.models.values():
        score = model.scores.get(part)
        out.append("-" if score is None else metric.text(metric.of(score)))
    return out
