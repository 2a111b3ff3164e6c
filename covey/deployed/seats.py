"""Seats: the fixed places of a deployed tree, each with a name, a parent and children."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from covey.tree import Tree


@dataclass(frozen=True)
class NamedSeat:
    """One node of a tree by its name: the tier, and its number where the tier is not the top.

    A process may leave a seat and return, also on another machine; the seat stays.
    """

    name: str
    tier: str
    number: int
    parent: str | None = None
    children: tuple[str, ...] = ()


def seat_name(tree: Tree, tier: str, number: int) -> str:
    """The name of a node: "server", "edge3", "device17"."""
    if tier == tree.tiers[0]:
        return tier
    return f"{tier}{number}"


def seats_of(tree: Tree) -> dict[str, NamedSeat]:
    """Every seat of a tree by its name, from the server down.

    >>> list(seats_of(Tree.grouped([1, 2])))
    ['server', 'edge0', 'edge1', 'device0', 'device1', 'device2']
    >>> seats_of(Tree.grouped([1, 2]))["edge1"].children
    ('device1', 'device2')
    """
    seats: dict[str, NamedSeat] = {}
    parents: dict[str, str] = {}
    for tier in tree.tiers:
        below = tree.below(tier)
        for number in range(tree.size(tier)):
            name = seat_name(tree, tier, number)
            children = _children(tree, tier, number, below)
            seats[name] = NamedSeat(name, tier, number, parents.get(name), children)
            parents |= dict.fromkeys(children, name)
    return seats


def _children(tree: Tree, tier: str, number: int, below: str | None) -> tuple[str, ...]:
    """The names of the children of a node."""
    if below is None:
        return ()
    own = torch.tensor([number])
    first = int(tree.first(tier, own))
    count = int(tree.counts(tier, own))
    return tuple(seat_name(tree, below, child) for child in range(first, first + count))
