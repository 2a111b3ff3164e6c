"""covey on systems without fcntl and SIGHUP, as Windows, and without free pages, as macOS."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import covey
from covey.runs.saved.lock import is_locked, lock_byte, try_lock, try_lock_byte, unlock_byte

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
from covey.cli.doctor import memory_free
from covey.folder.signals import stoppable
with stoppable(Console()) as stop:
    assert not stop.asked
assert sys.modules["fcntl"] is None
print(len(modules), memory_free())
"""


def test_every_module_is_imported_without_what_other_systems_lack() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "error", "-c", ELSEWHERE]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    count, _, free = ended.stdout.strip().partition(" ")
    assert int(count) > 150
    assert free == "unknown on this system"


def sources(*words: str) -> list[tuple[Path, ast.Module]]:
    """The files of covey that hold one of these words, and their syntax trees."""
    texts = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    return [
        (path, ast.parse(text))
        for path, text in texts.items()
        if any(word in text for word in words)
    ]


def test_no_file_needs_a_module_of_posix_when_it_is_imported() -> None:
    checked = sources(*(f"import {name}" for name in POSIX_ONLY))
    assert "lock.py" in [path.name for path, _ in checked]
    for path, tree in checked:
        for node in tree.body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not POSIX_ONLY & set(names), path


def test_text_is_utf8_on_every_system() -> None:
    checked = sources(".read_text(", ".write_text(", " open(")
    assert len(checked) > 10
    for path, tree in checked:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            method = isinstance(function, ast.Attribute) and function.attr
            opens = isinstance(function, ast.Name) and function.id == "open"
            if method in ("read_text", "write_text") or opens:
                call = ast.unparse(node)
                binary = "b'" in call or "mode" in call
                assert binary or "encoding=" in call, f"{path}: {call}"


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


CLAIM = """
import runpy, sys
lock = runpy.run_path(sys.argv[1])
with open(sys.argv[2], "a") as file:
    print(*(lock["try_lock_byte"](file, byte) for byte in (3, 4)))
"""


def test_bytes_of_a_file_have_locks_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    words = [sys.executable, "-c", CLAIM, str(ROOT / "runs" / "saved" / "lock.py"), str(path)]
    with open(path, "a") as file:
        assert try_lock_byte(file, 3)
        lock_byte(file, 4)
        unlock_byte(file, 4)
        ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "True"]
