"""What a user says of a table: its columns, what its labels are, and who gets which row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import some
from covey.data.tables.scaling import Normalise
from covey.errors import DataError, meant, shown

RELATIVE = (
    "relative paths start at the file's own folder if an experiment file names them, "
    "else at the current folder"
)
ROLES = ("label", "device", "edge", "part")
"""What a column of text may be for."""

Missing = Literal["error", "drop", "mean", "indicator"]
"""What becomes of a cell without a value. error: the row is refused. drop: the row is left out.
mean: the mean of its column over all devices' training rows. indicator: the mean, and a column that
is 1 where the value is missing."""


@dataclass(frozen=True)
class TableOptions:
    """The options of `files`, which explains them, and of the other readers of tables.

    The last ones are set by the readers themselves.
    """

    label: str | Sequence[str] = "label"
    device: str = "device"
    edge: str = "edge"
    part: str = "split"
    features: Sequence[str] | None = None  # None: all the other columns
    classes: Sequence[str] | None = None
    regression: bool = False
    normalise: Normalise = "standard"
    tokens: bool = False
    missing: Missing = "error"
    decimal: str = "."
    categorical: Sequence[str] = ()  # columns of words, even where the words are numbers
    exclude: Sequence[str] = ()  # columns that are not read
    deal: Mapping[str, Any] = field(default_factory=dict)
    """The partition and what was chosen of it; empty where the table says who has which row."""
    split: Split = SPLIT
    seed: int = 0
    needed: Sequence[str] = ()  # columns that must be there, besides labels and features
    labelled: bool = True  # False: examples to predict, of which only features and devices are read
    text: Sequence[str] | None = None  # all columns of words; None: those that look so

    def __post_init__(self) -> None:
        _check_names(self)
        _check_lists(self)
        for name, choices in (("missing", get_args(Missing)), ("decimal", (".", ","))):
            value = getattr(self, name)
            if value not in choices:
                hint = meant(value, choices)
                listed = ", ".join(map(repr, choices))
                raise DataError(f"{name} = {value!r}{hint}: choose one of {listed}.")
        classes = self.classes
        if classes is None:
            return
        if self.regression or not classes or len(set(classes)) < len(classes):
            raise DataError(
                f"classes = {list(classes)} and regression = {self.regression}; "
                "list each class once, or leave classes out."
            )
        if self.several:
            raise DataError(
                f"classes = {list(classes)} are those of one label column, but "
                f"label = {list(self.label)}; leave classes out."
            )

    @staticmethod
    def of(given: Mapping[str, Any]) -> TableOptions:
        """The options among the arguments of a reader."""
        names = [each.name for each in fields(TableOptions)]
        chosen = {name: given[name] for name in names if name in given}
        return TableOptions(deal=dealing(given), **chosen)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the label columns."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @property
    def columns(self) -> dict[str, str]:
        """The column of every role; of the labels the first."""
        names = (self.labels[0], self.device, self.edge, self.part)
        return dict(zip(ROLES, names, strict=True))

    @property
    def several(self) -> bool:
        """Whether there are several label columns, each with targets of its own."""
        return len(self.labels) > 1

    @property
    def of_devices(self) -> TableOptions:
        """The same for a table of several devices, with the columns that it needs."""
        # A column that is called as it always is may be missing; one that the user has named may
        # not.
        needed = [getattr(self, role) for role in ("edge", "part") if self.renamed(role)]
        if not self.deal or self.renamed("device"):
            needed.insert(0, self.device)
        return replace(self, needed=needed)

    def renamed(self, role: str) -> bool:
        """Whether the user has named the column of a role."""
        return bool(getattr(self, role) != getattr(TableOptions, role))

    def roles(self, header: Sequence[str]) -> dict[str, str]:
        """The columns of text that this header has, by what they are for.

        >>> TableOptions(label="state").roles(["heat", "state", "edge"])
        {'label': 'state', 'edge': 'edge'}
        >>> TableOptions(label="state", labelled=False).roles(["heat", "state", "device"])
        {'device': 'device'}
        """
        names = self.columns if self.labelled else {"device": self.device}
        read = [name for name in header if name not in self.exclude]
        return {role: name for role, name in names.items() if name in read}

    def chosen(self, header: Sequence[str]) -> tuple[str, ...]:
        """The features of a file with this header."""
        if self.features is not None:
            return tuple(self.features)
        others = {*self.labels, *self.columns.values(), *self.exclude}
        return tuple(name for name in header if name not in others)


def dealing(given: Mapping[str, Any]) -> dict[str, Any]:
    """The partition among the arguments of a reader, and what was chosen of it."""
    names = ("partition", "devices", "labels", "alpha")
    chosen = {name: given[name] for name in names if given[name] is not None}
    if chosen and "partition" not in chosen:
        name = next(iter(chosen))
        raise DataError(
            f"{name} = {shown(chosen[name])} is an option of a partition; "
            'give one, as in partition = "iid", or leave it out.'
        )
    return chosen


def is_folder(path: Path) -> bool:
    """Whether there is a folder; a DataError for a path that no system would take."""
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:  # a name too long, or with a byte that no name has
        raise DataError(
            f"path = {shown(str(path))} cannot be looked up: {error!s:.100}."
        ) from error


def files_below(folder: Path) -> list[Path]:
    """The files under a folder, relative to it and in order, without hidden ones."""
    if not is_folder(folder):
        raise DataError(f"there is no folder {folder}; {RELATIVE}.")
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in paths if not any(part.startswith(".") for part in path.parts)]


def _check_names(options: TableOptions) -> None:
    """That every column is for one thing."""
    labels = list(options.labels)
    if not isinstance(options.label, str) and (
        not options.several or len(set(labels)) < len(labels)
    ):
        raise DataError(f"label = {labels}; list two columns or more, each once, or give one name.")
    names = options.columns
    if len(set(names.values())) < len(names):
        settings = ", ".join(f"{role} = {name!r}" for role, name in names.items())
        raise DataError(f"{settings}: name four different columns.")
    if options.several:
        others = [*names.values()][1:]
        others += [*(options.features or ()), *options.exclude, *options.categorical]
        both = [name for name in labels if name in others]
        if both:
            raise DataError(
                f"label = {labels}, but {both[0]!r} is named for something else too; take it out "
                "of one of them."
            )


def _check_lists(options: TableOptions) -> None:
    """That the lists of columns agree with each other."""
    label = options.labels[0]
    features, exclude = options.features, options.exclude
    if features is not None and (not features or (options.labelled and label in features)):
        raise DataError(
            f"features = {list(features)}; list at least one column, and not the label {label!r}."
        )
    if label in exclude:
        raise DataError(f"exclude = {list(exclude)} has the label {label!r}; take it out.")
    both = sorted({*exclude} & {*(features or ()), *options.categorical})
    if both:
        raise DataError(
            f"{some(both)} is in exclude and in features or categorical; leave it in one of them."
        )
    others = [name for name in options.categorical if name not in (features or (name,))]
    if others:
        raise DataError(
            f"categorical has {some(others)}, which features does not list; add it there."
        )
