"""`covey sweep`: searches, the best setting as a file, pictures, resuming."""

import csv
import io
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from covey.files.config import load
from covey.grid.axes import axis
from covey.grid.search import Optuna, random
from covey.report.pictures.sweep_picture import Scale
from tests.cli.command import exits
from tests.grid.test_grid import SMALL
from tests.report.picture import assert_drawn

pytestmark = pytest.mark.pictures
KEYS = ("model.name=linear,mlp", "algorithm.lr2=0.01,0.1,0.4")
FEW = ("rounds=2", "algorithm.edge_rounds=1", "algorithm.steps=5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of six settings."""
    place = tmp_path_factory.mktemp("sweep") / "grid"
    ended = exits(0, "sweep", *SMALL, *FEW, *KEYS, "--jobs", 1, "--out", place)
    assert "6 trials, the best on validation data first" in ended.out
    assert f"run the best: covey run {place / 'best.toml'}" in ended.out
    return place


def test_trials_are_sorted_by_validation_score(folder: Path) -> None:
    trials = json.loads((folder / "sweep.json").read_text())["trials"]
    scores = [trial["score"] for trial in trials]
    assert scores == sorted(scores, reverse=True)
    assert len({json.dumps(trial["settings"]) for trial in trials}) == 6
    rows = list(csv.DictReader(io.StringIO((folder / "sweep.csv").read_text())))
    assert [float(row["score"]) for row in rows] == scores


def test_the_best_setting_is_a_file_with_its_score(folder: Path, tmp_path: Path) -> None:
    best = json.loads((folder / "sweep.json").read_text())["trials"][0]
    config = load(folder / "best.toml")
    for key, value in best["settings"].items():
        section, _, name = key.partition(".")
        assert getattr(config, section)[name] == value
    exits(0, "run", folder / "best.toml", "--out", tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    scored = [json.loads(line)["models"] for line in lines]
    found = [models[best["model"]]["scores"]["validation"] for models in scored if models]
    assert max(score["accuracy_fallback"] for score in found) == best["score"]


def test_the_pictures_show_trials_and_the_best(folder: Path) -> None:
    assert_drawn(folder / "sensitivity.png", "tab:red")
    assert_drawn(folder / "parallel.png", "tab:red")


def test_words_and_numbers_have_their_places() -> None:
    words = Scale.of("net", ["b", "a", "b"])
    assert [words.place(word) for word in ("b", "a")] == [0.0, 1.0]
    assert Scale.of("lr", [0.1, 10.0]).log
    assert not Scale.of("lr", [0.1, 1.0]).log
    assert Scale.of("lr", [0.1, 1.0], log=True).log
    assert not Scale.of("lr", [0.0, 1.0], log=True).log


def test_a_resumed_sweep_runs_what_is_missing(folder: Path) -> None:
    before = (folder / "best.toml").read_text()
    times = {path: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}
    lost = folder / "cells" / "trial-3.json"
    lost.unlink()
    exits(0, "sweep", "--resume", folder, "--jobs", 1)
    assert [path for path, at in times.items() if path.stat().st_mtime_ns != at] == [lost]
    assert (folder / "best.toml").read_text() == before


def test_random_draws_depend_on_the_seed_alone() -> None:
    axes = [axis("lr=0.01:1:log"), axis("steps=1:9"), axis("net=a,b")]
    drawn = random(axes, 200, seed=3)
    assert drawn == random(axes, 200, seed=3)
    assert drawn[:50] == random(axes, 50, seed=3)
    assert drawn != random(axes, 200, seed=4)
    rates = sorted(each["lr"] for each in drawn)
    assert rates[0] >= 0.01
    assert rates[-1] <= 1
    assert 0.05 < rates[100] < 0.2  # the middle of the logarithms
    assert {each["steps"] for each in drawn} == set(range(1, 10))
    assert {each["net"] for each in drawn} == {"a", "b"}


@pytest.mark.skipif(find_spec("optuna") is None, reason="needs the extra optuna")
def test_optuna_goes_where_scores_are_high_and_remembers() -> None:
    axes = [axis("lr=0.01:1:log"), axis("steps=1,5")]
    search = Optuna(axes, 30, seed=0, before={})
    scores: dict[int, float] = {}
    for number in range(30):
        tried = search.proposed(scores, running=1)
        assert len(tried) == number + 1
        scores[number] = -abs(tried[number]["lr"] - 0.2)
    late = [abs(tried[number]["lr"] - 0.2) for number in range(20, 30)]
    assert sorted(late)[5] < 0.1
    again = Optuna(axes, 31, seed=0, before=dict(enumerate(tried)))
    assert len(again.proposed(scores, running=2)) == 31
    assert again.proposed(scores, running=1)[12] == tried[12]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ["a key with several values"]),
        (("algorithm.lr1=",), ["empty value"]),
        (("algorithm.lrr=1,2",), ["unknown key algorithm.lrr"]),
        (("algorithm.lr1=1,-1",), ["lr1", "-1"]),
        (("algorithm.lr1=1,2", "--search", "best"), ["grid, random or optuna"]),
        (("algorithm.lr1=1,2", "--trials", "3"), ["a grid tries all its combinations"]),
        (("algorithm.lr1=1,2", "--search", "random", "--trials", "0"), ["give 1 or more"]),
        (("algorithm.lr1=1,2", "protocol=paper"), ["no validation data"]),
        (("algorithm.lr1=1,2", "tree.edges=none"), ["SFedHP needs the tiers"]),
    ],
)
def test_what_is_wrong_is_said_before_a_folder_is_made(
    words: tuple[str, ...], said: list[str], tmp_path: Path
) -> None:
    ended = exits(2, "sweep", *SMALL, *words, "--out", tmp_path / "grid")
    assert [word for word in said if word not in ended.err] == [], ended.err
    assert not (tmp_path / "grid").exists()


def test_trials_that_fail_come_last(tmp_path: Path) -> None:
    words = ("algorithm.lr2=0.1,1.0", "--jobs", 1, "--out", tmp_path / "grid")
    assert "1 trials failed; trial 2: " in exits(0, "sweep", *SMALL, *FEW, *words).out
    trials = json.loads((tmp_path / "grid" / "sweep.json").read_text())["trials"]
    assert [trial["score"] is None for trial in trials] == [False, True]
