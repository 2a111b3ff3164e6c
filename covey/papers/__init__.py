"""The settings that the papers print, one experiment file each.

The algorithms' own defaults are for newcomers. `covey run PATH` runs a file as it is, on the
shipped digits instead of the paper's images. A comment in each file says what to add for the
paper's own data.

>>> [path.stem for path in files()]
['fedmac', 'permfl', 'pfedme', 'sfedhp', 'wireless']
"""

from pathlib import Path


def files() -> list[Path]:
    """The experiment files, in the order of their names."""
    return sorted(Path(__file__).parent.glob("*.toml"))
