"""The table of yeast genes, with 14 labels per row, as data of covey."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covey.data import Shards, own

TABLE = Path(__file__).with_name("data") / "yeast.csv.gz"


def yeast(devices: int = 20) -> Shards:
    """Genes dealt to devices by their first feature; targets are 14 numbers of 0 and 1."""
    table = np.loadtxt(TABLE, delimiter=",", skiprows=1, dtype=np.float32)
    table = table[np.argsort(table[:, 0], kind="stable")]
    pairs = [(rows[:, :103], rows[:, 103:]) for rows in np.array_split(table, devices)]
    return own(pairs)
