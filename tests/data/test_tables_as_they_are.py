"""Tables with gaps, words, other separators, rare classes and no devices become shards.

What cannot be used is refused by name.
"""

import datetime
import gzip
import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.data.shards import Shards
from covey.data.tables.encoding import Encoding, named_columns
from covey.data.tables.files import device_file, files, unlabelled
from covey.data.tables.options import TableOptions
from covey.errors import DataError
from tests.given import refused

HEADER = "device,heat,kind,label,split"
ROWS = [
    "a,1,red,ok,train", "a,,blue,hot,train", "b,5,red,ok,train", "b,3,NA,hot,train",
    "b,100,green,ok,test", "a,?,red,hot,test",
]  # fmt: skip
ALL = (1.0, 0.0, 0.0)  # every row trains


def written(folder: Path, *rows: str, header: str = HEADER, name: str = "table.csv") -> str:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def rows_of(shards: Shards, split: str) -> list[list[float]]:
    return sorted(shards.x[shards.part(split).index].tolist())


def test_a_gap_is_refused_by_default_and_the_ways_out_are_named(tmp_path: Path) -> None:
    with refused(
        "3 rows cannot be used",
        'set missing to "drop", "mean" or "indicator"',
        "table.csv, line 3: column 'heat' is empty",
        "line 5: column 'kind' is 'NA', a missing value",
        "line 7: column 'heat' is '?', a missing value",
    ):
        files(written(tmp_path, *ROWS))


def test_drop_leaves_out_rows_and_counts_them(tmp_path: Path) -> None:
    rows = [*ROWS, ",1,red,ok,train", "b,1,red,null,train"]
    shards = files(written(tmp_path, *rows), missing="drop", normalise="none")
    assert rows_of(shards, "train") == [[1, 1], [5, 1]]
    assert shards.names.features == ("heat", "kind=red")
    (note, unknown) = shards.notes
    assert note == (
        "5 of 8 rows are left out: label in 1, device in 1, heat in 2, kind in 1 missing."
    )
    assert unknown == "words that no training row has: 1 in column 'kind'."


def test_means_are_those_of_the_training_rows_of_all_devices(tmp_path: Path) -> None:
    shards = files(written(tmp_path, *ROWS), missing="mean", normalise="none")
    assert shards.names.features == ("heat", "kind=blue", "kind=red")
    third = np.float32(1 / 3)
    assert rows_of(shards, "train") == [
        [1, 0, 1],
        [3, third, 2 * third],  # the shares of blue and red
        [3, 1, 0],  # the mean of 1, 5 and 3
        [5, 0, 1],
    ]
    assert rows_of(shards, "test") == [[3, 0, 1], [100, 0, 0]]  # green is unknown
    assert shards.notes == (
        "missing values replaced by means of training rows: "
        "2 in column 'heat', 1 in column 'kind'.",
        "words that no training row has: 1 in column 'kind'.",
    )


def test_indicators_are_added_for_columns_with_gaps_in_training(tmp_path: Path) -> None:
    rows = [row.replace(",NA,", ",red,") for row in ROWS]
    shards = files(written(tmp_path, *rows), missing="indicator")
    assert shards.names.features == ("heat", "heat is missing", "kind=blue", "kind=red")
    assert shards.scaling.shift.tolist() == [3, 0, 0, 0]  # zeros and ones are not scaled
    assert shards.scaling.factor[1:].tolist() == [1, 1, 1]
    assert sorted(shards.x[:, 1].tolist()) == [0, 0, 0, 0, 1, 1]
    gaps = shards.x[shards.x[:, 1] == 1]
    assert gaps[:, 0].tolist() == [0, 0]  # the mean, scaled


def test_a_later_file_is_encoded_as_the_training_rows_were(tmp_path: Path) -> None:
    shards = files(written(tmp_path, *ROWS), missing="mean", normalise="none")
    kept = Encoding.read(shards.encoding.as_dict())
    assert kept == shards.encoding
    path = written(tmp_path, "red,", "violet,7", header="kind,heat", name="new.csv")
    table = unlabelled(
        Path(path), TableOptions(), features=shards.names.features, shape=(3,),
        encoding=kept,
    )  # fmt: skip
    assert table.x.tolist() == [[3, 0, 1], [7, 0, 0]]
    own = written(
        tmp_path, "-,blue,ok", "2,red,hot", "3,red,", header="heat,kind,label", name="c.csv"
    )
    device = device_file(
        Path(own), features=shards.names.features, classes=shards.names.classes, scaling=shards.scaling,
        shape=(3,), encoding=kept, split=ALL,
    )  # fmt: skip
    assert sorted(device.x[device.train.index].tolist()) == [[2, 0, 1], [3, 1, 0]]
    np.savez(tmp_path / "new.npz", x=table.x)
    array = unlabelled(
        tmp_path / "new.npz", TableOptions(), features=shards.names.features, shape=(3,),
        encoding=kept,
    )  # fmt: skip
    assert array.x.tolist() == table.x.tolist()
    assert device.notes[0] == "1 of 3 rows are left out: label in 1 missing."


def test_gaps_in_arrays_can_be_dropped_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    x = np.array([[1.0], [np.nan], [3], [4]])
    np.savez(path, x=x, y=np.array([0, 1, 1, 0]), device=np.array(["a", "a", "a", "b"]))
    assert len(files(str(path), missing="drop", split=ALL).x) == 3
    with refused('missing = "mean" needs columns with names', 'missing to "drop"'):
        files(str(path), missing="mean", split=ALL)


def test_categorical_names_columns_of_numbers(tmp_path: Path) -> None:
    rows = ["a,01,x", "a,1,y", "b,2,x"]
    path = written(tmp_path, *rows, header="device,code,label")
    shards = files(path, categorical=["code"], split=ALL)
    assert shards.names.features == ("code=01", "code=1", "code=2")
    with refused("has no column 'cods' (did you mean 'code'?)"):
        files(path, categorical=["cods"])


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["2026-01-31", "2026-02-01 10:00"] * 2, ["column 'odd' has dates or times", "weekday"]),
        (["31.01.2026"] * 4, ["exclude = ['odd']", "has dates or times, such as 31.01.2026"]),
        (["10:30"] * 4, ["has dates or times"]),
        ([f"w{row}" for row in range(60)] * 2, ["60 different words", "name it in categorical"]),
        ([f"w{row}" for row in range(20)], ["1 of 2 columns", "exclude = ['odd']"]),
        (["NA"] * 4, ["column 'odd' has no value in any training row"]),
        (["1", "2", "warm"], ["is 'warm', which is not a number"]),
        (["1,5", "2,5"], ["is '1,5', which is not a number"]),
    ],
)
def test_columns_that_do_not_help_are_refused_by_name(
    tmp_path: Path, cells: list[str], words: list[str]
) -> None:
    rows = [f'a,"{cell}",1,{row % 2}' for row, cell in enumerate(cells)]
    path = written(tmp_path, *rows, header="device,odd,heat,label")
    with refused(*words):
        files(path, missing="mean", split=ALL)
    assert files(path, exclude=["odd"], split=ALL).names.features == ("heat",)


def test_files_of_a_folder_agree_which_columns_are_words(tmp_path: Path) -> None:
    written(tmp_path, "1,ok", "2,hot", header="code,label", name="a.csv")
    written(tmp_path, "x,ok", "y,hot", "1,hot", header="code,label", name="b.csv")
    shards = files(str(tmp_path), split=ALL)
    assert shards.names.features == ("code=1", "code=2", "code=x", "code=y")
    assert shards.x.sum(0).tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_separators_are_found(tmp_path: Path, mark: str) -> None:
    lines = [f"device{mark}heat (C, dry){mark}label", f"a{mark}1{mark}x", f"b{mark}2{mark}y"]
    path = tmp_path / "table.csv"
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    shards = files(str(path), split=ALL, normalise="none")
    assert shards.names.features == ("heat (C, dry)",)
    assert shards.x.tolist() == [[1], [2]]


def test_decimal_commas_are_read_if_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, "a;1,5;2,25", "b;-2;3", header="device;heat;label")
    shards = files(path, decimal=",", split=ALL, normalise="none")
    assert shards.x.tolist() == [[1.5], [-2]]
    assert shards.y.tolist() == [2.25, 3]
    with refused('for decimal commas, set decimal = ","', "column 'heat' is '1,5'"):
        files(path)
    with refused("decimal = 'comma'"):
        files(path, decimal="comma")


def test_packed_tables_are_read_and_damage_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"device,heat,label\na,1,x\nb,2,y\n")
    path = tmp_path / "table.csv.gz"
    path.write_bytes(packed)
    assert files(str(path), split=ALL).devices == 2
    path.write_bytes(packed[:-9])
    with refused(path.name, "cannot be"):
        files(str(path), split=ALL)


@pytest.mark.parametrize("ending", [".xz", ".bz2", ".zip"])
def test_only_gzip_is_unpacked(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.csv{ending}"
    path.write_bytes(b"")
    with refused(path.name, "packed as .gz"):
        files(str(path))


def test_packed_files_of_a_folder_name_their_devices(tmp_path: Path) -> None:
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress(b"heat,label\n1,x\n"))
    written(tmp_path, "2,y", header="heat,label", name="two.csv")
    assert files(str(tmp_path), split=ALL).names.devices == ("one", "two")


def test_rare_classes_train(tmp_path: Path) -> None:
    rows = [f"a,{row},{row % 2}" for row in range(60)]
    rows += [f"a,{row},{label}" for row, label in ((60, 7), (61, 7), (62, 8))]
    path = written(tmp_path, *rows, header="device,heat,label")
    moved = 0
    for seed in range(6):
        shards = files(path, seed=seed, normalise="none")
        parts = [shards.part(split).index.tolist() for split in ("train", "validation", "test")]
        assert sorted(chain.from_iterable(parts)) == list(range(63))
        assert {*shards.y[parts[0]].tolist()} == {0, 1, 2, 3}
        moved += len(shards.notes)
    assert moved  # some draw puts no row of a class into training


def test_parts_that_the_table_names_stay(tmp_path: Path) -> None:
    rows = ["a,1,red,ok,train", "a,2,red,odd,test"]
    with refused("class 'odd' is unseen in training"):
        files(written(tmp_path, *rows))


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "iid", "devices": 4},
        {"partition": "labels", "devices": 4, "labels": 1},
        {"partition": "dirichlet", "devices": 4, "alpha": 0.5},
    ],
)
def test_a_table_without_devices_is_dealt(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = [f"{row},{row % 4}" for row in range(80)]
    path = written(tmp_path, *rows, header="heat,label")
    shards = files(path, normalise="none", **options)
    assert shards.devices == 4
    assert shards.names.devices == ()
    held = [shards.part(split).index.tolist() for split in ("train", "validation", "test")]
    assert sorted(chain.from_iterable(held)) == list(range(80))
    again = files(path, normalise="none", **options)
    assert shards.fingerprint() == again.fingerprint()
    if options["partition"] == "labels":
        assert ((shards.labels() > 0).sum(1) == 1).all()


def test_a_dealt_table_keeps_its_parts(tmp_path: Path) -> None:
    rows = [f"{row},{row % 2},{'test' if row < 10 else 'train'}" for row in range(40)]
    path = written(tmp_path, *rows, header="heat,label,split")
    shards = files(path, partition="iid", devices=2, normalise="none")
    assert sorted(shards.x[shards.test.index].flatten().tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["no column 'device'", 'partition = "iid"']),
        ({"devices": 3}, ["devices = 3 is an option of a partition", 'partition = "iid"']),
        ({"partition": "even"}, ["partition='even'; choose one of iid"]),
        ({"partition": "iid", "alpha": 1.0}, ["alpha=1.0 is not an option of partition 'iid'"]),
        ({"partition": "iid", "devices": 9}, ["only 4 examples"]),
        ({"partition": "iid", "device": "who"}, ["no column 'who'", "leave out device = 'who'"]),
        ({"partition": "iid", "edge": "place"}, ["has a column 'place'", "exclude = ['place']"]),
    ],
)
def test_refuses_partitions(tmp_path: Path, options: dict[str, Any], words: list[str]) -> None:
    rows = ["1,x,0", "2,x,1", "3,y,0", "4,y,1"]
    with refused(*words):
        files(written(tmp_path, *rows, header="heat,place,label"), **options)


def test_a_folder_is_not_dealt(tmp_path: Path) -> None:
    written(tmp_path, "1,0", header="heat,label")
    with refused("a file per device", "leave out partition"):
        files(str(tmp_path), partition="iid")


def test_missing_is_one_of_four(tmp_path: Path) -> None:
    with refused(
        "missing = 'median' (did you mean 'mean'?): choose one of 'error', 'drop', 'mean', 'indicator'"
    ):
        files(written(tmp_path, *ROWS), missing="median")  # type: ignore[arg-type]


def test_parquet_has_words_gaps_and_dates(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = {
        "device": ["a", "a", "b", None], "heat": [1.0, None, 3.0, 4.0], "kind": ["red", "blue", None, "red"],
        "on": [True, False, True, None], "day": [datetime.date(2026, 1, 31)] * 4, "label": [1, 0, 1, 0],
    }  # fmt: skip
    path = tmp_path / "table.parquet"
    parquet.write_table(arrow.table(cells), path)
    with refused("column 'day' has dates or times, such as 2026-01-31"):
        files(str(path), missing="mean", split=ALL)
    shards = files(str(path), missing="mean", exclude=["day"], split=ALL, normalise="none")
    assert shards.names.features == ("heat", "kind=blue", "kind=red", "on=False", "on=True")
    assert rows_of(shards, "train")[1][:3] == [2, 1, 0]
    assert shards.notes[0] == "1 of 4 rows are left out: device in 1 missing."
    with refused("row 1: column 'heat' is empty", "row 2: column 'kind' is empty"):
        files(str(path), exclude=["day", "on", "device"], partition="iid", devices=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclude": ["label"]}, ["exclude = ['label'] has the label 'label'"]),
        ({"exclude": ["kind"], "categorical": ["kind"]}, ["kind is in exclude and in"]),
        ({"features": ["heat"], "categorical": ["kind"]}, ["which features does not list"]),
        ({"exclude": ["kinds"]}, ["no column 'kinds' (did you mean 'kind'?)"]),
    ],
)
def test_lists_of_columns_agree(tmp_path: Path, options: Any, words: list[str]) -> None:
    with refused(*words):
        files(written(tmp_path, *ROWS), missing="drop", **options)


def test_a_missing_target_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a,1,1.5", "a,2,NA", "a,3,2.5", header="device,heat,label")
    with refused('set missing to "drop"', "line 3: label is 'NA', a missing value"):
        files(path, regression=True)
    assert files(path, missing="drop", split=ALL).y.tolist() == [1.5, 2.5]


def test_an_index_without_a_name_can_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "0,a,1,x", "1,a,2,y", header=",device,heat,label")
    with refused("column 1", "has no name", "exclude = ['']"):
        files(path)
    assert files(path, exclude=[""], split=ALL).names.features == ("heat",)


def test_columns_of_python_are_encoded_as_files_are(tmp_path: Path) -> None:
    shards = files(written(tmp_path, *ROWS), missing="mean", normalise="none")
    assert shards.encoding is not None
    table = named_columns({"heat": [None, 7.0], "kind": ["red", math.nan]}, shards.encoding)
    assert shards.encoding.inputs(table)[0].tolist() == [3, 0, 1]
    assert shards.encoding.inputs(table)[1].tolist() == pytest.approx([7, 1 / 3, 2 / 3])
    examples = {"heat": torch.tensor([1.0, math.nan]), "kind": np.array(["red", "blue"])}
    assert shards.encoding.inputs(named_columns(examples, shards.encoding)).shape == (2, 3)
    whole: dict[str, Any] = {"heat": np.array(1.5), "kind": "red"}
    assert shards.encoding.inputs(named_columns(whole, shards.encoding)).shape == (1, 3)
    for columns, words in (
        ({"heat": torch.zeros(1, 2), "kind": ["red"]}, "column 'heat' is '[0.0, 0.0]'"),
        ({"heat": np.full((1, 2), math.nan), "kind": ["red"]}, "column 'heat' is '[nan, nan]'"),
        ({"heat": [1]}, "no column kind"),
        ({"heat": ["warm"], "kind": ["red"]}, "example 0: column 'heat' is 'warm'"),
        ({"heat": [1, 2], "kind": ["red"]}, "column 'kind' has 1 examples"),
    ):
        with refused(words):
            named_columns(columns, shards.encoding)
    strict = files(written(tmp_path, *ROWS), missing="drop").encoding
    assert strict is not None
    with refused("example 0: column 'heat' is empty"):
        named_columns({"heat": [None], "kind": ["red"]}, strict)


def test_words_for_a_regression_are_told_to_be_classes(tmp_path: Path) -> None:
    table = tmp_path / "cars.csv"
    rows = [f"{device},{weight},USA" for device in "ab" for weight in (1, 2, 3)]
    table.write_text("\n".join(["device,weight,label", *rows]), "utf-8")
    with pytest.raises(DataError, match="leave out the loss or regression"):
        files(str(table), regression=True)


def test_words_in_a_later_file_are_refused_where_training_had_numbers(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "warm,x", header="heat,label"))
    with refused("correct or remove them:", "line 2: column 'heat' is 'warm'"):
        device_file(path, features=["heat"], classes=["x", "y"], scaling=None)
    table = unlabelled(path, TableOptions(), features=["heat"], shape=(1,))
    with refused("column 'heat' is 'warm', which is not a number"):
        table.faults.refuse("correct it")
