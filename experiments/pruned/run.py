"""Partial pruning and personalization over the air, trained: Figures 2 to 5 and Table I of Liu and Ratnarajah (2023).

`COVEY_DATA=FOLDER python -m experiments.pruned.run all --device cuda --jobs 6 --cpu-jobs 9 --json OUT.json`: everything; or a
part: `schemes` (Figure 4, Table I), `thresholds` (Figure 5), `ratios` (Figure 2), `orders` (Figure 3), `fading` (seconds and
joules to an accuracy), `draws` (orderings over random places, cycles and sizes, on the digits), `grid` (learning rates). A job
that is in OUT.json is not run again. `table.py` and `picture.py` read that file; the set-up is settings.py.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import covey
from covey.run import Round
from experiments.pruned.settings import LR, SETS, Job, Rates, drawn, experiments, grid, jobs

PARTS = ("schemes", "thresholds", "ratios", "fading", "orders")


def played(job: Job, device: str, until: float) -> dict[str, Any]:
    """Every round of every seed, by scheme; it stops with an error where time is up."""
    torch.set_num_threads(1)
    if time.time() > until:
        raise TimeoutError("time was up before it began")
    began, out, sizes = time.perf_counter(), {}, {}
    for scheme in job.schemes:
        runs = covey.runs(experiments(job, scheme, device))
        for _ in runs:
            if time.time() > until:
                raise TimeoutError(f"time was up in round {runs.round} of {job.rounds} of {scheme}")
        out[scheme] = [columns(seed.history, short=job.draw is not None) for seed in runs.seeds]
        space = runs.simulator.task.space
        sizes[scheme] = {"shared": space.shared, "personal": space.width - space.shared}
    return {"job": asdict(job), "sizes": sizes, "took": time.perf_counter() - began, "device": device, "schemes": out}


def columns(history: tuple[Round, ...], *, short: bool) -> dict[str, list[Any]]:
    """A seed's rounds as columns, of a round that is not scored None; of a draw, scored rounds and the means of the rest."""
    rows = [row(record) for record in history]
    found = {name: [_short(one.get(name)) for one in rows] for name in rows[-1]}
    if not short:
        return found
    scored = [at for at, value in enumerate(found["personal_test"]) if value is not None]
    return {
        name: [sum(values) / len(values)] if name in _AIR else [values[at] for at in scored] for name, values in found.items()
    }


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


_AIR = ("seconds", "formula_seconds", "joules", "upload_joules", "bytes", "formula_bytes", "left_out", "late",
        "kept", "kept_least", "cover", "uncovered", "error")  # fmt: skip


def row(record: Round) -> dict[str, Any]:
    """A round in plain numbers: scores, the clock, and what programs noted."""
    out: dict[str, Any] = {"round": record.round + 1}
    for name, model in record.models.items():
        if name in ("global", "personal"):
            for part, score in model.scores.items():
                # Somebody whom no plan has asked yet has no personal model: the global one stands in, so that all schemes
                # are scored on the same devices.
                out[f"{name}_{part}"] = score.accuracy_fallback
                out[f"{name}_{part}_loss"] = score.loss
                out[f"{name}_{part}_worst"] = score.worst_decile
    air, notes = record.radio, record.notes
    if air is not None:
        out |= {name: getattr(air, name) for name in ("seconds", "formula_seconds", "joules", "upload_joules", "formula_bytes")}
        out |= {"bytes": air.upload_bytes, "left_out": len(air.left_out), "late": len(air.late)}
    if "kept" in (mine := notes.get("device", {})):
        out |= {"kept": mine["kept"].mean, "kept_least": mine["kept"].least, "error": mine["error"].mean}
        above = notes.get("edge") or notes["server"]
        out |= {"cover": above["cover"].least, "uncovered": above["uncovered"].mean}
    return out


class Results:
    """What is done, in a file that is whole at every moment."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._writing = path, threading.Lock()
        self.found: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def done(self, job: Job) -> bool:
        one = self.found.get(job.key)
        return one is not None and "failed" not in one and one["job"] == asdict(job)

    def add(self, key: str, value: dict[str, Any]) -> None:
        with self._writing:
            self.found[key] = value
            if self.path:
                part = self.path.with_suffix(".part")
                part.write_text(json.dumps(self.found))
                os.replace(part, self.path)


def spread(todo: list[Job], device: str, processes: int, until: float) -> Iterator[tuple[Job, dict[str, Any]]]:
    """The results of jobs as they come; a job that fails says why. A few at a time are handed out, so that a pool that breaks
    takes no more than these with it, and another one goes on."""
    waiting = list(todo)
    while waiting:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            under_way: dict[Future[dict[str, Any]], Job] = {}
            broken = False
            while (waiting and not broken) or under_way:
                while waiting and not broken and len(under_way) < processes:
                    job = waiting.pop(0)
                    try:
                        under_way[pool.submit(played, job, device, until)] = job
                    except Exception:  # the pool is broken
                        waiting.insert(0, job)
                        broken = True
                ready, _ = wait(under_way, timeout=1.0, return_when=FIRST_COMPLETED)
                for one in ready:
                    job = under_way.pop(one)
                    error = one.exception()
                    broken = broken or "BrokenProcessPool" in type(error).__name__
                    yield job, one.result() if error is None else _failed(job, error)


def _failed(job: Job, error: BaseException) -> dict[str, Any]:
    text = "".join(traceback.format_exception(error))[-2000:]
    return {"job": asdict(job), "failed": f"{type(error).__name__}: {error}", "trace": text}


def work(todo: list[Job], device: str, processes: int, until: float, results: Results) -> None:
    """Jobs on one kind of device, written down as they end."""
    for job, found in spread([job for job in todo if not results.done(job)], device, processes, until):
        results.add(job.key, found)
        said = found["failed"] if "failed" in found else f"{found['took']:.1f} s"
        print(f"# {device} {job.key}: {said}", file=sys.stderr, flush=True)


def rates(found: dict[str, Any]) -> Rates:
    """The learning rates with the best validation accuracy over the last quarter of the rounds of the grid."""
    out: Rates = {(data, all_shared): LR[data] for data in SETS for all_shared in (False, True)}
    for data, all_shared in out:
        quality: dict[float, list[float]] = {}
        for one in found.values():
            job = one["job"]
            if (job["part"], job["data"], job["all_shared"]) == ("grid", data, all_shared):
                quality.setdefault(job["lr"], []).append(0.0 if "failed" in one else late(one))
        if quality:
            out[data, all_shared] = max(quality, key=lambda lr: sum(quality[lr]) / len(quality[lr]))
    return out


def late(one: dict[str, Any]) -> float:
    """The mean accuracy over the last quarter, which a rate too large to settle does not win."""
    (seed,) = next(iter(one["schemes"].values()))
    values = [value for value in seed["personal_validation"][3 * len(seed["round"]) // 4 :] if value is not None]
    return float(sum(values) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "grid", "draws", "all"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=1, help="processes; with `all`, those on the device")
    parser.add_argument("--cpu-jobs", type=int, default=1, help="with `all`, processes on the CPU, for the draws")
    parser.add_argument("--json", type=Path, help="read what is done, write what is new")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3, help="two more for `fading`")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--draw-rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=600.0, help="no job goes on after this; what is done is kept")
    asked = parser.parse_args()
    until, results = time.time() + 60 * asked.minutes, Results(asked.json)

    def on_device() -> None:
        if asked.part in ("grid", "all"):
            work(grid(rounds=asked.rounds), asked.device, asked.jobs, until, results)
        found = rates(results.found)
        print(f"# learning rates by data and whether all is shared: {found}", file=sys.stderr, flush=True)
        parts = PARTS if asked.part == "all" else [part for part in PARTS if part == asked.part]
        todo = [job for part in parts for job in jobs(part, rounds=asked.rounds, seeds=asked.seeds, rates=found)]
        work(todo, asked.device, asked.jobs, until, results)

    def on_cpu() -> None:
        if asked.part in ("draws", "all"):
            processes = asked.cpu_jobs if asked.part == "all" else asked.jobs
            work(drawn(asked.draws, rounds=asked.draw_rounds), "cpu", processes, until, results)

    threads = [threading.Thread(target=lane) for lane in (on_device, on_cpu)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bad = sorted(key for key, one in results.found.items() if "failed" in one)
    print(f"# {len(results.found) - len(bad)} jobs done, {len(bad)} failed {bad[:10]}", file=sys.stderr)


if __name__ == "__main__":
    main()
