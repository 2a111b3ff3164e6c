"""Shards as an HTML table, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from covey import markup

if TYPE_CHECKING:
    from covey.data.shards import Shards


def of_shards(shards: Shards) -> str:
    """How many examples each part has, in all and per device."""
    counts = {split: shards.part(split).counts().numpy() for split in _SPLITS}
    heads = ["part", "examples", "devices", "min", "median", "max per device"]
    rows = []
    for split, held in counts.items():
        figures = [held.min(), np.median(held), held.max()]
        row = [split, f"{held.sum():,}", str(int((held > 0).sum()))]
        rows.append([*row, *(f"{figure:g}" for figure in figures)])
    return markup.table(heads, rows, _caption(shards))


_SPLITS = ("train", "validation", "test")


def _caption(shards: Shards) -> str:
    shape = " x ".join(map(str, shards.x.shape[1:])) or "1"
    words = [f"{shards.name}: {len(shards.x):,} examples of {shape}", f"{shards.devices} devices"]
    if shards.edges:
        words.append(f"{len(shards.edges)} edges")
    if shards.classes is None:
        words.append("numbers to predict")
    else:
        held = (shards.labels() > 0).sum(1)
        each = f"{held.min()} to {held.max()}"
        if held.min() == held.max():
            each = str(held.min())
        words.append(f"{shards.classes} classes, {each} per device")
    return ", ".join(words)
