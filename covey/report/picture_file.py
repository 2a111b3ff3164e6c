"""The file of a picture, in which names are plain text, whoever gave them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text


def save(figure: Figure, path: Path) -> None:
    """Write a picture as PNG, replaced in one step; no text in it is a formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    part = path.with_name(f".{path.name}.part")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # which would print the letter itself
        figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)
