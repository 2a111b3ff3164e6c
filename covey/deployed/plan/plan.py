"""From a tree to its processes: who hosts which seats, who dials whom, and where data lie.

A process hosts one seat, or several devices of one parent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import Annotated, Any, Literal

from covey import fields
from covey.data.shards import some
from covey.deployed.plan.process import (
    ANY_ADDRESS,
    ANY_IPV6,
    LAST_PORT,
    LOOPBACK,
    PORT,
    Diverged,
    Durability,
    Port,
    Process,
    Seconds,
    Strikes,
    is_host,
    is_loopback,
    join_address,
    machine_of,
    split_address,
)
from covey.deployed.plan.seats import NamedSeat, Names, check_name, seats_in, seats_of
from covey.errors import ConfigError
from covey.fields import Count, Match, Positive, Range
from covey.tree import Tree

SOURCE = "source"
"""Data of a device that takes its own part of the experiment's data."""
Quorum = Count | Annotated[float, Range(0, 1, above=True)]
Text = Annotated[str, Match(r"(?s).{1,4096}", "text of 1 to 4096 characters")]
Host = Annotated[str, Match(r"[A-Za-z0-9_.:-]+", "the name or the address of a machine")]
Folder = Annotated[
    str,
    Match(
        r"(/(?!\.\.?(/|$))[A-Za-z0-9_.-]+)+/?",
        "a whole path without .. in it, of letters, digits, _, - and dots",
    ),
]
"""A folder that a systemd unit, a compose file and a shell command can name alike."""
Image = Annotated[str, Match(r"[A-Za-z0-9_./:@-]+", "the name of a container image")]


@dataclass(frozen=True)
class DeploySettings:
    """Where the nodes of a tree run. Tables are by tier, or by the name of a seat."""

    address: Mapping[str, Text] = field(default_factory=dict)  # where a node with children is
    # reached, as host:port or host; "{seat}" is its name
    machine: Mapping[str, Text] = field(default_factory=dict)  # where a process of devices runs, by
    # tier or process; "{process}" is its name
    names: Names = field(default_factory=dict)  # what the nodes of a tier are called, in the order
    # of their numbers; otherwise by tier and number
    data: Literal["source"] | Mapping[str, Text] = "source"  # files of devices on their own
    # machines, "{seat}" is the device's name; "source": each takes its part of the data
    quorum: Mapping[str, Quorum] = field(default_factory=dict)  # how many children must answer, a
    # number or a fraction, after the deadline
    deadline: Mapping[str, Seconds] = field(default_factory=dict)  # seconds after which a node goes
    # on with its quorum
    norm_bound: Mapping[str, Positive] = field(default_factory=dict)  # the largest norm of a row
    # that a node may answer in training; without one, any
    strikes: Strikes = 3  # bad messages after which a parent evicts a child
    diverged: Diverged = "end"  # "drop": with a quorum, a device whose training diverged does not
    # end the run, its answer is a bad one
    processes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # devices that share a
    # process, by the name of the process
    devices_per_process: Count = 1  # neighbours that share a process
    port: Port = PORT  # where nodes with children listen
    control_port: Port = 9443  # where operators reach a node
    control_host: Host = LOOPBACK  # beyond loopback, operators need a certificate
    state: Folder = "/var/lib/covey"  # the folder of a node's disk on its machine
    durability: Durability = "process"  # what a node's disk survives: its process, or a power cut
    share_rows: bool = True  # whether the server may read what its nodes keep; with private layers
    # it may not where the file says nothing
    image: Image = "covey"  # the container image of a node

    @staticmethod
    def read(table: Mapping[str, Any] | None) -> DeploySettings:
        """The table [deploy], checked; None: there is none."""
        return fields.read(DeploySettings, table or {}, "deploy.")

    @property
    def files(self) -> Mapping[str, str]:
        """The files of devices; none where each takes its part of the experiment's data."""
        if isinstance(self.data, str):
            return {}
        return self.data

    @property
    def from_source(self) -> bool:
        """Whether every device takes its own part of the experiment's data."""
        return all(text == SOURCE for text in self.files.values())


def processes_of(tree: Tree, settings: DeploySettings) -> list[Process]:
    """Every process of a tree, parents before their children."""
    plan = _Plan(tree, settings, seats_of(tree, settings.names))
    plan.check()
    groups = plan.groups()
    addresses = plan.addresses()
    machines = plan.machines(groups)
    taken = {(machine_of(host), port) for host, port in addresses.values()}
    out = []
    for name, group in groups.items():
        first = group[0]
        host = machines.get(name, name)
        parent = listen = None
        if first.parent is not None:
            dialled, port = addresses[first.parent]
            parent = join_address(dialled, port)
            if is_loopback(dialled):  # who dials loopback is on the parent's machine
                if name in machines and not is_loopback(host):
                    why = f"{name} dials {dialled}, so it is on the machine of {first.parent}"
                    raise ConfigError(f"deploy.machine = {host!r}: {why}; leave it out.")
                host = LOOPBACK
        if first.children:
            host, port = addresses[first.name]
            everywhere = ANY_IPV6 if ":" in host else ANY_ADDRESS
            # Who dials loopback is on the same machine: nobody else has to reach the port.
            listen = join_address(host if is_loopback(host) else everywhere, port)
        ends = {"parent": parent, "listen": listen, "machine": machines.get(name)}
        control_port = _free_port(host, settings.control_port, taken)
        out.append(plan.process(name, group, control_port=control_port, **ends))
    return out


def process_of(tree: Tree, name: str, settings: DeploySettings) -> Process:
    """The process of one seat that is in no plan: who starts it says where it dials and listens."""
    group = seats_in(tree, [name], settings.names)
    plan = _Plan(tree, settings, seats_of(tree, settings.names))
    plan.check()
    return plan.process(name, group, control_port=settings.control_port)


def _free_port(host: str, first: int, taken: set[tuple[str, int]]) -> int:
    """The first port of a machine from which on none is taken; it is taken now."""
    port = first
    while (machine_of(host), port) in taken:
        port += 1
    if port > LAST_PORT:
        text = f"deploy.control_port = {first}: {host} has no free port above it"
        raise ConfigError(f"{text}; give a smaller one.")
    taken.add((machine_of(host), port))
    return port


@dataclass(frozen=True)
class _Plan:
    """A tree and its seats, and what the table [deploy] says of them."""

    tree: Tree
    settings: DeploySettings
    seats: Mapping[str, NamedSeat]

    @property
    def leaf(self) -> str:
        """The tier of the devices."""
        return self.tree.tiers[-1]

    # The checks

    def check(self) -> None:
        """Refuse names that are neither a tier nor a seat, or of the wrong kind."""
        settings = self.settings
        for name in settings.processes:
            check_name(name)
        for table in ("address", "quorum", "deadline"):
            for key in getattr(settings, table):
                if self._seat_like(f"deploy.{table}.{key}", key).tier == self.leaf:
                    rule = f"a {self.leaf} has no children; leave it out"
                    raise ConfigError(f"deploy.{table}.{key}: {rule}.")
        for key in settings.norm_bound:
            if key == self.tree.tiers[0]:
                raise ConfigError(f"deploy.norm_bound.{key}: it answers nobody; leave it out.")
            self._seat_like(f"deploy.norm_bound.{key}", key)
        for key in settings.files:
            if self._seat_like(f"deploy.data.{key}", key).tier != self.leaf:
                raise ConfigError(f"deploy.data.{key}: only a {self.leaf} has data; leave it out.")
        self._check_patience()

    def _check_patience(self) -> None:
        """Refuse a quorum without a deadline, and the other way round."""
        quorum, deadline = self.settings.quorum, self.settings.deadline
        for key in {**quorum, **deadline}:
            seat = self._seat_like("", key)
            if _setting(deadline, seat) is None:
                fix = f"give deploy.deadline.{key} in seconds"
                raise ConfigError(f"deploy.quorum.{key}: a quorum counts after a deadline; {fix}.")
            if _setting(quorum, seat) is None:
                fix = f"give deploy.quorum.{key}, a number of children or a fraction of them"
                raise ConfigError(f"deploy.deadline.{key}: after it, a quorum is enough; {fix}.")

    def _seat_like(self, where: str, key: str) -> NamedSeat:
        """The seat of this name, or one that stands for its tier; an error if there is none."""
        if key in self.seats:
            return self.seats[key]
        if key in self.tree.tiers:
            return next(seat for seat in self.seats.values() if seat.tier == key)
        known = [self.tree.tiers[0]]
        for tier in self.tree.tiers[1:]:
            names = [seat.name for seat in self.seats.values() if seat.tier == tier]
            known.append(f"{names[0]} to {names[-1]}")
        tiers = f"this tree has the tiers {', '.join(self.tree.tiers)}"
        raise ConfigError(f"{where}: {tiers} and the seats {', '.join(known)}; give one of these.")

    # Who is in a process

    def groups(self) -> dict[str, list[NamedSeat]]:
        """The seats of every process, by the name of the process."""
        owner: dict[str, str] = {}
        named: dict[str, list[NamedSeat]] = {}
        for name, members in self.settings.processes.items():
            named[name] = self._named_group(name, members, owner)
            owner |= dict.fromkeys(members, name)
        out: dict[str, list[NamedSeat]] = {}
        for seat in self.seats.values():
            if seat.name in owner:
                out.setdefault(owner[seat.name], named[owner[seat.name]])
            elif seat.tier != self.leaf:
                out[seat.name] = [seat]
        for group in self._neighbours(owner):
            name = group[0].name
            if len(group) > 1:
                name = f"{name}-{group[-1].number}"
                check_name(name)
            if name in out:
                fix = "give one of them a name in deploy.processes"
                raise ConfigError(f"two processes would be called {name!r}; {fix}.")
            out[name] = group
        return out

    def _named_group(
        self, name: str, members: Sequence[str], owner: Mapping[str, str]
    ) -> list[NamedSeat]:
        """The seats of a process that the file names; `owner` has the devices of others."""
        where = f"deploy.processes.{name}"
        if name in self.seats:
            fix = "give the process another name"
            raise ConfigError(f"{where}: {name} is the name of a seat; {fix}.")
        if not members:
            raise ConfigError(f"{where} = []: name one or more devices, or leave the process out.")
        for member in members:
            if member not in self.seats or self.seats[member].tier != self.leaf:
                fix = f"give names such as {self.leaf}0"
                raise ConfigError(f"{where}: {member!r} is no {self.leaf}; {fix}.")
            if member in owner or list(members).count(member) > 1:
                other = owner.get(member, name)
                raise ConfigError(f"{where}: {member} is in the process {other} already; keep one.")
        group = sorted((self.seats[member] for member in members), key=lambda seat: seat.number)
        parents = sorted({str(seat.parent) for seat in group})
        if len(parents) > 1:
            fix = "a process dials one parent; make a process for each"
            raise ConfigError(f"{where}: its devices have the parents {', '.join(parents)}; {fix}.")
        return group

    def _neighbours(self, owner: Mapping[str, str]) -> list[list[NamedSeat]]:
        """Devices that no process has by name: neighbours of one parent share a process."""
        devices = [seat for seat in self.seats.values() if seat.tier == self.leaf]
        left = [seat for seat in devices if seat.name not in owner]
        most = self.settings.devices_per_process
        out = []
        for _, group in groupby(left, lambda seat: seat.parent):
            siblings = list(group)
            out += [siblings[first : first + most] for first in range(0, len(siblings), most)]
        return out

    # Where it runs

    def machines(self, groups: Mapping[str, Sequence[NamedSeat]]) -> dict[str, str]:
        """The machines that the file names, by process; nodes with children have an address."""
        of_devices = [name for name, group in groups.items() if group[0].tier == self.leaf]
        table = self.settings.machine
        for key in table:
            if key != self.leaf and key not in of_devices:
                known = f"{self.leaf}, or a process of devices: {some(of_devices)}"
                raise ConfigError(f"deploy.machine.{key}: give {known}.")
        out: dict[str, str] = {}
        for name in of_devices:
            text = table.get(name, table.get(self.leaf))
            if text is None:
                continue
            text = text.replace("{process}", name)
            out[name] = text.strip("[]")
            if not is_host(out[name]) or out[name].count(":") == 1:  # one of IPv6 has more
                fix = "give the name of a machine, as in edge0.example"
                raise ConfigError(f"deploy.machine.{name} = {text!r}: {fix}.")
        return out

    def addresses(self) -> dict[str, tuple[str, int]]:
        """(host, port) of every node with children."""
        out: dict[str, tuple[str, int]] = {}
        taken: dict[tuple[str, int], str] = {}
        for seat in self.seats.values():
            if not seat.children:
                continue
            text = _setting(self.settings.address, seat)
            if text is None:
                fix = f'{seat.tier} = "{{seat}}.example:8443", or an address for each seat'
                raise ConfigError(
                    f"deploy.address says nothing of {seat.name}, which its children dial; "
                    f"add {fix}."
                )
            key = f"deploy.address.{seat.name}"
            host, port = split_address(text.replace("{seat}", seat.name), self.settings.port, key)
            other = taken.setdefault((machine_of(host), port), seat.name)
            if other != seat.name:
                both = f"{other} and {seat.name} have the address {join_address(host, port)}"
                raise ConfigError(f"{key}: {both}; give each its own host or port.")
            out[seat.name] = (host, port)
        return out

    # What it has of the table

    def process(
        self, name: str, group: Sequence[NamedSeat], *, control_port: int, **ends: Any
    ) -> Process:
        """The process of these seats; `ends` are its addresses and its machine."""
        settings = self.settings
        first = group[0]
        files = {seat.name: _setting(settings.files, seat) for seat in group if not seat.children}
        bounds = {name: _setting(settings.norm_bound, self.seats[name]) for name in first.children}
        of_parents = {"strikes": settings.strikes, **self._quorum(first)} if first.children else {}
        return Process(
            name=name,
            seats=[seat.name for seat in group],
            nodes=tuple(group),
            state=f"{settings.state.rstrip('/')}/{name}",
            control_port=control_port,
            control_host=settings.control_host,
            durability=settings.durability,
            share_rows=settings.share_rows,
            data={
                seat: text.replace("{seat}", seat)
                for seat, text in files.items()
                if text not in (None, SOURCE)
            },
            norm_bounds={
                child: float(bound) for child, bound in bounds.items() if bound is not None
            },
            **of_parents,
            **ends,
        )

    def _quorum(self, seat: NamedSeat) -> dict[str, Any]:
        """How many children a node waits for and how long, and what it does if one diverges."""
        out: dict[str, Any] = {}
        quorum = _setting(self.settings.quorum, seat)
        deadline = _setting(self.settings.deadline, seat)
        if quorum is not None and deadline is not None:
            count = len(seat.children)
            share = isinstance(quorum, float)  # .07 of 100 are 7, not 8
            needed = math.ceil(Fraction(str(quorum)) * count) if share else quorum
            if needed > count:
                fix = f"give 1 to {count}, or a fraction"
                raise ConfigError(
                    f"deploy.quorum = {quorum} for {seat.name}, which has {count} children; {fix}."
                )
            out = {"deadline": float(deadline), "quorum": max(1, int(needed))}
        above = self.tree.tiers[-2]
        if self.settings.diverged == "drop" and seat.tier == above:
            if not out:
                fix = f"give deploy.quorum.{above} and deploy.deadline.{above}"
                raise ConfigError(f'deploy.diverged = "drop": {seat.name} waits for all; {fix}.')
            out["diverged"] = "drop"
        return out


def _setting(table: Mapping[str, Any], seat: NamedSeat) -> Any:
    """What a table says of a seat: by its name, or else by its tier; None where it is silent."""
    return table.get(seat.name, table.get(seat.tier))
