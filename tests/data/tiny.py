"""Tiny data sets in the very formats in which the real ones are published."""

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.published import catalog

Bytes = npt.NDArray[np.uint8]
Parts = list[tuple[Bytes, Bytes]]
MNIST = catalog.known("mnist").ways[0].files


def examples(*counts: int, shape: tuple[int, ...] = (28, 28), classes: int = 10) -> Parts:
    """Random images and labels, a pair for each count; every class that there is room for occurs."""
    rng = np.random.default_rng(len(counts))
    labels = [(np.arange(n) % classes).astype(np.uint8) for n in counts]
    return [(rng.integers(0, 256, (len(y), *shape), dtype=np.uint8), y) for y in labels]


def labels_of(counts: list[int]) -> npt.NDArray[np.int64]:
    """Labels in order, so many of each."""
    return np.repeat(np.arange(len(counts)), counts)


def idx(array: Bytes) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_idx(
    folder: Path,
    parts: Parts,
    names: tuple[str, ...] = MNIST,
    *,
    packed: bool = True,
    turned: bool = False,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in idx_files(parts, names, turned=turned).items():
        if packed:
            (folder / name).write_bytes(data)
        else:
            (folder / name.removesuffix(".gz")).write_bytes(gzip.decompress(data))


def idx_files(parts: Parts, names: tuple[str, ...], *, turned: bool = False) -> dict[str, bytes]:
    arrays = [array for x, y in parts for array in (x.transpose(0, 2, 1) if turned else x, y)]
    return {name: gzip.compress(idx(array)) for name, array in zip(names, arrays, strict=True)}


def cifar_binary(x: Bytes, *labels: Bytes) -> bytes:
    return np.concatenate([*(y[:, None] for y in labels), x.reshape(len(x), -1)], axis=1).tobytes()


def cifar_python(x: Bytes, **labels: Bytes) -> bytes:
    """As Python 2 would read it back, which is how the official files were written."""
    batch: dict[str, Any] = {name: [int(label) for label in y] for name, y in labels.items()}
    return pickle.dumps(
        {**batch, "data": x.reshape(len(x), -1), "filenames": ["a.png"] * len(x)}, protocol=2
    )


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def write_tar(path: Path, files: dict[str, bytes], inside: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in reversed(files.items()):  # the official archives are not in order either
            entry = tarfile.TarInfo(f"{inside}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def write_leaf(folder: Path, files: list[dict[str, tuple[Bytes, Bytes]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, users in enumerate(files):
        data = {
            user: {"x": (x.reshape(len(x), -1) / 255).tolist(), "y": y.tolist()}
            for user, (x, y) in users.items()
        }
        table = {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": data,
        }
        (folder / f"all_data_{number}.json").write_text(json.dumps(table))
