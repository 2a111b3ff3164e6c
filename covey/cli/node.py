"""`covey node`: one process of a deployed tree."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli import config, node_config
from covey.cli.config import Config
from covey.cli.deploy_config import DeployFile, check_quorum, deployable, tree_of
from covey.cli.deploy_config import read as read_deploy
from covey.cli.device_data import own_data, with_names, with_whole_paths
from covey.cli.folder import Folder
from covey.cli.node_config import NodeFile
from covey.cli.node_folder import make_folders, write_forms
from covey.cli.own_code import own_modules
from covey.cli.server_folder import RUN, ServerFolder
from covey.deployed.certificates import CERTIFICATE, Identity
from covey.deployed.events import EventLog
from covey.deployed.grpc_network import GrpcNetwork
from covey.deployed.grpc_options import check_plain
from covey.deployed.local import end_with_starter
from covey.deployed.memory import give_back_large
from covey.deployed.plan import SOURCE, Process, process_of
from covey.deployed.plan_files import EXPERIMENT
from covey.deployed.process import Member, parts_of
from covey.deployed.progress import Progress
from covey.deployed.server_run import finish
from covey.errors import (
    ConfigError,
    CoveyError,
    DivergedError,
    OtherExperiment,
    TransportError,
)
from covey.runs.experiment import Experiment
from covey.runs.run import Run
from covey.tree import Tree

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
    """Run one node of a deployed tree: a device, an edge, or the server.

    A node with children listens, a node with a parent dials it, and the server runs the rounds. It
    goes on from its disk. SIGTERM or Ctrl-C ends it after what is under way.

    With --name and no NODE.toml, its settings are those of the table \\[deploy] of the experiment.

    Examples:

      covey node /etc/covey/edge3/node.toml

      covey node --name device17 --parent edge3.example:8443 --experiment tree.toml --certs device17
    """
    options: dict[str, Any] = {
        "name": name,
        "parent": parent,
        "listen": listen,
        "control_port": control_port,
        "control_host": control_host,
    }
    if state is not None:
        options["state"] = str(state)
    options = {key: value for key, value in options.items() if value is not None}
    folder = Path()
    planned = None
    if file is not None:
        folder = file.parent
        planned = node_config.load(file)
    seats = _seats(file, planned, options)
    identity = None
    if not insecure:
        identity = _identity(certs or folder, seats)
    deployed = _Deployed.load(experiment or folder / EXPERIMENT)
    settings = _with_data(_settings(planned, options, deployed), data)
    _run(settings.process(deployed.tree, deployed.deploy.names), deployed, identity, jump)


@dataclass(frozen=True, eq=False)
class _Deployed:
    """The experiment of all nodes, as this machine has it."""

    path: Path
    config: Config
    deploy: DeployFile
    experiment: Experiment
    tree: Tree

    @staticmethod
    def load(path: Path) -> _Deployed:
        """The experiment of a file; an error where a deployed tree cannot run it."""
        loaded = config.load(path, fix="give --experiment")
        if loaded.deploy is None:
            loaded = loaded.model_copy(update={"deploy": {}})
        loaded = deployable(loaded)
        experiment = loaded.experiment(loaded.seed)
        tree = tree_of(experiment)
        loaded = with_names(loaded, tree.tiers[-1])
        deploy = read_deploy(loaded.deploy or {})
        check_quorum(deploy, loaded.learner())
        return _Deployed(path, loaded, deploy, experiment, tree)

    def node_table(self, options: dict[str, Any]) -> dict[str, Any]:
        """The table [node] of a seat that is in no plan, with what the command line says."""
        name = options["name"]
        node_config.seats_in(self.tree, [name], self.deploy.names)
        whole = with_whole_paths(self.config, self.path.parent)
        process = process_of(self.tree, name, read_deploy(whole.deploy or {}).settings())
        process = replace(process, listen=options.get("listen"))
        return process.as_dict() | options


def _seats(file: Path | None, planned: NodeFile | None, options: dict[str, Any]) -> list[str]:
    """The seats of this process, by its file or by its name."""
    if planned is None:
        if "name" not in options:
            raise ConfigError("give a file NODE.toml, or --name with the seat of this node.")
        return [options["name"]]
    if options.get("name", planned.name) != planned.name:
        raise ConfigError(f"{file} is of {planned.name}; leave out --name {options['name']}.")
    return planned.seats


def _settings(planned: NodeFile | None, options: dict[str, Any], deployed: _Deployed) -> NodeFile:
    """The file of the process, or else its part of [deploy], with what the command line says."""
    if planned is not None:
        return node_config.read(planned.model_dump(exclude_none=True) | options)
    return node_config.read(deployed.node_table(options))


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
    certified_seats = identity.check().seats
    for seat in seats:
        if seat not in certified_seats:
            listed = ", ".join(certified_seats)
            fix = f"give --certs the folder of {seat}"
            raise ConfigError(f"{folder / CERTIFICATE} is of {listed}; {fix}.")
    return identity


def _run(process: Process, deployed: _Deployed, identity: Identity | None, jump: int) -> None:
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
    progress = Progress(process.name, process.tier)
    shards = deployed.experiment.data
    own = own_data(deployed.config, process, shards)
    modules = own_modules(deployed.config)
    network = GrpcNetwork(identity)
    parts = parts_of(deployed.experiment)
    member = Member(process, parts, network, log, progress, own, jump=jump)
    make_folders(process)
    with log.library(), member.running(identity):
        # Files of an experiment that is refused must not replace those of the run.
        write = partial(write_forms, deployed.config, process, shards, modules)
        if process.parent is not None:
            member.before_first = write
            member.serve()
            return
        folder = ServerFolder(deployed.config, Folder(Path(process.state) / RUN), sys.argv)
        with folder.open():
            run = _begun(member)
            write()
            _rounds(member, run, folder)


def _begun(member: Member) -> Run:
    """The server's run; an error where its disk has the run of another experiment."""
    try:
        return member.run()
    except OtherExperiment as error:
        text = str(error).rstrip(".")
        fix = "restore experiment.toml, or give another state"
        raise ConfigError(f"{text}; {fix}.") from error


def _rounds(member: Member, run: Run, folder: ServerFolder) -> None:
    """Every round of the server, written down; the models at the end."""
    folder.begin(run)
    try:
        for record in member.rounds(run):
            folder.add(run, record)
    except DivergedError as error:
        _end_diverged(member, run, folder, error)
        raise
    folder.end(run)
    _warn_of_lacks(member, run)


def _warn_of_lacks(member: Member, run: Run) -> None:
    """Let the log say whose rows the run folder lacks, if it should have them."""
    lacks = run.runtime.lacks
    if lacks is not None and member.process.share_rows:
        fix = "start the server again when their nodes are back"
        member.log.warning("incomplete", text=f"the run folder lacks {lacks}; {fix}")


def _end_diverged(member: Member, run: Run, folder: ServerFolder, error: DivergedError) -> None:
    """End a run whose last round diverged: the rounds before are good, and so are their models.

    The log says first why the run ends: nodes that are away may take long. What fails here does not
    hide it.
    """
    member.log.error("run_diverged", text=str(error))
    steps = [folder.end]
    if run.round:
        steps = [finish, folder.end]
    for step in steps:
        try:
            step(run)
        except CoveyError as failure:
            member.log.error("incomplete", text=f"not all models were written: {failure}")
    _warn_of_lacks(member, run)
