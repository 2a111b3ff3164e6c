"""Which nodes changed since some moment, at the price of what changed."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 1024


class Changes:
    """The ids of changed nodes, in chunks in the order of time.

    The chunks are joined when they hold more ids than there are nodes, twice over. `since` may then
    name nodes that changed before: too many are allowed, too few are not.

    >>> changes = Changes(10)
    >>> changes.add(torch.tensor([3, 1]))
    >>> moment = changes.now
    >>> changes.add(torch.tensor([7, 3]))
    >>> changes.since(moment).tolist(), changes.since(0).tolist()
    ([3, 7], [1, 3, 7])
    """

    def __init__(self, nodes: int) -> None:
        self._most = 2 * nodes + _SMALL
        self._chunks: list[Tensor] = []
        self._length = 0
        self.now = 0
        """The present moment: a number that grows with every change."""

    def add(self, ids: Tensor) -> None:
        """These nodes change now."""
        if not len(ids):
            return
        self._chunks.append(ids.int())
        self._length += len(ids)
        self.now += 1
        if self._length > self._most:
            joined = torch.unique(torch.cat(self._chunks))
            self._chunks = [joined]
            self._length = len(joined)

    def since(self, moment: int) -> Tensor:
        """The ids of the nodes that changed since a moment, each once, in rising order."""
        first = self.now - len(self._chunks)
        chunks = self._chunks[max(0, moment - first) :]
        if moment >= self.now or not chunks:
            return torch.empty(0, dtype=torch.int64)
        ids: Tensor = torch.unique(torch.cat(chunks))
        return ids.long()
