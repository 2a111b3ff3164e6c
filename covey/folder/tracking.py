"""Who follows a run: everything that is shown or written while rounds are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Self

from covey.runs.scores.record import Round


class RunTracker:
    """Is told of a run, or of seeds side by side, as it goes. By default it does nothing."""

    def begin(self) -> None:
        """The rounds that are left are about to be run."""

    def log(self, records: Sequence[Round]) -> None:
        """One round has ended: the record of every seed."""

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
    together: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Run all rounds, and tell the trackers; the end is told in the opposite order.

    What is told of a round is told `together` with the other processes of a run.
    """
    with ExitStack() as stack:
        for tracker in trackers:
            stack.enter_context(tracker)
        for records in rounds:
            with together():
                for tracker in trackers:
                    tracker.log(records)
