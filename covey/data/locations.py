"""Where the data sets lie on this machine: one folder, and in it the places where each set's files
may be.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from covey.data.catalog import CATALOG, KnownSet, Way


@dataclass(frozen=True)
class Found:
    """The files of one form of a set that lie in one place, and the names of those that do not."""

    way: Way
    place: Path
    files: tuple[Path, ...]
    missing: tuple[str, ...]


def folder(data_dir: str | Path | None = None) -> Path:
    """The folder with the data sets: the argument, else COVEY_DATA, else a folder among the user's
    own.

    >>> folder("some/where").parts
    ('some', 'where')
    """
    named = data_dir if data_dir is not None else os.environ.get("COVEY_DATA")
    return Path(named).expanduser() if named else _user_data() / "covey"


def find(one: KnownSet, root: Path) -> Found:
    """The first form of a set that is whole in one place below `root`; if none is, the one that
    lacks fewest files.
    """
    tried = [_look(way, root / place) for way in one.ways for place in one.places]
    own = [found for found in tried if not _foreign(one, found)]
    return min(own, key=_lack, default=tried[0])


def hub_copy(one: KnownSet, root: Path) -> Path:
    """The file in which a set is kept once it was fetched from the hub."""
    return root / f"{one.name}-hub.npz"


def advice(one: KnownSet, root: Path) -> str:
    """What to do so that the set is found below `root`.

    >>> from covey.data.catalog import known
    >>> advice(known("mnist"), Path("here")).partition(" into ")[2]
    'here/mnist, or name their folder by data_dir or COVEY_DATA'
    """
    return f"put {one.download} (from {one.page}) into {root / one.home}, or name their folder by data_dir or COVEY_DATA"


def unpacked_md5(path: Path) -> str:
    """The md5 of what is packed in a .gz file, or of a plain file itself; "" where it cannot be
    read.
    """
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return ""
    return digest.hexdigest()


def _user_data() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def _lack(found: Found) -> tuple[bool, int]:
    """Orders what was found: the whole first, then what lacks fewest files, then what has none."""
    return not found.files, len(found.missing) if found.files else 0


def _look(way: Way, place: Path) -> Found:
    there = {name: _matches(place, name) for name in way.files}
    files = tuple(path for paths in there.values() for path in paths)
    return Found(way, place, files, tuple(name for name, paths in there.items() if not paths))


def _matches(place: Path, name: str) -> list[Path]:
    if "*" in name:
        # By length first, so that 10 comes after 9.
        return sorted(place.glob(name), key=lambda path: (len(path.name), path.name))
    return [path for path in (place / name, place / name.removesuffix(".gz")) if path.is_file()][:1]


def _foreign(one: KnownSet, found: Found) -> bool:
    """Whether these are another set's files: those of MNIST and Fashion-MNIST have the same names."""
    others = {md5 for other in CATALOG.values() if other is not one for md5 in other.md5.values()}
    labels = [path for path in found.files if "-labels-" in path.name]
    return any(unpacked_md5(path) in others for path in labels)
