"""Independent jobs over spawned processes, one thread each.

A job that raises, or whose process dies, is answered by an error; the other jobs go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from covey.errors import CoveyError, DivergedError

Answer = dict[str, Any]
"""What a job came to, as JSON can hold it; that of one which failed has an "error".

"retry" is set where another attempt may end otherwise.
"""
Work = Callable[[Any], Answer]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A name, and what the work is given."""

    name: str
    arguments: Any


Plan = Callable[[], Sequence[Job]]
"""The jobs that can begin now, the most urgent first; it is asked again after every answer."""
Done = Callable[[Job, Answer], None]


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(work: Work, plan: Plan, done: Done, processes: int) -> None:
    """Run every job that `plan` names, none twice; `done` receives the answers as they come.

    One process means this one. However the call ends, no process is left behind.
    """
    if processes == 1:
        _run_here(work, plan, done)
        return
    workers: list[_Process] = []
    begun: set[str] = set()
    try:
        while True:
            for job in plan():
                if job.name not in begun and (worker := _idle(workers, work, processes)):
                    worker.begin(job)
                    begun.add(job.name)
            busy = [worker for worker in workers if worker.job is not None]
            if not busy:
                return
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection in ready:
                    done(*worker.ended())
            workers = [worker for worker in workers if not worker.connection.closed]
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _run_here(work: Work, plan: Plan, done: Done) -> None:
    begun: set[str] = set()
    while waiting := [job for job in plan() if job.name not in begun]:
        job = waiting[0]
        begun.add(job.name)
        done(job, safely(work, job.arguments))


def _idle(workers: list[_Process], work: Work, processes: int) -> _Process | None:
    """A process without a job, which may have to be started; None if all are busy."""
    for worker in workers:
        if worker.job is None:
            return worker
    if len(workers) == processes:
        return None
    workers.append(_Process(work))
    return workers[-1]


def safely(work: Work, arguments: Any) -> Answer:
    """The answer of a job, or its error: whatever it is, the other jobs go on."""
    try:
        return work(arguments)
    except DivergedError as error:
        return {"error": str(error), "diverged": True}
    except CoveyError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500], "retry": True}


class _Process:
    """A process of one thread, and the job that it runs."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, work), daemon=True)
        with _one_thread():
            self.process.start()
        child.close()
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        """Give it a job."""
        self.job = job
        with suppress(OSError):  # the process has died, which `ended` finds
            self.connection.send(job.arguments)

    def ended(self) -> tuple[Job, Answer]:
        """The job with its answer, or with the error that the process died."""
        job = self.job
        assert job is not None
        self.job = None
        try:
            answer: Answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            self.connection.close()
            code = self.process.exitcode
            reason = f"its process ended with exit code {code}, as when memory runs out"
            answer = {"error": reason, "retry": True}
        return job, answer


@contextmanager
def _one_thread() -> Iterator[None]:
    """An environment in which processes that start have one thread each."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection[Any, Any], work: Work) -> None:
    """The life of a process: jobs until the connection closes."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the command, which ends this
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError):
        while True:
            connection.send(safely(work, connection.recv()))


def _end_with_parent() -> None:
    """End this process when the command that started it is gone, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
