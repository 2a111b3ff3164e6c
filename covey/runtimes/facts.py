"""The facts of a program run besides its answer: cohorts, notes, gradients, traffic, reports.

The facts of a subtree travel up with its answers, and are added up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.kernel.call import Call
from covey.links.meter import Key, Meter, Traffic
from covey.links.node_bytes import NodeBytes, NodeKey
from covey.runtimes import cohort
from covey.runtimes.notes import Note, Notes, Partial
from covey.tree import Topology
from covey.types import Ids

ReportChunk = tuple[str, Ids, Tensor]
"""(tier, ids, figures [n, k]) of some nodes."""
Report = tuple[Ids, Tensor]
"""(ids, figures [n, k]) of the nodes of one seed, whose ids count from 0."""


@dataclass(frozen=True, eq=False)
class Played:
    """What one program of the top tier did, with everything below it.

    Lists have one entry for each seed.
    """

    answer: Any
    cohorts: Sequence[Mapping[str, Sequence[int]]]
    """The nodes that were asked, by tier."""
    notes: Sequence[Mapping[str, Mapping[str, Note]]]
    """What programs noted of those asked, by tier and name."""
    gradients: Sequence[int]
    """How many gradients all devices evaluated on their data."""
    traffic: Sequence[Mapping[Key, Traffic]]
    """What crossed each link."""
    reports: Sequence[Mapping[str, Report]]
    """Figures of single nodes by name, in id order."""
    needs: Mapping[str, set[str]]
    """What devices recalled to predict with each model."""
    environment: Sequence[Any] | None
    """The environment's record of the round."""
    spent: Mapping[str, float]
    """Seconds by what they were spent on."""
    totals: Sequence[Mapping[NodeKey, tuple[Ids, Tensor]]] = ()
    """(ids, numbers) of the round by tier and name; the numbers of a node are to be added.

    "down" and "up" are the bytes of training that crossed the link above the node. Others are the
    environment's figures of devices.
    """


@dataclass(eq=False)
class Facts:
    """The facts of a subtree, of one tree or of several copies of it."""

    tree: Topology
    meters: list[Meter] = field(init=False)
    node_bytes: NodeBytes = field(default_factory=NodeBytes)
    cohorts: dict[str, list[Tensor]] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    gradients: Tensor = field(init=False)
    reports: dict[str, list[ReportChunk]] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        copies = self.tree.copies
        self.meters = [Meter() for _ in range(copies)]
        self.gradients = torch.zeros(copies, dtype=torch.float64)
        self._writing = threading.Lock()

    def asked(self, tier: str, ids: Ids) -> None:
        """Record who was asked."""
        self.cohorts.setdefault(tier, []).append(ids)

    def add(self, tier: str, ids: Ids, call: Call, *, trains: bool) -> None:
        """Record the work of a call.

        Gradients are whole numbers, so the order of workers does not matter.
        """
        with self._writing:
            if len(ids):
                for name, figures in call.reports.items():
                    chunks = self.reports.setdefault(name, [])
                    chunks.append((tier, ids, figures))
            for model, names in call.needs.items():
                self.needs.setdefault(model, set()).update(names)
            if trains:
                counts = torch.as_tensor(call.gradients, dtype=torch.float64)
                counts = counts.cpu().expand(len(ids))
                copy = self.tree.copy(tier, ids)
                self.gradients.index_add_(0, copy, counts)

    def played(
        self,
        answer: Any,
        environment: Sequence[Any] | None,
        spent: Mapping[str, float],
        devices: Mapping[str, Tensor],
    ) -> Played:
        """Everything in the form of the run's record.

        `devices` are the environment's figures of all devices.
        """
        return Played(
            answer=answer,
            cohorts=self._cohorts(),
            notes=self.notes.read(self.tree),
            gradients=[int(count) for count in self.gradients.tolist()],
            traffic=[meter.totals for meter in self.meters],
            reports=self._reports(),
            needs=self.needs,
            environment=environment,
            spent=spent,
            totals=self._totals(devices),
        )

    def as_dict(self) -> dict[str, Any]:
        """The facts of one tree as JSON can hold them; floats keep their bits."""
        partials = self.notes.partials(self.tree)[0]
        notes = []
        for (tier, name), partial in partials.items():
            short = partial.condensed()
            sums = list(short.sums)
            note = [tier, name, sums, short.least, short.most, short.count]
            notes.append(note)
        reports = []
        for name, chunks in self.reports.items():
            for tier, ids, figures in chunks:
                report = [name, tier, ids.tolist(), figures.tolist()]
                reports.append(report)
        cohorts = {}
        for tier, numbers in self.cohorts.items():
            cohorts[tier] = torch.unique(torch.cat(numbers)).tolist()
        needs = {}
        for model, names in self.needs.items():
            needs[model] = sorted(names)
        return {
            "traffic": self.meters[0].state(),
            "node_bytes": self.node_bytes.as_list(),
            "cohorts": cohorts,
            "notes": notes,
            "gradients": float(self.gradients[0]),
            "reports": reports,
            "needs": needs,
        }

    def merge(self, facts: Mapping[str, Any]) -> None:
        """Add the facts of a subtree, as its `as_dict` gave them."""
        meter = Meter.from_state(facts["traffic"])
        for key, traffic in meter.totals.items():
            self.meters[0].count(*key, traffic)
        self.node_bytes.merge(facts["node_bytes"])
        for tier, numbers in facts["cohorts"].items():
            ids = torch.tensor(numbers, dtype=torch.int64)
            self.asked(tier, ids)
        for tier, name, sums, *rest in facts["notes"]:
            partial = Partial(tuple(sums), *rest)
            self.notes.merge(tier, name, partial)
        self.gradients[0] += facts["gradients"]
        for name, tier, numbers, values in facts["reports"]:
            ids = torch.tensor(numbers)
            figures = torch.tensor(values, dtype=torch.float64)
            chunks = self.reports.setdefault(name, [])
            chunks.append((tier, ids, figures))
        for model, names in facts["needs"].items():
            self.needs.setdefault(model, set()).update(names)

    def _cohorts(self) -> list[dict[str, Sequence[int]]]:
        """The ids of those asked, by seed and tier; each seed counts from 0."""
        out: list[dict[str, Sequence[int]]] = [{} for _ in self.meters]
        for tier, chunks in self.cohorts.items():
            asked = torch.cat(chunks).numpy()
            ids = np.unique(asked)
            size = self.tree.size(tier) // self.tree.copies
            copy = ids // size
            for number, cohorts in enumerate(out):
                own = ids[copy == number] - number * size
                cohorts[tier] = cohort.recorded(own)
        return out

    def _totals(self, devices: Mapping[str, Tensor]) -> list[dict[NodeKey, tuple[Ids, Tensor]]]:
        """(ids, numbers) of nodes, by seed, tier and name."""
        totals = self.node_bytes.sums()
        for name, figures in devices.items():
            totals[self.tree.tiers[-1], name] = (torch.arange(len(figures)), figures)
        copies = self.tree.copies
        if copies == 1:
            return [totals]
        out: list[dict[NodeKey, tuple[Ids, Tensor]]] = [{} for _ in range(copies)]
        for (tier, name), (ids, values) in totals.items():
            copy = self.tree.copy(tier, ids)
            local = self.tree.local(tier, ids)
            for number, sums in enumerate(out):
                own = copy == number
                sums[tier, name] = (local[own], values[own])
        return out

    def _reports(self) -> list[dict[str, Report]]:
        """(ids, figures) of single nodes, by seed and name, in id order."""
        out: list[dict[str, Report]] = [{} for _ in self.meters]
        reports = self._read_reports()
        for name, chunks in sorted(self.reports.items()):
            tiers, numbers, _ = zip(*chunks, strict=True)
            tier = tiers[0]
            ids = torch.cat(numbers)
            figures = torch.cat(reports[name])
            order = torch.argsort(ids)
            copy = self.tree.copy(tier, ids[order])
            for number, by_name in enumerate(out):
                own = order[copy == number]
                local = self.tree.local(tier, ids[own])
                by_name[name] = (local, figures[own])
        return out

    def _read_reports(self) -> dict[str, list[Tensor]]:
        """The figures of every name in main memory, with one wait for a GPU."""
        chunks = [figures for parts in self.reports.values() for _, _, figures in parts]
        arrived = iter(in_main_memory(chunks))
        out = {}
        for name, parts in self.reports.items():
            out[name] = [next(arrived) for _ in parts]
        return out


def in_main_memory(values: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors in main memory; those of one type on a GPU come in one copy."""
    waiting: dict[torch.dtype, list[Tensor]] = {}
    for tensor in values:
        if tensor.device.type != "cpu":
            waiting.setdefault(tensor.dtype, []).append(tensor)
    arrived: dict[torch.dtype, Iterator[Tensor]] = {}
    for dtype, tensors in waiting.items():
        together = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
        sizes = [tensor.numel() for tensor in tensors]
        arrived[dtype] = iter(torch.split(together, sizes))
    out = []
    for tensor in values:
        if tensor.device.type != "cpu":
            tensor = next(arrived[tensor.dtype]).view(tensor.shape)
        out.append(tensor)
    return out
