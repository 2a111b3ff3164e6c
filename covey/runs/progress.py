"""How far a run is, in one line that is written over and over: on a terminal and in notebooks."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from covey.runs.scores.record import Round

_PAUSE = 0.1  # s between two lines


class ProgressLine:
    """One line with the round, the scores, the bytes and the time left.

    Nothing is written where nobody looks: into a file or a pipe.
    """

    def __init__(self, rounds: int, stream: TextIO | None = None) -> None:
        self._rounds = rounds
        self._stream = stream or _stream()
        self._began = time.monotonic()
        self._written = 0.0
        self._shown = 0
        self._bytes = 0
        self._scores = ""

    def show(self, record: Round, *, last: bool = False) -> None:
        """One more round; `last`: none follows."""
        self._shown += 1
        self._bytes += record.bytes()
        if record.models:
            self._scores = record.scores()
        if self._stream is None:
            return
        last = last or record.round + 1 >= self._rounds
        now = time.monotonic()
        if not last and now - self._written < _PAUSE:
            return
        self._written = now
        done = record.round + 1
        each = (now - self._began) / self._shown
        left = each * (self._rounds - done)
        words = [f"round {done}/{self._rounds}", self._scores, f"{self._bytes / 1e6:.1f} MB"]
        words.append(f"{left:.0f} s left" if left else f"{now - self._began:.1f} s")
        text = "  ".join(word for word in words if word)

        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r{text[:width]:{width}}")
        self._stream.flush()
        if last:
            self.end()

    def end(self) -> None:
        """Leave the line as it is; what follows starts in a line of its own."""
        if self._stream is not None and self._written:
            self._stream.write("\n")
            self._stream.flush()
        self._written = 0.0


def _stream() -> TextIO | None:
    """Where a line can be written over: a terminal, or the output of a notebook's cell."""
    library = sys.modules.get("IPython")
    if library is not None and hasattr(library.get_ipython(), "kernel"):
        return sys.stdout
    if sys.stderr is not None and sys.stderr.isatty():
        return sys.stderr
    return None
