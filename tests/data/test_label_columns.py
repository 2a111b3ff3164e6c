"""Several label columns in a table: yes-or-no labels, or numbers to predict."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey.algorithms import FedAvg
from covey.data import Names, Part, Shards, files
from covey.data.tables.encoding import MOST_WORDS
from covey.data.tables.files import device_file
from covey.engine.measures.losses import resolved_loss
from covey.engine.measures.named_losses import BinaryCrossEntropy
from covey.errors import DataError
from covey.files.data_form import DataForm
from tests.data.test_frames import Plain

HEADER = "device,x,hot,wet,heat,flow"
ROWS = ("a,1,0,1,1.5,2", "a,2,1,1,2.5,3", "b,3,0,0,3.5,4", "b,4,1,0,4.5,7")
ALL = (1.0, 0.0, 0.0)


def table(folder: Path, *rows: str, header: str = HEADER) -> str:
    path = folder / "pumps.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return str(path)


def labels(folder: Path, *rows: str, **options: Any) -> Shards:
    path = table(folder, *(rows or ROWS))
    return files(path, label=["hot", "wet"], features=["x"], split=ALL, **options)


def test_columns_of_0_and_1_are_yes_or_no_labels(tmp_path: Path) -> None:
    shards = labels(tmp_path)
    assert shards.y.tolist() == [[0, 1], [1, 1], [0, 0], [1, 0]]
    assert (shards.yes_no, shards.classes, shards.names.labels) == (True, None, ("hot", "wet"))
    assert isinstance(resolved_loss("auto", shards), BinaryCrossEntropy)
    assert resolved_loss("mse", shards) == "squared_error"


def test_all_other_columns_are_features_but_no_label_is(tmp_path: Path) -> None:
    shards = files(table(tmp_path, *ROWS), label=["hot", "wet"], split=ALL)
    assert shards.names.features == ("x", "heat", "flow")


def test_true_and_false_are_labels_too(tmp_path: Path) -> None:
    rows = ("a,1,true,False,0,0", "a,2,false,True,0,0")
    assert labels(tmp_path, *rows).y.tolist() == [[1, 0], [0, 1]]


def test_other_numbers_are_predicted_together(tmp_path: Path) -> None:
    shards = files(table(tmp_path, *ROWS), label=["heat", "flow"], features=["x"], split=ALL)
    assert shards.y.tolist() == [[1.5, 2], [2.5, 3], [3.5, 4], [4.5, 7]]
    assert (shards.yes_no, shards.classes) == (False, None)
    assert resolved_loss("auto", shards) == "squared_error"


def test_regression_makes_numbers_of_labels(tmp_path: Path) -> None:
    shards = files(
        table(tmp_path, *ROWS), label=["hot", "heat"], features=["x"], split=ALL, regression=True
    )
    assert shards.y[0].tolist() == [0, 1.5]
    assert not shards.yes_no
    assert not labels(tmp_path, regression=True).yes_no


def test_decimal_commas_and_gaps(tmp_path: Path) -> None:
    path = table(
        tmp_path, "a;1,5;2,5;7", "a;2;;3", "b;3;1;NA", "b;1;1;1", header="device;x;heat;flow"
    )
    shards = files(path, label=["heat", "flow"], decimal=",", missing="drop", split=ALL)
    assert shards.y.tolist() == [[2.5, 7], [1, 1]]
    assert shards.notes == ("2 of 4 rows are left out: heat in 1, flow in 1 missing.",)


def columns() -> dict[str, list[Any]]:
    """The columns of the table by name, numbers as numbers."""
    cells = zip(*(row.split(",") for row in ROWS), strict=True)
    by_name = dict(zip(HEADER.split(","), map(list, cells), strict=True))
    numbers: dict[str, list[Any]] = {name: list(map(float, by_name[name])) for name in ("x",)}
    numbers |= {name: list(map(int, by_name[name])) for name in ("hot", "wet")}
    return {"device": by_name["device"], **numbers}


def test_a_frame_gives_the_same(tmp_path: Path) -> None:
    shards = covey.data.frame(Plain(columns()), label=["hot", "wet"], split=ALL)
    assert torch.equal(shards.y, labels(tmp_path).y)
    assert (shards.yes_no, shards.names.features) == (True, ("x",))


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "pumps.parquet"
    parquet.write_table(arrow.table(columns()), path)
    shards = files(str(path), label=["hot", "wet"], split=ALL)
    assert torch.equal(shards.y, labels(tmp_path).y)


def test_an_experiment_trains_on_them(tmp_path: Path) -> None:
    shards = labels(tmp_path)
    experiment = covey.Experiment(
        FedAvg(batch=None), shards, nn.Linear(1, 2), covey.Tree.flat(2), rounds=2, loss="auto"
    )
    assert isinstance(experiment.loss, BinaryCrossEntropy)
    list(covey.run(experiment))


def test_a_new_device_has_the_same_columns(tmp_path: Path) -> None:
    form = DataForm.of(labels(tmp_path))
    new = tmp_path / "new.csv"
    new.write_text("x,hot,wet\n1,1,1\n2,1,1\n", encoding="utf-8")
    shards = device_file(
        new, features=form.names.features, classes=None, scaling=form.scaling, label=["hot", "wet"],
        yes_no=form.yes_no,
    )  # fmt: skip
    assert shards.yes_no
    assert shards.y.tolist() == [[1, 1], [1, 1]]


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one name": ({"label": ["hot"]}, ["list two columns or more", "one name"]),
    "a name twice": ({"label": ["hot", "hot"]}, ["each once"]),
    "both kinds": ({"label": ["hot", "heat"]}, ["hot holds 0 and 1", "heat other numbers", "squared_error"]),
    "words": ({"label": ["hot", "device"], "device": "x"}, ["'device' holds words", "one column"]),
    "a feature": ({"label": ["hot", "x"]}, ["'x' is named for something else too"]),
    "classes": ({"label": ["hot", "wet"], "classes": ["0", "1"]}, ["leave classes out"]),
    "no such column": ({"label": ["hot", "wett"]}, ["no column 'wett'", "did you mean 'wet'"]),
    "dealt by label": (
        {"label": ["hot", "wet"], "exclude": ["device"], "partition": "labels", "devices": 2},
        ["one axis of integers"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    options, words = WRONG[name]
    with pytest.raises(DataError) as caught:
        files(table(tmp_path, *ROWS), **{"features": ["x"], "split": ALL, **options})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("b,3,0,,0,0", "line 6: column 'wet' is empty"),
        ("b,3,0,warm,0,0", "line 6: column 'wet' is 'warm', which is not a number"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(row: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        labels(tmp_path, *ROWS, row)


def test_an_array_has_one_label(tmp_path: Path) -> None:
    path = tmp_path / "pumps.npz"
    np.savez(path, x=np.zeros((2, 1)), y=np.zeros(2), device=np.array(["a", "b"]))
    with pytest.raises(DataError, match="one array y"):
        files(str(path), label=["hot", "wet"])


def test_shards_check_their_labels() -> None:
    part = Part.of([[0, 1]])
    x = torch.zeros(2, 1)
    with pytest.raises(DataError, match="other numbers than 0 and 1"):
        Shards(x, torch.full((2, 2), 0.5), part, part, part, yes_no=True)
    with pytest.raises(DataError, match="3 names of labels"):
        Shards(x, torch.zeros(2, 2), part, part, part, names=Names(labels=("a", "b", "c")))


def test_words_in_listed_features_are_to_be_taken_out_there(tmp_path: Path) -> None:
    rows = [f"a,w{word},{word % 2}" for word in range(MOST_WORDS + 10)] * 2
    path = table(tmp_path, *rows, header="device,word,label")
    with pytest.raises(DataError, match="take word out of features"):
        files(path, features=["word"], split=ALL)
    with pytest.raises(DataError, match="leave them out by exclude"):
        files(path, split=ALL)


def test_a_note_names_the_columns_of_indicators(tmp_path: Path) -> None:
    path = table(tmp_path, "a,1,,0", "a,2,3,1", "b,3,4,0", "b,4,,1", header="device,x,z,label")
    notes = files(path, missing="indicator", split=ALL).notes
    assert "columns added, 1 where a value is missing: z is missing." in notes
