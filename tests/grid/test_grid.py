"""Grids of runs: processes, arguments, `covey compare` from its errors to its files."""

import csv
import io
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import covey
from covey.advice.curvature import Curvature
from covey.algorithms import Ditto, FedAvg, Level, Nested, SFedHP
from covey.errors import ConfigError
from covey.files import config
from covey.files.assemble import Experiments
from covey.grid import pool
from covey.grid.axes import axis, product
from covey.grid.cells import Cell, batch_size, cost, play
from covey.grid.plan import comparison
from covey.grid.pool import Answer, Job
from covey.grid.tune import Tuner
from covey.runs.scores.record import read
from tests.cli.command import BASE, FASHION, contents, exits, spawn
from tests.cli.command import SMALL as RUN
from tests.cli.command import covey as command
from tests.grid.grid_work import work

pytestmark = pytest.mark.pictures
ALL = bool(os.environ.get("COVEY_TEST_ALL"))
SMALL = (
    str(BASE), "name=small", "rounds=4", "score_every=2", "data.devices=6", "tree.edges=2",
    "model.name=linear",
)  # fmt: skip
METHODS = "algorithm.name=fedavg,pfedme"


def test_processes_answer_fail_and_die_without_the_others() -> None:
    numbers = [1, "raise", 2, 3, 4, "die"]
    answers: dict[str, Answer] = {}

    def plan() -> list[Job]:
        jobs = [Job(f"job {number}", {"number": number}) for number in numbers]
        if len(answers) == len(numbers):  # what can only begin when others have ended
            jobs.append(Job("last", {"number": sum(answer.get("square", 0) for answer in answers.values())}))  # fmt: skip
        return jobs

    def done(job: Job, answer: Answer) -> None:
        assert job.name not in answers
        answers[job.name] = answer

    pool.run(work, plan, done, processes=2)
    assert answers["job raise"] == {"error": "ArithmeticError: no number", "retry": True}
    assert "exit code -9" in answers["job die"]["error"]
    squares = [answers[f"job {number}"]["square"] for number in (1, 2, 3, 4)]
    assert squares == [1, 4, 9, 16]
    assert answers["last"]["square"] == 30**2
    assert answers["last"]["threads"] == "1"
    assert answers["last"]["process"] != os.getpid()


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("algorithm.lr=0.02,0.1", [0.02, 0.1]),
        ("algorithm.lr=.5, 1", [0.5, 1]),
        ("algorithm.name=local,acme.nets:Method", ["local", "acme.nets:Method"]),
        ("model.hidden=[10, 5],[20]", [[10, 5], [20]]),
        ('x="a,b",c', ["a,b", "c"]),
        ("algorithm.lr=0.01:100:log", [0.01, 0.1, 1.0, 10.0, 100.0]),
        ("rounds=1:3", [1, 2, 3]),
        ("l2=0:1", [0, 0, 0, 1, 1]),
        ("l2=0.0:1", [0.0, 0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_lists_and_ranges(change: str, values: list[object]) -> None:
    assert axis(change).grid() == list({repr(value): value for value in values}.values())


def test_the_grid_is_the_product() -> None:
    points = list(product([axis("a=1,2"), axis("b=3,4")]))
    assert points == [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("algorithm.lr=", ["empty value"]),
        ("algorithm.lr=0.1,,0.2", ["empty value"]),
        ("algorithm.lr=0.1,0.1", ["lists 0.1 2 times"]),
        ("algorithm.lr=1:0.1", ["from a smaller to a larger"]),
        ("algorithm.lr=0:1:log", ["starts above 0"]),
        ("algorithm.lr=1:x", ["no range of numbers"]),
        ("=3", ["neither a file nor a change"]),
    ],
)
def test_a_wrong_list_is_named(change: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        axis(change)
    assert [word for word in words if word not in str(caught.value)] == []


def test_trials_begin_with_the_given_setting_and_end_around_the_best() -> None:
    tuner = Tuner(FedAvg(lr=0.1), 8, Curvature(2.0, 4.0))
    first = tuner.proposed({})
    assert first[0] == {"lr": 0.1}
    assert len(first) == 5
    assert all(0.03 / 2 <= trial["lr"] <= 1.0 for trial in first)  # 0.03 to 2 times 1/L
    whole = tuner.proposed(dict(enumerate([0.0, 1.0, 9.0, 1.0, 1.0])))
    assert whole[:5] == first
    assert len(whole) == 8
    best = first[2]["lr"]
    assert all(best / 3 < trial["lr"] < best * 3 for trial in whole[5:])
    assert len({trial["lr"] for trial in whole}) == 8


def test_penalties_move_with_the_steps_that_belong_to_them() -> None:
    for trial in Tuner(SFedHP(), 6, Curvature(2.0, 4.0)).proposed({})[1:]:
        assert trial.keys() == {"lam1", "lam2", "lr2", "lr1"}
        assert trial["lam1"] == trial["lam2"]
    for trial in Tuner(Ditto(), 6, Curvature(2.0, 4.0)).proposed({})[1:]:
        assert trial["personal_lr"] <= 2.01 / (trial["lam"] + 2.0)


def test_given_values_alone_are_tried_and_none_twice() -> None:
    axes = (axis("lr=0.1,0.2,0.4"),)
    trials = Tuner(FedAvg(), 8, Curvature(2.0, 4.0), axes).proposed({})
    assert sorted(trial["lr"] for trial in trials) == [0.1, 0.2, 0.4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of four methods."""
    place = tmp_path_factory.mktemp("compare") / "grid"
    words = ("compare", *SMALL, METHODS, "seeds=2", "--trials", 3, "--jobs", 1, "--out", place)
    ended = exits(0, *words)
    (place.parent / "said.txt").write_text(ended.out)
    return place


def test_every_method_uses_the_budget(folder: Path) -> None:
    result = json.loads((folder / "compare.json").read_text())
    assert result["budget"]["unit"] == "gradients"
    rows = {row["title"]: row for row in result["rows"]}
    assert list(rows) == ["Local", "FineTune", "FedAvg", "PFedMe"]  # the baselines are added
    plan = json.loads((folder / "grid.json").read_text())
    for method in plan["methods"]:
        used = rows[method["title"]]["gradients"]
        assert used == method["rounds"] * method["round_cost"]
        assert used <= result["budget"]["amount"] < used + method["round_cost"]
    assert [row["trials"] for row in rows.values()] == [3] * 4


def test_a_budget_in_examples_sees_the_batch() -> None:
    words = [*SMALL[1:], "algorithm.name=fedavg"]
    experiment = Experiments().of(config.load(BASE, words), 0)
    (method,) = [
        method
        for method in comparison(BASE, words, "examples=1e6", 1)["methods"]
        if method["name"] == "fedavg"
    ]
    assert method["round_cost"] == 6 * 20 * 20  # devices, steps and batch
    short = replace(experiment, algorithm=FedAvg(steps=2, batch=5), rounds=1)
    (record,) = covey.run(short)
    assert cost(record, "examples", short) == 6 * 2 * 5
    everything = replace(experiment, algorithm=FedAvg(batch=None))
    assert batch_size(everything) == float(experiment.data.train.counts().double().mean())
    own = replace(experiment, algorithm=Nested((Level("server", lr=0.1), Level("device"))))
    with pytest.raises(ConfigError, match="examples: Nested has no field batch"):
        batch_size(own)


def test_figures_are_those_of_a_run_with_the_tuned_settings(folder: Path, tmp_path: Path) -> None:
    plan = json.loads((folder / "grid.json").read_text())
    (method,) = [each for each in plan["methods"] if each["name"] == "pfedme"]
    row = json.loads((folder / "compare.json").read_text())["rows"][-1]
    table = {**method["algorithm"], **row["settings"]}
    changes = [f"algorithm.{key}={json.dumps(value)}" for key, value in table.items()]
    rounds = (f"rounds={method['rounds']}", f"score_every={method['score_every']}")
    run = ("run", *SMALL, *changes, *rounds, "seeds=2", "--out", tmp_path / "run")
    exits(0, *run)
    alone = json.loads((tmp_path / "run" / "summary.json").read_text())["models"]
    assert row["models"] == alone


def test_the_table_names_what_was_compared(folder: Path) -> None:
    said = (folder.parent / "said.txt").read_text()
    assert "equal budget: " in said
    seeds = said.index("\nover seeds: ")
    devices = said.index("\nover devices, for these models only: ")
    assert seeds < devices
    assert "no test below 3 seeds" in said[seeds:devices]
    # Three against Local, two against FineTune, and the first named against the best other.
    pairs = json.loads((folder / "compare.json").read_text())["pairs"]
    assert f"p (Holm) is for {len(pairs)} comparisons" in said
    assert len(pairs) == 5 + (pairs[0]["baseline"] == "PFedMe")
    assert pairs[0]["method"] == "FedAvg"
    assert [pair["p_seeds"] for pair in pairs] == [None] * len(pairs)
    assert "cells" in said
    assert str(folder) in said
    assert "…" not in said
    lines = list(csv.DictReader(io.StringIO((folder / "compare.csv").read_text())))
    reported = [line["method"] for line in lines if line["reported"] == "True"]
    assert reported == ["Local", "FineTune", "FedAvg", "PFedMe"]
    assert (folder / "compare.png").stat().st_size > 10_000


def test_the_reported_model_is_the_best_on_validation_data_of_all(folder: Path) -> None:
    rows = json.loads((folder / "compare.json").read_text())["rows"]
    for row in rows:
        qualities: dict[str, float] = {}
        for cell in (folder / "cells" / row["method"]).glob("seed-*.json"):
            history = [read(each) for each in json.loads(cell.read_text())["history"]]
            for model in (figures["model"] for figures in row["models"]):
                scored = [record.models[model].quality("validation") for record in history if record.models]  # fmt: skip
                qualities[model] = qualities.get(model, 0.0) + max(scored) / 2  # seeds
        assert qualities[row["model"]] == max(qualities.values())
        assert row["validation"] == pytest.approx(max(qualities.values()))
    assert "local" in qualities  # of PFedMe, the last one


def test_another_model_is_reported_when_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "grid"
    shutil.copytree(folder, place)
    for model in ("personal", "local"):
        ended = exits(0, "compare", "--resume", place, "--model", model, "--jobs", 1)
        assert f"; {model} models where there are some; " in ended.out
        rows = json.loads((place / "compare.json").read_text())["rows"]
        reported = [row["model"] for row in rows]
        assert reported[2:] == ["global", model]  # FedAvg has no other
    ended = exits(2, "compare", "--resume", place, "--model", "persnal", "--jobs", 1)
    assert "--model persnal: no compared method has it; they have global, local, personal." in ended.err  # fmt: skip


def test_shared_layers_are_not_called_global_and_three_seeds_are_tested(tmp_path: Path) -> None:
    words = ("model.name=mlp", "algorithm.name=fedper", "rounds=2", "seeds=3", "--trials", 1)
    place = tmp_path / "grid"
    asked = ("--model", "global", "--jobs", 1, "--out", place)
    ended = exits(0, "compare", *SMALL[:-1], *words, *asked)
    assert "FedPer    shared layers, own head" in ended.out
    assert "FedPer    global" not in ended.out
    result = json.loads((place / "compare.json").read_text())
    rows = {row["title"]: row["models"] for row in result["rows"]}
    first = result["pairs"][0]
    assert (first["method"], first["seeds"]) == ("FedPer", 3)
    means = {
        (title, figures["model"]): figures["accuracy"]["mean"]
        for title, models in rows.items()
        for figures in models
    }
    against = {row["title"]: row["model"] for row in result["rows"]}[first["baseline"]]
    gain = means["FedPer", "global"] - means[first["baseline"], against]
    assert first["mean"] == pytest.approx(100 * gain)
    low, high = first["interval"]
    assert low < first["mean"] < high
    assert (low > 0 or high < 0) == (first["p_seeds"] < 0.05)
    assert first["p_seeds_holm"] >= first["p_seeds"]


def test_tests_do_not_depend_on_the_unit_of_the_targets(tmp_path: Path) -> None:
    """With targets near 1e-10 all differences were 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=160)
    y = x + 0.3 * rng.normal(size=160) + np.arange(160) % 8
    pairs = []
    for unit in (1.0, 1e-10):
        place = tmp_path / f"unit-{unit:g}"
        place.mkdir()
        rows = [f"d{n % 8},{x[n]:.6f},{unit * y[n]:.8e}" for n in range(160)]
        (place / "table.csv").write_text("\n".join(["device,x,label", *rows]), encoding="utf-8")
        (place / "table.toml").write_text(
            'rounds = 2\nseeds = 3\nloss = "mse"\nmodel = { name = "linear" }\n'
            'data = { name = "files", path = "table.csv" }\nalgorithm = { name = "fedavg" }\n'
        )
        words = ("--trials", 1, "--jobs", 1, "--out", place / "grid")
        exits(0, "compare", place / "table.toml", *words)
        pairs.append(json.loads((place / "grid" / "compare.json").read_text())["pairs"])
    for one, other in zip(*pairs, strict=True):
        for key in ("devices", "better", "worse", "p", "p_seeds"):
            assert other[key] == pytest.approx(one[key], rel=1e-4), key
        assert other["better"] + other["worse"] > 0


def test_a_resumed_grid_runs_what_is_missing_and_nothing_else(folder: Path) -> None:
    before = contents(folder)
    times = {path: path.stat().st_mtime_ns for path in (folder / "cells").rglob("*.json")}
    lost = folder / "cells" / "fedavg" / "seed-1.json"
    part = folder / "cells" / "fedavg" / ".trial-2.json.part"
    lost.unlink()
    part.write_text("half of it")
    exits(0, "compare", "--resume", folder, "--jobs", 1)
    assert not part.exists()
    changed = [path for path, at in times.items() if path.stat().st_mtime_ns != at]
    assert changed == [lost]
    names = ("compare.txt", "compare.csv")
    for name in names:
        assert _figures((folder / name).read_bytes()) == _figures(before[name])


def _figures(text: bytes) -> str:
    """The text without the seconds that a round took."""
    lines = text.decode().splitlines()
    return "\n".join(line.rsplit(",", 5)[0].rsplit("  ", 1)[0] for line in lines)


def test_a_method_that_diverges_has_its_row(tmp_path: Path) -> None:
    words = ("algorithm.name=pfedme", "algorithm.lr=50.0", "algorithm.lam=50.0", "--trials", 2)
    place = tmp_path / "grid"
    ended = exits(0, "compare", *SMALL, *words, "--jobs", 1, "--out", place)
    assert "PFedMe: all 2 trials failed: " in ended.out
    text = (place / "compare.json").read_text()
    assert "Infinity" not in text  # which JSON does not have
    assert [bool(row["error"]) for row in json.loads(text)["rows"]] == [False, False, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("algorithm.name=fedagv",), ["'fedagv' is unknown", "did you mean fedavg?"]),
        (("algorithm.name=",), ["empty value"]),
        (("algorithm.name=fedavg", "algorithm.lrr=1"), ["unknown key algorithm.lrr", "algorithm.lr?"]),
        (("algorithm.name=fedavg", "algorithm.lr=0.1,-1"), ["lr", "-1"]),
        (("algorithm.name=fedavg", "algorithm.lr=0.1,x"), ["algorithm.lr", '"x"']),
        (("algorithm.name=permfl", "tree.edges=none", "--budget", "bytes=1e9"), ["PerMFL needs the tiers"]),
        (("algorithm.name=fedavg", "tree.edges=none"), ["SFedHP needs the tiers"]),
        (("algorithm.name=fedavg", "--budget", "gradients=5"), ["less than one round", "FedAvg 120", "gradients=240 or more"]),
        (("algorithm.name=fedavg", "--budget", "seconds=5"), ["no table [radio]"]),
        (("algorithm.name=fedavg", "--budget", "euros=5"), ["gradients, examples, bytes or seconds"]),
        (("algorithm.name=fedavg", "--budget", "bytes=many"), ["'many' is no number"]),
        (("algorithm.name=fedavg", "--model", "local"), ["--model local: no compared method has it", "global, personal."]),
        (("algorithm.name=fedavg", "--trials", "0"), ["give 1 or more"]),
        (("algorithm.name=fedavg", "--jobs", "0"), ["give 1 or more"]),
        (("rouns=3",), ["unknown key rouns", "did you mean rounds?"]),
        (("protocol=paper",), ["chooses rounds on test data"]),
        (("algorithm.name=fedavg,fedavg",), ["2 times"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_a_folder_is_made(
    words: tuple[str, ...], said: list[str], tmp_path: Path
) -> None:
    ended = exits(2, "compare", *SMALL, *words, "--out", tmp_path / "grid")
    assert [word for word in said if word not in ended.err] == [], ended.err
    assert not (tmp_path / "grid").exists()


def test_a_resumed_grid_takes_no_other_plan(folder: Path, tmp_path: Path) -> None:
    for words in (("rounds=3",), (str(BASE),), ("--out", str(tmp_path))):
        assert "brings its own plan" in exits(2, "compare", "--resume", folder, *words).err
    ended = command("compare", "--resume", tmp_path)
    assert "no grid.json" in ended.err
    (tmp_path / "grid.json").write_text("{")
    assert "grid.json is damaged" in exits(4, "compare", "--resume", tmp_path).err
    (tmp_path / "grid.json").write_text('{"version": 1, "kind": "compare"}')
    assert "is damaged" in exits(4, "compare", "--resume", tmp_path).err
    assert "resume it with covey compare" in exits(2, "sweep", "--resume", folder).err


def test_a_damaged_cell_is_named(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "grid"
    shutil.copytree(folder, place)
    cell = place / "cells" / "fedavg" / "seed-0.json"
    values = json.loads(cell.read_text())
    for text in ("{", "[1]", json.dumps({**values, "history": [{}]})):
        cell.write_text(text)
        assert "damaged" in exits(4, "compare", "--resume", place, "--jobs", 1).err


def test_methods_that_send_nothing_get_the_rounds_of_the_file(tmp_path: Path) -> None:
    words = ("algorithm.name=fedavg", "--budget", "bytes=1e5", "--trials", 1, "--jobs", 1)
    place = tmp_path / "grid"
    exits(0, "compare", *SMALL, *words, "--out", place)
    rows = {row["title"]: row for row in json.loads((place / "compare.json").read_text())["rows"]}
    assert rows["Local"]["rounds"] == 4
    for title in ("FedAvg", "FineTune"):
        assert 0.5e5 < rows[title]["bytes"] <= 1e5


@pytest.mark.skipif(not ALL, reason="two commands with processes of their own: COVEY_TEST_ALL=1")
def test_a_killed_grid_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "grid"
    words = (*SMALL, METHODS, "seeds=2", "rounds=20", "--trials", 3, "--jobs", 2, "--out", place)
    process = spawn("compare", *words)
    until = time.monotonic() + 400
    while len(list(place.glob("cells/*/*.json"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in place.glob("cells/*/*.json")}
    exits(0, "compare", "--resume", place, "--jobs", 2)
    assert all(path.stat().st_mtime_ns == at for path, at in finished.items())
    again = tmp_path / "again"
    undisturbed = (*words[:-2], "--out", again)
    exits(0, "compare", *undisturbed)
    for name in ("compare.txt", "compare.csv"):
        assert _figures((place / name).read_bytes()) == _figures((again / name).read_bytes())


def test_the_plan_has_a_file_that_runs(folder: Path) -> None:
    plan = json.loads((folder / "grid.json").read_text())
    experiment = config.read(plan["config"]).experiment(0)
    assert next(covey.run(experiment)).gradients > 0


def test_ctrl_c_leaves_a_grid_that_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "grid"
    process = spawn("compare", *SMALL, METHODS, "rounds=400", "--jobs", 1, "--out", place)
    until = time.monotonic() + 120
    while not list(place.glob("cells/*/*.json")):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert f"resume with: covey compare --resume {place}" in err
    assert "Traceback" not in err


def test_the_fashion_example_names_eight_methods() -> None:
    """Its data are not here; its file is checked, and every method made."""
    file = config.load(FASHION)
    methods = [file.method(), *(other.method() for other in file.yardsticks().values())]
    assert len(set(methods)) == 8
    assert {"Local", "FineTune"} <= set(methods)
    for other in file.yardsticks().values():
        other.learner()


def test_trials_stop_each_on_its_own() -> None:
    words = (*RUN[1:], "rounds=30", "stop.patience=2", "stop.min_delta=0.02")
    file = config.load(BASE, words).resolved()
    both = play(Cell("trial", file, [0, 1]))
    each = [play(Cell("trial", file, [seed])) for seed in (0, 1)]
    assert both["chosen_round"] == [alone["chosen_round"][0] for alone in each]
    assert both["rounds"] == each[0]["rounds"] < 30
