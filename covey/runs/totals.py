"""Sums over all rounds for every node of a run: bytes and, with a radio, its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from covey.links.meter import DIRECTIONS
from covey.links.node_bytes import NodeKey

Totals = Mapping[NodeKey, Tensor]
"""By tier and name, one number for each node of the tier: int64 bytes, or float64 figures."""


def plus(totals: Totals, more: Totals) -> Totals:
    """The sums of both; neither of them changes.

    >>> before = {("device", "up"): torch.tensor([3, 0])}
    >>> plus(before, {("device", "up"): torch.tensor([1, 1])})["device", "up"].tolist()
    [4, 1]
    """
    out = dict(totals)
    for key, values in more.items():
        if key in out:
            values = out[key] + values
        out[key] = values
    return out


def tensors(totals: Totals) -> Iterator[tuple[str, Tensor]]:
    """The names under which a checkpoint holds the sums, and the sums."""
    for number, values in enumerate(totals.values()):
        yield f"totals.{number}", values


def read(keys: list[list[str]], saved: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Totals:
    """The sums in a checkpoint; a ValueError where they do not fit tiers of these sizes."""
    out = {}
    for number, (tier, name) in enumerate(keys):
        values = saved[f"totals.{number}"]
        wanted = torch.int64 if name in DIRECTIONS else torch.float64
        if tier not in sizes or values.dtype != wanted or values.shape != (sizes[tier],):
            form = f"{values.dtype} {tuple(values.shape)}"
            raise ValueError(f"the totals {name!r} of {tier!r} are {form}")
        out[tier, name] = values
    return out
