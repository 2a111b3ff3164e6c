"""The encoded tables and their parts, for other libraries: `python -m experiments.tables.export FOLDER`.

Every experiment becomes FOLDER/NAME.npz with x and y of the training and test parts of all devices.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from covey.files.config import load

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    """Write a file for every experiment here."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(HERE.glob("*.toml")):
        shards = load(path).experiment(0).data
        train = shards.train.index
        test = shards.test.index
        np.savez(
            folder / f"{path.stem}.npz",
            train_x=shards.x[train].flatten(1),
            train_y=shards.y[train],
            test_x=shards.x[test].flatten(1),
            test_y=shards.y[test],
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
