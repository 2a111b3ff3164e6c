"""Figures that programs note of their nodes in a round: the mean, the min and the max of each, per
tier.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.tree import Topology
from covey.types import Ids


@dataclass(frozen=True)
class Note:
    """One figure over all nodes that noted it in a round; a node that noted it twice counts twice."""

    mean: float
    least: float
    most: float
    count: int


@dataclass(frozen=True)
class Partial:
    """A figure over some nodes.

    `sums` are floats whose exact sum is the exact sum of all values.
    """

    sums: tuple[float, ...]
    least: float
    most: float
    count: int

    @staticmethod
    def of(values: Iterable[float]) -> Partial:
        """The partial of single values.

        >>> Partial.of([0.1] * 10).note().mean
        0.1
        """
        listed = tuple(values)
        return Partial(listed, min(listed), max(listed), len(listed))

    def __add__(self, other: Partial) -> Partial:
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Partial((*self.sums, *other.sums), least, most, self.count + other.count)

    def condensed(self) -> Partial:
        """The same with as few sums as hold it, to be sent."""
        return replace(self, sums=exact_sums(self.sums))

    def note(self) -> Note:
        """The figure; its sum is rounded once, so the order in which partials were added does not
        matter.
        """
        return Note(math.fsum(self.sums) / self.count, self.least, self.most, self.count)


def exact_sums(values: Iterable[float]) -> tuple[float, ...]:
    """A few floats that do not overlap and have exactly the same sum (Shewchuk, 1997).

    >>> exact_sums([1.0, 1e100, 1.0, -1e100])
    (2.0,)
    """
    partials: list[float] = []
    for value in values:
        if not math.isfinite(value):
            return (value,)
        x = value
        kept = 0
        for y in partials:
            if abs(x) < abs(y):
                x, y = y, x
            high = x + y
            low = y - (high - x)
            if low:
                partials[kept] = low
                kept += 1
            x = high
        partials[kept:] = [x]
    return tuple(partial for partial in partials if partial) or (0.0,)


class Notes:
    """What was noted in a round.

    Values stay on the device that made them until they are read, so a GPU is waited for once.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[tuple[Ids, Tensor]]] = {}
        self._partials: dict[tuple[str, str], list[Partial]] = {}
        self._writing = threading.Lock()

    def add(
        self, tier: str, name: str, ids: Ids, values: Tensor, idle: Tensor | None = None
    ) -> None:
        """A figure of each of these nodes, [n], except those that are idle."""
        if idle is not None:
            asked = (~idle).nonzero()[:, 0]
            ids, values = ids[asked], values[asked.to(values.device, non_blocking=True)]
        with self._writing:  # workers take turns
            self._values.setdefault((tier, name), []).append((ids, values))

    def merge(self, tier: str, name: str, partial: Partial) -> None:
        """A figure over the nodes of another machine, in a run of one seed."""
        self._partials.setdefault((tier, name), []).append(partial)

    def partials(self, tree: Topology) -> list[dict[tuple[str, str], Partial]]:
        """The figures so far of each copy of the tree, by tier and name."""
        out: list[dict[tuple[str, str], Partial]] = [{} for _ in range(tree.copies)]
        for (tier, name), noted in self._values.items():
            values = torch.cat([part.double() for _, part in noted]).cpu()
            copy = tree.copy(tier, torch.cat([ids for ids, _ in noted]))
            for number, figures in enumerate(out):
                if own := values[copy == number].tolist():
                    figures[tier, name] = Partial.of(own)
        for key, partials in self._partials.items():
            for partial in partials:
                out[0][key] = out[0][key] + partial if key in out[0] else partial
        return out

    def read(self, tree: Topology) -> list[dict[str, dict[str, Note]]]:
        """The notes of each copy of the tree, by tier and name, from the top."""
        out = []
        for figures in self.partials(tree):
            notes: dict[str, dict[str, Note]] = {}
            for tier, name in sorted(figures, key=lambda key: (tree.index(key[0]), key[1])):
                notes.setdefault(tier, {})[name] = figures[tier, name].note()
            out.append(notes)
        return out
