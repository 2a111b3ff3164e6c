"""What tests/test_sharded_ends.py runs under torchrun: `python -m tests.killed_save PATH RANK`.

A run saves after its first round. While it saves after the second, a rank is killed: rank 0 once all
have written their parts, another before it has written its own.
"""

import os
import signal
import sys
from typing import Any

import covey
from covey.runs.saved import checkpoint, rank_parts
from tests.laws.cases import CASES, experiment


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, rank: int) -> None:
    """Save twice; the second time does not end."""
    run = covey.run(experiment(CASES["PerMFL"]))
    next(run)
    run.save(path)
    next(run)
    if run.runtime.ranks.rank == rank == 0:
        checkpoint.write = die
    elif run.runtime.ranks.rank == rank:
        rank_parts.write = die
    run.save(path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
