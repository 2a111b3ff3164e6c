"""An algorithm is one file: docs/write-an-algorithm.md's FedBall, in a copy of the package.

Nothing else is edited there. The copy lists, explains, advises and runs it, holds it to the laws,
and every program of the page runs. `COVEY_TEST_ALL` runs all laws, not a choice.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "write-an-algorithm.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
FILES = {
    block.partition("\n")[0].removeprefix("# "): block for block in BLOCKS if block.startswith("# ")
}
SCRIPTS = [block for block in BLOCKS if not block.startswith("# ")]
COPIED = ("covey", "tests", "experiments", "examples", "docs", "pyproject.toml", "README.md")
NAMED = "FedBall or fedball"
SOME = (
    "tests/algorithms/test_fedball.py", "tests/cli/test_config.py", "tests/laws/test_chunks.py",
    "tests/laws/test_fixed_points.py", "tests/laws/test_no_rows.py", "tests/test_advice.py",
    "tests/test_bad_input.py", "tests/test_exports.py", "tests/test_layers.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the files of the page in it."""
    folder = tmp_path_factory.mktemp("copy")
    leave = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)
    for name, text in FILES.items():
        assert not (folder / name).exists()
        (folder / name).write_text(text)
    return folder


def python(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A Python of its own that knows the copy alone."""
    beside = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env={**os.environ, **beside}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def output(process: subprocess.Popen[str]) -> str:
    """Everything it said; it must end well."""
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text
    return text


COMMANDS = """
import json, sys
from tests.cli.command import covey
ended = [covey(*words) for words in json.loads(sys.argv[1])]
assert all(one.code == 0 for one in ended), ended
print(json.dumps([one.out for one in ended]))
"""
PROGRAMS = """
import json, sys
for program in json.loads(sys.argv[1]):
    exec(program, globals())
"""


def test_the_page_has_the_file_its_test_and_programs() -> None:
    assert list(FILES) == ["covey/algorithms/fedball.py", "tests/algorithms/test_fedball.py"]
    assert len(SCRIPTS) == 2
    assert "def advice(" not in FILES["covey/algorithms/fedball.py"]  # so that defaults are tested
    assert "def advice(" in SCRIPTS[1]


def test_it_is_listed_explained_advised_and_run(copy: Path) -> None:
    small = ("tests/base.toml", "algorithm.name=fedball", "data.devices=6", "rounds=2")
    commands: dict[str, Sequence[str]] = {
        "list": ("list", "algorithms"),
        "table": ("list", "algorithms", "fedball"),
        "advise": ("advise", *small, "--json"),
        "run": ("run", *small, "--out", "out"),
    }
    words = json.dumps(list(commands.values()))
    answers = json.loads(output(python(copy, "-c", COMMANDS, words)).splitlines()[-1])
    said: dict[str, str] = dict(zip(commands, answers, strict=True))
    assert "fedball     FedBall: FedAvg with momentum at the server" in said["list"]
    assert "leaves the device in training: its model after the local steps" in said["list"]
    assert "momentum = 0.5" in said["table"]
    assert "share of the last velocity that the server keeps" in said["table"]
    advised = json.loads(said["advise"].splitlines()[-1])
    assert len(advised["trials"]) > 1
    assert [item["about"] for item in advised["advice"]] == ["unknown algorithm"]
    assert "FedBall" in said["run"]


def test_it_is_held_to_the_laws_and_its_own_test(copy: Path) -> None:
    tests: Sequence[str] = SOME
    if "COVEY_TEST_ALL" in os.environ:
        tests = ("tests/laws", *SOME)
    text = output(python(copy, "-m", "pytest", "-q", "-k", NAMED, *tests))
    passed = re.search(r"(\d+) passed", text)
    assert passed
    assert int(passed[1]) >= 15, text


def test_the_programs_of_the_page_run(copy: Path) -> None:
    said = output(python(copy, "-c", PROGRAMS, json.dumps(SCRIPTS)))
    assert "round" in said.partition("Theorem")[0]
    assert "note: Theorem 1: lr = 0.05 <= 0.333: holds." in said
    assert "warning: inner step: lr*lam = 0.05*50 = 2.5 is 2 or more" in said


def test_a_file_without_an_algorithm_is_named(copy: Path) -> None:
    wrong = copy / "covey" / "algorithms" / "nothing.py"
    wrong.write_text('"""Nothing."""\n')
    try:
        text, _ = python(copy, "-c", "import covey.algorithms").communicate(timeout=600)
    finally:
        wrong.unlink()
    assert f"{wrong}: a file in covey/algorithms defines one algorithm, but here are: none." in text
