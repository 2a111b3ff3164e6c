"""Draws a tree with a model at every tier: `python -m tools.tree_picture docs/tree.png`.

The symbols are those of sFedHP: w at the server, phi at an edge, theta at a device. Each tier has
the colour that it has in every picture of a run (`covey.report.pictures.plot.COLOURS`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Circle, Rectangle

from covey.report.pictures.plot import COLOURS

EDGES = 3
DEVICES_PER_EDGE = 3
LABELS = 5
HEIGHTS = {"server": 3.0, "edge": 1.75, "device": 0.5}
RADII = {"server": 0.36, "edge": 0.31, "device": 0.25}
TEXT_LEFT = 9.75
TEXTS = {
    "server": ("server: global model w", "one model for all devices"),
    "edge": ("edge: edge model $\\varphi_i$", "one model for similar devices"),
    "device": ("device: personal model $\\theta_{ij}$", "fitted to the device's own examples"),
}
GREY = "#9aa0a8"
DARK = "#22262b"


def positions() -> dict[str, list[float]]:
    """The horizontal position of every node, by tier; a parent stands above its children."""
    devices = []
    edges = []
    for edge in range(EDGES):
        first = 0.5 + edge * 3.1
        children = [first + number for number in range(DEVICES_PER_EDGE)]
        devices += children
        edges.append(sum(children) / len(children))
    return {"server": [sum(edges) / len(edges)], "edge": edges, "device": devices}


def draw_links(axes: Any, columns: dict[str, list[float]]) -> None:
    """A line from every node to its parent."""
    for edge, x in enumerate(columns["edge"]):
        parent = (columns["server"][0], HEIGHTS["server"])
        axes.plot([parent[0], x], [parent[1], HEIGHTS["edge"]], color=GREY, lw=1.6, zorder=1)
        first = edge * DEVICES_PER_EDGE
        for child in columns["device"][first : first + DEVICES_PER_EDGE]:
            axes.plot([x, child], [HEIGHTS["edge"], HEIGHTS["device"]],
                      color=GREY, lw=1.6, zorder=1)  # fmt: skip


def draw_nodes(axes: Any, columns: dict[str, list[float]]) -> None:
    """A circle for every node with the symbol of its model."""
    for tier, row in columns.items():
        for number, x in enumerate(row):
            circle = Circle((x, HEIGHTS[tier]), RADII[tier], color=COLOURS[tier], zorder=2)
            axes.add_patch(circle)
            axes.text(x, HEIGHTS[tier], symbol(tier, number), color="white", fontsize=15,
                      ha="center", va="center", zorder=3)  # fmt: skip


def symbol(tier: str, number: int) -> str:
    """The model's letter with the numbers of its edge and device."""
    if tier == "server":
        return "$w$"
    if tier == "edge":
        return f"$\\varphi_{number + 1}$"
    edge, device = divmod(number, DEVICES_PER_EDGE)
    return f"$\\theta_{{{edge + 1}{device + 1}}}$"


def draw_labels(axes: Any, columns: dict[str, list[float]]) -> None:
    """Five bars under each device: its label distribution, alike within an edge."""
    for number, x in enumerate(columns["device"]):
        edge = number // DEVICES_PER_EDGE
        for label in range(LABELS):
            distance = abs(label - 2 * edge)
            height = max(0.03, 0.34 - 0.15 * distance + 0.05 * ((number + label) % 3))
            left = x - 0.3 + label * 0.125
            axes.add_patch(Rectangle((left, -0.42), 0.1, height, color=GREY, zorder=1))


def draw_texts(axes: Any) -> None:
    """What each tier keeps, what the links carry, and where the examples stay."""
    for tier, (head, body) in TEXTS.items():
        y = HEIGHTS[tier]
        axes.text(TEXT_LEFT, y + 0.13, head, color=COLOURS[tier], fontsize=15,
                  weight="bold", va="center")  # fmt: skip
        axes.text(TEXT_LEFT, y - 0.17, body, color=DARK, fontsize=13, va="center")
    for upper, lower in (("server", "edge"), ("edge", "device")):
        y = (HEIGHTS[upper] + HEIGHTS[lower]) / 2
        words = "$\\updownarrow$  models through a codec, bytes counted"
        axes.text(TEXT_LEFT, y - 0.02, words, color="#6b727b", fontsize=12, va="center")
    axes.text(TEXT_LEFT, -0.3, "examples (bars: labels) never leave a device", color="#6b727b",
              fontsize=12, va="center")  # fmt: skip


def draw(path: Path) -> None:
    """Write the picture."""
    figure, axes = plt.subplots(figsize=(14, 4.3))
    columns = positions()
    draw_links(axes, columns)
    draw_nodes(axes, columns)
    draw_labels(axes, columns)
    draw_texts(axes)
    axes.set_xlim(0, 13.9)
    axes.set_ylim(-0.55, 3.45)
    axes.set_aspect("equal")
    axes.axis("off")
    figure.savefig(path, dpi=125, bbox_inches="tight", facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
