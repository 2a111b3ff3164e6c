"""The figures of single nodes in one scored round, beside those of devices in `devices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from covey.runs.scores.devices import Sums
from covey.runs.scores.figures import NodeFigures

NONZEROS = "nonzeros"
"""Nodes report the share of non-zeros of a model that they keep as "MODEL/nonzeros"."""
UNKNOWN = -1.0
"""The share of a node that keeps no such model, or was not scored."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Figures of one seed's nodes in one scored round."""

    nonzeros: Mapping[str, NodeFigures]
    """By model: the share of non-zeros of every node of its tier, `UNKNOWN` where there is none."""
    newcomers: Mapping[str, Sums]
    """By model: the sums of every new device."""


def shares(
    reports: Mapping[str, tuple[Tensor, Tensor]], sizes: Mapping[str, int]
) -> dict[str, NodeFigures]:
    """The share of non-zeros of every node, by model; `sizes` are the nodes of its tier.

    Models of a tier of which nobody was scored are left out.
    """
    out = {}
    for name, size in sizes.items():
        if f"{name}/{NONZEROS}" not in reports:
            continue
        ids, figures = reports[f"{name}/{NONZEROS}"]
        out[name] = NodeFigures(size, ids, figures[:, 0].double(), missing=UNKNOWN)
    return out
