"""covey on systems without fcntl and SIGHUP, as Windows, and without free pages, as macOS."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import covey
from covey.runs.lock import is_locked, try_lock

ROOT = Path(covey.__file__).parent
POSIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}
ELSEWHERE = """
import os, pkgutil, signal, sys
sys.modules["fcntl"] = None
del signal.SIGHUP, os.sysconf_names["SC_AVPHYS_PAGES"]
import covey
modules = [m.name for m in pkgutil.walk_packages(covey.__path__, "covey.")]
for name in modules:
    if not name.endswith(("__main__", "_rows")):
        __import__(name)
from rich.console import Console
from covey.cli.main import _memory_free
from covey.cli.stop import stoppable
with stoppable(Console()) as stop:
    assert not stop.asked
assert sys.modules["fcntl"] is None
print(len(modules), _memory_free())
"""


def test_every_module_is_imported_without_what_other_systems_lack() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "error", "-c", ELSEWHERE]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    count, _, free = ended.stdout.strip().partition(" ")
    assert int(count) > 150
    assert free == "unknown on this system"


def test_no_file_needs_a_module_of_posix_when_it_is_imported() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not POSIX_ONLY & set(names), path


def test_text_is_utf8_on_every_system() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node)
            if ast.unparse(node.func).endswith((".read_text", ".write_text")):
                assert "encoding=" in call, f"{path}: {call}"
            if ast.unparse(node.func) == "open" and "b'" not in call and "mode" not in call:
                assert "encoding=" in call, f"{path}: {call}"


def test_a_file_has_one_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with open(path, "w") as first:
        assert not is_locked(path)
        assert try_lock(first)
        assert is_locked(path)
        with open(path, "w") as second:
            assert not try_lock(second)
    assert not is_locked(path)
    with open(path, "w") as third:
        assert try_lock(third)
