"""Bytes of training per node: what crossed the link above it, down and up, as really encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covey.types import Ids

NodeKey = tuple[str, str]
"""(tier, direction) of messages: the tier is the lower one of their link. Figures of nodes other
than bytes have a name for the direction."""


@dataclass(frozen=True, eq=False)
class LowerEnds:
    """The nodes at the lower end of a link that some messages cross.

    `rows` has the position of the row that each of them receives or sends, [m].
    """

    tier: str
    ids: Ids
    rows: Tensor


@dataclass
class NodeBytes:
    """The bytes of single nodes, collected while programs run.

    >>> bytes = NodeBytes()
    >>> bytes.add("device", "up", torch.tensor([2, 0]), torch.tensor([10, 5]))
    >>> bytes.add("device", "up", torch.tensor([2]), torch.tensor([1]))
    >>> bytes.sums()["device", "up"]
    (tensor([2, 0, 2]), tensor([10,  5,  1]))
    """

    chunks: dict[NodeKey, list[tuple[Ids, Tensor]]] = field(default_factory=dict)

    def add(self, tier: str, direction: str, ids: Ids, lengths: Tensor) -> None:
        """Count the lengths [m] of messages to or from nodes, [m]."""
        chunks = self.chunks.setdefault((tier, direction), [])
        chunks.append((ids, lengths))

    def sums(self) -> dict[NodeKey, tuple[Ids, Tensor]]:
        """(ids, bytes) by tier and direction; a node has an entry for each of its messages."""
        out = {}
        for key, chunks in sorted(self.chunks.items()):
            ids = torch.cat([numbers for numbers, _ in chunks])
            lengths = torch.cat([values for _, values in chunks])
            out[key] = (ids, lengths)
        return out

    def as_list(self) -> list[list[object]]:
        """As JSON can hold it, with one sum for each node.

        >>> bytes = NodeBytes()
        >>> bytes.add("device", "up", torch.tensor([2, 0, 2]), torch.tensor([10, 5, 1]))
        >>> bytes.as_list()
        [['device', 'up', [0, 2], [5, 11]]]
        """
        out: list[list[object]] = []
        for (tier, direction), (ids, lengths) in self.sums().items():
            nodes, position = torch.unique(ids, return_inverse=True)
            sums = torch.zeros_like(nodes).index_add_(0, position, lengths)
            out.append([tier, direction, nodes.tolist(), sums.tolist()])
        return out

    def merge(self, entries: Sequence[Sequence[object]]) -> None:
        """Add what another's `as_list` gave."""
        for tier, direction, ids, lengths in entries:
            numbers = torch.tensor(ids, dtype=torch.int64)
            values = torch.tensor(lengths, dtype=torch.int64)
            self.add(str(tier), str(direction), numbers, values)
