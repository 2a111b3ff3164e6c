"""A round in this process, or dealt out over as many one-thread processes as there are cores.

The processes share the weights and their sums; they get devices and examples through pipes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Protocol

import numpy as np

from benchmarks.rivals.spec import Array, Spec, serve


class Engine(Protocol):
    """What a rival is: sums of the asked devices' models, all in a flat layout of its own."""

    def pack(self, weights: list[Array]) -> Array:
        """Weights in torch's layout as one vector."""

    def unpack(self, w: Array) -> list[Array]:
        """The reverse."""

    def total(self, w: Array, ids: Array, picks: Array) -> Array:
        """The sum of what the devices answer to w."""


Make = Callable[[Spec, int], Engine]
"""An engine for a work, with a number of threads."""


def run(make: Make, spec: Spec, *, threads: int, processes: int) -> None:
    """Serve the driver."""
    generator = np.random.default_rng(os.getpid())
    if processes == 1:
        _alone(make(spec, threads), spec, generator)
        return
    with Crew(make, spec, processes) as crew:
        serve(spec, lambda: crew.round(*spec.cohort(generator)), crew.weights)


def _alone(engine: Engine, spec: Spec, generator: np.random.Generator) -> None:
    w = engine.pack(spec.first())

    def round_() -> float:
        nonlocal w
        w = engine.total(w, *spec.cohort(generator)) / np.float32(spec.asked)
        return 0.0

    serve(spec, round_, lambda: engine.unpack(w))


class Crew:
    """Processes of one thread each, which keep their engines from round to round."""

    def __init__(self, make: Make, spec: Spec, processes: int) -> None:
        self._spec = spec
        context = multiprocessing.get_context("spawn")
        self._memory = SharedMemory(create=True, size=4 * spec.width * (processes + 1))
        self._rows = _rows(self._memory, spec)
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            arguments = (make, spec, number, self._memory.name, theirs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()
        del self._rows
        self._memory.close()
        self._memory.unlink()

    def round(self, ids: Array, picks: Array) -> float:
        """One round; returns the CPU seconds of the processes."""
        count = len(self._pipes)
        parts = zip(np.array_split(ids, count), np.array_split(picks, count), strict=True)
        for pipe, part in zip(self._pipes, parts, strict=True):
            pipe.send(part)
        cpu = sum(pipe.recv() for pipe in self._pipes)
        np.sum(self._rows[1:], axis=0, out=self._rows[0])
        self._rows[0] /= np.float32(self._spec.asked)
        return float(cpu)

    def weights(self) -> list[Array]:
        """The weights in torch's layout, as the first process unpacks them."""
        self._pipes[0].send("weights")
        weights: list[Array] = self._pipes[0].recv()
        return weights


def _rows(memory: SharedMemory, spec: Spec) -> Array:
    """The weights, and each process's sum under them."""
    assert memory.buf is not None
    return np.frombuffer(memory.buf, dtype=np.float32).reshape(-1, spec.width)


def _work(make: Make, spec: Spec, number: int, name: str, pipe: Connection) -> None:
    """The life of a process: one core of its own, one thread."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    os.environ["OMP_NUM_THREADS"] = "1"
    engine = make(spec, 1)
    memory = SharedMemory(name)
    rows = _rows(memory, spec)
    if number == 0:
        rows[0] = engine.pack(spec.first())
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        if isinstance(message, str):
            pipe.send(engine.unpack(rows[0]))
            continue
        began = time.process_time()
        rows[1 + number] = engine.total(rows[0], *message)
        pipe.send(time.process_time() - began)
    del rows
    memory.close()
