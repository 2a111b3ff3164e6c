"""Examples kept as one .npz file, for the next time that they are needed."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np

from covey.data import npz
from covey.data.formats import Arrays, named
from covey.errors import DataError


def write(path: Path, arrays: Arrays, source: str) -> None:
    """Keep these examples and where they came from; the file is replaced whole or not at all."""
    # Two processes may fetch the same set at once.
    part = path.parent / f".{path.name}.{uuid.uuid4().hex}.part"
    writers = np.empty(0, dtype=np.int64)
    if arrays.writers is not None:
        writers = arrays.writers
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "xb") as file:
            np.savez(
                file,
                x=arrays.x,
                y=arrays.y,
                train=arrays.train,
                writers=writers,
                writer_names=np.array(arrays.writer_names, dtype=str),
                source=source,
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"cannot keep the data in {path}: {error}; "
            "choose a writable folder with data_dir or COVEY_DATA."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def read(path: Path, source: str | None = None) -> Arrays | None:
    """The examples in a file of the cache.

    None where the file is missing, or its examples came from another source.
    """
    if not path.is_file():
        return None
    with named(path, "delete it"):
        if source is not None and str(npz.arrays(path, ["source"])["source"]) != source:
            return None
        kept = npz.arrays(path, ["x", "y", "train", "writers", "writer_names"])
        _check(kept)
        who = kept["writers"] if len(kept["writers"]) else None
        names = tuple(kept["writer_names"].tolist())
        return Arrays(kept["x"], kept["y"], int(kept["train"]), who, names)


def _check(kept: dict[str, npz.Array]) -> None:
    """Raise unless these arrays are such as `write` keeps."""
    x = kept["x"]
    y = kept["y"]
    who = kept["writers"]
    if x.dtype != np.uint8 or x.ndim != 4:
        raise ValueError(f"x is {x.dtype} of shape {x.shape}, not bytes with four axes")
    for name, array in (("y", y), ("writers", who)):
        if array.dtype != np.int64 or array.shape not in (x.shape[:1], (0,)):
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape} for {len(x)} images")
    if len(y) != len(x) or not 0 <= int(kept["train"]) <= len(x):
        raise ValueError(f"{len(x)} images, {len(y)} labels, {kept['train']} of them to train on")
    if len(who) and not (who.min() >= 0 and who.max() < len(kept["writer_names"])):
        raise ValueError("it names writers that it does not list")
