"""`covey node`: one process of a deployed tree."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.deployed.files.deployment import Deployment
from covey.deployed.files.device_data import own_data, with_whole_paths
from covey.deployed.files.node_folder import make_folders, write_forms
from covey.deployed.files.server_folder import RUN, ServerFolder
from covey.deployed.memory import give_back_large
from covey.deployed.node.process import Member, parts_of
from covey.deployed.node.server_run import finish
from covey.deployed.operate.certificates import CERTIFICATE, Identity
from covey.deployed.operate.events import EventLog
from covey.deployed.plan.local import end_with_starter
from covey.deployed.plan.plan import SOURCE, DeploySettings, process_of
from covey.deployed.plan.plan_files import EXPERIMENT
from covey.deployed.plan.process import Process
from covey.deployed.transport.extras import needed
from covey.deployed.transport.grpc_options import check_plain
from covey.errors import ConfigError, CoveyError, DivergedError, OtherExperiment, TransportError
from covey.files import config
from covey.folder.own_code import own_modules
from covey.runs.run import Run
from covey.runs.saved.run_folder import RunFolder
from covey.runs.tracker import play

OwnFile = Annotated[
    Path | None,
    typer.Argument(metavar="NODE.toml", help="A file that covey deploy plan has written."),
]
Name = Annotated[str | None, typer.Option(help="The seat, such as device17; the top is server.")]
ParentAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The parent's address.")
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where children dial this node.")
]
ExperimentFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="The experiment. Default: that beside NODE.toml."),
]
Data = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The device's own file. Default: its part of the source."),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder of the node's disk. Default: that of NODE.toml, or NAME in deploy.state.",
    ),
]
Certs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Its certificate and key. Default: beside NODE.toml."),
]
ControlPort = Annotated[
    int | None, typer.Option(help="The port of covey ctl. Default: that of the file, or 9443.")
]
ControlHost = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Where the control port listens. Default: that of the file, or 127.0.0.1. "
        "Beyond loopback it needs the certificate of an operator.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without certificates; on loopback alone.")
]
Jump = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="ROUNDS",
        help="Believe once a server that stands so many rounds before or after this disk.",
    ),
]
_LAST_LIST = "revoked.number"


def node(
    file: OwnFile = None,
    name: Name = None,
    parent: ParentAddress = None,
    listen: Listen = None,
    experiment: ExperimentFile = None,
    data: Data = None,
    state: State = None,
    certs: Certs = None,
    control_port: ControlPort = None,
    control_host: ControlHost = None,
    insecure: Insecure = False,
    jump: Jump = 0,
) -> None:
    """A node with children listens, a node with a parent dials it, and the server runs the rounds.

    It goes on from its disk. SIGTERM or Ctrl-C ends it after what is under way.

    With --name and no NODE.toml, its settings are those of the table \\[deploy] of the experiment.

    Examples:

      covey node /etc/covey/edge3/node.toml

      covey node --name device17 --parent edge3.example:8443 --experiment tree.toml --certs device17
    """
    planned = None
    folder = Path()
    if file is not None:
        planned = Process.load(file)
        folder = file.parent
        name = name or planned.name
        if name != planned.name:
            raise ConfigError(f"{file} is of {planned.name}; leave out --name {name}.")
    if name is None:
        raise ConfigError("give a file NODE.toml, or --name with the seat of this node.")
    identity = None
    if not insecure:
        identity = _identity(certs or folder, planned.seats if planned is not None else [name])
    path = experiment or folder / EXPERIMENT
    loaded = config.load(path, fix="give --experiment")
    deployment = Deployment.without_processes(loaded.with_section("deploy", loaded.deploy or {}))
    if planned is None:
        whole = with_whole_paths(deployment.config, path.parent)
        planned = process_of(deployment.tree, name, DeploySettings.read(whole.deploy))
    given: dict[str, Any] = {"parent": parent, "listen": listen, "state": state and str(state)}
    given |= {"control_port": control_port, "control_host": control_host}
    given = {key: value for key, value in given.items() if value is not None}
    if data not in (None, SOURCE):
        if len(planned.seats) > 1:
            fix = "name the file of each in node.toml"
            raise ConfigError(f"--data {data}: this process has {len(planned.seats)} seats; {fix}.")
        given["data"] = {planned.seats[0]: data}
    process = Process.read(planned.as_dict() | given)
    _run(process.placed(deployment.tree, deployment.deploy.names), deployment, identity, jump)


def _identity(folder: Path, seats: list[str]) -> Identity:
    """The certificate of this node; an error where it is not valid, or of other seats."""
    if not (folder / CERTIFICATE).exists():
        fix = "give --certs, or --insecure on one machine"
        raise ConfigError(f"{folder} has no {CERTIFICATE}; {fix}.")
    identity = Identity(folder)
    refusal = identity.refusal()
    if refusal is not None:  # systemd tries again: the clock may be set later, or it is renewed
        raise TransportError(refusal)
    certified_seats = identity.check().seats
    for seat in seats:
        if seat not in certified_seats:
            listed = ", ".join(certified_seats)
            fix = f"give --certs the folder of {seat}"
            raise ConfigError(f"{folder / CERTIFICATE} is of {listed}; {fix}.")
    return identity


def _run(
    process: Process,
    deployed: Deployment,
    identity: Identity | None,
    jump: int,
) -> None:
    """Start the process, and return when it has ended."""
    if identity is None:  # before anything is written
        for address in (process.parent, process.listen):
            if address is not None:
                check_plain(address)
    else:
        identity = replace(identity, memory=Path(process.state) / _LAST_LIST)
    if process.aggregates:
        give_back_large()
    end_with_starter()
    log = EventLog(process.name)
    shards = deployed.experiment.data
    own = own_data(deployed.config, process, shards)
    modules = own_modules(deployed.config)
    needed("google.protobuf")  # or an error that says what to install
    parts = parts_of(deployed.experiment)
    member = Member(process, parts, identity, log, own, jump=jump)
    make_folders(process)
    with log.library(), member.running():
        # Files of an experiment that is refused must not replace those of the run.
        write = partial(write_forms, deployed.config, process, shards, modules)
        if process.parent is not None:
            member.before_first = write
            member.serve()
            return
        folder = ServerFolder(deployed.config, RunFolder(Path(process.state) / RUN), sys.argv)
        with folder.open():
            try:
                run = member.run()
            except OtherExperiment as error:
                fix = "restore experiment.toml, or give another state"
                raise ConfigError(f"{str(error).rstrip('.')}; {fix}.") from error
            write()
            _rounds(member, run, folder)


def _rounds(member: Member, run: Run, folder: ServerFolder) -> None:
    """Every round of the server, written down; the models at the end.

    Where a round diverges, the rounds before are good, and so are their models.
    """
    rounds = ((record,) for record in member.rounds(run))
    try:
        play(rounds, [folder.of(run)], every=folder.config.checkpoint_every)
    except DivergedError as error:
        # The log says first why the run ends: nodes that are away may take long.
        member.log.error("run_diverged", text=str(error))
        steps = [partial(finish, run), partial(folder.end, None)]
        for step in steps if run.round else steps[1:]:
            try:
                step()
            except CoveyError as failure:  # it does not hide why the run has ended
                member.log.error("incomplete", text=f"not all models were written: {failure}")
        _warn_of_lacks(member, run)
        raise
    _warn_of_lacks(member, run)


def _warn_of_lacks(member: Member, run: Run) -> None:
    """Let the log say whose rows the run folder lacks, if it should have them."""
    lacks = run.runtime.lacks
    if lacks is not None and member.process.share_rows:
        fix = "start the server again when their nodes are back"
        member.log.warning("incomplete", text=f"the run folder lacks {lacks}; {fix}")
