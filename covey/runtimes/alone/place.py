"""The knowledge of a node that shares nothing with others.

It has its own position in the tree, its own rows, and a few facts that it was told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from covey.data import Shards
from covey.data.shards import some
from covey.engine.population import Population
from covey.errors import ProgramError
from covey.kernel.store.store import Store
from covey.runtimes.training_tree import CHILDREN, TrainingTree, training_tree
from covey.tree import Topology, Tree, picks
from covey.types import Ids


@dataclass(frozen=True, eq=False)
class Place(Topology):
    """A tree as one of its nodes knows it.

    To ask about another node is an error that names both. Told are the tiers, how many nodes each
    has, and the min and the max of their children: what programs on no rows, lists of
    hyper-parameters and error texts need.
    """

    tier: str
    number: int
    children: int
    first_child: int
    tiers: tuple[str, ...]
    told_sizes: tuple[int, ...]
    min_children: tuple[int, ...]
    max_children: tuple[int, ...]
    copies: int = 1
    noun: ClassVar[str] = "children"
    """What an error calls them."""

    @staticmethod
    def of(tree: Tree, tier: str, number: int) -> Place:
        """What a node of a tree is told when it joins."""
        ids = torch.tensor([number])
        first_child = 0
        if tree.below(tier) is not None:
            first_child = int(tree.first(tier, ids))
        return Place(
            tier=tier,
            number=number,
            children=int(tree.counts(tier, ids)),
            first_child=first_child,
            tiers=tree.tiers,
            told_sizes=tree.sizes,
            min_children=(*map(min, tree.children), 0),
            max_children=(*map(max, tree.children), 0),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of nodes of each tier, as it was told."""
        return self.told_sizes

    def __str__(self) -> str:
        return f"{self.tier} {self.number}"

    def check(self, tier: str, ids: Ids, about: str) -> None:
        """Refuse to say anything of another node."""
        if not len(ids):
            return
        numbers = ids.tolist()
        if tier != self.tier or numbers != [self.number]:
            other = f"{tier} {some(numbers)}"
            raise ProgramError(f"{self} touched {about} of {other}; a node has its own alone.")

    def counts(self, tier: str, ids: Tensor) -> Tensor:
        """How many children this node has, [1]."""
        self.check(tier, ids, "the children")
        return torch.full_like(ids, self.children)

    def first(self, tier: str, ids: Tensor) -> Tensor:
        """The id of this node's first child, [1]."""
        self.check(tier, ids, "the children")
        return torch.full_like(ids, self.first_child)

    def widest(self, tier: str) -> int:
        """The max number of children of a node of a tier, as it was told."""
        return self.max_children[self.index(tier)]

    def span(self, tier: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Raise: a node does not know which devices are under which node."""
        other = f"{tier} {some(ids.tolist())}"
        raise ProgramError(f"{self} touched the devices under {other}; a node has its own alone.")

    def picks(self, tier: str, sample: int | float) -> Tensor:
        """How many children this node asks under `sample`, [nodes of the tier].

        The entries of all other nodes are 0.
        """
        # An error if any node of the tier has too few children.
        picks(torch.tensor([self.min_children[self.index(tier)]]), tier, sample, self.noun)
        out = torch.zeros(self.size(tier), dtype=torch.int64)
        if tier == self.tier:
            out[self.number] = picks(torch.tensor([self.children]), tier, sample, self.noun)[0]
        return out


@dataclass(frozen=True, eq=False)
class TrainingPlace(Place):
    """A training tree as one of its nodes knows it: the children are those that train.

    The min and the max of children are over the nodes that train.
    """

    members: tuple[int, ...] = ()
    """The ids of the children of this node that train."""
    noun: ClassVar[str] = CHILDREN

    @staticmethod
    def within(tree: TrainingTree, place: Place) -> TrainingPlace:
        """What the node of a place is told of those who train."""
        members: tuple[int, ...] = ()
        if tree.below(place.tier) is not None:
            members = tuple(tree.members(place.tier, place.number).tolist())
        return TrainingPlace(
            tier=place.tier,
            number=place.number,
            children=len(members),
            first_child=place.first_child,
            tiers=place.tiers,
            told_sizes=place.told_sizes,
            min_children=tuple(map(tree.smallest, tree.tiers)),
            max_children=tuple(map(tree.widest, tree.tiers)),
            members=members,
        )

    def child(self, tier: str, ids: Tensor, position: Tensor, number: Tensor) -> Tensor:
        """The ids of children of this node, [m], by their numbers among those that train."""
        self.check(tier, ids, "the children")
        return torch.tensor(self.members, dtype=torch.int64)[number]

    def child_number(self, tier: str, ids: Tensor, position: Tensor, child: Tensor) -> Tensor:
        """The number of each child among those of this node that train, [m]."""
        self.check(tier, ids, "the children")
        return torch.searchsorted(torch.tensor(self.members, dtype=torch.int64), child)


@dataclass(frozen=True, eq=False)
class Membership:
    """What a node is told when it joins: its place, and facts of the whole population."""

    place: Place
    training_place: Place | None
    """The place among those who train; None: all do."""
    under: int
    """How many training examples all devices under this node hold."""
    population: Population

    def own(self, shards: Shards) -> Shards:
        """The examples of this node alone: a device's own, or none."""
        if self.place.below(self.place.tier) is None:
            return shards.only([self.place.number])
        return Shards.none(shards)


def members(tree: Tree, shards: Shards) -> dict[str, list[Membership]]:
    """What every node of a tree is told, by tier, from the examples of all devices."""
    population = Population.of(shards).local()
    offset = shards.train.offset
    examples = {}
    for tier in tree.tiers:
        first, stop = tree.span(tier, torch.arange(tree.size(tier)))
        examples[tier] = offset[stop] - offset[first]
    training = training_tree(tree, examples)
    out: dict[str, list[Membership]] = {}
    for tier in tree.tiers:
        out[tier] = []
        for number, under in enumerate(examples[tier].tolist()):
            place = Place.of(tree, tier, number)
            among = None
            if isinstance(training, TrainingTree):
                among = TrainingPlace.within(training, place)
            out[tier].append(Membership(place, among, under, population))
    return out


@dataclass
class OwnStore(Store):
    """The rows of one node alone; those of another node are an error that names both."""

    place: Place = field(kw_only=True)

    def put(
        self,
        tier: str,
        name: str,
        ids: Ids,
        rows: Tensor,
        round: int,
    ) -> None:
        """Rows of this node."""
        self.place.check(tier, ids, repr(name))
        super().put(tier, name, ids, rows, round)

    def get(
        self, tier: str, name: str, ids: Ids, default: Tensor | None, since: int
    ) -> Tensor | None:
        """The row of this node, `default` where there is none as young as `since`."""
        self.place.check(tier, ids, repr(name))
        return super().get(tier, name, ids, default, since)

    def rounds(self, tier: str, name: str, ids: Ids) -> Tensor:
        """The round in which this node kept its row."""
        self.place.check(tier, ids, repr(name))
        return super().rounds(tier, name, ids)
