"""Label columns of whole numbers: classes, or numbers to predict. Where both may be, one says so."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.algorithms import FedAvg
from covey.data import Shards, files, frame
from covey.errors import DataError
from covey.files.config import load
from tests.cli.command import Result
from tests.cli.command import covey as command
from tests.data.test_frames import Plain

FILE = """rounds = 1
[algorithm]
name = "fedavg"
[data]
name = "files"
path = "prices.csv"
label = "price"
[model]
name = "linear"
"""


def columns(values: int, rows: int) -> dict[str, list[Any]]:
    """Rows of two devices, with so many different prices."""
    return {
        "device": ["ab"[row % 2] for row in range(rows)],
        "size": [row / 7 for row in range(rows)],
        "price": [300 + row % values for row in range(rows)],
    }


def written(folder: Path, values: int, rows: int) -> str:
    path = folder / "prices.csv"
    cells = columns(values, rows)
    lines = [",".join(map(str, row)) for row in zip(*cells.values(), strict=True)]
    path.write_text("\n".join([",".join(cells), *lines]))
    return str(path)


def experiment(shards: Shards, **settings: Any) -> covey.Experiment:
    model = covey.models.linear(1, shards.classes or 1)
    return covey.Experiment(FedAvg(), shards, model, covey.Tree.flat(2), rounds=1, **settings)


@pytest.mark.parametrize(
    ("values", "rows", "stops"),
    [(51, 3000, True), (50, 1000, False), (50, 999, True), (11, 219, True), (10, 40, False)],
)
def test_many_whole_numbers_are_asked_for(
    values: int, rows: int, stops: bool, tmp_path: Path
) -> None:
    for shards in (
        files(written(tmp_path, values, rows), label="price"),
        frame(Plain(columns(values, rows)), label="price"),
    ):
        if not stops:
            assert experiment(shards).data.classes == values
            continue
        words = f"'price' has {values} different whole numbers in {rows} rows"
        with pytest.raises(DataError, match=words):
            experiment(shards)
        assert experiment(shards, loss="cross_entropy").data.classes == values
        assert experiment(shards.numbers()).loss == "squared_error"
    listed = [str(300 + value) for value in range(values)]
    path = written(tmp_path, values, rows)
    assert experiment(files(path, label="price", classes=listed)).data.classes == values


def run(folder: Path, text: str) -> Result:
    (folder / "own.toml").write_text(text)
    return command("run", folder / "own.toml", "--out", folder / f"run{len(text)}")


def test_the_lines_of_the_message_work_in_the_file(tmp_path: Path) -> None:
    written(tmp_path, 60, 240)
    ended = run(tmp_path, FILE)
    assert ended.code == 2
    lines = re.findall(r"^ +(loss = .*)$", ended.err, flags=re.MULTILINE)
    assert [line.split()[2] for line in lines] == ['"mse"', '"cross_entropy"']
    for line, words in zip(lines, ("test RMSE", "test %"), strict=True):
        ended = run(tmp_path, f"{line}\n{FILE}")
        assert ended.code == 0, ended.err
        assert words in ended.out


def test_labels_that_only_some_parts_have_point_to_numbers(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    rows = [f"a,{row},{row},{'test' if row > 50 else 'train'}" for row in range(70)]
    path.write_text("\n".join(["device,size,price,split", *rows]))
    with pytest.raises(DataError, match=r'loss = "mse".*regression=True'):
        files(str(path), label="price")
    assert files(str(path), label="price", regression=True).classes is None


def test_what_else_says_that_labels_are_classes(tmp_path: Path) -> None:
    """The type of an array, and sequences of tokens, whose label is a token."""
    x = np.zeros((60, 3))
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(60) % 55, device=np.array(["a", "b"] * 30))
    assert files(str(tmp_path / "x.npz"), split=(1, 0, 0)).doubt == ""
    rows = [f"a,{row},{row + 1}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["device,first,label", *rows]))
    assert files(str(tmp_path / "t.csv"), tokens=True, split=(1, 0, 0)).doubt == ""
    assert files(str(tmp_path / "t.csv"), split=(1, 0, 0)).doubt


def test_0_and_1_as_floats_are_two_classes(tmp_path: Path) -> None:
    text = "\n".join(["device,size,price", *(f"a,{row},{row % 2}.0" for row in range(40))])
    (tmp_path / "prices.csv").write_text(text)
    shards = files(str(tmp_path / "prices.csv"), label="price")
    assert (shards.classes, shards.names.classes) == (2, ("0.0", "1.0"))
    (tmp_path / "prices.csv").write_text(text + "\na,41,0.5")
    assert files(str(tmp_path / "prices.csv"), label="price").classes is None
    (tmp_path / "prices.csv").write_text(text)
    for line, classes in (("", 2), ('loss = "mse"', None), ('loss = "bce"', None)):
        (tmp_path / "own.toml").write_text(f"{line}\n{FILE}")
        assert load(tmp_path / "own.toml").experiment(0).data.classes == classes
