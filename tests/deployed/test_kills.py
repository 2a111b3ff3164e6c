"""Processes that are killed, and nodes whose power is cut, lose nothing."""

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import SMALL, exits
from tests.deployed.power import Power, compiled

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
ROOT = Path(__file__).parents[2]
LOCAL = (*SMALL, "rounds=3", "data.devices=4", "deploy.devices_per_process=2")
SLOW = pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="takes a minute")
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="needs Linux and a C compiler",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("power"))


class Machine:
    """A machine whose disk is a folder."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.disk = folder / "nodes" / "disk"
        self.disk.mkdir(parents=True)
        self._library = library
        self.power = Power(folder / "nodes", folder / "copies", random.Random(0), torn=False)
        self.power.copies.mkdir()
        self.power.settle(self.disk)

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a program on this machine, in the folder of its disk."""
        start = (
            "import ctypes, os, sqlite3, sys\n"
            "library = ctypes.CDLL(None)\n"
            "library.covey_power_watch(sys.argv[1].encode(), sys.argv[2].encode())\n"
        )
        folders = [str(self.power.root), str(self.power.copies)]
        command = [sys.executable, "-S", "-c", start + program, *folders, *map(str, arguments)]
        environment = {**os.environ, "LD_PRELOAD": str(self._library)}
        return subprocess.run(
            command, cwd=self.disk, env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    return Machine(tmp_path, library)


FILES = """
def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)

def write(path, text):
    with open(path, "a") as file:
        file.write(text)

for name in ("whole", "longer", "nameless"):
    write(name, "first")
os.mkdir("lost")
sync("whole")
sync("longer")
sync(".")
sync("nameless")
write("longer", "second")
write("late", "first")
sync("late")
os.unlink("whole")
write("lost/file", "first")
sync("lost/file")
sync("lost")
os.rename("nameless", "renamed")
"""


def test_a_cut_leaves_what_was_synced(machine: Machine) -> None:
    """Contents of the last sync, under the names of the directory's last sync."""
    done = machine.run(FILES)
    assert done.returncode == 0, done.stderr
    assert machine.power.cut(machine.disk)
    left = {path.name: path.read_text() for path in machine.disk.iterdir() if path.is_file()}
    assert left == {"whole": "first", "longer": "first", "nameless": "first"}
    assert (machine.disk / "lost" / "file").read_text(encoding="utf-8") == "first"
    assert not machine.power.cut(machine.disk)  # after a cut everything is durable


ROWS = """
connection = sqlite3.connect("rows", isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute(f"PRAGMA synchronous = {sys.argv[3]}")
connection.execute("PRAGMA wal_autocheckpoint = 8")
connection.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER, data BLOB)")
(before,) = connection.execute("SELECT COUNT(*) FROM rows").fetchone()
library.covey_power_cut(ctypes.c_long(int(sys.argv[4])))
for number in range(before, before + 20):
    connection.execute("INSERT INTO rows VALUES (?, ?)", [number, bytes(3000)])
    os.write(1, b"written\\n")
"""


def rows_after_cut(machine: Machine, synchronous: str, call: int) -> tuple[int, int]:
    """(rows that were acknowledged, rows that are left) of a process killed at a call."""
    count = "import sqlite3; c = sqlite3.connect('rows'); "
    count += "print(c.execute('PRAGMA integrity_check').fetchone()[0], "
    count += "*c.execute('SELECT COUNT(*) FROM rows').fetchone())"
    before = int(machine.run(count).stdout.split()[1]) if (machine.disk / "rows").exists() else 0
    killed = machine.run(ROWS, synchronous, call)
    assert killed.returncode == -9, killed.stderr
    machine.power.cut(machine.disk)
    check, left = machine.run(count).stdout.split()
    assert check == "ok"
    return before + killed.stdout.count("written"), int(left)


def test_sqlite_keeps_what_it_has_acknowledged(machine: Machine) -> None:
    """Killed at a write or sync of the log, of a checkpoint, or between; pages may be torn."""
    machine.run(ROWS, "FULL", 0)
    torn = Machine.__new__(Machine)
    torn.__dict__ |= machine.__dict__
    torn.power = Power(machine.power.root, machine.power.copies, random.Random(1), torn=True)
    for call in (1, 2, 3, 4, 7, 12, 18, 25):
        for one in (machine, torn):
            acknowledged, left = rows_after_cut(one, "FULL", call)
            assert left in (acknowledged, acknowledged + 1), call


def test_sqlite_loses_what_it_does_not_sync(machine: Machine) -> None:
    machine.run(ROWS, "NORMAL", 0)
    lost = 0
    for call in (10, 14, 18):
        acknowledged, left = rows_after_cut(machine, "NORMAL", call)
        lost += acknowledged - left
    assert lost > 0


# Trees


def kills(library: Path, *arguments: object) -> str:
    """What the program prints that kills the nodes of trees."""
    command = [sys.executable, "-m", "tests.deployed.kills", *map(str, arguments)]
    preloaded = {"COVEY_POWER": "1", "LD_PRELOAD": str(library)}
    environment = {**os.environ, **preloaded, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_some_kills_and_cuts(library: Path) -> None:
    out = kills(library, "--count", 4, "--cuts", 2, "--only", "small")
    assert out.count("bit-equal") >= 2


@SLOW
def test_many_kills(library: Path) -> None:
    out = kills(library, "--count", 220)
    totals = dict(
        re.findall(r"^\| (inside a commit|inside an ask|between rounds) .* (\d+) \|$", out, re.M)
    )
    assert min(map(int, totals.values())) >= 40, out
    assert len(totals) == 3


@SLOW
def test_many_power_cuts(library: Path) -> None:
    kills(library, "--count", 0, "--cuts", 60)


@SLOW
def test_a_disk_that_has_lost_something_is_refused(library: Path) -> None:
    assert " 0 else" in kills(library, "--count", 0, "--lossy", 40)


@SLOW
def test_a_fault_from_the_environment_kills_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`covey node` itself, without a fork: a process with an answer dies at each start."""
    monkeypatch.setenv("COVEY_FAULT", "after-commit:1")
    local = exits(6, "deploy", "local", *LOCAL, "--out", tmp_path / "local")
    assert re.search(r"(device|edge)[\d-]+ was killed, after it was started again 5", local.err)
