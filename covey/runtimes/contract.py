"""The contract between a run and the runtime that plays its programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from torch import Tensor

from covey.engine.task import Task
from covey.kernel.algorithm import Program
from covey.kernel.store.store import ColumnKey, Frozen, KeptRows, Store
from covey.runtimes.facts import Played
from covey.runtimes.ranks.ranks import ALONE, Ranks
from covey.tree import Topology
from covey.types import Rows

Lane = Literal["train", "score"]
"""Training, or scoring.

The bytes of scoring are counted apart; it has no cut, no feedback, no notes and no cohort in the
record.
"""


class Runtime(ABC):
    """What plays programs on the nodes of a tree, or of several copies of it, one for each seed.

    Bits do not depend on the runtime. A run plays a round, and then commits it or rolls it back.
    Rows that nodes keep stay where they are; a run reads them, holds a version of them, or freezes
    them for a checkpoint.
    """

    tree: Topology
    task: Task
    start: Rows
    """The initial rows, [seeds, P]."""
    ranks: Ranks = ALONE
    """The processes that run the programs together, and which of them this one is."""

    disk: Store | None = None
    """The rows that nodes keep, where they lie in files; None where they are in memory."""

    @property
    def lacks(self) -> str | None:
        """Whose rows the last reading did not get, in words; None: it got all."""
        return None

    @abstractmethod
    def play(
        self,
        program: Program,
        rows: Rows,
        *,
        round: int,
        lane: Lane = "train",
    ) -> Played:
        """Run a program of the top tier; with no rows at all, every program below runs on none."""

    @abstractmethod
    def commit(self) -> None:
        """What nodes keep and what is held is good: a round that fails goes back to it."""

    @abstractmethod
    def rollback(self) -> None:
        """Go back to the last commit."""

    @abstractmethod
    def kept(self) -> dict[ColumnKey, Tensor]:
        """Empty rows [0, ...] of the shape and type of everything that nodes keep.

        The keys are (tier, name).
        """

    @abstractmethod
    def read(self, tier: str, name: str, label: str, copy: int) -> KeptRows:
        """(ids, rounds, rows) that one seed's nodes keep, now or in a held version.

        The ids count from 0.
        """

    @abstractmethod
    def hold(self, label: str, copy: int, columns: Sequence[ColumnKey]) -> None:
        """Hold the rows that one seed's nodes keep now in these (tier, name).

        They replace the rows that were held under this label.
        """

    @abstractmethod
    def release(self, label: str, copy: int) -> None:
        """Hold nothing of one seed under this label any more."""

    @abstractmethod
    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that one seed's nodes keep and hold, for a checkpoint.

        Of several processes, each yields the rows of its own nodes.
        """

    @abstractmethod
    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Take over one entry of `freeze`, of this runtime or of another.

        Entries of the same column with other nodes add to it. An invalid entry is a ValueError.
        """

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """How this runtime runs programs, in words and numbers."""

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes files; of several, one does."""
        return self.ranks.leads

    @property
    def sizes(self) -> dict[str, int]:
        """The number of nodes of each tier of one seed's tree, from the top."""
        return {tier: self.tree.size(tier) // self.tree.copies for tier in self.tree.tiers}

    def nodes(self, tier: str, copy: int) -> slice:
        """The ids that the nodes of a tier have in one seed's tree."""
        size = self.tree.size(tier) // self.tree.copies
        return slice(copy * size, (copy + 1) * size)
