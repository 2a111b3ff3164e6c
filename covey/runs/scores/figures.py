"""Figures of some of many nodes, and sums to which every round adds those of some nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ADDENDS = 1024
_LENGTH = 4096


@dataclass(frozen=True, eq=False)
class NodeFigures:
    """Figures of the nodes that were asked for them: ids [m], values [m, ...].

    They take the memory of those m nodes, of however many there are.

    >>> NodeFigures(4, torch.tensor([1, 3]), torch.tensor([0.5, 0.25]), missing=-1.0).dense()
    tensor([-1.0000,  0.5000, -1.0000,  0.2500])
    """

    nodes: int
    ids: Tensor
    values: Tensor
    missing: float = 0.0
    """The figure of all other nodes."""

    @staticmethod
    def of_all(values: Tensor) -> NodeFigures:
        """The figures of all nodes."""
        return NodeFigures(len(values), torch.arange(len(values)), values)

    def dense(self) -> Tensor:
        """The figures of all nodes, [nodes, ...]."""
        shape = (self.nodes, *self.values.shape[1:])
        out = torch.full(shape, self.missing, dtype=self.values.dtype)
        out[self.ids] = self.values
        return out


Addend = tuple[Tensor, Tensor]
"""(ids [m], values [m]); an id may come several times."""


@dataclass(frozen=True, eq=False)
class NodeTotals:
    """One number for each node: a base, [nodes], and what rounds have added since.

    Addends are put into a new base when they have as many numbers as there are nodes, so that a
    round costs what it adds. They are added in order, and so the bits are those of a sum that is
    made in every round.

    >>> total = NodeTotals(torch.zeros(3, dtype=torch.int64))
    >>> total = total.plus((torch.tensor([2, 0, 2]), torch.tensor([10, 5, 1])))
    >>> total.dense()
    tensor([ 5,  0, 11])
    """

    base: Tensor
    addends: tuple[Addend, ...] = ()
    length: int = 0
    """How many numbers the addends have."""

    def plus(self, addend: Addend) -> NodeTotals:
        """The sum with one more addend; this one does not change."""
        length = self.length + len(addend[0])
        out = NodeTotals(self.base, (*self.addends, addend), length)
        if length > max(len(self.base), _LENGTH) or len(out.addends) > _ADDENDS:
            return NodeTotals(out.dense())
        return out

    def dense(self) -> Tensor:
        """The sum for every node, [nodes]."""
        out = self.base.clone()
        for ids, values in self.addends:
            out.index_add_(0, ids, values)
        return out

    def since(self, other: NodeTotals) -> tuple[Addend, ...] | None:
        """What was added since an earlier sum; None where only the whole sum can say it."""
        if self.base is not other.base:
            return None
        return self.addends[len(other.addends) :]
