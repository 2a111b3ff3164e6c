"""`covey ctl`: the status of running nodes, and orders to them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from covey.cli import node_config
from covey.cli.options import AsJson
from covey.cli.show import print_wide
from covey.cli.validate import nearest
from covey.data.shards import some
from covey.deployed.control import NotListening, call
from covey.deployed.plan import ANY_ADDRESS, ANY_IPV6, LOOPBACK, join_address, split_address
from covey.deployed.plan_files import DRAIN_SECONDS, NODE
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
        metavar="HOST:PORT",
        help=f"A node's control port. May be repeated. Default: {LOOPBACK}:{PORT}.",
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

      covey ctl status --node edge3.example:9443 --certs operator
    """
    statuses = _statuses(_ports(node, plan), certs, tolerant=plan is not None)
    if as_json:
        print(json.dumps(statuses))
        return
    console = Console(soft_wrap=True, highlight=False)
    print_wide(console, table(statuses))
    for line in [*waiting(statuses), *on_sockets(statuses)]:
        console.print(escape(line))


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
    console = Console(soft_wrap=True, highlight=False)
    for position, port in enumerate(_ports(node, plan)):
        console.print(escape(f"{port.name}: {_stopped(port, certs)}"))
        if position == 0:
            _wait_for_end(port, certs)


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
    _order_of_seat("evict", seat, _ports(node, plan), certs)


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


def table(statuses: list[dict[str, Any]]) -> Table:
    """The status screen: one line per seat, as its own process tells it or else its parent."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(_TITLES):
        out.add_column(title, justify="left" if column < _TEXTS else "right", no_wrap=True)
    for seat in merged(statuses):
        out.add_row(*[escape(word) for word in _words(seat)])
    return out


def waiting(statuses: list[dict[str, Any]]) -> list[str]:
    """Which processes wait for empty seats or do not answer, and what an operator can do."""
    out = []
    silent = [status["process"] for status in statuses if status["state"] == NOT_RUNNING]
    for status in statuses:
        if "reason" in status and status["process"] not in silent:
            out.append(f"{status['process']}: {status['reason']}")
        out += _awaited(status)
        left = status.get("certificate_left")
        if left is not None and left < _SOON:
            name = status["process"]
            ends = f"its certificate ends in {left / DAY:.1f} days"
            out.append(f"{name}: {ends}; covey certs renew {name}")
    if silent:
        fix = "not started yet, ended, or on another machine"
        out.append(f"nothing listens on the control port of {some(silent)} ({fix}).")
    return out


def _awaited(status: dict[str, Any]) -> list[str]:
    """The children that one process waits for, while nobody is on their seats."""
    seats = {seat["seat"]: seat for seat in status["seats"]}
    awaited = status.get("waits_for", [])
    evicted = [name for name in awaited if seats[name]["state"] == "evicted"]
    refused = {}
    for name in awaited:
        if name not in evicted and seats[name].get("turned_away"):
            refused[name] = seats[name]["turned_away"]
    empty = [name for name in awaited if name not in evicted and name not in refused]
    process = status["process"]
    out = []
    for name, reason in refused.items():
        out.append(f"{process} waits for {name}, whose process it refuses: {reason}")
    if empty:
        out.append(f"{process} waits for {some(empty)}: no process has taken the seat yet.")
    for name in evicted:
        reason = seats[name]["bad_reason"]
        admit = f"covey ctl admit {name}"
        if "control" in status:
            admit += f" --node {status['control']}"
        if reason is None:
            out.append(f"{process} waits for {name}, which an operator evicted; end that: {admit}")
        else:
            out.append(f"{process} waits for {name}, which is evicted: {reason}")
            out.append(f"  mend its node, then: {admit}")
    return out


def on_sockets(statuses: list[dict[str, Any]]) -> list[str]:
    """How many bytes the connections of these processes have carried, where systems tell it."""
    sent = 0
    received = 0
    for status in statuses:
        for counts in status.get("socket_bytes", {}).values():
            sent += counts["sent"]
            received += counts["received"]
    if not sent:
        return []
    more = "with heads, facts, frames and TLS"
    return [f"on their sockets: {_size(sent)} sent, {_size(received)} received, {more}"]


NOT_RUNNING = "not running"
DAY = 86_400.0  # s
_SOON = 14 * DAY  # before a certificate ends, the screen says so
_TITLES = ("seat", "state", "last ask", "rounds", "down", "up", "late", "absent", "bad", "lag")
_TEXTS = 3  # columns of text


def merged(statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per seat; what its own process says comes before what its parent says."""
    seats: dict[str, dict[str, Any]] = {}
    for status in statuses:
        # A server hosts no seat that is asked; its line says what the process does.
        if not any(seat["own"] for seat in status["seats"]):
            seats.setdefault(status["process"], _of_process(status))
        for seat in sorted(status["seats"], key=lambda seat: not seat["own"]):
            before = seats.get(seat["seat"], {"asks": {}, "state": ""})
            if seat["own"] or seat["seat"] not in seats:
                asks = seat["asks"] | before["asks"]
                seats[seat["seat"]] = seat | {"asks": asks}
            else:
                before["asks"] = seat["asks"] | before["asks"]
            if "evicted" in (seat["state"], before["state"]):  # which its own process cannot know
                seats[seat["seat"]]["state"] = "evicted"
    tiers = list(dict.fromkeys(_tier_and_number(name)[0] for name in seats))

    def order(seat: dict[str, Any]) -> tuple[int, int]:
        tier, number = _tier_and_number(seat["seat"])
        return tiers.index(tier), number

    return sorted(seats.values(), key=order)


def _tier_and_number(seat: str) -> tuple[str, int]:
    """The tier and the number in the name of a seat.

    >>> _tier_and_number("device17"), _tier_and_number("server")
    (('device', 17), ('server', 0))
    """
    tier = seat.rstrip("0123456789")
    return tier, int(seat[len(tier) :] or 0)


def _of_process(status: dict[str, Any]) -> dict[str, Any]:
    """A process without a seat that is asked, as a line of the screen."""
    children = status["seats"]
    rounds = [seat["rounds"] for seat in children]
    lags = [seat["lag"] for seat in children if seat["lag"] is not None]
    keys = [seat["last_key"] for seat in children if seat["last_key"]]
    return {
        "seat": status["process"],
        "own": True,
        "state": status["state"],
        "last_key": max(keys, default=None, key=_round_of),
        "rounds": max(rounds, default=0),
        "down_bytes": sum(seat["down_bytes"] for seat in children),
        "up_bytes": sum(seat["up_bytes"] for seat in children),
        "asks": {},
        "lag": min(lags, default=None),
    }


def _round_of(key: str) -> int:
    return int(key.partition("/")[0])


def _words(seat: dict[str, Any]) -> list[str]:
    lag = "-"
    if seat["lag"] is not None:
        lag = f"{seat['lag']:.1f} s"
    return [
        seat["seat"],
        seat["state"],
        seat["last_key"] or "-",
        str(seat["rounds"]),
        _size(seat["down_bytes"]),
        _size(seat["up_bytes"]),
        str(seat["asks"].get("late", 0)),
        str(seat["asks"].get("absent", 0)),
        str(seat["asks"].get("bad", 0)),
        lag,
    ]


def _size(count: int) -> str:
    """A number of bytes for a reader.

    >>> _size(999), _size(12_345_678)
    ('999 B', '12.3 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"


@dataclass(frozen=True)
class _Port:
    """The control port of a node."""

    name: str
    place: tuple[str, int]
    process: str | None = None
    """The process that must be there, where a plan tells it."""

    def call(self, method: str, path: str, certs: Path | None) -> str:
        """What it answers."""
        return call(method, self.place, path, certs, self.process)


def _order(order: str, node: list[str] | None, plan: Path | None, certs: Path | None) -> None:
    """Give an order to every node, and print what each has done; all of them are tried."""
    console = Console(soft_wrap=True, highlight=False)
    failed = []
    for port in _ports(node, plan):
        try:
            console.print(escape(f"{port.name}: {port.call('POST', f'/{order}', certs)}"))
        except ConfigError as error:
            failed.append(str(error))
    if failed:
        raise ConfigError("\n".join(failed))


def _order_of_seat(order: str, seat: str, ports: Sequence[_Port], certs: Path | None) -> None:
    """Give an order about a child to its parent; of several nodes, the parent is looked for."""
    console = Console(soft_wrap=True, highlight=False)
    port = ports[0]
    if len(ports) > 1:
        port = _parent_of(seat, ports, certs)
    console.print(escape(f"{port.name}: {port.call('POST', f'/{order}/{seat}', certs)}"))


def _parent_of(seat: str, ports: Sequence[_Port], certs: Path | None) -> _Port:
    """The node that has a child on this seat."""
    known = []
    for port, status in zip(ports, _statuses(ports, certs, tolerant=True), strict=True):
        children = [child["seat"] for child in status["seats"] if not child["own"]]
        if seat in children:
            return port
        known += children
    if not known:
        raise ConfigError(f"the parent of {shown(seat)} is not running on this machine; start it.")
    raise ConfigError(
        f"no node that runs here has the child {shown(seat)}{nearest(seat, known)}; "
        f"their children: {some(known)}."
    )


def _stopped(port: _Port, certs: Path | None) -> str:
    """Stop one node of a plan; one that has ended already is no error."""
    try:
        return port.call("POST", "/stop", certs)
    except NotListening:
        return "it is not running"
    except ConfigError as error:
        return str(error)


def _wait_for_end(port: _Port, certs: Path | None) -> None:
    """Wait until a node that was stopped has ended, or takes too long."""
    until = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < until:
        try:
            port.call("GET", "/status", certs)
        except ConfigError:
            return
        time.sleep(_POLL)


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
        if isinstance(error, NotListening):
            state = NOT_RUNNING
        return {"process": port.name, "state": state, "seats": [], "reason": str(error)}
    try:
        status: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{port.name} is no control port of covey: {error}.") from error
    if not isinstance(status, dict) or not {"process", "state", "seats"} <= status.keys():
        raise ConfigError(f"{port.name} is no control port of covey: it answers {text:.60}.")
    return status | {"control": join_address(*port.place)}


def _ports(node: list[str] | None, plan: Path | None) -> list[_Port]:
    """Every control port that is meant."""
    if node and plan:
        raise ConfigError("--node and --plan are both given; keep one of them.")
    if plan is not None:
        return _planned(plan)
    texts = node or [f"{LOOPBACK}:{PORT}"]
    return [_Port(text, split_address(text, PORT, "--node")) for text in texts]


def _planned(plan: Path) -> list[_Port]:
    """The control ports of all nodes of a planned tree, on this machine, parents first."""
    out = []
    for file in plan.glob(f"*/{NODE}"):
        node = node_config.load(file)
        depth = (node.parent is not None) + (node.listen is None)
        host = node.control_host
        if host in (ANY_ADDRESS, ANY_IPV6):
            host = LOOPBACK
        port = _Port(node.name, (host, node.control_port), node.name)
        out.append(((depth, node.control_port, node.name), port))
    if not out:
        raise ConfigError(f"{plan} has no NAME/{NODE}; give the folder of covey deploy plan.")
    return [port for _, port in sorted(out, key=lambda entry: entry[0])]
