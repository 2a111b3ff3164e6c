"""A deployed tree on machines of its own: planned, started and watched as an operator would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.deployed.files.deployment import deployable
from covey.deployed.node.disk import Disk
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import captured_in, missing_of
from covey.files.config import load
from covey.folder.recording import write_models
from covey.runs.experiment import Experiment
from covey.runs.run import Run
from covey.runs.saved.run_folder import RunFolder
from covey.runs.seed import Seed
from tests.cli.command import ROOT, exits
from tests.deployed.members import call
from tests.deployed.namespaces import SWITCH, Machines
from tests.deployed.proxy import Proxy
from tests.given import drained, played

EDGES = 3
DEVICES = 12
NAMES = [
    "server",
    *(f"edge{number}" for number in range(EDGES)),
    *(f"device{number}" for number in range(DEVICES)),
]
PORT = 8443
CONTROL_PORT = 9443
START = 300.0
"""Seconds in which all processes must have joined: many share two cores."""

COMMON = """
name = "network"
rounds = {rounds}
score_every = 2
{settings}
[algorithm]
{algorithm}
[data]
name = "digits"
devices = {devices}
labels = 3
[model]
name = "linear"
[tree]
edges = {edges}
[deploy]
state = "{state}"
{deploy}
[deploy.address]
{addresses}
"""

Row = tuple[int, Tensor]
"""The round in which a row was kept, and the row."""
Kept = dict[tuple[str, str, str, int], Row]
"""What nodes keep and hold, by tier, name, label and number."""


class Fleet:
    """The processes of one tree, each on its own machine; use it as a context."""

    def __init__(
        self,
        folder: Path,
        machines: Machines,
        algorithm: str,
        *,
        flat: bool = False,
        proxies: bool = False,
        rounds: int = 4,
        settings: str = "",
        deploy: str = "",
    ) -> None:
        """`algorithm`, `settings` and `deploy` are lines of the file; `flat`: without edges.

        With `proxies`, every child reaches its parent through a proxy of its own at the switch.
        """
        self.folder = folder
        self.machines = machines
        self.file = folder / "tree.toml"
        self.plan = folder / "plan"
        self.state = folder / "state"
        self.rounds = rounds
        self.names = [name for name in NAMES if not (flat and name.startswith("edge"))]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.proxies: dict[str, Proxy] = {}
        self._through_proxies = proxies
        parents = [name for name in self.names if not name.startswith("device")]
        addresses = [f'{name} = "{machines.addresses[name]}:{PORT}"' for name in parents]
        text = COMMON.format(
            rounds=rounds, settings=settings, algorithm=algorithm, devices=DEVICES, edges=EDGES,
            state=self.state, deploy=deploy, addresses="\n".join(addresses),
        )  # fmt: skip
        self.file.write_text(text, encoding="utf-8")
        planned = exits(0, "deploy", "plan", self.file, "--issue", "--out", self.plan, "--json")
        assert sorted(json.loads(planned.out)["processes"]) == sorted(self.names)

    # Processes

    def __enter__(self) -> Fleet:
        try:
            for name in self.names:
                if self._through_proxies and name != "server":
                    self.proxies[name] = self._proxy(name)
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _proxy(self, name: str) -> Proxy:
        """What a child dials instead of its parent."""
        target = f"{self.machines.addresses[self.parent(name)]}:{PORT}"
        seed = self.names.index(name)
        return Proxy(target, SWITCH, self.machines.inside, seed)

    def parent(self, name: str) -> str:
        """The name of a node's parent."""
        edges = [other for other in self.names if other.startswith("edge")]
        if not name.startswith("device") or not edges:
            return "server"
        number = int(name.removeprefix("device"))
        return f"edge{number * EDGES // DEVICES}"

    def children(self, name: str) -> list[str]:
        """The names of a node's children."""
        return [other for other in self.names if other != "server" and self.parent(other) == name]

    def start(self, name: str) -> None:
        """Start the process of a node on its machine."""
        words = [*self.machines.command(name), sys.executable, "-m", "covey", "node"]
        words.append(str(self.plan / name / "node.toml"))
        if name in self.proxies:
            words += ["--parent", self.proxies[name].address]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End everything that still runs."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 30
        for process in self.processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for proxy in self.proxies.values():
            proxy.close()

    # Looking

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / f"{name}.jsonl"

    def events(self, name: str, event: str | None = None) -> list[dict[str, Any]]:
        """What a process has logged, perhaps of one kind alone."""
        out = []
        for line in self.log(name).read_text(encoding="utf-8").splitlines():
            if line.startswith("{") and line.endswith("}"):
                entry = json.loads(line)
                if event in (None, entry["event"]):
                    out.append(entry)
        return out

    def left(self, parent: str, child: str, since: float) -> float | None:
        """When a parent has logged that a child is gone; None: it has not."""
        for event in self.events(parent, "left"):
            if event["text"].startswith(f"left: {child} ") and seconds_of(event) > since:
                return seconds_of(event)
        return None

    def status(self, name: str) -> dict[str, Any]:
        """What the control port of a node says, asked on its machine."""
        with self.machines.inside(name):
            out: dict[str, Any] = json.loads(call("GET", ("127.0.0.1", CONTROL_PORT), "/status"))
        return out

    def order(self, name: str, order: str) -> None:
        """Let the control port of a node obey, on its machine."""
        with self.machines.inside(name):
            call("POST", ("127.0.0.1", CONTROL_PORT), f"/{order}")

    def seat_states(self, name: str) -> dict[str, str]:
        """What a node's status says of its children, by name."""
        return {seat["seat"]: seat["state"] for seat in self.status(name)["seats"]}

    def done(self) -> int:
        """The number of rounds that the server has logged."""
        return len(self.events("server", "round"))

    def wait_rounds(self, count: int, seconds: float = START) -> None:
        """Until the server has ended so many rounds."""
        self.until(lambda: self.done() >= count, seconds, f"{count} rounds")

    def go_on(self, until: float, most: int) -> None:
        """Let rounds go on until this time; after so many of them the server pauses.

        A run must not end while somebody is away.
        """
        last = self.done() + most
        while time.time() < until and self.done() < last:
            time.sleep(0.05)
        self.order("server", "pause")
        time.sleep(max(0.0, until - time.time()))

    def wait_end(self, seconds: float = START) -> None:
        """Until the server's process has ended, and well."""
        server = self.processes["server"]
        self.until(lambda: server.poll() is not None, seconds, "the end")
        assert server.returncode == 0, self.last_words()
        assert self.done() == self.rounds

    def until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until this holds; a process that ends meanwhile is an error, except the server."""
        end = time.monotonic() + seconds
        while not holds():
            ended = [name for name, one in self.processes.items() if one.poll() not in (None, 0)]
            assert not ended, f"{ended} ended: {self.last_words(*ended)}"
            assert time.monotonic() < end, f"no {what} in {seconds:g} s: {self.last_words()}"
            time.sleep(0.1)

    def last_words(self, *names: str) -> str:
        """The last lines of some logs, or of all."""
        lines = []
        for name in names or self.names:
            if self.log(name).exists():
                tail = self.log(name).read_text(encoding="utf-8").splitlines()[-3:]
                lines += [f"{name}: {line[:400]}" for line in tail]
        return "\n".join(lines)

    # Results

    def experiment(self) -> Experiment:
        """The experiment of the file, as its tree runs it."""
        config = deployable(load(self.file, []))
        return config.experiment(config.seed)

    def disk(self, name: str) -> Disk:
        """The disk of a node."""
        return Disk(self.state / name / name / "node.sqlite")

    def simulated(self) -> Run:
        """The same experiment in the simulator."""
        return played(self.experiment())

    def replayed(self) -> Run:
        """The deployed run again in the simulator, with the same nodes late and absent."""
        return drained(replay(self.experiment(), self.missing()))

    def missing(self) -> list[Any]:
        """Who did not answer, as the server's disk has it."""
        disk = self.disk("server")
        out = missing_of(disk)
        disk.close()
        return out

    def differences(self, run: Seed) -> list[str]:
        """Where the tree differs in a bit from a run: rows, memory, meter, history, models."""
        out = differing_rows(self.kept(), kept(run))
        disk = self.disk("server")
        captured = captured_in(disk)
        records = [json.loads(record) for record in disk.records()]
        disk.close()
        assert captured is not None
        own = run.captured()
        for name, tensor in own.tensors.items():
            if not torch.equal(captured.tensors[name], tensor):
                out.append(f"the server's {name}")
        out += differing_records(records, run)
        captured.facts["meter"].sort()
        for fact, value in _plain(own.facts | {"meter": sorted(own.facts["meter"])}).items():
            if captured.facts[fact] != value:
                out.append(f"the server's {fact}: {captured.facts[fact]} is not {value}")
        assert self._lines() == len(records)
        return out + self._differing_models(run)

    def _lines(self) -> int:
        path = self.state / "server" / "run" / "metrics.jsonl"
        return len(path.read_text(encoding="utf-8").splitlines())

    def _differing_models(self, run: Seed) -> list[str]:
        """The files of models in the server's folder that a run would have written otherwise."""
        other = self.folder / "again"
        folder = RunFolder(other)
        folder.make()
        write_models(folder, run)
        out = []
        own = self.state / "server" / "run"
        paths = sorted(other.rglob("*.safetensors"))
        assert paths
        for path in paths:
            name = path.relative_to(other)
            if (own / name).read_bytes() != path.read_bytes():
                out.append(f"the file {name}")
        return out

    def kept(self) -> Kept:
        """Everything that is on the disks of all nodes."""
        out: Kept = {}
        for name in self.names:
            tier = name.rstrip("0123456789")
            number = int(name.removeprefix(tier) or 0)
            disk = self.disk(name)
            for row in disk.rows(tier, number):
                assert row.row is not None
                out[tier, row.name, row.label, number] = (row.round, row.row)
            disk.close()
        return out


def kept(run: Seed) -> Kept:
    """Everything that the nodes of a run keep and hold."""
    out: Kept = {}
    for frozen in run.runtime.freeze(0):
        for label, entry in frozen.entries.items():
            columns = (entry.ids.tolist(), entry.rounds.tolist(), entry.places.tolist())
            for number, round, place in zip(*columns, strict=True):
                out[frozen.tier, frozen.name, label, number] = (round, frozen.rows[place])
    return out


def differing_rows(left: Kept, right: Kept) -> list[str]:
    """The rows in which two trees differ."""
    out = [f"one of them has {key}" for key in sorted(left.keys() ^ right.keys())]
    for key in sorted(left.keys() & right.keys()):
        if left[key][0] != right[key][0]:
            out.append(f"{key}: round {left[key][0]} is not {right[key][0]}")
        if not torch.equal(left[key][1], right[key][1]):
            out.append(f"{key}: other numbers")
    return out


def differing_records(records: list[dict[str, Any]], run: Seed) -> Iterator[str]:
    """The rounds of which the server's disk has another record than a run."""
    assert len(records) == len(run.history)
    for written, record in zip(records, run.history, strict=True):
        again = _plain(record.as_dict())
        for key in again:
            if key not in ("seconds", "spent") and written[key] != again[key]:
                yield f"{key} of round {again['round'] + 1}"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Values as they come out of JSON."""
    out: dict[str, Any] = json.loads(json.dumps(values))
    return out


def seconds_of(event: dict[str, Any]) -> float:
    """When an event was logged, on the clock of `time.time`."""
    return datetime.fromisoformat(event["time"]).timestamp()
