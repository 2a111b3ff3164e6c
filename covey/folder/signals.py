"""Stopping a run: Ctrl-C, SIGTERM and SIGHUP end it once, and leave it the time to save."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from covey.errors import CoveyError
from covey.folder.terminal import Console
from covey.runs.scores.record import Round
from covey.runs.tracker import RunTracker
from covey.runtimes.ranks.ranks import ALONE, Ranks


class Interrupted(CoveyError):
    """The user stopped the run; it is saved."""

    exit_code = 130


@dataclass(eq=False)
class StopSignal(RunTracker):
    """Ctrl-C, SIGTERM and SIGHUP end a run once; those that follow leave it the time to save.

    Several ranks stop after the same round, as soon as one of them was asked to.
    """

    console: Console
    ranks: Ranks = ALONE
    asked: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.console.print("saving the state; one moment")
            return
        self.asked = True
        if self.ranks.world > 1:
            self.ranks.stop = True
            return
        raise KeyboardInterrupt

    def log(self, records: Sequence[Round]) -> None:
        """Stop now if a signal came where Python could not raise it, as in a destructor.

        Several ranks stop here, all at once.
        """
        asked = self.asked
        if self.ranks.world > 1:
            asked = self.ranks.stopping
        if asked:
            self.asked = True
            raise KeyboardInterrupt


@contextmanager
def stoppable(console: Console, ranks: Ranks = ALONE) -> Iterator[StopSignal]:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does.

    No second one comes between the first and the saving.
    """
    stop = StopSignal(console, ranks)
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    # Under nohup a hangup is to change nothing.
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        # Once stopped, this process only has to say so and end.
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop.asked else handler)
