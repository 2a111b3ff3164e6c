"""Two revisions of covey by turns on the same works: `python -m benchmarks.turns REVISION [WORK
...]`.

REVISION is one of the repository, or a folder with a checkout. Each revision has a process of its
own, with its own checkout. They take a round each, one after the other, so that whatever else the
machine does falls on both. The medians of all rounds are compared, and the best rounds beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
WORKER = """
import sys, time
import covey
from benchmarks.works import WORKS
for line in sys.stdin:
    name, rounds = line.rsplit(maxsplit=1)
    work = WORKS[name]
    run = covey.run(work.experiment(work.data(), int(rounds) + 2, device=sys.argv[1]))
    print("ready", flush=True)
    for _ in range(int(rounds)):
        sys.stdin.readline()
        began = time.perf_counter()
        next(run)
        print(time.perf_counter() - began, flush=True)
"""


class Worker:
    """A process that runs one revision, a round when it is told to."""

    def __init__(self, folder: Path, device: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-c", WORKER, device]
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout

    def start(self, work: str, rounds: int) -> None:
        """Build the experiment of a work."""
        self._say(f"{work} {rounds}")
        if self._hear() != "ready":
            raise RuntimeError(f"{work} did not start")

    def round(self) -> float:
        """Seconds of the next round."""
        self._say("go")
        return float(self._hear())

    def _say(self, text: str) -> None:
        self._requests.write(text + "\n")
        self._requests.flush()

    def _hear(self) -> str:
        return self._answers.readline().strip()

    def end(self) -> None:
        """Let the process end."""
        self._requests.close()
        self._process.wait()


def compare(workers: tuple[Worker, Worker], work: str, rounds: int) -> dict[str, float]:
    """Seconds of the old and the new revision, and their ratio; the first two rounds of each only
    warm up.
    """
    for worker in workers:
        worker.start(work, rounds + 2)
    old, new = [], []
    for number in range(rounds + 2):
        order = workers if number % 2 == 0 else workers[::-1]
        took = {worker: worker.round() for worker in order}
        if number >= 2:
            old.append(took[workers[0]])
            new.append(took[workers[1]])
    return {
        "old": statistics.median(old),
        "new": statistics.median(new),
        "new/old": statistics.median(new) / statistics.median(old),
        "best new/old": min(new) / min(old),
        "rounds": rounds,
    }


def _print(folder: Path, asked: argparse.Namespace) -> None:
    """A line of JSON for each work."""
    workers = Worker(folder, asked.device), Worker(ROOT, asked.device)
    for work in asked.works:
        print(json.dumps({"work": work, **compare(workers, work, asked.rounds)}), flush=True)
    for worker in workers:
        worker.end()


def main() -> None:
    """Check out the revision, compare, print a table and a line of JSON for each work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision")
    parser.add_argument(
        "works", nargs="*", default=["W1", "W2", "W3 DNN", "W3 MLR", "W4", "sFedHP"]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if Path(asked.revision).is_dir():
        _print(Path(asked.revision), asked)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "old")
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", folder, asked.revision],
            cwd=ROOT,
            check=True,
        )
        try:
            for library in (ROOT / "covey" / "native").glob("*.so"):
                shutil.copy(library, folder / "covey" / "native")
            _print(folder, asked)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
