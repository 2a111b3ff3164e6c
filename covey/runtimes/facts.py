"""The facts of a program run besides its answer: cohorts, notes, gradients, traffic, reports.

The facts of a subtree travel up with its answers, and are added up.

A cohort of more than `MOST` nodes is recorded as ranges of ids. Where it has too many ranges, it is
recorded as a count and a hash: the seed, the round and the ask decide who is drawn, so the same
experiment draws the same nodes again.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.kernel.moved import in_main_memory
from covey.kernel.nodes import Call
from covey.links.meter import Key, Meter, NodeBytes, NodeKey, Traffic
from covey.tree import Topology
from covey.types import Ids

MOST = 1000
"""The largest cohort whose ids are listed."""
_RANGES = 250
"""The most ranges that are listed."""


@dataclass(frozen=True)
class ManyIds(Sequence[int]):
    """Ids in rising order: ranges [first, stop), or none of them and a hash of the ids."""

    size: int
    ranges: tuple[tuple[int, int], ...] = ()
    digest: str = ""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        if not self.listed:
            raise ConfigError(
                f"the ids of this cohort are not recorded: it has {self.size}, and more than "
                f"{MOST} are recorded as a hash; run the round again to see them."
            )
        for first, stop in self.ranges:
            yield from range(first, stop)

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        return list(self)[position]

    @property
    def listed(self) -> bool:
        """Whether the ids are here, not only their hash."""
        return not self.digest

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        if self.listed:
            return {"count": self.size, "ranges": [list(pair) for pair in self.ranges]}
        return {"count": self.size, "digest": self.digest}


def recorded_cohort(ids: npt.NDArray[np.int64]) -> Sequence[int]:
    """Different ids in rising order, in the form of a record.

    >>> recorded_cohort(np.arange(3))
    [0, 1, 2]
    >>> recorded_cohort(np.arange(5000)).as_dict()
    {'count': 5000, 'ranges': [[0, 5000]]}
    >>> recorded_cohort(np.arange(0, 5000, 2)).as_dict()
    {'count': 2500, 'digest': 'fa4ec7beff3c7688'}
    """
    if len(ids) <= MOST:
        out: list[int] = ids.tolist()
        return out
    ends = np.flatnonzero(np.diff(ids) != 1)
    if len(ends) < _RANGES:
        starts = ids[np.concatenate([[0], ends + 1])]
        stops = ids[np.concatenate([ends, [len(ids) - 1]])] + 1
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        return ManyIds(len(ids), ranges=tuple(pairs))
    little = ids.astype("<i8")
    digest = hashlib.blake2b(little.tobytes(), digest_size=8).hexdigest()
    return ManyIds(len(ids), digest=digest)


def read_cohort(facts: Sequence[int] | Mapping[str, Any]) -> Sequence[int]:
    """A cohort from a file: a list, or what `ManyIds.as_dict` gave."""
    if not isinstance(facts, Mapping):
        return facts
    ranges = [(int(first), int(stop)) for first, stop in facts.get("ranges", [])]
    return ManyIds(int(facts["count"]), tuple(ranges), str(facts.get("digest", "")))


def plain_cohort(cohort: Sequence[int]) -> Any:
    """A cohort as JSON can hold it."""
    if isinstance(cohort, ManyIds):
        return cohort.as_dict()
    return cohort


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
            ids, figures = zip(*noted, strict=True)
            values = torch.cat([part.double() for part in figures]).cpu()
            own_nodes = _by_seed(tree, tier, torch.cat(ids))
            for partials_of_seed, (own, _) in zip(out, own_nodes, strict=True):
                if len(values[own]):
                    partials_of_seed[key] = Partial.of(values[own].tolist())
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
            for tier, name in sorted(figures, key=lambda key: (tree.index(key[0]), key[1])):
                notes.setdefault(tier, {})[name] = figures[tier, name].note()
            out.append(notes)
        return out


def _by_seed(tree: Topology, tier: str, ids: Ids) -> list[tuple[Tensor | slice, Ids]]:
    """For every seed: the positions of its own among these nodes, and their ids in its tree."""
    if tree.copies == 1:
        return [(slice(None), ids)]
    copy = tree.copy(tier, ids)
    local = tree.local(tier, ids)
    positions = [(copy == number).nonzero()[:, 0] for number in range(tree.copies)]
    return [(own, local[own]) for own in positions]


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
    cohorts: Sequence[dict[str, Sequence[int]]]
    """The nodes that were asked, by tier."""
    notes: Sequence[dict[str, dict[str, Note]]]
    """What programs noted of those asked, by tier and name."""
    gradients: Sequence[int]
    """How many gradients all devices evaluated on their data."""
    traffic: Sequence[dict[Key, Traffic]]
    """What crossed each link."""
    reports: Sequence[Mapping[str, Report]]
    """Figures of single nodes by name, in id order."""
    needs: dict[str, set[str]]
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
class SubtreeFacts:
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
        asked_by_seed: list[dict[str, Sequence[int]]] = [{} for _ in self.meters]
        for tier, chunks in self.cohorts.items():
            ids = torch.from_numpy(np.unique(torch.cat(chunks).numpy()))
            own_ids = _by_seed(self.tree, tier, ids)
            for cohorts, (_, own) in zip(asked_by_seed, own_ids, strict=True):
                cohorts[tier] = recorded_cohort(own.numpy())
        return Played(
            answer=answer,
            cohorts=asked_by_seed,
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
            sums = list(exact_sums(partial.sums))
            notes.append([tier, name, sums, partial.least, partial.most, partial.count])
        reports = []
        for name, chunks in self.reports.items():
            for tier, ids, figures in chunks:
                report = [name, tier, ids.tolist(), figures.tolist()]
                reports.append(report)
        cohorts = {}
        for tier, numbers in self.cohorts.items():
            cohorts[tier] = torch.unique(torch.cat(numbers)).tolist()
        return {
            "traffic": self.meters[0].state(),
            "node_bytes": self.node_bytes.as_list(),
            "cohorts": cohorts,
            "notes": notes,
            "gradients": float(self.gradients[0]),
            "reports": reports,
            "needs": {model: sorted(names) for model, names in self.needs.items()},
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

    def _totals(self, devices: Mapping[str, Tensor]) -> list[dict[NodeKey, tuple[Ids, Tensor]]]:
        """(ids, numbers) of nodes, by seed, tier and name."""
        totals = self.node_bytes.sums()
        for name, figures in devices.items():
            totals[self.tree.tiers[-1], name] = (torch.arange(len(figures)), figures)
        out: list[dict[NodeKey, tuple[Ids, Tensor]]] = [{} for _ in self.meters]
        for (tier, name), (ids, values) in totals.items():
            for sums, (own, local) in zip(out, _by_seed(self.tree, tier, ids), strict=True):
                sums[tier, name] = (local, values[own])
        return out

    def _reports(self) -> list[dict[str, Report]]:
        """(ids, figures) of single nodes, by seed and name, in id order."""
        out: list[dict[str, Report]] = [{} for _ in self.meters]
        sources = []
        parts = []
        for name in sorted(self.reports):
            tiers, ids, figures = zip(*self.reports[name], strict=True)
            sources.append((name, tiers[0], torch.cat(ids)))
            parts.append(torch.cat(figures))
        arrived = in_main_memory(parts)  # with one wait for a GPU
        for (name, tier, numbers), values in zip(sources, arrived, strict=True):
            order = torch.argsort(numbers)
            sorted_values = values[order]
            own_nodes = _by_seed(self.tree, tier, numbers[order])
            for by_name, (own, local) in zip(out, own_nodes, strict=True):
                by_name[name] = (local, sorted_values[own])
        return out
