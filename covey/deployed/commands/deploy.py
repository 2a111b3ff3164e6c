"""`covey deploy`: the files of a tree on many machines, or the whole tree on this one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covey.cli.options import AsJson, load_and_note
from covey.data.published import locations
from covey.deployed.files.deploy_local import LocalDeployment, show_end
from covey.deployed.files.deployment import Deployment
from covey.deployed.files.device_data import described, with_whole_paths
from covey.deployed.plan import plan_files
from covey.deployed.plan.process import bracketed
from covey.deployed.transport import extras
from covey.errors import ConfigError
from covey.files.data_form import is_census
from covey.files.named import resolved
from covey.folder.load import load as load_run
from covey.folder.load import summary
from covey.folder.own_code import own_modules
from covey.folder.terminal import Console

app = typer.Typer(
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
NewFolder = Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")]
AUTHORITY = Path("certs")
"""The folder of the authority that signs the requests, as `covey certs` has it."""


@app.command()
def plan(
    file: TreeFile,
    changes: Changes = None,
    out: NewFolder = Path("deploy"),
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
    folders = plan_files.write(processes, deployment.files(), out, deployment.deploy.image)
    if issue:
        plan_files.add_certificates(processes, out)
        plan_files.write_start(processes, out)
    else:
        if not no_keys:
            plan_files.add_requests(processes, out)
        plan_files.write_signing(processes, out, AUTHORITY)
        plan_files.write_start(processes, out, signed=processes)
    if as_json:
        names = {name: str(folder) for name, folder in folders.items()}
        print(json.dumps({"folder": str(out), "processes": names, "commands": scripts(out)}))
        return
    for line in _sentences(deployment, out, issue=issue, no_keys=no_keys):
        console.print(line)


def scripts(out: Path) -> list[str]:
    """What an operator types, in this order: the scripts that a plan has."""
    names = [plan_files.SIGN, plan_files.START]
    return [shlex.join(["sh", str(out / name)]) for name in names if (out / name).exists()]


def _sentences(
    deployment: Deployment,
    out: Path,
    *,
    issue: bool,
    no_keys: bool,
) -> list[str]:
    """What a plan has, and what an operator does with it."""
    processes = deployment.processes
    machines = plan_files.machines_of(processes)
    lines = [f"note: {note}" for note in notes(deployment)]
    places = f"{len(processes)} processes; each has a folder in {out}"
    lines.append(f"{deployment.tree}: {places}")
    if no_keys:
        name = processes[0].name
        folder = f"{plan_files.CONFIG_FOLDER}/{name}"
        host = bracketed(machines.get(name, plan_files.placeholder(name)))
        source = shlex.quote(f"root@{host}:{folder}/request.pem")
        lines += [
            "first make a key on every machine, and bring its request here, as for the first:",
            f"  covey certs request {name} --dir {folder}",
            f"  scp {source} {shlex.quote(f'{out}/{name}/')}",
            "then:",
        ]
    lines += [f"  {command}" for command in scripts(out)]
    if issue:
        lines.append(f"keep {out}/ca.key to yourself: no machine needs it")
    # Nobody dials these processes, so that no address tells their machines.
    unknown = [process.name for process in processes if process.name not in machines]
    if unknown:
        names = f"{plan_files.placeholder(unknown[0])} stands for the machine of {unknown[0]}"
        if len(unknown) > 1:
            names += f", and so on for {len(unknown) - 1} more"
        fix = "put in the real names, or give them in deploy.machine"
        lines.append(f"note: in {plan_files.START} {names}; {fix}")
        shared = "a machine that several processes share must be in deploy.machine"
        lines.append(f"note: {shared}, or their control ports are the same")
    compose = shlex.join(["docker", "compose", "--file", str(out / plan_files.COMPOSE), "up"])
    if not no_keys:
        lines.append(f"on one machine: {compose}{'' if issue else f', after {plan_files.SIGN}'}")
    return lines


def notes(deployment: Deployment) -> list[str]:
    """What travels with the experiment, what machines need besides, and what nodes keep."""
    config = deployment.config
    out = []
    modules = list(own_modules(config))
    if modules:
        rest = "what they read must be on every machine"
        out.append(f"every folder has {', '.join(modules)}; {rest}")
    named = {"data.data_dir": config.data.get("data_dir")}
    named["model.weights"] = config.model.get("weights")
    if not is_census(config):
        named["data.path"] = config.data.get("path")
    for key, path in named.items():
        if path not in (None, "none"):
            out.append(f"{key}: every machine needs {path}")
    settings = resolved("data", config.data)
    if "data_dir" in settings and settings["data_dir"] in (None, "none"):
        found = f"{settings['name']}, here in {locations.folder().absolute()}"
        fix = "to have it elsewhere, give data.data_dir"
        out.append(f"data.name: every machine needs {found}; {fix}")
    if config.least > 1:
        told = f"a device tells no sums of fewer than {config.least} examples of a part"
        out.append(f"least = {config.least}: {told}")
    if not deployment.deploy.share_rows:
        out.append("share_rows = false: edges and devices keep their models to themselves")
    return out


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
    tree = LocalDeployment(deployment, out, insecure, shlex.join(words), console)
    folder = tree.run()
    if as_json:
        facts = summary([load_run(folder)]).as_dict()
        names = [process.name for process in deployment.processes]
        again = {"started_again": tree.started_again}
        print(json.dumps({"folder": str(folder), "processes": names, **again, **facts}))
        return
    show_end(tree)
