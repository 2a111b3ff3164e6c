"""A room says what is its own, and everything else goes on without it.

Without `COVEY_TEST_ALL` the radio alone is deleted, and mypy is not run: without a cache it takes
longer than all the rest, and tests/test_layers.py holds imports for types too.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from covey.cli import main
from covey.rooms import Room, commands, load, rooms, sections
from tests.laws.capture import everything
from tools import without

ROOT = Path(__file__).parents[1]
EVERY = {room.name: room for room in rooms()}
every_room = pytest.mark.parametrize("room", EVERY.values(), ids=EVERY)
ALL = "COVEY_TEST_ALL" in os.environ
all_tests = pytest.mark.skipif(not ALL, reason="COVEY_TEST_ALL=1")


@every_room
def test_what_a_room_lists_is_there(room: Room) -> None:
    kinds = ("code", "tests", "examples", "docs")
    missing = [path for kind in kinds for path in room.own[kind] if not (ROOT / path).exists()]
    assert not missing
    assert {*room.own["captured"]} <= {name for name, _ in everything()}
    assert {*room.needs} <= {*EVERY}


@every_room
def test_what_a_room_adds_is_there(room: Room) -> None:
    for kind, added in room.adds.items():
        assert isinstance(added, Mapping), f"{kind} is no table"
        if kind != "panels":
            assert all(load(where) is not None for where in added.values())
    assert all(load(section.settings) for section in room.sections)


def test_commands_are_on_known_panels() -> None:
    panels = {main.TRAIN, main.LOOK, main.USE, main.PREPARE, "Deploy"}
    assert {command.panel for command in commands()} <= panels
    assert "radio" in sections()


def test_the_package_carries_the_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "*/room.toml" in project["tool"]["setuptools"]["package-data"]["covey"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[all_tests] * (name != "radio")) for name in EVERY]
)
def test_a_room_can_be_deleted(name: str, tmp_path: Path) -> None:
    without.deleted(name, tmp_path / "covey")
    for command in without.COMMANDS if ALL else ("pytest",):
        done = without.ran(command, tmp_path / "covey")
        assert done.returncode == 0, done.stdout[-5000:]
        assert command == "mypy" or " passed" in done.stdout
