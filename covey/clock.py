"""Where the time of a round goes: training, or what is done around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

OTHER = "other"


class Clock:
    """Seconds by name, all of them: what is under no name is "other", and an entry inside another is taken out of that one.

    A GPU works behind Python's back, so there the ends of an entry are events in its own queue, read when `take` waits for them.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda, self._owner = device.type == "cuda", threading.get_ident()
        self._names = [OTHER]
        self._marks: list[tuple[str, Any]] = []  # from each mark to the next, time goes to its name
        self._apart: list[tuple[str, str, float]] = []  # (name, the entry it is taken out of, seconds)
        self._threads = 1
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def __call__(self, name: str, threads: int = 1) -> Iterator[None]:
        """Count what happens in here under this name. `threads` workers may call the clock in here, each for its share."""
        if threading.get_ident() != self._owner:
            began = time.perf_counter()
            yield
            self._apart.append((name, self._names[-1], (time.perf_counter() - began) / self._threads))
            return
        before, self._threads = self._threads, threads
        self._names.append(name)
        self._mark()
        try:
            yield
        finally:
            self._names.pop()
            self._threads = before
            self._mark()

    def start(self) -> None:
        """Forget what was counted."""
        self._owner = threading.get_ident()
        self._stream = torch.cuda.current_stream() if self._cuda else None  # asked once: it is slow to ask
        self._names, self._marks, self._apart = [OTHER], [], []
        self._mark()

    def take(self) -> dict[str, float]:
        """The seconds since the start."""
        self._mark()
        spent: dict[str, float] = {}
        if self._cuda:
            torch.cuda.synchronize()
        for (name, began), (_, ended) in pairwise(self._marks):
            spent[name] = spent.get(name, 0.0) + _between(began, ended)
        for name, inside, took in self._apart:
            spent[name] = spent.get(name, 0.0) + took
            spent[inside] = spent.get(inside, 0.0) - took
        self.start()
        return spent

    def _mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)
            self._marks.append((self._names[-1], event))
        else:
            self._marks.append((self._names[-1], time.perf_counter()))


def _between(began: Any, ended: Any) -> float:
    """Seconds between two marks, which are events of a GPU or readings of the clock."""
    return float(began.elapsed_time(ended) / 1e3 if isinstance(began, torch.cuda.Event) else ended - began)
