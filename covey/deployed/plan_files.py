"""The files of a deployed tree: node.toml, a systemd unit for each process, one compose.yaml."""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.deployed import certificates
from covey.deployed.plan import Process
from covey.errors import ConfigError

NODE = "node.toml"
EXPERIMENT = "experiment.toml"
COMPOSE = "compose.yaml"
COMMANDS = "commands.sh"
CONFIG_FOLDER = "/etc/covey"
"""Where the folder of a process lies on its machine."""
DRAIN_SECONDS = 60
"""How long a process that is told to end may take for the ask under way."""
_STATE_ROOT = "/var/lib/"
_NO_RESTART = "2 3"  # exit codes of an invalid file and of a run that diverged


def write(
    processes: Sequence[Process], shared: Mapping[str, str], folder: Path, image: str
) -> dict[str, Path]:
    """Write the folder of every process and one compose.yaml; return the folders by name.

    `shared` are the texts of files that every process has, by name.
    Nothing that exists is overwritten: the folder must be new or empty.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}.") from error
    if occupied:
        raise ConfigError(f"{folder} is not empty; give another --out, or remove it first.")
    out: dict[str, Path] = {}
    for process in processes:
        own = folder / process.name
        own.mkdir(mode=0o700)
        _new(own / NODE, node_file(process))
        for name, text in shared.items():
            _new(own / name, text)
        _new(own / unit_name(process), unit(process))
        out[process.name] = own
    _new(folder / COMPOSE, compose(processes, image))
    return out


def add_requests(processes: Sequence[Process], folder: Path) -> None:
    """Give every process a key and a request to sign it, for an authority elsewhere."""
    for process in processes:
        certificates.request(folder / process.name, process.name)


def add_certificates(processes: Sequence[Process], folder: Path) -> None:
    """Make an authority in the folder, and give every process a key and a certificate.

    The names in a certificate are the seats of the process.
    """
    authority = certificates.Authority.create(folder)
    for process in processes:
        authority.issue(process.name, seats=[seat.name for seat in process.seats])


def node_file(process: Process) -> str:
    """The text of node.toml."""
    command = f"covey node {CONFIG_FOLDER}/{process.name}/{NODE}"
    head = f"# The process {process.name}. Start it: {command}\n"
    return head + toml_text("node", process.as_dict())


def unit_name(process: Process) -> str:
    """The name of a process's systemd unit."""
    return f"covey-{process.name}.service"


def unit(process: Process) -> str:
    """A systemd unit: it restarts a process that fails, and lets it drain when it is stopped."""
    lines = [
        "[Unit]",
        f"Description=covey node {process.name}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        "User=covey",
        f"ExecStart=/usr/bin/env covey node {CONFIG_FOLDER}/{process.name}/{NODE}",
        "KillSignal=SIGTERM",
        f"TimeoutStopSec={DRAIN_SECONDS}",
        "Restart=on-failure",
        "RestartSec=5",
        f"RestartPreventExitStatus={_NO_RESTART}",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectHome=read-only",
        "ProtectSystem=strict",
        "UMask=0077",
        *_state_lines(process.state),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _state_lines(state: str) -> list[str]:
    """Where the process may write."""
    if state.startswith(_STATE_ROOT):
        name = state.removeprefix(_STATE_ROOT)
        return [f"StateDirectory={name}", "StateDirectoryMode=0700"]
    escaped = state.replace("%", "%%")
    return [f'ReadWritePaths="{escaped}"']


def compose(processes: Sequence[Process], image: str) -> str:
    """A compose file with a service for every process.

    A node with children is reached under the host name of its address, so that the files of the
    processes are the same as on machines of their own.
    """
    hosts = _hosts(processes)
    services: dict[str, Any] = {}
    volumes: dict[str, Any] = {}
    for process in processes:
        name = process.name
        volume = f"{name}-state"
        config = f"{CONFIG_FOLDER}/{name}"
        mounts = [f"./{name}:{config}:ro", f"{volume}:{process.state}"]
        mounts += [f"{file}:{file}:ro" for file in process.data.values()]
        service: dict[str, Any] = {
            "image": image,
            "command": ["covey", "node", f"{config}/{NODE}"],
            "restart": "on-failure",
            "stop_grace_period": f"{DRAIN_SECONDS}s",
            "volumes": mounts,
        }
        aliases = hosts.get(name)
        if aliases:
            service["networks"] = {"default": {"aliases": aliases}}
        services[name] = service
        volumes[volume] = {}
    head = "# All processes of the tree on one machine: docker compose up\n"
    return head + yaml_text({"services": services, "volumes": volumes})


def _hosts(processes: Sequence[Process]) -> dict[str, list[str]]:
    """The host names under which a process is dialled; an IP address is none."""
    process_of: dict[str, str] = {}
    for process in processes:
        process_of |= {seat.name: process.name for seat in process.seats}
    out: dict[str, list[str]] = {}
    for process in processes:
        parent = process.seats[0].parent
        if parent is None or process.parent is None:
            continue
        host = process.parent.rpartition(":")[0].strip("[]")
        names = out.setdefault(process_of[parent], [])
        if host not in names and not _is_ip(host):
            names.append(host)
    return out


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def toml_text(name: str, table: Mapping[str, Any]) -> str:
    """A table as TOML: numbers, texts and lists of texts as JSON has them, then tables inside it.

    >>> print(toml_text("node", {"seats": ["a"], "data": {"a": "x.csv"}}), end="")
    [node]
    seats = ["a"]
    [node.data]
    a = "x.csv"
    """
    lines = [f"[{name}]"]
    inside = ""
    for key, value in table.items():
        if isinstance(value, Mapping):
            inside += toml_text(f"{name}.{key}", value)
        else:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n" + inside


def yaml_text(value: Mapping[str, Any], indent: int = 0) -> str:
    """A table as YAML: keys as they are, every text in the quotes of JSON, which YAML reads alike.

    >>> print(yaml_text({"a": {"b": ["x: y"]}, "c": {}}), end="")
    a:
      b:
        - "x: y"
    c: {}
    """
    space = " " * indent
    out = ""
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            out += f"{space}{key}:\n{yaml_text(item, indent + 2)}"
        elif isinstance(item, list) and item:
            entries = "".join(f"{space}  - {json.dumps(entry)}\n" for entry in item)
            out += f"{space}{key}:\n{entries}"
        else:
            out += f"{space}{key}: {json.dumps(item)}\n"
    return out


def signing_commands(processes: Sequence[Process], folder: Path, authority: Path) -> list[str]:
    """What an operator types to have the requests signed, and the certificates put beside them."""
    out = [f"covey certs init --dir {shlex.quote(str(authority))}"]
    for process in processes:
        own = folder / process.name
        words = ["covey", "certs", "issue", process.name, "--dir", str(authority)]
        words += ["--request", str(own / certificates.REQUEST)]
        for seat in process.seats:
            words += ["--seat", seat.name]
        out.append(shlex.join(words))
        out.append(f"cp {shlex.quote(str(authority / process.name))}/*.pem {shlex.quote(str(own))}")
    return out


def commands(processes: Sequence[Process], folder: Path) -> list[str]:
    """What an operator types to bring every process to its machine and start it."""
    hosts = _hosts(processes)
    out = []
    for process in processes:
        names = hosts.get(process.name) or [f"{process.name}.example"]
        host = shlex.quote(names[0])
        own = f"{CONFIG_FOLDER}/{process.name}"
        source = shlex.quote(f"{folder / process.name}/")
        out.append(f"rsync -a {source} root@{host}:{own}/")
        start = f"chown -R covey {own} && systemctl enable --now {own}/{unit_name(process)}"
        out.append(f"ssh root@{host} '{start}'")
    return out


def write_commands(lines: Sequence[str], folder: Path) -> None:
    """Write all commands of the operator as one script."""
    _new(folder / COMMANDS, "\n".join(["#!/bin/sh", "set -eu", *lines]) + "\n")


def _new(path: Path, text: str) -> None:
    """Write a file that does not exist yet."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from error
