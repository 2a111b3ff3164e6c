"""A thread that writes checkpoints while the next rounds run.

One checkpoint is written at a time, in the order in which they were begun. An error is raised by
whoever waits next: the run before its next round, the next save, or `wait`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Writer:
    """Writes checkpoints in the background; at the end of the process it is waited for."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []
        self._round = 0
        self._owner = os.getpid()

    def begin(self, job: Callable[[], None], round: int) -> None:
        """Begin to write a checkpoint of a round, once those of earlier rounds are written."""
        if round != self._round:
            self.wait()
        self._round = round
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "covey-checkpoint")
        self._pending.append(self._pool.submit(job))

    def wait(self) -> None:
        """Wait until all checkpoints are on the disk; raise the error that prevented it."""
        if self._owner != os.getpid():  # threads do not survive a fork
            self._owner = os.getpid()
            self._pool = None
            self._pending = []
        while self._pending:
            self._pending.pop(0).result()

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, without waiting for one."""
        if self._pending and self._pending[0].done():
            self._pending.pop(0).result()
