"""`covey ctl`: the status of running nodes, and orders to them."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli.options import AsJson
from covey.data.shards import some
from covey.deployed.commands.ctl_screen import NOT_RUNNING, on_sockets, table, waiting
from covey.deployed.operate.control import AnotherProcess, NotListening, call
from covey.deployed.plan.plan_files import DRAIN_SECONDS, NODE
from covey.deployed.plan.process import (
    ANY_ADDRESS,
    ANY_IPV6,
    LOOPBACK,
    Process,
    is_loopback,
    join_address,
    split_address,
)
from covey.deployed.plan.seats import check_name
from covey.errors import ConfigError, shown
from covey.fields import nearest
from covey.folder.show import print_wide
from covey.folder.terminal import Console

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
PORT = 9443
_POLL = 0.2  # s between two looks at a node that ends
_AT_ONCE = 16  # nodes that are asked for their status at the same time
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="[SEAT@]HOST:PORT",
        help=f"A node's control port. May be repeated. Default: {LOOPBACK}:{PORT}. With --certs, "
        "it must show the certificate of SEAT.",
    ),
]
Plan = Annotated[
    Path | None,
    typer.Option("--plan", metavar="DIR", help="All nodes of a planned tree on this machine."),
]
Certs = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder of an operator's certificate.")
]


@app.command()
def status(
    node: Nodes = None, plan: Plan = None, certs: Certs = None, as_json: AsJson = False
) -> None:
    """Show every seat: its state, last ask, rounds, bytes, and seconds since its last answer.

    Examples:

      covey ctl status

      covey ctl status --plan deploy

      covey ctl status --node edge3@edge3.example:9443 --certs operator
    """
    statuses = _statuses(_ports(node, plan, certs), tolerant=plan is not None)
    if as_json:
        print(json.dumps(statuses))
        return
    console = Console()
    print_wide(console, table(statuses))
    for line in [*waiting(statuses), *on_sockets(statuses)]:
        console.print(line)


@app.command()
def pause(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let nodes begin nothing new until they are resumed.

    Examples:

      covey ctl pause
    """
    _order("pause", _ports(node, plan, certs))


@app.command()
def resume(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let paused nodes go on.

    Examples:

      covey ctl resume
    """
    _order("resume", _ports(node, plan, certs))


@app.command()
def stop(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let nodes end after what is under way; they go on from their disks when started again.

    Of a planned tree, the server ends first: it needs the others for its round, and to write down
    where the run stands.

    Examples:

      covey ctl stop --plan deploy
    """
    _order("stop", _ports(node, plan, certs))


@app.command()
def evict(
    seat: Annotated[str, typer.Argument(help="A child of the node, such as device17.")],
    node: Nodes = None,
    plan: Plan = None,
    certs: Certs = None,
) -> None:
    """Close the stream of a child, and refuse it until it is admitted again.

    The order goes to the child's parent, which --plan finds. All seats of the child's process
    become empty.

    Examples:

      covey ctl evict device17 --node 127.0.0.1:9444

      covey ctl evict device17 --plan local
    """
    port = _parent_of(seat, _ports(node, plan, certs))
    console = Console()
    console.print(f"{port.name}: {port.call('POST', f'/evict/{seat}')}")
    console.print(f"covey ctl admit {seat} {shlex.join(port.words())} lets it back in")


@app.command()
def admit(
    seat: Annotated[str, typer.Argument(help="A child that was evicted, such as device17.")],
    node: Nodes = None,
    plan: Plan = None,
    certs: Certs = None,
) -> None:
    """Let a child that was evicted take its seat again.

    The order goes to the child's parent, which --plan finds. Start the child's process again,
    unless systemd does.

    Examples:

      covey ctl admit device17 --node 127.0.0.1:9444

      covey ctl admit device17 --plan local
    """
    port = _parent_of(seat, _ports(node, plan, certs))
    Console().print(f"{port.name}: {port.call('POST', f'/admit/{seat}')}")


@dataclass(frozen=True)
class _Port:
    """The control port of a node, and with which certificate it is asked."""

    name: str
    address: tuple[str, int]
    certs: Path | None
    process: str | None = None
    """The process that must be there, where a plan tells it."""
    seats: tuple[str, ...] = ()
    """Those that its certificate must name, where a plan or the operator tells them."""

    def call(self, method: str, path: str) -> str:
        """What it answers."""
        if self.seats and self.process is None and self.certs is None:
            fix = "give --certs, or the address alone"
            raise ConfigError(f"{self.name}: a seat is checked against a certificate; {fix}.")
        if self.certs is not None and not self.seats and not is_loopback(self.address[0]):
            why = "any node of the tree could answer there"
            raise ConfigError(f"{self.name}: {why}; give --node SEAT@{self.name}.")
        return call(method, self.address, path, self.certs, self.process, self.seats)

    def words(self) -> list[str]:
        """The options that mean the same port and, with certificates, the same process."""
        place = join_address(*self.address)
        if self.certs is None:
            return ["--node", place]
        if self.seats:
            place = f"{self.seats[0]}@{place}"
        return ["--node", place, "--certs", str(self.certs)]

    def status(self, *, tolerant: bool) -> dict[str, Any]:
        """Its status; with `tolerant`, also where it does not answer."""
        try:
            text = self.call("GET", "/status")
        except ConfigError as error:
            if not tolerant:
                raise
            absent = isinstance(error, NotListening | AnotherProcess)
            state = NOT_RUNNING if absent else "no answer"
            return {"process": self.name, "state": state, "seats": [], "reason": str(error)}
        try:
            status: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{self.name} is no control port of covey: {error}.") from error
        if not isinstance(status, dict) or not {"process", "state", "seats"} <= status.keys():
            raise ConfigError(f"{self.name} is no control port of covey: it answers {text:.60}.")
        return status | {"control": join_address(*self.address)}

    def ends(self) -> bool:
        """Wait until a node that was stopped has ended; False where it takes too long."""
        until = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < until:
            try:
                self.call("GET", "/status")
            except (NotListening, AnotherProcess):
                return True
            except ConfigError:  # a busy node may not answer in time, and has not ended
                pass
            time.sleep(_POLL)
        return False


def _ports(node: list[str] | None, plan: Path | None, certs: Path | None) -> list[_Port]:
    """Every control port that is meant; those of a plan are on this machine, parents first."""
    if node and plan:
        raise ConfigError("--node and --plan are both given; keep one of them.")
    if plan is None:
        ports = []
        for text in node or [f"{LOOPBACK}:{PORT}"]:
            seat, at, place = text.rpartition("@")
            if at:
                check_name(seat)
            seats = (seat,) if at else ()  # that its certificate must show
            dialled = split_address(place, PORT, "--node")
            ports.append(_Port(text, dialled, certs, seats=seats))
        return ports
    planned = [Process.load(file) for file in plan.glob(f"*/{NODE}")]
    if not planned:
        raise ConfigError(f"{plan} has no NAME/{NODE}; give the folder of covey deploy plan.")
    planned.sort(key=lambda one: (one.parent is not None, one.listen is None, one.control_port))
    out = []
    for one in planned:
        anywhere = one.control_host in (ANY_ADDRESS, ANY_IPV6)
        address = (LOOPBACK if anywhere else one.control_host, one.control_port)
        out.append(_Port(one.name, address, certs, one.name, tuple(one.seats)))
    return out


def _statuses(ports: Sequence[_Port], *, tolerant: bool) -> list[dict[str, Any]]:
    """The status of every node, asked at the same time: a busy one holds up no other.

    With `tolerant`, as of a planned tree, also of a node that does not answer.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda port: port.status(tolerant=tolerant), ports))


def _order(order: str, ports: Sequence[_Port]) -> None:
    """Give an order to every node; all of them are tried, then failures are raised.

    A node of a plan that is not running here is no failure: it may be on another machine.
    """
    console = Console()
    failures: list[str] = []
    obeyed = False
    for port in ports:
        try:
            console.print(f"{port.name}: {port.call('POST', f'/{order}')}")
        except ConfigError as error:
            if port.process is None:
                failures.append(str(error))
            elif isinstance(error, NotListening | AnotherProcess):
                elsewhere = " on this machine" * isinstance(error, AnotherProcess)
                console.print(f"{port.name}: it is not running{elsewhere}")
            else:
                failures.append(f"{port.name}: {error}")
            continue
        obeyed = True
        is_server = port is ports[0] and port.process is not None
        if order == "stop" and is_server and not port.ends():
            rest = f"still ends its round after {DRAIN_SECONDS} s"
            console.print(f"{port.name}: {rest}; the others are stopped nevertheless")
    if failures:
        raise ConfigError("\n".join(failures))
    if not obeyed and order != "stop":
        names = some([port.name for port in ports])
        raise ConfigError(f"none of {names} is running on this machine; nothing was done.")


def _parent_of(seat: str, ports: Sequence[_Port]) -> _Port:
    """The one node that is named, or of several the one that has a child on this seat."""
    if len(ports) == 1:
        return ports[0]
    children_seen: list[str] = []
    reasons: list[str] = []
    for port, status in zip(ports, _statuses(ports, tolerant=True), strict=True):
        children = [child["seat"] for child in status["seats"] if not child["own"]]
        if seat in children:
            return port
        children_seen += children
        planned_elsewhere = port.process is not None and status["state"] == NOT_RUNNING
        if "reason" in status and not planned_elsewhere:
            reasons.append(f"{port.name}: {status['reason']}")
    if children_seen:
        raise ConfigError(
            f"no node that runs here has the child {shown(seat)}{nearest(seat, children_seen)}; "
            f"their children: {some(children_seen)}."
        )
    if reasons:
        raise ConfigError(f"the parent of {shown(seat)} was not found. {reasons[0]}")
    raise ConfigError(f"the parent of {shown(seat)} is not running on this machine; start it.")
