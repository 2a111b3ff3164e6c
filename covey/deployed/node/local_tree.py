"""A deployed tree whose nodes are objects of one process, each with its disk in a folder.

    run = covey.run(experiment, runtime=LocalTree("nodes"))

It is how tests try what deployed nodes do, without sockets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from covey.deployed.node.assemble import TreeMember, check, node_of, tree_members
from covey.deployed.node.database import Durability
from covey.deployed.node.disk import Disk
from covey.deployed.node.node import Node
from covey.deployed.node.tree_runtime import TreeRuntime
from covey.deployed.transport.local_transport import LocalTransport
from covey.deployed.transport.transport import Patience
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
        self._above: dict[tuple[str, int], LocalTransport] = {}
        """What reaches a node that is not the server."""
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
        below = self._parts.tree.below(tier)
        before = self.nodes.pop((tier, number), None)
        if before is not None:
            before.database.close()
        transport = None
        if below is not None:
            if (tier, number) in self._transports:  # the threads of an old one end
                self._transports[tier, number].close()
            transport = LocalTransport(partial(self.restart, below))
            self._transports[tier, number] = transport
        disk = Disk(self.folder / f"{tier}{number}" / "node.sqlite", self.durability)
        member = self._members[tier][number]
        patience = self.patience.get(tier)
        node = node_of(self._parts, member, disk, transport=transport, patience=patience)
        self.nodes[tier, number] = node
        for child in node.asks.seats:
            if transport is not None and below is not None:
                transport.take(child, self.nodes[below, child].answer)
                self._above[below, child] = transport
        if (tier, number) in self._above:
            self._above[tier, number].take(number, node.answer)
        return node

    def transport_above(self, tier: str, number: int) -> LocalTransport:
        """What reaches a node that is not the server."""
        if (tier, number) not in self._above:
            raise TransportError(f"nobody reaches {tier} {number}.")
        return self._above[tier, number]

    def close(self) -> None:
        """End all threads and let go of all files."""
        for transport in self._transports.values():
            transport.close()
        for node in self.nodes.values():
            node.database.close()
        self._transports.clear()
        self._above.clear()
        self.nodes.clear()
