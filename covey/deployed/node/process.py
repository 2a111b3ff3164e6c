"""One process of a deployed tree: the nodes of its seats, from start to drain."""

from __future__ import annotations

import json
import logging
import mmap
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.data import Shards
from covey.deployed.faults import arm_fault
from covey.deployed.memory import give_back_free
from covey.deployed.node.assemble import (
    MAX_VALUE,
    TreeMember,
    check,
    check_size,
    node_of,
    tree_members,
)
from covey.deployed.node.disk import Disk, DiskAdmission
from covey.deployed.node.disk_store import LARGE
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import as_bytes, sealed_error
from covey.deployed.node.own_models import DISK
from covey.deployed.node.server_run import finish, server_run
from covey.deployed.node.tree_runtime import VERSIONS, TreeRuntime
from covey.deployed.operate.certificates import Identity
from covey.deployed.operate.control import Control, drained
from covey.deployed.operate.events import EventLog
from covey.deployed.operate.progress import Progress
from covey.deployed.plan.process import Process
from covey.deployed.plan.seats import NamedSeat
from covey.deployed.transport.grpc_options import Limits, say
from covey.deployed.transport.socket_bytes import counted
from covey.deployed.transport.transport import AskKey, Handler, Seat, Transport
from covey.errors import ConfigError, TransportError
from covey.links.spec import wires
from covey.runs import models
from covey.runs.experiment import Experiment
from covey.runs.parts import Parts, module_of, training_data
from covey.runs.run import Run
from covey.runs.saved.fingerprint import program_fingerprint
from covey.runs.saved.lock import locked
from covey.runs.saved.run_folder import Folder
from covey.runs.scores.record import Round

if TYPE_CHECKING:
    from covey.deployed.transport.grpc_transport import GrpcTransport


def parts_of(experiment: Experiment) -> Parts:
    """What the nodes of an experiment are made of."""
    check([experiment])
    tree, _ = experiment.algorithm.fit(experiment.tree)
    links = wires(experiment.codec, tree.links)
    start = experiment.initial()[None]
    data = training_data(experiment, ())
    module = experiment.model
    if any(
        tensor.dtype != experiment.dtype for tensor in (*module.parameters(), *module.buffers())
    ):
        module = module_of(experiment)  # a copy; a large module is none, as nothing else uses it
    return Parts(experiment, module, start, tree, data, links)


def _short(answer: Handler) -> Handler:
    """A handler that answers with an error in place of bytes that cannot be sent."""

    def answered(key: AskKey, common: bytes, own: bytes) -> bytes:
        data = answer(key, common, own)
        if len(data) <= MAX_VALUE:
            return data
        text = f"the answer to {key.program} has {len(data)} bytes, more than {MAX_VALUE}."
        return sealed_error(key.lane, TransportError.__name__, text)

    return answered


def fingerprint_of(experiment: Experiment, initial: Tensor) -> str:
    """What all nodes of a run must have in common, as one hash; `initial` is the first row."""
    facts = json.dumps(program_fingerprint(experiment, initial), sort_keys=True)
    return sha256(facts.encode()).hexdigest()


@dataclass(eq=False)
class Member:
    """A process that is about to run: its nodes, its progress, its log and its control port."""

    process: Process
    parts: Parts
    identity: Identity | None
    """Its certificate; None: the tree has none, and is on loopback alone."""
    log: EventLog
    own_data: Mapping[str, Shards] = field(default_factory=dict)
    """The data of devices that take no part of the experiment's data, by seat."""
    before_first: Callable[[], None] = lambda: None
    """Done once, before the first request. A process that its parent refuses gets none."""
    jump: int = 0
    """How many rounds from its disk the server may stand, once, as the operator says."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.process.name, self.process.tier)
        self._stack = ExitStack()
        self._members: dict[str, list[TreeMember]] = tree_members(self.parts.tree, self.parts.data)
        self._fingerprint = fingerprint_of(self.parts.experiment, self.parts.start[0])
        self._to_children: GrpcTransport | None = None
        self._disks: dict[str, Disk] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """With a control port and signals that drain; everything is closed at the end."""
        process = self.process
        identity = self.identity
        with self._stack:
            try:
                self._lock_state()
                control = Control(
                    self.progress,
                    host=process.control_host,
                    port=process.control_port,
                    identity=identity,
                    log=self.log,
                    state=Path(process.state),
                    evict=self.evict,
                    admit=self.admit,
                )
                self._stack.callback(control.close)
                self._stack.enter_context(drained(self.progress, self.log))
                if identity is not None:
                    self.progress.certificate_left = identity.seconds_left
                sockets = counted(process.listen, process.parent)
                self.progress.sockets = self._stack.enter_context(sockets)
                self.log.info("started", seats=process.seats)
                yield
            except Exception as error:
                self.log.error("failed", kind=type(error).__name__, text=str(error))
                raise
            self.progress.ended = True
            self.log.info("ended")

    def _lock_state(self) -> None:
        """Lock the folder of the disks until this process ends, and say there who it is."""
        state = Path(self.process.state)
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        busy = f"another process runs on the disks in {state}; end it, or give another state"
        try:
            file = self._stack.enter_context(locked(Folder(state).lock_file, busy))
        except ConfigError as error:  # systemd tries again: the other process may end
            raise TransportError(str(error)) from None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        text = f"(process {os.getpid()} on {platform.node()}, since {now})\n"
        with suppress(OSError):  # a full disk: the first ask says so
            file.truncate(0)
            os.write(file.fileno(), text.encode())

    def close(self) -> None:
        """Close disks and connections."""
        self._stack.close()

    def node(self, seat: NamedSeat) -> Node:
        """The node of a seat, with its disk, and with the way to its children."""
        process = self.process
        disk = Disk(Path(process.state) / seat.name / DISK, process.durability)
        self._stack.callback(disk.close)
        self._disks[seat.name] = disk
        if seat.children:
            disk.seat_children(self._children(seat))
        admission = DiskAdmission(disk)
        transport = self._transport(seat, admission)
        facts = self._members[seat.tier][seat.number]
        parts = self.parts
        if seat.name in self.own_data:
            parts = replace(parts, data=self.own_data[seat.name])
        bounds = process.norm_bounds
        node = node_of(
            parts,
            facts,
            disk,
            transport=transport,
            patience=process.patience,
            norm_bounds={
                number: bounds[name]
                for name, number in self._children(seat).items()
                if name in bounds
            },
            drops_diverged=process.diverged == "drop",
            shares_rows=process.share_rows or process.parent is None,
            identity=self.identity,
            jump=self.jump,
        )
        admission.node = node
        if process.aggregates:  # it holds no model in memory, and has this node alone
            self.parts = mapped_parts(self.parts, Path(process.state))
            share(node, self.parts)
            give_back_free()
        return node

    def serve(self) -> None:
        """Answer the parent until the process is drained."""
        first = threading.Lock()

        def once(handle: Handler) -> Handler:
            """A handler that waits until what is done before the first request is done."""

            def handled(key: AskKey, common: bytes, own: bytes) -> bytes:
                with first:
                    self.before_first()
                    self.before_first = lambda: None
                return handle(key, common, own)

            return handled

        handlers: dict[Seat, Handler] = {}
        for seat in self.process.nodes:
            answer = once(_short(self.node(seat).answer))
            handlers[seat.number] = self.progress.handler(seat.name, answer)
        from covey.deployed.transport.grpc_port import GrpcPort

        process = self.process
        assert process.parent is not None
        port = GrpcPort(
            process.parent,
            str(process.nodes[0].parent),
            {seat.name: seat.number for seat in process.nodes},
            fingerprint=self._fingerprint,
            identity=self.identity,
            last_key=lambda name: self._disks[name].last_key,
        )

        def close_when_drained() -> None:
            self.progress.wait_for_drain()
            port.close()

        closer = threading.Thread(target=close_when_drained, daemon=True)
        closer.start()
        self.progress.connected = lambda: port.connected
        self.progress.started = True
        arm_fault()
        try:
            port.serve(handlers)
        finally:
            self.progress.drain()
            closer.join()

    def run(self) -> Run:
        """The server's run; where its disk has one, the rest of it."""
        run = server_run(self.parts.experiment, self)
        # Models that no checkpoint can have are refused before anybody trains.
        best = 2 * len(models.names(run.runtime))  # rounds of each: a regular one, a final one
        check_size(self.parts.start.nbytes, 1 + best)
        for template in run.runtime.kept().values():
            check_size(template.itemsize * template.shape[1:].numel(), VERSIONS)
        self.progress.started = True
        return run

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse what a deployed tree cannot run."""
        check(experiments)

    def make(self, parts: Parts) -> TreeRuntime:
        """The runtime of the run, with the server's node."""
        self.parts = parts
        return TreeRuntime(parts.tree, self.node(self.process.nodes[0]))

    def rounds(self, run: Run) -> Iterator[Round]:
        """Every round that is left, or until the process is drained; the last one is good too."""
        arm_fault()
        for record in run:
            self.log.info("round", round=record.round + 1, seconds=round(record.seconds, 3))
            self.progress.ended_round(record)
            yield record
            if self.progress.draining:
                break
        finish(run)

    def _transport(self, seat: NamedSeat, admission: DiskAdmission) -> Transport | None:
        """The way to the children of a seat, watched."""
        if not seat.children:
            return None
        from covey.deployed.transport.grpc_transport import GrpcTransport

        process = self.process
        assert process.listen is not None
        ids = self._children(seat)
        transport = GrpcTransport(
            process.listen,
            ids,
            fingerprint=self._fingerprint,
            identity=self.identity,
            admission=admission,
            evicted_before=admission.evicted,
            remember=admission.remember,
            limits=Limits(strikes=process.strikes),
            folder=Path(process.state),
        )
        self._stack.callback(transport.close)
        self._to_children = transport
        self.progress.knocks = transport.knocks
        names = {number: name for name, number in ids.items()}
        return self.progress.transport(names, transport, transport.evicted, transport.turned_away)

    def _children(self, seat: NamedSeat) -> dict[str, Seat]:
        """The ids of the children of a seat, by name."""
        place = self._members[seat.tier][seat.number].place
        numbers = range(place.first_child, place.first_child + place.children)
        return dict(zip(seat.children, numbers, strict=True))

    def evict(self, name: str) -> None:
        """Put a child out of its seat."""
        if self._to_children is not None:
            self._to_children.evict(name)
        self.log.warning("evicted", seat=name)

    def admit(self, name: str) -> None:
        """Let a child that was evicted take its seat again."""
        if self._to_children is not None:
            self._to_children.admit(name)
        self.log.info("admitted", seat=name)


# The model of a process that only aggregates lies in files that are mapped into memory. Such a
# process computes with rows, and hardly ever with the parameters of its module or with the initial
# row. Memory holds the pages of the files that somebody has read.


def mapped_parts(parts: Parts, folder: Path) -> Parts:
    """The parts of nodes, with large parameters that train and the initial row in files.

    The files have no names: they are gone when the process ends.
    """
    for parameter in parts.module.parameters():
        if parameter.requires_grad:
            parameter.data = mapped_tensor(parameter.data, folder)
    return replace(parts, start=mapped_tensor(parts.start, folder))


def share(node: Node, parts: Parts) -> None:
    """Let a node use the parameters and the initial row of its process, instead of copies."""
    own = dict(node.task.space.module.named_parameters())
    for name, parameter in parts.module.named_parameters():
        copied = own[name]
        if parameter.requires_grad and parameter.dtype == copied.dtype:
            copied.data = parameter.data
    if parts.start.dtype == node.start.dtype:
        node.start = parts.start


def mapped_tensor(tensor: Tensor, folder: Path) -> Tensor:
    """A large tensor's numbers in a file of a folder; writing to them changes memory alone.

    Where the folder takes no file, as on a full disk, the tensor stays in memory, which is logged.

    >>> mapped_tensor(torch.ones(2), Path())
    tensor([1., 1.])
    """
    if tensor.nbytes <= LARGE or tensor.device.type != "cpu":
        return tensor
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(as_bytes(tensor))
            file.flush()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        text = f"a part of the model stays in memory, since {folder} takes no file: {error}"
        say(logging.WARNING, "model_held", text)
        return tensor
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
