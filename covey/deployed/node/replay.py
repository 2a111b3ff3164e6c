"""A deployed run with missing nodes, again in the simulator.

The server's disk tells who did not answer which ask. A late node has run the program, and its
answer did not count; an absent node never got the ask. A node with a bad answer is as an absent
one, unless a later answer says that it has run the program. The rows, the records and the traffic
of the replay are those of the deployed run, bit for bit; only seconds differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covey.deployed.node.assemble import check
from covey.deployed.node.missed import Missing
from covey.deployed.transport.transport import Status
from covey.kernel.nodes import AskArguments, Call, Nodes
from covey.links.link import Route
from covey.links.meter import LowerEnds
from covey.runs.experiment import Experiment
from covey.runs.parts import Parts
from covey.runs.run import Run
from covey.runtimes.base import Answers, Crossing, Play, Question
from covey.runtimes.contract import Lane
from covey.runtimes.simulator import Simulator
from covey.types import Ids

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


@dataclass(eq=False)
class ReplaySimulator(Simulator):
    """The simulator, in which some nodes do not get an ask, and others answer too late.

    A late node runs the program: what it keeps has changed, and so have the residuals of its links.
    Its answer does not count. Neither do its traffic, its notes and its gradients, nor those of the
    nodes below it: in the deployed run they travel with the answer.
    """

    missing: ByAsk = field(default_factory=dict)
    _unheard: dict[str, Ids] = field(default_factory=dict)
    """By tier: the nodes whose facts do not reach the server in the ask that is under way."""

    def _new_play(self, round: int, lane: Lane) -> Play:
        self._unheard.clear()
        return super()._new_play(round, lane)

    def _question(self, me: Nodes, ask: AskArguments) -> Question:
        """An ask; who was asked by a node that is not heard is in no cohort."""
        question = super()._question(me, ask)
        unheard = self._unheard_children(me, question)
        if len(unheard) and self._play.trains:
            cohorts = self._play.facts.cohorts[question.tier]
            asked = cohorts.pop()
            cohorts.append(asked[~torch.isin(asked, unheard)])
        return question

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """As in the simulator, without those who were absent; late answers do not count."""
        place = (question.round, self._play.lane, question.path, question.tier)
        missing = self.missing.get(place, {})
        status = [missing.get(number) for number in question.ids.tolist()]
        there = torch.tensor([entry in (None, "late") for entry in status], dtype=torch.bool)
        in_time = torch.tensor([entry is None for entry in status], dtype=torch.bool)
        sent, down = self._all_sent(question)  # a parent packs for those who are absent too
        late = question.ids[~in_time]
        before = self._unheard.get(question.tier)
        self._unheard[question.tier] = torch.cat([late, self._unheard_children(me, question)])
        answers = self._all_answers(me, sent.only(there), down)
        del self._unheard[question.tier]
        if before is not None:
            self._unheard[question.tier] = before
        if bool(in_time.all()):
            return answers
        present = there[question.answers]
        counted = in_time[question.answers][present]
        return Answers(answers.parts, counted, present)

    def _unheard_children(self, me: Nodes, question: Question) -> Ids:
        """Those who run for an asker that is not heard."""
        unheard = self._unheard.get(me.tier)
        if unheard is None:
            return question.ids[:0]
        askers = torch.isin(question.askers, unheard)
        return question.ids[askers[question.asker]]

    def _route(self, crossing: Crossing) -> Route:
        """Where messages go; those of a sender that is not heard are not counted."""
        route = super()._route(crossing)
        unheard = self._unheard.get(crossing.key.sender)
        if unheard is None:
            return route
        counts = ~torch.isin(crossing.senders, unheard)
        ends = route.ends
        if ends is not None:
            own = counts[ends.rows]
            ends = LowerEnds(ends.tier, ends.ids[own], ends.rows[own])
        return replace(route, copies=crossing.copies * counts, ends=ends)

    def _add_facts(
        self,
        tier: str,
        ids: Ids,
        call: Call,
        idle: Tensor | None,
    ) -> None:
        """Add up what those nodes noted and worked that are heard."""
        unheard = self._unheard.get(tier)
        if unheard is None:
            super()._add_facts(tier, ids, call, idle)
            return
        heard = ~torch.isin(ids, unheard)
        if idle is not None:
            idle = idle[heard]
        super()._add_facts(tier, ids[heard], _of_some(call, heard), idle)


def _of_some(call: Call, chosen: Tensor) -> Call:
    """What some of the nodes noted and worked, bool [n]."""
    notes = {name: tuple(values[chosen] for values in noted) for name, noted in call.notes.items()}
    gradients = call.gradients
    if isinstance(gradients, Tensor) and gradients.ndim:
        gradients = gradients[chosen]
    reports = {name: figures[chosen] for name, figures in call.reports.items()}
    return Call(needs=call.needs, notes=notes, gradients=gradients, reports=reports)


@dataclass(frozen=True)
class ReplayFactory:
    """Makes the simulator that repeats a deployed run."""

    missing: ByAsk

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse what a deployed tree cannot run."""
        check(experiments)

    def make(self, parts: Parts) -> ReplaySimulator:
        """The simulator of one experiment."""
        return ReplaySimulator(parts.spec(parts.data), missing=self.missing)


def replay(
    experiment: Experiment,
    missing: Iterable[Missing],
    resume: str | os.PathLike[str] | None = None,
) -> Run:
    """The deployed run of an experiment, again in the simulator: one record for each round."""
    return Run(experiment, runtime=ReplayFactory(by_ask(missing)), resume=resume)
