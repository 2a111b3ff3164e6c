"""DataFrames of pandas and polars give the shards of the same table in a file."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from covey.data import files, frame
from tests.given import refused

COLUMNS: dict[str, list[Any]] = {
    "device": ["a", "b", "a", "b", "c", "c", "a", "b", "c"],
    "edge": ["north", "south", "north", "south", "north", "north", "north", "south", "north"],
    "heat": [1.5, 2.5, -3.25, 4.0, 5.0, 6.5, 0.1, 0.2, 0.3],
    "count": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    "colour": ["red", "blue", "red", "blue", "red", "red", "blue", "red", "blue"],
    "label": ["ok", "hot", "hot", "ok", "ok", "hot", "ok", "hot", "ok"],
}


class Column:
    """A column as numpy has it."""

    def __init__(self, values: list[Any]) -> None:
        self.values = np.array(values)
        if None in values:
            self.values = np.array(values, dtype=object)

    def to_numpy(self) -> Any:
        return self.values


class Plain:
    """The least that a DataFrame has, for where no library of them is installed."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = list(columns)
        self.held = {name: Column(values) for name, values in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.held.values())).values)

    def __getitem__(self, name: str) -> Column:
        return self.held[name]


def pandas(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def polars(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


MAKERS = [Plain, pandas, polars]


def from_file(columns: dict[str, list[Any]], folder: Path, **options: Any) -> Any:
    rows = zip(*columns.values(), strict=True)
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    lines = [",".join(row) for row in [list(columns), *cells]]
    path = folder / "frame"
    path.with_suffix(".csv").write_text("\n".join(lines), encoding="utf-8")
    return files(str(path.with_suffix(".csv")), **options)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"features": ["heat"]},
        {"label": "heat", "exclude": ["label"]},
        {"label": "count", "regression": True, "normalise": "none"},
        {"categorical": ["count"], "split": (1, 0, 0)},
        {"exclude": ["device", "edge"], "partition": "iid", "devices": 2, "seed": 3},
    ],
    ids=lambda options: ",".join(options) or "as it is",
)
def test_a_frame_is_the_table_in_a_file(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    shards = frame(make(COLUMNS), **options)
    expected = from_file(COLUMNS, tmp_path, **options)
    assert shards.fingerprint() == expected.fingerprint()
    assert shards.names == expected.names
    assert shards.edges == expected.edges
    assert shards.classes == expected.classes


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("missing", ["drop", "mean", "indicator"])
@pytest.mark.parametrize("column", ["heat", "count", "colour", "label"])
def test_gaps_are_those_of_a_file(make: Any, missing: Any, column: str, tmp_path: Path) -> None:
    gappy = {**COLUMNS, column: [*COLUMNS[column][:8], None]}
    shards = frame(make(gappy), missing=missing, split=(1, 0, 0))
    expected = from_file(gappy, tmp_path, missing=missing, split=(1, 0, 0))
    assert shards.fingerprint() == expected.fingerprint()
    assert shards.names == expected.names


@pytest.mark.parametrize("make", MAKERS)
def test_integer_labels_beside_a_gap_are_classes(make: Any, tmp_path: Path) -> None:
    numbered = {**COLUMNS, "label": [0, 1, 1, 0, 0, 1, 0, 1, None]}
    shards = frame(make(numbered), missing="drop")
    assert shards.names.classes == ("0", "1")
    assert shards.fingerprint() == from_file(numbered, tmp_path, missing="drop").fingerprint()


@pytest.mark.parametrize("make", MAKERS)
def test_a_gap_is_named_by_its_row(make: Any) -> None:
    with refused("1 row cannot be used", "the frame, row 2: column 'heat'"):
        frame(make({**COLUMNS, "heat": [1.0, 2.0, None, *COLUMNS["heat"][3:]]}))


@pytest.mark.parametrize("make", MAKERS)
def test_true_and_false_are_numbers_as_features_and_classes_as_labels(make: Any) -> None:
    flags = [True, False, True, False, True, True, False, True, False]
    shards = frame(
        make({**COLUMNS, "heat": flags, "label": flags}), features=["heat"], normalise="none"
    )
    assert shards.names.classes == ("False", "True")
    assert shards.x.flatten().tolist() == shards.y.tolist() == [float(flag) for flag in flags]


@pytest.mark.parametrize("make", [pandas, polars])
def test_dates_are_refused_by_name(make: Any) -> None:
    days = np.datetime64("2026-01-31") + np.arange(9)
    with refused("exclude = ['heat']", "column 'heat' has dates"):
        frame(make({**COLUMNS, "heat": days.astype("datetime64[ns]")}))


def test_integers_with_gaps_and_categories_of_pandas() -> None:
    library = pytest.importorskip("pandas")
    table = library.DataFrame(COLUMNS)
    table["count"] = table["count"].astype("Int64").mask(table["count"] == 9)
    table["colour"] = table["colour"].astype("category")
    shards = frame(table, missing="drop")
    assert len(shards.x) == 8
    assert shards.names.features == ("heat", "count", "colour=blue", "colour=red")


@pytest.mark.parametrize(
    ("df", "words"),
    [
        ([1, 2], ["df is a list", "pandas or polars"]),
        (SimpleNamespace(columns=[0]), ["df is a SimpleNamespace"]),
        (Plain({0: [1], "label": [1]}), ["column called 0", "map(str)"]),  # type: ignore[dict-item]
        (Plain({"heat": [1], "label": [1]}), ["the frame has no column 'device'", "partition"]),
        (Plain({"device": [1], "heat": [1], "labels": [1]}), ["'label'", "did you mean 'labels'?"]),
        (Plain({name: [] for name in COLUMNS}), ["no rows"]),
    ],
)
def test_what_is_no_table_is_refused(df: Any, words: list[str]) -> None:
    with refused(*words):
        frame(df)


def test_a_device_column_and_a_partition_are_one_too_many() -> None:
    with refused("the frame has a column 'device'", "leave out partition"):
        frame(Plain(COLUMNS), partition="iid", devices=2)
