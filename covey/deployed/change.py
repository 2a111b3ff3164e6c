"""Another tree for a run that stands: seats move, come and go; what nodes keep stays with them.

A seat is known by its name. Rows lie on the disks of the nodes, and no disk knows its number, so a
disk that stays with its seat needs no change. Only the server's disk knows the whole tree: the sums
and scores of every node. They get their new places here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from covey.deployed.disk import OWED_ORDERS, Disk
from covey.deployed.server_run import CHANGES, FACTS, captured_in
from covey.errors import CheckpointError, ConfigError
from covey.runs.checkpoint import Checkpoint, around_difference

NameLists = Mapping[str, Sequence[str]]
"""The names of all nodes in the order of their numbers, by tier from the server down."""
NAMES = "names of seats"
"""The fact that tells the names of all seats by tier, once a tree has changed."""
_MAY_DIFFER = ("tree", "data")
_ANOTHER = (
    "the run stands on another tree, {what}; give --server the folder of the plan that it runs on."
)
_FIGURES = "devices."
_IDS = ".ids"


@dataclass(frozen=True)
class TreeChange:
    """Two trees of one run, each by the names of its nodes."""

    old: NameLists
    new: NameLists

    def __post_init__(self) -> None:
        if list(self.old) != list(self.new):
            had, has = ", ".join(self.old), ", ".join(self.new)
            raise ConfigError(f"the tiers were {had} and are {has}; a change keeps the tiers.")

    def places(self, tier: str) -> list[int]:
        """The old number of every node of a tier, -1 for a new one."""
        numbers = {name: number for number, name in enumerate(self.old[tier])}
        return [numbers.get(name, -1) for name in self.new[tier]]

    def added(self) -> list[str]:
        """The seats that are new."""
        return _without(self.new, self.old)

    def removed(self) -> list[str]:
        """The seats that are gone."""
        return _without(self.old, self.new)


def _without(names: NameLists, others: NameLists) -> list[str]:
    """The names of one tree that the other has not."""
    out = []
    for tier, here in names.items():
        there = set(others[tier])
        out += [name for name in here if name not in there]
    return out


def moved(
    old: Mapping[str, str | None], new: Mapping[str, str | None]
) -> dict[str, tuple[str | None, str | None]]:
    """The seats of both trees that have another parent: (old, new), by name.

    Both arguments say the parent of every seat.
    """
    out = {}
    for name, parent in new.items():
        if name in old and old[name] != parent:
            out[name] = (old[name], parent)
    return out


def changed(captured: Checkpoint, change: TreeChange, fingerprint: dict[str, str]) -> Checkpoint:
    """Where a run stands, on its new tree; `fingerprint` is that of the new experiment.

    New nodes have sums of zero and no scores. What removed nodes had is gone.
    """
    facts = dict(captured.facts)
    _check(facts["experiment"], fingerprint)
    _check_sizes(captured, change)
    facts["experiment"] = fingerprint
    tensors = dict(captured.tensors)
    for number, (tier, _) in enumerate(facts.get("totals") or []):
        key = f"totals.{number}"
        tensors[key] = _sums(tensors[key], change.places(tier))
    leaf = list(change.new)[-1]
    names = [name for name in tensors if name.startswith(_FIGURES) and not name.endswith(_IDS)]
    for name in names:
        ids = tensors.get(f"{name}{_IDS}")
        tensors |= _figures(name, tensors[name], ids, change.places(leaf))
    return Checkpoint(tensors, facts)


def _check(had: Mapping[str, str], has: Mapping[str, str]) -> None:
    """Refuse a file that changes anything but the tree and the data."""
    for name in {**had, **has}:
        if name in _MAY_DIFFER or had.get(name) == has.get(name):
            continue
        before, after = around_difference(str(had.get(name)), str(has.get(name)))
        raise ConfigError(
            f"the run's {name} is {before}, the new file's is {after}; "
            "a change moves, adds and removes seats, and everything else stays."
        )


def _check_sizes(captured: Checkpoint, change: TreeChange) -> None:
    """Refuse a run that does not stand on the old tree."""
    for number, (tier, _) in enumerate(captured.facts.get("totals") or []):
        size = len(captured.tensors[f"totals.{number}"])
        if size != len(change.old.get(tier, ())):
            raise ConfigError(_ANOTHER.format(what=f"with {size} nodes in the tier {tier}"))


def _sums(values: Tensor, places: Sequence[int]) -> Tensor:
    """One number for every node, in its new place."""
    out = values.new_zeros(len(places))
    for number, place in enumerate(places):
        if place >= 0:
            out[number] = values[place]
    return out


def _figures(
    name: str, values: Tensor, ids: Tensor | None, places: Sequence[int]
) -> dict[str, Tensor]:
    """The figures of the devices that were scored and are still there, with their new numbers."""
    if ids is None:
        ids = torch.arange(len(values))
    rows = {number: row for row, number in enumerate(ids.tolist())}
    numbers = [number for number, place in enumerate(places) if place in rows]
    chosen = torch.tensor([rows[places[number]] for number in numbers], dtype=torch.int64)
    new_ids = torch.tensor(numbers, dtype=torch.int64)
    return {name: values[chosen], f"{name}{_IDS}": new_ids}


@dataclass(frozen=True)
class DiskChange:
    """What a server's disk gets so that its run goes on, on another tree."""

    state: bytes
    facts: Mapping[str, Any]
    rounds: int
    """How many rounds the run has."""

    def write(self, disk: Disk, backup: Path) -> None:
        """Change the disk in one transaction; `backup` is a new file with the disk as it was."""
        disk.copy(backup)
        disk.change_tree(self.state, self.facts)


def disk_change(disk: Disk, change: TreeChange, fingerprint: dict[str, str]) -> DiskChange:
    """How the run of a server's disk goes on, on another tree; nothing is written yet.

    A round that was interrupted is run again: the rollback tells all nodes to forget it.
    """
    captured = captured_in(disk)
    if captured is None:
        fix = "plan the new tree with covey deploy plan"
        raise CheckpointError(f"{disk.path} has no round yet, so there is nothing to keep; {fix}.")
    _check_names(disk, change)
    after = changed(captured, change, fingerprint)
    state = save(after.tensors, {FACTS: json.dumps(after.facts)})
    rounds: int = after.facts["round"]
    before: int = disk.fact("before") or 0
    facts = {
        "rollbacks": [*(disk.fact("rollbacks") or []), before],
        CHANGES: [*(disk.fact(CHANGES) or []), rounds],
        NAMES: _listed(change.new),
    }
    return DiskChange(state, facts, rounds)


def check_followed(
    disk: Disk,
    change: TreeChange,
    old: Mapping[str, str | None],
    new: Mapping[str, str | None],
) -> None:
    """Refuse to move a seat from below a child of the server that has not followed an order yet.

    That child would pass the order on when it is back, to those who are below it then. `old` and
    `new` say the parent of every seat.
    """
    children = change.old[list(change.old)[1]]
    owing = {children[seat] for *_, seats in disk.fact(OWED_ORDERS) or [] for seat in seats}
    for name in moved(old, new):
        behind = owing.intersection(_above(name, old))
        if behind:
            parent = behind.pop()
            fix = f"start the tree as it was until {parent} has answered, and stop it again"
            raise ConfigError(
                f"{parent} was away when the server ordered to hold rows, and {name}, which moves "
                f"away from it, would never hold them; {fix}."
            )


def _above(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """The nodes above a seat, the nearest first."""
    out = []
    parent = parents[name]
    while parent is not None:
        out.append(parent)
        parent = parents[parent]
    return out


def _check_names(disk: Disk, change: TreeChange) -> None:
    """Refuse to change a tree twice in the same way: sums would go to the wrong nodes."""
    names = disk.fact(NAMES)
    if names is not None and names != _listed(change.old):
        raise ConfigError(_ANOTHER.format(what="whose seats have other names or another order"))


def _listed(names: NameLists) -> dict[str, list[str]]:
    return {tier: list(here) for tier, here in names.items()}
