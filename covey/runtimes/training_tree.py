"""The tree as programs see it while they train: without the nodes that have nothing to learn from.

A device without training examples is a receiver. It stands in the tree, gets models and is scored,
but it never trains. A node all of whose devices are receivers has nothing to send either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covey.tree import Topology, picks

CHILDREN = "children that train"


@dataclass(frozen=True, eq=False)
class TrainingTree(Topology):
    """A tree of which some nodes are left out; the others keep their ids.

    `trains` says of each node of a tier whether some device under it has training examples. The
    children of a node are those that train, numbered from 0 in id order.

    >>> from covey.tree import Tree
    >>> under = {"server": [5], "edge": [5, 0], "device": [0, 2, 3, 0]}
    >>> trains = {tier: torch.tensor(examples) > 0 for tier, examples in under.items()}
    >>> tree = TrainingTree(Tree.grouped([3, 1]), trains)
    >>> tree.counts("edge", torch.tensor([0, 1])).tolist()
    [2, 0]
    >>> tree.cohort("edge", torch.tensor([0]), sample=None, address=0)
    (tensor([0, 0]), tensor([1, 2]))
    """

    whole: Topology
    trains: Mapping[str, Tensor]
    _members: dict[str, Tensor] = field(default_factory=dict, init=False)
    _counts: dict[str, Tensor] = field(default_factory=dict, init=False)
    _starts: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiers", self.whole.tiers)
        object.__setattr__(self, "copies", self.whole.copies)
        for tier in self.tiers[:-1]:
            # Set the children that train of every node of a tier.
            nodes = torch.arange(self.size(tier))
            parent, child = self.whole.cohort(tier, nodes, sample=None, address=0)
            trains = self.trains[self.below(tier) or ""]
            own = trains[child]
            counts = torch.bincount(parent[own], minlength=len(nodes))
            self._members[tier] = child[own]
            self._counts[tier] = counts
            self._starts[tier] = torch.cumsum(counts, 0) - counts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of nodes of each tier, those that do not train included."""
        return self.whole.sizes

    def counts(self, tier: str, ids: Tensor) -> Tensor:
        """How many children that train each of these nodes has, [n]."""
        if self.below(tier) is None:
            return torch.zeros_like(ids)
        return self._counts[tier][ids]

    def members(self, tier: str, node: int) -> Tensor:
        """The ids of the children of one node that train."""
        start = int(self._starts[tier][node])
        stop = start + int(self._counts[tier][node])
        return self._members[tier][start:stop]

    def smallest(self, tier: str) -> int:
        """The min number of children that train, over the nodes of a tier that have any."""
        if self.below(tier) is None:
            return 0
        counts = self._counts[tier]
        return int(counts[counts > 0].min())

    def first(self, tier: str, ids: Tensor) -> Tensor:
        """The id of each node's first child, whether it trains or not, [n]."""
        return self.whole.first(tier, ids)

    def child(self, tier: str, ids: Tensor, position: Tensor, number: Tensor) -> Tensor:
        """The ids of children, [m], by their numbers among those that train."""
        start = self._starts[tier][ids][position]
        return self._members[tier][start + number]

    def child_number(self, tier: str, ids: Tensor, position: Tensor, child: Tensor) -> Tensor:
        """The number of each child among the children of its parent that train, [m]."""
        place = torch.searchsorted(self._members[tier], child)
        return place - self._starts[tier][ids][position]

    def widest(self, tier: str) -> int:
        """The max number of children that train; 0 for devices."""
        if self.below(tier) is None:
            return 0
        return int(self._counts[tier].max())

    def span(self, tier: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The first device under each of these nodes and the one after its last, [n] each."""
        return self.whole.span(tier, ids)

    def picks(self, tier: str, sample: int | float) -> Tensor:
        """How many of its children that train every node of a tier asks under `sample`, [nodes]."""
        return picks(self._counts[tier], tier, sample, CHILDREN)


def training_tree(tree: Topology, examples: Mapping[str, Tensor]) -> Topology:
    """The tree without the nodes that have 0 `examples` under them; itself if there are none.

    `examples` has the number of training examples under every node of each tier.
    """
    trains = {tier: counts > 0 for tier, counts in examples.items()}
    if all(bool(flags.all()) for flags in trains.values()):
        return tree
    return TrainingTree(tree, trains)
