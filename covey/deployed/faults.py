"""Points where tests may end a process; nothing happens at them in ordinary use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from covey.errors import ConfigError

FAULTS = {
    "inside-ask": "a node is about to run a program",
    "before-commit": "the program has ended; nothing is written",
    "inside-commit": "in the transaction of an answer, or of held rows",
    "after-commit": "the answer is written, and not sent",
    "answer-sent": "the answer is on its way",
    "asking": "a parent is about to ask its children",
    "answers-received": "the children have answered; nothing is written",
    "inside-journal": "in the transaction of their answers",
    "after-journal": "their answers are written",
    "between-rounds": "a node hears of a new round, or the server has played one",
    "inside-round-commit": "in the transaction that makes a round good",
    "round-ended": "the server has written a round; the next has not begun",
}
"""Where tests may end a process."""
FAULT_VARIABLE = "COVEY_FAULT"
"""POINT:N in the environment: a process kills itself when it passes a point for the n-th time."""
_hooks: list[Callable[[str], None]] = []


def fault(point: str) -> None:
    """Do what tests have put at this point; nothing in ordinary use."""
    for hook in _hooks:
        hook(point)


def set_fault(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of every fault point that is passed; None: no hook."""
    _hooks.clear()
    if hook is not None:
        _hooks.append(hook)


def arm_fault() -> None:
    """Set the fault that the environment names, if any; called once a process has started."""
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return
    point, _, times = text.partition(":")
    if not times.isdecimal() or int(times) < 1:
        fix = "give POINT:N, such as inside-commit:3"
        raise ConfigError(f"{FAULT_VARIABLE} = {text!r}: {fix}.")
    set_fault(kill_at(point, int(times)))


def kill_at(point: str, times: int) -> Callable[[str], None]:
    """A hook that kills this process when a point is passed for the n-th time."""
    if point not in FAULTS:
        raise ConfigError(f"there is no fault point {point!r}; choose one of {', '.join(FAULTS)}.")
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        if name != point:
            return
        passed += 1
        if passed == times:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook
