"""All processes of a tree as threads of this one. If one of them ends, the test fails at once."""

import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.data import Shards
from covey.deployed.node.process import Member, parts_of
from covey.deployed.operate.control_port import ControlPort
from covey.deployed.operate.events import EventLog
from covey.deployed.plan.local import on_this_machine
from covey.deployed.plan.plan import DeploySettings, processes_of
from covey.deployed.plan.process import Process
from covey.runs.experiment import Experiment

ADDRESS = {"server": "s", "edge": "{seat}"}


def member(
    described: Process, experiment: Experiment, own: Mapping[str, Shards] | None = None
) -> Member:
    log = EventLog(described.name, io.StringIO())
    parts = parts_of(experiment)
    return Member(described, parts, None, log, own or {})


def planned(experiment: Experiment, folder: Path, settings: DeploySettings) -> list[Process]:
    return on_this_machine(processes_of(experiment.tree, settings), folder)


@contextmanager
def serving(members: Mapping[str, Member]) -> Iterator[None]:
    """With a thread for every member but the server; all are closed at the end.

    A thread that ends too early closes all members, so that nobody waits for it. The error of the
    thread is the error of the test.
    """
    over = threading.Event()
    errors: list[BaseException] = []

    def serve(one: Member) -> None:
        try:
            one.serve()
        except BaseException as error:
            errors.append(error)
        while not over.wait(0.1):  # the server may open its transport after its first end
            for other in members.values():
                other.close()

    below = {name: one for name, one in members.items() if name != "server"}
    threads = {}
    for name, one in below.items():
        threads[name] = threading.Thread(target=serve, args=(one,), name=name, daemon=True)
        threads[name].start()
    try:
        yield
    finally:
        over.set()
        for one in below.values():
            one.progress.drain()
        for name, thread in threads.items():
            thread.join(20)
            assert not thread.is_alive(), name
        for one in members.values():
            one.close()
        if errors:
            raise errors[0]


def call(method: str, address: tuple[str, int], path: str, *meant: Any) -> str:
    """What a control port answers; `meant` are the certificate, the process and its seats."""
    return ControlPort("", address, *meant).call(method, path)
