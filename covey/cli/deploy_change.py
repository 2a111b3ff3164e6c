"""`covey deploy change`: another tree for a deployed run that stands."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli import config as config_file
from covey.cli import node_config
from covey.cli.deploy import AUTHORITY, Changes, TreeFile, scripts
from covey.cli.deployment import Deployment
from covey.cli.device_data import CENSUS_FILE, is_census
from covey.cli.folder import Folder
from covey.cli.options import AsJson, load_and_note
from covey.cli.server_folder import RUN
from covey.cli.terminal import Console
from covey.deployed import extras, plan_files, plan_scripts
from covey.deployed.certificates import AUTHORITY_KEY
from covey.deployed.change import TreeChange, check_followed, disk_change, moved
from covey.deployed.disk import Disk
from covey.deployed.own_models import DISK
from covey.deployed.plan import Process
from covey.deployed.seats import names_of, seats_of
from covey.errors import ConfigError
from covey.runs.fingerprint import of as fingerprint_of

BACKUP = "node.before-{round}.sqlite"
"""The server's disk as it was, beside the disk."""


@dataclass(frozen=True, eq=False)
class _Both:
    """The tree of a run as it is planned now, and as it shall be."""

    old: Deployment
    new: Deployment

    @property
    def change(self) -> TreeChange:
        """Both trees by the names of their nodes."""
        return TreeChange(_names(self.old), _names(self.new))

    @property
    def moved(self) -> dict[str, tuple[str | None, str | None]]:
        """The seats that have another parent: (old, new)."""
        return moved(_parents(self.old), _parents(self.new))

    def kept(self) -> list[Process]:
        """The processes with the name and the seats of an old one: they keep their certificates."""
        before = {process.name: _seat_names(process) for process in self.old.processes}
        return [one for one in self.new.processes if before.get(one.name) == _seat_names(one)]

    def disks(self) -> list[plan_scripts.DiskMove]:
        """The disks of seats whose process has another name or another machine."""
        return plan_scripts.disk_moves(self.old.processes, self.new.processes)

    def stopped(self) -> list[str]:
        """The names of processes that are no longer there."""
        names = {process.name for process in self.new.processes}
        return [process.name for process in self.old.processes if process.name not in names]


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
        config = config.model_copy(update={"data": config.data | {"columns": columns}})
    both = _Both(_present(server), Deployment.of(config))
    _check_data(both)
    state = _state(both, server)
    with Folder(state / RUN).lock():  # or the server is running
        rounds = _changed(both, state, out, authority or _authority(server, out))
    facts = {
        "folder": str(out),
        "rounds": rounds,
        "moved": {name: list(parents) for name, parents in both.moved.items()},
        "added": both.change.added(),
        "removed": both.change.removed(),
        "stopped": both.stopped(),
        "disks": [str(move) for move in both.disks()],
        "commands": scripts(out),
    }
    if as_json:
        print(json.dumps(facts))
        return
    for line in _sentences(facts):
        console.print(line)


def _present(server: Path) -> Deployment:
    """The plan that the server's folder is part of."""
    path = server / plan_files.EXPERIMENT
    if not path.is_file():
        fix = "give --server the folder that covey deploy plan wrote for the server"
        raise ConfigError(f"{path} is no file; {fix}.")
    return Deployment.of(config_file.load(path))


def _check_data(both: _Both) -> None:
    """Refuse data that would not follow their devices."""
    for deployment in (both.old, both.new):
        if not is_census(deployment.config):
            name = deployment.config.data["name"]
            raise ConfigError(
                f'data.name = "{name}": a device takes its part of it by its number, which changes '
                'with the tree; only the data of a "census" follow their devices.'
            )


def _state(both: _Both, server: Path) -> Path:
    """The folder of the server's disk, which both plans must have in common."""
    state = Path(node_config.load(server / plan_files.NODE).state)
    planned = both.new.processes[0].state
    if Path(planned) != state:
        fix = f'give deploy.state such that it is "{state}" again'
        raise ConfigError(
            f"the server's disk is in {state}, and the new plan has {planned}; {fix}."
        )
    disk = _disk_path(both, state)
    if not disk.is_file():
        raise ConfigError(f"there is no disk {disk}; run this on the machine of the server.")
    return state


def _disk_path(both: _Both, state: Path) -> Path:
    top = both.new.processes[0].seats[0].name
    return state / top / DISK


def _changed(both: _Both, state: Path, out: Path, authority: Path) -> int:
    """Write the new plan, then the server's disk; return the rounds so far."""
    path = _disk_path(both, state)
    disk = Disk(path)
    try:
        prepared = disk_change(disk, both.change, fingerprint_of(both.new.experiment))
        check_followed(disk, both.change, _parents(both.old), _parents(both.new))
        _write_plan(both, out, authority)
        backup = _unused(path.parent / BACKUP.format(round=len(disk.records())))
        prepared.write(disk, backup)
    finally:
        disk.close()
    return prepared.rounds


def _authority(server: Path, out: Path) -> Path:
    """The folder of the authority: that of the plan, if it has one, or one beside the new plan.

    The new plan is copied to the operator's machine. So the script names it from there.
    """
    beside = server.absolute().parent
    if (beside / AUTHORITY_KEY).exists():
        return beside
    return Path(os.path.relpath(out.absolute().parent / AUTHORITY))


def _write_plan(both: _Both, out: Path, authority: Path) -> None:
    """The folders of all processes; those that are new get keys and requests to sign them.

    There is no compose.yaml: containers have their disks in volumes, which this cannot change.
    """
    processes = both.new.processes
    both.new.write(out, processes, compose=False)
    kept = {process.name for process in both.kept()}
    new = [process for process in processes if process.name not in kept]
    plan_files.add_requests(new, out)
    if new:
        plan_scripts.write_signing(new, out, authority, change=True)
    plan_scripts.write_start(processes, out, signed=new, before=both.old.processes)


def _unused(path: Path) -> Path:
    """This path, or one like it that no file has."""
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate


def _names(deployment: Deployment) -> dict[str, list[str]]:
    return names_of(deployment.tree, deployment.deploy.names)


def _parents(deployment: Deployment) -> dict[str, str | None]:
    seats = seats_of(deployment.tree, deployment.deploy.names)
    return {name: seat.parent for name, seat in seats.items()}


def _seat_names(process: Process) -> list[str]:
    return [seat.name for seat in process.seats]


def _sentences(facts: dict[str, Any]) -> list[str]:
    """What has changed, and what to do next."""
    out = []
    for name, (before, after) in facts["moved"].items():
        out.append(f"{name}: from {before} to {after}; it keeps its disk")
    out += [f"{name}: new; it starts with an empty disk" for name in facts["added"]]
    out += [f"{name}: gone" for name in facts["removed"]]
    out += facts["disks"]
    if facts["stopped"]:
        names = ", ".join(f"covey-{name}" for name in facts["stopped"])
        out.append(f"{plan_scripts.START} disables {names}")
    folder = shlex.quote(facts["folder"])
    out.append(f"the run goes on after round {facts['rounds']}; all nodes need their new folders")
    out.append(f"copy {folder} to the operator's machine, where the authority is; there:")
    out += [f"  {command}" for command in facts["commands"]]
    return out
