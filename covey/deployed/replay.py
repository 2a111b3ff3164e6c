"""A deployed run with missing nodes, again in the simulator.

The server's disk tells who did not answer which ask. A late node has run the program, and its
answer did not count; an absent node never got the ask. A node with a bad answer is as an absent
one, unless a later answer says that it has run the program. The rows and the scores of the replay
are those of the deployed run, bit for bit. Traffic, notes and gradients are not: the deployed run
has no figures of nodes that were late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from covey.deployed.assemble import check
from covey.deployed.disk import Disk
from covey.deployed.node import Missing
from covey.deployed.transport import Status
from covey.kernel.nodes import Nodes
from covey.runs.build import Parts, simulator_of
from covey.runs.experiment import Experiment
from covey.runs.run import Run
from covey.runtimes.base import AskArguments, Question
from covey.runtimes.simulator import Simulator

AskPlace = tuple[int, str, int, str]
"""(round, lane, path, tier of those asked)."""
ByAsk = Mapping[AskPlace, Mapping[int, Status]]
"""The nodes that were missing, by ask."""


def by_ask(missing: Iterable[Missing]) -> dict[AskPlace, dict[int, Status]]:
    """The nodes that were missing, by ask."""
    out: dict[AskPlace, dict[int, Status]] = {}
    for entry in missing:
        key = (entry.round, entry.lane, entry.path, entry.tier)
        out.setdefault(key, {})[entry.number] = entry.status
    return out


def missing_of(disk: Disk) -> list[Missing]:
    """Who was missing in the good rounds of a server's disk."""
    return [Missing(*entry) for entry in disk.missing()]


@dataclass
class ReplaySimulator(Simulator):
    """The simulator, in which some nodes do not get an ask, and others answer too late."""

    missing: ByAsk = field(default_factory=dict)

    def _question(self, me: Nodes, ask: AskArguments) -> Question:
        """An ask without those who had no part in it, and without the answers of late ones."""
        question = super()._question(me, ask)
        key = (question.round, self._play.lane, question.path, question.tier)
        missing = self.missing.get(key)
        if not missing:
            return question
        status = [missing.get(number) for number in question.ids.tolist()]
        there = torch.tensor([entry in (None, "late") for entry in status], dtype=torch.bool)
        in_time = torch.tensor([entry is None for entry in status], dtype=torch.bool)
        answering = torch.zeros(len(status), dtype=torch.bool)
        answering[question.answers] = True
        answers = (answering & in_time)[there].nonzero()[:, 0]
        idle = question.idle
        if idle is not None:
            idle = idle[there]
        return replace(
            question,
            ids=question.ids[there],
            asker=question.asker[there],
            answers=answers,
            idle=idle,
            each=tuple(values[there] for values in question.each),
        )


@dataclass(frozen=True)
class Replay:
    """Makes the simulator that repeats a deployed run."""

    missing: ByAsk

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse what a deployed tree cannot run."""
        check(experiments)

    def make(self, parts: Parts) -> ReplaySimulator:
        """The simulator of one experiment."""
        simulator = simulator_of(parts, ReplaySimulator)
        simulator.missing = self.missing
        return simulator


def replay(experiment: Experiment, missing: Iterable[Missing]) -> Run:
    """The deployed run of an experiment, again in the simulator: one record for each round."""
    return Run(experiment, runtime=Replay(by_ask(missing)))
