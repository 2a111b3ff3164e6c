"""One process of a deployed tree, and its file node.toml, which `covey deploy plan` writes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from covey import fields
from covey.deployed.plan.seats import NamedSeat, Names, seats_in
from covey.deployed.transport.transport import Patience
from covey.errors import ConfigError
from covey.fields import Count, Positive, Range
from covey.files.validate import parsed
from covey.tree import Tree

ANY_ADDRESS = "0.0.0.0"
ANY_IPV6 = "::"
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
PORT = 8443
"""Where nodes with children listen."""
_HOST = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")
_ALWAYS = ("control_port", "durability")
"""What stands in every node.toml, also where it is the default."""

Durability = Literal["process", "power"]
Diverged = Literal["end", "drop"]
"""What a device whose training diverged does: it ends the run, or its answer is a bad one."""
Port = Annotated[int, Range(1, LAST_PORT, whole=True)]
Strikes = Annotated[int, Range(1, 1_000_000, whole=True)]
Seconds = Annotated[float, Range(0, 1e6, above=True)]


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process: its seats, whom it dials, where it listens, and where its disk lies."""

    name: str  # of the process
    seats: list[str]  # the nodes that it hosts
    state: str  # the folder of its disk
    parent: str | None = None  # the address to dial
    listen: str | None = None  # the address to listen on
    control_port: Port = 9443  # where operators reach the process
    control_host: str = LOOPBACK  # where the control port listens
    durability: Durability = "process"  # what its disk survives
    deadline: Seconds | None = None  # seconds after which its quorum is enough
    quorum: Count | None = None  # children that must answer
    norm_bounds: Mapping[str, Positive] = field(default_factory=dict)  # the largest norm of a row
    # that a child may answer in training, by its name
    strikes: Strikes = 3  # bad messages after which a child is evicted
    diverged: Diverged = "end"  # what a device whose training diverged does
    share_rows: bool = True  # whether the server may read what its nodes keep
    data: Mapping[str, str] = field(default_factory=dict)  # files of devices, by seat
    nodes: tuple[NamedSeat, ...] = field(default=(), metadata={"in_files": False})
    """The seats with their parents and children, once the tree is known."""
    machine: str | None = field(default=None, metadata={"in_files": False})
    """The machine of a process of devices, where the plan names it."""

    @staticmethod
    def load(path: Path) -> Process:
        """The process of a file node.toml, checked as far as it can be without the tree."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}.") from error
        table = parsed(text, path)
        node = table.get("node")
        if not isinstance(node, dict) or len(table) > 1:
            raise ConfigError(f"{path} is no file of a node: it must have the table [node] alone.")
        try:
            return Process.read(node)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @staticmethod
    def read(table: Mapping[str, Any]) -> Process:
        """The process of the table [node]."""
        out = fields.read(Process, table, "node.")
        if not out.seats:
            raise ConfigError("node.seats = [] is empty; name the seats of this process.")
        return out

    def as_dict(self) -> dict[str, Any]:
        """The table [node] of node.toml."""
        schema = fields.options(Process)
        return {
            name: value
            for name, value in fields.plain(self).items()
            if name in _ALWAYS or value != schema[name].default
        }

    @property
    def tier(self) -> str:
        """The tier of all its seats."""
        return self.nodes[0].tier

    @property
    def aggregates(self) -> bool:
        """Whether its nodes have a parent and children: they compute with rows alone."""
        return self.parent is not None and bool(self.nodes[0].children)

    @property
    def patience(self) -> Patience | None:
        """How long it waits for its children; None: for all of them, however long it takes."""
        if self.deadline is None or self.quorum is None:
            return None
        return Patience(self.deadline, self.quorum)

    def placed(self, tree: Tree, names: Names | None = None) -> Process:
        """The process in its tree; an error where a seat or an address does not fit.

        `names` are those that a user gave the nodes of the tree.
        """
        nodes = tuple(seats_in(tree, self.seats, names))
        if len({node.parent for node in nodes}) > 1 or (len(nodes) > 1 and nodes[0].children):
            raise ConfigError(
                f"node.seats = {self.seats}: a process has one node, or devices of one parent."
            )
        self._check_addresses(nodes[0])
        self._check_children(nodes[0].children)
        may_drop = self.quorum is not None and nodes[0].tier == tree.tiers[-2]
        if self.diverged == "drop" and not may_drop:
            rule = "is for a parent of devices with a quorum and a deadline"
            raise ConfigError(f'node.diverged = "drop" {rule}; leave it out.')
        # gRPC would take a port of its own where an address has none.
        addresses = {"parent": self.parent, "listen": self.listen}
        whole = {
            end: join_address(*split_address(text, PORT, f"node.{end}"))
            for end, text in addresses.items()
            if text is not None
        }
        return replace(self, nodes=nodes, parent=whole.get("parent"), listen=whole.get("listen"))

    def _check_addresses(self, node: NamedSeat) -> None:
        """Refuse addresses that are missing, or that a seat has no use for."""
        if node.parent is not None and self.parent is None:
            fix = f"give --parent, the address of {node.parent}"
            raise ConfigError(f"{node.name} has the parent {node.parent}; {fix}.")
        if node.parent is None and self.parent is not None:
            fix = f"leave out --parent {self.parent}"
            raise ConfigError(f"{node.name} is the top of the tree; {fix}.")
        if node.children and self.listen is None:
            fix = f"give --listen, as in --listen {ANY_ADDRESS}:{PORT}"
            raise ConfigError(f"{node.name} has children, which dial it; {fix}.")
        if not node.children and self.listen is not None:
            raise ConfigError(f"{node.name} has no children; leave out --listen {self.listen}.")

    def _check_children(self, children: tuple[str, ...]) -> None:
        """Refuse a quorum of more children than there are, and bounds of others."""
        if (self.deadline is None) != (self.quorum is None):
            raise ConfigError("node.deadline and node.quorum: give both, or leave out both.")
        if self.quorum is not None and self.quorum > len(children):
            raise ConfigError(f"node.quorum = {self.quorum}: there are {len(children)} children.")
        for name in self.norm_bounds:
            if name not in children:
                listed = ", ".join(children) or "none"
                raise ConfigError(f"node.norm_bounds.{name}: the children are {listed}.")


# Addresses


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def machine_of(host: str) -> str:
    """The machine of a host: all names of loopback are one."""
    if is_loopback(host):
        return LOOPBACK
    return host


def is_host(text: str) -> bool:
    """Whether a text can name a machine: it stands in commands of ssh."""
    return _HOST.fullmatch(text) is not None


def split_address(text: str, port: int, key: str) -> tuple[str, int]:
    """The host and the port of an address such as "edge3.example:8443" or "[::1]:8443".

    >>> split_address("edge3.example", 8443, "deploy.address.edge")
    ('edge3.example', 8443)
    """
    host, colon, number = text.rpartition(":")
    bare_ipv6 = ":" in host and not host.startswith("[")
    if not colon or bare_ipv6 or text.endswith("]"):
        host = text
        number = str(port)
    if not number.isdecimal() or len(number) > 5 or not 1 <= int(number) <= LAST_PORT:
        raise ConfigError(
            f"{key} = {text!r}: the port must be 1 to 65535, as in server.example:8443."
        )
    host = host.strip("[]")
    if not is_host(host):
        raise ConfigError(f"{key} = {text!r}: give a host and a port, as in server.example:8443.")
    return host, int(number)


def host_of(address: str) -> str:
    """The host of an address that has a port.

    >>> host_of("[::1]:8443")
    '::1'
    """
    return address.rpartition(":")[0].strip("[]")


def join_address(host: str, port: int) -> str:
    """An address as it is dialled; a host of IPv6 stands in brackets."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """A host as it stands before a colon: one of IPv6 is in brackets.

    >>> bracketed("edge0.example"), bracketed("fe80::1")
    ('edge0.example', '[fe80::1]')
    """
    if ":" in host:
        return f"[{host}]"
    return host
