"""The data sets of the papers, dealt to devices.

They are read from official files, or from the Hugging Face hub if there are none.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from covey.data import cache, formats, locations
from covey.data import hub as hubs
from covey.data.catalog import CATALOG, KnownSet, known
from covey.data.formats import Arrays
from covey.data.locations import Located
from covey.data.named_partitions import deal
from covey.data.partition import SPLIT, Split
from covey.data.pixels import scaled
from covey.data.scaling import Normalise, scaling
from covey.data.shards import Names, Part, Shards
from covey.errors import DataError


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as published: all its images, those of the official training part first."""

    x: Tensor  # [n, channels, height, width] uint8
    y: Tensor  # [n] int64
    names: tuple[str, ...]  # of the classes
    train: int  # the first so many are the official training part
    source: str  # where they were read from
    writers: Tensor | None = None  # [n] int64, positions in writer_names
    writer_names: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """How many classes there are, those without an example here included."""
        return len(self.names)


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    hub: str | None = None,
    split: str | None = None,
) -> Raw:
    """The data set of that name.

    A second call in the same process returns the same tensors, which must not be changed. It is
    read from official files below `data_dir` (else COVEY_DATA, else the user's data folder). If
    they are not there, or `hub` names a repository or a folder laid out like one, it comes from the
    Hugging Face hub and is kept in the data folder. `split` is "digits" or "byclass" for EMNIST.
    """
    return _load(known(name, split).name, locations.folder(data_dir).absolute(), hub)


class PublishedSet(Protocol):
    """A function that deals a published data set to devices."""

    def __call__(
        self,
        *,
        partition: str = ...,
        devices: int | None = None,
        labels: int | None = None,
        alpha: float | None = None,
        normalise: Normalise = "unit",
        split: Split = SPLIT,
        data_dir: str | None = None,
        hub: str | None = None,
        seed: int = 0,
    ) -> Shards:
        """The shards: `partition` by name, with its options; `split` cuts each device's examples.

        `data_dir` and `hub` are those of `load`. `seed` counts repeats of the partition.
        """
        ...


def _published(name: str, about: str, *, usual: str = "labels") -> PublishedSet:
    """The function of one set; `usual` is its default partition."""

    def shards(
        *,
        partition: str = usual,
        devices: int | None = None,
        labels: int | None = None,
        alpha: float | None = None,
        normalise: Normalise = "unit",
        split: Split = SPLIT,
        data_dir: str | None = None,
        hub: str | None = None,
        seed: int = 0,
    ) -> Shards:
        dealing = _Dealing(partition, devices, labels, alpha, split, seed)
        return _shards(load(name, data_dir=data_dir, hub=hub), name, dealing, normalise)

    shards.__name__ = name
    shards.__qualname__ = name
    shards.__doc__ = about
    return shards


mnist = _published("mnist", "MNIST: 70,000 handwritten digits of 28 x 28 grey pixels.")
fashion_mnist = _published(
    "fashion_mnist",
    "Fashion-MNIST: 70,000 pieces of clothing of 10 kinds, 28 x 28 grey pixels.",
)
femnist = _published(
    "femnist",
    "FEMNIST: 800,000 digits and letters of 62 classes by 3,500 writers, one device each.\n\n"
    "The images have 28 x 28 grey pixels, dark on light.",
    usual="writer",
)
cifar10 = _published(
    "cifar10",
    "CIFAR-10: 60,000 photographs of 10 kinds of things, 32 x 32 pixels in colour.",
)
cifar100 = _published(
    "cifar100",
    "CIFAR-100: 60,000 photographs of 100 kinds of things, 32 x 32 pixels in colour.",
)


def emnist(
    *,
    kind: Literal["digits", "byclass"] = "digits",
    partition: str = "labels",
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    normalise: Normalise = "unit",
    split: Split = SPLIT,
    data_dir: str | None = None,
    hub: str | None = None,
    seed: int = 0,
) -> Shards:
    """EMNIST: 280,000 handwritten digits of 28 x 28 grey pixels.

    The kind "byclass" has 814,255 digits and letters of 62 classes.
    """
    dealing = _Dealing(partition, devices, labels, alpha, split, seed)
    raw = load("emnist", data_dir=data_dir, hub=hub, split=kind)
    return _shards(raw, f"emnist-{kind}", dealing, normalise)


@dataclass(frozen=True)
class _Dealing:
    """Who gets which example."""

    partition: str
    devices: int | None
    labels: int | None
    alpha: float | None
    split: Split
    seed: int

    def parts(self, raw: Raw) -> tuple[Part, Part, Part]:
        """Train, validation and test."""
        writers = None
        if self.partition == "writer":
            writers = raw.writers
        return deal(raw.y, **vars(self), writers=writers)


def _shards(raw: Raw, name: str, dealing: _Dealing, normalise: Normalise) -> Shards:
    train, validation, test = dealing.parts(raw)
    how = scaling(normalise, raw.x, train.index)
    # What no device's examples have a say in is the same for every seed, and held once.
    if normalise in ("none", "unit", "half", "paper"):
        x = _scaled_once(raw, normalise)
    else:
        x = scaled(raw.x, how)
    writers: tuple[str, ...] = ()
    if dealing.partition == "writer":
        writers = _signatures(raw, train)
    return Shards(
        x,
        raw.y,
        train,
        validation,
        test,
        classes=raw.classes,
        name=f"{name} {dealing.partition}",
        names=Names(devices=writers, classes=raw.names),
        scaling=how,
    )


def _signatures(raw: Raw, train: Part) -> tuple[str, ...]:
    """The writer each device stands for."""
    assert raw.writers is not None  # or nothing would have been dealt by writer
    first = train.index[train.offset[:-1]]
    return tuple(raw.writer_names[writer] for writer in raw.writers[first].tolist())


@lru_cache(maxsize=1)
def _scaled_once(raw: Raw, normalise: Normalise) -> Tensor:
    return scaled(raw.x, scaling(normalise, raw.x, torch.empty(0, dtype=torch.int64)))


@lru_cache(maxsize=2)
def _load(name: str, root: Path, hub: str | None) -> Raw:
    entry = CATALOG[name]
    located = locations.find(entry, root)
    if hub is None and not located.missing:
        arrays = _from_files(entry, root, located)
        source = str(located.folder)
    else:
        arrays, source = _from_hub(entry, root, located, hub)
    writers = None
    if arrays.writers is not None:
        writers = torch.from_numpy(arrays.writers)
    x = torch.from_numpy(arrays.x)
    y = torch.from_numpy(arrays.y)
    return Raw(x, y, entry.classes, arrays.train, source, writers, arrays.writer_names)


def _from_files(entry: KnownSet, root: Path, located: Located) -> Arrays:
    if located.way.format != "leaf":
        return formats.read(entry, located)
    # Minutes of reading text: kept as arrays, where the folder may be written to.
    copy = root / f"{entry.name}-leaf.npz"
    source = repr(
        [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in located.files]
    )
    arrays = cache.read(copy, source)
    if arrays is None:
        arrays = formats.read(entry, located)
        with suppress(DataError):
            cache.write(copy, arrays, source)
    return arrays


def _from_hub(entry: KnownSet, root: Path, located: Located, hub: str | None) -> tuple[Arrays, str]:
    repository = hub or entry.repository
    if repository is None:
        trouble = "No repository on the hub is known to hold it as published; choose one with hub."
        raise DataError(
            f"{_absence(entry, root, located)} {trouble} Or {locations.advice(entry, root)}."
        )
    copy = locations.hub_copy(entry, root)
    source = hubs.origin(repository)
    arrays = cache.read(copy, source)
    if arrays is None:
        try:
            arrays = hubs.fetch(entry, repository)
        except DataError as error:
            raise DataError(
                f"{_absence(entry, root, located)} {error!s} Or {locations.advice(entry, root)}."
            ) from error
        cache.write(copy, arrays, source)
    return arrays, f"{repository} (hub)"


def _absence(entry: KnownSet, root: Path, located: Located) -> str:
    if located.missing and located.files:
        return f"{entry.name}: {located.folder} lacks {', '.join(located.missing)}."
    if located.missing:
        return f"{entry.name} is not in {root}."
    return f"{entry.name} is requested from the hub."
