"""`covey deploy`: the files of a tree on many machines, or the whole tree on this one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from covey.cli.config import Config
from covey.cli.deploy_config import DeployFile, check_quorum, deployable, read, tree_of
from covey.cli.device_data import CENSUS_FILE, check_files, described, is_census, with_names
from covey.cli.options import AsJson, load_and_note
from covey.cli.stop import Interrupted
from covey.data.census import read as read_census
from covey.data.census import text as census_text
from covey.deployed import extras, plan_files
from covey.deployed.local import LocalProcesses, on_this_machine
from covey.deployed.plan import Process, processes_of
from covey.runs.experiment import Experiment
from covey.tree import Tree

app = typer.Typer(
    help="Run a tree on real machines.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
TreeFile = Annotated[
    Path,
    typer.Argument(
        metavar="TREE.toml",
        help=escape("An experiment file with a table [deploy]."),
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE ...]", help="Changes to it."),
]
AUTHORITY = Path("certs")
"""The folder of the authority that signs the requests, as `covey certs` has it."""
_SHOWN = 12  # commands that a terminal lists


@dataclass(frozen=True, eq=False)
class Deployment:
    """A file with a table [deploy], wholly checked, and the processes of its tree."""

    config: Config
    deploy: DeployFile
    experiment: Experiment
    tree: Tree
    processes: list[Process]

    @staticmethod
    def of(config: Config, *, local: bool = False) -> Deployment:
        """Check that the experiment can be deployed, and plan its processes.

        Processes of this machine alone get addresses of their own later.
        """
        if local and config.deploy is None:
            config = config.model_copy(update={"deploy": {}})
        config = deployable(config)
        check_quorum(read(config.deploy or {}), config.learner())
        experiment = config.experiment(config.seed)
        tree = tree_of(experiment)
        config = with_names(config, tree.tiers[-1])
        deploy = read(config.deploy or {})
        settings = deploy.settings()
        if local:
            address = dict.fromkeys(tree.tiers[:-1], "{seat}.local")
            settings = replace(settings, address=address)
        processes = processes_of(tree, settings)
        check_files(config, processes)
        return Deployment(config, deploy, experiment, tree, processes)

    def write(self, folder: Path, processes: list[Process]) -> dict[str, Path]:
        """Write the files of all processes; return the folder of each."""
        config = self.config
        files: dict[str, str] = {}
        if is_census(config):
            order = config.data.get("order", ())
            files[CENSUS_FILE] = census_text(read_census(Path(config.data["path"]), order))
            data = config.data | {"path": CENSUS_FILE, "order": []}
            config = config.model_copy(update={"data": data})
        files[plan_files.EXPERIMENT] = config.text()
        return plan_files.write(processes, files, folder, self.deploy.image)


@app.command()
def plan(
    file: TreeFile,
    changes: Changes = None,
    out: Annotated[
        Path,
        typer.Option(help="The folder to write; it must be new or empty."),
    ] = Path("deploy"),
    issue: Annotated[
        bool,
        typer.Option(
            "--issue",
            help="Make an authority and sign all certificates here. Default: signing requests.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write what every machine of a tree needs, and print the commands that start it.

    Every process gets a folder: node.toml, the experiment, a systemd unit, and a private key with
    the request to sign it. compose.yaml starts all processes on one machine.

    Examples:

      covey deploy plan tree.toml

      covey deploy plan tree.toml --issue              with an authority and its certificates

      covey deploy plan tree.toml --out fleet deploy.devices_per_process=10
    """
    console = Console(stderr=as_json, soft_wrap=True, highlight=False)
    deployment = Deployment.of(load_and_note(console, file, changes or []))
    extras.cryptography()  # an error before anything is written
    processes = deployment.processes
    folders = deployment.write(out, processes)
    commands = plan_files.commands(processes, out)
    if issue:
        plan_files.add_certificates(processes, out)
    else:
        plan_files.add_requests(processes, out)
        commands = [*plan_files.signing_commands(processes, out, AUTHORITY), *commands]
    plan_files.write_commands(commands, out)
    if as_json:
        names = {name: str(folder) for name, folder in folders.items()}
        print(json.dumps({"folder": str(out), "processes": names, "commands": commands}))
        return
    places = f"{len(processes)} processes; each has a folder in {out}"
    console.print(escape(f"{deployment.tree}: {places}"))
    for command in commands[:_SHOWN]:
        console.print(f"  {escape(command)}")
    if len(commands) > _SHOWN:
        console.print(
            f"  and {len(commands) - _SHOWN} more commands: {escape(str(out))}/commands.sh"
        )
    if issue:
        console.print(f"keep {escape(str(out))}/ca.key to yourself: no machine needs it")
    compose = out / plan_files.COMPOSE
    console.print(f"on one machine: docker compose --file {escape(str(compose))} up")


@app.command()
def describe(
    file: TreeFile,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The device's own file.")],
    changes: Changes = None,
) -> None:
    """Print what a device tells of its data: how many examples, inputs and labels it has.

    The data themselves stay where they are. An operator collects the descriptions of all devices in
    a folder, for the table of data named census.

    Examples:

      covey deploy describe tree.toml pump-17.csv > device17.json
    """
    config = load_and_note(Console(stderr=True), file, changes or [])
    print(json.dumps(described(config, data)))


@app.command()
def local(
    file: TreeFile,
    changes: Changes = None,
    out: Annotated[
        Path,
        typer.Option(help="The folder of all processes; it must be new or empty."),
    ] = Path("local"),
    insecure: Annotated[bool, typer.Option("--insecure", help="Without certificates.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a whole tree on this machine, as real processes with certificates made on the spot.

    All processes end after the last round, on Ctrl-C, or when one of them fails. The server's
    metrics and models are in OUT/server/state/run.

    Examples:

      covey deploy local tree.toml

      covey deploy local tree.toml rounds=5 deploy.devices_per_process=4 --out trial
    """
    console = Console(stderr=as_json, soft_wrap=True, highlight=False)
    extras.grpc()
    deployment = Deployment.of(load_and_note(console, file, changes or []), local=True)
    processes = on_this_machine(deployment.processes, out)
    deployment.write(out, processes)
    if not insecure:
        plan_files.add_certificates(processes, out)
    names = [process.name for process in processes]
    tree = LocalProcesses(out, names, insecure=insecure)
    status = f"covey ctl status --plan {out}"
    console.print(escape(f"{deployment.tree}: {len(names)} processes; look at them: {status}"))
    rounds = _watched(console, tree, deployment.config.rounds)
    run = out / names[0] / "state" / "run"
    if as_json:
        print(json.dumps({"folder": str(run), "processes": names, "rounds": rounds}))
        return
    console.print(escape(f"{rounds} rounds; metrics and models: {run}"))


def _watched(console: Console, tree: LocalProcesses, rounds: int) -> int:
    """Start a tree and show its rounds; return how many there were."""
    done = 0
    try:
        with tree.started():
            for event in tree.events():
                if event.get("event") == "round":
                    done = event["round"]
                    console.print(f"round {done}/{rounds}  {event['seconds']:.2f} s")
    except KeyboardInterrupt:
        raise Interrupted(f"all processes are stopped after round {done}") from None
    return done
