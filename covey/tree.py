"""Who is under whom: a server, any number of tiers of edges, devices; and who of them is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import torch
from torch import Tensor

from covey import draws, markup
from covey.errors import TreeError, is_number

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
        """The max number of children of a node of a tier; 0 for devices."""

    @abstractmethod
    def span(self, tier: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The first device under each of these nodes and the one after its last, [n] each."""

    @abstractmethod
    def picks(self, tier: str, sample: int | float) -> Tensor:
        """How many children every node of a tier asks under `sample`, [nodes].

        It is an error if a node has fewer children than that.
        """

    def child(self, tier: str, ids: Tensor, position: Tensor, number: Tensor) -> Tensor:
        """The ids of children, [m].

        A child has the given number among those of the node at its `position` in `ids`.
        """
        return self.first(tier, ids)[position] + number

    def child_number(self, tier: str, ids: Tensor, position: Tensor, child: Tensor) -> Tensor:
        """The number of each child among those of its parent, [m]; the inverse of `child`."""
        return child - self.first(tier, ids)[position]

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
            tiers = ", ".join(self.tiers)
            raise TreeError(f"this tree has the tiers {tiers}; there is no tier {tier!r}.")
        return self.tiers.index(tier)

    def below(self, tier: str) -> str | None:
        """The name of the next tier down, None under the devices."""
        index = self.index(tier) + 1
        return self.tiers[index] if index < len(self.tiers) else None

    def copy(self, tier: str, ids: Tensor) -> Tensor:
        """In which copy of the tree each node stands, [n]."""
        size = self.size(tier) // self.copies
        return ids // size

    def local(self, tier: str, ids: Tensor) -> Tensor:
        """Each node's id within its own copy of the tree, [n]."""
        if self.copies == 1:
            return ids
        size = self.size(tier) // self.copies
        return ids % size

    def cohort(
        self, tier: str, ids: Tensor, *, sample: Sample, address: draws.Address
    ) -> tuple[Tensor, Tensor]:
        """The cohort of these nodes: (position of the asker in `ids`, child id), by child."""
        counts = self.counts(tier, ids)
        if sample is None:
            position = torch.repeat_interleave(torch.arange(len(ids)), counts)
            starts = torch.cumsum(counts, 0) - counts
            number = torch.arange(len(position)) - starts[position]
        else:
            groups = self.local(tier, ids)
            picks = self.picks(tier, sample)[ids]
            position, number = draws.choose(address, groups, sizes=counts, picks=picks)
        return position, self.child(tier, ids, position, number)


@dataclass(frozen=True)
class Tree(Topology):
    """A tree as child counts: `children[t][i]` is the number of children of node i of tier t.

    Ids count within a tier.

    >>> Tree.grouped([2, 3])
    Tree: 1 server, 2 edges, 5 devices
    >>> Tree.uniform(2, 3, 4).sizes
    (1, 2, 6, 24)
    """

    children: tuple[tuple[int, ...], ...]
    tiers: tuple[str, ...] = ()
    copies: int = 1

    def __post_init__(self) -> None:
        children = tuple(map(tuple, self.children))
        tiers = tuple(self.tiers)
        if not tiers:  # server, device; server, edge, device; server, edge1, edge2, device; ...
            edges = len(children) - 1
            middle = ["edge"] if edges == 1 else [f"edge{i + 1}" for i in range(edges)]
            tiers = ("server", *middle, "device")
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "tiers", tiers)
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
    def uniform(cls, *children: int, tiers: Sequence[str] = ()) -> Tree:
        """Every node of tier t has children[t] children."""
        counts = []
        size = 1
        for number in children:
            counts.append((number,) * size)
            size *= number
        return cls(tuple(counts), tuple(tiers))

    def times(self, copies: int) -> Tree:
        """This tree several times over, side by side: one for each seed of a run of many."""
        children = tuple(counts * copies for counts in self.children)
        return Tree(children, self.tiers, copies)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of nodes of each tier, from the server down."""
        return (self.copies, *map(sum, self.children))

    def counts(self, tier: str, ids: Tensor) -> Tensor:
        """How many children each of these nodes has, [n]."""
        if self.below(tier) is None:
            return torch.zeros_like(ids)
        return self._counts[self.index(tier)][ids]

    def widest(self, tier: str) -> int:
        """The max number of children of a node of a tier; 0 for devices."""
        if self.below(tier) is None:
            return 0
        return max(self.children[self.index(tier)])

    def first(self, tier: str, ids: Tensor) -> Tensor:
        """The id of each node's first child, [n]; children of one node have consecutive ids."""
        return self._first[self.index(tier)][ids]

    def span(self, tier: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The first device under each of these nodes and the one after its last, [n] each.

        >>> Tree.grouped([2, 3]).span("edge", torch.tensor([0, 1]))
        (tensor([0, 2]), tensor([2, 5]))
        """
        first = ids
        stop = ids + 1
        zero = torch.zeros(1, dtype=torch.int64)
        for counts in self._counts[self.index(tier) :]:
            ends = torch.cumsum(counts, 0)
            starts = torch.cat([zero, ends])
            first = starts[first]
            stop = starts[stop]
        return first, stop

    def flattened(self) -> Tree:
        """The same devices directly under the server."""
        return Tree.flat(self.devices)

    def without(self, devices: Sequence[int]) -> Tree:
        """The tree without some of its devices, and without the nodes that have none left.

        >>> Tree.grouped([2, 3]).without([0, 1, 4])
        Tree: 1 server, 1 edge, 2 devices
        """
        stays = torch.ones(self.devices, dtype=torch.int64)
        stays[list(devices)] = 0
        children: list[tuple[int, ...]] = []
        for counts in reversed(self._counts):
            parent = torch.repeat_interleave(torch.arange(len(counts)), counts)
            left = torch.zeros_like(counts).index_add_(0, parent, stays)
            nonempty = left > 0
            stays = nonempty.long()
            children.insert(0, tuple(left[nonempty].tolist()))
        return Tree(tuple(children), self.tiers, self.copies)

    def picks(self, tier: str, sample: int | float) -> Tensor:
        """How many children every node of a tier asks under `sample`, [nodes].

        It is an error if a node has fewer children than that.
        """
        return picks(self._counts[self.index(tier)], tier, sample)

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
        depth = len(self.children) + 1
        if len(self.tiers) != depth or len(set(self.tiers)) != depth:
            rule = f"give {depth} different names, the server's first"
            raise TreeError(f"tiers = {self.tiers}: {rule}.")
        for count in chain(*self.children):
            if not is_number(count, whole=True):
                raise TreeError(f"{count!r} children: counts must be whole numbers.")
        for tier, counts, size in zip(self.tiers, self.children, self.sizes, strict=False):
            if len(counts) != size:
                have = f"{len(counts)} counts of children"
                raise TreeError(f"there are {size} nodes of tier {tier} but {have}.")
            smallest = min(counts)
            if smallest < 1:
                node = f"{tier} {counts.index(smallest)}"
                raise TreeError(f"{node} has {smallest} children; every one needs 1 or more.")

    def __repr__(self) -> str:
        parts = []
        for size, tier in zip(self.sizes, self.tiers, strict=True):
            plural = "s" if size > 1 else ""
            parts.append(f"{size} {tier}{plural}")
        return "Tree: " + ", ".join(parts)

    def _repr_html_(self) -> str:
        """The tree in a notebook."""
        return markup.tree(self.tiers, self.children, repr(self))


def picks(counts: Tensor, tier: str, sample: int | float, children: str = "children") -> Tensor:
    """How many of its children, whose `counts` are given, each node asks under `sample`, [nodes].

    A node without children asks none. `children` says in an error what the counts are of.
    """
    if isinstance(sample, float):
        valid = 0 < sample <= 1
    else:
        valid = is_number(sample, whole=True) and sample > 0
    if not valid:
        rule = "give a number >= 1, a fraction in (0, 1], or None for all ('none' in a file)"
        raise TreeError(f"sample = {sample!r} at the {tier}: {rule}.")
    asks = counts > 0
    if isinstance(sample, float):
        share = counts.double() * sample
        chosen = (share + 0.5).long().clamp(min=1)
        return torch.where(asks, chosen, 0)
    too_few = asks & (counts < sample)
    if bool(too_few.any()):
        smallest = int(counts[asks].min())
        node = f"{tier} {int((counts == smallest).nonzero()[0])}"
        raise TreeError(
            f"sample = {sample} at the {tier}, but {node} has only {smallest} {children}; "
            f"ask for at most {smallest}, or give a fraction such as 0.5."
        )
    return asks * sample
