"""What a tracker is: it is told of a run as it goes, and writes that down in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from covey.runs.csv_text import csv_text
from covey.runs.scores.record import Round


@runtime_checkable
class Tracker(Protocol):
    """Writes the rounds of one seed down; `covey run --log package.module:Class` makes it.

    It is made with the folder of the seed, a `pathlib.Path`. Every round comes once and in order,
    also where a run is resumed. `record.figures()` are its numbers by name. If a tracker raises an
    error, that is shown once, and the run goes on without it.

    covey counts the rounds that a tracker was told of. A tracker that knows better, for example
    after its process was killed, has an attribute `rounds`: the next round that it is told of is
    the one after that.

    >>> class Printed:
    ...     def __init__(self, folder): self.folder = folder
    ...     def start(self, config): print(config["algorithm"]["name"])
    ...     def log(self, record): print(record.round + 1, record.figures()["global/test/accuracy"])
    ...     def finish(self, summary): print(summary["finished"])
    >>> isinstance(Printed("runs/fedavg-1"), Tracker)
    True
    """

    def start(self, config: Mapping[str, Any]) -> None:
        """The run begins, or is resumed; `config` is its resolved experiment file."""

    def log(self, record: Round) -> None:
        """One round has ended."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run ends; `summary["finished"]` says whether all rounds were run."""


def rows(history: Sequence[Round]) -> list[dict[str, float]]:
    """One row per round: the round, counted from 1, and the figures that it has."""
    return [{"round": record.round + 1, **record.figures()} for record in history]


def columns(table: Sequence[Mapping[str, float]]) -> list[str]:
    """The names of all figures, in the order in which they first come."""
    return list(dict.fromkeys(name for row in table for name in row))


def to_csv(history: Sequence[Round]) -> str:
    """The rounds as a CSV file; a figure that a round has not is an empty cell."""
    table = rows(history)
    return csv_text(columns(table) or ["round"], table)
