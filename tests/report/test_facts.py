"""The facts of real runs: they agree with every other file of the run folder."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.engine.solvers import smooth_l1
from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.folder import recording
from covey.report.facts import Facts, as_json, facts
from covey.report.summary import summarise
from covey.runs.saved import checkpoint
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.headline import named
from covey.runs.scores.packing import unpack
from covey.runs.scores.record import Round
from tests.laws.cases import PLAIN, experiment
from tests.report.folders import FLAT, run_into

MORE = ("seeds=2", "compare=['fedavg']", "data.devices=8", "holdout_devices=2")
NODES = ("nodes.json", "nodes.jsonl", "totals.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, an algorithm beside, and a device held out."""
    place = tmp_path_factory.mktemp("facts") / "run"
    return run_into(place, *MORE)


@pytest.fixture(scope="module")
def known(folder: Path) -> dict[str, Any]:
    return facts([folder])


def test_they_are_json(known: dict[str, Any]) -> None:
    assert json.loads(as_json(known)) == known
    assert known["format"] == 2
    assert [run["key"] for run in known["runs"]] == ["run", "run/fedavg"]
    assert [run["title"] for run in known["runs"]] == ["SFedHP", "FedAvg"]
    assert known["baselines"] == ["run/fedavg"]
    assert known["title"] == "digits on 6 devices"
    for run in known["runs"]:
        facts_of = [run[key] for key in ("state", "finished", "done", "planned")]
        assert facts_of == ["finished", True, 4, 4]
        assert [seed["seed"] for seed in run["seeds"]] == [0, 1]


def test_figures_are_those_of_the_summary(folder: Path, known: dict[str, Any]) -> None:
    histories = [covey.load(folder, seed=seed).history for seed in range(2)]
    summary = summarise(histories).as_dict()
    seeds = known["runs"][0]["seeds"]
    for model in summary["models"]:
        name = model["model"]
        parts = [
            seed["newcomers"]["models"] if name.startswith("new_") else seed["models"]
            for seed in seeds
        ]
        for key, value in (("accuracy", "value"), ("last", "last")):
            mean = np.mean([part[name][value] for part in parts])
            assert mean == pytest.approx(model[key]["mean"])
        assert [part[name]["chosen"] - 1 for part in parts] == model["chosen_round"]
    for link in summary["links"]:
        bytes_ = seeds[0]["links"][link["link"]]
        assert all(sum(bytes_[way]) == link[way] for way in ("down", "up", "dense"))


def test_devices_are_those_of_the_table(folder: Path, known: dict[str, Any]) -> None:
    for seed in known["runs"][0]["seeds"]:
        population = known["populations"][seed["population"]]
        lines = covey.load(folder, seed=seed["seed"]).devices()
        assert seed["node_rounds"] == seed["rounds"] == [1, 2, 3, 4]
        for line in lines:
            if line.part != "test":
                continue
            device = int(line.device)
            model = seed["models"][line.model]
            sums = unpack(model["sums"])
            assert population["test"][device] == line.examples
            chosen = sums[seed["node_rounds"].index(line.round), device]
            assert chosen / line.examples == pytest.approx(line.accuracy)
            assert sums[-1, device] / line.examples == pytest.approx(line.last_accuracy)
            assert line.round == model["chosen"]


def test_newcomers(known: dict[str, Any]) -> None:
    for seed in known["runs"][0]["seeds"]:
        new = seed["newcomers"]
        assert list(new["models"]) == ["new_global", "new_edge", "new_personal"]
        for model in new["models"].values():
            assert sum(model["sums"]) / sum(new["test"]) == pytest.approx(model["value"])


def test_sparsity_is_that_of_the_saved_models(folder: Path, known: dict[str, Any]) -> None:
    seed = known["runs"][0]["seeds"][1]
    run = covey.load(folder, seed=1)
    for name, model in seed["models"].items():
        rows = run.snapshot(name).rows
        shares = smooth_l1.nonzeros(rows, run.experiment.algorithm.zero(model["tier"], name))
        assert model["sparsity"] == pytest.approx(shares.tolist(), abs=1e-4)
        assert np.mean(model["sparsity"]) == pytest.approx(model["nonzeros"], abs=1e-4)


def test_the_tree_and_the_labels(folder: Path, known: dict[str, Any]) -> None:
    run, flat = known["runs"]
    seed = run["seeds"][0]
    assert seed["parents"]["device"] == [0, 0, 0, 1, 1, 1]
    assert flat["seeds"][0]["parents"] == {"device": [0] * 6}
    assert seed["population"] == flat["seeds"][0]["population"]
    assert seed["population"] != run["seeds"][1]["population"]
    population = known["populations"][seed["population"]]
    shards = covey.run(covey.load(folder).experiment).trained
    by_hand = np.zeros((6, 10), dtype=int)
    for part in ("train", "validation", "test"):
        for device in range(6):
            labels = shards.y[shards.part(part).held(device)]
            by_hand[device] += np.bincount(labels.numpy(), minlength=10)
    assert population["labels"] == by_hand.tolist()
    assert population["classes"] == [str(k) for k in range(10)]


def test_samples(tmp_path: Path) -> None:
    """Bytes and rounds of the devices that were asked; scores of those that were drawn."""
    folder = run_into(tmp_path / "run", *FLAT, "algorithm.sample=2", "score_sample=3")
    known = facts([folder])
    run = known["runs"][0]
    seed = run["seeds"][0]
    assert run["sample"] == {"devices": 3}
    asked = seed["asked"]["device"]
    assert sum(asked) == 2 * 4
    down, up = (seed["bytes"]["device"][way] for way in ("down", "up"))
    message = max(down) // max(asked)
    assert down == up == [message * rounds for rounds in asked]
    sums = unpack(seed["models"]["global"]["sums"])
    assert (~np.isnan(sums)).sum(1).tolist() == [3] * 4
    assert seed["models"]["global"]["error"] > 0


def test_a_seed_that_stopped_is_finished(tmp_path: Path) -> None:
    folder = run_into(tmp_path / "run", "rounds=30", "stop.patience=2", "stop.min_delta=0.02")
    (run,) = facts([folder])["runs"]
    rounds = len(covey.load(folder).history)
    assert (run["state"], run["done"], run["planned"]) == ("finished", rounds, 30)
    assert rounds < 30


def test_numbers_are_compared_by_their_squared_errors(tmp_path: Path) -> None:
    rows = [f"d{k % 4},{k * 0.37 % 5:.3f},{k * 0.21 % 3:.3f},{k % 7}" for k in range(120)]
    (tmp_path / "numbers.csv").write_text("\n".join(["device,label,a,b", *rows]))
    file = tmp_path / "numbers.toml"
    file.write_text(
        'rounds = 3\n[algorithm]\nname = "pfedme"\n'
        '[data]\nname = "files"\npath = "numbers.csv"\n[model]\nname = "linear"\n'
    )
    folder = run_into(tmp_path / "run", "score_every=1", file=file)
    known = facts([folder])
    run = known["runs"][0]
    seed = run["seeds"][0]
    assert run["metric"] == "rmse"
    assert seed["names"] == {"device": ["d0", "d1", "d2", "d3"]}
    assert set(known["populations"][0]) == {"train", "validation", "test"}
    for line in covey.load(folder).devices():
        if line.part == "test":
            model = seed["models"][line.model]
            row = seed["node_rounds"].index(line.round)
            squared = unpack(model["sums"])[row, int(line.device[1:])]
            assert (squared / line.examples) ** 0.5 == pytest.approx(line.rmse, rel=1e-5)
            assert {"mae", "r2"} < set(model)


def test_loopback_records_the_same(tmp_path: Path) -> None:
    case = experiment(PLAIN["SFedHP"])
    one = recorded(tmp_path / "one", covey.run(case))
    other = recorded(tmp_path / "other", covey.run(case, runtime="loopback"))
    assert same(one, other)


def recorded(folder: Path, run: covey.Run) -> Path:
    """The folder into which the nodes of a run are recorded, and in the end its checkpoint."""
    recorder = recording.Recorder(RunFolder(folder), run, "method")
    recorder.folder.make()
    recorder.begin()
    for record in run:
        recorder.log([record])
    recorder.sync()
    run.save(recorder.folder.checkpoint)
    return folder


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in NODES)


def test_more_rounds(tmp_path: Path) -> None:
    """The last round of a shorter run, scored only for being the last, is not a line of a longer
    one.
    """
    short = experiment(PLAIN["SFedHP"], score_every=3, rounds=5)
    longer = experiment(PLAIN["SFedHP"], score_every=3, rounds=7)
    straight = recorded(tmp_path / "straight", covey.run(longer))
    folder = recorded(tmp_path / "resumed", covey.run(short))
    assert [line["round"] for line in lines(folder)] == [2, 4]
    recorded(folder, covey.run(longer, resume=folder / "checkpoint.safetensors"))
    assert [line["round"] for line in lines(folder)] == [2, 5, 6]
    assert same(straight, folder)


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "nodes.jsonl").read_text().splitlines()]


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A run that a test may spoil."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_half_a_line_is_not_read(copied: Path, known: dict[str, Any]) -> None:
    for name in ("metrics.jsonl", "nodes.jsonl"):
        with open(copied / "seed-0" / name, "a") as file:
            file.write('{"round": 4, "mod')
    (copied / "status.json").unlink()
    run = facts([copied])["runs"][0]
    assert run["state"] == "stopped"
    assert run["seeds"] == known["runs"][0]["seeds"]


def test_what_a_killed_run_left_is_cut_off(copied: Path) -> None:
    path = copied / "seed-0" / "nodes.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1].replace('"round":3', '"round":9') + '\n{"ro')
    run_into(copied, *MORE, "rounds=5")
    assert [line["round"] for line in lines(copied / "seed-0")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("nodes.jsonl", '"data":"....', '"data":"AAAA', ["nodes.jsonl", "round 1", "accuracy"]),
        ("nodes.jsonl", '"u1"', '"u9"', ["nodes.jsonl", "line 1", "u9"]),
        ("totals.json", r'"down": \[', '"down": [7, ', ["totals.json", "bytes down"]),
        ("metrics.jsonl", '{"round": 0', '{"round": 7', ["metrics.jsonl", "lacks rounds"]),
        ("nodes.json", '"tiers"', '"tears"', ["seed-0", "tiers"]),
        ("nodes.json", "^{", "[", ["nodes.json"]),
    ],
)
def test_damage_is_named(copied: Path, name: str, old: str, new: str, words: list[str]) -> None:
    path = copied / "seed-0" / name
    text = path.read_text()
    assert re.search(old, text)
    path.write_text(re.sub(old, new, text, count=1))
    with pytest.raises(CheckpointError) as caught:
        facts([copied])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["nodes.json", "totals.json"])
def test_whatever_a_file_holds_the_error_is_one_of_coveys(copied: Path, name: str) -> None:
    path = copied / "seed-0" / name
    whole = json.loads(path.read_text())
    wrong: list[Any] = [None, "x", [], {"device": [1]}, 1e99]
    for key in whole:
        for value in wrong:
            path.write_text(json.dumps(whole | {key: value}))
            assert str(copied) in error_of(copied)


def error_of(folder: Path) -> str:
    """The error that facts of a folder lead to, if any, else the facts."""
    try:
        return as_json(facts([folder]))
    except CoveyError as error:
        return str(error)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"not a run folder.*no config\.toml"):
            facts([path])


def test_a_run_without_its_nodes(copied: Path) -> None:
    (copied / "seed-0" / "nodes.json").unlink()
    with pytest.raises(ConfigError, match=r"no nodes.json.*covey run \S*copy/config.toml"):
        facts([copied])


def test_many_devices_have_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "DEVICES", 5)
    folder = run_into(tmp_path / "run")
    assert not (folder / "nodes.jsonl").exists()
    assert not (folder / "totals.json").exists()
    seed = facts([folder])["runs"][0]["seeds"][0]
    assert "6 devices" in seed["note"]
    assert not {"parents", "population", "bytes", "asked"} & set(seed)
    assert seed["models"]["personal"]["curve"]
    assert "sums" not in seed["models"]["personal"]


def test_of_a_long_run_some_rounds_have_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third, the best so far and the last."""
    run = covey.run(experiment(PLAIN["SFedHP"], rounds=10, score_every=1))
    devices = run.trained.devices
    monkeypatch.setattr(recording, "_SUMS", 4 * devices * len(run.models()))
    folder = recorded(tmp_path / "run", run)
    rounds = [line["round"] for line in lines(folder)]
    best = [round for round in rounds if lines(folder)[rounds.index(round)]["holds"]]
    assert {2, 5, 8, 9} <= set(rounds) == {2, 5, 8, 9} | set(best)
    assert len(rounds) < 10
    chosen = {choice.round for choice in run.chosen.values()}
    assert chosen <= set(best)


@pytest.mark.parametrize("keys", [[["device", "down"]], [["edge", "up"]], [["device"]], 3])
def test_totals_that_do_not_fit_are_damage(tmp_path: Path, keys: Any) -> None:
    folder = recorded(tmp_path / "run", covey.run(experiment(PLAIN["FedAvg"], rounds=1)))
    path = folder / "checkpoint.safetensors"
    saved = checkpoint.read(path)
    saved.facts["totals"] = keys
    saved.tensors["totals.0"] = torch.zeros(3)
    checkpoint.write(path, saved)
    with pytest.raises(CheckpointError, match="is damaged"):
        covey.run(experiment(PLAIN["FedAvg"], rounds=2), resume=path)


def test_growing_folders_are_read_on(folder: Path, tmp_path: Path) -> None:
    """One reader sees a folder grow as a new one does."""
    grown = Path(shutil.copytree(folder, tmp_path / "grown"))
    place = grown / "seed-0"
    texts = {name: (place / name).read_text() for name in ("metrics.jsonl", "nodes.jsonl")}
    for name, text in texts.items():
        (place / name).write_text("".join(text.splitlines(keepends=True)[:1]))
    (place / "totals.json").unlink()
    reader = Facts([grown])
    seed = reader.read()["runs"][0]["seeds"][0]
    assert (seed["rounds"], seed["node_rounds"]) == ([1], [1])
    assert "bytes" not in seed
    for name, text in texts.items():
        with open(place / name, "a") as file:
            file.write("".join(text.splitlines(keepends=True)[1:]))
    assert reader.read()["runs"][0]["seeds"][0]["rounds"] == [1, 2, 3, 4]
    assert reader.read() == facts([grown])


def test_metrics_are_those_of_the_other_files(tmp_path: Path) -> None:
    asked = 'metrics=["auc", "confusion", "loss"]'
    folder = run_into(tmp_path / "run", asked, "select=ece")
    (run,) = facts([folder])["runs"]
    assert (run["metric"], run["shown"]) == ("accuracy", "ece")
    higher = {metric["name"]: metric["higher"] for metric in run["metrics"]}
    assert higher == {"accuracy": True, "loss": False, "auc": True, "ece": False}
    loaded = covey.load(folder)
    (seed,) = run["seeds"]
    for name, model in seed["models"].items():
        records = [record.models[name].scores["test"] for record in loaded.history]
        best = min(range(len(records)), key=lambda k: _validation(loaded.history[k], name, "ece"))
        assert model["chosen"] == best + 1
        assert model["confusion"] == records[best].confusion
        for metric, of_metric in model["metrics"].items():
            assert of_metric["value"] == records[best].figure(metric)
            curve = [score.figure(metric) for score in records]
            assert of_metric["curve"] == pytest.approx(curve, rel=1e-5)
            values = unpack(of_metric["devices"])[seed["node_rounds"].index(model["chosen"])]
            lines = [line for line in loaded.devices() if (line.model, line.part) == (name, "test")]
            table = [named(metric).of_device(line) for line in lines]
            expected = [np.nan if value is None else value for value in table]
            assert values.tolist() == pytest.approx(expected, rel=1e-6, nan_ok=True)


def _validation(record: Round, model: str, metric: str) -> float:
    value = record.models[model].scores["validation"].figure(metric)
    assert value is not None
    return value
