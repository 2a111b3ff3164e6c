"""Whether a file holds a picture of something, and not a blank canvas."""

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from numpy.typing import NDArray

INK = (0.01, 0.6)
"""The share of a picture that may be other than white: axes alone are less, a filled canvas more."""
COLOURFUL = 0.0005
"""The share of a picture that a colour covers at least: a line, not the rounded edge of a letter."""


def pixels(path: Path) -> NDArray[np.uint8]:
    """Red, green and blue of every pixel from 0 to 255, [height, width, 3]."""
    return np.rint(255 * imread(path)[:, :, :3]).astype(np.uint8)


def ink(path: Path) -> float:
    """The share of pixels that are not white."""
    return float((pixels(path) < 255).any(axis=2).mean())


def share(path: Path, colour: str) -> float:
    """The share of pixels that have this colour."""
    wanted = np.rint(255 * np.array(to_rgb(colour))).astype(np.int16)
    distance = np.abs(pixels(path).astype(np.int16) - wanted).max(axis=2)
    return float((distance <= 2).mean())


def hues(path: Path) -> int:
    """The number of colours that are neither grey nor rare."""
    flat = pixels(path).reshape(-1, 3)
    vivid = flat[np.ptp(flat, axis=1) > 30]
    counts = np.unique(vivid, axis=0, return_counts=True)[1]
    return int((counts >= COLOURFUL * len(flat)).sum())


def assert_drawn(path: Path, *colours: str) -> None:
    """A picture has ink in a sensible share and every one of these colours; fails on a blank one."""
    low, high = INK
    assert low < ink(path) < high, f"{ink(path):.2%} of the picture is not white"
    assert hues(path) >= len(colours), f"{hues(path)} colours, expected {len(colours)} or more"
    for colour in colours:
        assert share(path, colour) >= COLOURFUL, f"{share(path, colour):.3%} is {colour}"
