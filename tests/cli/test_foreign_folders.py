"""Folders from elsewhere: figures are shown, and code in them is not run unless the user says so."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import covey as package
from covey.errors import ConfigError
from covey.files import modules
from covey.folder import own_code
from covey.runs.saved.run_folder import RunFolder
from tests.cli.command import SMALL, covey, exits

NETS = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(64, 10)\n"
NAME = "foreign_nets_x"
OWN = (f"model={{name='{NAME}:Net'}}", "rounds=2")


def forget() -> None:
    """As in another process, which has not imported the module."""
    sys.modules.pop(NAME, None)
    del modules._FILES[:]
    sys.path[:] = [path for path in sys.path if "/pytest-" not in path]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user, whose secret is not that of who runs the tests."""
    folder = tmp_path_factory.mktemp("foreign_folders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "home"))
        yield folder


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    """A run of a model of the user's own, whose module lies in another folder."""
    project = home / "project"
    project.mkdir()
    (project / f"{NAME}.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        exits(0, "run", *SMALL, *OWN, "compare=[{name='local'}]", "--out", "run")
    forget()
    return project / "run"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another folder of the user, without the module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget()


def hostile(folder: Path) -> Path:
    """A module in a folder that tells when it is run; returns where."""
    told = folder.parent / "RAN"
    (folder / f"{NAME}.py").write_text(f"open({str(told)!r}, 'w').close()\n{NETS}")
    return told


def commands(folder: Path) -> dict[str, list[object]]:
    examples = folder.parent / "x.csv"
    examples.write_text(",".join(f"x{k}" for k in range(64)) + "\n" + ",".join("0" * 64) + "\n")
    return {
        "export": ["export", folder, "--node", "d0"],
        "predict": ["predict", folder, "--data", examples, "--device", "0"],
        "personalize": ["personalize", folder, "--data", examples],
    }


def test_a_folder_from_elsewhere_is_shown_and_its_code_does_not_run(
    run: Path, elsewhere: Path
) -> None:
    folder = elsewhere / "theirs"
    shutil.copytree(run, folder)
    told = hostile(folder)
    shown = exits(0, "show", folder)
    assert shown.out == covey("show", run).out
    assert "Local personal" in shown.out
    exits(0, "show", folder, "--devices")
    assert package.load(folder).table() in shown.out + "\n"
    for words in commands(folder).values():
        refused = exits(2, *words)
        assert NAME in refused.err
        assert "give --trust" in refused.err
    with pytest.raises(ConfigError, match="trust=True"):
        package.load(folder).module(device=0)
    assert not told.exists()


def test_what_the_user_trusts_runs(run: Path, elsewhere: Path) -> None:
    folder = elsewhere / "theirs"
    shutil.copytree(run, folder)
    told = hostile(folder)
    exits(0, *commands(folder)["export"], "--trust")
    assert told.exists()
    assert package.load(folder, trust=True).module(device=0)


def test_an_own_run_goes_on_as_before(
    run: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it was moved or copied; the module is that of the project."""
    shutil.copytree(run, elsewhere / "moved")
    monkeypatch.chdir(run.parent)
    for folder in (run, elsewhere / "moved"):
        exits(0, *commands(folder)["export"])


def test_what_another_user_or_machine_made_needs_trust(
    run: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the project has the very same code."""
    monkeypatch.chdir(run.parent)
    monkeypatch.setenv("XDG_DATA_HOME", str(elsewhere / "other"))
    assert "give --trust" in covey(*commands(run)["export"]).err
    exits(0, *commands(run)["export"], "--trust")
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/no/place")
    assert "give --trust" in covey(*commands(run)["export"]).err


def test_the_secret_is_the_users_alone(run: Path, home: Path) -> None:
    assert own_code.refusal(run) is None
    secret = home / "home" / "covey" / "secret"
    assert len(secret.read_bytes()) == 32
    assert secret.stat().st_mode & 0o077 == 0
    assert list(secret.parent.iterdir()) == [secret]


def write(path: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("X = 1\n")

    return change


def point(folder: Path) -> None:
    (folder / "pkg").symlink_to(folder.parent)


def rename(folder: Path) -> None:
    file = folder / "config.toml"
    file.write_text(file.read_text().replace(":Net", ":Net2"))


CHANGES = {
    "a module": write("more.py"),
    "a package": write("more/__init__.py"),
    "a compiled module": write(f"{NAME}.pyc"),
    "a library": write(f"{NAME}.so"),
    "a link": point,
    "another name": rename,
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_folder_that_came_back_changed_needs_trust(what: str, run: Path, elsewhere: Path) -> None:
    folder = elsewhere / "back"
    shutil.copytree(run, folder)
    assert own_code.refusal(folder) is None
    CHANGES[what](folder)
    assert "was changed" in str(own_code.refusal(folder))


def test_compiled_copies_of_others_are_removed(home: Path, elsewhere: Path) -> None:
    """Python would run them in place of the module beside them."""
    config = package.load(home / "project" / "run", trust=True).config
    own_code.write_config(RunFolder(elsewhere), config, {f"{NAME}.py": NETS})
    cache = elsewhere / "__pycache__" / f"{NAME}.cpython-311.pyc"
    cache.parent.mkdir()
    cache.write_bytes(b"hostile")
    assert own_code.refusal(elsewhere) is None
    assert not cache.parent.exists()


def test_names_of_covey_need_no_mark(home: Path, elsewhere: Path) -> None:
    ended = covey("run", *SMALL, "rounds=1", "--out", "plain")
    assert ended.code == 0, ended.err
    assert not RunFolder(elsewhere / "plain").mark.exists()
    assert own_code.refusal(elsewhere / "plain") is None


@pytest.mark.parametrize("text", ['name = "x"\n', "algorithm = { name = 3 }\n", "compare = [{}]\n"])
def test_a_file_that_is_none_of_a_run(text: str, elsewhere: Path) -> None:
    (elsewhere / "config.toml").write_text(text)
    assert "no name" in exits(2, "show", elsewhere).err
