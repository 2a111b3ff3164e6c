"""Independent jobs over spawned processes, one thread each.

A job that raises, or whose process dies, is answered by an error; the other jobs go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from covey.errors import CoveyError, DivergedError

Answer = dict[str, Any]
"""What a job came to, as JSON can hold it; that of one which failed has an "error".

"retry" is set where another attempt may end otherwise.
"""
Work = Callable[[dict[str, Any]], Answer]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A name, and the arguments of the work as JSON can hold them."""

    name: str
    arguments: dict[str, Any]


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
    crew = _Crew(work, processes)
    try:
        begun: set[str] = set()
        while True:
            for job in plan():
                if job.name not in begun and crew.begin(job):
                    begun.add(job.name)
            if not crew.busy:
                return
            for job, answer in crew.answers():
                done(job, answer)
    finally:
        crew.stop()


def _run_here(work: Work, plan: Plan, done: Done) -> None:
    begun: set[str] = set()
    while waiting := [job for job in plan() if job.name not in begun]:
        job = waiting[0]
        begun.add(job.name)
        done(job, safely(work, job.arguments))


def safely(work: Work, arguments: dict[str, Any]) -> Answer:
    """The answer of a job, or its error: whatever it is, the other jobs go on."""
    try:
        return work(arguments)
    except DivergedError as error:
        return {"error": str(error), "diverged": True}
    except CoveyError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500], "retry": True}


@dataclass(eq=False)
class _Worker:
    """A process, the connection to it, and the job that it runs."""

    process: BaseProcess
    connection: Connection[Any, Any]
    job: Job | None = None


class _Crew:
    """The processes; each is started when there is a job for it."""

    def __init__(self, work: Work, processes: int) -> None:
        self._work = work
        self._processes = processes
        self._workers: list[_Worker] = []

    @property
    def busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.job is not None]

    def begin(self, job: Job) -> bool:
        """Give a job to a process; False if all are busy."""
        idle = [worker for worker in self._workers if worker.job is None]
        if not idle and len(self._workers) == self._processes:
            return False
        worker = idle[0] if idle else self._start()
        worker.job = job
        try:
            worker.connection.send(job.arguments)
        except OSError:  # the process has died; `answers` finds its connection closed
            worker.connection.close()
        return True

    def answers(self) -> Iterator[tuple[Job, Answer]]:
        """Wait for at least one answer."""
        closed = [worker for worker in self.busy if worker.connection.closed]
        ready = list(closed)
        if not ready:
            answered = wait([worker.connection for worker in self.busy])
            ready = [worker for worker in self.busy if worker.connection in answered]
        for worker in ready:
            job = worker.job
            assert job is not None
            worker.job = None
            yield job, self._received(worker)

    def stop(self) -> None:
        """End all processes, whatever they are doing."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers = []

    def _received(self, worker: _Worker) -> Answer:
        """The answer of a process, or the error that it died."""
        try:
            answer: Answer = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._workers.remove(worker)
            worker.connection.close()
            code = worker.process.exitcode
            reason = f"its process ended with exit code {code}, as when memory runs out"
            return {"error": reason, "retry": True}
        return answer

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        parent, child = context.Pipe()
        process = context.Process(target=_serve, args=(child, self._work), daemon=True)
        with _one_thread():
            process.start()
        child.close()
        worker = _Worker(process, parent)
        self._workers.append(worker)
        return worker


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
    while True:
        try:
            arguments = connection.recv()
        except EOFError:
            return
        connection.send(safely(work, arguments))


def _end_with_parent() -> None:
    """End this process when the command that started it is gone, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
