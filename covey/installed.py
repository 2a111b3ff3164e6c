"""What installed packages add: algorithms, models, data, codecs and trackers, as entry points.

    [project.entry-points."covey.models"]
    resnet = "acme.nets:resnet"

A package's code runs when what it declares is used or listed, and not before.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from covey.errors import ConfigError
from covey.origin import FAULTS, told

KINDS = ("algorithms", "models", "data", "codecs", "trackers")


@dataclass(frozen=True)
class Declared:
    """One entry point, and the package that declares it."""

    kind: str
    point: EntryPoint

    @property
    def package(self) -> str:
        """The package by name and version."""
        dist = self.point.dist
        if dist is None:
            return "a package without a name"
        return f"{dist.name} {dist.version}"

    def load(self) -> Any:
        """What was declared; an error that names the package if it cannot be loaded."""
        try:
            return self.point.load()
        except FAULTS as error:
            raise self.wrong(f"it cannot be loaded: {told(error)}") from error

    def wrong(self, why: str) -> ConfigError:
        """An error about it."""
        name = repr(self.point.name)
        source = f"{self.point.value} of the package {self.package}"
        return ConfigError(f"{name} among the {self.kind}, {source}: {why}")


def declared(kind: str) -> dict[str, tuple[Declared, ...]]:
    """Everything of a kind by name; under one name there may be that of several packages."""
    return _declared(kind, tuple(sys.path))


@cache
def _declared(kind: str, path: tuple[str, ...]) -> dict[str, tuple[Declared, ...]]:
    """The same, kept for as long as the folders are the same in which packages are looked for."""
    out: dict[str, tuple[Declared, ...]] = {}
    if kind not in KINDS:
        return out
    points = entry_points(group=f"covey.{kind}")
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        others = out.get(point.name, ())
        new = Declared(kind, point)
        earlier = [(other.point.value, other.package) for other in others]
        if (point.value, new.package) not in earlier:  # a folder may be in the path twice
            out[point.name] = (*others, new)
    return out


def find(kind: str, name: str, shipped: Collection[str]) -> Declared | None:
    """What a package declares under this name; an error if covey or another package has it too."""
    points = declared(kind).get(name, ())
    if not points:
        return None
    if name in shipped:
        raise points[0].wrong("covey itself has this name; ask for another, or remove the package.")
    if len(points) > 1:
        others = ", ".join(point.package for point in points[1:])
        raise points[0].wrong(f"{others} declares this name too; remove one of the packages.")
    return points[0]
