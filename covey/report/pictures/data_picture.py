"""One picture of a partition: the labels and sizes of every device's examples, edge by edge.

Where numbers are to be predicted, ranges of targets stand in for labels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.data import Shards
from covey.data.shards import SPLITS
from covey.report.pictures.picture_file import save
from covey.tree import Tree

_NAMED = 24  # devices, or classes, that have room for a name each
_BINS = 20  # of a histogram of targets

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


def draw(shards: Shards, tree: Tree, path: Path, title: str) -> None:
    """Draw a PNG: the labels of every device as a map, and the sizes of its parts below.

    The map is dark where most of a device's examples are.
    """
    figure = Figure(figsize=(11, 6), layout="constrained")
    if shards.classes is not None:
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        _labels(figure, top, shards)
    else:
        axes = figure.subplot_mosaic(
            [["map", "all"], ["sizes", "."]],
            width_ratios=[8, 1],
            height_ratios=[2, 1],
        )
        top = axes["map"]
        below = axes["sizes"]
        below.sharex(top)
        top.tick_params(labelbottom=False)
        _targets(figure, top, axes["all"], shards)
    figure.suptitle(title)
    _sizes(below, shards)
    _edges(top, tree, shards)
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def target_histogram(shards: Shards) -> tuple[Floats, Counts]:
    """(limits [bins + 1], counts [devices, bins]) of a histogram of each device's training targets.

    All outputs count together.

    >>> from covey.data import own
    >>> first = (np.zeros((4, 1)), np.array([0.0, 0.0, 1.0, 10.0]))
    >>> shards = own([first, (np.zeros((1, 1)), [4.9])], split=(1, 0, 0))
    >>> limits, counts = target_histogram(shards)
    >>> limits[[0, 1, -1]].tolist(), counts[0, [0, 2, -1]].tolist(), counts.sum(1).tolist()
    ([0.0, 0.5, 10.0], [2, 1, 1], [4, 1])
    """
    train = shards.train
    owner = np.repeat(np.arange(shards.devices), train.counts().numpy())
    targets = shards.y[train.index].double()
    values = targets.reshape(len(owner), -1).numpy()
    limits = np.histogram_bin_edges(values, bins=_BINS)
    bins = np.searchsorted(limits, values, side="right") - 1
    bins = np.clip(bins, 0, _BINS - 1)
    counts = np.zeros((shards.devices, _BINS), dtype=np.int64)
    np.add.at(counts, (owner[:, None], bins), 1)
    return limits, counts


def _labels(figure: Figure, axes: Axes, shards: Shards) -> None:
    """The share of every label per device; the numbers of examples where there is room."""
    classes = shards.classes or 0
    counts = shards.labels()
    shares = _shares(counts)
    image = axes.imshow(
        shares,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    figure.colorbar(image, ax=axes, label="share of a device's training examples")
    if shards.devices <= _NAMED and classes <= _NAMED:
        for device, label in zip(*counts.nonzero(), strict=True):
            colour = "black"
            if shares[label, device] > 0.6:
                colour = "white"
            axes.text(
                device,
                label,
                str(counts[device, label]),
                ha="center",
                va="center",
                fontsize=7,
                color=colour,
            )
    if classes <= _NAMED:
        names = shards.names.classes or [str(label) for label in range(classes)]
        axes.set_yticks(range(classes), names)
    axes.set(ylabel="label")


def _targets(figure: Figure, axes: Axes, side: Axes, shards: Shards) -> None:
    """A histogram of the targets of every device, and one of all of them beside it."""
    limits, counts = target_histogram(shards)
    low = float(limits[0])
    high = float(limits[-1])
    extent = (-0.5, shards.devices - 0.5, low, high)
    image = axes.imshow(
        _shares(counts),
        aspect="auto",
        cmap="Blues",
        vmin=0,
        interpolation="nearest",
        origin="lower",
        extent=extent,
    )
    axes.set(ylabel="target")
    side.barh(
        limits[:-1],
        counts.sum(0),
        height=np.diff(limits),
        align="edge",
        color="C0",
    )
    side.set(ylim=(low, high), xlabel="examples", title="all devices")
    figure.colorbar(image, ax=side, label="share of a device's training examples")


def _shares(counts: Counts) -> Floats:
    """The fraction of a device's examples in each label or bin, [labels, devices]."""
    totals = np.maximum(counts.sum(1, keepdims=True), 1)
    shares: Floats = (counts / totals).T
    return shares


def _sizes(axes: Axes, shards: Shards) -> None:
    """How many examples every device has in each part."""
    floor = np.zeros(shards.devices)
    for split, colour in zip(SPLITS, ("C0", "C1", "C2"), strict=True):
        sizes = shards.part(split).counts().numpy()
        axes.bar(
            range(shards.devices),
            sizes,
            bottom=floor,
            width=0.9,
            color=colour,
            label=split,
        )
        floor = floor + sizes
    axes.set(xlabel="device", ylabel="examples")
    axes.set_ylim(0, 1.25 * floor.max())
    axes.legend(frameon=False, ncols=3, loc="upper right")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if shards.devices <= _NAMED and shards.names.devices:
        axes.set_xticks(range(shards.devices), shards.names.devices, rotation=90, fontsize=8)


def _edges(axes: Axes, tree: Tree, shards: Shards) -> None:
    """A line between the devices of two edges, and the edges' names where there is room."""
    if tree.depth < 3:
        return
    sizes = np.array(tree.children[-1])
    ends = sizes.cumsum()
    for end in ends[:-1]:
        axes.axvline(end - 0.5, color="black", linewidth=0.8)
    if len(sizes) <= _NAMED:
        names = shards.names.edges or [f"edge {number}" for number in range(len(sizes))]
        above = axes.get_xaxis_transform()
        middles = ends - sizes / 2 - 0.5
        for name, middle in zip(names, middles, strict=True):
            axes.text(
                middle,
                1.02,
                name,
                ha="center",
                va="bottom",
                fontsize=8,
                transform=above,
            )
