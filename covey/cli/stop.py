"""Stopping a run: Ctrl-C, SIGTERM and SIGHUP end it once, and leave it the time to save."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from covey.errors import CoveyError


class Interrupted(CoveyError):
    """The user stopped the run; it is saved."""


class Stop:
    """Ctrl-C, SIGTERM and SIGHUP end a run once; those that follow leave it the time to save."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._console.print("saving the state; one moment")
            return
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Stop now if a signal came where Python could not raise it, as in a destructor."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def stoppable(console: Console) -> Iterator[Stop]:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does.

    No second one comes between the first and the saving.
    """
    stop = Stop(console)
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
