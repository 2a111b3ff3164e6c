"""The import rule: a folder of covey imports from folders below it only, also inside functions and
for types. The rooms stand on top: the core imports none of them, and they do not import each other.
"""

from pathlib import Path

import pytest

import covey
from covey.rooms import rooms
from tests.test_exports import imports

ROOT = Path(covey.__file__).parent

CORE = (
    {"base", "native"},
    {"codecs", "models"},
    {"data"},
    {"engine"},
    {"maths", "kernel"},
    {"links"},
    {"algorithms"},
    {"runtimes"},
    {"runs"},
    {"files"},
    {"report"},
    {"folder"},
    {"cli", "laws"},
)
"""From the bottom: what stands in one of them may import what stands in an earlier one, and its own
folder.
"""
ROOMS = {room.name for room in rooms() if room.is_folder}
"""Each may import the whole core; the core finds them by their `room.toml` alone."""
OLD_NAMES = {"cli.config", "kernel.fields", "report.compare", "report.plot", "wireless"}
"""Public modules that only pass on what has moved."""
HEIGHT = {folder: height for height, layer in enumerate((*CORE, ROOMS)) for folder in layer}
TOGETHER = {
    ("base", "native"),
    ("native", "base"),
}  # draws are made by compiled code where there is some
BETWEEN_ROOMS = {(room.name, other) for room in rooms() for other in room.needs}
MODULES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent != ROOT or path.stem not in ("__init__", "__main__")
]


def name_of(path: Path) -> str:
    """The name of a module below covey."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


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


def allowed(path: Path, other: str) -> bool:
    """Whether a module may import from another folder."""
    here = folder(path)
    return HEIGHT[other] < HEIGHT[here] or (here, other) in TOGETHER | BETWEEN_ROOMS


def test_every_folder_has_its_place() -> None:
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert there | {"base"} == set(HEIGHT)


def test_every_folder_says_what_it_holds() -> None:
    folders = {path.parent for path in MODULES}
    assert not [path for path in folders if not (path / "__init__.py").is_file()]


def test_the_root_holds_what_everything_stands_on() -> None:
    names = {path.stem for path in ROOT.glob("*.py")}
    of_rooms = [Path(path) for room in rooms() for path in room.own["code"]]
    assert names == {
        "__init__", "__main__", "atomic", "draws", "errors", "fields", "installed", "markup",
        "origin", "rooms", "tree", "types",
    } | {path.stem for path in of_rooms if path.parent == Path("covey") and path.suffix}  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    if name_of(path) in OLD_NAMES:
        return
    wrong = {other for other in folders_imported(path) - {folder(path)} if not allowed(path, other)}
    assert not wrong, f"{name_of(path)} imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_imports_by_an_old_name(path: Path) -> None:
    old = {f"covey.{name}" for name in OLD_NAMES}
    assert not old & imports(path)
