"""Independent jobs over processes, their answers in one JSON file that is whole at any moment and can be gone on with."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

Answers = dict[str, Any]
Job = tuple[str, tuple[Any, ...]]
"""A name and the arguments."""


def run(work: Callable[..., Any], plan: Callable[[Answers], Iterable[Job]], path: Path, processes: int) -> Answers:
    """Every job that `plan` knows of, given the answers so far; asked again after each. What the file holds is not run again.

    A job that raises is answered {"error": ...}: a step size that diverges is a result.
    """
    answers: Answers = json.loads(path.read_text()) if path.exists() else {}
    began, pending = time.perf_counter(), dict[Future[Any], str]()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _alone) as pool:
        while True:
            under_way = set(pending.values())
            waiting = [job for job in plan(answers) if job[0] not in answers and job[0] not in under_way]
            for name, arguments in waiting[: processes - len(pending)]:  # no queue: what the plan puts first is next
                pending[pool.submit(_safely, work, arguments)] = name
            if not pending:
                return answers
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                name = pending.pop(future)
                answers[name] = future.result()
                took = time.perf_counter() - began
                print(f"# {took:6.1f} s, {len(answers)} done: {name} {_short(answers[name])}", file=sys.stderr, flush=True)
            _write(path, answers)


def _safely(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    began = time.perf_counter()
    try:
        return work(*arguments)
    except Exception as error:  # whatever it is, the other jobs go on, and the table shows it
        return {"error": f"{type(error).__name__}: {error}"[:500], "seconds": time.perf_counter() - began}


def _alone() -> None:
    """One thread per process: the processes are the parallel part."""
    import torch

    torch.set_num_threads(1)


def _short(answer: Any) -> str:
    return str(answer["error"])[:80] if "error" in answer else f"{answer['seconds']:.1f} s"


def _write(path: Path, answers: Answers) -> None:
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(answers, indent=1) + "\n")
    os.replace(beside, path)
