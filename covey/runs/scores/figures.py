"""Figures of single nodes: of those that a round has scored, and sums over all rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.links.meter import DIRECTIONS, NodeKey

_ADDENDS = 1024
_LENGTH = 4096

PARTS = ("train", "validation", "test")
METRICS = 6
MOST_EXAMPLES = 2**32 - 2
"""Of one device: its right answers are recorded in four bytes (covey/runs/scores/packing.py)."""
NONZEROS = "nonzeros"
"""Nodes report the share of non-zeros of a model that they keep as "MODEL/nonzeros"."""
UNKNOWN = -1.0
"""The share of a node that keeps no such model, or was not scored."""
Reports = Mapping[str, tuple[Tensor, Tensor]]
"""(ids, figures) of every node that was scored, by "MODEL/PART" or "MODEL/nonzeros"."""


@dataclass(frozen=True, eq=False)
class NodeFigures:
    """Figures of the nodes that were asked for them: ids [m], values [m, ...].

    They take the memory of those m nodes, of however many there are.

    >>> NodeFigures(4, torch.tensor([1, 3]), torch.tensor([0.5, 0.25]), missing=-1.0).dense()
    tensor([-1.0000,  0.5000, -1.0000,  0.2500])
    """

    nodes: int
    ids: Tensor
    values: Tensor
    missing: float = 0.0
    """The figure of all other nodes."""

    @staticmethod
    def of_all(values: Tensor) -> NodeFigures:
        """The figures of all nodes."""
        return NodeFigures(len(values), torch.arange(len(values)), values)

    def dense(self) -> Tensor:
        """The figures of all nodes, [nodes, ...]."""
        shape = (self.nodes, *self.values.shape[1:])
        out = torch.full(shape, self.missing, dtype=self.values.dtype)
        out[self.ids] = self.values
        return out


Sums = dict[str, NodeFigures]
"""By part of the data: what the m devices report that were scored
(covey/engine/measures/metrics.py), [m, 4]; where numbers are predicted, [m, 6] with the sums of
errors. Values of metrics follow as columns 6 and up; where there are no errors, columns 4 and 5 are
then NaN."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Figures of one seed's nodes in one scored round, beside what devices report."""

    nonzeros: Mapping[str, NodeFigures]
    """By model: the share of non-zeros of every node of its tier, `UNKNOWN` where there is none."""
    newcomers: Mapping[str, Sums]
    """By model: the sums of every new device."""


def sums_of(reports: Reports, devices: int) -> dict[str, Sums]:
    """The figures of every device that was scored, by model and part."""
    out: dict[str, Sums] = {}
    for name, (ids, figures) in reports.items():
        model, _, part = name.rpartition("/")
        if part in PARTS:
            out.setdefault(model, {})[part] = NodeFigures(devices, ids, figures.double())
    return out


def shares(reports: Reports, sizes: Mapping[str, int]) -> dict[str, NodeFigures]:
    """The share of non-zeros of every node, by model; `sizes` are the nodes of its tier.

    Models of a tier of which nobody was scored are left out.
    """
    out = {}
    for model, size in sizes.items():
        name = f"{model}/{NONZEROS}"
        if name in reports:
            ids, figures = reports[name]
            out[model] = NodeFigures(size, ids, figures[:, 0].double(), missing=UNKNOWN)
    return out


Addend = tuple[Tensor, Tensor]
"""(ids [m], values [m]); an id may come several times."""


@dataclass(frozen=True, eq=False)
class NodeTotals:
    """One number for each node: a base, [nodes], and what rounds have added since.

    Addends are put into a new base when they have as many numbers as there are nodes, so that a
    round costs what it adds. They are added in order, and so the bits are those of a sum that is
    made in every round.

    >>> total = NodeTotals(torch.zeros(3, dtype=torch.int64))
    >>> total = total.plus((torch.tensor([2, 0, 2]), torch.tensor([10, 5, 1])))
    >>> total.dense()
    tensor([ 5,  0, 11])
    """

    base: Tensor
    addends: tuple[Addend, ...] = ()
    length: int = 0
    """How many numbers the addends have."""

    def plus(self, addend: Addend) -> NodeTotals:
        """The sum with one more addend; this one does not change."""
        length = self.length + len(addend[0])
        out = NodeTotals(self.base, (*self.addends, addend), length)
        if length > max(len(self.base), _LENGTH) or len(out.addends) > _ADDENDS:
            return NodeTotals(out.dense())
        return out

    def dense(self) -> Tensor:
        """The sum for every node, [nodes]."""
        out = self.base.clone()
        for ids, values in self.addends:
            out.index_add_(0, ids, values)
        return out

    def since(self, other: NodeTotals) -> tuple[Addend, ...] | None:
        """What was added since an earlier sum; None where only the whole sum can say it."""
        if self.base is not other.base:
            return None
        return self.addends[len(other.addends) :]


Totals = Mapping[NodeKey, NodeTotals]
"""By tier and name, one number for each node of the tier: int64 bytes, or float64 figures."""


def totals_plus(totals: Totals, more: Mapping[NodeKey, Addend], sizes: Mapping[str, int]) -> Totals:
    """The sums of both; neither of them changes. `sizes` are the nodes of each tier.

    >>> key, ids, sent = ("device", "up"), torch.tensor([0, 1]), torch.tensor([3, 1])
    >>> before = totals_plus({}, {key: (ids[:1], sent[:1])}, {"device": 2})
    >>> totals_plus(before, {key: (ids, sent)}, {"device": 2})[key].dense().tolist()
    [6, 1]
    """
    out = dict(totals)
    for key, addend in more.items():
        total = out.get(key)
        if total is None:
            tier, _ = key
            total = NodeTotals(torch.zeros(sizes[tier], dtype=addend[1].dtype))
        out[key] = total.plus(addend)
    return out


def total_tensors(totals: Totals) -> Iterator[tuple[str, Tensor]]:
    """The names under which a checkpoint holds the sums, and the sums."""
    for number, total in enumerate(totals.values()):
        yield f"totals.{number}", total.dense()


def read_totals(
    keys: list[list[str]], saved: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> Totals:
    """The sums in a checkpoint; a ValueError where they do not fit tiers of these sizes."""
    out = {}
    for number, (tier, name) in enumerate(keys):
        values = saved[f"totals.{number}"]
        wanted = torch.int64 if name in DIRECTIONS else torch.float64
        if tier not in sizes or values.dtype != wanted or values.shape != (sizes[tier],):
            form = f"{values.dtype} {tuple(values.shape)}"
            raise ValueError(f"the totals {name!r} of {tier!r} are {form}")
        out[tier, name] = NodeTotals(values)
    return out
