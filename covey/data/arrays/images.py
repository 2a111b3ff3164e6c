"""A folder of images as shards: subfolders name the devices and the labels.

A file is at DEVICE/LABEL/name.png, at EDGE/DEVICE/LABEL/name.png where there are edges, or at
LABEL/name.png where a partition deals the images. Headers are read first, so that what is wrong
with the folder is said before any image is decoded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from covey.data.partitions.partition import SPLIT, Split, whole_within
from covey.data.shards import Shards
from covey.data.tables import npz
from covey.data.tables.files import table_shards
from covey.data.tables.options import TableOptions, dealing, files_below
from covey.data.tables.scaling import Normalise
from covey.data.tables.tables import Table, listing
from covey.errors import DataError, needed, shown

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
_PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_GREY = {"1", "L", "LA"}
_EIGHT_BITS = {*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"}
_ORIENTATION = 274  # the number of this tag among a photograph's
_TURNED = (5, 6, 7, 8)  # orientations whose width is the stored height
Opened = Path | bytes  # the file of an image, or what is in it

_LARGEST_SIDE = 16_384
_LAYOUT = "put each image at DEVICE/LABEL/name.png (EDGE/DEVICE/LABEL/name.png with edges)"


def images(
    path: str,
    *,
    size: int | Sequence[int] | None = None,
    grey: bool = False,
    partition: str | None = None,
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    normalise: Normalise = "unit",
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """Shards of the images in a folder, x [n, channels, height, width].

    The folder has DEVICE/LABEL/name.png, or EDGE/DEVICE/LABEL/name.png. With a `partition`, it has
    LABEL/name.png, and the images are dealt to `devices` as those of the named data sets are.

    `size` is a side in pixels, or (height, width): images are stretched or shrunk to it. Without
    `size`, all images must have the same. There is one channel where `grey` is set or every image
    is grey, and three otherwise. Transparent pixels become white, and photographs are
    turned upright. Classes are ordered as text, or as numbers if all of them are. Reading needs
    Pillow, as in pip install '.[images]' in the clone of covey.
    """
    folder = Path(path).expanduser()
    side = side_of(size)
    deal = dealing(locals())
    paths = _listed(folder, dealt=bool(deal))
    label = [path.parent.name for path in paths]
    classes = sorted(set(label))
    if all(name.isdecimal() for name in classes):
        classes.sort(key=int)
    x = pixels_of({str(folder / path): folder / path for path in paths}, folder, side, grey)
    table = Table(
        [f"{folder / path}, image" for path in paths],
        list(range(len(paths))),
        x,
        label,
        device=None if deal else [path.parts[-3] for path in paths],
        edge=[path.parts[0] for path in paths] if len(paths[0].parts) == 4 else None,
    )
    options = TableOptions(classes=classes, normalise=normalise, deal=deal, split=split, seed=seed)
    return table_shards(table, options, folder, name=folder.resolve().name)


def side_of(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """The height and width to bring images to; None: as they are."""
    if size is None:
        return None
    sides: Sequence[Any] = size if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(whole_within(side, 1, _LARGEST_SIDE) for side in sides):
        raise DataError(
            f"size = {shown(size)}; give a side in pixels from 1 to {_LARGEST_SIDE}, "
            "or a height and a width."
        )
    return sides[0], sides[1]


def _listed(folder: Path, *, dealt: bool) -> list[Path]:
    """The images under a folder, relative to it, all as deep as the folders' names ask for."""
    paths = [path for path in files_below(folder) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise DataError(
            f"there is no image ({', '.join(SUFFIXES)}) in the folder {folder}; {_LAYOUT}."
        )
    depths = {len(path.parts) for path in paths}
    if dealt and depths != {2}:
        odd = next(path for path in paths if len(path.parts) != 2)
        raise DataError(
            f"{odd} in {folder}: with a partition, images lie at LABEL/name.png; "
            "move them, or leave out partition if the folders name devices."
        )
    if not dealt and depths == {2}:
        raise DataError(
            f"{paths[0]} in {folder} names a label and no device; {_LAYOUT}, "
            'or deal the images to devices, as in partition = "iid" and devices = 10.'
        )
    if not dealt and depths not in ({3}, {4}):
        odd = next((path for path in paths if len(path.parts) not in (3, 4)), paths[-1])
        raise DataError(
            f"images in {folder} lie at different depths, or at one that has no meaning, "
            f"such as {odd}; {_LAYOUT}, all alike."
        )
    if not dealt:
        _check_devices(paths, folder)
    return paths


def _check_devices(paths: Sequence[Path], folder: Path) -> None:
    """That folders of devices are no parts, and that a device has one edge."""
    devices = {path.parts[-3] for path in paths}
    if {name.lower() for name in devices} <= _PARTS:
        raise DataError(
            f"the folders {', '.join(sorted(devices))} in {folder} seem to be parts, not devices; "
            "give the images as LABEL/name.png with a partition, "
            "or one folder per device, which split cuts into parts."
        )
    homes: dict[str, str] = {}
    for path in paths:
        edge = path.parts[0]  # or the device itself, where there are no edges
        home = homes.setdefault(path.parts[-3], edge)
        if home != edge:
            raise DataError(
                f"device {path.parts[-3]!r} in {folder} lies under the edges {home!r} and "
                f"{edge!r}; rename one of the devices."
            )


def pixels_of(
    files: Mapping[str, Opened],
    folder: Path,
    size: tuple[int, int] | None,
    grey: bool,
) -> npt.NDArray[np.uint8]:
    """All images as bytes, [n, channels, height, width]; the files are known by their names."""
    library = needed("PIL.Image", extra="images", to=f"read the images in {folder}")
    headers = _each(files, lambda file: _header(library, file))
    height, width = size or headers[0].size
    for name, header in zip(files, headers, strict=True):
        if size is None and header.size != (height, width):
            raise DataError(
                f"{next(iter(files))} has {height} x {width} pixels, "
                f"{name} {header.size[0]} x {header.size[1]}; "
                "give a size to bring all images to, as in size = 32."
            )
    mode = "L" if grey or all(header.grey for header in headers) else "RGB"
    shape = (len(files), len(mode), height, width)
    needs = 5 * math.prod(shape)  # as bytes, and as floats
    what = f"the {len(files)} images in {folder}"
    npz.check_memory(needs, what, "give a smaller size, as in size = 64")
    x = np.empty(shape, dtype=np.uint8)
    rows = iter(x)

    def fill(file: Opened) -> None:
        next(rows)[...] = _decoded(library, file, mode, (height, width))

    _each(files, fill)
    return x


def _each(files: Mapping[str, Opened], read: Callable[[Opened], Any]) -> list[Any]:
    """What `read` makes of every image; those it fails on are named together."""
    faults = []
    results = []
    for name, file in files.items():
        try:
            results.append(read(file))
        except Exception as error:  # a damaged file can fail in any way
            # Pillow's message repeats the path.
            reason = str(error).replace(f" {name!r}", "") or type(error).__name__
            faults.append(f"{name}: {reason}")
    if faults:
        raise DataError(listing("image", "cannot be read; replace or remove them", faults))
    return results


class _Header(NamedTuple):
    """What an image says of itself before it is decoded."""

    size: tuple[int, int]  # height and width
    grey: bool


def _header(library: Any, file: Opened) -> _Header:
    with library.open(_stream(file)) as image:
        if image.mode not in _EIGHT_BITS:
            raise ValueError(
                f"its pixels are of mode {image.mode!r}, not of 8 bits; save it with 8 per channel"
            )
        turned = image.getexif().get(_ORIENTATION) in _TURNED
        size = image.size if turned else image.size[::-1]
        return _Header(size, image.mode in _GREY)


def _stream(file: Opened) -> Path | io.BytesIO:
    return io.BytesIO(file) if isinstance(file, bytes) else file


def _decoded(
    library: Any,
    file: Opened,
    mode: str,
    size: tuple[int, int],
) -> npt.NDArray[np.uint8]:
    """One image, [channels, height, width]."""
    operations = needed("PIL.ImageOps", extra="images", to="turn images upright")
    with library.open(_stream(file)) as stored:
        image = operations.exif_transpose(stored)
        if image.has_transparency_data:  # below it files hold any colour, often black
            colours = image.convert("RGBA")
            white = library.new("RGBA", colours.size, "white")
            image = library.alpha_composite(white, colours)
        image = image.convert(mode)
    if image.size != size[::-1]:
        image = image.resize(size[::-1], library.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.asarray(image, dtype=np.uint8)
    if mode == "L":
        return pixels[None]
    return pixels.transpose(2, 0, 1)
