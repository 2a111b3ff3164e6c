"""The table [tree] of a file: how many edges there are, and who stands under which."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from covey import fields
from covey.data import Shards
from covey.data.partitions import edges
from covey.engine.similar import similar
from covey.errors import ConfigError
from covey.fields import nearest, spelled
from covey.tree import Tree

Form = Literal["consecutive", "random", "similar", "worst", "average", "data"]


@dataclass(frozen=True)
class TreeConfig:
    """How many edges there are and who stands under which; deeper trees by their child counts."""

    edges: int | list[int] | None = None  # how many, or how many devices each has
    form: Form | None = None  # who stands under which edge: consecutive devices, random ones, those
    # whose first updates are similar, by the label sets of PerMFL's Table 2 (worst, average), or as
    # the data says, which is the default where it does
    children: list[list[int]] | None = None  # child counts of every node, tier by tier
    tiers: list[str] | None = None  # the names of the tiers of `children`

    def build(
        self,
        shards: Shards,
        model: torch.nn.Module,
        seed: int,
    ) -> tuple[Shards, Tree]:
        """The tree, and the data with its devices in the tree's order."""
        self._check(shards)
        if self.children is not None:
            return shards, Tree(tuple(map(tuple, self.children)), tuple(self.tiers or ()))
        if self.form == "worst":
            return edges.by_label(shards, edges.WORST)
        if self.form == "average":
            return edges.by_label(shards, edges.AVERAGE)
        if isinstance(self.edges, int):
            if not 1 <= self.edges <= shards.devices:
                raise ConfigError(
                    f"tree.edges = {self.edges} for {shards.devices} devices: "
                    f"give 1 to {shards.devices}."
                )
            if self.form == "similar":
                return similar(shards, model, self.edges, seed)
            if self.form == "random":
                return edges.random(shards, self.edges, seed)
            return edges.consecutive(shards, self.edges)
        if self.edges is not None:
            return shards, Tree.grouped(self.edges)
        if shards.edges and self.form in (None, "data"):
            return shards, Tree.grouped(shards.edges)
        return shards, Tree.flat(shards.devices)

    def _check(self, shards: Shards) -> None:
        if self.edges is not None and self.children is not None:
            raise ConfigError("tree.edges and tree.children are both given; keep one of them.")
        if self.tiers is not None and self.children is None:
            raise ConfigError(
                "tree.tiers names the tiers of tree.children; "
                "give those too, or leave out tree.tiers."
            )
        if self.form in ("random", "similar") and not isinstance(self.edges, int):
            raise ConfigError(
                f"tree.form = {spelled(self.form)} needs the number of edges, as in "
                f"tree.edges = 4, not {spelled(self.edges)}."
            )
        if self.form in ("worst", "average", "data") and self.edges is not None:
            raise ConfigError(
                f"tree.form = {spelled(self.form)} decides the edges; "
                f"leave out tree.edges = {spelled(self.edges)}."
            )
        if self.form == "data" and not shards.edges:
            raise ConfigError(
                f'tree.form = "data", but {shards.name} has no edges; give tree.edges.'
            )
        if self.form is not None and self.children is not None:
            raise ConfigError(
                f"tree.form = {spelled(self.form)} is for tree.edges; leave it out, "
                "or tree.children."
            )


def read(table: Mapping[str, Any]) -> TreeConfig:
    """The table, checked; a word for `edges` is refused, because it belongs to `form`."""
    edges = table.get("edges")
    if not isinstance(edges, str) or edges == "none":
        return fields.read(TreeConfig, table, "tree.")
    forms = typing.get_args(Form)
    rule = "edges is the number of edges, or a list of the devices per edge"
    if edges not in forms:
        raise ConfigError(
            f"tree.edges = {spelled(edges)}: {rule}, as in tree.edges = 4 or [5, 5]; "
            f"tree.form sets the edge of each device{nearest(edges, forms)}, "
            f"one of {', '.join(forms)}."
        )
    form = f"tree.form = {spelled(edges)}"
    if edges in ("consecutive", "random", "similar"):
        form += " together with the number of edges, as in tree.edges = 4"
    raise ConfigError(f"tree.edges = {spelled(edges)}: {rule}; for this order give {form}.")
