"""The file node.toml, which `covey deploy plan` writes for every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from covey.cli.deploy_config import Norm, Seconds
from covey.cli.validate import STRICT, check, nearest, parsed
from covey.deployed.plan import ANY_ADDRESS, LOOPBACK, Process, join_address, split_address
from covey.deployed.seats import NamedSeat, Names, seats_of
from covey.deployed.transport import Patience
from covey.errors import ConfigError
from covey.tree import Tree

_PORT = 8443


class NodeFile(BaseModel):
    """One process: its seats, whom it dials, where it listens, and where its disk lies."""

    model_config = STRICT
    name: str
    seats: list[str] = Field(min_length=1)
    parent: str | None = None
    listen: str | None = None
    control_port: int = Field(9443, ge=1, le=65535)
    control_host: str = LOOPBACK
    state: str
    durability: Literal["process", "power"] = "process"
    deadline: Seconds | None = None
    quorum: int | None = Field(None, ge=1)
    norm_bounds: dict[str, Norm] = {}
    strikes: int = Field(3, ge=1, le=1_000_000)
    diverged: Literal["end", "drop"] = "end"
    share_rows: bool = True
    data: dict[str, str] = {}

    def process(self, tree: Tree, names: Names | None = None) -> Process:
        """The process in its tree; an error where a seat or an address does not fit.

        `names` are those that a user gave the nodes of the tree.
        """
        own = tuple(seats_in(tree, self.seats, names))
        self._check(own[0].parent, own[0].children)
        self._check_group(own, above_devices=tree.tiers[-2])
        return Process(
            name=self.name,
            seats=own,
            parent=_address("node.parent", self.parent),
            listen=_address("node.listen", self.listen),
            control_port=self.control_port,
            state=self.state,
            durability=self.durability,
            data=self.data,
            patience=self._patience(own[0].children),
            norm_bounds=self._norm_bounds(own[0].children),
            strikes=self.strikes,
            diverged=self.diverged,
            share_rows=self.share_rows,
            control_host=self.control_host,
        )

    def _check_group(self, own: Sequence[NamedSeat], above_devices: str) -> None:
        """Refuse seats that one process cannot have, and a rule that is not for them."""
        parents = {seat.parent for seat in own}
        if len(parents) > 1 or (len(own) > 1 and own[0].children):
            raise ConfigError(
                f"node.seats = {self.seats}: a process has one node, or devices of one parent."
            )
        drops = self.diverged == "drop"
        if drops and (self.quorum is None or own[0].tier != above_devices):
            rule = "is for a parent of devices with a quorum and a deadline"
            raise ConfigError(f'node.diverged = "drop" {rule}; leave it out.')

    def _patience(self, children: tuple[str, ...]) -> Patience | None:
        """How long the node waits for its children; an error where they are too few."""
        if (self.deadline is None) != (self.quorum is None):
            raise ConfigError("node.deadline and node.quorum: give both, or leave out both.")
        if self.deadline is None or self.quorum is None:
            return None
        if self.quorum > len(children):
            raise ConfigError(f"node.quorum = {self.quorum}: there are {len(children)} children.")
        return Patience(self.deadline, self.quorum)

    def _norm_bounds(self, children: tuple[str, ...]) -> dict[str, float]:
        """The bounds of children; an error for a name that is none of them."""
        for name in self.norm_bounds:
            if name not in children:
                listed = ", ".join(children) or "none"
                raise ConfigError(f"node.norm_bounds.{name}: the children are {listed}.")
        return dict(self.norm_bounds)

    def _check(self, parent: str | None, children: tuple[str, ...]) -> None:
        """Refuse addresses that are missing, or that a seat has no use for."""
        name = self.seats[0]
        if parent is not None and self.parent is None:
            fix = f"give --parent, the address of {parent}"
            raise ConfigError(f"{name} has the parent {parent}; {fix}.")
        if parent is None and self.parent is not None:
            raise ConfigError(f"{name} is the top of the tree; leave out --parent {self.parent}.")
        if children and self.listen is None:
            fix = f"give --listen, as in --listen {ANY_ADDRESS}:{_PORT}"
            raise ConfigError(f"{name} has children, which dial it; {fix}.")
        if not children and self.listen is not None:
            raise ConfigError(f"{name} has no children; leave out --listen {self.listen}.")


def _address(key: str, text: str | None) -> str | None:
    """An address with its port: gRPC would take another one where there is none."""
    if text is None:
        return None
    return join_address(*split_address(text, _PORT, key))


def seats_in(tree: Tree, wanted: Sequence[str], names: Names | None = None) -> list[NamedSeat]:
    """The seats of these names; an error where the tree has none of such a name."""
    seats = seats_of(tree, names)
    for name in wanted:
        if name not in seats:
            raise ConfigError(f"this tree has no seat {name!r}{nearest(name, seats)}: {tree}.")
    return [seats[name] for name in wanted]


def load(path: Path) -> NodeFile:
    """The file, checked."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error
    table = parsed(text, path)
    node = table.get("node")
    if not isinstance(node, dict) or len(table) > 1:
        raise ConfigError(f"{path} is no file of a node: it must have the table [node] alone.")
    try:
        return read(node)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(table: Mapping[str, Any]) -> NodeFile:
    """The table [node], checked."""
    return check(NodeFile, table, "node.")
