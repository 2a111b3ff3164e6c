"""A thread that tells the other ranks that this one is alive, and ends it if another one is not.

A rank that waits for others waits as long as they compute. Whether they still do is told by a
number in a table that all ranks can reach, which every rank raises each second. Rank 0 watches all
others, and they watch rank 0. A process that was killed, stopped or cut off raises its number no
more. The others end within a minute, and say whom they miss.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, NoReturn

BEAT = 1.0
"""Seconds between two raises of the number."""
PATIENCE = 20.0
"""Seconds after which a rank whose number stands still counts as dead."""
EXIT_CODE = 5
"""The exit code of a process that ends because another one has."""
_NOTICE = 4.0
"""Seconds in which a living rank raises its number, on a busy machine too."""
_LEFT = b"left"
_NO_TABLE = "rank 0's machine, or torchrun on it, cannot be reached any more"
_GOODBYE = 10.0
"""Seconds that the host of the table waits at its end for the others to end."""


class Heartbeat:
    """The heartbeats of all ranks, in a table that belongs to this thread alone."""

    def __init__(
        self,
        table: Any,
        rank: int,
        world: int,
        *,
        prefix: str,
        hosts: bool,
    ) -> None:
        table.set_timeout(timedelta(seconds=PATIENCE))
        self._table = table
        self._rank = rank
        self._world = world
        self._prefix = prefix
        self._hosts = hosts
        self._number = 0
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._using = threading.Lock()
        self._leaving = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ended = self._key("ended")
        self._beat()
        self._answered = time.monotonic()  # when the table answered last

    def start(self) -> None:
        """Begin to watch; every rank has a heartbeat by now.

        A second thread watches the first, which waits for ever if the network is cut.
        """
        self._answered = time.monotonic()
        for run in (self._run, self._run_guard):
            thread = threading.Thread(target=run, name="covey heartbeat", daemon=True)
            thread.start()
            self._threads.append(thread)

    def leave(self) -> None:
        """Say that this rank has ended by itself; the host of the table leaves last."""
        self._leaving.set()
        if not self._using.acquire(timeout=_GOODBYE):
            return  # the network is cut
        try:
            self._table.set(self._key(f"beat/{self._rank}"), _LEFT)
            until = time.monotonic() + _GOODBYE
            while self._hosts and time.monotonic() < until:
                if all(beat == _LEFT for beat in self._beats()):
                    break  # all others have left
                time.sleep(BEAT / 20)
        except RuntimeError:  # the table is gone, and with it those who would read this
            return
        finally:
            self._using.release()
            for thread in self._threads:  # none of them may run while the interpreter ends
                thread.join(BEAT)

    def missing(self) -> list[int]:
        """The ranks that have ended; rank 0 where the table is gone, for it hosts it."""
        try:
            with self._using:
                before = self._beats()
            time.sleep(_NOTICE)
            with self._using:
                after = self._beats()
        except RuntimeError:
            return [0]
        others = [rank for rank in range(self._world) if rank != self._rank]
        return [rank for rank in others if after[rank] in (before[rank], _LEFT)]

    def _run(self) -> None:
        while not self._leaving.wait(BEAT):
            try:
                with self._using:
                    if self._leaving.is_set():
                        return
                    self._beat()
                    text = self._wrong()
            except RuntimeError:
                text = _NO_TABLE
            self._answered = time.monotonic()
            if text:
                if self._rank == 0:
                    with contextlib.suppress(RuntimeError):  # else they miss rank 0 soon
                        self._table.set(self._ended, text)
                _end(self._rank, text)

    def _run_guard(self) -> None:
        while not self._leaving.wait(BEAT):
            if time.monotonic() - self._answered > PATIENCE:
                _end(self._rank, _NO_TABLE)

    def _beat(self) -> None:
        self._number += 1
        self._table.set(self._key(f"beat/{self._rank}"), str(self._number))

    def _wrong(self) -> str:
        """What is wrong with the ranks that this one watches; empty where nothing is."""
        if self._rank == 0:
            watched = range(1, self._world)
        else:
            watched = range(1)
            if self._table.check([self._ended]):
                return bytes(self._table.get(self._ended)).decode()
        now = time.monotonic()
        beats = self._beats()
        for rank in watched:
            last, since = self._heard.get(rank, (b"", now))
            if beats[rank] != last:
                self._heard[rank] = (beats[rank], now)
            elif last != _LEFT and now - since > PATIENCE:
                return f"rank {rank} has not been heard of for {PATIENCE:.0f} s"
        return ""

    def _beats(self) -> list[bytes]:
        """The last heartbeat of every rank."""
        keys = [self._key(f"beat/{rank}") for rank in range(self._world)]
        return [bytes(beat) for beat in self._table.multi_get(keys)]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _end(rank: int, text: str) -> NoReturn:
    """End this process, whose main thread may be waiting for ever."""
    end = "All ranks end; the last checkpoint is intact."
    print(f"error: rank {rank}: {text}. {end}", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)
