"""Work for the processes of tests/grid/test_grid.py; a process that starts imports it by name."""

import os
import signal
from typing import Any


def work(arguments: dict[str, Any]) -> dict[str, Any]:
    """Square a number; "raise" raises, "die" ends the process without a word."""
    number = arguments["number"]
    if number == "raise":
        raise ArithmeticError("no number")
    if number == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    threads = os.environ["OMP_NUM_THREADS"]
    return {"square": number**2, "process": os.getpid(), "threads": threads}
