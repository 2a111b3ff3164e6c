"""The licences of everything that `pip install` of covey brings.

    python -m tools.licences          # the table; exit code 1 where a licence is not permissive

It follows the requirements of pyproject.toml through the installed packages and reads their
metadata. Extras are those that a user installs; the tools of the tests and of the docs are left
out, for they are no part of covey.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOT_FOR_USERS = ("browser", "dev", "docs")
COPYLEFT = re.compile(r"GPL|SSPL|EUPL|OSL|CPAL", re.I)
UNKNOWN = "unknown"
HEAD = """# Licences

covey is Apache-2.0. The digits data have a licence of their own (`covey/data/DIGITS.md`).

This page lists what `pip install` brings along, from the metadata of the packages on the machine
that built it. By this metadata, none of them is under a licence of the GPL family. `make licences`
prints the table and fails if one is. Extras that were not installed there are missing.

| package | version | licence | for |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Package:
    """One installed package, and the extra that needs it; "" for covey itself."""

    name: str
    version: str
    licence: str
    extra: str

    @property
    def permissive(self) -> bool:
        """Whether a licence is stated and is none of the GPL family."""
        return self.licence != UNKNOWN and not COPYLEFT.search(self.licence)


def pages() -> dict[str, str]:
    """The page of the site, by its address."""
    rows = [
        f"| {item.name} | {item.version} | {item.licence} | {item.extra or 'covey'} |"
        for item in packages()
    ]
    return {"licences.md": HEAD + "\n".join(rows) + "\n"}


def packages() -> list[Package]:
    """Every installed package that covey or an extra for users needs, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {"": project["dependencies"], **project["optional-dependencies"]}
    by_name: dict[str, Package] = {}
    for extra, requirements in wanted.items():
        if extra in NOT_FOR_USERS:
            continue
        for dist in _closure(requirements):
            name = canonicalize_name(dist.name)
            by_name.setdefault(name, Package(name, dist.version, _licence(dist), extra))
    return sorted(by_name.values(), key=lambda item: item.name)


def _closure(requirements: Iterable[str]) -> Iterator[Distribution]:
    """The installed packages that these requirements need, each once."""
    waiting = [(Requirement(text), "") for text in requirements]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        dist = _installed(requirement.name)
        if dist is None:
            continue
        yield dist
        waiting += _needs(dist, requirement.extras)


def _needs(dist: Distribution, extras: Iterable[str]) -> list[tuple[Requirement, str]]:
    """What a package requires, also under these extras."""
    parsed = [Requirement(text) for text in dist.requires or ()]
    return [(requirement, extra) for requirement in parsed for extra in ("", *extras)]


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _licence(dist: Distribution) -> str:
    """The licence by the newest of the three fields that packages use.

    Some packages have the whole text in the field for the name; then classifiers tell the name.
    """
    metadata = dist.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    prefix = "License :: "
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith(prefix)
    ]
    if "License" in metadata and "\n" not in metadata["License"].strip():
        return metadata["License"].strip() or UNKNOWN
    return ", ".join(classifiers) or UNKNOWN


def main() -> int:
    """Print the table; 1 where a licence is missing or of the GPL family."""
    listed = packages()
    for item in listed:
        print(f"{item.name:24} {item.version:16} {item.licence:40} {item.extra or 'covey'}")
    refused = [item.name for item in listed if not item.permissive]
    if refused:
        print(f"not permissive, or unknown: {', '.join(refused)}", file=sys.stderr)
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
