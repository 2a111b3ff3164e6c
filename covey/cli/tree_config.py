"""The table [tree] of a file: how many edges there are, and who stands under which."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel

from covey.cli.validate import STRICT, check, nearest, spell
from covey.data import Shards, edges
from covey.engine.similar import similar
from covey.errors import ConfigError
from covey.tree import Tree


class TreeConfig(BaseModel):
    """How many edges there are and who stands under which; deeper trees by their child counts.

    `edges`: how many, or how many devices each has. `children`: child counts of every node, tier by
    tier, for deeper trees.

    `form` says who stands under which edge: consecutive devices, random ones, those whose first
    updates are similar, by the label sets of PerMFL's Table 2 (worst, average), or as the data
    says, which is the default where it does.
    """

    model_config = STRICT
    edges: int | list[int] | None = None
    form: Literal["consecutive", "random", "similar", "worst", "average", "data"] | None = None
    children: list[list[int]] | None = None
    tiers: list[str] | None = None

    def build(self, shards: Shards, model: torch.nn.Module, seed: int) -> tuple[Shards, Tree]:
        """The tree, and the data with its devices in the tree's order."""
        self._check(shards)
        if self.children is not None:
            return shards, Tree(tuple(map(tuple, self.children)), tuple(self.tiers or ()))
        if self.form == "worst":
            return edges.by_label(shards, edges.WORST)
        if self.form == "average":
            return edges.by_label(shards, edges.AVERAGE)
        if isinstance(self.edges, int):
            return self._numbered(shards, model, seed, self.edges)
        if self.edges is not None:
            return shards, Tree.grouped(self.edges)
        if shards.edges and self.form in (None, "data"):
            return shards, Tree.grouped(shards.edges)
        return shards, Tree.flat(shards.devices)

    def _numbered(
        self, shards: Shards, model: torch.nn.Module, seed: int, count: int
    ) -> tuple[Shards, Tree]:
        """The tree with a number of edges of near equal size."""
        if not 1 <= count <= shards.devices:
            raise ConfigError(
                f"tree.edges = {count} for {shards.devices} devices: give 1 to {shards.devices}."
            )
        if self.form == "similar":
            return similar(shards, model, count, seed)
        if self.form == "random":
            return edges.random(shards, count, seed)
        return edges.consecutive(shards, count)

    def _check(self, shards: Shards) -> None:
        if self.edges is not None and self.children is not None:
            raise ConfigError("tree.edges and tree.children are both given; keep one of them.")
        if self.tiers is not None and self.children is None:
            raise ConfigError(
                "tree.tiers names the tiers of tree.children; "
                "give those too, or leave out tree.tiers."
            )
        self._check_form(shards)

    def _check_form(self, shards: Shards) -> None:
        if self.form in ("random", "similar") and not isinstance(self.edges, int):
            raise ConfigError(
                f"tree.form = {spell(self.form)} needs the number of edges, as in tree.edges = 4, "
                f"not {spell(self.edges)}."
            )
        if self.form in ("worst", "average", "data") and self.edges is not None:
            raise ConfigError(
                f"tree.form = {spell(self.form)} decides the edges; "
                f"leave out tree.edges = {spell(self.edges)}."
            )
        if self.form == "data" and not shards.edges:
            raise ConfigError(
                f'tree.form = "data", but {shards.name} has no edges; give tree.edges.'
            )
        if self.form is not None and self.children is not None:
            raise ConfigError(
                f"tree.form = {spell(self.form)} is for tree.edges; leave it out, or tree.children."
            )


def read(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table, checked, without what it leaves to its defaults."""
    _check_edges(table)
    return check(TreeConfig, dict(table), "tree.").model_dump(exclude_none=True)


def _check_edges(tree: Mapping[str, Any]) -> None:
    """Refuse a word for `edges`: it is a number, and the word belongs to `form`."""
    edges = tree.get("edges")
    if not isinstance(edges, str) or edges == "none":
        return
    forms = typing.get_args(typing.get_args(TreeConfig.model_fields["form"].annotation)[0])
    rule = "edges is the number of edges, or a list of the devices per edge"
    if edges not in forms:
        raise ConfigError(
            f"tree.edges = {spell(edges)}: {rule}, as in tree.edges = 4 or [5, 5]; "
            f"tree.form sets the edge of each device{nearest(edges, forms)}, "
            f"one of {', '.join(forms)}."
        )
    form = f"tree.form = {spell(edges)}"
    if edges in ("consecutive", "random", "similar"):
        form += " together with the number of edges, as in tree.edges = 4"
    raise ConfigError(f"tree.edges = {spell(edges)}: {rule}; for this order give {form}.")
