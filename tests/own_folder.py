"""Every test runs in a folder of its own, and the session fails if the checkout changed.

`conftest.py` registers this module as a plugin, so that doctests of `covey/` have it too.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CACHES = {
    ".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__", "build",
}  # fmt: skip
_NAMES = pytest.StashKey[set[str]]()
_FOLDER = pytest.StashKey[str]()


def names(root: Path) -> set[str]:
    """The paths of all files and folders below a folder, but of caches and of measured coverage."""
    out = set()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in CACHES]
        for name in [*folders, *files]:
            if not name.startswith(".coverage"):
                out.add(os.path.relpath(os.path.join(folder, name), root))
    return out


def change(before: set[str], after: set[str]) -> str:
    """What appeared and what vanished, in words; nothing where both are equal."""
    parts = []
    for verb, paths in (("wrote", after - before), ("removed", before - after)):
        if paths:
            parts.append(f"{verb} {', '.join(sorted(paths)[:20])}")
    if not parts:
        return ""
    return f"the tests {' and '.join(parts)} in the checkout; give the test a path in tmp_path."


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the checkout; workers of pytest-xdist leave that to the process that started them."""
    if not hasattr(session.config, "workerinput"):
        session.stash[_NAMES] = names(ROOT)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the checkout, also for what modules and the session share."""
    session.config.stash[_FOLDER] = tempfile.mkdtemp(prefix="covey-tests-")
    os.chdir(session.config.stash[_FOLDER])


@pytest.fixture(autouse=True)
def _own_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """The current folder of a test: new, empty, and gone afterwards."""
    shared = request.config.stash[_FOLDER]
    folder = tempfile.mkdtemp(dir=shared)
    os.chdir(folder)
    yield
    os.chdir(shared)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where the checkout has other files than before."""
    os.chdir(ROOT)
    shutil.rmtree(session.config.stash.get(_FOLDER, ""), ignore_errors=True)
    if _NAMES not in session.stash:
        return
    said = change(session.stash[_NAMES], names(ROOT))
    if said:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\n{said}")
