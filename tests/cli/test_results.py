"""`covey show` and `covey predict`: what a run has come to, and what its models say of new
examples.
"""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import covey
from covey.runs.scores.devices import from_csv
from tests.cli.command import ROOT, Result, contents, exits, said
from tests.cli.command import covey as command

OWN = ROOT / "examples" / "own_data" / "own.toml"
TABLE = (ROOT / "examples" / "own_data" / "pumps.csv").read_text().splitlines()
QUICK = ("rounds=3", "score_every=1", "checkpoint_every=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PerMFL on the example's table."""
    folder = tmp_path_factory.mktemp("own") / "run"
    exits(0, "run", OWN, *QUICK, "--out", folder)
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Rows of two pumps, as the table has them, without labels."""
    rows = [TABLE[0], *(line for line in TABLE if line.startswith(("pump-03", "pump-11")))]
    path = tmp_path / "new.csv"
    path.write_text("\n".join(line.rpartition(",")[0] for line in rows))
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_show_prints_the_table_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    before = contents(run)
    text = said("show", run)
    assert "3 rounds, 1 seed; test accuracy in %" in text
    assert text.strip() == covey.load(run).table().strip()
    facts = json.loads(said("show", run, "--json"))
    written = json.loads((run / "summary.json").read_text())
    assert (facts.pop("folder"), facts.pop("finished")) == (str(run), True)
    assert facts == written
    assert contents(run) == before


def test_records_that_were_cut_are_those_of_the_checkpoint(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    records = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text(records[0])
    assert len(records) == 3
    assert covey.load(copy).history == covey.load(run).history


def test_show_devices_worst_first(run: Path) -> None:
    lines = said("show", run, "--devices").splitlines()
    assert lines[0].split() == [
        "device", "edge", "test", "examples", "global", "%", "edge", "%", "personal", "%",
    ]  # fmt: skip
    shown = [line.split() for line in lines[1:]]
    assert len(shown) == 16
    own = [float(cells[-1]) for cells in shown]
    assert own == sorted(own)
    assert own[0] < own[-1]
    table = from_csv((run / "devices.csv").read_text())
    for cells in shown:
        line = next(s for s in table if (s.device, s.model, s.part) == (cells[0], "global", "test"))
        assert cells[1:4] == [line.edge, str(line.examples), f"{100 * (line.accuracy or 0):.1f}"]
    facts = json.loads(said("show", run, "--devices", "--json"))
    assert len(facts) == len(table)
    assert facts[0]["seed"] == 0


def test_show_of_an_unfinished_run_and_of_several_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    exits(0, "run", OWN, *QUICK, "rounds=1", "seeds=2", "--out", folder)
    assert "1 rounds, 2 seeds" in said("show", folder)
    lines = said("show", folder, "--devices").splitlines()
    assert lines[0].startswith("seed")
    assert len(lines) == 33
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("\nrounds = 1\n", "\nrounds = 7\n"))
    assert f"1 of 7 rounds; resume with: covey run --resume {folder}" in said("show", folder)
    assert json.loads(said("show", folder, "--json"))["finished"] is False


def test_each_row_is_predicted_by_its_device(run: Path, new: Path, tmp_path: Path) -> None:
    rows = rows_of(said("predict", run, "--data", new))
    loaded = covey.load(run)
    lines = [line.split(",") for line in new.read_text().splitlines()[1:]]
    assert [row["device"] for row in rows] == [cells[0] for cells in lines]
    assert {row["device"] for row in rows} == {"pump-03", "pump-11"}
    for row, cells in zip(rows, lines, strict=True):
        x = np.array([cells[2:]], dtype=float)
        assert row["prediction"] == loaded.predict(x, device=cells[0])[0]
        shares = loaded.probabilities(x, device=cells[0])[0]
        given = [float(row[f"probability_{name}"]) for name in loaded.names.classes]
        assert given == pytest.approx(shares, abs=1e-6)
    out = tmp_path / "out.csv"
    ended = command("predict", run, "--data", new, "--out", out)
    assert ended.out == ""
    assert f"{len(rows)} predictions: {out}" in ended.err
    assert rows_of(out.read_text()) == rows
    as_json = json.loads(said("predict", run, "--data", new, "--json"))
    assert [row["prediction"] for row in as_json] == [row["prediction"] for row in rows]


def test_another_device_another_model_and_columns_in_another_order(
    run: Path, new: Path, tmp_path: Path
) -> None:
    plain = said("predict", run, "--data", new)
    assert said("predict", run, "--data", new, "--model", "edge") != plain
    other = rows_of(said("predict", run, "--data", new, "--device", "pump-07"))
    assert {row["device"] for row in other} == {"pump-07"}
    lines = [line.split(",") for line in new.read_text().splitlines()]
    turned = tmp_path / "turned.csv"
    turned.write_text(
        "\n".join(",".join([*cells[::-1], "x"]) for cells in lines).replace(",x", ",label", 1)
    )
    assert said("predict", run, "--data", turned) == plain  # the label is not looked at
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(",".join(cells[2:]) for cells in lines))
    everybody = rows_of(said("predict", run, "--data", bare, "--model", "global"))
    assert "device" not in everybody[0]
    same = rows_of(said("predict", run, "--data", new, "--model", "global"))
    assert [row["prediction"] for row in same] == [row["prediction"] for row in everybody]


def test_unknown_devices_get_the_global_model(run: Path, new: Path, tmp_path: Path) -> None:
    lines = new.read_text().splitlines()
    path = tmp_path / "other.csv"
    path.write_text(_changed(lines, 2, 0, "pump-99"))
    rows = rows_of(said("predict", run, "--data", path, "--unknown", "global"))
    known = rows_of(said("predict", run, "--data", new))
    shared = rows_of(said("predict", run, "--data", new, "--model", "global"))
    assert [row["model"] for row in rows[:3]] == ["personal", "global", "personal"]
    assert {row["model"] for row in known} == {"personal"}
    assert {row["model"] for row in shared} == {"global"}
    assert rows[1] == shared[1] | {"device": "pump-99"}
    assert (rows[:1], rows[2:]) == (known[:1], known[2:])
    assert shared[1] != known[1] | {"model": "global"}  # else both models could be mixed up


def test_a_device_that_was_never_asked_has_the_global_model(tmp_path: Path) -> None:
    """It trained in no round, so that its personal model is the global one."""
    words = ("rounds=1", "algorithm.name=pfedme", "algorithm.sample=3", "tree.edges=none")
    plain = tmp_path / "pumps.csv"
    table = (OWN.parent / "pumps.csv").read_text().splitlines()
    cut = [",".join(cells[:1] + cells[2:]) for cells in (line.split(",") for line in table)]
    plain.write_text("\n".join(cut))
    data = ("data.name=files", f"data.path={plain}", "model.name=linear")
    exits(0, "run", *words, *data, "--out", tmp_path / "run")
    rows = rows_of(said("predict", tmp_path / "run", "--data", plain))
    models = {row["device"]: row["model"] for row in rows}
    assert sorted(models.values()) == ["global"] * 13 + ["personal"] * 3


def test_what_cannot_be_predicted_is_named_by_file_and_line(
    run: Path, new: Path, tmp_path: Path
) -> None:
    lines = new.read_text().splitlines()

    def refused(words: str, text: str, *more: str) -> None:
        path = tmp_path / "bad.csv"
        path.write_text(text)
        assert words in " ".join(exits(2, "predict", run, "--data", path, *more).err.split())

    bad = tmp_path / "bad.csv"
    refused(
        f"{bad}, line 2: column 'flow' is 'much', which is not a number",
        _changed(lines, 1, 5, "much"),
    )
    refused(
        f"{bad}, line 3: device 'pump-99' did not train in this run",
        _changed(lines, 2, 0, "pump-99"),
    )
    refused("--unknown global", _changed(lines, 2, 0, "pump-99"))
    refused("has no column 'noise'", _changed(lines, 0, 7, "loudness"))
    bare = "\n".join(",".join(line.split(",")[2:]) for line in lines)
    refused(
        "has no column of devices; name a device, as in --device pump-01, or take --model global",
        bare,
    )
    refused("no device 'pump-0' in this run", bare, "--device", "pump-0")
    refused("no model 'best'", bare, "--model", "best")
    refused("has no rows", lines[0])
    assert "there is no file" in command("predict", run, "--data", tmp_path / "none.csv").err
    assert "is not a run folder" in command("predict", tmp_path, "--data", new).err
    exits(4, "predict", run, "--data", new, "--out", tmp_path / "no" / "such" / "folder.csv")


def _changed(lines: list[str], line: int, column: int, cell: str) -> str:
    cells = lines[line].split(",")
    cells[column] = cell
    return "\n".join([*lines[:line], ",".join(cells), *lines[line + 1 :]])


def test_arrays_and_tables_without_names_of_features(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (
        "data.name=digits", "data.devices=4", "model.name=linear", "tree.edges=none", "algorithm.name=fedavg",
    )  # fmt: skip
    exits(0, "run", *words, *QUICK, "--out", folder)
    x = np.random.default_rng(0).random((5, 64))
    np.savez(tmp_path / "x.npz", x=x)
    rows = rows_of(said("predict", folder, "--data", tmp_path / "x.npz"))
    wanted = covey.load(folder).predict(x)
    assert [int(row["prediction"]) for row in rows] == wanted.tolist()
    assert list(rows[0])[:3] == ["model", "prediction", "probability_0"]
    np.savez(tmp_path / "square.npz", x=x.reshape(5, 8, 8), device=np.array(["3"] * 5))
    square = rows_of(said("predict", folder, "--data", tmp_path / "square.npz"))
    assert [row["prediction"] for row in square] == [row["prediction"] for row in rows]
    text = "\n".join(",".join(map(repr, row)) for row in x.tolist())
    header = ",".join(f"p{k}" for k in range(64))
    (tmp_path / "x.csv").write_text(f"{header}\n{text}")
    assert rows_of(said("predict", folder, "--data", tmp_path / "x.csv")) == rows
    (tmp_path / "narrow.csv").write_text("a,b\n1,2\n")
    narrow = _flat(command("predict", folder, "--data", tmp_path / "narrow.csv"))
    assert "examples of shape (2,), but the run was trained on (64,)" in narrow
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    lacking = _flat(command("predict", folder, "--data", tmp_path / "y.npz"))
    assert "no array 'x' among y; give x" in lacking


def _flat(ended: Result) -> str:
    assert ended.code == 2
    return " ".join(ended.err.split())


def test_numbers_are_predicted_as_numbers(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).round(3)
    rows = [f"d{k % 2},{a},{b},{a - b + 0.5:.4f}" for k, (a, b) in enumerate(x.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["device,a,b,label", *rows]))
    words = (
        "data.name=files", f"data.path={tmp_path / 't.csv'}", "loss=squared_error", "model.name=linear",
    )  # fmt: skip
    exits(
        0, "run", *words, "tree.edges=none", "algorithm.name=ditto", "rounds=2", "--out", tmp_path / "run",
    )  # fmt: skip
    predicted = rows_of(said("predict", tmp_path / "run", "--data", tmp_path / "t.csv"))
    assert list(predicted[0]) == ["device", "model", "prediction"]
    wanted = covey.load(tmp_path / "run").predict(x[:1], device="d0")
    assert float(predicted[0]["prediction"]) == pytest.approx(float(wanted[0]), rel=1e-5)
    assert "personal RMSE" in said("show", tmp_path / "run", "--devices")
