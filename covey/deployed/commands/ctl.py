"""`covey ctl`: the status of running nodes, and orders to them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from covey.cli.options import AsJson
from covey.data.shards import some
from covey.deployed.commands.ctl_screen import on_sockets, table, waiting
from covey.deployed.operate.control_port import (
    NOT_RUNNING,
    PORT,
    AnotherProcess,
    ControlPort,
    NotListening,
    ports_of,
    statuses_of,
)
from covey.deployed.plan.plan_files import DRAIN_SECONDS
from covey.deployed.plan.process import LOOPBACK
from covey.errors import ConfigError, shown
from covey.fields import nearest
from covey.folder.show import print_wide
from covey.folder.terminal import Console

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    node: Nodes = None,
    plan: Plan = None,
    certs: Certs = None,
    as_json: AsJson = False,
) -> None:
    """Show every seat: its state, last ask, rounds, bytes, and seconds since its last answer.

    Examples:

      covey ctl status

      covey ctl status --plan deploy

      covey ctl status --node edge3@edge3.example:9443 --certs operator
    """
    statuses = statuses_of(ports_of(node, plan, certs), tolerant=plan is not None)
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
    _order("pause", ports_of(node, plan, certs))


@app.command()
def resume(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let paused nodes go on.

    Examples:

      covey ctl resume
    """
    _order("resume", ports_of(node, plan, certs))


@app.command()
def stop(node: Nodes = None, plan: Plan = None, certs: Certs = None) -> None:
    """Let nodes end after what is under way; they go on from their disks when started again.

    Of a planned tree, the server ends first: it needs the others for its round, and to write down
    where the run stands.

    Examples:

      covey ctl stop --plan deploy
    """
    _order("stop", ports_of(node, plan, certs))


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
    port = _parent_of(seat, ports_of(node, plan, certs))
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
    port = _parent_of(seat, ports_of(node, plan, certs))
    Console().print(f"{port.name}: {port.call('POST', f'/admit/{seat}')}")


def _order(order: str, ports: Sequence[ControlPort]) -> None:
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


def _parent_of(seat: str, ports: Sequence[ControlPort]) -> ControlPort:
    """The one node that is named, or of several the one that has a child on this seat."""
    if len(ports) == 1:
        return ports[0]
    children_seen: list[str] = []
    reasons: list[str] = []
    for port, status in zip(ports, statuses_of(ports, tolerant=True), strict=True):
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
