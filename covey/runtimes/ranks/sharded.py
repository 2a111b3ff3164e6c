"""The sharded runtime: one experiment on several processes, each of which simulates some subtrees.

Every rank runs the programs of the tiers above the cut, and all get the same bits there. Below,
each runs its own subtrees, on its own examples, with its own rows. Ranks exchange the answers that
cross the cut, and once per play the facts of what happened below it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covey.errors import RankError
from covey.kernel.algorithm import Program
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Deferred, Masked, Replies
from covey.kernel.store.store import Frozen, KeptRows
from covey.runtimes.base import Answers, Question, part_of
from covey.runtimes.contract import Lane
from covey.runtimes.facts import Played, SubtreeFacts
from covey.runtimes.ranks.across import GATHERED, Across, Everyone
from covey.runtimes.ranks.ranks import Ranks
from covey.runtimes.ranks.shares import Shares
from covey.runtimes.simulator import Simulator
from covey.runtimes.spec import NodeSpec
from covey.types import Rows

_TIMED = "ranks"
"""The name under which a round counts the seconds in which ranks wait for each other."""


@dataclass(eq=False)
class Sharded(Simulator):
    """One process of several that simulate a tree together, for one seed."""

    ranks: Ranks = field(kw_only=True)
    shares: Shares = field(kw_only=True)
    gathered: int = GATHERED
    """Bytes of all answers that cross the cut up to which sums are gathered."""

    def __post_init__(self, spec: NodeSpec) -> None:
        super().__post_init__(spec)
        if not self.ranks.alone:
            self.rounds = None  # a CUDA graph of a whole round cannot wait for other ranks

    def play(
        self,
        program: Program,
        rows: Rows,
        *,
        round: int,
        lane: Lane = "train",
    ) -> Played:
        """Run a program of the top tier, on all ranks."""
        if not len(rows):
            return super().play(program, rows, round=round, lane=lane)
        with self.ranks.together():
            return super().play(program, rows, round=round, lane=lane)

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Exchange rows with the children; at the cut, those of this rank run.

        What is sent down is sent by every rank to all children, so that all count the same bytes
        and keep the same residuals.
        """
        if question.tier != self.shares.tier:
            return super().exchange(me, question)
        question, down = self._all_sent(question)
        nodes = self.shares.nodes(question.tier, self.ranks.rank)
        # Its ids rise.
        bounds = torch.tensor([nodes.start, nodes.stop])
        own = slice(*torch.searchsorted(question.ids, bounds).tolist())
        return self._all_answers(me, question.only(own), down)

    def _replies_of(
        self,
        question: Question,
        parts: list[Rows | Masked | Deferred] | None,
        asker: Tensor,
        child: Tensor,
    ) -> Replies:
        """The replies of the children of all ranks."""
        if question.tier != self.shares.tier or not len(question.askers):
            return super()._replies_of(question, parts, asker, child)
        answered = question.ids[question.answers]
        counts = self.shares.counts(question.tier, answered)
        start = sum(counts[: self.ranks.rank])
        own = slice(start, start + counts[self.ranks.rank])
        return Across(
            parts,
            asker=asker[own],
            askers=len(question.askers),
            child=child[own],
            everyone=Everyone(asker, child, counts),
            ranks=self.ranks,
            gathers=self._gathers,
            timed=partial(self._timed, _TIMED),
        )

    def _gathers(self, rows: Rows) -> bool:
        """Whether sums of rows like these are gathered: from the widths alone, so all ranks agree.

        The limit is on the answers of all nodes at the cut, whoever is asked.
        """
        row = rows.shape[1:].numel() * rows.element_size()
        return self.tree.size(self.shares.tier) * row <= self.gathered

    # Facts

    def _all_facts(self, facts: SubtreeFacts, answer: Any) -> SubtreeFacts:
        """The facts of all ranks, which from now on know the same."""
        if self.ranks.alone:
            return facts
        own = self._reported(facts.as_dict())
        own["answer"] = _digest(answer)
        # The form of everything that this rank's nodes keep.
        columns: list[list[Any]] = []
        for (tier, name), rows in self.kept().items():
            dtype = str(rows.dtype).removeprefix("torch.")
            columns.append([tier, name, list(rows.shape[1:]), dtype, rows.is_cuda])
        own["columns"] = columns
        with self._timed(_TIMED):
            everyone = self.ranks.gather_json("exchange facts", own)
        # Refuse to go on where the server has other bits on one rank than on another.
        digests = [facts["answer"] for facts in everyone]
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise RankError(
                    f"rank {rank} computed another global model than rank 0 from the same answers. "
                    "A program must use its arguments, its fields and `me`, nothing else; "
                    "machines with other processors need the same ATEN_CPU_CAPABILITY and MKL_CBWR."
                )
        merged = SubtreeFacts(self.tree)
        for one in everyone:
            self._open(one["columns"])
            merged.merge(one)
        return merged

    def _reported(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The facts without those that every rank has counted, which rank 0 alone reports."""
        if self.ranks.leads:
            return facts
        lower = dict(zip(self.tree.links, self.tree.tiers[1:], strict=True))
        below = self.shares.bounds
        facts["traffic"] = [row for row in facts["traffic"] if self._own(lower[row[0]], row[1])]
        facts["node_bytes"] = [row for row in facts["node_bytes"] if self._own(row[0], row[1])]
        cohorts = facts["cohorts"].items()
        cut = self.shares.tier
        facts["cohorts"] = {tier: ids for tier, ids in cohorts if tier in below and tier != cut}
        facts["notes"] = [note for note in facts["notes"] if note[0] in below]
        facts["reports"] = [report for report in facts["reports"] if report[1] in below]
        return facts

    def _own(self, tier: str, direction: str) -> bool:
        """Whether messages to or from nodes of a tier are counted by the rank that has the node.

        What is sent down to the cut is counted by every rank.
        """
        if tier == self.shares.tier:
            return direction == "up"
        return tier in self.shares.bounds

    def _open(self, columns: list[list[Any]]) -> None:
        """Keep rows of the same names and forms as another rank, though none yet."""
        known = self.kept()
        nobody = torch.zeros(0, dtype=torch.int64)
        for tier, name, shape, dtype, on_gpu in columns:
            if (tier, name) in known:
                continue
            device = self.task.device if on_gpu else torch.device("cpu")
            rows = torch.zeros((0, *shape), dtype=getattr(torch, dtype), device=device)
            self.store.put(tier, name, nobody, rows, 0)

    # Rows

    def read(self, tier: str, name: str, label: str, copy: int) -> KeptRows:
        """(ids, rounds, rows) that the nodes of all ranks keep, on every rank."""
        ids, rounds, rows = super().read(tier, name, label, copy)
        if tier in self.shares.above or self.ranks.alone:
            return ids, rounds, rows
        with self.ranks.together():
            counts = self.ranks.gather_json(f"read {tier} {name} {label}", len(ids))
            return (
                self.ranks.gather(ids, counts),
                self.ranks.gather(rounds, counts),
                self.ranks.gather(rows, counts),
            )

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that the nodes of this rank keep and hold, for its part of a checkpoint.

        What nodes above the cut keep is the same on all ranks, and rank 0 yields it.
        """
        for frozen in super().freeze(copy):
            if self.leads or frozen.tier not in self.shares.above:
                yield frozen

    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Take over this rank's rows of one entry of `freeze`, of any runtime."""
        if frozen.tier in self.shares.bounds:
            size = self.tree.size(frozen.tier)
            for label, entry in frozen.entries.items():
                if bool((entry.ids < 0).any()) or bool((entry.ids >= size).any()):
                    raise ValueError(f"{frozen.tier} {frozen.name}, {label}: ids not below {size}")
            frozen = part_of(frozen, self.shares.nodes(frozen.tier, self.ranks.rank))
        super().thaw(frozen, copy)

    def report(self) -> dict[str, Any]:
        """How the ranks run programs, in words and numbers."""
        bounds = torch.tensor(self.shares.bounds[self.shares.tier])
        return {
            **super().report(),
            "ranks": self.ranks.world,
            "cut": self.shares.tier,
            "nodes_by_rank": bounds.diff().tolist(),
            "sums": self.sums(),
        }

    def sums(self) -> str:
        """How the sums of models across the cut are computed."""
        if self._gathers(self.start):
            return "gathered in id order"
        return "all-reduced"


def _digest(answer: Any) -> str:
    """A hash of the answer of the top tier."""
    if not isinstance(answer, Tensor):
        return ""
    rows = answer.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(rows.numpy().data, digest_size=16).hexdigest()


def first_difference(values: list[Mapping[str, str]]) -> tuple[int, str] | None:
    """The first rank whose facts differ from rank 0's, and the name of the fact."""
    for rank, facts in enumerate(values):
        for name in {**values[0], **facts}:
            if facts.get(name) != values[0].get(name):
                return rank, name
    return None
