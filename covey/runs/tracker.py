"""Who follows a run, and the one loop that runs rounds and tells them.

`Tracker` is what a user writes for `covey run --log`; it is told of one seed. A `RunTracker` is
told of a whole run: whatever covey itself shows or writes while rounds are run is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

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


class RunTracker:
    """Is told of a run, or of seeds side by side, as it goes. By default it does nothing."""

    def begin(self) -> None:
        """The rounds that are left are about to be run."""

    def log(self, records: Sequence[Round]) -> bool | None:
        """One round has ended: the record of every seed. True: the run is to end here."""

    def save(self) -> None:
        """The run is to be saved, so that it can go on from here."""

    def end(self, error: BaseException | None) -> None:
        """All rounds have been run, or an error has ended the run."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error)


def play(
    rounds: Iterable[Sequence[Round]],
    trackers: Sequence[RunTracker],
    *,
    every: int | None = None,
    together: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Run rounds until none is left or a tracker ends the run; it is saved after `every` so many.

    The end is told in the opposite order. What is told of a round is told `together` with the other
    processes of a run.
    """
    with ExitStack() as stack:
        for tracker in trackers:
            stack.enter_context(tracker)
        for records in rounds:
            with together():
                ended = [tracker.log(records) for tracker in trackers]
                if every is not None and (records[0].round + 1) % every == 0:
                    for tracker in trackers:
                        tracker.save()
            if any(ended):
                return


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
