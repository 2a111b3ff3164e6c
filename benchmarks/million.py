"""A million devices in one process: `python -m benchmarks.million --folder FOLDER`.

PerMFL on a linear model 784-10, 100 edges, 10 devices of each asked, 5 steps of 10 examples. Every
device holds 10 training, 2 validation and 3 test examples of a common pool of 60,000, by number.
Kept rows lie in files of FOLDER (`covey.run(..., store=FOLDER)`). Measured are the CPU seconds of a
round, by turns with the same run of a thousand devices, a scored round, `save`, and the memory of
the process. Then a process is killed inside a round, one inside a save; each is resumed and must
end with the bits of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import covey
from covey import Experiment, Run, Tree, models
from covey.algorithms import PerMFL
from covey.data import Part, Shards
from covey.runs.run import Runs
from covey.runs.saved import checkpoint

EDGES = 100
POOL = 60_000
ROUNDS = 200
SCORED = 10_000
EVERY = 20
"""Rounds from one save to the next."""
MEDIAN = 50
"""Rounds of each population, by turns."""
Die = Callable[..., Any]


def data(devices: int) -> Shards:
    """Examples of a pool by number; nothing is made for single devices."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POOL, 784, generator=generator)
    y = torch.randint(0, 10, (POOL,), generator=generator)

    def part(count: int) -> Part:
        index = torch.randint(0, POOL, (devices * count,), generator=generator)
        return Part(index, torch.arange(devices + 1) * count)

    return Shards(x, y, part(10), part(2), part(3), classes=10)


def experiment(devices: int, rounds: int, score_every: int) -> Experiment:
    """The work at one number of devices."""
    return Experiment(
        PerMFL(edge_rounds=1, device_sample=10, steps=5, batch=10),
        data(devices),
        models.linear(784, 10),
        Tree.uniform(EDGES, devices // EDGES),
        rounds,
        score_every=score_every,
        score_sample=min(SCORED, devices),
        workers=1,
    )


def memory() -> dict[str, float]:
    """GB of this process: anonymous, of files, and the peak of both."""
    out = {}
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "VmHWM"):
            out[name] = round(int(value.split()[0]) * 1024 / 1e9, 2)
    return out


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu = time.process_time()
    wall = time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def by_turns(folder: Path, devices: int) -> dict[str, Any]:
    """CPU seconds of a round at a thousand devices and at many, in one process."""
    never = 10**9
    runs = {}
    for count in (1000, devices):
        runs[count] = covey.run(experiment(count, never, never), store=folder / f"{count}")
        for _ in range(3):
            next(runs[count])
    seconds: dict[int, list[float]] = {count: [] for count in runs}
    for _ in range(MEDIAN):
        for count, run in runs.items():
            cpu, _ = timed(lambda run=run: next(run))
            seconds[count].append(cpu)
    out: dict[str, Any] = {}
    for kind in (statistics.median, statistics.mean):
        figures = {count: round(kind(values), 4) for count, values in seconds.items()}
        out[kind.__name__] = figures
        out[f"ratio of {kind.__name__}s"] = round(figures[devices] / figures[1000], 3)
    return out


def whole(folder: Path, devices: int) -> dict[str, Any]:
    """All rounds with scores and saves."""
    path = folder / "run.safetensors"
    began = time.perf_counter()
    run = covey.run(experiment(devices, ROUNDS, EVERY), store=folder / "live")
    started = time.perf_counter() - began
    saves = []
    scored = []
    anonymous = 0.0
    while not run.done:
        cpu, wall = timed(lambda: next(run))
        anonymous = max(anonymous, memory()["RssAnon"])
        if run.history[-1].models:
            scored.append((cpu, wall))
        if run.round % EVERY == 0:
            saves.append(timed(lambda: run.save(path)))
            anonymous = max(anonymous, memory()["RssAnon"])
    at_end = memory()
    rows = sum(file.stat().st_size for file in path.with_suffix(".rows").glob("*.rows"))
    kept, _ = run.rows("personal")
    return {
        "start_seconds": round(started, 1),
        "rounds": run.round,
        "holders": len(kept),
        "anonymous_gb": anonymous,
        "memory": at_end,
        "scored_cpu_wall": [round(max(kind), 2) for kind in zip(*scored, strict=True)],
        "first_save_cpu_wall": [round(value, 2) for value in saves[0]],
        "later_saves_cpu_wall": [round(max(kind), 2) for kind in zip(*saves[1:], strict=True)],
        "later_saves_median": round(statistics.median(wall for _, wall in saves[1:]), 2),
        "rows_gb": round(rows / 1e9, 2),
        "digest": digest(run),
    }


def digest(run: Run) -> str:
    """A hash of the global row, of all that nodes keep and hold, and of the records."""
    out = hashlib.sha256(run.w.numpy().tobytes())
    for model in run.models()[1:]:
        for which in ("last", "chosen"):
            ids, rows = run.rows(model, which)
            out.update(ids.numpy().tobytes())
            out.update(rows.numpy().data)
            del rows
    for record in run.history:
        plain = {**record.as_dict(), "seconds": 0, "spent": 0}
        out.update(json.dumps(plain, sort_keys=True).encode())
    for values in (run.totals or {}).values():
        out.update(values.numpy().tobytes())
    return out.hexdigest()[:16]


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, devices: int, moment: str) -> None:
    """Save, go on, and die: inside a round, or inside a save before it counts."""
    path = folder / "killed.safetensors"
    run = covey.run(experiment(devices, 12, 6), store=folder / "live")
    while run.round < 6:
        next(run)
    run.save(path)
    next(run)
    if moment == "round":
        setattr(Runs, "_choose", _die)  # noqa: B010
        next(run)
    if moment == "save":
        checkpoint._sort_header = _die
        run.save(path)
    while not run.done:
        next(run)
    print(json.dumps({"digest": digest(run)}))


def resumed(folder: Path, devices: int) -> dict[str, Any]:
    """The rest of the killed run."""
    began = time.perf_counter()
    path = folder / "killed.safetensors"
    run = covey.run(experiment(devices, 12, 6), resume=path, store=folder / "live")
    took = time.perf_counter() - began
    at = run.round
    while not run.done:
        next(run)
    return {"resumed_at": at, "resume_seconds": round(took, 1), "digest": digest(run)}


def child(part: str, folder: Path, devices: int) -> dict[str, Any]:
    """One part in a process of its own; nothing where it was killed."""
    command = [sys.executable, "-m", "benchmarks.million", "--part", part]
    command += ["--folder", str(folder), "--devices", str(devices)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if ended.returncode == -signal.SIGKILL:
        return {}
    if ended.returncode:
        raise SystemExit(f"{part} ended with {ended.returncode}")
    out: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return out


def everything(folder: Path, devices: int) -> dict[str, Any]:
    """All figures."""
    out = {name: child(name, folder, devices) for name in ("turns", "whole")}
    out["unbroken"] = child("unbroken", folder, devices)
    for moment in ("round", "save"):
        child(moment, folder, devices)
        out[f"killed in a {moment}"] = child("resume", folder, devices)
        same = out[f"killed in a {moment}"]["digest"] == out["unbroken"]["digest"]
        out[f"killed in a {moment}"]["bit for bit"] = same
    return out


def main() -> None:
    """Run one part, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--devices", type=lambda text: int(float(text)), default=10**6)
    parser.add_argument("--part", default="")
    given = parser.parse_args()
    folder = given.folder / (given.part or "all")
    devices = given.devices
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], Any]] = {
        "": lambda: everything(given.folder, devices),
        "turns": lambda: by_turns(folder, devices),
        "whole": lambda: whole(folder, devices),
        "unbroken": lambda: killed(folder, devices, ""),
        "round": lambda: killed(given.folder / "killed", devices, "round"),
        "save": lambda: killed(given.folder / "killed", devices, "save"),
        "resume": lambda: resumed(given.folder / "killed", devices),
    }
    result = parts[given.part]()
    if result is not None:
        print(json.dumps(result, indent=None if given.part else 2))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
