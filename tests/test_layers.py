"""The import rule: a folder of covey imports from folders below it only, also inside functions and
for types.
"""

from pathlib import Path

import pytest

import covey
from tests.test_exports import imports

ROOT = Path(covey.__file__).parent

LAYERS = (
    {"base", "native"},
    {"codecs", "models"},
    {"data"},
    {"engine"},
    {"maths", "kernel"},
    {"links"},
    {"algorithms"},
    {"wireless"},
    {"runtimes"},
    {"runs"},
    {"deployed"},
    {"advice", "laws", "papers", "report"},
    {"cli"},
)
"""From the bottom: what stands in one of them may import what stands in an earlier one, and its own
folder.
"""
HEIGHT = {folder: height for height, layer in enumerate(LAYERS) for folder in layer}
TOGETHER = {
    ("base", "native"),
    ("native", "base"),
}  # draws are made by compiled code where there is some
MODULES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent != ROOT or path.stem not in ("__init__", "__main__")
]


def folder(path: Path) -> str:
    """The folder a module of covey lies in; "base" for those at the root."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else "base"


def folders_imported(path: Path) -> set[str]:
    """The folders that a module imports from."""
    out = set()
    for name in imports(path):
        if name == "covey" or not name.startswith("covey."):
            continue
        first = name.split(".")[1]
        out.add(first if (ROOT / first).is_dir() else "base")
    return out


def test_every_folder_has_its_place() -> None:
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert there | {"base"} == set(HEIGHT)


def test_the_root_holds_what_everything_stands_on() -> None:
    names = {path.stem for path in ROOT.glob("*.py")}
    assert names == {
        "__init__",
        "__main__",
        "draws",
        "errors",
        "installed",
        "markup",
        "origin",
        "tree",
        "types",
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{folder(path)}.{path.stem}")
def test_imports_point_down(path: Path) -> None:
    here = folder(path)
    for other in folders_imported(path) - {here}:
        assert (here, other) in TOGETHER or HEIGHT[other] < HEIGHT[here], f"{here} imports {other}"
