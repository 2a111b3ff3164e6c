"""The data sets of the papers, dealt to devices.

They are read from official files, or from the Hugging Face hub if there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, Literal, ParamSpec

import torch
from torch import Tensor

from covey.data.partitions.named_partitions import deal
from covey.data.partitions.partition import SPLIT, Split
from covey.data.published import formats, locations
from covey.data.published import hub as hubs
from covey.data.published.catalog import CATALOG, KnownSet, known
from covey.data.published.formats import Arrays
from covey.data.published.locations import Located
from covey.data.shards import Names, Shards
from covey.data.tables.scaling import Normalise, scaled, scaling
from covey.errors import DataError

P = ParamSpec("P")


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


def mnist(
    *,
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
    """MNIST: 70,000 handwritten digits of 28 x 28 grey pixels.

    They are dealt by a `partition` and its options; `split` cuts each device's examples. `data_dir`
    and `hub` are those of `load`. `seed` counts repeats of the partition.
    """
    return _dealt("mnist", locals())


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

    The kind "byclass" has 814,255 digits and letters of 62 classes. All other arguments are those
    of `mnist`.
    """
    return _dealt("emnist", locals())


def _as_mnist(
    function: Callable[P, Shards], name: str, about: str, **defaults: str
) -> Callable[P, Shards]:
    """The function of another set, with the arguments of `mnist` and some defaults of its own."""
    call = signature(function)
    given = call.parameters.values()
    own = [each.replace(default=defaults.get(each.name, each.default)) for each in given]
    call = call.replace(parameters=own)

    @wraps(function)
    def shards(*none: P.args, **options: P.kwargs) -> Shards:
        bound = call.bind(*none, **options)
        bound.apply_defaults()
        return _dealt(name, bound.arguments)

    shards.__name__ = name
    shards.__qualname__ = name
    shards.__doc__ = f"{about}\n\nAll arguments are those of `mnist`."
    vars(shards)["__signature__"] = call
    return shards


fashion_mnist = _as_mnist(
    mnist,
    "fashion_mnist",
    "Fashion-MNIST: 70,000 pieces of clothing of 10 kinds, 28 x 28 grey pixels.",
)
femnist = _as_mnist(
    mnist,
    "femnist",
    "FEMNIST: 800,000 digits and letters of 62 classes by 3,500 writers, one device each.\n\n"
    "The images have 28 x 28 grey pixels, dark on light.",
    partition="writer",
)
cifar10 = _as_mnist(
    mnist,
    "cifar10",
    "CIFAR-10: 60,000 photographs of 10 kinds of things, 32 x 32 pixels in colour.",
)
cifar100 = _as_mnist(
    mnist,
    "cifar100",
    "CIFAR-100: 60,000 photographs of 100 kinds of things, 32 x 32 pixels in colour.",
)


def _dealt(name: str, arguments: Mapping[str, Any]) -> Shards:
    """The set dealt to devices by a partition and its options."""
    options = dict(arguments)
    kind = options.pop("kind", None)
    normalise = options.pop("normalise")
    data_dir = options.pop("data_dir")
    hub = options.pop("hub")
    raw = load(name, data_dir=data_dir, hub=hub, split=kind)
    partition = options["partition"]
    writers = raw.writers if partition == "writer" else None
    parts = deal(raw.y, writers=writers, **options)
    train = parts[0]
    how = scaling(normalise, raw.x, train.index)
    # What no device's examples have a say in is the same for every seed, and held once.
    alike = normalise in ("none", "unit", "half", "paper")
    x = _scaled_once(raw, normalise) if alike else scaled(raw.x, how)
    signatures: tuple[str, ...] = ()
    if writers is not None:
        first = train.index[train.offset[:-1]]
        signatures = tuple(raw.writer_names[writer] for writer in writers[first].tolist())
    whole = name if kind is None else f"{name}-{kind}"
    return Shards(
        x,
        raw.y,
        *parts,
        classes=raw.classes,
        name=f"{whole} {partition}",
        names=Names(devices=signatures, classes=raw.names),
        scaling=how,
    )


@lru_cache(maxsize=1)
def _scaled_once(raw: Raw, normalise: Normalise) -> Tensor:
    nobody = torch.empty(0, dtype=torch.int64)
    return scaled(raw.x, scaling(normalise, raw.x, nobody))


@lru_cache(maxsize=2)
def _load(name: str, root: Path, hub: str | None) -> Raw:
    entry = CATALOG[name]
    located = locations.find(entry, root)
    source = str(located.folder)
    if hub is not None or located.missing:
        arrays, source = _from_hub(entry, root, located, hub)
    elif located.way.format == "leaf":
        # Minutes of reading text: kept as arrays, where the folder may be written to.
        copy = root / f"{entry.name}-leaf.npz"
        texts = repr(hubs.facts(located.files))
        kept = formats.kept(copy, texts)
        arrays = kept or formats.read(entry, located)
        if kept is None:
            with suppress(DataError):
                formats.keep(copy, arrays, texts)
    else:
        arrays = formats.read(entry, located)
    writers = None if arrays.writers is None else torch.from_numpy(arrays.writers)
    x = torch.from_numpy(arrays.x)
    y = torch.from_numpy(arrays.y)
    return Raw(x, y, entry.classes, arrays.train, source, writers, arrays.writer_names)


def _from_hub(
    entry: KnownSet,
    root: Path,
    located: Located,
    hub: str | None,
) -> tuple[Arrays, str]:
    repository = hub or entry.repository
    if repository is None:
        raise DataError(
            f"{_absence(entry, root, located)} No repository on the hub is known to hold it as "
            f"published; choose one with hub. Or {locations.advice(entry, root)}."
        )
    copy = locations.hub_copy(entry, root)
    source = hubs.origin(repository)
    arrays = formats.kept(copy, source)
    if arrays is None:
        try:
            arrays = hubs.fetch(entry, repository)
        except DataError as error:
            raise DataError(
                f"{_absence(entry, root, located)} {error!s} Or {locations.advice(entry, root)}."
            ) from error
        formats.keep(copy, arrays, source)
    return arrays, f"{repository} (hub)"


def _absence(entry: KnownSet, root: Path, located: Located) -> str:
    if located.missing and located.files:
        return f"{entry.name}: {located.folder} lacks {', '.join(located.missing)}."
    if located.missing:
        return f"{entry.name} is not in {root}."
    return f"{entry.name} is requested from the hub."
