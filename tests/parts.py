"""The parts of `make test-all`: `python -m tests.parts` prints their names, with a name its files."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def named() -> dict[str, list[str]]:
    """What each part names: files, and folders for the files that nobody names."""
    found: dict[str, list[str]] = tomllib.loads((ROOT / "tests" / "parts.toml").read_text())
    return found


def parts() -> dict[str, list[str]]:
    """What pytest is given for each part: files of tests, and the package for its doctests."""
    part_of = {path: part for part, paths in named().items() for path in paths}
    out: dict[str, list[str]] = {part: [] for part in named()}
    out[part_of["covey"]].append("covey")
    for path in files():
        out[part_of.get(path) or part_of[str(Path(path).parent)]].append(path)
    return out


def files() -> list[str]:
    """The files below tests/ that pytest finds something in: tests, or an example in a docstring."""
    found = sorted((ROOT / "tests").rglob("*.py"))
    examples = re.compile(r"^ +>>> ", re.MULTILINE)
    some = [f for f in found if f.name.startswith("test_") or examples.search(f.read_text())]
    return [str(file.relative_to(ROOT)) for file in some]


if __name__ == "__main__":
    print(*(parts()[sys.argv[1]] if sys.argv[1:] else parts()))
