"""One's own data: a table with a device column, a DataFrame, or a folder with a file per device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.data.partitions import named_partitions, partition
from covey.data.partitions.partition import SPLIT, Numbers, Parts, Split
from covey.data.shards import (
    SPLITS,
    Names,
    Part,
    Shards,
    numbered,
    rows_by_device,
    some,
    standard_targets,
)
from covey.data.tables.encoding import ColumnFacts, Encoding, encoding
from covey.data.tables.folder import check_alone, folder_table
from covey.data.tables.labels import LabelTargets, classes_of, doubt, several, targets
from covey.data.tables.options import RELATIVE, Missing, TableOptions, is_folder
from covey.data.tables.scaling import Normalise, Scaling, scaled, scaling
from covey.data.tables.table_readers import frame_rows, read, stem
from covey.data.tables.tables import GAPS_HINT, Table, lacks_name
from covey.errors import DataError, shown


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
    (`.csv.gz`). With `decimal = ","`, numbers have a decimal
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
    options = TableOptions.of(locals())
    where = Path(path).expanduser()
    if is_folder(where) and options.deal:
        raise DataError(
            f"partition = {partition!r}, but {where} is a folder with a file per device; "
            "leave out partition, or give one table."
        )
    if is_folder(where):
        table = folder_table(where, options)
    elif where.exists():
        table = read(where, options.of_devices)
    else:
        raise DataError(f"there is no file or folder {where}; {RELATIVE}.")
    return table_shards(table, options, where, name=where.resolve().name)


def frame(
    df: Any,
    *,
    label: str | Sequence[str] = "label",
    device: str = "device",
    edge: str = "edge",
    part: str = "split",
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    normalise: Normalise = "standard",
    missing: Missing = "error",
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    partition: str | None = None,
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    split: Split = SPLIT,
    seed: int = 0,
    name: str = "frame",
) -> Shards:
    """Shards of the rows of a pandas or polars DataFrame.

    `label`, `device`, `edge` and `part` name columns; edge and part may be missing. All arguments
    mean what they mean for `files`, which gives the same shards for the same table. The index of a
    pandas frame is not a column. Labels and names that are integers beside gaps, which pandas keeps
    as floats, count as integers. Messages number the rows from 0.
    """
    options = TableOptions.of(locals())
    if not hasattr(df, "columns") or not hasattr(df, "__getitem__"):
        raise DataError(
            f"df is a {type(df).__name__}; give a DataFrame of pandas or polars "
            "(of a lazy one, what collect() makes of it), or arrays to covey.data.own."
        )
    odd = [name for name in df.columns if not isinstance(name, str)]
    if odd:
        raise DataError(
            f"the frame has a column called {shown(odd[0])}; "
            "give its columns names of text, as in df.columns = df.columns.map(str)."
        )
    where = Path("the frame")
    table = frame_rows(df, list(df.columns), options.of_devices, where)
    return table_shards(table, options, where, name=name)


def table_shards(table: Table, options: TableOptions, where: Path, *, name: str) -> Shards:
    """The shards of a table that has been read from `where`."""
    for column, cells in ((options.device, table.device), (options.edge, table.edge)):
        if options.deal and cells is not None:
            raise DataError(
                f"{where} has a column {column!r}, so partition would decide against it; "
                f"leave out partition, or the column, as in exclude = [{column!r}]."
            )
    table.faults.refuse("correct or remove them, or list the columns that are features")
    table, notes = _with_values(table, options)
    goal = _goal(table, options)
    homes, parts = _dealt(table, goal, options)
    unclear = ""
    # Of an array, the type tells.
    if options.classes is None and table.features and not options.tokens:
        unclear = doubt(options.labels[0], goal.names, len(table))
    if unclear:
        table.faults.hints[_NUMBERS_HINT] = None
    parts, moved = _with_every_class(table, goal, parts)
    form: dict[str, Any] = {"notes": notes + moved, "name": name, "doubt": unclear}
    if goal.classes is None and not goal.yes_no and options.normalise != "none":
        form["target"] = standard_targets(goal.y, parts[0])
    if options.tokens:
        x = _tokens(table, options.normalise)
        form["tokens"] = max(int(x.max()) + 1, 1)
        return _shards(x, goal, homes, parts, table.features, **form)
    table, how, scale = _prepared(table, options, parts[0])
    form["notes"] += (() if how is None else how.indicator_notes()) + table.notes
    form |= {"scaling": scale, "encoding": how}
    return _shards(_inputs(table, scale), goal, homes, parts, table.features, **form)


def _shards(
    x: Tensor,
    goal: LabelTargets,
    homes: _Homes,
    parts: Parts,
    features: Sequence[str],
    **form: Any,
) -> Shards:
    """The examples with their targets, and who has which; `form` is passed on."""
    names = Names(homes.devices, homes.edges, goal.names, tuple(features), labels=goal.labels)
    return Shards(
        x,
        goal.y,
        *parts,
        classes=goal.classes,
        edges=homes.sizes,
        names=names,
        yes_no=goal.yes_no,
        **form,
    )


def _prepared(
    table: Table, options: TableOptions, train: Part
) -> tuple[Table, Encoding | None, Scaling]:
    """The table with inputs as its columns, its encoding if it needs one, and its scaling."""
    how = None
    if table.features or options.normalise == "standard":
        facts = ColumnFacts.merged([ColumnFacts.of(table, rows) for rows in rows_by_device(train)])
        how = encoding(facts, options)
    if how is not None:
        table = how.applied(table)
    if options.normalise == "standard":
        return table, how, facts.scaling(how)
    scale = scaling(options.normalise, torch.from_numpy(table.x), train.index)
    return table, how, scale if how is None else how.unscaled(scale)


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
    names = [str(label) for label in range(classes)] if isinstance(classes, int) else classes
    options = TableOptions(
        label,
        device or TableOptions.device,
        classes=names,
        regression=classes is None and not yes_no,
        decimal=decimal,
        missing=missing,
        split=split,
        seed=seed,
    )
    options, encoding = _as_trained(options, path, features, encoding)
    table, goal, homes, parts, notes = device_rows(
        path, options, number, several=device is not None
    )
    if encoding is not None:
        table = encoding.applied(table)
    if shape is not None:
        table = _shaped(table, shape, path)
    _check_form(table, features, scaling, path)
    if isinstance(classes, int):
        goal = replace(goal, names=())
    x = _inputs(table, scaling) if tokens is None else token_ids(torch.from_numpy(table.x))
    form = {"scaling": scaling, "tokens": tokens, "encoding": encoding, "target": target}
    notes += table.notes
    return _shards(x, goal, homes, parts, features, name=stem(path), notes=notes, **form)


def _as_trained(
    options: TableOptions, path: Path, features: Sequence[str], encoding: Encoding | None
) -> tuple[TableOptions, Encoding | None]:
    """The options that read a file as the run's own data was read, and the encoding to apply."""
    if path.suffix.lower() == ".npz" or not features:
        return replace(options, text=()), None  # an array x has the columns of inputs
    if encoding is None:  # every feature was a number
        return replace(options, features=tuple(features), text=()), None
    missing = options.missing if encoding.missing == "error" else encoding.missing
    names = encoding.features
    return replace(options, features=names, text=encoding.text, missing=missing), encoding


def unlabelled(
    path: Path,
    options: TableOptions,
    *,
    features: Sequence[str],
    shape: Sequence[int],
    encoding: Encoding | None = None,
) -> Table:
    """The rows of a file in the form of the training data.

    Columns of labels, edges and parts are not read. `features` are the columns that were trained
    on, in order; empty where they have no names. Then all columns are features that are not called
    as `options` says. An `encoding` makes inputs of words and gaps as it did in training.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}; paths start at the current folder.")
    options, encoding = _as_trained(replace(options, labelled=False), path, features, encoding)
    table = read(path, options)
    if encoding is not None:
        table.faults.refuse("correct or remove them")
        table = encoding.applied(table)
    return _shaped(table, shape, path)


def device_rows(
    path: Path, options: TableOptions, number: int, *, several: bool = False
) -> tuple[Table, LabelTargets, _Homes, Parts, tuple[str, ...]]:
    """The rows of a device's file, their targets, homes and parts, and notes of rows left out.

    `number` is that of the device. With `several`, the file may name more than one.
    """
    table = read(path, options)
    several = several and len(set(table.device or ())) > 1
    if not several:
        check_alone(table, options, path)
    if options.text is not None:
        table.faults.hints.clear()  # the run has decided what becomes of words and gaps
    table.faults.refuse("correct or remove them")
    table, notes = _with_values(table, options)
    goal = _goal(table, options)
    homes = _Homes([np.arange(len(table))], (stem(path),), first=number)
    if several:
        homes = _homes(replace(table, edge=None))
    return table, goal, homes, _parts(table, homes, options), notes


def _with_values(table: Table, options: TableOptions) -> tuple[Table, tuple[str, ...]]:
    """The rows that have what they need, and a note that counts the others.

    That is a label and a device and, where gaps are dropped, every feature.
    """
    if options.missing == "error":
        return table, ()
    if options.missing != "drop" and not table.features and np.isnan(table.x).any():
        raise DataError(
            f'missing = "{options.missing}" needs columns with names, which an array x has not; '
            'fill its NaN, or set missing to "drop".'
        )
    named = table.targets or {options.labels[0]: table.label}
    columns = {**named, options.device: table.device}
    lacking = {
        name: np.array([lacks_name(cell) for cell in cells])
        for name, cells in columns.items()
        if cells
    }
    if options.missing == "drop" and table.x.dtype.kind == "f":
        lacking |= {name: table.gaps(name) for name in table.features}
        if not table.features:
            values = table.x.reshape(len(table), -1)
            lacking["x"] = np.isnan(values).any(axis=1)
    nothing = np.zeros(len(table), dtype=bool)
    lost = np.any([nothing, *lacking.values()], axis=0)
    if not lost.any():
        return table, ()
    counts = [f"{name} in {int(rows.sum())}" for name, rows in lacking.items() if rows.any()]
    told = f"{int(lost.sum())} of {len(table)} rows are left out: {some(counts)} missing."
    if lost.all():
        raise DataError(f"{told} No row remains; leave out the columns that are empty.")
    return table.taken(np.flatnonzero(~lost)), (told,)


def _tokens(table: Table, normalise: Normalise) -> Tensor:
    """The token ids of a table, which are not scaled; "standard" is what a file has by default."""
    if normalise not in ("standard", "none"):
        raise DataError(
            f"tokens = true and normalise = {normalise!r}: token ids are not scaled; "
            "leave out one of them."
        )
    if table.words or np.isnan(table.x).any():
        name = next(iter(table.words), "x")
        raise DataError(
            f"tokens = true, but {name!r} has words or missing values; "
            "give token ids, whole numbers from 0 on."
        )
    return token_ids(torch.from_numpy(table.x))


def token_ids(values: Tensor) -> Tensor:
    """Numbers as token ids, int64; a fraction is refused."""
    whole = values.long()
    wrong = whole != values
    examples = wrong.reshape(len(values), -1).any(dim=1).nonzero()
    if len(examples):
        raise DataError(
            f"{len(examples)} examples have fractions, the first is {float(values[wrong][0]):g} "
            f"in example {int(examples[0])}; "
            "token ids are whole numbers, so leave out tokens or correct them."
        )
    return whole


def _shaped(table: Table, shape: Sequence[int], path: Path) -> Table:
    """The table with examples of the shape that was trained on."""
    have = table.x.shape[1:]
    if math.prod(have) != math.prod(shape):
        raise DataError(
            f"{path} has examples of shape {have}, but the run was trained on {tuple(shape)}; "
            "give as many numbers in each."
        )
    return replace(table, x=table.x.reshape(len(table.x), *shape))


def _check_form(
    table: Table,
    features: Sequence[str],
    scale: Scaling | None,
    path: Path,
) -> None:
    """That a new device's examples have the shape of those trained on."""
    shape = table.x.shape[1:]
    if features and shape != (len(features),):
        raise DataError(
            f"{path} has examples of shape {shape}, "
            f"but the model was trained on {len(features)} features."
        )
    have = () if scale is None else tuple(scale.shift.shape)
    pairs = zip(have[::-1], shape[::-1], strict=False)
    if len(have) > len(shape) or not all(own in (1, size) for own, size in pairs):
        raise DataError(
            f"{path} has examples of shape {shape}, "
            f"but those trained on were scaled by values of shape {have}."
        )


def _inputs(table: Table, scale: Scaling | None) -> Tensor:
    """The features, scaled in the type they were read in.

    A time in seconds since 1970 does not fit into a float32 before it is scaled.
    """
    values = torch.from_numpy(table.x)
    return values.to(torch.float32) if scale is None else scaled(values, scale)


_CLASSES_HINT = "if the label column holds classes, leave out the loss or regression"
_NUMBERS_HINT = 'to predict numbers, set loss = "mse" in the file, or regression=True in Python'


def _goal(table: Table, options: TableOptions) -> LabelTargets:
    """What the labels are, once every row is fit for use."""

    def complain(row: int, why: str) -> None:
        table.reject([row], why)

    faults = table.faults
    if table.targets:
        goal = several(table.targets, complain, numbers=options.regression or None)
    else:
        classes = options.classes
        if classes is None and not options.regression:
            classes = classes_of(table.label, complain)
        goal = targets(table.label, classes, complain)
    if faults.reasons and any(map(lacks_name, table.label)):
        faults.hints[GAPS_HINT] = None
    if options.regression and len(faults.reasons) == len(table.label):
        faults.hints[_CLASSES_HINT] = None
    faults.refuse("correct or remove them")
    return goal


@dataclass(frozen=True, eq=False)
class _Homes:
    """The rows of each device, and the number of devices of each edge.

    Devices are ordered by edge.
    """

    rows: list[Numbers]
    devices: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    first: int = 0  # the number of the first device


def _dealt(table: Table, goal: LabelTargets, options: TableOptions) -> tuple[_Homes, Parts]:
    """Who has which rows, and for what.

    A table that names its parts keeps them when it is dealt.
    """
    if not options.deal:
        homes = _homes(table)
        return homes, _parts(table, homes, options)
    cut = options.split if table.part is None else (1.0, 0.0, 0.0)
    parts = named_partitions.deal(goal.y.numpy(), split=cut, seed=options.seed, **options.deal)
    if table.part is None:
        return _Homes([]), parts
    if len(parts[2].index):
        raise DataError(
            f"partition = {options.deal['partition']!r} has test examples of its own, but the "
            "table names its parts in a column; exclude that column, or choose another partition."
        )
    whole = parts[0]
    homes = _Homes([whole.held(device).numpy() for device in range(whole.devices)])
    return homes, _parts(table, homes, options)


def _homes(table: Table) -> _Homes:
    """The rows of each device as the table names it; an error if it names two edges for one."""
    devices, who = numbered(table.device or [])
    ends = np.bincount(who).cumsum()
    rows = np.split(np.argsort(who, kind="stable"), ends[:-1])
    if not table.edge:
        return _Homes(rows, devices)
    edges, under = numbered(table.edge)
    _, first = np.unique(who, return_index=True)
    for row in np.flatnonzero(under != under[first[who]]).tolist():
        before = int(first[who[row]])
        name = devices[who[row]]
        other = f"under {table.edge[before]!r} in {table.where(before)}"
        table.reject([row], f"device {name!r} is under edge {table.edge[row]!r}, but {other}")
    table.faults.refuse("give each device one edge")
    home = under[first]
    order = np.argsort(home, kind="stable").tolist()
    names = tuple(devices[device] for device in order)
    sizes = tuple(np.bincount(home).tolist())
    return _Homes([rows[device] for device in order], names, edges, sizes)


def _parts(table: Table, homes: _Homes, options: TableOptions) -> Parts:
    """The rows that each device trains, validates and tests on.

    The table says so, or each device's rows are cut.
    """
    if table.part is None:
        return partition.split(
            homes.rows, split=options.split, seed=options.seed, first=homes.first
        )
    held = Part.of(homes.rows)
    named = np.array(table.part)[held.index]
    train, validation, test = (held.entries(torch.from_numpy(named == name)) for name in SPLITS)
    if not len(train.index):
        names = homes.devices or tuple(map(str, range(held.devices)))
        raise DataError(
            f"none of the {held.devices} devices has a row to train on ({some(names)}); "
            "add some, or leave the column of parts out."
        )
    return train, validation, test


def _with_every_class(
    table: Table, goal: LabelTargets, parts: Parts
) -> tuple[Parts, tuple[str, ...]]:
    """The parts with every class in training, and a note of what was moved there.

    Of a class that no training row has, all rows move if there are fewer than parts, else the
    first. Parts that the table itself names stay, and such a class is refused.
    """
    if goal.classes is None:
        return parts, ()
    later = torch.cat([part.index for part in parts[1:]])
    seen = torch.isin(goal.y[later], goal.y[parts[0].index])
    unseen = later[~seen].numpy()
    if not len(unseen):
        return parts, ()
    if table.part is not None:
        for row in unseen.tolist():
            table.reject([row], f"class {table.label[row]!r} is unseen in training")
        table.faults.refuse(
            "each class needs a row that somebody trains on: add some, remove these, or split "
            "otherwise"
        )
    labels = goal.y.numpy()[unseen]
    chosen = [unseen[labels == label] for label in np.unique(labels)]
    moving = [rows if len(rows) < len(SPLITS) else rows[:1] for rows in chosen]
    moved = np.concatenate(moving)
    train = parts[0]
    others = []
    for part in parts[1:]:
        goes = torch.isin(part.index, torch.from_numpy(moved))
        train = train.followed_by(part.entries(goes))
        others.append(part.entries(~goes))
    names = sorted({table.label[row] for row in moved.tolist()})
    note = f"classes with few rows are kept in training: {some(names)} ({len(moved)} rows)."
    return (train, others[0], others[1]), (note,)
