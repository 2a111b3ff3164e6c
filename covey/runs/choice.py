"""The round that is reported for each model: where its scores were best so far.

Its rows are held from then. A model may be scored in the last round only because it is the last.
Rows of such a round are held under a label of their own: a run that goes on forgets them, as if the
round had never been the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from covey.runs.devices import Sums
from covey.runs.scoring import Model

CHOSEN_ON = {"honest": "validation", "paper": "test"}
"""The part of the data on which each protocol chooses the round it reports."""
Which = Literal["last", "chosen"]
"""A model as it is now, or as it was in the round that its scores chose."""
REGULAR = "chosen "
FINAL = "final "


@dataclass(frozen=True, eq=False)
class Chosen:
    """The round in which a model was best so far: its global row, [1, P], and devices' figures."""

    round: int
    quality: float
    w: Tensor
    sums: Sums


def label(model: str, *, final: bool = False) -> str:
    """The name under which the rows of a model's best round are held.

    `final`: it is scored only for being the last.
    """
    if final:
        return f"{FINAL}{model}"
    return f"{REGULAR}{model}"


def label_in(chosen: Mapping[str, Chosen], model: str) -> str | None:
    """The label of the round chosen for a model; None where none was."""
    for name in (label(model, final=True), label(model)):
        if name in chosen:
            return name
    return None


def better(scored: Model, part: str, chosen: Mapping[str, Chosen], name: str) -> float | None:
    """The quality of a scored model where it beats the best regular round so far.

    None where it does not.
    """
    if part not in scored.scores:
        return None
    best = -math.inf
    if label(name) in chosen:
        best = chosen[label(name)].quality
    quality = scored.quality(part)
    if quality <= best:
        return None
    return quality
