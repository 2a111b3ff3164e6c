"""Which slots of a column may be written.

A slot is free when no version refers to it and no checkpoint on the disk does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

NEVER = -1


class Slots:
    """The references to the slots of a column; every operation costs the slots that it is about.

    Saves are numbered. A slot that was taken before save s, and that a version referred to at that
    moment, is part of checkpoint s: it waits until that checkpoint is gone.
    """

    def __init__(self, saves: int = 0) -> None:
        self.saves = saves
        """The number of the next save."""
        self.inherited = 0
        """The slots below are in files of another process, and are never free."""
        self.borrowed = 0
        """How many inherited slots a version refers to."""
        self._free: dict[int, list[Tensor]] = {}
        self._available: dict[int, int] = {}
        self._kind = torch.zeros(0, dtype=torch.int8)
        self._references = torch.zeros(0, dtype=torch.int32)
        self._taken = torch.zeros(0, dtype=torch.int32)  # the number of the save after the taking
        self._waiting: list[tuple[Tensor, int]] = []  # and the number of the save after the drop

    def references(self, slots: Tensor) -> Tensor:
        """How many versions refer to each of these slots; a slot NEVER has no meaning."""
        if not len(self._references):
            return torch.zeros_like(slots)
        return self._references[slots]

    def available(self, kind: int = 0) -> int:
        """How many slots of a kind are free."""
        return self._available.get(kind, 0)

    def kinds(self, slots: Tensor) -> Tensor:
        """The kinds of these slots, int8 [n]; a slot NEVER has no meaning."""
        if not len(self._kind):
            return torch.zeros_like(slots, dtype=torch.int8)
        return self._kind[slots]

    def add(self, slots: Tensor, kind: int = 0) -> None:
        """New slots of a kind, which are free."""
        self.make_room(int(slots[-1]) + 1)
        self._kind[slots] = kind
        self._available.setdefault(kind, 0)
        self._put(slots, kind)

    def make_room(self, count: int) -> None:
        """Slots below `count` exist."""
        if count > len(self._references):
            size = max(count, 2 * len(self._references))
            self._references = _longer(self._references, size)
            self._taken = _longer(self._taken, size)
            self._kind = _longer(self._kind, size)

    def take(self, count: int, kind: int = 0) -> Tensor:
        """Take some of the free slots of a kind.

        They are in rising order: rows of one segment follow each other.
        """
        chunks = [torch.empty(0, dtype=torch.int64)]
        while count:
            chunk = self._free[kind].pop()
            if len(chunk) > count:
                self._free[kind].append(chunk[count:])
                chunk = chunk[:count]
            chunks.append(chunk)
            count -= len(chunk)
            self._available[kind] -= len(chunk)
        slots = torch.cat(chunks).sort().values
        self._taken[slots] = self.saves
        return slots

    def use(self, slots: Tensor) -> None:
        """One more version refers to each of these slots."""
        slots = slots[slots != NEVER]
        self._references[slots] += 1

    def drop(self, slots: Tensor) -> None:
        """One version less refers to each of these slots."""
        slots = slots[slots != NEVER]
        self._references[slots] -= 1
        unused = slots[self._references[slots] == 0]
        own = unused[unused >= self.inherited]
        self.borrowed -= len(unused) - len(own)
        # No version refers to these slots any more; those that were never saved are free.
        unsaved = self._taken[own] == self.saves
        self.free(own[unsaved])
        if not bool(unsaved.all()):
            self._waiting.append((own[~unsaved], self.saves))

    def free(self, slots: Tensor) -> None:
        """These slots may be used again."""
        if len(self._available) <= 1:
            self._put(slots, next(iter(self._available), 0))
            return
        kinds = self.kinds(slots)
        for kind in torch.unique(kinds).tolist():
            self._put(slots[kinds == kind], kind)

    def _put(self, slots: Tensor, kind: int) -> None:
        """Free slots of one kind."""
        if len(slots):
            self._free.setdefault(kind, []).append(slots)
            self._available[kind] = self.available(kind) + len(slots)

    def saved(self, checkpoints: Collection[int], shared: Callable[[Tensor], Tensor]) -> None:
        """A save happened; these are the numbers of all checkpoints that may be read again.

        `shared` says which slots others may read too, bool [n].
        """
        self.saves += 1
        waiting = self._waiting
        self._waiting = []
        for slots, dropped in waiting:
            # Free those of the slots that are part of none of these checkpoints.
            taken = self._taken[slots]
            needed = shared(slots)
            for number in checkpoints:
                if number < dropped:
                    needed |= taken <= number
            self.free(slots[~needed])
            if bool(needed.any()):
                self._waiting.append((slots[needed], dropped))


def _longer(numbers: Tensor, size: int) -> Tensor:
    """The numbers, followed by zeros."""
    out = numbers.new_zeros(size)
    out[: len(numbers)] = numbers
    return out
