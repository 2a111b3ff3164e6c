"""Figures that programs note of their nodes in a round: the mean, the least and the most of each, per tier."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.tree import Tree
from covey.types import Ids


@dataclass(frozen=True)
class Note:
    """One figure over all nodes that noted it in a round; a node that noted it twice counts twice."""

    mean: float
    least: float
    most: float
    count: int


class Notes:
    """What was noted in a round. Values stay on the device that made them until `read`, for which a GPU is waited once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[tuple[Ids, Tensor]]] = {}
        self._writing = threading.Lock()

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()

    def add(self, tier: str, name: str, ids: Ids, values: Tensor, idle: Tensor | None = None) -> None:
        """A figure of each of these nodes, [n], but for those that are idle."""
        if idle is not None:
            asked = (~idle).nonzero()[:, 0]
            ids, values = ids[asked], values[asked.to(values.device, non_blocking=True)]
        with self._writing:  # workers take turns
            self._found.setdefault((tier, name), []).append((ids, values))

    def read(self, tree: Tree) -> list[dict[str, dict[str, Note]]]:
        """The notes of each copy of the tree, by tier and name, from the top."""
        out: list[dict[str, dict[str, Note]]] = [{} for _ in range(tree.copies)]
        for tier, name in sorted(self._found, key=lambda key: (tree.index(key[0]), key[1])):
            found = self._found[tier, name]
            values = torch.cat([part.double() for _, part in found]).cpu()
            copy = tree.copy(tier, torch.cat([ids for ids, _ in found]))
            for at, notes in enumerate(out):
                if mine := values[copy == at].tolist():
                    notes.setdefault(tier, {})[name] = _note(mine)
        return out


def _note(values: list[float]) -> Note:
    """The sum is rounded once, so that it does not matter in which order workers brought the values."""
    return Note(math.fsum(values) / len(values), min(values), max(values), len(values))
