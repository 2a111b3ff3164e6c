"""The files of a deployed tree: node.toml, a systemd unit for each process, one compose.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.deployed import certificates
from covey.deployed.plan import ANY_ADDRESS, Process, is_loopback, join_address
from covey.errors import ConfigError

NODE = "node.toml"
EXPERIMENT = "experiment.toml"
COMPOSE = "compose.yaml"
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
    processes: Sequence[Process], shared: Mapping[str, str], folder: Path, image: str | None
) -> dict[str, Path]:
    """Write the folder of every process and one compose.yaml; return the folders by name.

    `shared` are the texts of files that every process has, by name. Without an image there is no
    compose.yaml.
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
        _make_private(own)
        write_new(own / NODE, node_file(process))
        for name, text in shared.items():
            write_new(own / name, text)
        write_new(own / unit_name(process), unit(process))
        out[process.name] = own
    if image is not None:
        write_new(folder / COMPOSE, compose(processes, image))
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


def complete_certificates(processes: Sequence[Process], folder: Path) -> None:
    """Give every process of this machine a certificate that is valid.

    Where one is missing or has ended, all are made anew: a command may have been killed while it
    made them.
    """
    if all(_is_certified(folder / process.name, folder) for process in processes):
        return
    for name in certificates.AUTHORITY_FILES:
        (folder / name).unlink(missing_ok=True)
    add_certificates(processes, folder)


def _is_certified(own: Path, folder: Path) -> bool:
    """Whether a process has a valid certificate of the folder's authority."""
    identity = certificates.Identity(own)
    try:
        authority = certificates.Identity(folder).authority()
        identity.check()
        return identity.authority() == authority
    except ConfigError:
        return False


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
        "Wants=network-online.target time-sync.target",
        "After=network-online.target time-sync.target",
        "",
        "[Service]",
        "Type=exec",
        "User=covey",
        f"ExecStart=/usr/bin/env covey node {CONFIG_FOLDER}/{process.name}/{NODE}",
        "KillSignal=SIGTERM",
        f"TimeoutStopSec={DRAIN_SECONDS}",
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        f"RestartPreventExitStatus={' '.join(map(str, NO_RESTART))}",
        "LimitNOFILE=65536",  # a stream of each child, and a file while its answer arrives
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
    if state.startswith(STATE_ROOT):
        name = _unit_word(state.removeprefix(STATE_ROOT))
        return [f"StateDirectory={name}", "StateDirectoryMode=0700"]
    return [f"ReadWritePaths={_unit_word(state)}"]


def _unit_word(text: str) -> str:
    """One word of a unit: blanks do not end it, and systemd puts nothing in for its %."""
    escaped = text.replace("%", "%%")
    return f'"{escaped}"'


def compose(processes: Sequence[Process], image: str) -> str:
    """A compose file with a service for every process.

    In it a parent is dialled by the name of its service. So the files of the processes are those of
    machines of their own, also where their addresses are numbers, or several are of one host.
    """
    services: dict[str, Any] = {}
    volumes: dict[str, Any] = {}
    for process in processes:
        name = process.name
        volume = f"{name}-state"
        config = f"{CONFIG_FOLDER}/{name}"
        state = _compose_word(process.state)
        mounts: list[Any] = [
            f"./{name}:{config}:ro",
            {"type": "volume", "source": volume, "target": state},
        ]
        for data in process.data.values():
            file = _compose_word(data)
            mounts.append({"type": "bind", "source": file, "target": file, "read_only": True})
        services[name] = {
            "image": image,
            "command": ["covey", "node", f"{config}/{NODE}", *_compose_options(process)],
            "restart": "on-failure",
            "stop_grace_period": f"{DRAIN_SECONDS}s",
            "volumes": mounts,
        }
        if is_loopback(process.control_host):  # elsewhere it asks for a certificate
            url = f"http://{join_address(process.control_host, process.control_port)}/readyz"
            look = f"import urllib.request as web; web.urlopen({url!r}, timeout=9)"
            services[name]["healthcheck"] = {"test": ["CMD", "python", "-c", look]}
        volumes[volume] = {}
    head = "# All processes of the tree on one machine: docker compose up\n"
    return head + yaml_text({"services": services, "volumes": volumes})


def _compose_word(text: str) -> str:
    """A text of a compose file that puts no variables in for its $."""
    return text.replace("$", "$$")


def _compose_options(process: Process) -> list[str]:
    """What a process of a compose file has otherwise than on a machine of its own."""
    out = []
    parent = process.seats[0].parent
    if process.parent is not None:
        port = process.parent.rpartition(":")[2]
        out += ["--parent", f"{parent}:{port}"]  # a node with children is a process of its name
    if process.listen is not None:
        host, _, port = process.listen.rpartition(":")
        if host != ANY_ADDRESS:  # the network of the containers has IPv4
            out += ["--listen", f"{ANY_ADDRESS}:{port}"]
    return out


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
            lines.append(f"{key} = {_json(value)}")
    return "\n".join(lines) + "\n" + inside


def yaml_text(value: Mapping[str, Any], indent: int = 0) -> str:
    """A table as YAML: every key and text in the quotes of JSON, which YAML reads alike.

    Without quotes a seat called 17, null or true would be no text.

    >>> print(yaml_text({"a": {"17": ["x: y"]}, "c": {}}), end="")
    "a":
      "17":
        - "x: y"
    "c": {}
    """
    space = " " * indent
    out = ""
    for name, item in value.items():
        key = _json(name)
        if isinstance(item, Mapping) and item:
            out += f"{space}{key}:\n{yaml_text(item, indent + 2)}"
        elif isinstance(item, list) and item:
            entries = "".join(f"{space}  - {_json(entry)}\n" for entry in item)
            out += f"{space}{key}:\n{entries}"
        else:
            out += f"{space}{key}: {_json(item)}\n"
    return out


def _json(value: Any) -> str:
    """A value as JSON that TOML and YAML read alike.

    They take letters as they are. What cannot be printed is escaped in the one form of both.

    >>> print(_json("a\\x7f"))
    "a\\U0000007f"
    """
    text = json.dumps(value, ensure_ascii=False)
    letters = [letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text]
    return "".join(letters)


def _make_private(folder: Path) -> None:
    """Make a folder that its owner alone may look into."""
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}.") from error


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from error
