"""Runs killed at random moments end in the same bits as one left alone: `python -m
experiments.kills.run --kills 100`.

One experiment is run undisturbed. Then victims of the same experiment are killed with SIGKILL, half
of the times inside the write of a checkpoint, else at a random time: four in five in training, one
in start-up. Each is resumed until it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import covey
from covey.runs.saved import checkpoint

FILE = Path(__file__).parent / "kills.toml"
CHANGES = (
    str(FILE), "checkpoint_every=1", "score_every=2", "data.devices=12", "tree.edges=3", "model.hidden=[64]",
    "algorithm.edge_rounds=4",
)  # fmt: skip
WINDOW = 1.2  # seconds of training in which a timed kill falls: a few rounds
POLL = 0.0003  # seconds; a checkpoint takes a few thousandths to write


class Kills:
    """How many are still to be made, and where those made fell; shared by all victims."""

    def __init__(self, wanted: int, seed: int = 0) -> None:
        self.left = wanted
        self.fell: Counter[str] = Counter()
        self.draws = random.Random(seed)
        self.lock = threading.Lock()

    def take(self) -> bool:
        """One of those left, if there is one."""
        with self.lock:
            taken = self.left > 0
            self.left -= taken
            return taken

    def settle(self, where: str | None) -> None:
        """Where a kill fell; None if the process ended by itself first, which leaves the kill to be
        made.
        """
        with self.lock:
            if where is None:
                self.left += 1
            else:
                self.fell[where] += 1


def start(folder: Path, rounds: int, *changes: str) -> subprocess.Popen[bytes]:
    """The experiment in a process of its own: its first start, or on from what there is."""
    words = ["--resume", str(folder)]
    if not (folder / "config.toml").exists():
        words = [*CHANGES, *changes, f"rounds={rounds}", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "covey", "run", *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end, which must be a good one."""
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"{process.args!r} ended with {process.returncode}: {errors.decode()[-2000:]}"
        )


def undisturbed(folder: Path, rounds: int) -> float:
    """Run to the end at once; the seconds until it trained."""
    began, process = time.monotonic(), start(folder, rounds)
    _until_it_trains(process, folder, None)
    startup = time.monotonic() - began
    finish(process)
    return startup


def victim(folder: Path, rounds: int, kills: Kills, startup: float) -> None:
    """A run that is killed until it ends, or until no kills are left."""
    while kills.take():
        process, before = start(folder, rounds), _stamp(folder)
        if kills.draws.random() < 0.5:
            killed = _kill_in_write(process, folder, writes=kills.draws.randint(1, 4))
        else:
            if in_training := kills.draws.random() < 0.8:
                _until_it_trains(process, folder, before)
            killed = _kill_after(
                process, kills.draws.uniform(0, WINDOW if in_training else startup)
            )
        kills.settle(_where(process, folder, before, rounds) if killed else None)
        if not killed:
            break
        process.communicate()
    else:
        process = start(folder, rounds)
    finish(process)


def difference(left: Path, right: Path) -> str | None:
    """The first thing in which two run folders differ, seconds apart; None if every bit is the
    same.
    """
    for name in ("config.toml", "metrics.jsonl", "summary.json"):
        if _timeless(left / name) != _timeless(right / name):
            return name
    for name in ("nodes.json", "nodes.jsonl", "totals.json"):
        if (left / name).read_bytes() != (right / name).read_bytes():
            return name
    saved, other = (checkpoint.read(folder / "checkpoint.safetensors") for folder in (left, right))
    if _facts(saved.facts) != _facts(other.facts):
        return "the facts of checkpoint.safetensors"
    if not same_bits(saved.tensors, other.tensors):
        return "checkpoint.safetensors"
    if _records(left) != _records(right):
        return "checkpoint.history.jsonl"
    files = [sorted((folder / "models").rglob("*.safetensors")) for folder in (left, right)]
    names = [
        [str(path.relative_to(folder)) for path in found]
        for folder, found in zip((left, right), files, strict=True)
    ]
    if names[0] != names[1]:
        return f"the models: {names[0]} and {names[1]}"
    return next(
        (name for name in names[0] if (left / name).read_bytes() != (right / name).read_bytes()),
        None,
    )


def _facts(facts: dict[str, Any]) -> Any:
    """Without the length and sum of the records, which hold seconds."""
    return {key: value for key, value in facts.items() if key != "history"}


def _records(folder: Path) -> Any:
    return [
        _without_seconds(record.as_dict())
        for record in covey.history(folder / "checkpoint.safetensors")
    ]


def same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """The same tensors: names, kinds, shapes and every bit."""
    return {k: _bits(v) for k, v in left.items()} == {k: _bits(v) for k, v in right.items()}


def _bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.numpy().tobytes()


def _timeless(path: Path) -> Any:
    if path.suffix == ".toml":
        return path.read_text()
    text = path.read_text()
    return _without_seconds(
        [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".jsonl"
        else json.loads(text)
    )


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_seconds(item)
            for key, item in value.items()
            if key not in ("seconds", "spent")
        }
    return [_without_seconds(item) for item in value] if isinstance(value, list) else value


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Changes when training begins, because metrics.jsonl is then replaced."""
    try:
        facts = os.stat(folder / "metrics.jsonl")
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _part(process: subprocess.Popen[bytes], folder: Path) -> Path:
    return folder / f".checkpoint.safetensors.{process.pid}.part"


def _kill_in_write(process: subprocess.Popen[bytes], folder: Path, writes: int) -> bool:
    """Kill as soon as the file of the given write appears; False if the process ends before."""
    part, there, seen = os.fspath(_part(process, folder)), False, 0
    while process.poll() is None:
        if os.path.exists(part) != there:
            there = not there
            seen += there
        if seen == writes:
            process.kill()
            return process.wait() < 0
        time.sleep(POLL)
    return False


def _until_it_trains(
    process: subprocess.Popen[bytes], folder: Path, before: tuple[int, int] | None
) -> None:
    while _stamp(folder) == before and process.poll() is None:
        time.sleep(POLL)


def _kill_after(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kill at a given time from now; False if the process ends before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() < 0


def _where(
    process: subprocess.Popen[bytes], folder: Path, before: tuple[int, int] | None, rounds: int
) -> str:
    """What a killed process was doing, from what it left."""
    if _part(process, folder).exists():
        return "checkpoint write"
    saved = folder / "checkpoint.safetensors"
    if saved.exists() and checkpoint.read(saved, tensors=False).facts["round"] == rounds:
        return "after the last round"
    return "start-up" if _stamp(folder) == before else "round"


def campaign(
    place: Path, *, wanted: int, rounds: int, processes: int, seed: int = 0
) -> tuple[Kills, list[str | None]]:
    """All kills, and of every victim in what it differs from the undisturbed run."""
    kills, outcomes = Kills(wanted, seed), list[str | None]()
    startup = undisturbed(place / "undisturbed", rounds)

    def victims(worker: int) -> None:
        while kills.left > 0:
            folder = place / f"victim-{worker}-{kills.left}"
            victim(folder, rounds, kills, startup)
            outcomes.append(difference(place / "undisturbed", folder))

    with ThreadPoolExecutor(processes) as pool:
        for done in [pool.submit(victims, worker) for worker in range(processes)]:
            done.result()
    return kills, outcomes


def main() -> None:
    """Print where the kills fell and whether every victim ended in the same bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        kills, outcomes = campaign(
            Path(place),
            wanted=options.kills,
            rounds=options.rounds,
            processes=options.processes,
            seed=options.seed,
        )
    fell = ", ".join(f"{count} in {where}" for where, count in sorted(kills.fell.items()))
    different = [outcome for outcome in outcomes if outcome is not None]
    result = f"different in {different}" if different else "all bit for bit as undisturbed"
    runs = f"{len(outcomes)} runs of {options.rounds} rounds"
    print(
        f"{sum(kills.fell.values())} kills ({fell}); {runs}; {result}; {time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
