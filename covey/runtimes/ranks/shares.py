"""Which subtrees each rank runs: whole subtrees of the first tier that is wide enough."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.tree import Topology


@dataclass(frozen=True, eq=False)
class Shares:
    """The nodes of each rank, which have consecutive ids.

    All nodes above `tier` run on every rank, and do the same there. The nodes of `tier` are dealt,
    and each takes everything below it along.
    """

    tier: str
    above: tuple[str, ...]
    bounds: dict[str, tuple[int, ...]]
    """By tier from `tier` down: rank r has the nodes from bounds[r] to bounds[r + 1]."""

    @staticmethod
    def of(tree: Topology, examples: Tensor, ranks: int) -> Shares:
        """Deal the subtrees of a tree so that ranks have about equally many examples.

        `examples` are those of every device.
        """
        wide = [level for level in range(1, tree.depth) if tree.sizes[level] >= ranks]
        if not wide:
            devices = tree.sizes[-1]
            raise ConfigError(
                f"{ranks} ranks for a tree with {devices} devices: every rank needs one of its "
                f"own; start at most {devices} processes (--nproc-per-node)."
            )
        level = wide[0]
        tier = tree.tiers[level]
        nodes = torch.arange(tree.size(tier))
        first, stop = tree.span(tier, nodes)
        before = torch.cat([examples.new_zeros(1), examples.cumsum(0)])
        bounds = {tier: deal((before[stop] - before[first]).tolist(), ranks)}
        for above, below in zip(tree.tiers[level:], tree.tiers[level + 1 :], strict=False):
            counts = tree.counts(above, torch.arange(tree.size(above)))
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            bounds[below] = tuple(starts[list(bounds[above])].tolist())
        return Shares(tier, tree.tiers[:level], bounds)

    def nodes(self, tier: str, rank: int) -> slice:
        """The nodes of a tier that a rank runs."""
        bounds = self.bounds[tier]
        return slice(bounds[rank], bounds[rank + 1])

    def counts(self, tier: str, ids: Tensor) -> tuple[int, ...]:
        """How many of these nodes, whose ids rise, each rank runs."""
        bounds = torch.tensor(self.bounds[tier])
        positions = torch.searchsorted(ids, bounds)
        return tuple(positions.diff().tolist())


def deal(weights: list[int], ranks: int) -> tuple[int, ...]:
    """Bounds of consecutive shares of about equal weight; everyone gets one node or more.

    >>> deal([5, 1, 1, 1, 2], 2), deal([100, 1, 1], 3)
    ((0, 1, 5), (0, 1, 2, 3))
    """
    total = sum(weights)
    before = [0]
    for weight in weights:
        before.append(before[-1] + weight)
    bounds = [0]
    for rank in range(1, ranks):
        wanted = total * rank / ranks
        lowest = bounds[-1] + 1
        highest = len(weights) - (ranks - rank)
        choices = range(lowest, highest + 1)
        bounds.append(min(choices, key=lambda bound: abs(before[bound] - wanted)))
    return (*bounds, len(weights))
