"""The settings that the papers print, and their tables.

The algorithms' own defaults are for newcomers. `covey run PATH` runs one of `files` as it is, on
the shipped digits instead of the paper's images. A comment in each file says what to add for the
paper's own data. `covey reproduce PAPER/TABLE` runs a table of a paper on the paper's data.

>>> [path.stem for path in files()]
['fedmac', 'permfl', 'pfedme', 'sfedhp', 'wireless']
"""

from pathlib import Path

_OTHERS = ("printed.toml", "room.toml")


def files() -> list[Path]:
    """The experiment files, in the order of their names."""
    folder = Path(__file__).parent
    return sorted(path for path in folder.glob("*.toml") if path.name not in _OTHERS)
