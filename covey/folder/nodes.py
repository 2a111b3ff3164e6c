"""A node of a run's tree, as a user names it: pump-03, harbour, d17, e3, edge-3, edge3, server."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from covey.data.shards import some
from covey.errors import ConfigError
from covey.fields import nearest
from covey.folder.load import Loaded

_SHORT = re.compile(r"([de])(\d{1,9})")
_LONG = re.compile(r"([a-z]\w*?)-?(\d{1,9})")
_LETTERS = {"d": "device", "e": "edge"}


@dataclass(frozen=True)
class NodeAddress:
    """One node: its tier, its number in that tier, what it is called."""

    tier: str
    number: int
    name: str

    @property
    def code(self) -> str:
        """A short name that no other node of the tree has: d17, e3, server."""
        if self.tier == "server":
            return "server"
        if self.tier in _LETTERS.values():
            return f"{self.tier[0]}{self.number}"
        return f"{self.tier}-{self.number}"


def find(run: Loaded, text: str) -> NodeAddress:
    """The node that a user means, by its name or its number: 17 and d17 are the same device.

    An error if there is none, or if there are two.
    """
    tiers = run.tree.tiers
    named = [node for tier in tiers for node in nodes(run, tier) if node.name == text]
    if len(named) > 1:
        codes = " or ".join(node.code for node in named)
        raise ConfigError(f"--node {text}: two nodes have this name; write {codes}.")
    if named:
        return named[0]
    tier, number = tiers[-1], text
    if match := _SHORT.fullmatch(text):
        tier, number = _LETTERS[match[1]], match[2]
    elif match := _LONG.fullmatch(text):
        tier, number = match[1], match[2]
    elif text == tiers[0]:
        tier, number = text, "0"
    if tier not in tiers or not (number.isascii() and number.isdigit()):
        known = {tier: [node.name for node in nodes(run, tier)] for tier in tiers}
        near = nearest(text, [name for names in known.values() for name in names])
        listed = "; ".join(f"{tier}s {some(known[tier])}" for tier in tiers[1:])
        raise ConfigError(
            f"--node {text}: there is no such node{near}; there are {tiers[0]}; {listed}."
        )
    size = run.tree.size(tier)
    if int(number) >= size:
        raise ConfigError(f"--node {text}: this run has the {tier}s 0 to {size - 1}.")
    return nodes(run, tier)[int(number)]


def nodes(run: Loaded, tier: str) -> list[NodeAddress]:
    """All nodes of a tier, in order."""
    tiers = run.tree.tiers
    size = run.tree.size(tier)
    names: tuple[str, ...] = ()  # what the data calls them
    if tier == tiers[-1]:
        names = run.names.devices
    elif tier == tiers[-2] and len(tiers) > 2:
        names = run.names.edges
    if len(names) != size:
        return [NodeAddress(tier, k, NodeAddress(tier, k, "").code) for k in range(size)]
    return [NodeAddress(tier, k, name) for k, name in enumerate(names)]


def devices_under(run: Loaded, node: NodeAddress) -> range:
    """The numbers of the devices under a node; a device's own number."""
    first, stop = run.tree.span(node.tier, torch.tensor([node.number]))
    return range(int(first), int(stop))
