"""Files become shards, each device with its own rows, or a message that names the file, the line
and what to do.
"""

import csv
import re
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.data.shards import SPLITS, Shards
from covey.data.tables.files import device_file, files
from covey.data.tables.options import TableOptions
from covey.data.tables.scaling import Scaling
from covey.data.tables.tables import Faults
from tests.given import refused

HEADER = "device,edge,heat,flow,label"
ROWS = [
    "a,north,1,10,ok", "a,north,2,20,hot", "b,south,3,30,ok", "c,north,4,40,hot", "b,south,5,50,ok",
    "c,north,6,60,ok",
]  # fmt: skip
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data" / "pumps.csv"
ALL = (1.0, 0.0, 0.0)  # every row trains


def table(folder: Path, *rows: str, header: str = HEADER, name: str = "pumps.csv") -> str:
    """The path of a new table with these lines."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def arrays(path: Path, **named: Any) -> str:
    """The path of a new `.npz` file with these arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: np.asarray(array) for name, array in named.items()})  # type: ignore[arg-type]
    return str(path)


def held(shards: Shards, device: int, split: str = "train") -> list[Any]:
    """The examples of a device as they stand in the file, label last."""
    rows = shards.part(split).held(device)
    return [(*x, y) for x, y in zip(shards.x[rows].tolist(), shards.y[rows].tolist(), strict=True)]


def everything(shards: Shards, device: int) -> Counter[Any]:
    """All examples of a device, however they are split."""
    return Counter(row for split in SPLITS for row in held(shards, device, split))


def test_devices_are_ordered_by_edge_and_edges_by_appearance(tmp_path: Path) -> None:
    shards = files(table(tmp_path, *ROWS), normalise="none", split=ALL)
    assert shards.names.devices == ("a", "c", "b")
    assert shards.names.edges == ("north", "south")
    assert shards.edges == (2, 1)
    assert shards.names.features == ("heat", "flow")
    assert (shards.names.classes, shards.classes) == (("hot", "ok"), 2)
    assert shards.name == "pumps.csv"
    assert sorted(held(shards, 1)) == [(4, 40, 0), (6, 60, 1)]
    assert sorted(held(shards, 2)) == [(3, 30, 1), (5, 50, 1)]
    assert (shards.x.dtype, shards.y.dtype) == (torch.float32, torch.int64)


def test_a_table_needs_no_edges(tmp_path: Path) -> None:
    shards = files(table(tmp_path, "a,1,x", "b,2,y", header="device,heat,label"), split=ALL)
    assert (shards.edges, shards.names.edges, shards.devices) == ((), (), 2)


def test_the_split_column_decides(tmp_path: Path) -> None:
    rows = ["a,1,x,train", "a,2,y,test", "b,3,y,train", "a,4,x,validation", "b,5,x,train"]
    shards = files(
        table(tmp_path, *rows, header="device,heat,label,split"), normalise="none", split=(0, 0, 1)
    )
    assert [held(shards, 0, split) for split in SPLITS] == [[(1, 0)], [(4, 0)], [(2, 1)]]
    assert [held(shards, 1, split) for split in SPLITS] == [[(3, 1), (5, 0)], [], []]


def test_columns_may_have_other_names_and_features_be_chosen(tmp_path: Path) -> None:
    rows = ["7,a,z,hot,1,train", "9,a,z,ok,2,train"]
    path = table(tmp_path, *rows, header="heat,pump,site,state,note,use")
    shards = files(
        path, label="state", device="pump", edge="site", part="use", features=["heat"], normalise="none",
    )  # fmt: skip
    assert shards.names.features == ("heat",)
    assert shards.names.edges == ("z",)
    assert held(shards, 0) == [(7, 0), (9, 1)]


def test_without_a_split_column_each_device_is_split_by_the_seed(tmp_path: Path) -> None:
    path = table(
        tmp_path, *[f"{device},n,{row},0,{row % 2}" for row in range(20) for device in "ab"]
    )
    one, again, other = (files(path, seed=seed) for seed in (1, 1, 2))
    assert [one.part(split).counts().tolist() for split in SPLITS] == [[12, 12], [3, 3], [5, 5]]
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()


def test_training_rows_alone_are_scaled_by(tmp_path: Path) -> None:
    rows = ["a,1,5,x,train", "b,3,5,y,train", "a,100,7,x,test"]
    shards = files(table(tmp_path, *rows, header="device,heat,flow,label,split"))
    assert held(shards, 0) == [(-1, 0, 0)]
    # mean 2 and deviation 1; a feature that does not vary is only shifted
    assert held(shards, 0, "test") == [(98, 2, 0)]
    assert shards.scaling.shift.tolist() == [2, 5]


def test_large_values_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    rows = [f"a,{1_700_000_000 + row},{row % 2}" for row in range(4)]
    shards = files(table(tmp_path, *rows, header="device,time,label"), split=ALL)
    assert len(shards.x.unique()) == 4


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["ok", "9", "10"], ("10", "9", "ok")),
        (["True", "False", "True"], ("False", "True")),
        (["1.5", "2", "-3e2"], None),
    ],
)
def test_labels_are_classes_or_numbers(
    tmp_path: Path, labels: list[str], classes: tuple[str, ...] | None
) -> None:
    path = table(tmp_path, *[f"a,1,{label}" for label in labels], header="device,heat,label")
    shards = files(path, split=ALL)
    order = shards.train.index.argsort()
    if classes is None:
        assert (shards.classes, shards.names.classes, shards.y.dtype) == (None, (), torch.float32)
        assert shards.y[shards.train.index][order].tolist() == [float(label) for label in labels]
    else:
        assert (shards.classes, shards.names.classes) == (len(classes), classes)
        assert [classes[at] for at in shards.y.tolist()] == labels


def test_whole_numbers_may_be_targets_and_classes_may_be_listed(tmp_path: Path) -> None:
    path = table(tmp_path, "a,1,4", "a,1,2", header="device,heat,label")
    assert files(path, regression=True, split=ALL).y.tolist() == [4, 2]
    listed = files(path, classes=["4", "3", "2"], split=ALL)
    assert (listed.classes, listed.y.tolist()) == (3, [0, 2])


def test_quotes_byte_order_marks_line_ends_blanks_and_spaces(tmp_path: Path) -> None:
    path = tmp_path / "pumps.CSV"
    path.write_bytes(
        b'\xef\xbb\xbfdevice, "the, heat", label \r\n"a ""1""",1.5, ok \r\n\r\n"b", 2e0 ,"two\r\nlines"\r\n'
    )
    shards = files(str(path), normalise="none", split=ALL)
    assert shards.names.devices == ('a "1"', "b")
    assert shards.names.features == ("the, heat",)
    assert shards.names.classes == ("ok", "two\r\nlines")
    assert shards.x.tolist() == [[1.5], [2]]


def test_a_folder_is_one_file_per_device_and_subfolders_are_edges(tmp_path: Path) -> None:
    table(tmp_path, "1,10,x", "2,20,y", header="heat,flow,label", name="south/b.csv")
    # other order, and it names itself
    table(tmp_path, "x,40,4,me", header="label,flow,heat,device", name="north/c.csv")
    arrays(tmp_path / "data" / ".hidden" / "d.npz", x=[[0]], y=[0])
    (tmp_path / "notes.txt").write_text("not data")
    shards = files(str(tmp_path), normalise="none", split=ALL)
    assert (shards.names.devices, shards.names.edges) == (("c", "b"), ("north", "south"))
    assert shards.edges == (1, 1)
    assert shards.names.features == ("flow", "heat")
    assert held(shards, 0) == [(40, 4, 0)]
    assert sorted(held(shards, 1)) == [(10, 1, 0), (20, 2, 1)]


def test_a_folder_without_subfolders_has_no_edges(tmp_path: Path) -> None:
    for name in "ba":
        arrays(tmp_path / f"{name}.npz", x=np.zeros((2, 3)), y=[0, 1])
    shards = files(str(tmp_path), split=ALL)
    assert (shards.names.devices, shards.edges, shards.names.features) == (("a", "b"), (), ())


def test_arrays_may_be_split_beforehand_and_be_images(tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 1, 3, 3)
    for name in "ab":
        arrays(
            tmp_path / f"{name}.npz", train_x=x, train_y=[1, 7], test_x=x[1:], test_y=[7], validation_x=x[:0],
            validation_y=[],
        )  # fmt: skip
    shards = files(str(tmp_path), normalise="unit")
    assert [shards.part(split).counts().tolist() for split in SPLITS] == [[2, 2], [0, 0], [1, 1]]
    assert shards.x.shape == (6, 1, 3, 3)
    assert torch.allclose(shards.x[1], torch.from_numpy(x[1]) / 255)
    assert shards.names.classes == ("1", "7")


def test_arrays_may_be_a_table(tmp_path: Path) -> None:
    path = arrays(
        tmp_path / "all.npz", x=[[1.0], [2.0], [3.0]], y=["p", "q", "p"], device=[b"b", b"a", b"b"], edge=["n", "m", "n"],
        split=["train", "train", "test"],
    )  # fmt: skip
    shards = files(path, normalise="none")
    assert (shards.names.devices, shards.names.edges) == (("b", "a"), ("n", "m"))
    assert [held(shards, 0, split) for split in SPLITS] == [[(1, 0)], [], [(3, 0)]]


@pytest.mark.parametrize(("y", "classes"), [([0.5, 1.0], None), ([3, 4], 2), ([True, False], 2)])
def test_the_type_of_an_array_says_whether_labels_are_classes(
    tmp_path: Path, y: list[Any], classes: int | None
) -> None:
    path = arrays(tmp_path / "d.npz", x=[[1], [2]], y=y, device=[0, 0])
    assert files(path, split=ALL).classes == classes


def test_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "device": [2, 1, 2], "heat": [1, 2, 3], "on": [True, False, True], "label": ["x", "y", "x"],
    }  # fmt: skip
    parquet.write_table(arrow.table(columns), tmp_path / "pumps.parquet")
    shards = files(str(tmp_path / "pumps.parquet"), normalise="none", split=ALL)
    assert (shards.names.devices, shards.names.features) == (("2", "1"), ("heat", "on"))
    assert shards.names.classes == ("x", "y")
    assert sorted(held(shards, 0)) == [(1, 1, 0), (3, 1, 0)]


def test_parquet_names_bad_rows(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = {
        "device": ["a", None, "b", "c"],
        "heat": [1.0, 2.0, None, float("inf")],
        "word": ["1", "2", "3", "x"],
    }
    parquet.write_table(arrow.table({**cells, "label": [1] * 4}), tmp_path / "pumps.parquet")
    with refused(
        "3 rows",
        "row 1: column 'device' is empty",
        "row 2: column 'heat' is empty",
        "row 3: column 'heat' is inf",
    ):
        files(str(tmp_path / "pumps.parquet"))
    with refused("row 3: column 'word' is 'x', which is not a number"):
        files(str(tmp_path / "pumps.parquet"), features=["word"])
    (tmp_path / "pumps.parquet").write_bytes(b"no parquet at all")
    with refused("pumps.parquet cannot be read"):
        files(str(tmp_path / "pumps.parquet"))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "pumps.parquet").touch()
    with refused("read", "pumps.parquet", "pyarrow", "pip install '.[parquet]'"):
        files(str(tmp_path / "pumps.parquet"))


def test_the_example() -> None:
    shards = files(str(EXAMPLE))
    assert EXAMPLE.stat().st_size < 60_000
    assert (shards.devices, shards.edges) == (16, (5, 4, 4, 3))
    assert shards.names.classes == ("blocked", "normal", "worn")
    assert shards.x.shape[1:] == (6,)


numbers = st.floats(-1e6, 1e6, width=32)
examples = st.lists(st.tuples(numbers, numbers, st.sampled_from("xyz")), min_size=1, max_size=6)
names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=4)


@given(owned=st.dictionaries(names, examples, min_size=1, max_size=5), data=st.data())
def test_a_table_gives_back_what_was_written_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, owned: dict[str, list[Any]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "pumps.csv"
    edge = {device: data.draw(st.sampled_from(["north", "south"])) for device in owned}
    rows = data.draw(
        st.permutations(
            [(device, edge[device], *row) for device, rows in owned.items() for row in rows]
        )
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER.split(","), *rows])
    shards = files(str(path), normalise="none", split=ALL)
    assert sorted(shards.names.devices) == sorted(owned)
    for at, device in enumerate(shards.names.devices):
        have = Counter(
            (x, z, shards.names.classes[y]) for x, z, y in everything(shards, at).elements()
        )
        assert have == Counter(owned[device])
    under = np.repeat(shards.names.edges, shards.edges).tolist()
    assert under == [edge[device] for device in shards.names.devices]


def test_names_the_first_five_bad_rows(tmp_path: Path) -> None:
    rows = [
        "a,n,1,2,ok", "a,n,,2,ok", "a,n,warm,2,ok", "", '"a","n",1,"2\n",ok', " ,n,1,nan,ok",
        "a,n,1,2, ", "a,n,1,2", "a,n,1,-inf,ok", "a,n,1e39,1,ok", "a,,1_000,1,ok",
    ]  # fmt: skip
    with refused(
        "8 rows cannot be used; correct or remove them",
        "pumps.csv, line 3: column 'heat' is empty",
        "pumps.csv, line 4: column 'heat' is 'warm', which is not a number",
        "pumps.csv, line 8: column 'device' is empty",
        "pumps.csv, line 9: column 'label' is empty",
        "pumps.csv, line 10: has 4 cells where the header has 5",
        "and 3 more",
    ):
        files(table(tmp_path, *rows))
    with refused(
        "line 11: column 'flow' is infinite",
        "line 12: column 'heat' is 1e39, too large for float32",
        "line 13: column 'edge' is empty",
    ):
        files(
            table(tmp_path, *rows[:2], *["a,n,1,2,ok"] * 7, *rows[-3:]), features=["heat", "flow"]
        )
    with refused("line 2: column 'heat' is '1_000', which is not a number"):
        files(table(tmp_path, "a,n,1_000,1,ok"))


def test_a_bad_row_is_found_beyond_the_first_chunk_and_in_one_feature(tmp_path: Path) -> None:
    rows = [f"a,{row},ok" for row in range(1000)] + ["a,nan,ok"]
    with refused("1 row cannot", "line 1002: column 'heat' is NaN"):
        files(table(tmp_path, *rows, header="device,heat,label"))


def test_bad_rows_of_several_files_are_told_together(tmp_path: Path) -> None:
    table(tmp_path, "x,ok", header="heat,label", name="a.csv")
    table(tmp_path, "1,ok", "1,", header="heat,label", name="b.csv")
    with refused(
        "2 rows", "a.csv, line 2: column 'heat' is 'x'", "b.csv, line 3: column 'label' is empty"
    ):
        files(str(tmp_path))


def test_names_bad_rows_of_arrays(tmp_path: Path) -> None:
    x = np.array([[1.0, 2], [np.nan, 1], [1, 1e200]])
    with refused("row 1: a value of x is NaN", "row 2: a value of x is 1e+200, too large"):
        files(arrays(tmp_path / "all.npz", x=x, y=[0, 1, 1], device=list("aab")))
    parts = {"train_x": x[:1], "train_y": [1], "test_x": x[1:2], "test_y": [1]}
    arrays(tmp_path / "one" / "a.npz", **parts)
    with refused("test row 0: a value of x is NaN"):
        files(str(tmp_path / "one"))
    gaps = {"x": np.zeros((3, 1)), "y": ["a", "b", ""], "device": ["a", "", "b"]}
    with refused("row 1: column 'device' is empty", "row 2: column 'y' is empty"):
        files(arrays(tmp_path / "all.npz", **gaps))


SPLIT = "device,heat,label,split"
LABELS = "device,heat,label"
BAD_ROWS: dict[str, tuple[str, list[str], dict[str, Any], list[str]]] = {
    "an unknown part": (SPLIT, ["a,1,x,train", "a,2,x,Test"], {}, ["line 3: column 'split' is 'Test', not train, valid"]),
    "a device under two edges": (
        HEADER, ["a,north,1,1,x", "b,south,1,1,x", "a,south,1,1,x"], {},
        ["give each device one edge", "line 4: device 'a' is under edge 'south'", "'north' in", "pumps.csv, line 2"],
    ),
    "a class unseen in training": (
        SPLIT, ["a,1,x,train", "a,2,odd,test", "b,1,y,train", "b,2,odd,validation", "b,2,x,test"], {},
        ["2 rows", "somebody trains on", "line 3: class 'odd' is unseen in training", "line 5: class 'odd'"],
    ),
    "a word among numbers": (LABELS, ["a,1,0.5", "a,1,1.5", "a,1,high"], {}, ["1 row", "line 4: label 'high' is not a number as"]),
    "a number among words": (LABELS, ["a,1,low", "a,1,high", "a,1,nan"], {}, ["1 row", "line 4: label 'nan' is a number where"]),
    "an infinite label": (LABELS, ["a,1,0.5", "a,1,inf", "a,1,1"], {}, ["1 row", "line 3: label is infinite"]),
    "a label that is no number": (LABELS, ["a,1,1", "a,1,nan", "a,1,2"], {}, ["1 row", "line 3: label is NaN"]),
    "words as numbers": (HEADER, ROWS, {"regression": True}, ["6 rows", "line 2: label is 'ok', which is not a number"]),
    "other classes": (HEADER, ROWS, {"classes": ["ok", "cold"]}, ["2 rows", "line 3: label 'hot' is not among the classes ok, cold"]),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_ROWS)
def test_refuses_rows(tmp_path: Path, what: str) -> None:
    header, rows, options, words = BAD_ROWS[what]
    path = table(tmp_path, *rows, header=header)
    with refused(*words):
        files(path, **options)


def test_a_device_without_a_row_to_train_on_receives(tmp_path: Path) -> None:
    header = "device,heat,label,split"
    shards = files(table(tmp_path, "a,1,x,train", "b,2,x,test", header=header))
    assert shards.receivers.tolist() == [1]
    with refused("none of the 2 devices has a row to train on (a, b)", "leave the column"):
        files(table(tmp_path, "a,1,x,test", "b,2,x,test", header=header))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"label": "labl"},
            ["no column 'labl' (did you mean 'label'?)", "columns are device, edge, heat, flow, label"],
        ),
        ({"device": "machine"}, ["no column 'machine'", "columns are device, edge"]),
        ({"edge": "edges"}, ["no column 'edges' (did you mean 'edge'?)"]),
        ({"part": "use"}, ["no column 'use'; its columns"]),
        ({"features": ["heat", "flaw"]}, ["no column 'flaw' (did you mean 'flow'?)"]),
        ({"features": ["heat", "label"]}, ["features = ['heat', 'label']"]),
        ({"features": []}, ["features = []", "at least one column"]),
        ({"label": "device"}, ["label = 'device', device = 'device'", "four different columns"]),
        ({"classes": ["x"], "regression": True}, ["classes = ['x'] and regression = True"]),
        ({"classes": ["x", "x"]}, ["classes = ['x', 'x']", "each class once"]),
        ({"normalise": "max"}, ["normalise = 'max'", "'standard'"]),
        ({"split": (0.5, 0.5, 0.5)}, ["split=(0.5, 0.5, 0.5)", "sum to 1"]),
    ],
)  # fmt: skip
def test_refuses_options(tmp_path: Path, options: dict[str, Any], words: list[str]) -> None:
    with refused(*words):
        files(table(tmp_path, *ROWS), **options)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("device,,label", ["column 2 of", "has no name"]),
        ("device,heat,heat,label", ["2 columns 'heat'", "a name of its own"]),
        ("device,label", ["no column of features beside device, label"]),
        (",".join(f"f{at}" for at in range(30)), ["no column 'label'", "f19 and 10 more"]),
    ],
)
def test_refuses_headers(tmp_path: Path, header: str, words: list[str]) -> None:
    with refused("pumps.csv") as caught:
        files(table(tmp_path, header=header))
    assert re.search("(?s)" + ".*".join(map(re.escape, words)), str(caught.value))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["pumps.csv is empty", "must name the columns"]),
        (b"\n\n", ["pumps.csv is empty"]),
        (b"device,heat,label\n", ["pumps.csv has no rows", "leave it out"]),
        (b'device,heat,label\na,1,x\na,"1,x\na,2,y\n', ["pumps.csv, line 4: unexpected end"]),
        (b'device,heat,label\na,"1"2,x\n', ["pumps.csv, line 2", "quote"]),
        ("device,heat,label\nä,1,x\n".encode("latin-1"), ["pumps.csv is not text in UTF-8"]),
        ("device,heat,label\na,1,x\n".encode("utf-16"), ["pumps.csv is not text in UTF-8"]),
    ],
)
def test_refuses_what_is_not_a_table(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "pumps.csv").write_bytes(content)
    with refused(*words):
        files(str(tmp_path / "pumps.csv"))


def test_refuses_what_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with refused("no file or folder", "nowhere.csv", "current folder"):
        files(str(tmp_path / "nowhere.csv"))
    with refused("nowhere.csv cannot be read: No such file"):
        device_file(tmp_path / "nowhere.csv", features=(), classes=2, scaling=None)
    (tmp_path / "pumps.xls").touch()
    with refused("pumps.xls is no .csv, .tsv, .parquet or .npz file"):
        files(str(tmp_path / "pumps.xls"))


def test_refuses_folders(tmp_path: Path) -> None:
    with refused("no .csv, .tsv, .parquet or .npz file in the folder", "for each device"):
        files(str(tmp_path))
    table(tmp_path, "1,x", header="heat,label", name="north/a.csv")
    table(tmp_path, "1,x", header="heat,label", name="south/a.csv")
    with refused("north/a.csv and south/a.csv", "both called 'a'", "rename"):
        files(str(tmp_path))
    (tmp_path / "south" / "a.csv").rename(tmp_path / "b.csv")
    with refused("with an edge and without, such as b.csv and north/a.csv", "a subfolder"):
        files(str(tmp_path))
    table(tmp_path, "1,x", header="heat,label", name="one/two/c.csv")
    (tmp_path / "b.csv").unlink()
    with refused("one/two/c.csv lies too deep"):
        files(str(tmp_path))


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("heat,label", "1,x", ["compared with", "a.csv", "b.csv lacks flow"]),
        ("heat,flow,label,rain", "1,2,x,3", ["b.csv has rain besides"]),
        ("heat,flaw,label", "1,2,x", ["b.csv lacks flow and has flaw besides"]),
        ("heat,flow,label,split", "1,2,x,train", ["b.csv is split into parts (column 'split')"]),
    ],
)
def test_refuses_files_of_different_forms(
    tmp_path: Path, header: str, row: str, words: list[str]
) -> None:
    table(tmp_path, "1,2,x", header="heat,flow,label", name="a.csv")
    table(tmp_path, row, header=header, name="b.csv")
    with refused(*words):
        files(str(tmp_path))


def test_a_part_column_that_was_named_is_needed_in_every_file(tmp_path: Path) -> None:
    table(tmp_path, "1,x,train", header="heat,label,use", name="a.csv")
    table(tmp_path, "1,x", header="heat,label", name="b.csv")
    with refused("b.csv has no column 'use'"):
        files(str(tmp_path), part="use")


def test_refuses_several_devices_in_a_file_of_a_folder(tmp_path: Path) -> None:
    table(tmp_path, *ROWS, name="all.csv")
    with refused("all.csv should hold one device", "column 'device' has 3 values (a, b, c)"):
        files(str(tmp_path))


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"x": [[1.0]]}, ["no array 'y' among x", "give x and y"]),
        ({"heat": [1.0]}, ["no array 'x' among heat"]),
        ({}, ["no array 'x' among none at all"]),
        ({"train_x": [[1.0]], "test_x": [[1.0]]}, ["no array 'y' among x"]),
        (
            {"train_x": [[1.0]], "train_y": [1], "test_x": [[1.0, 2.0]], "test_y": [1]},
            ["shapes [(1,), (2,)]", "same features"],
        ),
        ({"x": [[1.0], [2.0]], "y": [1]}, ["x (2, 1), y (1,)", "one row for each example"]),
        ({"x": [1.0], "y": [1]}, ["x (1,), y (1,)"]),
        ({"x": [[1.0]], "y": [[1.0, 2.0]]}, ["y (1, 2)", "one value"]),
        ({"x": [["a"]], "y": [1]}, ["x in", "<U1", "astype('float32')"]),
        ({"x": [[1.0]], "y": np.array([None])}, ["cannot be read", "Object arrays"]),
        ({"x": np.zeros((0, 2)), "y": []}, ["d.npz has no rows"]),
    ],
)
def test_refuses_arrays(tmp_path: Path, named: dict[str, Any], words: list[str]) -> None:
    arrays(tmp_path / "d.npz", **named)
    with refused("d.npz") as caught:
        files(str(tmp_path))
    assert re.search("(?s)" + ".*".join(map(re.escape, words)), str(caught.value))


def test_refuses_arrays_that_are_damaged_or_lack_a_device(tmp_path: Path) -> None:
    path = Path(arrays(tmp_path / "d.npz", x=np.zeros((2, 2)), y=[0, 1]))
    with refused("no array 'device' among x, y", "in a table of several devices, device"):
        files(str(path))
    with refused("features = ['heat']", "d.npz have no names", "leave features out"):
        files(str(tmp_path), features=["heat"])
    for content in (b"not a zip", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with refused("d.npz cannot be read", "numpy.savez"):
            files(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"no array")
    with refused("d.npz cannot be read"):
        files(str(path))


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    arrays(tmp_path / "d.npz", x=np.zeros((1, 1)), y=np.array([Trap()]))
    with refused("cannot be read"):
        files(str(tmp_path / "d.npz"))
    assert not (tmp_path / "sprung").exists()


def test_refuses_examples_of_different_shapes(tmp_path: Path) -> None:
    arrays(tmp_path / "a.npz", x=np.zeros((2, 3)), y=[0, 1])
    arrays(tmp_path / "b.npz", x=np.zeros((2, 4)), y=[0, 1])
    with refused("shape (3,) in", "a.npz and (4,) in", "b.npz", "the same features"):
        files(str(tmp_path))


def test_a_row_counts_once_and_its_first_fault_is_told() -> None:
    faults = Faults()
    faults.refuse("never mind")
    faults.add("t.csv, line", 3, "first")
    faults.add("t.csv, line", 3, "second")
    with refused("1 row cannot be used; mend it:", "t.csv, line 3: first"):
        faults.refuse("mend it")


def test_columns_know_what_is_left_for_features() -> None:
    assert TableOptions().chosen(["a", "label", "b", "split"]) == ("a", "b")


def trained(folder: Path) -> Shards:
    return files(table(folder, *ROWS), split=ALL)


def like(old: Shards) -> dict[str, Any]:
    """How the file of a new device is read."""
    names = old.names
    return {"features": names.features, "classes": names.classes, "scaling": old.scaling}


def test_a_new_device_is_read_as_the_others_were(tmp_path: Path) -> None:
    old = trained(tmp_path)
    path = Path(
        table(tmp_path, "ok,7,20,2", "hot,7,40,4", header="label,rain,flow,heat", name="new.csv")
    )
    new = device_file(
        path, features=old.names.features, classes=old.names.classes, scaling=old.scaling, split=ALL
    )
    assert (new.devices, new.names.devices, new.name, new.classes) == (1, ("new",), "new", 2)
    assert new.names.features == ("heat", "flow")
    assert torch.equal(new.x, old.x[[1, 3]])
    assert new.y.tolist() == [1, 0]


def test_a_new_device_may_bring_arrays_numbers_and_its_own_split(tmp_path: Path) -> None:
    path = Path(
        arrays(
            tmp_path / "new.npz", train_x=[[2.0], [4.0]], train_y=[2, 0], test_x=[[6.0]], test_y=[1]
        )
    )
    scale = Scaling("standard", torch.tensor([2.0]), torch.tensor([0.5]))
    new = device_file(path, features=(), classes=3, scaling=scale)
    assert (held(new, 0), held(new, 0, "test")) == ([(0, 2), (1, 0)], [(2, 1)])
    assert (new.classes, new.names.classes) == (3, ())
    assert device_file(path, features=(), classes=None, scaling=None).y.tolist() == [2, 0, 1]


def test_a_new_device_is_split_by_the_seed(tmp_path: Path) -> None:
    rows = [f"{row},{row % 2}" for row in range(20)]
    path = Path(table(tmp_path, *rows, header="heat,label", name="new.csv"))
    options: dict[str, Any] = {"features": ["heat"], "classes": 2, "scaling": None}
    new = device_file(path, **options)
    assert [new.part(split).counts().tolist() for split in SPLITS] == [[12], [3], [5]]
    assert device_file(path, seed=1, **options).fingerprint() != new.fingerprint()


FORM = "heat,flow,label"
NEW: dict[str, tuple[str, list[str], dict[str, Any], list[str]]] = {
    "another class": (FORM, ["1,1,ok", "1,1,cold"], {}, ["1 row", "new.csv, line 3: label 'cold' is not among the classes hot, ok"]),
    "another column": ("heat,flaw,label", ["1,1,ok"], {}, ["new.csv has no column 'flow' (did you mean 'flaw'?)"]),
    "a number beyond the classes": (FORM, ["1,1,2"], {"classes": 2}, ["line 2: label '2' is not among the classes 0, 1"]),
    "a word as a number": (FORM, ["1,1,ok"], {"classes": None}, ["line 2: label is 'ok', which is not a number"]),
    "several devices": (HEADER, ROWS, {}, ["should hold one device", "3 values"]),
}  # fmt: skip


@pytest.mark.parametrize("what", NEW)
def test_refuses_a_new_device_that_does_not_fit(tmp_path: Path, what: str) -> None:
    header, rows, changes, words = NEW[what]
    path = table(tmp_path, *rows, header=header, name="new.csv")
    with refused(*words):
        device_file(Path(path), **{**like(trained(tmp_path)), **changes})


def test_refuses_arrays_of_a_new_device_that_do_not_fit(tmp_path: Path) -> None:
    path = Path(arrays(tmp_path / "new.npz", x=[[1.0, 2, 3]], y=["ok"]))
    old = like(trained(tmp_path))
    with refused("new.npz has examples of shape (3,)", "trained on 2 features"):
        device_file(path, **old)
    with refused("new.npz has examples of shape (3,)", "scaled by values of shape (2,)"):
        device_file(path, **{**old, "features": ()})
