"""`compare` runs other algorithms beside the file's own: rows of the table, a picture, folders that
can be opened.
"""

import json
from pathlib import Path

import pytest
from matplotlib.image import imread

import covey
from covey.algorithms import FineTune
from covey.errors import ConfigError
from covey.files.config import load
from experiments.kills.run import difference
from tests.cli.command import SMALL, exits

pytestmark = pytest.mark.pictures
BESIDE = 'compare=["local", {name="finetune", lr=0.5, tune_lr=0.2, tune_steps=3, batch="none"}]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two algorithms beside it."""
    place = tmp_path_factory.mktemp("compare") / "run"
    ended = exits(0, "run", *SMALL, BESIDE, "rounds=3", "--out", place)
    (place.parent / "said.txt").write_text(ended.out)
    return place


def test_the_table_has_their_models_under_their_names(folder: Path) -> None:
    said = (folder.parent / "said.txt").read_text()
    table = covey.load(folder).table()
    for text in (said, table):
        starts = [line[:18].strip() for line in text.splitlines()]
        beside = [start for start in starts if start.startswith(("Local", "FineTune"))]
        assert beside == ["Local personal", "FineTune global", "FineTune personal"]
    assert f"folder: {folder}   pictures: plot.png, devices.png, compare.png" in said
    assert "…" not in said  # a console of 80 columns cuts no figure


def test_figures_are_those_of_the_algorithm_run_by_itself(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    table = {"name": "finetune", "lr": 0.5, "tune_lr": 0.2, "tune_steps": 3, "batch": "none"}
    changes = [f"algorithm.{key}={json.dumps(value)}" for key, value in table.items()]
    exits(0, "run", *SMALL[:-1], *changes, "rounds=3", "--out", alone)
    models = json.loads((alone / "summary.json").read_text())["models"]
    local, finetune = json.loads((folder / "summary.json").read_text())["yardsticks"]
    assert local["method"] == "Local"
    # its global model is nobody's
    assert [model["model"] for model in local["models"]] == ["personal"]
    assert finetune == {"method": "FineTune", "models": models}
    beside = covey.load(folder / "compare" / "finetune")
    assert isinstance(beside.experiment.algorithm, FineTune)
    assert beside.experiment.algorithm.batch is None
    assert beside.chosen == covey.load(alone).chosen


def test_the_run_itself_does_not_change(folder: Path, tmp_path: Path) -> None:
    exits(0, "run", *SMALL, "rounds=3", "--out", tmp_path / "alone")
    models = [
        (place / "models" / "personal.safetensors").read_bytes()
        for place in (folder, tmp_path / "alone")
    ]
    assert models[0] == models[1]
    summaries = [
        json.loads((place / "summary.json").read_text()) for place in (folder, tmp_path / "alone")
    ]
    assert summaries[0]["models"] == summaries[1]["models"]
    assert not (tmp_path / "alone" / "compare").exists()
    assert not (tmp_path / "alone" / "compare.png").exists()


def test_the_picture_is_not_blank(folder: Path) -> None:
    picture = imread(folder / "compare.png")
    assert picture.shape[2] == 4
    assert len({tuple(pixel) for pixel in picture[::2, ::2].reshape(-1, 4).tolist()}) > 20


def test_its_file_repeats_it_and_more_rounds_reach_everybody(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    exits(0, "run", folder / "config.toml", "--out", again)
    assert difference(folder, again) is None
    assert difference(folder / "compare" / "local", again / "compare" / "local") is None
    exits(0, "run", "--resume", again, "rounds=4")
    assert len(covey.load(again).history) == 4
    for name in ("local", "finetune"):
        assert len(covey.load(again / "compare" / name).history) == 4


def test_one_that_diverges_is_left_out_and_the_run_stays(tmp_path: Path) -> None:
    place = tmp_path / "run"
    beside = 'compare=[{name="pfedme", lam=1e8, lr=1.0, personal_lr=1.0}, "local"]'
    ended = exits(0, "run", *SMALL, beside, "rounds=2", "--out", place)
    assert "note: PFedMe is left out of the table: " in ended.out
    methods = [
        each["method"] for each in json.loads((place / "summary.json").read_text())["yardsticks"]
    ]
    assert methods == ["Local"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('["fedagv"]', ["compare.name = 'fedagv'", "did you mean fedavg?"]),
        ('[{name="fedavg", lrr=1.0}]', ["unknown key compare.lrr", "did you mean compare.lr?"]),
        ("[{lr=1.0}]", ["[compare] needs a name"]),
        ('["local", {name="local"}]', ["compare names 'local' 2 times"]),
        ("local", ['compare = "local"', "must be a list"]),
    ],
)
def test_a_wrong_value_is_named(value: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, [f"compare={value}"])
    said = str(caught.value)
    assert [word for word in words if word not in said] == [], said


def test_what_does_not_fit_is_said_before_a_folder_is_made(tmp_path: Path) -> None:
    ended = exits(
        2, "run", *SMALL, 'compare=[{name="fedavg", sample=99}]', "--out", tmp_path / "run"
    )
    assert "sample" in ended.err
    assert not (tmp_path / "run").exists()


def test_a_long_run_prints_few_lines_and_every_note_once(tmp_path: Path) -> None:
    more = ("rounds=24", "score_every=1", "holdout_devices=2")
    ended = exits(0, "run", *SMALL, BESIDE, *more, "--out", tmp_path / "run")
    lines = ended.out.splitlines()
    first, local, finetune = (
        [line.split()[1] for line in part.splitlines() if line.startswith("round ")]
        for part in ended.out.split("compared with: ")
    )
    assert first == [f"{round}/24" for round in (1, 3, 6, 9, 12, 15, 18, 21, 24)]
    assert local == finetune == ["1/24", "24/24"]
    notes = [line for line in lines if line.startswith(("note: ", "engine: "))]
    assert sum("held out from training" in note for note in notes) == 1
    assert len(set(notes)) == len(notes)
