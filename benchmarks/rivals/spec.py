"""What every rival is told, and how it takes its turns.

Only numpy is needed here: each rival runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CLASSES = 10


@dataclass(frozen=True)
class Spec:
    """One work: FedAvg, or pFedMe where `lam` is given.

    A device draws `draws` batches in a round and takes `inner` steps on each of them. In a `check`
    all devices are asked and batches are taken in order, so that all rivals compute the same.
    """

    name: str
    devices: int
    asked: int
    examples: int
    inputs: int
    hidden: int  # 0: a linear model
    draws: int
    inner: int
    batch: int
    lr: float
    lam: float | None
    personal_lr: float
    rounds: int
    check: bool
    folder: str

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The parameters as torch has them, layer by layer."""
        if not self.hidden:
            return [(CLASSES, self.inputs), (CLASSES,)]
        return [(self.hidden, self.inputs), (self.hidden,), (CLASSES, self.hidden), (CLASSES,)]

    @property
    def width(self) -> int:
        """The number of parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def data(self) -> tuple[Array, Array]:
        """Examples [devices, examples, inputs] and labels, mapped: processes share the pages."""
        folder = Path(self.folder)
        x = np.load(folder / "x.npy", mmap_mode="c")
        y = np.load(folder / "y.npy", mmap_mode="c")
        return x[: self.devices], y[: self.devices]

    def first(self) -> list[Array]:
        """The first weights, in torch's layout."""
        with np.load(Path(self.folder) / f"{self.hidden}.npz") as arrays:
            return [arrays[f"arr_{number}"] for number in range(len(self.shapes))]

    def cohort(self, generator: np.random.Generator) -> tuple[Array, Array]:
        """The devices of a round [asked], and their examples [asked, draws, batch]."""
        size = (self.asked, self.draws, self.batch)
        if self.check:
            in_order = np.arange(self.draws * self.batch) % self.examples
            picks = np.broadcast_to(in_order.reshape(size[1:]), size)
            return np.arange(self.asked), picks.copy()
        ids = generator.permutation(self.devices)[: self.asked]
        return ids, generator.integers(self.examples, size=size)


class Turns:
    """A rival's side of the conversation: a round when it is told to, and its seconds.

    Nothing else may be printed to the driver, so standard output becomes standard error.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._taken = 0
        self._began = 0.0
        self._cpu = 0.0

    @property
    def over(self) -> bool:
        """Whether all rounds have been taken."""
        return self._taken == self._spec.rounds

    def wait(self) -> None:
        """Block until the driver wants a round."""
        if self._taken == 0:
            self._say("ready")
        if not sys.stdin.readline():
            os._exit(0)
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def done(self, other_cpu: float = 0.0) -> None:
        """Report the round; `other_cpu` are CPU seconds of other processes."""
        seconds = time.perf_counter() - self._began
        cpu = time.process_time() - self._cpu + other_cpu
        self._taken += 1
        self._say(json.dumps({"seconds": seconds, "cpu": cpu}))

    def finish(self, weights: list[Array]) -> None:
        """Hand over the weights of a check."""
        if self._spec.check:
            path = Path(self._spec.folder) / f"weights-{os.getpid()}.npz"
            np.savez(path, *weights)
            self._say(str(path))

    def _say(self, text: str) -> None:
        self._answers.write(text + "\n")
        self._answers.flush()


def told() -> Spec:
    """The work on the command line."""
    return Spec(**json.loads(sys.argv[1]))


def written(spec: Spec) -> str:
    """The work for a command line."""
    return json.dumps(asdict(spec))


def serve(spec: Spec, round_: Callable[[], float], weights: Callable[[], list[Array]]) -> None:
    """Take all rounds of a rival that is a function.

    The function returns the CPU seconds of its other processes.
    """
    turns = Turns(spec)
    while not turns.over:
        turns.wait()
        turns.done(round_())
    turns.finish(weights())
