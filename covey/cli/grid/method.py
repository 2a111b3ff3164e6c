"""One algorithm of a comparison, as the plan in the folder holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.cli.grid.cells import Budget


@dataclass(frozen=True)
class Method:
    """One algorithm of a comparison: its table, and how many rounds it gets."""

    name: str
    label: str  # of its files
    title: str
    algorithm: dict[str, Any]
    rounds: int
    score_every: int
    budget: Budget | None  # None: rounds cost nothing, and there are as many as the file says
    round_cost: float

    @staticmethod
    def read(values: dict[str, Any]) -> Method:
        """A method from what `asdict` gave."""
        budget = values["budget"]
        if budget is not None:
            budget = Budget(**budget)
        return Method(**{**values, "budget": budget})
