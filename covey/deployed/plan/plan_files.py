"""The files of a plan: node.toml and a systemd unit of each process, compose.yaml, and two scripts.

One script signs the certificates of the plan, and one starts its nodes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from covey.deployed.node.own_models import DISK
from covey.deployed.operate import authority
from covey.deployed.operate.certificates import Identity, reported
from covey.deployed.plan.process import Process, bracketed, host_of, is_loopback, machine_of
from covey.deployed.transport.extras import needed
from covey.errors import ConfigError

NODE = "node.toml"
EXPERIMENT = "experiment.toml"
COMPOSE = "compose.yaml"
SIGN = "sign.sh"
START = "start.sh"
CONFIG_FOLDER = "/etc/covey"
"""Where the folder of a process lies on its machine."""
DRAIN_SECONDS = 60
"""How long a process that is told to end may take for the ask under way."""
STATE_ROOT = "/var/lib/"
"""Folders of state below this one are made by systemd."""
NO_RESTART = (2, 3)
"""Exit codes after which a process stays ended: of an invalid file, of a run that diverged."""
RESTART_SECONDS = 5
"""How long after its end a process is started again."""


def write(
    processes: Sequence[Process],
    shared: Mapping[str, str],
    folder: Path,
    image: str | None,
) -> dict[str, Path]:
    """Write the folder of every process and one compose.yaml; return the folders by name.

    `shared` are the texts of files that every process has, by name. Without an image there is no
    compose.yaml.
    Nothing that exists is overwritten: the folder must be new or empty.
    """
    with reported(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    if occupied:
        raise ConfigError(f"{folder} is not empty; give another --out, or remove it first.")
    out: dict[str, Path] = {}
    for process in processes:
        own = out[process.name] = folder / process.name
        with reported(own, "cannot be written"):
            own.mkdir(mode=0o700)  # others may not look into it
        texts = {NODE: node_file(process), **shared, unit_name(process): unit(process)}
        for name, text in texts.items():
            write_new(own / name, text)
    if image is not None:
        write_new(folder / COMPOSE, compose(processes, image))
    return out


def add_requests(processes: Sequence[Process], folder: Path) -> None:
    """Give every process a key and a request to sign it, for an authority elsewhere."""
    for process in processes:
        authority.request(folder / process.name, process.name)


def add_certificates(processes: Sequence[Process], folder: Path) -> None:
    """Make an authority in the folder, and give every process a key and a certificate.

    The names in a certificate are the seats of the process.
    """
    made = authority.Authority.create(folder)
    for process in processes:
        made.issue(process.name, seats=process.seats)


def complete_certificates(processes: Sequence[Process], folder: Path) -> None:
    """Give every process of this machine a certificate that is valid.

    Where one is missing or has ended, all are made anew: a command may have been killed while it
    made them.
    """
    if all(_is_certified(folder / process.name, folder) for process in processes):
        return
    for name in authority.AUTHORITY_FILES:
        (folder / name).unlink(missing_ok=True)
    add_certificates(processes, folder)


def _is_certified(own: Path, folder: Path) -> bool:
    """Whether a process has a valid certificate of the folder's authority."""
    with suppress(ConfigError):
        Identity(own).check()
        return Identity(own).authority() == Identity(folder).authority()
    return False


def node_file(process: Process) -> str:
    """The text of node.toml."""
    command = f"covey node {CONFIG_FOLDER}/{process.name}/{NODE}"
    head = f"# The process {process.name}. Start it: {command}\n"
    return head + tomli_w.dumps({"node": process.as_dict()})


def unit_name(process: Process) -> str:
    """The name of a process's systemd unit."""
    return f"covey-{process.name}.service"


def unit(process: Process) -> str:
    """A systemd unit: it restarts a process that fails, and lets it drain when it is stopped."""
    return rendered("covey.service", process=process)


def compose(processes: Sequence[Process], image: str) -> str:
    """A compose file with a service for every process.

    In it a parent is dialled by the name of its service. So the files of the processes are those of
    machines of their own, also where their addresses are numbers, or several are of one host.
    """
    return rendered("compose.yaml", processes=processes, image=image)


def rendered(template: str, **values: Any) -> str:
    """A file of the folder `templates`, with these values in it."""
    text: str = _templates().get_template(f"{template}.jinja").render(values)
    return text


@cache
def _templates() -> Any:
    jinja2 = needed("jinja2")
    out = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    out.filters |= {
        "bracketed": bracketed,
        "loopback": is_loopback,
        "quote": shlex.quote,
        "yaml": _yaml,
    }
    out.globals |= {
        "config": CONFIG_FOLDER,
        "disk": DISK,
        "drain": DRAIN_SECONDS,
        "no_restart": NO_RESTART,
        "restart": RESTART_SECONDS,
        "state_root": STATE_ROOT,
    }
    return out


def _yaml(text: str) -> str:
    """A text in quotes, as YAML has it: letters as they are, and what cannot be printed escaped.

    >>> print(_yaml("a\\x7f"))
    "a\\U0000007f"
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


# Scripts


def write_signing(
    processes: Sequence[Process],
    folder: Path,
    authority: Path,
    *,
    change: bool = False,
) -> None:
    """Write the script that signs the requests and puts the certificates beside them.

    A change has an authority already, and its certificates replace those from before.
    """
    # The script is in another folder than the command that writes it.
    place = shlex.quote(str(authority))
    if not authority.is_absolute():
        place = f'"$folder"/{shlex.quote(os.path.relpath(authority, folder))}'
    replace = "--replace" if change else ""
    text = rendered("sign.sh", processes=processes, authority=place, replace=replace)
    write_new(folder / SIGN, text)


def write_start(
    processes: Sequence[Process],
    folder: Path,
    *,
    signed: Sequence[Process] = (),
    before: Sequence[Process] = (),
) -> None:
    """Write the script that brings every process to its machine and starts it.

    `signed` are those that the other script signs first; `before` is the plan that this replaces.
    A machine that no plan names is a variable of the script, whose value is made up.
    """
    now, then = machines_of(processes), machines_of(before)
    unknown = [process.name for process in processes if process.name not in now]
    unknown += [process.name for process in before if process.name not in then]
    names = {process.name for process in processes}
    text = rendered(
        "start.sh",
        processes=processes,
        now=now,
        before=before,
        then=then,
        unknown=dict.fromkeys(unknown),
        signed=[process.name for process in signed],
        removed=[process for process in before if process.name not in names],
        moves=disk_moves(before, processes),
    )
    write_new(folder / START, text)


@dataclass(frozen=True)
class DiskMove:
    """A seat whose process has another name or another machine in the new plan."""

    seat: str
    old: Process
    new: Process
    machines: tuple[str | None, str | None]
    """Those of the old and of the new process; None: the plan does not name it."""

    def __str__(self) -> str:
        old, new = (
            f"{machine or placeholder(process.name)}:{process.state}/{self.seat}"
            for machine, process in zip(self.machines, (self.old, self.new), strict=True)
        )
        if self.machines[0] == self.machines[1] and None not in self.machines:
            return f"{self.seat}: {START} moves its disk from {old} to {new}"
        way = f"{START} moves it where that is one machine, and otherwise waits until you have"
        return f"{self.seat}: its disk must go from {old} to {new}; {way}"


def disk_moves(before: Sequence[Process], processes: Sequence[Process]) -> list[DiskMove]:
    """The disks that another plan has elsewhere, by the order of the new processes.

    Processes of one name that neither plan knows the machine of are on the same one.
    """
    then, now = machines_of(before), machines_of(processes)
    owner = {seat: old for old in before for seat in old.seats}
    out = []
    for new in processes:
        for seat in new.seats:
            old = owner.get(seat)
            if old is None:
                continue
            machines = (then.get(old.name), now.get(new.name))
            if old.state != new.state or machines[0] != machines[1]:
                out.append(DiskMove(seat, old, new, machines))
    return out


def placeholder(name: str) -> str:
    """What stands for the machine of a process whose address nobody has to know."""
    return f"{name}.example"


def machines_of(processes: Sequence[Process]) -> dict[str, str]:
    """The machine of each process, as far as addresses tell, by the name of the process.

    All names of loopback are one machine.
    """
    out: dict[str, str] = {}
    for process in processes:
        if process.machine is not None:
            out[process.name] = process.machine
        parent = process.nodes[0].parent
        if parent is None or process.parent is None:
            continue
        host = host_of(process.parent)
        out[parent] = host
        if is_loopback(host):
            out.setdefault(process.name, host)
    return {name: machine_of(host) for name, host in out.items()}


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet."""
    with reported(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
