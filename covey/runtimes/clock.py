"""Where the time of a round goes: training, or what is done around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

OTHER = "other"


class Clock:
    """Seconds by name; seconds under no name are "other".

    The time of an entry inside another counts for the inner one alone. It is the host's time: a GPU
    works asynchronously, so the code that waits for it names what it waits for.
    """

    def __init__(self) -> None:
        self._threads = 1
        self.start()

    @contextmanager
    def __call__(self, name: str, threads: int = 1) -> Iterator[None]:
        """Count the time of this block under a name.

        `threads` workers may call the clock inside the block, each for its share.
        """
        if threading.get_ident() != self._owner:
            began = time.perf_counter()
            yield
            seconds = (time.perf_counter() - began) / self._threads
            outer = self._names[-1]
            self._apart.append((name, outer, seconds))
            return
        before = self._threads
        self._threads = threads
        self._names.append(name)
        self._mark()
        try:
            yield
        finally:
            self._names.pop()
            self._threads = before
            self._mark()

    def start(self) -> None:
        """Forget what was counted; this thread is the one whose time it is."""
        self._owner = threading.get_ident()
        self._names = [OTHER]
        # From each mark to the next, time goes to the name of the first.
        self._marks: list[tuple[str, float]] = []
        # (name, the entry it is taken out of, seconds)
        self._apart: list[tuple[str, str, float]] = []
        self._mark()

    def take(self) -> dict[str, float]:
        """The seconds since the start."""
        self._mark()
        spent: dict[str, float] = {}
        for mark, next_mark in pairwise(self._marks):
            name, began = mark
            _, ended = next_mark
            spent[name] = spent.get(name, 0.0) + ended - began
        for name, outer, seconds in self._apart:
            spent[name] = spent.get(name, 0.0) + seconds
            spent[outer] = spent.get(outer, 0.0) - seconds
        self.start()
        return spent

    def _mark(self) -> None:
        name = self._names[-1]
        self._marks.append((name, time.perf_counter()))
