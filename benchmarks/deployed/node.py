"""One process of a measured tree: `covey node`, which writes down when it worked.

`python -m benchmarks.deployed.node NODE.toml`. The clock is CLOCK_MONOTONIC, which all processes of
a machine share. At the end the facts are in facts.json beside NODE.toml.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.cli.main import main
from covey.deployed.node.disk import Disk
from covey.deployed.node.node import Node
from covey.deployed.node.process import Member
from covey.deployed.transport.grpc_transport import GrpcTransport
from covey.deployed.transport.transport import AskKey
from covey.runs.run import Run
from covey.runs.scores.record import Round
from covey.runtimes.alone.loopback import Station

FACTS = "facts.json"
STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
PEAKS = "COVEY_PEAKS"
"""Set in the environment: the peak memory of every kind of ask is noted, which takes time."""
_MEMORY = ("VmHWM", "VmRSS", "RssAnon", "RssFile")


def memory() -> dict[str, int]:
    """Bytes of this process: resident now and at most, anonymous, of files."""
    out = {}
    for line in STATUS.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name in _MEMORY:
            out[name] = int(value.split()[0]) * 1024
    return out


class Facts:
    """What one process has done; every entry is small, and nothing is written before the end."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.started: dict[str, Any] = {}
        self.peaks: dict[str, int] = {}
        """The peak memory in bytes, by what the process did meanwhile."""
        self.beyond: dict[str, int] = {}
        """The same beyond what it held before: what the ask took."""
        self.answers = 0
        """The bytes of all encoded answers of children to one ask, at most."""

    def peak(self, phase: str, rest: int = 0) -> None:
        """Note the peak memory since the last note, under what was done meanwhile.

        `rest` is the memory before it, without the request.
        """
        peak = memory()["VmHWM"]
        self.peaks[phase] = max(self.peaks.get(phase, 0), peak)
        if rest:
            self.beyond[phase] = max(self.beyond.get(phase, 0), peak - rest)
        RESET.write_text("5", encoding="utf-8")

    def add(self, kind: str, key: AskKey | None, who: str, began: float) -> None:
        """Something of a kind began then, and has ended now."""
        named: list[Any] = [None] * 4
        if key is not None:
            named = [key.round, key.lane, key.path, key.program]
        self.entries.append([kind, who, *named, began, time.monotonic(), time.process_time()])

    def write(self, path: Path) -> None:
        """Everything as JSON."""
        end = memory()
        self.peak("end")
        end["VmHWM"] = max(self.peaks.values())
        facts = {
            "entries": self.entries,
            "started": self.started,
            "memory": end,
            "peaks": self.peaks,
            "beyond": self.beyond,
            "answers": self.answers,
        }
        path.write_text(json.dumps(facts), encoding="utf-8")


def watch(facts: Facts) -> None:
    """Let the parts of a process tell when they work."""
    _watch_programs(facts)
    _watch_asks(facts)
    _watch_disk(facts)
    _watch_rounds(facts)
    _watch_start(facts)


def _watch_programs(facts: Facts) -> None:
    """An answer is a whole request; a program is that of the algorithm alone, as in training."""
    peaks = PEAKS in os.environ
    answer = Node.answer
    program_of = Station._program

    def answered(self: Node, key: AskKey, common: bytes, own: bytes) -> bytes:
        began = time.monotonic()
        rest = 0
        if peaks:
            if not facts.peaks:
                facts.peak("start")
            rest = memory()["VmRSS"] - len(common) - len(own)
        self.__dict__["_asked_key"] = key
        try:
            return answer(self, key, common, own)
        finally:
            facts.add("answer", key, str(self.place), began)
            if peaks:
                facts.peak(key.lane if key.lane != "order" else key.program, rest)

    def timed(self: Station, header: dict[str, Any]) -> Callable[..., Any]:
        program = program_of(self, header)

        @functools.wraps(program)
        def run(nodes: Any, *arguments: Any) -> Any:
            began = time.monotonic()
            held = list(arguments)
            del arguments  # the program alone holds its rows
            try:
                if len(held) == 1:
                    return program(nodes, held.pop())
                return program(nodes, *held)
            finally:
                facts.add("program", self.__dict__["_asked_key"], str(self.place), began)

        return run

    Node.answer = answered  # type: ignore[method-assign]
    Station._program = timed  # type: ignore[method-assign]


def _watch_asks(facts: Facts) -> None:
    ask = GrpcTransport.ask

    @functools.wraps(ask)
    def asked(self: GrpcTransport, key: AskKey, *arguments: Any) -> Any:
        began = time.monotonic()
        try:
            answers = ask(self, key, *arguments)
            size = sum(len(answer.data) for answer in answers.values())
            facts.answers = max(facts.answers, size)
            return answers
        finally:
            facts.add("ask", key, "", began)

    setattr(GrpcTransport, ask.__name__, asked)


def _watch_disk(facts: Facts) -> None:
    """Every method of a disk that writes."""

    def watched(name: str) -> None:
        method = getattr(Disk, name)

        @functools.wraps(method)
        def run(self: Disk, *arguments: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return method(self, *arguments, **named)
            finally:
                facts.add("disk", None, name, began)

        setattr(Disk, name, run)

    for name in ("journal", "end_ask", "commit", "keep", "note", "end_round"):
        watched(name)


def _watch_rounds(facts: Facts) -> None:
    following = Run.__next__

    def next_round(self: Run) -> Round:
        began = time.monotonic()
        try:
            return following(self)
        finally:
            facts.add("round", None, "", began)

    Run.__next__ = next_round  # type: ignore[method-assign]


def _watch_start(facts: Facts) -> None:
    """When a process is ready to serve, and what it holds then."""
    serve = Member.serve
    run = Member.run

    def ready(self: Member) -> None:
        facts.started = {"time": time.monotonic(), **memory()}
        serve(self)

    def running(self: Member) -> Run:
        made = run(self)
        facts.started = {"time": time.monotonic(), **memory()}
        return made

    Member.serve = ready  # type: ignore[method-assign]
    Member.run = running  # type: ignore[method-assign]


def serve(file: Path) -> None:
    """`covey node FILE`, watched."""
    facts = Facts()
    watch(facts)
    sys.argv = ["covey", "node", str(file)]
    try:
        main()
    finally:
        facts.write(file.parent / FACTS)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
