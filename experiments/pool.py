"""Independent jobs over processes, their answers in one JSON file that is whole at any moment and
can be gone on with.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

Found = dict[str, Any]
"""Answers by the names of their jobs; that of one which failed has an "error"."""
Job = tuple[str, tuple[Any, ...]]
"""A name and the arguments."""


class Answers:
    """What is known so far, in memory and, where there is a path, in its file; several threads may
    add to it.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self._adding = path, threading.Lock()
        self.found: Found = (
            json.loads(path.read_text()) if path is not None and path.exists() else {}
        )

    def add(self, name: str, answer: Any) -> None:
        """Remember an answer; the file is replaced in one step."""
        with self._adding:
            self.found[name] = answer
            if self.path is not None:
                part = self.path.with_name(f"{self.path.name}.part")
                part.write_text(json.dumps(self.found, indent=1) + "\n")
                os.replace(part, self.path)


def run(
    work: Callable[..., Any],
    plan: Callable[[Found], Iterable[Job]],
    answers: Answers,
    processes: int,
) -> None:
    """Every job that `plan` wants, given the answers so far; it is asked again after each, and no
    job is begun twice.

    A job that raises is answered {"error": ...}: a step size that diverges is a result. So is one
    whose process dies; the others go on in new ones.
    """
    tried: set[str] = set()
    while not _until_broken(work, plan, answers, processes, tried):
        pass


def _until_broken(
    work: Callable[..., Any],
    plan: Callable[[Found], Iterable[Job]],
    answers: Answers,
    processes: int,
    tried: set[str],
) -> bool:
    """True when no job is left; False where a process has died, which takes all of its pool's with
    it.
    """
    pending: dict[Future[Any], str] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _alone) as pool:
        while True:
            waiting = [job for job in plan(answers.found) if job[0] not in tried]
            for name, arguments in waiting[
                : processes - len(pending)
            ]:  # no queue: what the plan puts first is next
                try:
                    pending[pool.submit(_safely, work, arguments)] = name
                except BrokenExecutor:
                    return False
                tried.add(name)
            if not pending:
                return True
            broken = False
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                name, error = pending.pop(future), future.exception()
                broken = broken or isinstance(error, BrokenExecutor)
                answers.add(
                    name,
                    future.result()
                    if error is None
                    else {"error": f"{type(error).__name__}: {error}"},
                )
                print(
                    f"# {len(answers.found)} done: {name} {_short(answers.found[name])}",
                    file=sys.stderr,
                    flush=True,
                )
            if broken and not pending:
                return False


def _safely(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    began = time.perf_counter()
    try:
        return work(*arguments)
    except Exception as error:  # whatever it is, the other jobs go on, and the table shows it
        return {
            "error": f"{type(error).__name__}: {error}"[:500],
            "seconds": time.perf_counter() - began,
        }


def _alone() -> None:
    """One thread per process: the processes are the parallel part."""
    import torch

    torch.set_num_threads(1)


def _short(answer: Any) -> str:
    return str(answer["error"])[:80] if "error" in answer else f"{answer['seconds']:.1f} s"
