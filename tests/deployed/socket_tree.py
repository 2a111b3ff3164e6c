"""A deployed tree whose nodes are objects of one process and talk over real sockets, with TLS."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from covey.deployed.node.assemble import TreeMember, check, node_of, tree_members
from covey.deployed.node.disk import Disk
from covey.deployed.node.node import Node
from covey.deployed.node.tree_runtime import TreeRuntime
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.grpc_options import Limits
from covey.deployed.transport.grpc_port import GrpcPort
from covey.deployed.transport.grpc_transport import GrpcTransport, listed
from covey.deployed.transport.transport import Handler, Patience, Seat
from covey.runs.experiment import Experiment
from covey.runs.parts import Parts

FINGERPRINT = "fingerprint"


class _Late:
    """The admission of a parent whose node is made after its transport."""

    node: Node

    def refusal(self, seat: Seat, last_key: str | None) -> str | None:
        return self.node.refusal(seat, last_key)


class SocketTree:
    """Makes the runtime of a run. `host` children of a parent share a process, and so a stream."""

    def __init__(
        self,
        folder: Path,
        certificates: Path | None,
        host: int = 1,
        limits: Limits | None = None,
        wrap: Callable[[str, Seat, Handler], Handler] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`wrap` gets the tier, the seat and the handler of every node that dials."""
        self.wrap = wrap
        self.patience = patience
        self.folder = folder
        self.host = host
        self.limits = limits or Limits(held=0, held_requests=1)  # some answers wait in a file
        self.nodes: dict[tuple[str, int], Node] = {}
        self.transports: list[GrpcTransport] = []
        self.ports: list[tuple[GrpcPort, threading.Thread]] = []
        self.errors: list[BaseException] = []
        self.authority: Authority | None = None
        if certificates is not None:
            self.authority = Authority(certificates)
            if not (certificates / "ca.pem").exists():
                Authority.create(certificates)

    def check(self, experiments: Sequence[Experiment]) -> None:
        check(experiments)

    def make(self, parts: Parts) -> TreeRuntime:
        self.close()
        facts = tree_members(parts.tree, parts.data)
        for tier in parts.tree.tiers:
            for number in range(parts.tree.size(tier)):
                self._node(parts, tier, number, facts[tier][number])
        for (tier, number), node in list(self.nodes.items()):
            below = parts.tree.below(tier)
            if below is not None:
                self.dial(tier, number, below, list(node.asks.seats))
        return TreeRuntime(parts.tree, self.nodes[parts.tree.tiers[0], 0])

    def _identity(self, name: str, seats: Sequence[str]) -> Identity | None:
        if self.authority is None:
            return None
        folder = self.authority.folder / name
        if name == "server0":  # where the server stands is signed by the seat "server"
            seats = ["server", *seats]
        if not folder.exists():
            self.authority.issue(name, seats=seats, holders="keep")  # a seat may dial, and listen
        return Identity(folder)

    def _node(self, parts: Parts, tier: str, number: int, facts: TreeMember) -> None:
        """A node with its disk and, if it has children, an address at which they dial."""
        disk = Disk(self.folder / f"{tier}{number}" / "node.sqlite", "process")
        below = parts.tree.below(tier)
        identity = self._identity(f"{tier}{number}", [f"{tier}{number}"])
        transport = None
        admission = _Late()
        if below is not None:
            place = facts.place
            first = place.first_child
            transport = GrpcTransport(
                "127.0.0.1:0",
                listed(below, range(first, first + place.children)),
                fingerprint=FINGERPRINT,
                identity=identity,
                admission=admission,
                limits=self.limits,
                folder=disk.path.parent,
            )
            self.transports.append(transport)
        patience = None
        if below == parts.tree.tiers[-1]:
            patience = self.patience
        node = node_of(
            parts, facts, disk, transport=transport, patience=patience, identity=identity
        )
        admission.node = node
        self.nodes[tier, number] = node

    def dial(self, tier: str, number: int, below: str, children: list[int]) -> None:
        """Let the children of a node dial it, in groups of `host`."""
        parent: Any = self.nodes[tier, number].asks.transport
        for start in range(0, len(children), self.host):
            group = children[start : start + self.host]
            seats = listed(below, iter(group))
            name = f"{below}{group[0]}"
            if len(group) > 1:
                name = f"host-{below}{group[0]}-{len(group)}"
            port = GrpcPort(
                parent.address,
                f"{tier}{number}",
                seats,
                fingerprint=FINGERPRINT,
                identity=self._identity(name, list(seats)),
                last_key=lambda name: self.nodes[below, int(name[len(below) :])].database.last_key,
                limits=self.limits,
            )
            handlers: dict[Seat, Handler] = {}
            for seat in group:
                handlers[seat] = self.nodes[below, seat].answer
                if self.wrap is not None:
                    handlers[seat] = self.wrap(below, seat, handlers[seat])
            thread = threading.Thread(target=self._serve, args=(port, handlers), daemon=True)
            self.ports.append((port, thread))
            thread.start()

    def _serve(self, port: GrpcPort, handlers: dict[Seat, Any]) -> None:
        try:
            port.serve(handlers)
        except BaseException as error:
            self.errors.append(error)
            for transport in self.transports:  # nobody waits for a node that is gone
                transport.close()

    def close(self) -> None:
        for port, _ in self.ports:
            port.close()
        for _, thread in self.ports:
            thread.join(10)
        for transport in self.transports:
            transport.close()
        for node in self.nodes.values():
            node.database.close()
        self.ports.clear()
        self.transports.clear()
        self.nodes.clear()
