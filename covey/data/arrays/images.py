"""A folder of images as shards: subfolders name the devices and the labels.

A file is at DEVICE/LABEL/name.png, at EDGE/DEVICE/LABEL/name.png where there are edges, or at
LABEL/name.png where a partition deals the images. Headers are read first, so that what is wrong
with the folder is said before any image is decoded.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.partitions.partition import SPLIT, Split, whole_within
from covey.data.shards import Shards
from covey.data.tables.files import table_shards
from covey.data.tables.options import RELATIVE, TableOptions, dealing, is_folder
from covey.data.tables.scaling import Normalise
from covey.data.tables.tables import Faults, Table
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
    found = _listed(folder, dealt=bool(deal))
    files: dict[str, Opened] = {str(image.path): image.path for image in found}
    x = pixels_of(files, folder, size=side, grey=grey)
    options = TableOptions(
        classes=_classes({image.label for image in found}),
        normalise=normalise,
        deal=deal,
        split=split,
        seed=seed,
    )
    return table_shards(_table(found, x), options, Faults(), folder, name=folder.resolve().name)


@dataclass(frozen=True)
class _Image:
    """An image, and what the folders it lies in say of it."""

    path: Path
    label: str
    device: str | None = None
    edge: str | None = None


@dataclass(frozen=True)
class _Header:
    """What an image says of itself before it is decoded."""

    height: int
    width: int
    grey: bool


def side_of(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """The height and width to bring images to; None: as they are."""
    if size is None:
        return None
    sides: Sequence[Any] = size if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(map(_is_side, sides)):
        raise DataError(
            f"size = {shown(size)}; give a side in pixels from 1 to {_LARGEST_SIDE}, "
            "or a height and a width."
        )
    return sides[0], sides[1]


def _is_side(side: object) -> bool:
    return not isinstance(side, bool) and whole_within(side, 1, _LARGEST_SIDE)


def _listed(folder: Path, *, dealt: bool) -> list[_Image]:
    """The images under a folder, in the order of their paths, grouped by edge."""
    if not is_folder(folder):
        raise DataError(f"there is no folder {folder}; {RELATIVE}.")
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if _is_image(path)]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    if not paths:
        raise DataError(
            f"there is no image ({', '.join(SUFFIXES)}) in the folder {folder}; {_LAYOUT}."
        )
    _check_depths(paths, folder, dealt=dealt)
    found = [_named(folder, path) for path in paths]
    if not dealt:
        _check_devices(found, folder)
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _named(folder: Path, path: Path) -> _Image:
    names = [None, None, *path.parts[:-1]][-3:]
    edge, device, label = names
    assert label is not None  # its depth is known to be right
    return _Image(folder / path, label, device, edge)


def _check_depths(paths: Sequence[Path], folder: Path, *, dealt: bool) -> None:
    """That every image lies as deep as the others, and as deep as it must."""
    depths = {len(path.parts): path for path in reversed(paths)}
    if dealt and set(depths) != {2}:
        odd = next(path for path in paths if len(path.parts) != 2)
        raise DataError(
            f"{odd} in {folder}: with a partition, images lie at LABEL/name.png; "
            "move them, or leave out partition if the folders name devices."
        )
    if not dealt and set(depths) == {2}:
        raise DataError(
            f"{paths[0]} in {folder} names a label and no device; {_LAYOUT}, "
            'or deal the images to devices, as in partition = "iid" and devices = 10.'
        )
    if not dealt and set(depths) not in ({3}, {4}):
        odd = next((path for path in paths if len(path.parts) not in (3, 4)), paths[-1])
        raise DataError(
            f"images in {folder} lie at different depths, or at one that has no meaning, "
            f"such as {odd}; {_LAYOUT}, all alike."
        )


def _check_devices(found: Sequence[_Image], folder: Path) -> None:
    """That folders of devices are no parts, and that a device has one edge."""
    devices = {image.device or "" for image in found}
    if {name.lower() for name in devices} <= _PARTS:
        raise DataError(
            f"the folders {', '.join(sorted(devices))} in {folder} seem to be parts, not devices; "
            "give the images as LABEL/name.png with a partition, "
            "or one folder per device, which split cuts into parts."
        )
    edges: dict[str | None, str | None] = {}
    for image in found:
        if edges.setdefault(image.device, image.edge) != image.edge:
            raise DataError(
                f"device {image.device!r} in {folder} lies under the edges "
                f"{edges[image.device]!r} and {image.edge!r}; rename one of the devices."
            )


def _classes(labels: Iterable[str]) -> list[str]:
    """The labels in order: of numbers if all are whole ones, else of text.

    >>> _classes({"10", "9"}), _classes({"10", "9", "cat"})
    (['9', '10'], ['10', '9', 'cat'])
    """
    names = sorted(labels)
    if all(name.isdecimal() for name in names):
        return sorted(names, key=int)
    return names


def _table(found: Sequence[_Image], x: npt.NDArray[np.uint8]) -> Table:
    return Table(
        [f"{image.path}, image" for image in found],
        list(range(len(found))),
        x,
        [image.label for image in found],
        device=_column([image.device for image in found]),
        edge=_column([image.edge for image in found]),
    )


def _column(names: Sequence[str | None]) -> list[str] | None:
    """The names, or None where there are none."""
    given = [name for name in names if name is not None]
    return given or None


def pixels_of(
    files: Mapping[str, Opened], folder: Path, *, size: tuple[int, int] | None, grey: bool
) -> npt.NDArray[np.uint8]:
    """All images as bytes, [n, channels, height, width]; the files are known by their names."""
    library = needed("PIL.Image", extra="images", to=f"read the images in {folder}")
    headers = _each(files, lambda file: _header(library, file))
    if size is None:
        size = _common_size(list(files), headers)
    mode = "L" if grey or all(header.grey for header in headers) else "RGB"
    height, width = size
    channels = len(mode)
    _check_memory(len(files), channels * height * width, folder)
    x = np.empty((len(files), channels, height, width), dtype=np.uint8)
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
            faults.append(f"  {name}: {reason}")
    if faults:
        count = "1 image" if len(faults) == 1 else f"{len(faults)} images"
        more = [f"  and {len(faults) - 5} more"] if len(faults) > 5 else []
        raise DataError(
            "\n".join([f"{count} cannot be read; replace or remove them:", *faults[:5], *more])
        )
    return results


def _stream(file: Opened) -> Path | io.BytesIO:
    return io.BytesIO(file) if isinstance(file, bytes) else file


def _header(library: Any, file: Opened) -> _Header:
    with library.open(_stream(file)) as image:
        if image.mode not in _EIGHT_BITS:
            raise ValueError(
                f"its pixels are of mode {image.mode!r}, not of 8 bits; save it with 8 per channel"
            )
        width, height = image.size
        if image.getexif().get(_ORIENTATION) in _TURNED:
            width, height = height, width
        return _Header(height, width, image.mode in _GREY)


def _decoded(library: Any, file: Opened, mode: str, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """One image, [channels, height, width]."""
    operations = needed("PIL.ImageOps", extra="images", to="turn images upright")
    height, width = size
    with library.open(_stream(file)) as image:
        upright = _opaque(library, operations.exif_transpose(image)).convert(mode)
    if upright.size != (width, height):
        upright = upright.resize((width, height), library.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.asarray(upright, dtype=np.uint8)
    if mode == "L":
        return pixels[None]
    return pixels.transpose(2, 0, 1)


def _opaque(library: Any, image: Any) -> Any:
    """The image on white where it is transparent.

    Under transparent pixels files hold any colour, often black for a whole icon.
    """
    if not image.has_transparency_data:
        return image
    colours = image.convert("RGBA")
    white = library.new("RGBA", colours.size, "white")
    return library.alpha_composite(white, colours)


def _common_size(paths: Sequence[str], headers: Sequence[_Header]) -> tuple[int, int]:
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        if (header.height, header.width) != (first.height, first.width):
            raise DataError(
                f"{paths[0]} has {first.height} x {first.width} pixels, "
                f"{path} {header.height} x {header.width}; "
                "give a size to bring all images to, as in size = 32."
            )
    return first.height, first.width


def _check_memory(count: int, pixels: int, folder: Path) -> None:
    """That the images fit into memory, as bytes and as floats."""
    if 5 * count * pixels > memory():
        raise DataError(
            f"the {count} images in {folder} would take {5 * count * pixels:,} bytes of memory, "
            f"but this machine has {memory():,}; give a smaller size, as in size = 64."
        )


def memory() -> int:
    """How many bytes of memory the machine has; 2**40 where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40
