"""A deployed tree whose nodes are objects of one process, each with its disk in a folder.

    run = covey.run(experiment, runtime=LocalTree("nodes"))

It is how tests try what deployed nodes do, without sockets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.deployed.node.assemble import TreeMember, check, node_of, tree_members
from covey.deployed.node.database import Durability
from covey.deployed.node.disk import Disk
from covey.deployed.node.node import Node
from covey.deployed.node.tree_runtime import TreeRuntime
from covey.deployed.transport.local_transport import LocalTransport
from covey.deployed.transport.transport import Patience, Seat
from covey.errors import TransportError
from covey.runs.experiment import Experiment
from covey.runs.parts import Parts


class LocalTree:
    """Makes the runtime of a run, and every node of it anew where a test drops one."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        durability: Durability = "process",
        patience: Mapping[str, Patience] | None = None,
    ) -> None:
        """`patience` says when nodes go on without some children, by tier of those who ask."""
        self.folder = Path(folder)
        self.durability: Durability = durability
        self.patience = dict(patience or {})
        self.nodes: dict[tuple[str, int], Node] = {}
        self._transports: dict[tuple[str, int], LocalTransport] = {}
        self._members: dict[str, list[TreeMember]] = {}
        self._parts: Parts | None = None

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse what a deployed tree cannot run."""
        check(experiments)

    def make(self, parts: Parts) -> TreeRuntime:
        """The runtime, with a new object for every node."""
        self.close()
        self._parts = parts
        self._members = tree_members(parts.tree, parts.data)
        for tier in reversed(parts.tree.tiers):
            for number in range(parts.tree.size(tier)):
                self.restart(tier, number)
        top = parts.tree.tiers[0]
        return TreeRuntime(parts.tree, self.nodes[top, 0])

    def restart(self, tier: str, number: int) -> Node:
        """Put a new object in place of a node, from its disk."""
        assert self._parts is not None
        tree = self._parts.tree
        before = self.nodes.pop((tier, number), None)
        if before is not None:
            before.database.close()
        facts = self._members[tier][number]
        disk = Disk(self.folder / f"{tier}{number}" / "node.sqlite", self.durability)
        transport = self._transport(tier, number)
        patience = self.patience.get(tier)
        node = node_of(self._parts, facts, disk, transport=transport, patience=patience)
        self.nodes[tier, number] = node
        for child in node.asks.seats:
            below = tree.below(tier)
            if transport is not None and below is not None:
                transport.take(child, self.nodes[below, child].answer)
        above = self._above(tier, number)
        if above is not None:
            above.take(number, node.answer)
        return node

    def _transport(self, tier: str, number: int) -> LocalTransport | None:
        """A new transport to the children of a node; the threads of an old one end."""
        assert self._parts is not None
        below = self._parts.tree.below(tier)
        if below is None:
            return None
        old = self._transports.get((tier, number))
        if old is not None:
            old.close()

        def lost(seat: Seat) -> None:
            self.restart(below, seat)

        self._transports[tier, number] = LocalTransport(lost)
        return self._transports[tier, number]

    def transport_above(self, tier: str, number: int) -> LocalTransport:
        """What reaches a node that is not the server."""
        transport = self._above(tier, number)
        if transport is None:
            raise TransportError(f"nobody reaches {tier} {number}.")
        return transport

    def _above(self, tier: str, number: int) -> LocalTransport | None:
        for (above, parent), transport in self._transports.items():
            node = self.nodes.get((above, parent))
            if node is None or node.place.below(above) != tier:
                continue
            if number in node.asks.seats:
                return transport
        return None

    def close(self) -> None:
        """End all threads and let go of all files."""
        for transport in self._transports.values():
            transport.close()
        for node in self.nodes.values():
            node.database.close()
        self._transports.clear()
        self.nodes.clear()
