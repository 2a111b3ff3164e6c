"""Sums over all rounds for every node of a run: bytes, and figures of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from covey.links.meter import DIRECTIONS
from covey.links.node_bytes import NodeKey
from covey.runs.scores.figures import Addend, NodeTotals

Totals = Mapping[NodeKey, NodeTotals]
"""By tier and name, one number for each node of the tier: int64 bytes, or float64 figures."""


def plus(totals: Totals, more: Mapping[NodeKey, Addend], sizes: Mapping[str, int]) -> Totals:
    """The sums of both; neither of them changes. `sizes` are the nodes of each tier.

    >>> before = plus({}, {("device", "up"): (torch.tensor([0]), torch.tensor([3]))}, {"device": 2})
    >>> more = {("device", "up"): (torch.tensor([0, 1]), torch.tensor([1, 1]))}
    >>> plus(before, more, {"device": 2})["device", "up"].dense().tolist()
    [4, 1]
    """
    out = dict(totals)
    for key, addend in more.items():
        total = out.get(key)
        if total is None:
            tier, _ = key
            total = NodeTotals(torch.zeros(sizes[tier], dtype=addend[1].dtype))
        out[key] = total.plus(addend)
    return out


def dense(totals: Totals) -> dict[NodeKey, Tensor]:
    """The sums of every node, [nodes] each."""
    return {key: total.dense() for key, total in totals.items()}


def tensors(totals: Totals) -> Iterator[tuple[str, Tensor]]:
    """The names under which a checkpoint holds the sums, and the sums."""
    for number, total in enumerate(totals.values()):
        yield f"totals.{number}", total.dense()


def read(keys: list[list[str]], saved: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Totals:
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
