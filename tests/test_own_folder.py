"""No test reads or writes the checkout's own folders."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from covey.runs.saved.run_folder import RunFolder
from tests import own_folder


def session() -> Any:
    """As much of a session as the plugin looks at."""
    config = SimpleNamespace(stash=pytest.Stash())
    return SimpleNamespace(config=config, stash=pytest.Stash(), exitstatus=0)


def test_a_test_begins_in_an_empty_folder_outside_the_checkout() -> None:
    folder = Path.cwd()
    assert not list(folder.iterdir())
    assert own_folder.ROOT not in [folder, *folder.parents]
    assert RunFolder.unused("demo", "sfedhp") == Path("runs/demo-sfedhp-1")


@pytest.mark.parametrize("path", ["runs/demo-sfedhp-1", "compare.png", "tests/left.txt"])
def test_a_session_fails_if_something_appeared(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_folder, "ROOT", tmp_path)
    (tmp_path / "runs" / "old").mkdir(parents=True)
    running = session()
    own_folder.pytest_sessionstart(cast(pytest.Session, running))
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).touch()
    (tmp_path / ".hypothesis").mkdir()
    own_folder.pytest_sessionfinish(cast(pytest.Session, running))
    assert running.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert path in capsys.readouterr().out


def test_caches_are_no_change(tmp_path: Path) -> None:
    before = own_folder.names(tmp_path)
    for name in ("__pycache__", ".mypy_cache", ".pytest_cache", ".hypothesis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / ".coverage").touch()
    assert own_folder.change(before, own_folder.names(tmp_path)) == ""
    (tmp_path / "kept").touch()
    said = own_folder.change(own_folder.names(tmp_path), before)
    assert said.startswith("the tests removed kept in the checkout")
