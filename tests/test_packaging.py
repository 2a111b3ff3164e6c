"""The package: versions agree, the kernel serves any interpreter, wheels say what they hold.

`COVEY_TEST_ALL` builds wheels with and without a compiler and installs them, which takes a minute.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import covey
from covey import native

ROOT = Path(__file__).parent.parent
CITATION = (ROOT / "CITATION.cff").read_text()
BUILT = ("covey", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
all_tests = pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="COVEY_TEST_ALL=1")


def test_every_file_states_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == covey.__version__
    assert f"\nversion: {covey.__version__}\n" in CITATION


def test_the_start_page_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = [line for line in (ROOT / "docs" / "index.md").read_text().splitlines() if "|" in line]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert set(project["optional-dependencies"]) <= named


def test_the_citation_has_papers_of_the_algorithms() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    listed = set(re.findall(r"arxiv\.org/abs/([\d.]+)", page))
    cited = re.findall(r"arxiv\.org/abs/([\d.]+)", CITATION)
    assert len(cited) == 5
    assert set(cited) <= listed


def test_the_kernel_has_no_interpreter_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / f"_rows{EXTENSION_SUFFIXES[0]}").touch()
    assert "no compiled kernel was found" in str(native._load(""))
    plain = tmp_path / f"_rows{EXTENSION_SUFFIXES[-1]}"
    plain.touch()
    assert str(native._load("")).startswith(f"{plain.name} does not load")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from."""
    folder = tmp_path_factory.mktemp("source")
    for name in BUILT:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(source: Path, out: Path, what: str, **environment: str) -> Path:
    """Call the build backend as pip does; return the file it made."""
    program = f"from setuptools import build_meta; build_meta.build_{what}({str(out)!r})"
    subprocess.run(
        [sys.executable, "-c", program], cwd=source, env={**os.environ, **environment}, check=True
    )
    shutil.rmtree(source / "build", ignore_errors=True)
    return next(out.iterdir())


def report(wheel: Path, folder: Path) -> str:
    """What `covey doctor` says of the compiled kernel of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    ended = subprocess.run(
        [sys.executable, "-m", "covey", "doctor", "--json"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return str(json.loads(ended.stdout)["compiled kernel"])


@all_tests
def test_a_wheel_serves_every_interpreter_of_its_platform(source: Path, tmp_path: Path) -> None:
    wheel = build(source, tmp_path / "out", "wheel")
    assert re.fullmatch(r"covey-[\d.]+-py3-none-\w+\.whl", wheel.name)
    assert not wheel.name.endswith("-any.whl")
    assert report(wheel, tmp_path / "installed") in native.SETS


@all_tests
def test_a_wheel_built_without_a_compiler_says_so(source: Path, tmp_path: Path) -> None:
    wheel = build(source, tmp_path / "out", "wheel", CC="/nonexistent/cc")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert report(wheel, tmp_path / "installed").startswith("off: no compiled kernel was found")


@all_tests
def test_the_source_distribution_has_what_builds_it(source: Path, tmp_path: Path) -> None:
    archive = build(source, tmp_path / "out", "sdist")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = (
        "covey/native/rows.c", "covey/native/rows.h", "covey/native/normal.h", "covey/data/digits.csv.gz",
    )  # fmt: skip
    assert {*needed, "setup.py", "covey/files/demo.toml", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
