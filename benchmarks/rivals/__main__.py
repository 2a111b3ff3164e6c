"""covey and its rivals on the same work: `python -m benchmarks.rivals --python VENV/bin/python`.

Every rival is a process that takes a round when it is told to. They take turns of several rounds,
so that whatever else the machine does falls on all. The first round of a turn, with the caches of
another program, is not counted. Everything is started anew several times. Before
that, one round on the same batches shows that a rival computes what covey computes. Rivals whose
package is in none of the given environments are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks.rivals import report
from benchmarks.rivals.spec import CLASSES, Array, Spec, written

ROOT = Path(__file__).parents[2]
CORES = len(os.sched_getaffinity(0))
WARM_UP = 3
TURN = 5
"""Rounds of a turn that are counted, after one that is not."""
PAUSE = 0.05
"""Seconds between turns, in which threads of the last program stop spinning."""
PATIENCE = 300.0
"""Seconds after which a program that does not answer has failed."""
TOLERANCE = 1e-3
"""Largest difference of a weight after one round, relative to the largest change of a weight."""


@dataclass(frozen=True)
class Rival:
    """A program: its module, the package it needs, and its threads and processes."""

    name: str
    module: str
    needs: str = "torch"
    threads: int = 1
    processes: int = 1
    more: tuple[str, ...] = ()
    fedavg_only: bool = False
    torchrun: bool = False

    def command(self, python: str, spec: Spec) -> list[str]:
        """How it is started."""
        launcher = []
        if self.torchrun:
            launcher = ["-m", "torch.distributed.run", "--standalone"]
            launcher.append(f"--nproc_per_node={self.processes}")
        numbers = [str(self.threads), str(self.processes)]
        module = f"benchmarks.rivals.{self.module}"
        return [python, *launcher, "-m", module, written(spec), *numbers, *self.more]


def rivals(cores: int) -> tuple[Rival, ...]:
    """covey, and what it is compared with."""
    all_processes = f"{cores} processes"
    all_threads = f"{cores} threads"
    out = [Rival("covey", "covey_run", threads=cores)]
    out.append(Rival("tidy loop, 1 thread", "tidy"))
    out.append(Rival(f"tidy loop, {all_threads}", "tidy", threads=cores))
    out.append(Rival(f"tidy loop, {all_processes}", "tidy", processes=cores))
    out.append(Rival(f"torch.func.vmap, {all_threads}", "vmap", threads=cores))
    out.append(Rival(f"torch.func.vmap, {all_processes}", "vmap", processes=cores))
    for how in ("vmap", "map"):
        name = f"jax jit({how})"
        out.append(Rival(f"{name}, {all_threads}", "jaxed", "jax", cores, 1, (how,)))
        out.append(Rival(f"{name}, {all_processes}", "jaxed", "jax", 1, cores, (how,)))
    out.append(Rival(f"pfl, {all_threads}", "pfl_run", "pfl", cores, fedavg_only=True))
    out.append(
        Rival(f"pfl, {all_processes}", "pfl_run", "pfl", 1, cores, fedavg_only=True, torchrun=True)
    )
    out.append(Rival(f"Flower, {cores} workers", "flower_run", "flwr", 1, cores, fedavg_only=True))
    return tuple(out)


WORKS = {
    spec.name: spec
    for spec in (
        Spec("W1", 20, 20, 200, 784, 100, 20, 5, 20, 0.005, 15.0, 0.09, 0, False, ""),
        Spec("W2", 20, 20, 200, 784, 100, 20, 1, 20, 0.02, None, 0.0, 0, False, ""),
        Spec("W3 DNN", 1000, 100, 200, 784, 100, 5, 1, 20, 0.02, None, 0.0, 0, False, ""),
        Spec("W3 MLR", 1000, 100, 200, 784, 0, 5, 1, 20, 0.02, None, 0.0, 0, False, ""),
    )
}


class Process:
    """A running rival."""

    def __init__(self, rival: Rival, python: str, spec: Spec) -> None:
        self.rival = rival
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": str(rival.threads),
            "PYTHONPATH": str(ROOT),
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `end`)
        self._process = subprocess.Popen(
            rival.command(python, spec),
            cwd=ROOT,
            env={**os.environ, **quiet},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._lines: queue.Queue[str] = queue.Queue()
        answers = self._process.stdout
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: IO[str]) -> None:
        """Pass on what the rival says; an empty line at its end."""
        for line in answers:
            self._lines.put(line.strip())
        self._lines.put("")

    def ready(self) -> dict[str, float]:
        """Block until the rival has started; return how long it took."""
        began = time.perf_counter()
        self._hear()
        return {"seconds": time.perf_counter() - began}

    def round(self) -> dict[str, float]:
        """Seconds and CPU seconds of the next round."""
        self._requests.write("go\n")
        self._requests.flush()
        figures: dict[str, float] = json.loads(self._hear())
        return figures

    def weights(self) -> list[Array]:
        """The weights after a check."""
        with np.load(self._hear()) as arrays:
            return [arrays[name] for name in arrays]

    def end(self) -> None:
        """Let the process end, or stop it."""
        self._requests.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _hear(self) -> str:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise RivalFailed(f"no answer in {PATIENCE:.0f} s") from None
        if not line:
            self._errors.seek(0)
            words = self._errors.read().strip().splitlines() or ["it stopped"]
            raise RivalFailed(words[-1])
        return line


class RivalFailed(Exception):
    """A program stopped, or does not answer."""


def prepare(spec: Spec, folder: Path, devices: int) -> Spec:
    """The work with first weights and the data of so many devices in a folder."""
    generator = np.random.default_rng(0)
    if not (folder / "x.npy").exists():
        x = generator.random((devices, spec.examples, spec.inputs), dtype=np.float32)
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", generator.integers(CLASSES, size=(devices, spec.examples)))
    first = []
    for shape in spec.shapes:
        bound = 0.0
        if len(shape) > 1:
            bound = shape[1] ** -0.5
        first.append(generator.uniform(-bound, bound, shape).astype(np.float32))
    np.savez(folder / f"{spec.hidden}.npz", *first)
    return replace(spec, folder=str(folder))


def check(chosen: Sequence[Rival], pythons: dict[str, str], spec: Spec) -> dict[str, float]:
    """How far each rival's weights are from covey's after one round on the same batches.

    The difference is relative to the largest change of a weight in that round.
    """
    small = replace(spec, devices=spec.asked, rounds=1, check=True)
    first = small.first()
    found = {}
    ours: list[Array] = []
    scale = 1.0
    for rival in chosen:
        process = Process(rival, pythons[rival.needs], small)
        try:
            process.ready()
            process.round()
            weights = process.weights()
        except RivalFailed as error:
            print(f"left out: {spec.name}, {rival.name} failed: {error}", flush=True)
            continue
        finally:
            process.end()
        if rival.module == "covey_run":
            ours = weights
            scale = _largest(ours, first)
        found[rival.name] = _largest(weights, ours) / scale
        print(f"{spec.name}: {rival.name} is within {found[rival.name]:.1e} of covey", flush=True)
        if found[rival.name] > TOLERANCE:
            raise RuntimeError(
                f"{spec.name}: {rival.name} is {found[rival.name]:.1e} from covey, "
                f"more than {TOLERANCE}; it does other work."
            )
    return found


def _largest(a: list[Array], b: list[Array]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def measure(
    chosen: Sequence[Rival], pythons: dict[str, str], spec: Spec, *, rounds: int, starts: int
) -> dict[str, list[dict[str, float]]]:
    """All rounds of every rival, without those that warm up.

    Flower's own processes work also when it is not asked. So it takes turns with covey alone, and
    those rounds of covey stand under a name of their own.
    """
    groups = [[rival for rival in chosen if rival.needs != "flwr"]]
    flower = [rival for rival in chosen if rival.needs == "flwr"]
    if flower:
        covey = replace(chosen[0], name="covey beside Flower")
        groups.append([covey, *flower])
    out: dict[str, list[dict[str, float]]] = {}
    for start in range(starts):
        for group in groups:
            print(f"{spec.name}: start {start + 1} of {starts}, {len(group)} programs", flush=True)
            turns = math.ceil(rounds / TURN)
            told = replace(spec, rounds=WARM_UP + turns * (1 + TURN) + 1)
            _turns(group, pythons, told, turns, out)
    return out


def _turns(
    group: Sequence[Rival],
    pythons: dict[str, str],
    spec: Spec,
    turns: int,
    out: dict[str, list[dict[str, float]]],
) -> None:
    """One start of a group, and all its turns.

    A program ends itself after its last round, which takes time. So no program takes that round
    before all turns are over.
    """
    processes = []
    failed: set[Process] = set()
    for rival in group:
        process = Process(rival, pythons[rival.needs], spec)
        processes.append(process)
        if not _tried(process, process.ready):
            failed.add(process)
    _play(processes, failed, WARM_UP)
    for number in range(turns):
        order = processes[:: 1 - 2 * (number % 2)]
        for name, figures in _play(order, failed, 1 + TURN).items():
            out.setdefault(name, []).extend(figures[1:])
    _play(processes, failed, 1)
    for process in processes:
        process.end()


def _play(
    processes: Sequence[Process], failed: set[Process], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """A turn of every rival that has not failed: the figures of its rounds."""
    out: dict[str, list[dict[str, float]]] = {}
    for process in processes:
        time.sleep(PAUSE)
        for _ in range(rounds):
            if process in failed:
                break
            figures = _tried(process, process.round)
            if figures:
                out.setdefault(process.rival.name, []).append(figures)
            else:
                failed.add(process)
    return out


def _tried(process: Process, call: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What the call returns; nothing, and a line of print, where the rival failed."""
    try:
        return call()
    except RivalFailed as error:
        print(f"{process.rival.name} failed in this start: {error}", flush=True)
        return {}


def environments(given: Sequence[str]) -> dict[str, str]:
    """For each package the first interpreter that has it; a line for each that none has."""
    out = {"torch": sys.executable}
    for package in ("jax", "pfl", "flwr"):
        for python in (sys.executable, *given):
            code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
            if subprocess.run([python, "-c", code]).returncode == 0:
                out[package] = python
                break
        else:
            print(f"left out: {package} is not installed (give --python an environment with it)")
    return out


def versions(pythons: dict[str, str]) -> dict[str, str]:
    """The versions of all packages."""
    out = {"python": platform.python_version()}
    for package, python in pythons.items():
        code = f"from importlib.metadata import version; print(version({package!r}))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        out[package] = done.stdout.strip()
    return out


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=list(WORKS), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--python", nargs="*", default=[], help="interpreters with jax, pfl, flwr")
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of each start")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], help="leave out names that begin so")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "rivals" / "results.json")
    parser.add_argument("--report", action="store_true", help="only write the tables anew")
    given = parser.parse_args()
    unknown = set(given.works) - set(WORKS)
    if unknown:
        parser.error(f"unknown work {unknown.pop()!r}; choose from {', '.join(WORKS)}")
    return given


def main() -> None:
    """Check, measure, write the figures and the tables made of them."""
    given = arguments()
    if not given.report:
        _run(given)
    facts = json.loads(given.out.read_text(encoding="utf-8"))
    print(report.tables(facts))
    report.write(facts, ROOT / "benchmarks" / "RESULTS.md")


def _run(given: argparse.Namespace) -> None:
    """Measure, and write the figures after every work."""
    pythons = environments(given.python)
    there = [rival for rival in rivals(CORES) if rival.needs in pythons]
    chosen = [rival for rival in there if not rival.name.startswith(tuple(given.without))]
    facts: dict[str, Any] = {
        "cores": CORES,
        "processor": report.processor(),
        "load": os.getloadavg()[0],
        "rounds": given.rounds,
        "starts": given.starts,
        "versions": versions(pythons),
        "works": {},
    }
    most = max(WORKS[work].devices for work in given.works)
    with tempfile.TemporaryDirectory() as name:
        for work in given.works:
            spec = prepare(WORKS[work], Path(name), most)
            fitting = [rival for rival in chosen if spec.lam is None or not rival.fedavg_only]
            apart = check(fitting, pythons, spec)
            fitting = [rival for rival in fitting if rival.name in apart]
            rounds = measure(fitting, pythons, spec, rounds=given.rounds, starts=given.starts)
            settings = {**asdict(spec), "folder": ""}
            facts["works"][work] = {"spec": settings, "apart": apart, "rounds": rounds}
            given.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
