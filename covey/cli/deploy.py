"""`covey deploy`: the files of a tree on many machines, or the whole tree on this one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covey.cli.deploy_local import LocalTree, show_end
from covey.cli.deployment import Deployment
from covey.cli.device_data import described, with_whole_paths
from covey.cli.load import load as load_run
from covey.cli.load import summary
from covey.cli.options import AsJson, load_and_note
from covey.cli.terminal import Console
from covey.deployed import extras, plan_files, plan_scripts
from covey.deployed.plan import Process, bracketed
from covey.errors import ConfigError

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
    no_keys: Annotated[
        bool,
        typer.Option(
            "--no-keys",
            help="Make no keys: every machine makes its own with covey certs request.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write what every machine of a tree needs, and print the commands that start it.

    Every process gets a folder: node.toml, the experiment, a systemd unit, and a private key with
    the request to sign it. sign.sh signs the requests, start.sh copies the folders to their
    machines and starts the nodes. compose.yaml starts all processes on one machine.

    Examples:

      covey deploy plan tree.toml

      covey deploy plan tree.toml --issue              with an authority and its certificates

      covey deploy plan tree.toml --out fleet deploy.devices_per_process=10
    """
    console = Console(stderr=as_json)
    if issue and no_keys:
        raise ConfigError("--issue makes all keys, and --no-keys none; give one of them.")
    deployment = Deployment.of(load_and_note(console, file, changes or []))
    extras.cryptography()  # an error before anything is written
    processes = deployment.processes
    folders = deployment.write(out, processes)
    if issue:
        plan_files.add_certificates(processes, out)
        plan_scripts.write_start(processes, out)
    else:
        if not no_keys:
            plan_files.add_requests(processes, out)
        plan_scripts.write_signing(processes, out, AUTHORITY)
        plan_scripts.write_start(processes, out, signed=processes)
    commands = scripts(out)
    if as_json:
        names = {name: str(folder) for name, folder in folders.items()}
        print(json.dumps({"folder": str(out), "processes": names, "commands": commands}))
        return
    _note_needs(console, deployment)
    _note_kept(console, deployment)
    places = f"{len(processes)} processes; each has a folder in {out}"
    console.print(f"{deployment.tree}: {places}")
    if no_keys:
        _show_requests(console, processes, out)
    for command in commands:
        console.print(f"  {command}")
    if issue:
        console.print(f"keep {out}/ca.key to yourself: no machine needs it")
    _note_placeholders(console, processes)
    compose = shlex.join(["docker", "compose", "--file", str(out / plan_files.COMPOSE), "up"])
    if issue:
        console.print(f"on one machine: {compose}")
    elif not no_keys:
        console.print(f"on one machine: {compose}, after {plan_scripts.SIGN}")


def scripts(out: Path) -> list[str]:
    """What an operator types, in this order: the scripts that a plan has."""
    names = [plan_scripts.SIGN, plan_scripts.START]
    return [shlex.join(["sh", str(out / name)]) for name in names if (out / name).exists()]


def _show_requests(console: Console, processes: Sequence[Process], out: Path) -> None:
    """Say how a key is made on its machine."""
    name = processes[0].name
    folder = f"{plan_files.CONFIG_FOLDER}/{name}"
    console.print(
        "first make a key on every machine, and bring its request here, as for the first:"
    )
    console.print(f"  covey certs request {name} --dir {folder}")
    host = bracketed(plan_scripts.host_of(processes, name))
    source = shlex.quote(f"root@{host}:{folder}/request.pem")
    console.print(f"  scp {source} {shlex.quote(f'{out}/{name}/')}")
    console.print("then:")


def _note_placeholders(console: Console, processes: Sequence[Process]) -> None:
    """Say which names of machines in the commands are made up: nobody dials these processes."""
    hosts = plan_scripts.hosts_of(processes)
    unknown = [process for process in processes if process.name not in hosts]
    if not unknown:
        return
    first = plan_scripts.placeholder(unknown[0].name)
    names = f"{first} stands for the machine of {unknown[0].name}"
    if len(unknown) > 1:
        names += f", and so on for {len(unknown) - 1} more"
    fix = "put in the real names, or give them in deploy.machine"
    console.print(f"note: in {plan_scripts.START} {names}; {fix}")
    shared = "a machine that several processes share must be in deploy.machine"
    console.print(f"note: {shared}, or their control ports are the same")


def _note_needs(console: Console, deployment: Deployment) -> None:
    """Say what travels with the experiment, and which files every machine must have besides."""
    modules = list(deployment.modules())
    if modules:
        rest = "what they read must be on every machine"
        console.print(f"note: every folder has {', '.join(modules)}; {rest}")
    for key, path in deployment.needed_files().items():
        console.print(f"note: {key}: every machine needs {path}")
    found = deployment.found_set()
    if found is not None:
        name, folder = found
        fix = "to have it elsewhere, give data.data_dir"
        console.print(f"note: data.name: every machine needs {name}, here in {folder}; {fix}")


def _note_kept(console: Console, deployment: Deployment) -> None:
    """Say what nodes keep to themselves of examples and of rows."""
    least = deployment.config.least
    if least > 1:
        told = f"a device tells no sums of fewer than {least} examples of a part"
        console.print(f"note: least = {least}: {told}")
    if not deployment.deploy.share_rows:
        console.print("note: share_rows = false: edges and devices keep their models to themselves")


@app.command()
def describe(
    file: TreeFile,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The device's own file.")],
    changes: Changes = None,
) -> None:
    """Print what a device tells of its data: counts, and what each column has in training rows.

    That is the count, mean and summed squares of numbers, and every word with its count; look at
    them before you send them. The rows stay where they are. An operator collects the descriptions
    of all devices in a folder, for the table of data named census.

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
        typer.Option(help="The folder of all processes. One of the same run goes on."),
    ] = Path("local"),
    insecure: Annotated[bool, typer.Option("--insecure", help="Without certificates.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a whole tree on this machine, as real processes with certificates made on the spot.

    A process that is killed is started again, up to 5 times. All processes end after the last
    round, on Ctrl-C, or when one of them fails for good. The same command goes on then. The
    server's folder OUT/server/state/run is that of `covey run`; every device has its models in
    OUT/device0/state/device0.

    Examples:

      covey deploy local tree.toml

      covey deploy local tree.toml rounds=5 deploy.devices_per_process=4 --out trial
    """
    console = Console(stderr=as_json)
    extras.grpc()
    config = load_and_note(console, file, changes or [])
    deployment = Deployment.of(with_whole_paths(config, file.parent), local=True)
    words = ["covey", "deploy", "local", str(file), *(changes or []), "--out", str(out)]
    if insecure:
        words.append("--insecure")
    tree = LocalTree(deployment, out, insecure=insecure, command=shlex.join(words))
    folder = tree.run(console)
    if as_json:
        facts = summary([load_run(folder)]).as_dict()
        names = [process.name for process in deployment.processes]
        again = {"started_again": tree.started_again}
        print(json.dumps({"folder": str(folder), "processes": names, **again, **facts}))
        return
    show_end(console, tree)
