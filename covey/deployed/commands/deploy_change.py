"""`covey deploy change`: another tree for a deployed run that stands."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli.options import AsJson, load_and_note
from covey.deployed.commands.deploy import AUTHORITY, Changes, TreeFile, app, scripts
from covey.deployed.files.deployment import Deployment
from covey.deployed.files.device_data import CENSUS_FILE
from covey.deployed.files.server_folder import RUN
from covey.deployed.node.disk import Disk
from covey.deployed.node.own_models import DISK
from covey.deployed.operate.authority import AUTHORITY_KEY
from covey.deployed.plan import plan_files
from covey.deployed.plan.change import TreeChange, check_followed, disk_change
from covey.deployed.plan.process import Process
from covey.deployed.plan.seats import seats_of
from covey.deployed.transport import extras
from covey.errors import ConfigError
from covey.files import config as config_file
from covey.files.data_form import is_census
from covey.folder.terminal import Console
from covey.runs.saved.fingerprint import of as fingerprint_of
from covey.runs.saved.run_folder import Folder


@dataclass(frozen=True, eq=False)
class Replanned:
    """The tree of a run as it is planned now, and as it shall be."""

    old: Deployment
    new: Deployment

    @cached_property
    def change(self) -> TreeChange:
        """Both trees by their seats."""
        old, new = (seats_of(one.tree, one.deploy.names) for one in (self.old, self.new))
        return TreeChange(old, new)

    def disks(self) -> list[plan_files.DiskMove]:
        """The disks of seats whose process has another name or another machine."""
        return plan_files.disk_moves(self.old.processes, self.new.processes)

    def disk_path(self, server: Path) -> Path:
        """The server's disk, whose folder both plans must have in common."""
        state = Path(Process.load(server / plan_files.NODE).state)
        planned = self.new.processes[0]
        if Path(planned.state) != state:
            fix = f'give deploy.state such that it is "{state}" again'
            raise ConfigError(
                f"the server's disk is in {state}, and the new plan has {planned.state}; {fix}."
            )
        disk = state / planned.seats[0] / DISK
        if not disk.is_file():
            raise ConfigError(f"there is no disk {disk}; run this on the machine of the server.")
        return disk

    def write(self, path: Path, out: Path, authority: Path) -> int:
        """Write the new plan, then the server's disk; return the rounds so far."""
        with closing(Disk(path)) as disk:
            prepared = disk_change(disk, self.change, fingerprint_of(self.new.experiment))
            check_followed(disk, self.change)
            self.write_plan(out, authority)
            first = backup = path.with_name(f"node.before-{len(disk.records())}.sqlite")
            number = 1
            while backup.exists():
                number += 1
                backup = first.with_name(f"{first.stem}-{number}{first.suffix}")
            prepared.write(disk, backup)
        return prepared.rounds

    def write_plan(self, out: Path, authority: Path) -> None:
        """The folders of all processes; those that are new get keys and requests to sign them.

        One with the name and the seats of an old one keeps its certificate. There is no
        compose.yaml: containers have their disks in volumes, which this cannot change.
        """
        processes = self.new.processes
        plan_files.write(processes, self.new.files(), out, image=None)
        before = {process.name: process.seats for process in self.old.processes}
        new = [process for process in processes if before.get(process.name) != process.seats]
        plan_files.add_requests(new, out)
        if new:
            plan_files.write_signing(new, out, authority, change=True)
        plan_files.write_start(processes, out, signed=new, before=self.old.processes)

    def facts(self) -> dict[str, Any]:
        """What has changed."""
        names = {process.name for process in self.new.processes}
        return {
            "moved": {name: list(parents) for name, parents in self.change.moved.items()},
            "added": self.change.added,
            "removed": self.change.removed,
            "stopped": [one.name for one in self.old.processes if one.name not in names],
            "disks": [str(move) for move in self.disks()],
        }


@app.command()
def change(
    file: TreeFile,
    changes: Changes = None,
    server: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The server's folder of the present plan."),
    ] = Path("deploy/server"),
    out: Annotated[
        Path,
        typer.Option(help="The folder of the new plan; it must be new or empty."),
    ] = Path("deploy-new"),
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The authority's folder on the operator's machine. Default: that of the plan, or "
            "certs beside the new plan.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move, add or remove seats of a deployed run, which goes on from the round it stands at.

    A seat is known by its name, and keeps its disk: start.sh moves it where its process gets
    another name, and says what to move between machines. Stop all nodes first. Run this on the
    server's machine: it writes the plan of the new tree, and then the server's disk; a copy of the
    disk stays beside it. Only the tree, the data and the number of rounds may change.

    Examples:

      covey deploy change new-tree.toml --server /etc/covey/server --out fleet-2
    """
    console = Console(stderr=as_json)
    extras.cryptography()
    config = load_and_note(console, file, changes or [])
    if is_census(config):  # models go on with the scaling and the words they were trained on
        columns = str((server / CENSUS_FILE).absolute())
        config = replace(config, data=config.data | {"columns": columns})
    present = server / plan_files.EXPERIMENT
    if not present.is_file():
        fix = "give --server the folder that covey deploy plan wrote for the server"
        raise ConfigError(f"{present} is no file; {fix}.")
    trees = Replanned(Deployment.of(config_file.load(present)), Deployment.of(config))
    for deployment in (trees.old, trees.new):
        if not is_census(deployment.config):
            name = deployment.config.data["name"]
            raise ConfigError(
                f'data.name = "{name}": a device takes its part of it by its number, which changes '
                'with the tree; only the data of a "census" follow their devices.'
            )
    path = trees.disk_path(server)
    with Folder(path.parents[1] / RUN).lock():  # or the server is running
        rounds = trees.write(path, out, authority or authority_of(server, out))
    facts = {"folder": str(out), "rounds": rounds, **trees.facts(), "commands": scripts(out)}
    if as_json:
        print(json.dumps(facts))
        return
    for line in sentences(facts):
        console.print(line)


def authority_of(server: Path, out: Path) -> Path:
    """The folder of the authority: that of the plan, if it has one, or one beside the new plan.

    The new plan is copied to the operator's machine. So the script names it from there.
    """
    planned = server.absolute().parent
    if (planned / AUTHORITY_KEY).exists():
        return planned
    return Path(os.path.relpath(out.absolute().parent / AUTHORITY))


def sentences(facts: dict[str, Any]) -> list[str]:
    """What has changed, and what to do next."""
    out = []
    for name, (before, after) in facts["moved"].items():
        out.append(f"{name}: from {before} to {after}; it keeps its disk")
    out += [f"{name}: new; it starts with an empty disk" for name in facts["added"]]
    out += [f"{name}: gone" for name in facts["removed"]]
    out += facts["disks"]
    if facts["stopped"]:
        names = ", ".join(f"covey-{name}" for name in facts["stopped"])
        out.append(f"{plan_files.START} disables {names}")
    folder = shlex.quote(facts["folder"])
    out.append(f"the run goes on after round {facts['rounds']}; all nodes need their new folders")
    out.append(f"copy {folder} to the operator's machine, where the authority is; there:")
    out += [f"  {command}" for command in facts["commands"]]
    return out
