"""The figures of single nodes in one scored round, beside those of devices in `devices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.runs.devices import Sums

NONZEROS = "nonzeros"
"""Nodes report the share of non-zeros of a model that they keep as "MODEL/nonzeros"."""
UNKNOWN = -1.0
"""The share of a node that keeps no such model, or was not scored."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Figures of one seed's nodes in one scored round."""

    nonzeros: Mapping[str, Tensor]
    """By model: the share of non-zeros of every node of its tier, `UNKNOWN` where there is none."""
    newcomers: Mapping[str, Sums]
    """By model: the sums of every new device."""


def shares(
    reports: Mapping[str, tuple[Tensor, Tensor]], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """The share of non-zeros of every node, by model; `sizes` are the nodes of its tier."""
    out = {}
    for name, size in sizes.items():
        share = torch.full((size,), UNKNOWN, dtype=torch.float64)
        ids, figures = reports[f"{name}/{NONZEROS}"]
        share[ids] = figures[:, 0]
        out[name] = share
    return out
