"""Who is under whom: a server, any number of tiers of edges, devices; and who of them is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from covey import draws
from covey.errors import TreeError

Sample = int | float | None
"""How many children a node asks: a number, a fraction of them (at least one), or None for all."""


class Topology(ABC):
    """What a runtime asks about a tree.

    A node of a deployed tree knows of it only its own place and what it was told.
    """

    tiers: tuple[str, ...]
    copies: int

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The number of nodes of each tier, from the server down."""

    @abstractmethod
    def counts(self, tier: str, ids: Tensor) -> Tensor:
        """How many children each of these nodes has, [n]."""

    @abstractmethod
    def first(self, tier: str, ids: Tensor) -> Tensor:
        """The id of each node's first child, [n]; children of one node have consecutive ids."""

    @abstractmethod
    def widest(self, tier: str) -> int:
        """The most children that any node of a tier has; 0 for devices."""

    @abstractmethod
    def span(self, tier: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The first device under each of these nodes and the one after its last, [n] each."""

    @abstractmethod
    def picks(self, tier: str, sample: int | float) -> Tensor:
        """How many children every node of a tier asks under `sample`; an error where there are not
        so many.
        """

    @property
    def depth(self) -> int:
        """The number of tiers."""
        return len(self.tiers)

    @property
    def devices(self) -> int:
        """The number of leaves."""
        return self.sizes[-1]

    @property
    def links(self) -> tuple[str, ...]:
        """The names of the links, "server-edge" and so on, from the top."""
        return tuple(map("-".join, pairwise(self.tiers)))

    def size(self, tier: str) -> int:
        """The number of nodes of a tier."""
        return self.sizes[self.index(tier)]

    def index(self, tier: str) -> int:
        """The position of a tier, the server being 0."""
        if tier not in self.tiers:
            raise TreeError(
                f"this tree has the tiers {', '.join(self.tiers)}; there is no tier {tier!r}."
            )
        return self.tiers.index(tier)

    def below(self, tier: str) -> str | None:
        """The name of the next tier down, None under the devices."""
        at = self.index(tier) + 1
        return self.tiers[at] if at < self.depth else None

    def copy(self, tier: str, ids: Tensor) -> Tensor:
        """In which copy of the tree each node stands, [n]."""
        return ids // (self.size(tier) // self.copies)

    def local(self, tier: str, ids: Tensor) -> Tensor:
        """Each node's id within its own copy of the tree, [n]."""
        return ids if self.copies == 1 else ids % (self.size(tier) // self.copies)

    def cohort(
        self, tier: str, ids: Tensor, *, sample: Sample, address: draws.Address
    ) -> tuple[Tensor, Tensor]:
        """Who is asked by these nodes: (position of the asker in `ids`, child id), sorted by child."""
        counts = self.counts(tier, ids)
        if sample is None:
            position = torch.repeat_interleave(torch.arange(len(ids)), counts)
            number = torch.arange(len(position)) - (torch.cumsum(counts, 0) - counts)[position]
        else:
            picks = self.picks(tier, sample)[ids]
            position, number = draws.choose(
                address, self.local(tier, ids), sizes=counts, picks=picks
            )
        return position, self.first(tier, ids)[position] + number


@dataclass(frozen=True)
class Tree(Topology):
    """A tree as child counts: `children[t][i]` is the number of children of node i of tier t. Ids
    count within a tier.

    >>> Tree.grouped([2, 3])
    Tree: 1 server, 2 edges, 5 devices
    >>> Tree.uniform(2, 3, 4).sizes
    (1, 2, 6, 24)
    """

    children: tuple[tuple[int, ...], ...]
    tiers: tuple[str, ...] = ()
    copies: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(tuple(counts) for counts in self.children))
        object.__setattr__(self, "tiers", tuple(self.tiers) or _names(len(self.children) + 1))
        self._check()

    @classmethod
    def flat(cls, devices: int) -> Tree:
        """Devices directly under the server."""
        return cls(((devices,),))

    @classmethod
    def grouped(cls, sizes: Sequence[int]) -> Tree:
        """One edge per entry, with that many devices; consecutive devices share an edge."""
        return cls(((len(sizes),), tuple(sizes)))

    @classmethod
    def uniform(cls, *fan: int, tiers: Sequence[str] = ()) -> Tree:
        """Every node of tier t has fan[t] children."""
        counts, size = [], 1
        for width in fan:
            counts.append((width,) * size)
            size *= width
        return cls(tuple(counts), tuple(tiers))

    def times(self, copies: int) -> Tree:
        """This tree several times over, side by side: one for each seed of a run of many."""
        return Tree(tuple(counts * copies for counts in self.children), self.tiers, copies)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of nodes of each tier, from the server down."""
        return (self.copies, *(sum(counts) for counts in self.children))

    def counts(self, tier: str, ids: Tensor) -> Tensor:
        """How many children each of these nodes has, [n]."""
        at = self.index(tier)
        return self._counts[at][ids] if at < self.depth - 1 else torch.zeros_like(ids)

    def widest(self, tier: str) -> int:
        """The most children that any node of a tier has; 0 for devices."""
        at = self.index(tier)
        return max(self.children[at]) if at < self.depth - 1 else 0

    def first(self, tier: str, ids: Tensor) -> Tensor:
        """The id of each node's first child, [n]; children of one node have consecutive ids."""
        return self._first[self.index(tier)][ids]

    def span(self, tier: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The first device under each of these nodes and the one after its last, [n] each.

        >>> Tree.grouped([2, 3]).span("edge", torch.tensor([0, 1]))
        (tensor([0, 2]), tensor([2, 5]))
        """
        first, stop = ids, ids + 1
        for counts in self._counts[self.index(tier) :]:
            starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(counts, 0)])
            first, stop = starts[first], starts[stop]
        return first, stop

    def flattened(self) -> Tree:
        """The same devices directly under the server."""
        return Tree.flat(self.devices)

    def without(self, devices: Sequence[int]) -> Tree:
        """The tree without some of its leaves, and without the nodes that have none left under
        them.

        >>> Tree.grouped([2, 3]).without([0, 1, 4])
        Tree: 1 server, 1 edge, 2 devices
        """
        stays = torch.ones(self.devices, dtype=torch.int64)
        stays[list(devices)] = 0
        children: list[tuple[int, ...]] = []
        for counts in reversed(self._counts):
            left = torch.zeros_like(counts).index_add_(
                0, torch.repeat_interleave(torch.arange(len(counts)), counts), stays
            )
            stays = (left > 0).long()
            children.insert(0, tuple(left[left > 0].tolist()))
        return Tree(tuple(children), self.tiers, self.copies)

    def picks(self, tier: str, sample: int | float) -> Tensor:
        """How many children every node of a tier asks under `sample`; an error where there are not
        so many.
        """
        counts = self._counts[self.index(tier)]
        if (
            isinstance(sample, bool)
            or not isinstance(sample, int | float)
            or not sample > 0
            or (isinstance(sample, float) and sample > 1)
        ):
            rule = "give a number >= 1, a fraction in (0, 1], or None for all ('none' in a file)"
            raise TreeError(f"sample = {sample!r} at the {tier}: {rule}.")
        if isinstance(sample, float):
            return (counts.double() * sample + 0.5).long().clamp(min=1)
        if int(counts.min()) < sample:
            short = int(counts.argmin())
            raise TreeError(
                f"sample = {sample} at the {tier}, but {tier} {short} has only {int(counts[short])} children; "
                f"ask for at most {int(counts.min())}, or give a fraction such as 0.5."
            )
        return torch.full_like(counts, sample)

    @cached_property
    def _counts(self) -> tuple[Tensor, ...]:
        return tuple(torch.tensor(counts, dtype=torch.int64) for counts in self.children)

    @cached_property
    def _first(self) -> tuple[Tensor, ...]:
        return tuple(torch.cumsum(counts, 0) - counts for counts in self._counts)

    def _check(self) -> None:
        if not self.children:
            raise TreeError(
                "a tree needs at least one tier below the server; Tree.flat(20) has 20 devices."
            )
        if len(self.tiers) != len(self.children) + 1 or len(set(self.tiers)) != len(self.tiers):
            raise TreeError(
                f"tiers = {self.tiers}: give {len(self.children) + 1} different names, the server's first."
            )
        for counts in self.children:
            if wrong := [c for c in counts if not isinstance(c, int) or isinstance(c, bool)]:
                raise TreeError(f"{wrong[0]!r} children: counts must be whole numbers.")
        for above, counts, size in zip(self.tiers, self.children, self.sizes, strict=False):
            if len(counts) != size:
                raise TreeError(
                    f"there are {size} nodes of tier {above} but {len(counts)} counts of children."
                )
            if min(counts) < 1:
                raise TreeError(
                    f"{above} {counts.index(min(counts))} has {min(counts)} children; every one needs 1 or more."
                )

    def __repr__(self) -> str:
        parts = (
            f"{n} {tier}{'s' if n > 1 else ''}"
            for n, tier in zip(self.sizes, self.tiers, strict=True)
        )
        return "Tree: " + ", ".join(parts)


def _names(depth: int) -> tuple[str, ...]:
    """server, device; server, edge, device; server, edge1, edge2, device; ..."""
    between = ("edge",) if depth == 3 else tuple(f"edge{i + 1}" for i in range(depth - 2))
    return ("server", *between, "device")
