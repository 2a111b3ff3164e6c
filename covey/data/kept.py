"""Examples kept as one .npz file, so that what took long to read or fetch is there at once the next time."""

from __future__ import annotations

import os
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.formats import Arrays, named
from covey.errors import DataError


def write(path: Path, arrays: Arrays, source: str) -> None:
    """Keep these examples and where they came from; the file is replaced whole or not at all."""
    part = path.parent / f".{path.name}.{uuid.uuid4().hex}.part"  # two processes may fetch the same set at once
    who = arrays.writers if arrays.writers is not None else np.empty(0, dtype=np.int64)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "xb") as file:
            np.savez(
                file, x=arrays.x, y=arrays.y, train=arrays.train, writers=who,
                writer_names=np.array(arrays.writer_names, dtype=str), source=source,
            )  # fmt: skip
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"cannot keep the data in {path}: {error}; name a folder to write to by data_dir or COVEY_DATA."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def read(path: Path, source: str | None = None) -> Arrays | None:
    """The examples kept there; None where there are none, or they came from another source than this."""
    if not path.is_file():
        return None
    with named(path, "delete it"), zipfile.ZipFile(path) as archive:
        if source is not None and str(_entry(archive, "source")) != source:
            return None
        who, names = _entry(archive, "writers"), _entry(archive, "writer_names")
        x, y, train = (_entry(archive, name) for name in ("x", "y", "train"))
        return Arrays(x, y, int(train), who if len(who) else None, tuple(names.tolist()))


def _entry(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)
