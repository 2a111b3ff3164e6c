"""A census: what devices tell of data that stay with them, so that a tree can be planned."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import SPLITS, Names, Part, Shards, some
from covey.data.tables.encoding import ColumnFacts, check_words, encoding
from covey.data.tables.files import device_file, device_rows
from covey.data.tables.options import Missing, TableOptions
from covey.data.tables.scaling import Moments, Normalise, scaling
from covey.data.tables.tables import LARGEST
from covey.errors import DataError, reading, shown

FORMAT = "covey-census-2"
_EXAMPLES = 2**28  # of all devices: every node has a number for each of them
_VALUES = 2**24  # of one example
_COLUMNS = 2**12  # of an example without names that is scaled by column
_WORDS = 2**12  # of one column
_LETTERS = 2**8  # of a word, or of the name of a column


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """What one device tells: the shape of an example, how many it has, what each column has."""

    shape: tuple[int, ...]
    counts: Mapping[str, int]
    labels: int
    """How many classes its training examples have; 0 where targets are numbers."""
    number: int
    """That by which its rows are cut into parts, whatever its place in a tree is later."""
    columns: Mapping[str, ColumnFacts]
    """Of its training rows: "x" if they have named columns or are standardised, "y" of targets."""

    @staticmethod
    def of(path: Path, options: TableOptions, number: int, least: int = 1) -> DeviceFacts:
        """The facts of a device's own file; its rows are cut by its number.

        Words that seem to be names or dates are refused, unless they are called categorical. Of a
        column it tells what `least` rows have in common: neither means of fewer, nor rarer words.
        """
        table, goal, _, parts, _ = device_rows(path, options, number)
        rows = parts[0].index.numpy()
        labels = len(np.unique(goal.y[rows]))
        told = {}
        if table.features or options.normalise == "standard":
            told["x"] = ColumnFacts.of(table, rows)
            check_words(told["x"], options)
        if options.regression:
            labels = 0
            moments = Moments.of(goal.y.numpy(), rows)
            told["y"] = ColumnFacts(len(rows), (), moments, {})
        counts = {name: len(part.index) for name, part in zip(SPLITS, parts, strict=True)}
        told = {role: columns.known_of(least) for role, columns in told.items()}
        facts = DeviceFacts(table.x.shape[1:], counts, labels, number, told)
        return DeviceFacts.from_dict(facts.as_dict(), str(path))  # or the server would refuse it

    def as_dict(self) -> dict[str, Any]:
        """The facts as JSON can hold them."""
        return vars(self) | {"columns": _told(self.columns)}

    @staticmethod
    def from_dict(values: Any, source: str) -> DeviceFacts:
        """The inverse of `as_dict`; an error where it is something else."""
        try:
            shape = tuple(values["shape"])
            counts = {split: values["counts"][split] for split in SPLITS}
            numbers = (values["labels"], values["number"])
            told = values["columns"]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{source} is no description of a device: {error!r}; "
                "describe the device's file again."
            ) from None
        for number in (*shape, *counts.values(), *numbers):
            if not _is_count(number):
                raise DataError(
                    f"{source}: {shown(number)} is no number of examples, inputs or labels; "
                    "describe the device's file again."
                )
        if math.prod(shape) > _VALUES:
            raise DataError(f"{source}: an example of {math.prod(shape)} values is too large.")
        return DeviceFacts(shape, counts, *numbers, _heard(told, shape, source))


def _told(columns: Mapping[str, ColumnFacts]) -> dict[str, Any]:
    """Facts of columns as JSON can hold them."""
    out = {}
    for role, facts in columns.items():
        moments = {name: values.flatten().tolist() for name, values in vars(facts.moments).items()}
        out[role] = vars(facts) | {"moments": moments}
    return out


def _heard(told: Any, shape: tuple[int, ...], source: str) -> dict[str, ColumnFacts]:
    """What `_told` gave; an error where it is something else."""
    shapes: dict[str, tuple[int, ...]] = {"x": shape, "y": ()}
    try:
        return {role: _facts(told[role], shapes[role]) for role in told}
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        raise DataError(
            f"{source}: its columns are no counts, means, squares and words, at most {_COLUMNS} "
            f"columns, and {_WORDS} words of {_LETTERS} letters in each; leave some out, "
            "or set normalise to 'unit' or 'none'."
        ) from None


def _facts(values: Any, shape: tuple[int, ...]) -> ColumnFacts:
    """The facts of the columns of examples of this shape; some error where they are none."""
    rows = values["rows"]
    names = tuple(values["names"])
    words = values["words"]
    moments = values["moments"]
    width = math.prod(shape)
    fine = [_is_count(rows), width <= _COLUMNS]
    fine += [len(names) in (0, width), len(set(names)) == len(names)]
    fine += map(_is_short, names)
    ranges = {
        "count": (0, rows),
        "mean": (-LARGEST, LARGEST),
        "squares": (0, rows * (2 * LARGEST) ** 2),
    }
    for moment, (low, high) in ranges.items():
        fine.append(len(moments[moment]) == width)
        fine += [type(value) is float and low <= value <= high for value in moments[moment]]
    for name, counts in words.items():
        fine.append(moments["count"][names.index(name)] == 0)
        fine += [len(counts) <= _WORDS, *map(_is_short, counts)]
        fine += [*map(_is_count, counts.values()), sum(counts.values()) <= rows]
    if not all(fine):
        raise ValueError
    arrays = [np.array(moments[moment]).reshape(shape) for moment in ranges]
    return ColumnFacts(rows, names, Moments(*arrays), words)


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number <= _EXAMPLES


def _is_short(text: Any) -> bool:
    return type(text) is str and len(text) <= _LETTERS


def census(
    path: str,
    *,
    features: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    label: str = "label",
    normalise: Normalise = "standard",
    missing: Missing = "error",
    decimal: str = ".",
    categorical: Sequence[str] = (),
    split: Split = SPLIT,
    order: Sequence[str] = (),
    columns: str = "",
    seed: int = 0,
) -> Shards:
    """Devices whose data stay on their own machines, for `covey deploy`.

    The path is a folder with one description per device, device0.json and so on, as `covey deploy
    describe` writes them, or one file with all of them. `features`, `classes` and `label` say what
    the device's own file holds; without `classes`, labels are numbers to predict. `normalise`,
    `missing`, `categorical`, `decimal` and `split` are those of the data set files, and give the
    same inputs: every node scales, fills gaps and encodes words by what the descriptions together
    say of each column. `normalise` is "standard", "none", "unit" or "half". `columns` is the census
    of a run that goes on, whose scaling and words stay.

    With `order`, devices have these names instead of device0 and so on, and stand in this order.
    Nobody's examples are here, so that only a deployed tree can train on them.
    """
    devices, told = read(Path(path).expanduser(), order, columns)
    examples = sum(sum(facts.counts.values()) for facts in devices)
    if examples > _EXAMPLES:
        raise DataError(f"{path}: {examples} examples, more than {_EXAMPLES}; describe fewer.")
    labels = max(facts.labels for facts in devices)
    if labels > len(classes or ()):
        raise DataError(f"{path}: a device has {labels} classes; name all of them in data.classes.")
    names = tuple(features)
    shape = devices[0].shape
    form = TableOptions(features=names or None, categorical=categorical, missing=missing)
    how = None
    if "x" in told:
        names = told["x"].names or names
        how = encoding(told["x"], form)
    if features and names != form.features:
        raise DataError(f"{path}: devices tell of {some(names)}, not of features; describe again.")
    if normalise == "standard" and "x" in told:
        scale = told["x"].scaling(how)
    elif normalise in ("none", "unit", "half"):
        scale = scaling(normalise, torch.zeros(0), torch.zeros(0))
    else:
        raise DataError(
            f'normalise = "{normalise}": {path} does not tell what this needs of each column; '
            'choose "standard" and describe again, or "none".'
        )
    if how is not None:
        names = how.names
        shape = (len(names),)
    y = torch.zeros(1) if classes is None else torch.arange(len(classes))
    parts: dict[str, Any] = {split: _part(devices, split) for split in SPLITS}
    return Shards(
        torch.zeros(len(y), *shape),
        y,
        **parts,
        classes=None if classes is None else len(classes),
        name="census",
        names=Names(classes=tuple(classes or ()), features=names),
        scaling=scale,
        encoding=how,
        target=told["y"].scaling(None) if "y" in told and normalise != "none" else None,
    )


def own_part(path: Path, described: Shards, device: int, told: DeviceFacts, **form: Any) -> Shards:
    """A device's own examples from its file, in its place among all devices of a census.

    `form` says how the file is read: label, decimal, missing, split and seed.
    """
    own = device_file(
        path,
        features=described.names.features,
        classes=described.names.classes or None,
        scaling=described.scaling,
        encoding=described.encoding,
        number=told.number,
        **form,
    )
    counts = {name: len(own.part(name).index) for name in SPLITS}
    if own.x.shape[1:] != described.x.shape[1:] or counts != told.counts:
        raise DataError(
            f"{path}: examples of shape {tuple(own.x.shape[1:])}, {counts}; the census has "
            f"{tuple(described.x.shape[1:])}, {told.counts}. "
            "Describe it again: covey deploy describe."
        )
    present = torch.zeros(described.devices, dtype=torch.bool)
    present[device] = True
    parts: dict[str, Any] = {}
    for split in SPLITS:
        index = own.part(split).index
        parts[split] = Part.sized(index, present.long() * len(index), present)
    return replace(described, x=own.x, y=own.y, **parts)


def read(
    path: Path, order: Sequence[str] = (), columns: str = ""
) -> tuple[list[DeviceFacts], dict[str, ColumnFacts]]:
    """The facts of all devices, in the order of their numbers or of the names given.

    Then those of their columns together, or of the columns of the census `columns`.
    """
    together = None
    with reading(path, "describe the devices again"):
        if path.is_dir():
            texts = {file.stem: _json(file) for file in sorted(path.glob("*.json"))}
        else:
            whole = _json(path)
            texts = whole["devices"]
            together = whole["columns"]
    if not texts:
        raise DataError(f"{path} has no device; put device0.json and so on there.")
    numbers = {number_of(name): name for name in texts}
    if not order and None in numbers:
        raise DataError(
            f"{path}: {numbers[None]!r} is no device; name files as device17.json, "
            "or give data.order, a list of names."
        )
    names = order or [numbers.get(number, f"device{number}") for number in range(len(texts))]
    missing = sorted(set(names) - set(texts))
    if missing:
        raise DataError(f"{path} lacks the devices {', '.join(missing[:5])}; describe them too.")
    devices = [DeviceFacts.from_dict(texts[name], f"{path}: {name}") for name in names]
    shapes = {facts.shape for facts in devices}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise DataError(f"{path}: examples of shape {first} and {second}; all must have one shape.")
    if columns:
        return devices, read(Path(columns))[1]
    if together is not None:
        return devices, _heard(together, devices[0].shape, str(path))
    if any(facts.columns.keys() != devices[0].columns.keys() for facts in devices):
        raise DataError(f"{path}: not all devices tell of columns; describe them alike.")
    merged = {
        role: ColumnFacts.merged([facts.columns[role] for facts in devices])
        for role in devices[0].columns
    }
    if not all(facts.rows for facts in merged.values()):
        raise DataError(
            f"{path}: every device has fewer training rows than least; "
            "set least lower in the experiment, and describe again."
        )
    return devices, merged


def number_of(name: str, order: Sequence[str] = ()) -> int | None:
    """The number of a device: its place in the order, or that in its name; None without any."""
    if name in order:
        return order.index(name)
    number = re.fullmatch(r"[a-z-]+(\d{1,8})", name)
    return None if number is None else int(number[1])


def text(devices: Sequence[DeviceFacts], columns: Mapping[str, ColumnFacts]) -> str:
    """One file for every node; of columns it has only what all devices together give."""
    bare = [replace(facts, columns={}) for facts in devices]
    facts = {f"device{number}": one.as_dict() for number, one in enumerate(bare)}
    return json.dumps({"format": FORMAT, "devices": facts, "columns": _told(columns)}, indent=1)


def _json(path: Path) -> Any:
    with reading(path, "describe the devices again"):
        return json.loads(path.read_text(encoding="utf-8"))


def _part(devices: Sequence[DeviceFacts], split: str) -> Part:
    """As many examples as each device has; none of them is here.

    In training, as many classes occur as the device says.
    """
    counts = [facts.counts[split] for facts in devices]
    labels = [max(1, facts.labels) for facts in devices]
    pieces = [torch.arange(n) % k for n, k in zip(counts, labels, strict=True)]
    nobody = torch.zeros(len(devices), dtype=torch.bool)
    return Part.sized(torch.cat(pieces), torch.tensor(counts), nobody)
