"""`covey node`: one process of a deployed tree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli import config, node_config
from covey.cli.deploy_config import check_quorum, deployable, tree_of
from covey.cli.deploy_config import read as read_deploy
from covey.cli.device_data import own_data
from covey.cli.folder import Folder
from covey.cli.node_config import NodeFile
from covey.cli.node_folder import write_forms
from covey.cli.server_folder import RUN, ServerFolder
from covey.deployed.certificates import CERTIFICATE, Identity
from covey.deployed.events import EventLog
from covey.deployed.grpc_network import GrpcNetwork
from covey.deployed.grpc_options import check_plain
from covey.deployed.local import end_with_starter
from covey.deployed.memory import give_back_large
from covey.deployed.plan import SOURCE, Process
from covey.deployed.plan_files import EXPERIMENT
from covey.deployed.process import Member, parts_of
from covey.deployed.progress import Progress
from covey.errors import ConfigError, DivergedError, TransportError


def node(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[NODE.toml]", help="A file that covey deploy plan has written."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The seat, such as device17; the top is server.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The parent's address.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where children dial this node."),
    ] = None,
    experiment: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="The experiment. Default: that beside NODE.toml."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The device's own file. Default: its part of the source."
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the node's disk.")
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Its certificate and key. Default: beside NODE.toml."),
    ] = None,
    control_port: Annotated[int | None, typer.Option(help="The port of covey ctl.")] = None,
    control_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Where it listens. Beyond loopback it needs the certificate of an operator.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without certificates; on loopback alone.")
    ] = False,
) -> None:
    """Run one node of a deployed tree: a device, an edge, or the server.

    A node with children listens, a node with a parent dials it, and the server runs the rounds. It
    goes on from its disk. SIGTERM or Ctrl-C ends it after what is under way.

    Examples:

      covey node /etc/covey/edge3/node.toml

      covey node --name device17 --parent edge3.example:8443 --experiment tree.toml --data 17.csv
    """
    given = {
        "name": name,
        "parent": parent,
        "listen": listen,
        "state": None if state is None else str(state),
        "control_port": control_port,
        "control_host": control_host,
    }
    folder = Path() if file is None else file.parent
    settings = _settings(file, {key: value for key, value in given.items() if value is not None})
    settings = _with_data(settings, data)
    identity = None
    if not insecure:
        identity = _identity(certs or folder, settings.seats)
    _run(settings, experiment or folder / EXPERIMENT, identity)


def _settings(file: Path | None, given: dict[str, Any]) -> NodeFile:
    """The file of the process with what the command line says instead."""
    if file is not None:
        table = node_config.load(file).model_dump(exclude_none=True)
        if given.get("name", table["name"]) != table["name"]:
            raise ConfigError(f"{file} is of {table['name']}; leave out --name {given['name']}.")
        return node_config.read(table | given)
    if "name" not in given:
        raise ConfigError("give a file NODE.toml, or --name with the seat of this node.")
    name = given["name"]
    return node_config.read({"seats": [name], "state": f"state/{name}"} | given)


def _with_data(settings: NodeFile, data: str | None) -> NodeFile:
    """The settings with the file that the command line names for the one device."""
    if data is None or data == SOURCE:
        return settings
    if len(settings.seats) > 1:
        fix = "name the file of each in node.toml"
        raise ConfigError(f"--data {data}: this process has {len(settings.seats)} seats; {fix}.")
    return settings.model_copy(update={"data": {settings.seats[0]: data}})


def _identity(folder: Path, seats: list[str]) -> Identity:
    """The certificate of this node; an error where it is not valid, or of other seats."""
    if not (folder / CERTIFICATE).exists():
        fix = "give --certs, or --insecure on one machine"
        raise ConfigError(f"{folder} has no {CERTIFICATE}; {fix}.")
    identity = Identity(folder)
    refusal = identity.refusal()
    if refusal is not None:  # systemd tries again: the clock may be set later, or it is renewed
        raise TransportError(refusal)
    held = identity.check().seats
    for seat in seats:
        if seat not in held:
            fix = f"give --certs the folder of {seat}"
            raise ConfigError(f"{folder / CERTIFICATE} is of {', '.join(held)}; {fix}.")
    return identity


def _run(settings: NodeFile, file: Path, identity: Identity | None) -> None:
    """Start the process, and return when it has ended."""
    loaded = config.load(file)
    if loaded.deploy is None:
        loaded = loaded.model_copy(update={"deploy": {}})
    loaded = deployable(loaded)
    deploy = read_deploy(loaded.deploy or {})
    check_quorum(deploy, loaded.learner())
    experiment = loaded.experiment(loaded.seed)
    process = settings.process(tree_of(experiment), deploy.names)
    if identity is None:
        _check_loopback(process)
    if process.aggregates:
        give_back_large()
    end_with_starter()
    log = EventLog(process.name)
    progress = Progress(process.name, process.tier)
    own = own_data(loaded, process, experiment.data)
    member = Member(process, parts_of(experiment), GrpcNetwork(identity), log, progress, own)
    with log.library(), member.running(identity):
        write_forms(loaded, process, experiment.data)
        if process.parent is not None:
            member.serve()
            return
        folder = ServerFolder(loaded, Folder(Path(process.state) / RUN), sys.argv)
        with folder.open():
            _rounds(member, folder)


def _check_loopback(process: Process) -> None:
    """Refuse addresses that other machines reach, before anything is written."""
    for address in (process.parent, process.listen):
        if address is not None:
            check_plain(address)


def _rounds(member: Member, folder: ServerFolder) -> None:
    """Every round of the server, written down; the models at the end."""
    run = member.run()
    folder.begin(run)
    try:
        for record in member.rounds(run):
            folder.add(run, record)
    except DivergedError:
        folder.end(run)  # the rounds before are good
        raise
    folder.end(run)
    lacks = run.runtime.lacks
    if lacks is not None:
        fix = "start the server again when their nodes are back"
        member.log.warning("incomplete", text=f"the run folder lacks {lacks}; {fix}")
