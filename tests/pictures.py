"""A picture takes most of the time of a small run, so each kind is drawn once in a process."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_DRAWN: dict[Hashable, bytes] = {}


def kind(figure: Figure) -> Hashable:
    """What the panels of a figure hold, without the numbers."""
    return (*figure.get_size_inches(), *(_panel(axes) for axes in figure.axes))


def _panel(axes: Axes) -> Hashable:
    parts: list[Any] = [
        axes.lines, axes.collections, axes.patches, axes.texts, axes.containers, axes.images,
    ]  # fmt: skip
    labels = tuple(bool(text) for text in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
    scales = (axes.get_xscale(), axes.get_yscale())
    return (*(len(part) for part in parts), labels, scales, axes.get_legend() is not None)


def draw_each_kind_once(patch: pytest.MonkeyPatch) -> None:
    """Figures are put together as ever; the file of a kind that was drawn before is that one's."""
    savefig = Figure.savefig

    def once(self: Figure, path: Path, **options: Any) -> None:
        which = kind(self)
        if which in _DRAWN:
            path.write_bytes(_DRAWN[which])
            return
        savefig(self, path, **options)
        _DRAWN[which] = path.read_bytes()

    patch.setattr(Figure, "savefig", once)
