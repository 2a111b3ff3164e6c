"""A table with gaps and words from the experiment file to predictions of a new file."""

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np

import covey
from tests.cli.command import covey as command
from tests.cli.command import exits

FILE = """
rounds = 2
[algorithm]
name = "pfedme"
[data]
name = "files"
path = "table.csv.gz"
missing = "indicator"
exclude = ["day"]
[model]
name = "linear"
"""


def test_gaps_and_words_from_run_to_predict(tmp_path: Path) -> None:
    rows = ["device;day;mass;kind;label"]
    for row in range(60):
        mass = "" if row % 7 == 0 else str(row % 10)
        kind = "red" if row % 2 else "blue"
        rows.append(f"d{row % 3};2026-01-{row % 28 + 1:02};{mass};{kind};{row % 2}")
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    (tmp_path / "my.toml").write_text(FILE, encoding="utf-8")
    folder = tmp_path / "run"
    ended = exits(0, "run", tmp_path / "my.toml", "--out", folder)
    filled = "missing values replaced by means of training rows: 9 in column 'mass'."
    assert filled in ended.out + ended.err
    shown = command("data", "show", tmp_path / "my.toml", "--json", "--out", tmp_path / "data.png")
    added = "columns added, 1 where a value is missing: mass is missing."
    assert json.loads(shown.out)["notes"] == [added, filled]
    (tmp_path / "new.csv").write_text("kind,mass\nred,\ngreen,3\n", encoding="utf-8")
    ended = exits(0, "predict", folder, "--data", tmp_path / "new.csv", "--model", "global")
    assert "words that no training row has: 1 in column 'kind'." in ended.err
    told = [float(row["probability_0"]) for row in csv.DictReader(io.StringIO(ended.out))]
    run = covey.load(folder)
    columns = {"mass": [None, 3.0], "kind": ["red", "green"]}
    same = run.probabilities(columns, model="global")[:, 0]
    np.testing.assert_allclose(told, same, atol=1e-6)
    mean = run.form.encoding.columns[0].means[0]
    by_hand = run.probabilities([[mean, 1, 0, 1], [3, 0, 0, 0]], model="global")[:, 0]
    np.testing.assert_array_equal(same, by_hand)
    own = "kind,mass,label\n" + "red,,1\nblue,2,0\n" * 4
    (tmp_path / "own.csv").write_text(own, encoding="utf-8")
    exits(0, "personalize", folder, "--data", tmp_path / "own.csv")
