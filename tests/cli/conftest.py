"""What tests of the command begin with."""

import importlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.files import modules


def forget(folder: Path) -> None:
    """Leave of a folder's modules what a new process has: nothing."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if place not in ("", str(folder))]
    importlib.invalidate_caches()
    linecache.clearcache()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; what is imported from there is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    elsewhere = [place for place in sys.path if place not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", elsewhere)
    monkeypatch.setattr(modules, "_FILES", [])
    yield tmp_path
    forget(tmp_path)
