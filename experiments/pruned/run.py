"""Partial pruning and personalization over the air, trained: Figures 2 to 5 and Table I of Liu and
Ratnarajah (2023).

`COVEY_DATA=FOLDER python -m experiments.pruned.run all --device cuda --jobs 6 --cpu-jobs 9 --json
OUT.json`: everything; or a part: `schemes` (Figure 4, Table I), `thresholds` (Figure 5), `ratios`
(Figure 2), `orders` (Figure 3), `fading` (seconds and joules to an accuracy), `draws` (orderings
over random places, cycles and sizes, on the digits), `grid` (learning rates). A job that is in
OUT.json is not run again. `table.py` and `picture.py` read that file; the set-up is settings.py.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import covey
from covey.runs.run import Round
from experiments import pool
from experiments.pool import Answers, Found
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
        space = runs.runtime.task.space
        sizes[scheme] = {"shared": space.shared, "personal": space.width - space.shared}
    return {
        "job": asdict(job),
        "sizes": sizes,
        "seconds": time.perf_counter() - began,
        "device": device,
        "schemes": out,
    }


def columns(history: tuple[Round, ...], *, short: bool) -> dict[str, list[Any]]:
    """A seed's rounds as columns, of a round that is not scored None; of a draw, scored rounds and
    the means of the rest.
    """
    rows = [row(record) for record in history]
    found = {name: [_short(one.get(name)) for one in rows] for name in rows[-1]}
    if not short:
        return found
    scored = [at for at, value in enumerate(found["personal_test"]) if value is not None]
    return {
        name: [sum(values) / len(values)] if name in _AIR else [values[at] for at in scored]
        for name, values in found.items()
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
                # Somebody whom no plan has asked yet has no personal model: the global one stands
                # in, so that all schemes are scored on the same devices.
                out[f"{name}_{part}"] = score.accuracy_fallback
                out[f"{name}_{part}_loss"] = score.loss
                out[f"{name}_{part}_worst"] = score.worst_decile
    air, notes = record.radio, record.notes
    if air is not None:
        out |= {
            name: getattr(air, name)
            for name in ("seconds", "formula_seconds", "joules", "upload_joules", "formula_bytes")
        }
        out |= {"bytes": air.upload_bytes, "left_out": len(air.left_out), "late": len(air.late)}
    if "kept" in (mine := notes.get("device", {})):
        out |= {
            "kept": mine["kept"].mean,
            "kept_least": mine["kept"].least,
            "error": mine["error"].mean,
        }
        above = notes.get("edge") or notes["server"]
        out |= {"cover": above["cover"].least, "uncovered": above["uncovered"].mean}
    return out


def work(todo: list[Job], device: str, processes: int, until: float, answers: Answers) -> None:
    """Those of these jobs that are not done, on one kind of device; one that failed before is tried
    again.
    """

    def plan(found: Found) -> list[pool.Job]:
        return [(job.key, (job, device, until)) for job in todo if not done(job, found)]

    pool.run(played, plan, answers, processes)


def done(job: Job, found: Found) -> bool:
    """Whether a job's answer is there, and is of this very job."""
    one = found.get(job.key)
    return one is not None and "error" not in one and one["job"] == asdict(job)


def rates(found: Found) -> Rates:
    """The learning rates with the best validation accuracy over the last quarter of the rounds of
    the grid.
    """
    out: Rates = {(data, all_shared): LR[data] for data in SETS for all_shared in (False, True)}
    for data, all_shared in out:
        quality: dict[float, list[float]] = {}
        for job in grid(rounds=1):
            if (
                (job.data, job.all_shared) == (data, all_shared)
                and job.key in found
                and job.lr is not None
            ):
                one = found[job.key]
                quality.setdefault(job.lr, []).append(0.0 if "error" in one else late(one))
        if quality:
            out[data, all_shared] = max(quality, key=lambda lr: sum(quality[lr]) / len(quality[lr]))
    return out


def late(one: dict[str, Any]) -> float:
    """The mean accuracy over the last quarter, which a rate too large to settle does not win."""
    (seed,) = next(iter(one["schemes"].values()))
    values = [
        value
        for value in seed["personal_validation"][3 * len(seed["round"]) // 4 :]
        if value is not None
    ]
    return float(sum(values) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "grid", "draws", "all"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes; with `all`, those on the device"
    )
    parser.add_argument(
        "--cpu-jobs", type=int, default=1, help="with `all`, processes on the CPU, for the draws"
    )
    parser.add_argument("--json", type=Path, help="read what is done, write what is new")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3, help="two more for `fading`")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--draw-rounds", type=int, default=20)
    parser.add_argument(
        "--minutes",
        type=float,
        default=600.0,
        help="no job goes on after this; what is done is kept",
    )
    asked = parser.parse_args()
    until, answers = time.time() + 60 * asked.minutes, Answers(asked.json)

    def on_device() -> None:
        if asked.part in ("grid", "all"):
            work(grid(rounds=asked.rounds), asked.device, asked.jobs, until, answers)
        found = rates(answers.found)
        print(
            f"# learning rates by data and whether all is shared: {found}",
            file=sys.stderr,
            flush=True,
        )
        parts = PARTS if asked.part == "all" else [part for part in PARTS if part == asked.part]
        todo = [
            job
            for part in parts
            for job in jobs(part, rounds=asked.rounds, seeds=asked.seeds, rates=found)
        ]
        work(todo, asked.device, asked.jobs, until, answers)

    def on_cpu() -> None:
        if asked.part in ("draws", "all"):
            processes = asked.cpu_jobs if asked.part == "all" else asked.jobs
            work(drawn(asked.draws, rounds=asked.draw_rounds), "cpu", processes, until, answers)

    threads = [threading.Thread(target=lane) for lane in (on_device, on_cpu)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bad = sorted(key for key, one in answers.found.items() if "error" in one)
    print(
        f"# {len(answers.found) - len(bad)} jobs done, {len(bad)} failed {bad[:10]}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
