"""The models that the nodes of a run keep: their names, their rows, and the round that is reported.

The round that is reported for a model is the one where its scores were best so far. Its rows are
held from then. A model may be scored in the last round only because it is the last. Rows of such a
round are held under a label of their own: a run that goes on forgets them, as if the round had
never been the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from covey.kernel.algorithm import Algorithm
from covey.runs.scores.figures import Sums
from covey.runs.scores.scoring import Model
from covey.runtimes.contract import Runtime

GLOBAL = "global"
PERSONAL = "personal"
CHOSEN_ON = {"honest": "validation", "paper": "test"}
"""The part of the data on which each protocol chooses the round it reports."""
Which = Literal["last", "chosen"]
"""A model as it is now, or as it was in the round that its scores chose."""
REGULAR = "chosen "
FINAL = "final "


def kept(runtime: Runtime) -> tuple[tuple[str, str], ...]:
    """(tier, name) of every column that holds whole models, the upper tiers' first."""
    columns = runtime.kept()
    width = runtime.task.space.width
    out = []
    for tier in runtime.tree.tiers:
        for key in sorted(columns):
            rows = columns[key]
            is_model = rows.shape[1:] == (width,) and rows.is_floating_point()
            if key[0] == tier and is_model and not key[1].startswith("_"):
                out.append(key)
    return tuple(out)


def names(runtime: Runtime) -> list[str]:
    """The names of all models that are scored, "global" first."""
    return [GLOBAL, *(name for _, name in kept(runtime))]


def lead(runtime: Runtime) -> str:
    """The model whose choice decides for what is saved but never scored."""
    if PERSONAL in names(runtime):
        return PERSONAL
    return GLOBAL


def unscored(runtime: Runtime, algorithm: Algorithm) -> list[tuple[str, str]]:
    """(tier, name) of what the tier above devices keeps for new devices, if it is not scored."""
    above = algorithm.above()
    if above in names(runtime):
        return []
    return [key for key in runtime.kept() if key[1] == above]


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


def better(
    scored: Model,
    part: str,
    chosen: Mapping[str, Chosen],
    name: str,
) -> float | None:
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
