"""A census: what devices tell of data that stay with them, so that a tree can be planned."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.data.files import device_file
from covey.data.partition import SPLIT, Split
from covey.data.shards import SPLITS, Names, Part, Shards, some
from covey.errors import DataError, shown

FORMAT = "covey-census-1"
_EXAMPLES = 2**28  # of all devices: every node has a number for each of them
_VALUES = 2**24  # of one example


@dataclass(frozen=True)
class DeviceFacts:
    """What one device tells: the shape of an example, how many it has, how many labels occur."""

    shape: tuple[int, ...]
    counts: Mapping[str, int]
    labels: int
    """How many classes its training examples have; 0 where targets are numbers."""

    @staticmethod
    def of(shards: Shards) -> DeviceFacts:
        """The facts of a device's own data."""
        counts = {split: int(shards.part(split).counts().sum()) for split in SPLITS}
        labels = 0
        if shards.classes is not None:
            labels = int((shards.labels() > 0).sum())
        return DeviceFacts(tuple(shards.x.shape[1:]), counts, labels)

    def as_dict(self) -> dict[str, Any]:
        """The facts as JSON can hold them."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Any, source: str) -> DeviceFacts:
        """The inverse of `as_dict`; an error where it is something else."""
        try:
            shape = tuple(values["shape"])
            counts = {split: values["counts"][split] for split in SPLITS}
            labels = values["labels"]
        except (KeyError, TypeError) as error:
            raise DataError(f"{source} is no description of a device: {error!r}.") from None
        for number in (*shape, *counts.values(), labels):
            if type(number) is not int or not 0 <= number <= _EXAMPLES:
                what = f"{shown(number)} is no number of examples, inputs or labels"
                raise DataError(f"{source}: {what}; describe the device's file again.")
        if math.prod(shape) > _VALUES:
            raise DataError(f"{source}: an example of {math.prod(shape)} values is too large.")
        return DeviceFacts(shape, counts, labels)


def census(
    path: str,
    *,
    features: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    label: str = "label",
    decimal: str = ".",
    split: Split = SPLIT,
    order: Sequence[str] = (),
    seed: int = 0,
) -> Shards:
    """Devices whose data stay on their own machines, for `covey deploy`.

    The path is a folder with one description per device, device0.json and so on, as `covey deploy
    describe` writes them, or one file with all of them. `features`, `classes` and `label` say what
    the device's own file holds; without `classes`, labels are numbers to predict. Values are taken
    as they are: scale them beforehand. With `order`, devices have these names instead of device0
    and so on, and stand in this order. Nobody's examples are here, so that only a deployed tree
    can train on them.
    """
    devices = read(Path(path).expanduser(), order)
    examples = sum(sum(facts.counts.values()) for facts in devices)
    if examples > _EXAMPLES:
        raise DataError(f"{path}: {examples} examples, more than {_EXAMPLES}; describe fewer.")
    if classes is None and any(facts.labels for facts in devices):
        raise DataError(f"{path}: devices have classes, and data.classes is not given; name them.")
    shapes = {facts.shape for facts in devices}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise DataError(f"{path}: examples of shape {first} and {second}; all must have one shape.")
    kinds = 1
    if classes is not None:
        kinds = len(classes)
        if max(facts.labels for facts in devices) > kinds:
            raise DataError(f"{path}: a device has more labels than the {kinds} of data.classes.")
    y: Tensor = torch.zeros(1)
    if classes is not None:
        y = torch.arange(kinds)
    train, validation, test = (_part(devices, name) for name in SPLITS)
    return Shards(
        torch.zeros(len(y), *devices[0].shape),
        y,
        train,
        validation,
        test,
        classes=None if classes is None else kinds,
        name="census",
        names=Names(classes=tuple(classes or ()), features=tuple(features)),
    )


def own_part(
    path: Path,
    described: Shards,
    device: int,
    *,
    label: str,
    decimal: str,
    split: Split,
    seed: int,
) -> Shards:
    """A device's own examples from its file, in its place among all devices of a census."""
    own = device_shards(
        path,
        features=described.names.features,
        classes=described.names.classes or None,
        label=label,
        decimal=decimal,
        split=split,
        seed=seed,
    )
    facts = DeviceFacts.of(own)
    told = {name: int(described.part(name).counts()[device]) for name in SPLITS}
    if facts.shape != tuple(described.x.shape[1:]) or facts.counts != told:
        have = f"examples of shape {facts.shape}, {facts.counts}"
        want = f"the census has {tuple(described.x.shape[1:])}, {told}"
        raise DataError(f"{path}: {have}; {want}. Describe it again: covey deploy describe.")
    present = torch.zeros(described.devices, dtype=torch.bool)
    present[device] = True
    train, validation, test = (_placed(own.part(name), device, present) for name in SPLITS)
    return replace(described, x=own.x, y=own.y, train=train, validation=validation, test=test)


def device_shards(
    path: Path,
    *,
    features: Sequence[str],
    classes: Sequence[str] | None,
    label: str,
    decimal: str,
    split: Split,
    seed: int,
) -> Shards:
    """The examples of one device, from its file."""
    return device_file(
        path,
        features=features,
        classes=classes,
        scaling=None,
        label=label,
        decimal=decimal,
        split=split,
        seed=seed,
    )


def read(path: Path, order: Sequence[str] = ()) -> list[DeviceFacts]:
    """The facts of all devices, in the order of their numbers, or in that of the names given."""
    try:
        if path.is_dir():
            texts = {file.stem: _json(file) for file in sorted(path.glob("*.json"))}
        else:
            texts = _json(path)["devices"]
    except (OSError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise DataError(f"cannot read the census {path}: {error!r}.") from None
    if not texts:
        raise DataError(f"{path} has no device; put device0.json and so on there.")
    if order:
        return _ordered(path, texts, order)
    numbers = {}
    for name, values in texts.items():
        number = re.fullmatch(r"[a-z-]+(\d{1,9})", name)
        if number is None:
            fix = "name files as device17.json, or give data.order, a list of names"
            raise DataError(f"{path}: {name!r} is no device; {fix}.")
        numbers[int(number[1])] = DeviceFacts.from_dict(values, f"{path}: {name}")
    missing = sorted(set(range(max(numbers, default=0) + 1)) - set(numbers))
    if missing:
        raise DataError(f"{path} lacks the devices {some(missing)}; describe them too.")
    return [numbers[number] for number in sorted(numbers)]


def _ordered(path: Path, texts: Mapping[str, Any], order: Sequence[str]) -> list[DeviceFacts]:
    """The facts of the devices that are named, in this order; others are no part of the tree."""
    missing = sorted(set(order) - set(texts))
    if missing:
        raise DataError(f"{path} lacks the devices {', '.join(missing[:5])}; describe them too.")
    return [DeviceFacts.from_dict(texts[name], f"{path}: {name}") for name in order]


def text(devices: Sequence[DeviceFacts]) -> str:
    """One file with the facts of all devices."""
    facts = {f"device{number}": one.as_dict() for number, one in enumerate(devices)}
    return json.dumps({"format": FORMAT, "devices": facts}, indent=1) + "\n"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}.") from None


def _part(devices: Sequence[DeviceFacts], split: str) -> Part:
    """As many examples as each device has; none of them is here.

    In training, as many classes occur as the device says.
    """
    counts = torch.tensor([facts.counts[split] for facts in devices])
    offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    pieces = [torch.arange(facts.counts[split]) % max(1, facts.labels) for facts in devices]
    return Part(torch.cat(pieces), offset, torch.zeros(len(devices), dtype=torch.bool))


def _placed(part: Part, device: int, present: Tensor) -> Part:
    """The part of one device, in its place among all."""
    counts = torch.zeros(len(present), dtype=torch.int64)
    counts[device] = len(part.index)
    offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Part(part.index, offset, present)
