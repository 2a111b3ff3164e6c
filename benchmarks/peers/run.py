"""covey beside the plain loop, pfl and Flower on the same work: `python -m benchmarks.peers.run
--work W2 --rounds 5`.

Each program runs in a process of its own, one after the other, for one round more than asked; the
first is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import setup
from benchmarks.peers.common import WORKS, Work, prepare

CORES = 2
HEAD = f"{'program':<22}{'median s':>10}{'best s':>10}{'of covey':>10}{'last loss':>11}{'from covey':>12}"


@dataclass(frozen=True)
class Program:
    """A script in this folder, whose environment runs it, and on how many processes and torch
    threads.
    """

    name: str
    script: str
    peer: str | None = None
    threads: int = 1
    processes: int = 1

    def command(self) -> list[str]:
        python = sys.executable if self.peer is None else str(setup.python(self.peer))
        torchrun = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={self.processes}",
        ]
        return [
            python,
            *(torchrun if self.processes > 1 else []),
            "-m",
            f"benchmarks.peers.{self.script}",
        ]


PROGRAMS = (
    Program("loop, 1 thread", "loop_run"),
    Program("loop, 2 threads", "loop_run", threads=CORES),
    Program("covey", "covey_run", threads=CORES),
    Program("pfl, 1 thread", "pfl_run", peer="pfl"),
    Program("pfl, 2 threads", "pfl_run", peer="pfl", threads=CORES),
    Program("pfl, 2 processes", "pfl_run", peer="pfl", processes=CORES),
    Program("flower, 2 workers", "flower_run", peer="flower"),
)


def play(program: Program, work: Work, rounds: int) -> dict[str, Any]:
    """What the program wrote, or {"error": its last words}."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        told = [
            "--work",
            work.name,
            "--rounds",
            str(rounds + 1),
            "--threads",
            str(program.threads),
            "--out",
            str(out),
        ]
        env = os.environ | quiet | {"OMP_NUM_THREADS": str(program.threads)}
        done = subprocess.run(
            [*program.command(), *told], cwd=setup.ROOT, env=env, capture_output=True, text=True
        )
        if done.returncode or not out.exists():
            return {"error": done.stderr.strip()[-2000:] or f"exit status {done.returncode}"}
        figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def measure(
    programs: Sequence[Program], work: Work, *, rounds: int, repeats: int
) -> dict[str, Any]:
    """Results by program; repeats take turns, so that a slow minute of the machine falls on all."""
    found: dict[str, Any] = {}
    for turn in range(repeats):
        for program in programs:
            print(f"{work.name}: {program.name}, {turn + 1} of {repeats}", file=sys.stderr)
            result = play(program, work, rounds)
            if "error" in result:
                found.setdefault(program.name, result)
                continue
            kept = found.setdefault(program.name, {**result, "seconds": []})
            kept.setdefault("seconds", []).extend(result["seconds"][1:])
    return found


def table(results: dict[str, Any]) -> str:
    """Seconds per round, their ratio to covey's, and how far the loss is from covey's at most, over
    all rounds.
    """
    ours = results.get("covey", {})
    lines = [HEAD]
    for name, result in results.items():
        if "error" in result:
            lines.append(f"{name:<22}failed: {result['error'].splitlines()[-1]}")
            continue
        middle, best = statistics.median(result["seconds"]), min(result["seconds"])
        line = f"{name:<22}{middle:>10.4f}{best:>10.4f}"
        if ours.get("seconds"):
            apart = max(abs(a - b) for a, b in zip(result["losses"], ours["losses"], strict=True))
            line += f"{middle / statistics.median(ours['seconds']):>9.1f}x{result['losses'][-1]:>11.4f}{apart:>12.4f}"
        lines.append(line)
    return "\n".join(lines)


def save(out: Path, work: Work, facts: dict[str, Any]) -> None:
    """Put a work's results into the file, beside those of other works."""
    saved = json.loads(out.read_text()) if out.exists() else {}
    out.write_text(json.dumps(saved | {work.name: facts}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each program")
    parser.add_argument("--repeats", type=int, default=1, help="how often each program is started")
    parser.add_argument(
        "--only", nargs="+", choices=["loop", "covey", "pfl", "flower"], help="leave the others out"
    )
    parser.add_argument(
        "--images", type=Path, help="folder cifar-10-batches-bin: real pictures for the work CIFAR"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    return parser.parse_args()


def main() -> None:
    """Print a table per work and save everything."""
    given = arguments()
    programs = [
        p for p in PROGRAMS if given.only is None or p.script.removesuffix("_run") in given.only
    ]
    for program in programs:
        program.command()  # a missing environment is said before anything is run
    for work in [WORKS[name] for name in given.work]:
        what, load = prepare(work, images=given.images), os.getloadavg()[0]
        results = measure(programs, work, rounds=given.rounds, repeats=given.repeats)
        print(
            f"\n{work.name} ({what} data), {given.rounds} rounds x {given.repeats}; load before the start {load:.2f}"
        )
        print(table(results), flush=True)
        save(
            given.out,
            work,
            {"data": what, "load": load, "cores": os.cpu_count(), "programs": results},
        )


if __name__ == "__main__":
    main()
