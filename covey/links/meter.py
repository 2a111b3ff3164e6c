"""Bytes as really encoded, per link and per node, and the papers' cost formulas beside them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import torch
from torch import Tensor

from covey.errors import CheckpointError, ConfigError
from covey.types import Ids

Key = tuple[str, str, str]
NodeKey = tuple[str, str]
"""(tier, direction) of messages: the tier is the lower one of their link. Figures of nodes other
than bytes have a name for the direction."""
DIRECTIONS = ("down", "up")
LANES = ("train", "score")


@dataclass(frozen=True)
class Traffic:
    """The traffic of one link in one direction.

    `bytes` are those of the encoded messages, `values` the numbers in them, and `nonzeros` those
    that are not 0. `dense` are the bytes that the same messages take with the dense codec.

    >>> Traffic(bytes=10, messages=1) + Traffic(bytes=5, messages=1)
    Traffic(bytes=15, messages=2, values=0, nonzeros=0, dense=0)
    """

    bytes: int = 0
    messages: int = 0
    values: int = 0
    nonzeros: int = 0
    dense: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass
class Meter:
    """Totals by (link, direction, lane), such as ("server-edge", "down", "train").

    Scoring has a lane of its own.

    >>> meter = Meter()
    >>> meter.count("server-edge", "down", "train", Traffic(bytes=100, messages=1))
    >>> meter.count("server-edge", "up", "train", Traffic(bytes=40, messages=1))
    >>> meter.bytes(), meter.bytes(direction="up")
    (140, 40)
    """

    totals: dict[Key, Traffic] = field(default_factory=dict)

    def count(self, link: str, direction: str, lane: str, traffic: Traffic) -> None:
        """Add what has just crossed a link."""
        if direction not in DIRECTIONS or lane not in LANES:
            fix = f"use one of {DIRECTIONS} and of {LANES}"
            raise ConfigError(f"cannot count ({link!r}, {direction!r}, {lane!r}); {fix}.")
        key = (link, direction, lane)
        self.totals[key] = self.totals.get(key, Traffic()) + traffic

    def plus(self, traffic: Mapping[Key, Traffic]) -> Meter:
        """The meter with more traffic added; this one stays as it is."""
        totals = dict(self.totals)
        for key, more in traffic.items():
            totals[key] = totals.get(key, Traffic()) + more
        return Meter(totals)

    def traffic(
        self,
        *,
        link: str | None = None,
        direction: str | None = None,
        lane: str | None = "train",
    ) -> Traffic:
        """The sum over whatever is left None."""
        out = Traffic()
        for key, traffic in self.totals.items():
            pairs = zip((link, direction, lane), key, strict=True)
            if all(wanted in (None, own) for wanted, own in pairs):
                out = out + traffic
        return out

    def bytes(
        self,
        *,
        link: str | None = None,
        direction: str | None = None,
        lane: str | None = "train",
    ) -> int:
        """The encoded bytes of `traffic`."""
        return self.traffic(link=link, direction=direction, lane=lane).bytes

    def state(self) -> list[list[str | int]]:
        """The totals for a checkpoint: link, direction, lane, then the numbers of Traffic."""
        return [[*key, *astuple(traffic)] for key, traffic in self.totals.items()]

    @classmethod
    def from_state(cls, state: Sequence[Sequence[str | int]]) -> Meter:
        """The meter whose `state` this is."""
        meter = cls()
        for row in state:
            types = [type(value) for value in row]
            if types != [str] * 3 + [int] * 5:
                expected = "three names and five whole numbers"
                raise CheckpointError(f"meter entry {row!r}, expected {expected}.")
            link, direction, lane = map(str, row[:3])
            meter.count(link, direction, lane, Traffic(*map(int, row[3:])))
        return meter


@dataclass(frozen=True, eq=False)
class LowerEnds:
    """The nodes at the lower end of a link that some messages cross.

    `rows` has the position of the row that each of them receives or sends, [m].
    """

    tier: str
    ids: Ids
    rows: Tensor


@dataclass
class NodeBytes:
    """The bytes of training of single nodes: what crossed the link above each.

    >>> bytes = NodeBytes()
    >>> bytes.add("device", "up", torch.tensor([2, 0]), torch.tensor([10, 5]))
    >>> bytes.add("device", "up", torch.tensor([2]), torch.tensor([1]))
    >>> bytes.sums()["device", "up"]
    (tensor([2, 0, 2]), tensor([10,  5,  1]))
    """

    chunks: dict[NodeKey, list[tuple[Ids, Tensor]]] = field(default_factory=dict)

    def add(self, tier: str, direction: str, ids: Ids, lengths: Tensor) -> None:
        """Count the lengths [m] of messages to or from nodes, [m]."""
        chunks = self.chunks.setdefault((tier, direction), [])
        chunks.append((ids, lengths))

    def sums(self) -> dict[NodeKey, tuple[Ids, Tensor]]:
        """(ids, bytes) by tier and direction; a node has an entry for each of its messages."""
        out = {}
        for key, chunks in sorted(self.chunks.items()):
            ids, lengths = zip(*chunks, strict=True)
            out[key] = (torch.cat(ids), torch.cat(lengths))
        return out

    def as_list(self) -> list[list[object]]:
        """As JSON can hold it, with one sum for each node.

        >>> bytes = NodeBytes()
        >>> bytes.add("device", "up", torch.tensor([2, 0, 2]), torch.tensor([10, 5, 1]))
        >>> bytes.as_list()
        [['device', 'up', [0, 2], [5, 11]]]
        """
        out: list[list[object]] = []
        for (tier, direction), (ids, lengths) in self.sums().items():
            nodes, position = torch.unique(ids, return_inverse=True)
            sums = torch.zeros_like(nodes).index_add_(0, position, lengths)
            out.append([tier, direction, nodes.tolist(), sums.tolist()])
        return out

    def merge(self, entries: Sequence[Sequence[object]]) -> None:
        """Add what another's `as_list` gave."""
        for tier, direction, *columns in entries:
            ids, lengths = torch.tensor(columns, dtype=torch.int64)
            self.add(str(tier), str(direction), ids, lengths)


def dense_bits(values: int) -> int:
    """Both papers' cost without sparsity: 64 bits a value."""
    return 64 * values


def paper_bits(down: Traffic, up: Traffic) -> float:
    """FedMac's printed cost, for what really travelled in both directions.

    It charges each zero one bit, and one bitmap for both directions together.
    """
    both = down + up
    return 64 * both.nonzeros + (both.values - both.nonzeros) + both.values / 2


def bitmap_bits(down: Traffic, up: Traffic) -> int:
    """The consistent form of that cost: 64 bits a non-zero and 1 bit a value, each direction."""
    both = down + up
    return 64 * both.nonzeros + both.values
