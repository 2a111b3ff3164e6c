"""Where the data sets lie on this machine.

One folder has them all; each set has a list of subfolders where its files may be.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from covey.data.published.catalog import CATALOG, KnownSet, Way


@dataclass(frozen=True)
class Located:
    """The files of one form of a set that lie in one place, and the names of those that do not."""

    way: Way
    folder: Path
    files: tuple[Path, ...]
    missing: tuple[str, ...]


def folder(data_dir: str | Path | None = None) -> Path:
    """The folder with the data sets.

    It is the argument, else COVEY_DATA, else a folder among the user's own.

    >>> folder("some/where").parts
    ('some', 'where')
    """
    named = os.environ.get("COVEY_DATA") if data_dir is None else data_dir
    return Path(named).expanduser() if named else user_data() / "covey"


def find(entry: KnownSet, root: Path) -> Located:
    """The first form of a set whose files are all in one place below `root`.

    If there is none, the form that lacks the fewest files.
    """
    tried = [_look(way, root / subfolder) for way in entry.ways for subfolder in entry.places]
    own = [located for located in tried if not _foreign(entry, located)]

    def lack(located: Located) -> float:
        return len(located.missing) if located.files else math.inf

    return min(own, key=lack, default=tried[0])


def hub_copy(entry: KnownSet, root: Path) -> Path:
    """The file in which a set is kept once it was fetched from the hub."""
    return root / f"{entry.name}-hub.npz"


def advice(entry: KnownSet, root: Path) -> str:
    """What to do so that the set is found below `root`.

    >>> from covey.data.published.catalog import known
    >>> advice(known("mnist"), Path("here")).partition(" into ")[2]
    'here/mnist, or set data_dir or COVEY_DATA to the folder that has them'
    """
    target = root / entry.home
    other = "set data_dir or COVEY_DATA to the folder that has them"
    return f"put {entry.download} (from {entry.page}) into {target}, or {other}"


def unpacked_md5(path: Path) -> str:
    """The md5 of the content of a .gz file, or of a plain file; "" where it cannot be read."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return ""
    return digest.hexdigest()


def user_data() -> Path:
    """The folder for what a program keeps for its user."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def _look(way: Way, folder: Path) -> Located:
    files: list[Path] = []
    missing = []
    for name in way.files:
        if "*" in name:  # by length first, so that 10 comes after 9
            found = sorted(folder.glob(name), key=lambda path: (len(path.name), path.name))
        else:
            forms = (folder / name, folder / name.removesuffix(".gz"))
            found = [path for path in forms if path.is_file()][:1]
        files += found
        if not found:
            missing.append(name)
    return Located(way, folder, tuple(files), tuple(missing))


def _foreign(entry: KnownSet, located: Located) -> bool:
    """Whether these are another set's files.

    The files of MNIST and Fashion-MNIST have the same names.
    """
    others: set[str] = set()
    for other in CATALOG.values():
        if other is not entry:
            others.update(other.md5.values())
    labels = [path for path in located.files if "-labels-" in path.name]
    return any(unpacked_md5(path) in others for path in labels)
