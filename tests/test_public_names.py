"""Public names stay: every one in tests/public_names.toml is imported from where it was.

What the pages, the examples and the files of `covey new` use is in that list, so a name that they
begin to use is added to it. A module that moves leaves a file of three lines in its old place.
"""

import ast
import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import covey
from tests.cli.command import SMALL, exits
from tests.cli.command import covey as covey_says

ROOT = Path(__file__).parents[1]
LIST = tomllib.loads((Path(__file__).parent / "public_names.toml").read_text())
PACKAGES: dict[str, list[str]] = LIST["packages"]
MODULES: dict[str, list[str]] = LIST["modules"]
ATTRIBUTES: dict[str, list[str]] = LIST["attributes"]
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md")
WRITTEN = ("covey.algorithms", "FedBall")  # by a page, which then imports it


def programs() -> Iterator[tuple[str, str]]:
    """The name of every file that shows how covey is used, and a program in it."""
    for page in PAGES:
        for block in re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(), re.S):
            yield page.name, block
    for notebook in (ROOT / "examples").rglob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield notebook.name, "\n".join(code)
    for program in (ROOT / "examples").rglob("*.py"):
        yield program.name, program.read_text()
    for template in (ROOT / "covey").rglob("templates/*.py.txt"):  # of `covey new`
        yield template.name, template.read_text().replace("$", "")


PROGRAMS = list(programs())


def used(text: str) -> Iterator[tuple[str, str]]:
    """The names that a program takes from covey, each with its module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("covey"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covey"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.match(r"covey\.[\w.]+$", ast.unparse(node)):
            module = ast.unparse(node.value)
            if module in PACKAGES:
                yield module, node.attr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exports_what_it_did(package: str) -> None:
    there = importlib.import_module(package)
    gone = {*PACKAGES[package]} - {*there.__all__}
    assert not gone, f"{package} has lost them"
    new = {*there.__all__} - {*PACKAGES[package]}
    assert not new, f"add them to {package} in tests/public_names.toml"
    assert all(hasattr(there, name) for name in there.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_what_it_had(module: str) -> None:
    there = importlib.import_module(module)
    gone = [name for name in MODULES[module] if not hasattr(there, name)]
    assert not gone, f"import them in {module}: it may be a file of three lines"


@pytest.mark.parametrize(("file", "text"), PROGRAMS, ids=[file for file, _ in PROGRAMS])
def test_what_a_program_uses_is_in_the_list(file: str, text: str) -> None:
    for module, name in {*used(text)} - {WRITTEN}:
        importlib.import_module(module)
        known = [*PACKAGES.get(module, []), *MODULES.get(module, [])]
        assert not name or name in known, f"add {name} to {module} in tests/public_names.toml"


@pytest.mark.parametrize("kind", LIST["entry_points"])
def test_packages_declare_in_the_same_groups(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[covey.{kind}]\nmine = acme_absent:thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("run", *SMALL, "--log", "mine") if kind == "trackers" else ("list", kind)
    ended = covey_says(*words)
    said = " ".join((ended.out + ended.err).split())
    assert f"'mine' among the {kind}, acme_absent:thing of the package acme 1.0" in said


class Seen(covey.Algorithm):
    """FedAvg without a step, which leaves what its programs got."""

    seen: ClassVar[dict[str, Any]] = {}

    def server(self, me: covey.Nodes, w: covey.Rows) -> covey.Rows:
        self.seen["replies"] = me.ask(self.device, w)
        return self.seen["replies"].mean()

    def device(self, me: covey.Nodes, w: covey.Rows) -> covey.Rows:
        self.seen["me"] = me
        return w


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What pages show attributes of: a run in Python, its parts, and a run folder."""
    folder = tmp_path_factory.mktemp("run") / "out"
    exits(0, "run", *SMALL, "rounds=1", "--out", folder)
    data = covey.data.digits(devices=2)
    model, tree = covey.models.linear(64, 10), covey.Tree.flat(2)
    run = covey.run(covey.Experiment(Seen(), data, model, tree, rounds=1))
    (record,) = run
    return {
        "run": run,
        "loaded": covey.load(folder),
        "record": record,
        "model": record.models["global"],
        "score": record.models["global"].scores["test"],
        "device": run.devices()[0],
        "data": data,
        "algorithm": covey.algorithms.FedAvg(),
        **Seen.seen,
    }


def has(thing: object, name: str) -> bool:
    """Whether a thing has an attribute; none that it lists is computed."""
    return name in dir(thing) or hasattr(thing, name)


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_what_pages_show_has_its_attributes(kind: str, shown: dict[str, Any]) -> None:
    gone = [name for name in ATTRIBUTES[kind] if not has(shown[kind], name)]
    assert not gone, f"pages show them of a {type(shown[kind]).__name__}"
