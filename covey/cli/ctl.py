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

from covey.cli import node_config
from covey.cli.ctl_screen import NOT_RUNNING, on_sockets, table, waiting
from covey.cli.options import AsJson
from covey.cli.show import print_wide
from covey.cli.terminal import Console
from covey.cli.validate import nearest
from covey.data.shards import some
from covey.deployed.control import AnotherProcess, NotListening, call
from covey.deployed.plan import (
    ANY_ADDRESS,
    ANY_IPV6,
    LOOPBACK,
    is_loopback,
    join_address,
    split_address,
)
from covey.deployed.plan_files import DRAIN_SECONDS, NODE
from covey.deployed.seats import check_name
from covey.errors import ConfigError, shown

app = typer.Typer(
    help="Look at running nodes, and pause, resume, stop, evict or admit them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    Path | None,
    typer.Option(metavar="DIR", help="The folder of an operator's certificate."),
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
    statuses = _statuses(_ports(node, plan), certs, tolerant=plan is not None)
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
    _order("pause", node, plan, certs)


@app.command()
def resume(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let paused nodes go on.

    Examples:

      covey ctl resume
    """
    _order("resume", node, plan, certs)


@app.command()
def stop(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let nodes end after what is under way; they go on from their disks when started again.

    Of a planned tree, the server ends first: it needs the others for its round, and to write down
    where the run stands.

    Examples:

      covey ctl stop --plan deploy
    """
    if plan is None:
        _order("stop", node, plan, certs)
        return
    orders = _Orders("stop", certs)
    server, *others = _ports(node, plan)
    if orders.give(server) and not _has_ended(server, certs):
        rest = f"still ends its round after {DRAIN_SECONDS} s; the others are stopped nevertheless"
        orders.say(f"{server.name}: {rest}")
    for port in others:
        orders.give(port)
    orders.end()


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
    again = _order_of_seat("evict", seat, _ports(node, plan), certs)
    console = Console()
    console.print(f"covey ctl admit {seat} {again} lets it back in")


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
    _order_of_seat("admit", seat, _ports(node, plan), certs)


@dataclass(frozen=True)
class _Port:
    """The control port of a node."""

    name: str
    address: tuple[str, int]
    process: str | None = None
    """The process that must be there, where a plan tells it."""
    seats: tuple[str, ...] = ()
    """Those that its certificate must name, where a plan or the operator tells them."""

    def call(self, method: str, path: str, certs: Path | None) -> str:
        """What it answers."""
        if self.seats and self.process is None and certs is None:
            fix = "give --certs, or the address alone"
            raise ConfigError(f"{self.name}: a seat is checked against a certificate; {fix}.")
        if certs is not None and not self.seats and not is_loopback(self.address[0]):
            why = "any node of the tree could answer there"
            raise ConfigError(f"{self.name}: {why}; give --node SEAT@{self.name}.")
        return call(method, self.address, path, certs, self.process, self.seats)

    def words(self, certs: Path | None) -> list[str]:
        """The options that mean the same port and, with certificates, the same process."""
        place = join_address(*self.address)
        if certs is None:
            return ["--node", place]
        if self.seats:
            place = f"{self.seats[0]}@{place}"
        return ["--node", place, "--certs", str(certs)]


class _Orders:
    """One order to several nodes: what each has done is printed, and failures are collected."""

    def __init__(self, order: str, certs: Path | None) -> None:
        self._order = order
        self._certs = certs
        self._console = Console()
        self._failures: list[str] = []

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text)

    def give(self, port: _Port) -> bool:
        """Give the order to one node; return whether it obeys.

        A node of a plan that is not running here is no failure: it may be on another machine.
        """
        try:
            self.say(f"{port.name}: {port.call('POST', f'/{self._order}', self._certs)}")
        except ConfigError as error:
            if port.process is None:
                self._failures.append(str(error))
            elif isinstance(error, NotListening):
                self.say(f"{port.name}: it is not running")
            elif isinstance(error, AnotherProcess):
                self.say(f"{port.name}: it is not running on this machine")
            else:
                self._failures.append(f"{port.name}: {error}")
            return False
        return True

    def end(self) -> None:
        """Raise what has failed."""
        if self._failures:
            raise ConfigError("\n".join(self._failures))


def _order(order: str, node: list[str] | None, plan: Path | None, certs: Path | None) -> None:
    """Give an order to every node; all of them are tried."""
    orders = _Orders(order, certs)
    obeyed = [orders.give(port) for port in _ports(node, plan)]
    orders.end()
    if not any(obeyed):
        raise ConfigError(f"no node of {plan} is running on this machine; nothing was done.")


def _order_of_seat(order: str, seat: str, ports: Sequence[_Port], certs: Path | None) -> str:
    """Give an order about a child to its parent; of several nodes, the parent is looked for.

    The words that let the command reach the same parent again are returned.
    """
    console = Console()
    port = ports[0]
    if len(ports) > 1:
        port = _parent_of(seat, ports, certs)
    console.print(f"{port.name}: {port.call('POST', f'/{order}/{seat}', certs)}")
    return shlex.join(port.words(certs))


def _parent_of(seat: str, ports: Sequence[_Port], certs: Path | None) -> _Port:
    """The node that has a child on this seat."""
    children_seen: list[str] = []
    reasons: list[str] = []
    for port, status in zip(ports, _statuses(ports, certs, tolerant=True), strict=True):
        children = [child["seat"] for child in status["seats"] if not child["own"]]
        if seat in children:
            return port
        children_seen += children
        planned_elsewhere = port.process is not None and status["state"] == NOT_RUNNING
        if "reason" in status and not planned_elsewhere:
            reasons.append(f"{port.name}: {status['reason']}")
    if not children_seen and reasons:
        raise ConfigError(f"the parent of {shown(seat)} was not found. {reasons[0]}")
    if not children_seen:
        raise ConfigError(f"the parent of {shown(seat)} is not running on this machine; start it.")
    raise ConfigError(
        f"no node that runs here has the child {shown(seat)}{nearest(seat, children_seen)}; "
        f"their children: {some(children_seen)}."
    )


def _has_ended(port: _Port, certs: Path | None) -> bool:
    """Wait until a node that was stopped has ended; False where it takes too long.

    A busy node may not answer in time, and has not ended.
    """
    until = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < until:
        try:
            port.call("GET", "/status", certs)
        except (NotListening, AnotherProcess):
            return True
        except ConfigError:
            pass
        time.sleep(_POLL)
    return False


def _statuses(
    ports: Sequence[_Port], certs: Path | None, *, tolerant: bool
) -> list[dict[str, Any]]:
    """The status of every node, asked at the same time: a busy one holds up no other."""

    def ask(port: _Port) -> dict[str, Any]:
        return _status(port, certs, tolerant=tolerant)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, ports))


def _status(port: _Port, certs: Path | None, *, tolerant: bool) -> dict[str, Any]:
    """The status of one node; of a planned tree, also that of a node that does not answer."""
    try:
        text = port.call("GET", "/status", certs)
    except ConfigError as error:
        if not tolerant:
            raise
        state = "no answer"
        if isinstance(error, NotListening | AnotherProcess):
            state = NOT_RUNNING
        return {"process": port.name, "state": state, "seats": [], "reason": str(error)}
    try:
        status: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{port.name} is no control port of covey: {error}.") from error
    if not isinstance(status, dict) or not {"process", "state", "seats"} <= status.keys():
        raise ConfigError(f"{port.name} is no control port of covey: it answers {text:.60}.")
    return status | {"control": join_address(*port.address)}


def _ports(node: list[str] | None, plan: Path | None) -> list[_Port]:
    """Every control port that is meant."""
    if node and plan:
        raise ConfigError("--node and --plan are both given; keep one of them.")
    if plan is not None:
        return _planned(plan)
    texts = node or [f"{LOOPBACK}:{PORT}"]
    return [_port(text) for text in texts]


def _port(text: str) -> _Port:
    """The control port that --node names, with the seat that it must show."""
    seat, at, address = text.rpartition("@")
    seats: tuple[str, ...] = ()
    if at:
        check_name(seat)
        seats = (seat,)
    return _Port(text, split_address(address, PORT, "--node"), seats=seats)


def _planned(plan: Path) -> list[_Port]:
    """The control ports of all nodes of a planned tree, on this machine, parents first."""
    out = []
    for file in plan.glob(f"*/{NODE}"):
        node = node_config.load(file)
        depth = (node.parent is not None) + (node.listen is None)
        host = node.control_host
        if host in (ANY_ADDRESS, ANY_IPV6):
            host = LOOPBACK
        port = _Port(node.name, (host, node.control_port), node.name, tuple(node.seats))
        out.append(((depth, node.control_port, node.name), port))
    if not out:
        raise ConfigError(f"{plan} has no NAME/{NODE}; give the folder of covey deploy plan.")
    return [port for _, port in sorted(out, key=lambda entry: entry[0])]
