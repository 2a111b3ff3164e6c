"""Figures that programs note in a round: the mean, the min and the max of each, per tier."""

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
    """One figure over all nodes that noted it in a round; a node may have noted it twice."""

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
        return Partial(
            sums=(*self.sums, *other.sums),
            least=min(self.least, other.least),
            most=max(self.most, other.most),
            count=self.count + other.count,
        )

    def condensed(self) -> Partial:
        """The same with as few sums as hold it, to be sent."""
        return replace(self, sums=exact_sums(self.sums))

    def note(self) -> Note:
        """The figure; its sum is rounded once, so the order of the partials does not matter."""
        mean = math.fsum(self.sums) / self.count
        return Note(mean, self.least, self.most, self.count)


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


NoteKey = tuple[str, str]
"""The tier and the name of a figure."""


class Notes:
    """What was noted in a round.

    Values stay on the device that made them until they are read, so a GPU is waited for once.
    """

    def __init__(self) -> None:
        self._values: dict[NoteKey, list[tuple[Ids, Tensor]]] = {}
        self._partials: dict[NoteKey, list[Partial]] = {}
        self._writing = threading.Lock()

    def add(
        self,
        tier: str,
        name: str,
        ids: Ids,
        values: Tensor,
        idle: Tensor | None = None,
    ) -> None:
        """A figure of each of these nodes, [n], except those that are idle."""
        if idle is not None:
            asked = (~idle).nonzero()[:, 0]
            ids = ids[asked]
            values = values[asked.to(values.device, non_blocking=True)]
        with self._writing:  # workers take turns
            noted = self._values.setdefault((tier, name), [])
            noted.append((ids, values))

    def merge(self, tier: str, name: str, partial: Partial) -> None:
        """A figure over the nodes of another machine, in a run of one seed."""
        partials = self._partials.setdefault((tier, name), [])
        partials.append(partial)

    def partials(self, tree: Topology) -> list[dict[NoteKey, Partial]]:
        """The figures so far of each copy of the tree, by tier and name."""
        out: list[dict[NoteKey, Partial]] = [{} for _ in range(tree.copies)]
        for key, noted in self._values.items():
            tier, _ = key
            numbers, figures = zip(*noted, strict=True)
            copy = tree.copy(tier, torch.cat(numbers))
            values = torch.cat([part.double() for part in figures]).cpu()
            for number, partials_of_copy in enumerate(out):
                own = values[copy == number].tolist()
                if own:
                    partials_of_copy[key] = Partial.of(own)
        first = out[0]
        for key, partials in self._partials.items():
            for partial in partials:
                if key in first:
                    partial = first[key] + partial
                first[key] = partial
        return out

    def read(self, tree: Topology) -> list[dict[str, dict[str, Note]]]:
        """The notes of each copy of the tree, by tier and name, from the top."""
        out = []
        for figures in self.partials(tree):
            notes: dict[str, dict[str, Note]] = {}
            by_name = sorted(figures, key=lambda key: key[1])
            from_the_top = sorted(by_name, key=lambda key: tree.index(key[0]))
            for tier, name in from_the_top:
                of_tier = notes.setdefault(tier, {})
                of_tier[name] = figures[tier, name].note()
            out.append(notes)
        return out
