"""Seats: the fixed places of a deployed tree, each with a name, a parent and children."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from covey.errors import ConfigError, shown
from covey.fields import nearest
from covey.tree import Tree

Names = Mapping[str, Sequence[str]]
"""The names that a user gave the nodes of a tier, in the order of their numbers, by tier."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""What may stand in a certificate, a host name and a file name alike."""
OPERATOR = "operator"
"""The name in the certificate of who may give orders to the control ports of a tree."""
OBSERVER = "observer"
"""The name in the certificate of who may look at them, and order nothing."""


@dataclass(frozen=True)
class NamedSeat:
    """One node of a tree by its name, which a user gave or which is its tier and its number.

    A process may leave a seat and return, also on another machine; the seat stays.
    """

    name: str
    tier: str
    number: int
    parent: str | None = None
    children: tuple[str, ...] = ()


def is_name(name: str) -> bool:
    """Whether a certificate can name it.

    >>> is_name("device17"), is_name("../up")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Refuse what cannot name a seat or a process."""
    if not is_name(name):
        fix = "use up to 63 lower-case letters, digits and -"
        raise ConfigError(f"{shown(name)} cannot name a seat or a process; {fix}.")
    if name in (OPERATOR, OBSERVER):
        rule = "its certificate would open the control ports of all nodes"
        raise ConfigError(f"{name!r} cannot name a seat or a process: {rule}; rename it.")


def names_of(tree: Tree, given: Names) -> dict[str, list[str]]:
    """The names of all nodes, by tier: those given, or else "server", "edge3", "device17".

    >>> names_of(Tree.grouped([1, 1]), {"device": ["pump-a", "pump-b"]})["device"]
    ['pump-a', 'pump-b']
    """
    top = tree.tiers[0]
    for tier in given:
        if tier == top or tier not in tree.tiers:
            tiers = ", ".join(tree.tiers[1:])
            raise ConfigError(f"deploy.names.{tier}: only nodes of {tiers} can be named.")
    out = {top: [top]}
    for tier in tree.tiers[1:]:
        size = tree.size(tier)
        names = list(given.get(tier, [f"{tier}{number}" for number in range(size)]))
        if len(names) != size:
            fix = "name each of them once, or leave the list out"
            raise ConfigError(f"deploy.names.{tier} has {len(names)} names of {size}; {fix}.")
        out[tier] = names
    seen: set[str] = set()
    for name in (name for names in out.values() for name in names):
        check_name(name)
        if name in seen:
            raise ConfigError(f"deploy.names: two seats are called {name!r}; rename one.")
        seen.add(name)
    return out


def seats_of(tree: Tree, given: Names | None = None) -> dict[str, NamedSeat]:
    """Every seat of a tree by its name, from the server down; `given` are names of a user.

    >>> list(seats_of(Tree.grouped([1, 2])))
    ['server', 'edge0', 'edge1', 'device0', 'device1', 'device2']
    >>> seats_of(Tree.grouped([1, 2]))["edge1"].children
    ('device1', 'device2')
    """
    names = names_of(tree, given or {})
    seats: dict[str, NamedSeat] = {}
    parents: dict[str, str] = {}
    for tier in tree.tiers:
        numbers = torch.arange(tree.size(tier))
        below = tree.below(tier)
        rest = iter(names[below] if below is not None else ())
        counts = tree.counts(tier, numbers).tolist()
        for number, (name, count) in enumerate(zip(names[tier], counts, strict=True)):
            children = tuple(islice(rest, count))
            seats[name] = NamedSeat(name, tier, number, parents.get(name), children)
            parents |= dict.fromkeys(children, name)
    return seats


def seats_in(tree: Tree, wanted: Sequence[str], names: Names | None = None) -> list[NamedSeat]:
    """The seats of these names; an error where the tree has none of such a name."""
    seats = seats_of(tree, names)
    for name in wanted:
        if name not in seats:
            raise ConfigError(f"this tree has no seat {name!r}{nearest(name, seats)}: {tree}.")
    return [seats[name] for name in wanted]


def names_by_tier(seats: Mapping[str, NamedSeat]) -> dict[str, list[str]]:
    """The names of all seats, by tier from the server down."""
    out: dict[str, list[str]] = {}
    for name, seat in seats.items():
        out.setdefault(seat.tier, []).append(name)
    return out
