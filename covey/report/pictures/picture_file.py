"""The file of a picture, in which names are plain text, whoever gave them."""

from __future__ import annotations

import warnings
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text

from covey.atomic import replacing


def save(figure: Figure, path: Path) -> None:
    """Write a picture as PNG, replaced in one step; no text in it is a formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with replacing(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # which would print the letter itself
        figure.savefig(part, dpi=120, format="png")
