"""The confusion matrices of a run as one table: of every model, on test, in its reported round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from covey.runs.csv_text import csv_text
from covey.runs.run import Round
from covey.runs.selection import select


def to_csv(
    history: Sequence[Round],
    classes: Sequence[str],
    protocol: Literal["honest", "paper"] = "honest",
) -> str | None:
    """A row per model and class: the examples of the class by predicted class.

    None where the run has no such matrices.
    """
    scored = [record for record in history if record.models]
    if not scored:
        return None
    rows: list[list[str | int]] = []
    for name in scored[-1].models:
        chosen = select(history, name, protocol).chosen
        score = chosen.models[name].scores.get("test")
        if score is None or score.confusion is None:
            continue
        for label, counts in zip(classes, score.confusion, strict=True):
            rows.append([name, chosen.round + 1, label, *counts])
    if not rows:
        return None
    return csv_text(["model", "round", "class", *(f"predicted {label}" for label in classes)], rows)
