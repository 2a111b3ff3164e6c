"""What a file may name: what is defined in the user's own modules, and nothing that would run other
code.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

from covey.errors import ConfigError
from covey.files.config import load
from tests.cli.command import covey, exits

NETS = """
import functools
import subprocess
from subprocess import getoutput
from torch.nn import Linear

from torch import nn, no_grad

shell = functools.partial(subprocess.getoutput)
spoken = subprocess.Popen.communicate


@no_grad()
def decorated(inputs, outputs):
    return nn.Linear(inputs, outputs)


wrapped = functools.wraps(subprocess.getoutput)(lambda cmd: nn.Linear(64, 10))
net = lambda inputs, outputs: nn.Linear(inputs, outputs)
"""

SETS = '''
import torch
import covey


def blobs(devices: int = 3, size: int = 20, seed: int = 0):
    """Points around one corner per class."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 2
    return covey.data.own([(torch.randn(size, 2, generator=g) + y[:, None], y) for _ in range(devices)])


def torn():
    return {}["key"]


def leaves():
    raise SystemExit
'''


@pytest.fixture
def folder(project: Path) -> Path:
    for name, text in (("nets.py", NETS), ("sets.py", SETS)):
        (project / name).write_text(text)
    return project


SHELL = '[model]\nname = "subprocess:getoutput"\ncmd = "touch harm"\n[algorithm]\nname = "fedavg"\n[data]\nname = "digits"\n'


@pytest.mark.parametrize(
    "command", [["run"], ["advise"], ["doctor"], ["data", "show"]], ids=" ".join
)
def test_a_file_cannot_run_a_shell_command(folder: Path, command: list[str]) -> None:
    (folder / "harm.toml").write_text(SHELL)
    ended = covey(*command, "harm.toml")
    assert not (folder / "harm").exists()
    assert ended.code == 2
    assert "model.name = 'subprocess:getoutput': subprocess is Python's own" in ended.err
    assert "write a function or class of your own" in ended.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os:system", "os is Python's own"),
        ("builtins:exec", "builtins is Python's own"),
        ("sys:exit", "sys is Python's own"),
        ("os.path:join", "os is Python's own"),
        ("antigravity:geohash", "antigravity is Python's own"),  # importing it opens a browser
        ("torch.nn:Linear", "torch is an installed package's"),
        ("torch.hub:load", "torch is an installed package's"),
        ("numpy:load", "numpy is an installed package's"),
        ("pytest:main", "pytest is an installed package's"),
        ("covey.models:linear", "covey is an installed package's"),
        ("__main__:main", "__main__ is the program that runs"),
        ("nets:getoutput", "defined elsewhere: subprocess is Python's own"),
        ("nets:Linear", "defined elsewhere: torch.nn.modules.linear is an installed package's"),
        ("nets:spoken", "defined elsewhere: subprocess is Python's own"),
        ("nets:wrapped", "defined elsewhere: subprocess is Python's own"),
        ("nets:shell", "of type partial"),
        ("nets:subprocess", "of type module"),
        ("nets:subprocess.getoutput", "write it as package.module:Class"),
        ("nets.subprocess:getoutput", "there is no module nets.subprocess"),
    ],
)
@pytest.mark.parametrize("table", ["model", "data", "algorithm"])
@pytest.mark.usefixtures("folder")
def test_names_of_others_are_refused(table: str, name: str, words: str) -> None:
    known = "antigravity" in sys.modules
    with pytest.raises(ConfigError) as caught:
        load(None, [f"{table}.name={name}"])
    assert words in str(caught.value)
    assert ("antigravity" in sys.modules) == known  # it is refused before it is imported


@pytest.mark.parametrize("name", ["nets:decorated", "nets:net"])
@pytest.mark.usefixtures("folder")
def test_functions_that_are_defined_there_are_taken(name: str) -> None:
    assert load(None, [f"model.name={name}"]).experiment(0).model.out_features == 10


@pytest.mark.parametrize("place", ["env/lib/python3/site-packages", "dist-packages"])
def test_installed_packages_below_the_folder_stay_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (folder / place).mkdir(parents=True)
    (folder / place / "acme.py").write_text("open('harm', 'w')\n" + NETS)
    for current in (folder, folder / place):
        monkeypatch.chdir(current)
        monkeypatch.syspath_prepend(folder / place)
        with pytest.raises(ConfigError, match="acme is an installed package's"):
            load(None, ["model.name=acme:net"])
        assert not Path("harm").exists()


def test_in_the_root_folder_the_standard_library_stays_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for current in (
        "/",
        os.path.dirname(os.__file__),
        os.path.dirname(os.path.dirname(torch.__file__)),
    ):
        monkeypatch.chdir(current)
        monkeypatch.setattr(sys, "path", list(sys.path))
        for name in ("subprocess:getoutput", "torch.nn:Linear", "this:s"):
            with pytest.raises(ConfigError, match="may only name what is defined in a module"):
                load(None, [f"model.name={name}"])


def test_links_are_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    import subprocess

    other = tmp_path_factory.mktemp("other")
    (other / "linked.py").write_text(NETS)
    (folder / "linked.py").symlink_to(other / "linked.py")
    (folder / "shells.py").symlink_to(subprocess.__file__)
    assert load(None, ["model.name=linked:net"])
    with pytest.raises(ConfigError, match="shells is an installed package's"):
        load(None, ["model.name=shells:getoutput"])


def test_a_package_may_pass_on_what_another_of_its_modules_defines(folder: Path) -> None:
    (folder / "kit").mkdir()
    (folder / "kit" / "__init__.py").write_text(
        "from kit.deep import net\nfrom subprocess import getoutput\n"
    )
    (folder / "kit" / "deep.py").write_text(NETS)
    assert load(None, ["model.name=kit:net"]).experiment(0).model.out_features == 10
    with pytest.raises(ConfigError, match="defined elsewhere: subprocess"):
        load(None, ["model.name=kit:getoutput"])


def test_modules_may_lie_beside_the_file_or_in_pythonpath(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, listed, elsewhere = (
        tmp_path_factory.mktemp(name) for name in ("beside", "listed", "elsewhere")
    )
    for place, name in ((beside, "near"), (listed, "far"), (elsewhere, "away")):
        (place / f"{name}.py").write_text(NETS)
    file = beside / "run.toml"
    text = '[model]\nname = "near:net"\n[algorithm]\nname = "fedavg"\n[data]\nname = "digits"\n'
    file.write_text(text)
    assert load(file).experiment(0).model.out_features == 10
    monkeypatch.setenv("PYTHONPATH", str(listed))
    monkeypatch.syspath_prepend(listed)
    monkeypatch.syspath_prepend(elsewhere)
    assert load(None, ["model.name=far:net"])
    with pytest.raises(
        ConfigError,
        match=r"away is in .*which is neither below this folder nor the file's nor in PYTHONPATH",
    ):
        load(None, ["model.name=away:net"])
    for name in ("near", "far"):
        del sys.modules[name]


@pytest.mark.usefixtures("folder")
def test_data_of_ones_own() -> None:
    changes = [
        "data.name=sets:blobs", "data.size=32", "tree.edges=none", "model.name=linear",
        "algorithm.name=fedavg",
    ]  # fmt: skip
    config = load(None, changes)
    assert config.resolved()["data"] == {"name": "sets:blobs", "devices": 3, "size": 32}
    one, other = config.experiment(1), config.experiment(2)
    assert (one.data.devices, len(one.data.x), one.tree.devices) == (3, 96, 3)
    assert not torch.equal(one.data.x, other.data.x)  # the seed is the run's
    exits(0, "run", *changes, "rounds=2", "--out", "run")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torn", "torn() fails with KeyError: 'key' (sets.py, line 14)."),
        ("leaves", "fails with SystemExit (sets.py, line 18)."),
    ],
)
@pytest.mark.usefixtures("folder")
def test_data_of_ones_own_that_fails_is_named_with_its_line(name: str, words: str) -> None:
    ended = exits(2, "data", "show", f"data.name=sets:{name}")
    assert f"data.name = 'sets:{name}': " in ended.err
    assert words in ended.err


@pytest.mark.parametrize("text", ["import sys\nsys.exit(0)", "raise SystemExit", "exit()"])
def test_a_module_that_ends_the_program_is_an_error(folder: Path, text: str) -> None:
    (folder / "quits.py").write_text(text)
    ended = exits(2, "run", "model.name=quits:Net")
    assert "importing quits fails with SystemExit" in ended.err
    assert "(quits.py, line" in ended.err
