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

from covey.deployed.node.disk import PENDING_ORDERS, Disk
from covey.deployed.node.server_run import CHANGES, FACTS, captured_in
from covey.deployed.plan.seats import NamedSeat, names_by_tier
from covey.errors import CheckpointError, ConfigError
from covey.runs.saved.checkpoint import Checkpoint, around_difference

Seats = Mapping[str, NamedSeat]
"""All seats of a tree by their names, in the order of their numbers, from the server down."""
NAMES = "names of seats"
"""The fact that tells the names of all seats by tier, once a tree has changed."""
_MAY_DIFFER = ("tree", "data")
_FIGURES = "devices."
_IDS = ".ids"


@dataclass(frozen=True)
class TreeChange:
    """Two trees of one run."""

    old: Seats
    new: Seats

    def __post_init__(self) -> None:
        had, has = list(names_by_tier(self.old)), list(names_by_tier(self.new))
        if had != has:
            both = f"the tiers were {', '.join(had)} and are {', '.join(has)}"
            raise ConfigError(f"{both}; a change keeps the tiers.")

    def places(self, tier: str) -> list[int]:
        """The old number of every node of a tier, -1 for a new one."""
        numbers = {name: seat.number for name, seat in self.old.items() if seat.tier == tier}
        return [numbers.get(name, -1) for name, seat in self.new.items() if seat.tier == tier]

    @property
    def added(self) -> list[str]:
        """The seats that are new."""
        return [name for name in self.new if name not in self.old]

    @property
    def removed(self) -> list[str]:
        """The seats that are gone."""
        return [name for name in self.old if name not in self.new]

    @property
    def moved(self) -> dict[str, tuple[str | None, str | None]]:
        """The seats of both trees that have another parent: (old, new), by name."""
        parents = {
            name: (self.old[name].parent, seat.parent)
            for name, seat in self.new.items()
            if name in self.old
        }
        return {name: (before, now) for name, (before, now) in parents.items() if before != now}


def changed(captured: Checkpoint, change: TreeChange, fingerprint: dict[str, str]) -> Checkpoint:
    """Where a run stands, on its new tree; `fingerprint` is that of the new experiment.

    New nodes have sums of zero and no scores. What removed nodes had is gone.
    """
    facts = dict(captured.facts)
    _check_same(facts["experiment"], fingerprint)
    facts["experiment"] = fingerprint
    tensors = dict(captured.tensors)
    for number, (tier, _) in enumerate(facts["totals"]):
        key = f"totals.{number}"
        before = tensors[key]
        if len(before) != len(names_by_tier(change.old).get(tier, ())):
            raise _another_tree(f"with {len(before)} nodes in the tier {tier}")
        places = torch.tensor(change.places(tier), dtype=torch.int64)
        tensors[key] = before.new_zeros(len(places))
        tensors[key][places >= 0] = before[places[places >= 0]]
    leaf = list(names_by_tier(change.new))[-1]
    names = [name for name in tensors if name.startswith(_FIGURES) and not name.endswith(_IDS)]
    for name in names:
        ids = tensors.get(f"{name}{_IDS}")
        tensors |= _figures(name, tensors[name], ids, change.places(leaf))
    return Checkpoint(tensors, facts)


def _check_same(had: Mapping[str, str], has: Mapping[str, str]) -> None:
    """Refuse a file that changes anything but the tree and the data."""
    for name in {**had, **has}:
        if name in _MAY_DIFFER or had.get(name) == has.get(name):
            continue
        before, after = around_difference(str(had.get(name)), str(has.get(name)))
        raise ConfigError(
            f"the run's {name} is {before}, the new file's is {after}; "
            "a change moves, adds and removes seats, and everything else stays."
        )


def _another_tree(what: str) -> ConfigError:
    """The error of a run that does not stand on the old tree."""
    fix = "give --server the folder of the plan that it runs on"
    return ConfigError(f"the run stands on another tree, {what}; {fix}.")


def _figures(
    name: str,
    values: Tensor,
    ids: Tensor | None,
    places: Sequence[int],
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
        disk.file.copy(backup)
        disk.change_tree(self.state, self.facts)


def disk_change(disk: Disk, change: TreeChange, fingerprint: dict[str, str]) -> DiskChange:
    """How the run of a server's disk goes on, on another tree; nothing is written yet.

    A round that was interrupted is run again: the rollback tells all nodes to forget it.
    """
    captured = captured_in(disk)
    if captured is None:
        fix = "plan the new tree with covey deploy plan"
        raise CheckpointError(f"{disk.path} has no round yet, so there is nothing to keep; {fix}.")
    # A tree that is changed twice in the same way would give sums to the wrong nodes.
    if disk.fact(NAMES) not in (None, names_by_tier(change.old)):
        raise _another_tree("whose seats have other names or another order")
    after = changed(captured, change, fingerprint)
    state = save(after.tensors, {FACTS: json.dumps(after.facts)})
    rounds: int = after.facts["round"]
    before: int = disk.fact("before") or 0
    facts = {
        "rollbacks": [*(disk.fact("rollbacks") or []), before],
        CHANGES: [*(disk.fact(CHANGES) or []), rounds],
        NAMES: names_by_tier(change.new),
    }
    return DiskChange(state, facts, rounds)


def check_followed(disk: Disk, change: TreeChange) -> None:
    """Refuse to move a seat from below a child of the server that has not followed an order yet.

    That child would pass the order on when it is back, to those who are below it then.
    """
    children = list(names_by_tier(change.old).values())[1]
    owing = {children[seat] for *_, seats in disk.fact(PENDING_ORDERS) or [] for seat in seats}
    for name in change.moved:
        above = change.old[name].parent
        while above is not None and above not in owing:
            above = change.old[above].parent
        if above is not None:
            fix = f"start the tree as it was until {above} has answered, and stop it again"
            raise ConfigError(
                f"{above} was away when the server ordered to hold rows, and {name}, which moves "
                f"away from it, would never hold them; {fix}."
            )
