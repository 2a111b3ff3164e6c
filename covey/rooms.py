"""The rooms of covey: capabilities that the core does without, each a folder with a `room.toml`.

The file lists what is the room's own (`python -m tools.weight --without ROOM` deletes it) and what
the room adds: commands, tables of an experiment file, a part of the record of a round, and so on.
The core asks here for what is there. It names no room, and nothing of a room is imported before it
is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

FILE = "room.toml"
PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class Command:
    """A command: where `covey --help` lists it, and the function or group of functions that it is.

    The docstring of the function has the rest of its help.
    """

    name: str
    panel: str
    help: str  # the first line
    call: str  # as package.module:name

    def load(self) -> Any:
        """The function, or the group with all its commands."""
        return load(self.call)


@dataclass(frozen=True)
class Section:
    """A table of an experiment file that a room reads."""

    name: str
    settings: str  # the class of its options, as package.module:Class
    environment: bool = False  # whether it describes the environment of the run
    paths: tuple[str, ...] = ()  # keys whose values are paths


@dataclass(frozen=True)
class Room:
    """What a `room.toml` says."""

    name: str
    about: str
    place: int  # among the rooms, as in `covey --help`
    own: Mapping[str, list[str]]  # what is deleted with it: paths, and cases by their names
    needs: tuple[str, ...] = ()  # other rooms that it imports
    commands: tuple[Command, ...] = ()
    sections: tuple[Section, ...] = ()
    adds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What it adds of every other kind: by name, as package.module:name."""

    @property
    def is_folder(self) -> bool:
        """Whether all of its folder is its own; else a part of it is of the core."""
        return f"covey/{self.name}" in self.own["code"]


def read(path: Path) -> Room:
    """The room of one file."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    commands = content.pop("commands", {})
    sections = content.pop("sections", {})
    return Room(
        name=path.parent.name,
        about=content.pop("about"),
        place=content.pop("place"),
        own=content.pop("own"),
        needs=tuple(content.pop("needs", ())),
        commands=tuple(Command(name, **table) for name, table in commands.items()),
        sections=tuple(Section(name, **table) for name, table in sections.items()),
        adds=content,
    )


@cache
def rooms() -> tuple[Room, ...]:
    """The rooms that are there, in their order."""
    found = [read(path) for path in PACKAGE.glob(f"*/{FILE}")]
    return tuple(sorted(found, key=attrgetter("place")))


def commands() -> list[Command]:
    """The commands of all rooms; nothing is imported."""
    return [command for room in rooms() for command in room.commands]


@cache
def sections() -> dict[str, Section]:
    """The tables of an experiment file that rooms read, by name."""
    return {section.name: section for room in rooms() for section in room.sections}


@cache
def added(kind: str) -> dict[str, str]:
    """Where everything of a kind is, by name; nothing is imported."""
    return {name: where for room in rooms() for name, where in room.adds.get(kind, {}).items()}


def load(where: str) -> Any:
    """What package.module:name stands for.

    >>> load("covey.tree:Tree").__name__
    'Tree'
    """
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def environment_of(owner: Any, kind: str, name: str) -> Any:
    """The environment of a record of this kind by its own name; None where it has another one."""
    if name not in added(kind):
        raise AttributeError(f"{type(owner).__name__!r} has no attribute {name!r}")
    environment = owner.environment
    return None if environment is None or environment.name != name else environment


def call(kind: str, *arguments: Any) -> list[Any]:
    """What every function of a kind returns for these arguments, such as what follows a run."""
    return [load(where)(*arguments) for where in added(kind).values()]
