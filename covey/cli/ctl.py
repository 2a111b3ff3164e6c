"""`covey ctl`: the status of running nodes, and orders to them."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from covey.cli.options import AsJson
from covey.cli.show import print_wide
from covey.deployed.control import call
from covey.deployed.plan import LOOPBACK, split_address
from covey.deployed.plan_files import DRAIN_SECONDS, NODE
from covey.errors import ConfigError

app = typer.Typer(
    help="Look at running nodes, and pause, resume, stop, evict or admit them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PORT = 9443
_POLL = 0.2  # s between two looks at a node that ends
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
    tolerant = plan is not None
    addresses = _addresses(node, plan)
    statuses = [_status(address, certs, tolerant=tolerant) for address in addresses]
    if as_json:
        print(json.dumps(statuses))
        return
    console = Console(soft_wrap=True, highlight=False)
    print_wide(console, table(statuses))
    for line in waiting(statuses):
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
    addresses = _addresses(node, plan)
    for position, (name, place) in enumerate(addresses):
        console.print(escape(f"{name}: {_stopped(place, certs)}"))
        if position == 0:
            _wait_for_end(place, certs)


@app.command()
def evict(
    seat: Annotated[str, typer.Argument(help="A child of the node, such as device17.")],
    node: Nodes = None,
    certs: Certs = None,
) -> None:
    """Close the stream of a child, and refuse it until it is admitted again.

    The order goes to the child's parent. All seats of the child's process become empty.

    Examples:

      covey ctl evict device17 --node 127.0.0.1:9444
    """
    _order(f"evict/{seat}", node, None, certs)


@app.command()
def admit(
    seat: Annotated[str, typer.Argument(help="A child that was evicted, such as device17.")],
    node: Nodes = None,
    certs: Certs = None,
) -> None:
    """Let a child that was evicted take its seat again.

    The order goes to the child's parent. Start the child's process again, unless systemd does.

    Examples:

      covey ctl admit device17 --node 127.0.0.1:9444
    """
    _order(f"admit/{seat}", node, None, certs)


def table(statuses: list[dict[str, Any]]) -> Table:
    """The status screen: one line per seat, as its own process tells it or else its parent."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(_TITLES):
        out.add_column(title, justify="left" if column < _TEXTS else "right", no_wrap=True)
    for seat in merged(statuses):
        out.add_row(*[escape(word) for word in _words(seat)])
    return out


def waiting(statuses: list[dict[str, Any]]) -> list[str]:
    """Which processes wait for empty seats, and what an operator can do."""
    out = []
    for status in statuses:
        seats = {seat["seat"]: seat for seat in status["seats"]}
        for name in status.get("waits_for", []):
            line = f"{status['process']} waits for {name}: nobody is on this seat; start its node"
            if seats[name]["state"] == "evicted":
                why = seats[name]["bad_reason"] or "by an operator."
                fix = f"mend its node, then: covey ctl admit {name}"
                line = f"{status['process']} waits for {name}, which is evicted: {why} {fix}"
            out.append(f"{line}.")
    return out


_TITLES = ("seat", "state", "last ask", "rounds", "down", "up", "late", "absent", "bad", "lag")
_TEXTS = 3  # columns of text


def merged(statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per seat; what its own process says comes before what its parent says."""
    seats: dict[str, dict[str, Any]] = {}
    for status in statuses:
        # A server hosts no seat that is asked; its line says what the process does.
        if not any(seat["own"] for seat in status["seats"]):
            seats.setdefault(status["process"], _of_process(status))
        for seat in status["seats"]:
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


def _order(order: str, node: list[str] | None, plan: Path | None, certs: Path | None) -> None:
    """Give an order to every node, and print what each has done."""
    console = Console(soft_wrap=True, highlight=False)
    for name, (host, port) in _addresses(node, plan):
        done = call("POST", (host, port), f"/{order}", certs)
        console.print(escape(f"{name}: {done}"))


def _stopped(place: tuple[str, int], certs: Path | None) -> str:
    """Stop one node of a plan; one that has ended already is no error."""
    try:
        return call("POST", place, "/stop", certs)
    except ConfigError:
        return "no answer"


def _wait_for_end(place: tuple[str, int], certs: Path | None) -> None:
    """Wait until a node that was stopped has ended, or takes too long."""
    until = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < until:
        try:
            call("GET", place, "/status", certs)
        except ConfigError:
            return
        time.sleep(_POLL)


def _status(
    address: tuple[str, tuple[str, int]], certs: Path | None, *, tolerant: bool
) -> dict[str, Any]:
    """The status of one node; of a planned tree, also that of a node that does not answer."""
    name, place = address
    try:
        text = call("GET", place, "/status", certs)
    except ConfigError:
        if not tolerant:
            raise
        return {"process": name, "state": "no answer", "seats": []}
    try:
        status: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is no control port of covey: {error}.") from error
    return status


def _addresses(node: list[str] | None, plan: Path | None) -> list[tuple[str, tuple[str, int]]]:
    """The name and the address of every control port that is meant."""
    if node and plan:
        raise ConfigError("--node and --plan are both given; keep one of them.")
    if plan is not None:
        return _planned(plan)
    texts = node or [f"{LOOPBACK}:{PORT}"]
    return [(text, split_address(text, PORT, "--node")) for text in texts]


def _planned(plan: Path) -> list[tuple[str, tuple[str, int]]]:
    """The control ports of all nodes of a planned tree, on this machine, parents first."""
    out = []
    for file in plan.glob(f"*/{NODE}"):
        node = tomllib.loads(file.read_text(encoding="utf-8"))["node"]
        depth = ("parent" in node) + ("listen" not in node)
        order = (depth, node["control_port"])
        out.append((order, (node["name"], (LOOPBACK, node["control_port"]))))
    if not out:
        raise ConfigError(f"{plan} has no NAME/{NODE}; give the folder of covey deploy plan.")
    return [entry for _, entry in sorted(out)]
