"""One picture of a partition: which device has how many training examples of which label, edge by edge, and everybody's sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.data import Shards
from covey.data.shards import SPLITS
from covey.tree import Tree

_NAMED = 24  # devices, or classes, that have room for a name each


def draw(shards: Shards, tree: Tree, path: Path, title: str) -> None:
    """A PNG: the labels of every device as a map, dark where most of its examples are, and the sizes of its parts below."""
    counts = shards.labels()
    figure = Figure(figsize=(11, 6), layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    shares = (counts / np.maximum(counts.sum(1, keepdims=True), 1)).T
    image = top.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=top, label="share of a device's training examples")
    if shards.devices <= _NAMED and counts.shape[1] <= _NAMED:
        for device, label in zip(*counts.nonzero(), strict=True):
            dark = shares[label, device] > 0.6
            text = str(counts[device, label])
            top.text(device, label, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    if shards.classes and shards.classes <= _NAMED:
        top.set_yticks(range(shards.classes), shards.names.classes or [str(label) for label in range(shards.classes)])
    figure.suptitle(title)
    top.set(ylabel="label" if shards.classes else "all examples")
    floor = np.zeros(shards.devices)
    for split, colour in zip(SPLITS, ("C0", "C1", "C2"), strict=True):
        sizes = shards.part(split).counts().numpy()
        below.bar(range(shards.devices), sizes, bottom=floor, width=0.9, color=colour, label=split)
        floor = floor + sizes
    below.set(xlabel="device", ylabel="examples")
    below.set_ylim(0, 1.25 * floor.max())
    below.legend(frameon=False, ncols=3, loc="upper right")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    if shards.devices <= _NAMED and shards.names.devices:
        below.set_xticks(range(shards.devices), shards.names.devices, rotation=90, fontsize=8)
    _edges(top, tree, shards)
    for axes in (top, below):
        axes.spines[["top", "right"]].set_visible(False)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)


def _edges(axes: Any, tree: Tree, shards: Shards) -> None:
    """A line between the devices of two edges, and the edges' names where there is room."""
    if tree.depth < 3:
        return
    sizes = np.array(tree.children[-1])
    ends = sizes.cumsum()
    for end in ends[:-1]:
        axes.axvline(end - 0.5, color="black", linewidth=0.8)
    if len(sizes) <= _NAMED:
        names = shards.names.edges or [f"edge {at}" for at in range(len(sizes))]
        for name, middle in zip(names, ends - sizes / 2 - 0.5, strict=True):
            axes.text(middle, -0.7, name, ha="center", va="bottom", fontsize=8)
