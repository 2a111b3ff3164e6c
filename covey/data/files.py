"""One's own data from files: a table with a device column, or a folder with one file per device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.data import named_partitions, partition
from covey.data.encoding import ColumnFacts, Encoding, encoding
from covey.data.folder import check_alone, folder_table
from covey.data.labels import Targets, classes_of, doubt, several, targets
from covey.data.partition import SPLIT, Numbers, Split
from covey.data.pixels import scaled
from covey.data.scaling import Normalise, Scaling, scaling
from covey.data.shards import (
    SPLITS,
    Names,
    Part,
    Shards,
    rows_by_device,
    some,
    standard_targets,
)
from covey.data.table_readers import read, stem
from covey.data.tables import (
    GAPS_HINT,
    Columns,
    Faults,
    Missing,
    Table,
    check_named,
    is_missing,
    lacks_name,
)
from covey.errors import DataError, meant, shown


def files(
    path: str,
    *,
    label: str | Sequence[str] = "label",
    device: str = "device",
    edge: str = "edge",
    part: str = "split",
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    normalise: Normalise = "standard",
    tokens: bool = False,
    missing: Missing = "error",
    decimal: str = ".",
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    partition: str | None = None,
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """Shards from the user's `.csv`, `.tsv`, `.parquet` or `.npz` files.

    The path is a table with a device column, or a folder with one file per device. In a table,
    `device`, `edge`, `part` and `label` name columns; edge and part (train, validation or test) may
    be missing, and all other columns are features unless `features` lists them. In a folder, files
    are named after devices and subfolders, if there are any, after edges. An `.npz` file has arrays
    x and y, or train_x, train_y, test_x and so on; as a table it has x, y and device. Devices are
    ordered by edge. Without a part column, `split` cuts each device's rows.

    Labels that are whole numbers or text are classes, those that occur unless `classes` lists them;
    so are 0.0 and 1.0. With other decimal points, or with `regression`, they are targets. An
    experiment file that names `loss = "squared_error"` asks for `regression` by itself. More than
    50 whole numbers, or more than 10 with fewer than 20 rows each, are classes only where the loss
    of the experiment is named. With `tokens`, features are token ids, whole numbers from 0 on that
    are not scaled.

    Features are scaled as `normalise` says, "standard" for mean 0 and deviation 1 over all devices'
    training rows. Targets stay as they are, and `target` says how training standardises them;
    "none" scales neither.

    `label` may list several columns. If all hold 0 and 1, they are yes-or-no labels, and the loss
    of an experiment is "bce" by default. Else they are numbers to predict.

    Columns of words become one column of zeros and ones per word of the training rows; so do those
    that `categorical` names. Columns of `exclude` are not read. `missing` says what becomes of an
    empty cell, and of one that is NA, NaN, null, ? or -: "error" refuses the row, "drop" leaves it
    out, "mean" takes the mean of the column over all devices' training rows, and "indicator" also
    adds a column that is 1 where a value is missing. Unless it is "error", rows without a label or
    a device are left out.

    Commas, semicolons, tabs or bars separate the cells of a `.csv` file, which may be packed
    (`.csv.gz`, `.csv.xz`, `.csv.bz2` or `.csv.zip`). With `decimal = ","`, numbers have a decimal
    comma.

    A table without a device column is dealt to `devices` by a `partition`, as the named data sets
    are: "iid", "labels" (`labels` of them per device), "dirichlet" (`alpha`) or another of
    `covey list partitions`. The devices then have numbers instead of names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder, "pumps.csv")
    ...     homes = ("a,z", "b,y", "c,z")
    ...     rows = [f"{home},{row}" for home in homes for row in ("1,ok", "9,hot")]
    ...     _ = table.write_text("\\n".join(["device,edge,heat,label", *rows]))
    ...     shards = files(str(table), split=(1, 0, 0))
    >>> shards.names.devices, shards.names.edges, shards.edges
    (('a', 'c', 'b'), ('z', 'y'), (2, 1))
    >>> shards.names.classes, shards.y.tolist(), shards.x.flatten().tolist()
    (('hot', 'ok'), [1, 0, 1, 0, 1, 0], [-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    """
    columns = Columns.of_labels(
        label,
        device,
        edge,
        part,
        _tuple(features),
        exclude=tuple(exclude),
        categorical=tuple(categorical),
        missing=missing,
        decimal=decimal,
    )
    where = Path(path).expanduser()
    faults = Faults()
    check_options(columns, classes, regression=regression)
    deal = dealing(partition, devices=devices, labels=labels, alpha=alpha)
    if is_folder(where) and deal:
        raise DataError(
            f"partition = {partition!r}, but {where} is a folder with a file per device; "
            "leave out partition, or give one table."
        )
    if is_folder(where):
        table = folder_table(where, columns, faults)
    else:
        table = _table(where, columns, faults, dealt=bool(deal))
    return table_shards(
        table,
        columns,
        faults,
        name=where.resolve().name,
        deal=deal,
        classes=classes,
        regression=regression,
        normalise=normalise,
        tokens=tokens,
        split=split,
        seed=seed,
    )


def table_shards(
    table: Table,
    columns: Columns,
    faults: Faults,
    *,
    name: str,
    deal: dict[str, Any],
    classes: Sequence[str] | None = None,
    regression: bool = False,
    normalise: Normalise = "standard",
    tokens: bool = False,
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """The shards of a table that has been read; options are those of `files`.

    `deal` is what `dealing` gives.
    """
    faults.refuse(_ADVICE)
    table, notes = with_values(table, columns)
    goal = _goal(table, classes, faults, regression=regression)
    homes, parts = _dealt(table, goal, deal, split=split, seed=seed)
    parts, more = _kept_in_training(table, goal, parts)
    notes += more
    unclear = ""
    if classes is None and table.features and not tokens:  # the type of an array tells
        unclear = doubt(columns.label, goal.names, len(table))
    if unclear:
        faults.hints[_NUMBERS_HINT] = None
    _check_seen(table, goal, parts, faults)
    scale = None
    count = None
    how = None
    if tokens:
        _check_unscaled(normalise)
        _check_whole(table)
        x = token_ids(torch.from_numpy(table.x))
        count = max(int(x.max()) + 1, 1)
    else:
        facts = None
        if table.features or normalise == "standard":
            own = [ColumnFacts.of(table, rows) for rows in rows_by_device(parts[0])]
            facts = ColumnFacts.merged(own)
            how = encoding(facts, columns)
        if how is not None:
            table = how.applied(table)
            notes += how.indicator_notes()
        notes += table.notes
        if facts is not None and normalise == "standard":
            scale = facts.scaling(how)
        else:
            scale = scaling(normalise, torch.from_numpy(table.x), parts[0].index)
            scale = scale if how is None else how.unscaled(scale)
        x = _inputs(table, scale)
    target = None
    if goal.classes is None and not goal.yes_no and normalise != "none":
        target = standard_targets(goal.y, parts[0])
    names = Names(homes.devices, homes.edges, goal.names, table.features, labels=goal.labels)
    return Shards(
        x,
        goal.y,
        *parts,
        classes=goal.classes,
        name=name,
        edges=homes.sizes,
        names=names,
        scaling=scale,
        tokens=count,
        encoding=how,
        notes=notes,
        yes_no=goal.yes_no,
        doubt=unclear,
        target=target,
    )


def device_file(
    path: Path,
    *,
    features: Sequence[str],
    classes: Sequence[str] | int | None,
    scaling: Scaling | None,
    shape: Sequence[int] | None = None,
    label: str | Sequence[str] = "label",
    device: str | None = None,
    yes_no: bool = False,
    tokens: int | None = None,
    encoding: Encoding | None = None,
    target: Scaling | None = None,
    decimal: str = ".",
    missing: Missing = "error",
    split: Split = SPLIT,
    seed: int = 0,
    number: int = 0,
) -> Shards:
    """The shards of one new device, from its file.

    Features, classes, scalings and encoding are those of the data that the run was trained on.
    `classes` are the names or the number of classes, None for regression. `device` names a column
    that may name several devices; without it, the file is that of one. `yes_no` says that several
    label columns hold 0 and 1. An `.npz` file's x is taken as it is, or brought into the `shape` of
    one example. `missing` counts where the encoding fills no gaps. `number` is that of the device
    whose rows are cut so.
    """
    columns = Columns.of_labels(
        label, features=_tuple(features) or None, decimal=decimal, text=(), missing=missing
    )
    columns = replace(columns, device=device or columns.device)
    if path.suffix.lower() == ".npz":
        encoding = None  # an array x has the columns of inputs
    if encoding is not None:
        missing = missing if encoding.missing == "error" else encoding.missing
        columns = replace(columns, features=encoding.features, text=encoding.text, missing=missing)
    numbered = isinstance(classes, int)
    if isinstance(classes, int):
        classes = [str(label) for label in range(classes)]
    regression = classes is None and not yes_no
    table, goal, homes, parts, notes = device_rows(
        path,
        columns,
        classes,
        regression,
        split=split,
        seed=seed,
        number=number,
        several=device is not None,
    )
    if encoding is not None:
        table = encoding.applied(table)
    if shape is not None:
        table = _shaped(table, tuple(shape), path)
    _check_form(table, features, scaling, path)
    names = Names(homes.devices, classes=goal.names, features=tuple(features), labels=goal.labels)
    if numbered:
        names = replace(names, classes=())
    if tokens is None:
        x = _inputs(table, scaling)
    else:
        x = token_ids(torch.from_numpy(table.x))
    return Shards(
        x,
        goal.y,
        *parts,
        classes=goal.classes,
        name=stem(path),
        names=names,
        scaling=scaling,
        tokens=tokens,
        encoding=encoding,
        notes=notes + table.notes,
        yes_no=goal.yes_no,
        target=target,
    )


def device_rows(
    path: Path,
    columns: Columns,
    classes: Sequence[str] | None,
    regression: bool,
    *,
    split: Split,
    seed: int,
    number: int,
    several: bool = False,
) -> tuple[Table, Targets, _Homes, tuple[Part, Part, Part], tuple[str, ...]]:
    """The rows of a device's file, their targets, homes and parts, and notes of rows left out.

    `number` is that of the device. With `several`, the file may name more than one.
    """
    faults = Faults()
    table = read(path, columns, faults)
    several = several and len(set(table.device or ())) > 1
    if not several:
        check_alone(table, columns, path)
    if columns.text is not None:
        faults.hints.clear()  # the run has decided what becomes of words and gaps
    faults.refuse("correct or remove them")
    table, notes = with_values(table, columns)
    goal = _goal(table, classes, faults, regression=regression)
    homes = _Homes([np.arange(len(table))], (stem(path),), first=number)
    if several:
        homes = _homes(replace(table, edge=None))
    return table, goal, homes, _parts(table, homes, split=split, seed=seed), notes


def with_values(table: Table, columns: Columns) -> tuple[Table, tuple[str, ...]]:
    """The rows that have what they need, and a note that counts the others.

    That is a label and a device and, where gaps are dropped, every feature.
    """
    if columns.missing == "error":
        return table, ()
    if columns.missing != "drop" and not table.features and np.isnan(table.x).any():
        raise DataError(
            f'missing = "{columns.missing}" needs columns with names, which an array x has not; '
            'fill its NaN, or set missing to "drop".'
        )
    lacking = _lacking(table, columns)
    lost = np.zeros(len(table), dtype=bool)
    for rows in lacking.values():
        lost |= rows
    if not lost.any():
        return table, ()
    counts = [f"{name} in {int(rows.sum())}" for name, rows in lacking.items() if rows.any()]
    told = f"{int(lost.sum())} of {len(table)} rows are left out: {some(counts)} missing."
    if lost.all():
        raise DataError(f"{told} No row remains; leave out the columns that are empty.")
    return table.taken(np.flatnonzero(~lost)), (told,)


def _lacking(table: Table, columns: Columns) -> dict[str, npt.NDArray[np.bool_]]:
    """The rows that lack a value they need, by column."""
    lacking = {}
    needed = [(columns.label, table.label), (columns.device, table.device)]
    needed += [(name, table.targets.get(name)) for name in columns.more_labels]
    for name, cells in needed:
        if cells:
            lacking[name] = np.array([lacks_name(cell) for cell in cells])
    if columns.missing != "drop" or table.x.dtype.kind != "f":
        return lacking
    if not table.features:
        lacking["x"] = np.isnan(table.x.reshape(len(table), -1)).any(axis=1)
    for at, name in enumerate(table.features):
        if name in table.words:
            lacking[name] = np.array([is_missing(word) for word in table.words[name]])
        else:
            lacking[name] = np.isnan(table.x[:, at])
    return lacking


def _check_whole(table: Table) -> None:
    if table.words or np.isnan(table.x).any():
        name = next(iter(table.words), "x")
        raise DataError(
            f"tokens = true, but {name!r} has words or missing values; "
            "give token ids, whole numbers from 0 on."
        )


def _shaped(table: Table, shape: tuple[int, ...], path: Path) -> Table:
    have = table.x.shape[1:]
    if math.prod(have) != math.prod(shape):
        raise DataError(
            f"{path} has examples of shape {have}, but the run was trained on {shape}; "
            "give as many numbers in each."
        )
    return replace(table, x=table.x.reshape(len(table.x), *shape))


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _inputs(table: Table, scale: Scaling | None) -> Tensor:
    """The features, scaled in the type they were read in.

    A time in seconds since 1970 does not fit into a float32 before it is scaled.
    """
    values = torch.from_numpy(table.x)
    if scale is None:
        return values.to(torch.float32)
    if values.dtype == torch.uint8:
        return scaled(values, scale)
    return scale(values).to(torch.float32)


def token_ids(values: Tensor) -> Tensor:
    """Numbers as token ids, int64; a fraction is refused."""
    whole = values.long()
    wrong = (whole != values).reshape(len(values), -1).any(dim=1).nonzero().flatten().tolist()
    if wrong:
        bad = values[wrong[0]]
        value = float(bad[bad != whole[wrong[0]]][0])
        raise DataError(
            f"{len(wrong)} examples have fractions, the first is {value:g} in example {wrong[0]}; "
            "token ids are whole numbers, so leave out tokens or correct them."
        )
    return whole


def _check_unscaled(normalise: Normalise) -> None:
    """Refuse a scaling of token ids; "standard" is what a file has by default."""
    if normalise not in ("standard", "none"):
        raise DataError(
            f"tokens = true and normalise = {normalise!r}: token ids are not scaled; "
            "leave out one of them."
        )


def is_folder(path: Path) -> bool:
    """Whether there is a folder; a DataError for a path that no system would take."""
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:  # a name too long, or with a byte that no name has
        raise DataError(
            f"path = {shown(str(path))} cannot be looked up: {error!s:.100}."
        ) from error


def _table(path: Path, columns: Columns, faults: Faults, *, dealt: bool) -> Table:
    """The table of several devices that is one file."""
    if not path.exists():
        start = "the file's own folder if an experiment file names them, else at the current folder"
        raise DataError(f"there is no file or folder {path}; relative paths start at {start}.")
    table = read(path, table_columns(columns, dealt=dealt), faults)
    if dealt:
        check_nobody(table, columns, path)
    check_named(table, columns, path)
    return table


def table_columns(columns: Columns, *, dealt: bool) -> Columns:
    """The columns of a table of several devices, with those that it needs."""
    # A column that is called as it always is may be missing; one that the user has named may not.
    named = [
        name
        for name, usual in ((columns.edge, Columns.edge), (columns.part, Columns.part))
        if name != usual
    ]
    if not dealt or columns.device != Columns.device:
        named.insert(0, columns.device)
    return replace(columns, needed=tuple(named))


_CLASSES_HINT = "if the label column holds classes, leave out the loss or regression"
_NUMBERS_HINT = 'to predict numbers, set loss = "mse" in the file, or regression=True in Python'
_ADVICE = "correct or remove them, or list the columns that are features"


def check_nobody(table: Table, columns: Columns, path: Path) -> None:
    """That a table to be dealt does not say itself who has which row."""
    for name, cells in ((columns.device, table.device), (columns.edge, table.edge)):
        if cells is not None:
            raise DataError(
                f"{path} has a column {name!r}, so partition would decide against it; "
                f"leave out partition, or the column, as in exclude = [{name!r}]."
            )


def dealing(partition: str | None, **options: Any) -> dict[str, Any]:
    """The partition and what was chosen of it; empty without one."""
    chosen = {name: value for name, value in options.items() if value is not None}
    if partition is None and chosen:
        name = next(iter(chosen))
        raise DataError(
            f"{name} = {shown(chosen[name])} is an option of a partition; "
            'give one, as in partition = "iid", or leave it out.'
        )
    if partition is None:
        return {}
    return {"partition": partition, **chosen}


def _dealt(
    table: Table, goal: Targets, deal: dict[str, Any], *, split: Split, seed: int
) -> tuple[_Homes, tuple[Part, Part, Part]]:
    """Who has which rows, and for what.

    A table that names its parts keeps them when it is dealt.
    """
    if not deal:
        homes = _homes(table)
        return homes, _parts(table, homes, split=split, seed=seed)
    named = table.part is not None
    cut: Split = (1.0, 0.0, 0.0) if named else split
    parts = named_partitions.deal(goal.y.numpy(), split=cut, seed=seed, **deal)
    if not named:
        return _Homes([], ()), parts
    if len(parts[2].index):
        raise DataError(
            f"partition = {deal['partition']!r} has test examples of its own, but the table names "
            "its parts in a column; exclude that column, or choose another partition."
        )
    piles = [parts[0].held(device).numpy() for device in range(parts[0].devices)]
    names = tuple(str(device) for device in range(len(piles)))
    return _Homes([], ()), _parts(table, _Homes(piles, names), split=split, seed=seed)


def _goal(
    table: Table,
    classes: Sequence[str] | None,
    faults: Faults,
    *,
    regression: bool,
) -> Targets:
    """What the labels are, once every row is fit for use."""

    def complain(row: int, why: str) -> None:
        faults.add(table.source[row], table.position[row], why)

    if table.targets:
        goal = several(table.targets, complain, numbers=regression or None)
    else:
        if classes is None and not regression:
            classes = classes_of(table.label, complain)
        goal = targets(table.label, classes, complain)
    if faults.reasons and any(map(lacks_name, table.label)):
        faults.hints[GAPS_HINT] = None
    if regression and len(faults.reasons) == len(table.label):
        faults.hints[_CLASSES_HINT] = None
    faults.refuse("correct or remove them")
    return goal


@dataclass(frozen=True, eq=False)
class _Homes:
    """The rows of each device, and the number of devices of each edge.

    Devices are ordered by edge.
    """

    rows: list[Numbers]
    devices: tuple[str, ...]
    edges: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    first: int = 0  # the number of the first device


def _homes(table: Table) -> _Homes:
    devices, who = _numbered(table.device or [])
    edges, under = _numbered(table.edge or [])
    _, first = np.unique(who, return_index=True)
    if table.edge:
        home = under[first]
    else:
        home = np.zeros(len(devices), dtype=np.int64)
    if table.edge:
        _check_homes(table, first[who], under)
    order = np.argsort(home, kind="stable")
    rows = np.split(np.argsort(who, kind="stable"), np.bincount(who).cumsum()[:-1])
    sizes = tuple(np.bincount(home).tolist()) if table.edge else ()
    return _Homes(
        [rows[device] for device in order],
        tuple(devices[device] for device in order),
        edges,
        sizes,
    )


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Numbers]:
    """The names in order of first appearance, and the number each row's name has among them."""
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return tuple(number), np.array([number[name] for name in names], dtype=np.int64)


def _check_homes(table: Table, first: Numbers, under: Numbers) -> None:
    """That every row names the edge of its device's first row."""
    faults = Faults()
    device = table.device or []
    edge = table.edge or []
    for row in np.flatnonzero(under != under[first]).tolist():
        before = int(first[row])
        other = f"under {edge[before]!r} in {table.where(before)}"
        why = f"device {device[row]!r} is under edge {edge[row]!r}, but {other}"
        faults.add(table.source[row], table.position[row], why)
    faults.refuse("give each device one edge")


def _parts(table: Table, homes: _Homes, *, split: Split, seed: int) -> tuple[Part, Part, Part]:
    """The rows that each device trains, validates and tests on.

    The table says so, or each device's rows are cut.
    """
    if table.part is None:
        return partition.split(homes.rows, split=split, seed=seed, first=homes.first)
    part = np.array(table.part)
    train, validation, test = ([rows[part[rows] == name] for rows in homes.rows] for name in SPLITS)
    if not any(map(len, train)):
        raise DataError(
            f"none of the {len(train)} devices has a row to train on ({some(homes.devices)}); "
            "add some, or leave the column of parts out."
        )
    return Part.of(train), Part.of(validation), Part.of(test)


def _kept_in_training(
    table: Table, goal: Targets, parts: tuple[Part, Part, Part]
) -> tuple[tuple[Part, Part, Part], tuple[str, ...]]:
    """The parts with every class in training, and a note of what was moved there.

    Of a class that no training row has, all rows move if there are fewer than parts, else the
    first. Parts that the table itself names stay.
    """
    if goal.classes is None or table.part is not None:
        return parts, ()
    moved = _rare_rows(goal.y, goal.classes, parts)
    if not len(moved):
        return parts, ()
    train = []
    validation = []
    test = []
    for device in range(parts[0].devices):
        own, later, last = (part.held(device).numpy() for part in parts)
        train.append(
            np.concatenate([own, later[np.isin(later, moved)], last[np.isin(last, moved)]])
        )
        validation.append(later[~np.isin(later, moved)])
        test.append(last[~np.isin(last, moved)])
    labels = sorted({table.label[row] for row in moved.tolist()})
    note = f"classes with few rows are kept in training: {some(labels)} ({len(moved)} rows)."
    return (Part.of(train), Part.of(validation), Part.of(test)), (note,)


def _rare_rows(y: Tensor, classes: int, parts: tuple[Part, Part, Part]) -> Numbers:
    """The rows that must train so that every class does."""
    later = torch.cat([part.index for part in parts[1:]])
    seen = y[parts[0].index].bincount(minlength=classes) > 0
    unseen = later[~seen[y[later]]].numpy()
    labels = y.numpy()[unseen]
    chosen = [unseen[labels == label] for label in np.unique(labels)]
    rows = [own if len(own) < len(SPLITS) else own[:1] for own in chosen]
    return np.concatenate([np.empty(0, dtype=np.int64), *rows])


def _check_seen(
    table: Table, goal: Targets, parts: tuple[Part, Part, Part], faults: Faults
) -> None:
    """That every class occurs in training."""
    if goal.classes is None:
        return
    later = torch.cat([part.index for part in parts[1:]])
    seen = goal.y[parts[0].index].bincount(minlength=goal.classes) > 0
    for row in later[~seen[goal.y[later]]].tolist():
        faults.add_rows(table, [row], f"class {table.label[row]!r} is unseen in training")
    faults.refuse(
        "each class needs a row that somebody trains on: add some, remove these, or split otherwise"
    )


def check_options(columns: Columns, classes: Sequence[str] | None, *, regression: bool) -> None:
    names = {
        "label": columns.label,
        "device": columns.device,
        "edge": columns.edge,
        "part": columns.part,
    }
    if len(set(names.values())) < len(names):
        settings = ", ".join(f"{role} = {name!r}" for role, name in names.items())
        raise DataError(f"{settings}: name four different columns.")
    if columns.decimal not in (".", ","):
        raise DataError(f'decimal = {columns.decimal!r}: choose "." or ",".')
    if columns.missing not in get_args(Missing):
        choices = ", ".join(map(repr, get_args(Missing)))
        hint = meant(columns.missing, get_args(Missing))
        raise DataError(f"missing = {columns.missing!r}{hint}: choose one of {choices}.")
    _check_lists(columns)
    if columns.more_labels:
        _check_more_labels(columns, classes)
    if columns.features is not None and (not columns.features or columns.label in columns.features):
        raise DataError(
            f"features = {list(columns.features)}; "
            f"list at least one column, and not the label {columns.label!r}."
        )
    if classes is not None and (regression or not classes or len(set(classes)) < len(classes)):
        raise DataError(
            f"classes = {list(classes)} and regression = {regression}; "
            "list each class once, or leave classes out."
        )


def _check_more_labels(columns: Columns, classes: Sequence[str] | None) -> None:
    """That several label columns are used for nothing else."""
    labels = list(columns.label_columns)
    others = [columns.device, columns.edge, columns.part]
    others += [*(columns.features or ()), *columns.exclude, *columns.categorical]
    both = [name for name in columns.more_labels if name in others]
    if both:
        raise DataError(
            f"label = {labels}, but {both[0]!r} is named for something else too; take it out of "
            "one of them."
        )
    if classes is not None:
        raise DataError(
            f"classes = {list(classes)} are those of one label column, but label = {labels}; "
            "leave classes out."
        )


def _check_lists(columns: Columns) -> None:
    """That the lists of columns agree with each other."""
    if columns.label in columns.exclude:
        raise DataError(
            f"exclude = {list(columns.exclude)} has the label {columns.label!r}; take it out."
        )
    both = sorted({*columns.exclude} & {*(columns.features or ()), *columns.categorical})
    if both:
        raise DataError(
            f"{some(both)} is in exclude and in features or categorical; leave it in one of them."
        )
    others = [name for name in columns.categorical if name not in (columns.features or (name,))]
    if others:
        raise DataError(
            f"categorical has {some(others)}, which features does not list; add it there."
        )


def _check_form(table: Table, features: Sequence[str], scale: Scaling | None, path: Path) -> None:
    """That a new device's examples have the shape of those trained on."""
    shape = table.x.shape[1:]
    if features and shape != (len(features),):
        raise DataError(
            f"{path} has examples of shape {shape}, "
            f"but the model was trained on {len(features)} features."
        )
    have = tuple(scale.shift.shape) if scale is not None else ()
    fits = len(have) <= len(shape) and all(
        a in (1, b) for a, b in zip(have[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise DataError(
            f"{path} has examples of shape {shape}, "
            f"but those trained on were scaled by values of shape {have}."
        )
