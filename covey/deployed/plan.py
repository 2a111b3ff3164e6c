"""From a tree to its processes: who hosts which seats, who dials whom, and where data lie.

A process hosts one seat, or several devices of one parent.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from covey.data.shards import some
from covey.deployed.seats import NamedSeat, Names, check_name, seats_of
from covey.deployed.transport import Patience
from covey.errors import ConfigError
from covey.tree import Tree

Durability = Literal["process", "power"]
Diverged = Literal["end", "drop"]
"""What a device whose training diverged does: it ends the run, or its answer is a bad one."""
SOURCE = "source"
"""Data of a device that takes its own part of the experiment's data."""
ANY_ADDRESS = "0.0.0.0"
ANY_IPV6 = "::"
LOOPBACK = "127.0.0.1"
_LAST_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")


@dataclass(frozen=True)
class Settings:
    """What the table [deploy] of a file says. Tables are by tier or by the name of a seat."""

    address: Mapping[str, str] = field(default_factory=dict)
    """Where a node with children is reached, as host:port or host; "{seat}" is its name."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Where a process of devices runs, by tier or process; "{process}" is its name."""
    names: Names = field(default_factory=dict)
    """What the nodes of a tier are called, in the order of their numbers."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Files of devices on their own machines; "{seat}" is the device's name."""
    quorum: Mapping[str, int | float] = field(default_factory=dict)
    """How many children must answer, a number or a fraction, after the deadline."""
    deadline: Mapping[str, float] = field(default_factory=dict)
    """Seconds after which a node goes on with its quorum."""
    norm_bound: Mapping[str, float] = field(default_factory=dict)
    """The largest norm of a row that a node may answer in training; without one, any."""
    strikes: int = 3
    """Bad messages after which a parent evicts a child."""
    diverged: Diverged = "end"
    processes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Devices that share a process, by the name of the process."""
    devices_per_process: int = 1
    port: int = 8443
    control_port: int = 9443
    control_host: str = LOOPBACK
    state: str = "/var/lib/covey"
    durability: Durability = "process"
    share_rows: bool = True
    """Whether the server may read what its nodes keep."""


@dataclass(frozen=True)
class Process:
    """One process of a deployed tree, as its file node.toml describes it."""

    name: str
    seats: tuple[NamedSeat, ...]
    parent: str | None
    """The address to dial; the server has none."""
    listen: str | None
    """The address to listen on; devices have none."""
    control_port: int
    state: str
    durability: Durability
    data: Mapping[str, str]
    patience: Patience | None = None
    norm_bounds: Mapping[str, float] = field(default_factory=dict)
    """The largest norm of a row that a child may answer in training, by its name."""
    strikes: int = 3
    """Bad messages after which a child is evicted."""
    diverged: Diverged = "end"
    control_host: str = LOOPBACK
    """Where the control port listens; beyond loopback, operators need a certificate."""
    share_rows: bool = True
    """Whether the server may read what its nodes keep."""
    machine: str | None = None
    """The machine of a process of devices, where the plan names it; node.toml has no use for it."""

    @property
    def tier(self) -> str:
        """The tier of all its seats."""
        return self.seats[0].tier

    @property
    def aggregates(self) -> bool:
        """Whether its nodes have a parent and children: they compute with rows alone."""
        return self.parent is not None and bool(self.seats[0].children)

    def as_dict(self) -> dict[str, Any]:
        """The table [node] of node.toml."""
        table: dict[str, Any] = {
            "name": self.name,
            "seats": [seat.name for seat in self.seats],
            "control_port": self.control_port,
            "state": self.state,
            "durability": self.durability,
        }
        if self.parent is not None:
            table["parent"] = self.parent
        if self.listen is not None:
            table["listen"] = self.listen
        if self.control_host != LOOPBACK:
            table["control_host"] = self.control_host
        if self.patience is not None:
            table["deadline"] = self.patience.seconds
            table["quorum"] = self.patience.quorum
        if self.listen is not None:
            table["strikes"] = self.strikes
        if self.diverged != "end":
            table["diverged"] = self.diverged
        if self.norm_bounds:
            table["norm_bounds"] = dict(self.norm_bounds)
        if not self.share_rows:
            table["share_rows"] = False
        if self.data:
            table["data"] = dict(self.data)
        return table


def processes_of(tree: Tree, settings: Settings) -> list[Process]:
    """Every process of a tree, parents before their children."""
    seats = seats_of(tree, settings.names)
    _check(tree, seats, settings)
    groups = _groups(tree, seats, settings)
    addresses = _addresses(seats, settings)
    ports = _ControlPorts(settings.control_port, addresses.values())
    machines = _machines(tree, groups, settings)
    out = []
    for name, group in groups.items():
        ends = _ends(name, group[0], addresses, machines.get(name))
        out.append(
            Process(
                name=name,
                seats=group,
                parent=ends.parent,
                listen=ends.listen,
                control_port=ports.next(ends.host),
                state=f"{settings.state}/{name}",
                machine=machines.get(name),
                **_own_settings(tree, group, seats, settings),
            )
        )
    return out


def process_of(tree: Tree, name: str, settings: Settings) -> Process:
    """The process of one seat that is in no plan: who starts it says where it dials and listens."""
    seats = seats_of(tree, settings.names)
    _check(tree, seats, settings)
    seat = seats[name]
    return Process(
        name=name,
        seats=(seat,),
        parent=None,
        listen=None,
        control_port=settings.control_port,
        state=f"{settings.state}/{name}",
        **_own_settings(tree, (seat,), seats, settings),
    )


def _own_settings(
    tree: Tree,
    group: Sequence[NamedSeat],
    seats: Mapping[str, NamedSeat],
    settings: Settings,
) -> dict[str, Any]:
    """What a process of these seats has of the table [deploy], beside addresses and folders."""
    first = group[0]
    return {
        "durability": settings.durability,
        "data": _data(group, settings),
        "patience": _patience(first, settings),
        "norm_bounds": _norm_bounds(first, seats, settings),
        "strikes": settings.strikes,
        "diverged": _diverged(tree, first, settings),
        "share_rows": settings.share_rows,
        "control_host": settings.control_host,
    }


@dataclass(frozen=True)
class _Ends:
    """The machine of a process as far as addresses tell it, whom it dials, where it listens."""

    host: str
    parent: str | None = None
    listen: str | None = None


def _ends(
    name: str,
    first: NamedSeat,
    addresses: Mapping[str, tuple[str, int]],
    machine: str | None,
) -> _Ends:
    """The ends of the process of this name; `first` is one of its seats."""
    ends = _Ends(host=machine or name)
    if first.parent is not None:
        host, port = addresses[first.parent]
        ends = replace(ends, parent=join_address(host, port))
        if is_loopback(host):  # who dials loopback is on the parent's machine
            if machine is not None and not is_loopback(machine):
                why = f"{name} dials {host}, so it is on the machine of {first.parent}"
                raise ConfigError(f"deploy.machine = {machine!r}: {why}; leave it out.")
            ends = replace(ends, host=LOOPBACK)
    if first.children:
        host, port = addresses[first.name]
        ends = replace(ends, host=host, listen=_listen(host, port))
    return ends


def _diverged(tree: Tree, seat: NamedSeat, settings: Settings) -> Diverged:
    """What a parent of devices does if one of them diverges; to drop it needs a quorum."""
    above = tree.tiers[-2]
    if settings.diverged == "end" or seat.tier != above:
        return "end"
    if _patience(seat, settings) is None:
        fix = f"give deploy.quorum.{above} and deploy.deadline.{above}"
        raise ConfigError(f'deploy.diverged = "drop": {seat.name} waits for all; {fix}.')
    return "drop"


class _ControlPorts:
    """Control ports: processes that share a machine have one each, which nobody listens on."""

    def __init__(self, first: int, taken: Iterable[tuple[str, int]]) -> None:
        self._first = first
        self._taken = {(_machine(host), port) for host, port in taken}

    def next(self, host: str) -> int:
        """The first port of a machine that is free."""
        machine = _machine(host)
        port = self._first
        while (machine, port) in self._taken:
            port += 1
        if port > _LAST_PORT:
            fix = "give a smaller one"
            raise ConfigError(
                f"deploy.control_port = {self._first}: {host} has no free port above it; {fix}."
            )
        self._taken.add((machine, port))
        return port


def _machine(host: str) -> str:
    """The machine of a host: all names of loopback are one."""
    if is_loopback(host):
        return LOOPBACK
    return host


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


def _listen(host: str, port: int) -> str:
    """Where a node listens that is dialled at a host: on all addresses of its machine.

    Who dials loopback is on the same machine, so that nobody else has to reach the port.
    """
    if is_loopback(host):
        return join_address(host, port)
    if ":" in host:
        return join_address(ANY_IPV6, port)
    return join_address(ANY_ADDRESS, port)


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
    if not number.isdecimal() or len(number) > 5 or not 1 <= int(number) <= _LAST_PORT:
        raise ConfigError(
            f"{key} = {text!r}: the port must be 1 to 65535, as in server.example:8443."
        )
    host = host.strip("[]")
    if _HOST.fullmatch(host) is None:  # it stands in commands of ssh
        raise ConfigError(f"{key} = {text!r}: give a host and a port, as in server.example:8443.")
    return host, int(number)


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


# The checks


def _check(tree: Tree, seats: Mapping[str, NamedSeat], settings: Settings) -> None:
    """Refuse names that are neither a tier nor a seat, or of the wrong kind."""
    for name in settings.processes:
        check_name(name)
    of_parents = {
        "address": settings.address,
        "quorum": settings.quorum,
        "deadline": settings.deadline,
    }
    for table, values in of_parents.items():
        for key in values:
            _check_key(f"deploy.{table}.{key}", key, tree, seats, device=False)
    _check_bounds(tree, seats, settings)
    for key in settings.data:
        _check_key(f"deploy.data.{key}", key, tree, seats, device=True)
    for key in settings.quorum:
        if _setting(settings.deadline, _seat_like(key, seats)) is None:
            fix = f"give deploy.deadline.{key} in seconds"
            raise ConfigError(f"deploy.quorum.{key}: a quorum counts after a deadline; {fix}.")
    for key in settings.deadline:
        if _setting(settings.quorum, _seat_like(key, seats)) is None:
            fix = f"give deploy.quorum.{key}, a number of children or a fraction of them"
            raise ConfigError(f"deploy.deadline.{key}: after it, a quorum is enough; {fix}.")


def _check_bounds(tree: Tree, seats: Mapping[str, NamedSeat], settings: Settings) -> None:
    """Refuse bounds of nodes that are not there, and one of the server."""
    for key in settings.norm_bound:
        if key == tree.tiers[0]:
            raise ConfigError(f"deploy.norm_bound.{key}: it answers nobody; leave it out.")
        if key not in tree.tiers and key not in seats:
            raise ConfigError(f"deploy.norm_bound.{key}: {_known(tree, seats)}; give one of these.")


def _check_key(
    where: str, key: str, tree: Tree, seats: Mapping[str, NamedSeat], *, device: bool
) -> None:
    """Refuse a key that is no tier and no seat, or of devices where they have no such setting."""
    if key not in tree.tiers and key not in seats:
        raise ConfigError(f"{where}: {_known(tree, seats)}; give one of these.")
    leaf = tree.tiers[-1]
    is_device = _seat_like(key, seats).tier == leaf
    if is_device and not device:
        raise ConfigError(f"{where}: a {leaf} has no children; leave it out.")
    if device and not is_device:
        raise ConfigError(f"{where}: only a {leaf} has data; leave it out.")


def _seat_like(key: str, seats: Mapping[str, NamedSeat]) -> NamedSeat:
    """The seat of this name, or one that stands for its tier."""
    if key in seats:
        return seats[key]
    return next(seat for seat in seats.values() if seat.tier == key)


def _known(tree: Tree, seats: Mapping[str, NamedSeat]) -> str:
    """What a key of a table may be, in words."""
    parts = [tree.tiers[0]]
    for tier in tree.tiers[1:]:
        names = [seat.name for seat in seats.values() if seat.tier == tier]
        parts.append(f"{names[0]} to {names[-1]}")
    return f"this tree has the tiers {', '.join(tree.tiers)} and the seats {', '.join(parts)}"


# The parts of a process


def _groups(
    tree: Tree, seats: Mapping[str, NamedSeat], settings: Settings
) -> dict[str, tuple[NamedSeat, ...]]:
    """The seats of every process, by the name of the process."""
    leaf = tree.tiers[-1]
    owner: dict[str, str] = {}
    named: dict[str, tuple[NamedSeat, ...]] = {}
    for name, members in settings.processes.items():
        named[name] = _checked_group(name, members, seats, owner, leaf)
        owner |= dict.fromkeys(members, name)
    out: dict[str, tuple[NamedSeat, ...]] = {}
    for seat in seats.values():
        if seat.name in owner:
            out.setdefault(owner[seat.name], named[owner[seat.name]])
        elif seat.tier != leaf:
            out[seat.name] = (seat,)
    free = [seat for seat in seats.values() if seat.tier == leaf and seat.name not in owner]
    for group in _runs(free, settings.devices_per_process):
        name = group[0].name
        if len(group) > 1:
            name = f"{name}-{group[-1].number}"
            check_name(name)
        if name in out:
            fix = "give one of them a name in deploy.processes"
            raise ConfigError(f"two processes would be called {name!r}; {fix}.")
        out[name] = tuple(group)
    return out


def _runs(free: Sequence[NamedSeat], size: int) -> list[list[NamedSeat]]:
    """Consecutive devices of one parent, so many to a process."""
    out: list[list[NamedSeat]] = []
    for seat in free:
        last = out[-1] if out else []
        if last and len(last) < size and last[-1].parent == seat.parent:
            last.append(seat)
        else:
            out.append([seat])
    return out


def _checked_group(
    name: str,
    members: Sequence[str],
    seats: Mapping[str, NamedSeat],
    owner: Mapping[str, str],
    leaf: str,
) -> tuple[NamedSeat, ...]:
    """The seats of a process that the file names."""
    where = f"deploy.processes.{name}"
    if name in seats:
        raise ConfigError(f"{where}: {name} is the name of a seat; give the process another name.")
    if not members:
        raise ConfigError(f"{where} = []: name one or more devices, or leave the process out.")
    for member in members:
        if member not in seats or seats[member].tier != leaf:
            raise ConfigError(f"{where}: {member!r} is no {leaf}; give names such as {leaf}0.")
        if member in owner or list(members).count(member) > 1:
            other = owner.get(member, name)
            raise ConfigError(f"{where}: {member} is in the process {other} already; keep one.")
    group = sorted((seats[member] for member in members), key=lambda seat: seat.number)
    parents = sorted({str(seat.parent) for seat in group})
    if len(parents) > 1:
        fix = "a process dials one parent; make a process for each"
        raise ConfigError(f"{where}: its devices have the parents {', '.join(parents)}; {fix}.")
    return tuple(group)


def _machines(
    tree: Tree, groups: Mapping[str, Sequence[NamedSeat]], settings: Settings
) -> dict[str, str]:
    """The machines that the file names, by process; nodes with children have an address."""
    leaf = tree.tiers[-1]
    of_devices = [name for name, group in groups.items() if group[0].tier == leaf]
    for key in settings.machine:
        if key != leaf and key not in of_devices:
            known = f"{leaf}, or a process of devices: {some(of_devices)}"
            raise ConfigError(f"deploy.machine.{key}: give {known}.")
    out: dict[str, str] = {}
    for name in of_devices:
        text = settings.machine.get(name, settings.machine.get(leaf))
        if text is not None:
            out[name] = _host(text.replace("{process}", name), f"deploy.machine.{name}")
    return out


def _host(text: str, key: str) -> str:
    """The name of a machine; an error where it is none, or has a port."""
    host = text.strip("[]")
    if _HOST.fullmatch(host) is None or host.count(":") == 1:  # one of IPv6 has more
        raise ConfigError(f"{key} = {text!r}: give the name of a machine, as in edge0.example.")
    return host


def _addresses(seats: Mapping[str, NamedSeat], settings: Settings) -> dict[str, tuple[str, int]]:
    """(host, port) of every node with children."""
    out: dict[str, tuple[str, int]] = {}
    taken: dict[tuple[str, int], str] = {}
    for seat in seats.values():
        if not seat.children:
            continue
        text = _setting(settings.address, seat)
        if text is None:
            fix = f'{seat.tier} = "{{seat}}.example:8443", or an address for each seat'
            raise ConfigError(
                f"deploy.address says nothing of {seat.name}, which its children dial; add {fix}."
            )
        key = f"deploy.address.{seat.name}"
        address = split_address(text.replace("{seat}", seat.name), settings.port, key)
        place = (_machine(address[0]), address[1])
        if place in taken:
            both = f"{taken[place]} and {seat.name} have the address {join_address(*address)}"
            raise ConfigError(f"{key}: {both}; give each its own host or port.")
        taken[place] = seat.name
        out[seat.name] = address
    return out


def _data(group: Sequence[NamedSeat], settings: Settings) -> dict[str, str]:
    """The file of each device of a process; a device without one takes its part of the source."""
    out: dict[str, str] = {}
    for seat in group:
        if seat.children:
            continue
        text = _setting(settings.data, seat)
        if text is not None and text != SOURCE:
            out[seat.name] = text.replace("{seat}", seat.name)
    return out


def _patience(seat: NamedSeat, settings: Settings) -> Patience | None:
    """How long a node waits for its children; None: for all of them, however long it takes."""
    seconds = _setting(settings.deadline, seat)
    if seconds is None or not seat.children:
        return None
    quorum = _setting(settings.quorum, seat)
    count = len(seat.children)
    if quorum is None:
        return None
    needed = quorum
    if isinstance(quorum, float):
        needed = math.ceil(Fraction(str(quorum)) * count)  # .07 of 100 are 7, not 8
    if needed > count:
        fix = f"give 1 to {count}, or a fraction"
        raise ConfigError(
            f"deploy.quorum = {quorum} for {seat.name}, which has {count} children; {fix}."
        )
    return Patience(float(seconds), max(1, int(needed)))


def _norm_bounds(
    seat: NamedSeat, seats: Mapping[str, NamedSeat], settings: Settings
) -> dict[str, float]:
    """The bounds of the children of a seat, by name."""
    out = {}
    for name in seat.children:
        bound = _setting(settings.norm_bound, seats[name])
        if bound is not None:
            out[name] = float(bound)
    return out


def _setting(table: Mapping[str, Any], seat: NamedSeat) -> Any:
    """What a table says of a seat: by its name, or else by its tier; None where it is silent."""
    if seat.name in table:
        return table[seat.name]
    return table.get(seat.tier)
