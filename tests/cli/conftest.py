"""A picture takes most of the time of a small run, so each kind is drawn once in a process."""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_DRAWN: dict[Hashable, bytes] = {}


def _kind(axes: Axes) -> Hashable:
    """What is in one panel, without the numbers."""
    parts = [axes.lines, axes.collections, axes.patches, axes.texts, axes.containers, axes.images]
    labels = tuple(bool(text) for text in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
    scales = (axes.get_xscale(), axes.get_yscale())
    return (*(len(part) for part in parts), labels, scales, axes.get_legend() is not None)


@pytest.fixture(autouse=True, scope="module")
def _pictures_are_drawn_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """The file of a picture whose panels have the parts of one drawn before is that one's.

    Figures are put together all the same. Modules with the mark `pictures` draw all of them.
    """
    if request.node.get_closest_marker("pictures") is not None:
        yield
        return
    savefig = Figure.savefig

    def once(self: Figure, path: Path, **options: Any) -> None:
        kind = (*self.get_size_inches(), *map(_kind, self.axes))
        if kind in _DRAWN:
            path.write_bytes(_DRAWN[kind])
            return
        savefig(self, path, **options)
        _DRAWN[kind] = path.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", once)
        yield
