"""Early stopping: the count by hand, the bits of runs that stop, and what their folders say."""

import json
import math
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg, Local, PFedMe
from covey.data import Shards, own_parts
from covey.errors import ConfigError
from covey.folder.recording import Recorder
from covey.models import linear
from covey.report.summary import summarise
from covey.runs.run import Run
from covey.runs.scores.record import Round
from covey.runs.scores.scoring import Model
from covey.runs.selection import select
from covey.runs.stopping import EarlyStop, StopCount, early_stop
from experiments.kills.run import difference
from tests.cli.command import SMALL, exits
from tests.cli.command import covey as command
from tests.given import played
from tests.laws.cases import differences, state
from tests.report.rounds import score as made

DEVICES = 4
NAN = math.nan


def shards(*, numbers: bool = False, validation: int = 8) -> Shards:
    """Examples of a few devices, with noisy labels, so that scores stop rising."""
    draw = torch.Generator().manual_seed(3)
    w = torch.randn(5, 3, generator=draw)
    parts: dict[str, list[Any]] = {"train": [], "validation": [], "test": []}
    for _ in range(DEVICES):
        for name, size in (("train", 12), ("validation", validation), ("test", 8)):
            x = torch.randn(size, 5, generator=draw)
            outputs = x @ w + torch.randn(size, 3, generator=draw)
            y = outputs[:, 0] if numbers else outputs.argmax(1)
            parts[name].append((x, y))
    chosen = parts["validation"] if validation else None
    classes = None if numbers else 3
    return own_parts(train=parts["train"], validation=chosen, test=parts["test"], classes=classes)


def experiment(*, numbers: bool = False, **changes: Any) -> Experiment:
    plain: dict[str, Any] = {
        "algorithm": PFedMe(steps=3), "data": shards(numbers=numbers),
        "model": linear(5, 1 if numbers else 3), "tree": Tree.flat(DEVICES), "rounds": 40,
    }  # fmt: skip
    return Experiment(**(plain | changes))


def after(chosen: Experiment, rounds: int) -> Run:
    """A run after some of its rounds."""
    run = covey.run(chosen)
    for _ in range(rounds):
        next(run)
    return run


def records(accuracies: Sequence[float | None], losses: Sequence[float] = ()) -> list[Round]:
    """A record for each validation accuracy; None is a round that was not scored."""
    out = []
    for number, accuracy in enumerate(accuracies):
        models = {}
        if accuracy is not None:
            loss = losses[number] if losses else 1.0
            score = made(accuracy, accuracy, accuracy, loss, 4, accuracy, loss)
            test = made(0.5, 0.5, 0.5, 1.0, 4, 0.5, 1.0)
            scores = {"validation": score, "test": test}
            models = {"global": Model("server", 1, 0.0, 1.0, 0.0, scores)}
        out.append(Round(number, {}, {}, models, 0.0))
    return out


def stops_after(history: Sequence[Round], stop: EarlyStop, **changes: Any) -> int | None:
    """The rounds after which a run of these records stops; None where it does not."""
    patience = StopCount(stop, experiment(**changes))
    for rounds in range(1, len(history) + 1):
        if patience.ended(history[:rounds]):
            return rounds
    return None


RISE_AND_FALL = [0.5, 0.6, 0.7, 0.69, 0.7, 0.68, 0.71, 0.7, 0.7, 0.7, 0.7]


@pytest.mark.parametrize(
    ("stop", "rounds"),
    [
        (EarlyStop(1), 4),  # 0.69 is below 0.7
        (EarlyStop(2), 5),  # the second 0.7 is not better than the first
        (EarlyStop(3), 6),
        (EarlyStop(4), 11),  # 0.71 in round 7 begins a new count
        (EarlyStop(5), None),
        (EarlyStop(4, min_delta=0.02), 7),  # 0.71 is not better by more than 0.02
        (EarlyStop(1, min_delta=0.15), 2),
        (EarlyStop(2, min_delta=0.15), 5),  # round 3 is 0.2 better than round 1
        (EarlyStop(2, min_rounds=7), 9),  # in round 7 it is better again
        (EarlyStop(2, min_rounds=6), 6),
        (EarlyStop(1, metric="-loss"), 2),  # the losses rise
        (EarlyStop(1, metric="loss"), None),
    ],
)
def test_the_count_by_hand(stop: EarlyStop, rounds: int | None) -> None:
    losses = [0.1 * number for number in range(len(RISE_AND_FALL))]
    assert stops_after(records(RISE_AND_FALL, losses), stop) == rounds


def test_it_stops_where_the_last_scores_are_no_better_than_all_before() -> None:
    draw = random.Random(5)
    for _ in range(100):
        accuracies = [draw.randrange(8) / 8 for _ in range(20)]
        patience = draw.randrange(1, 6)
        wanted = None
        for rounds in range(patience + 1, 21):
            if max(accuracies[rounds - patience : rounds]) <= max(accuracies[: rounds - patience]):
                wanted = rounds
                break
        assert stops_after(records(accuracies), EarlyStop(patience)) == wanted


def test_only_scored_rounds_count_and_not_one_that_is_scored_for_being_the_last() -> None:
    history = records([None, 0.6, None, 0.5, None, 0.5, None])
    assert stops_after(history, EarlyStop(2), score_every=2) == 6
    history = records([None, 0.6, None, 0.5, 0.5])
    assert stops_after(history, EarlyStop(2), score_every=2, rounds=5) is None


def test_a_round_with_an_unknown_figure_does_not_count() -> None:
    history = records([0.5] * 4, losses=[1.0, NAN, NAN, NAN])
    assert stops_after(history, EarlyStop(1, metric="-loss")) is None


def test_every_model_that_trains_must_have_stopped_getting_better() -> None:
    history = records([0.5, 0.4, 0.4, 0.4, 0.4])
    for number, record in enumerate(history):
        score = made(None, None, None, 1.0, 4, 0.1 * min(number, 2), 1.0)
        personal = Model("device", 4, 0.0, 1.0, 0.0, {"validation": score})
        new = Model("new device", 1, 0.0, 1.0, 0.0, {"validation": replace(score, devices=number)})
        record.models["personal"] = personal
        record.models["new_personal"] = new
    assert stops_after(history, EarlyStop(2)) == 5
    assert stops_after(history, EarlyStop(2, model="global")) == 3
    assert stops_after(history, EarlyStop(2), algorithm=Local()) == 5
    for record in history:
        del record.models["personal"]
    assert stops_after(history, EarlyStop(2)) == 3


def test_the_count_begins_anew_where_the_records_are_others() -> None:
    patience = StopCount(EarlyStop(2), experiment())
    assert patience.ended(records([0.5, 0.4, 0.4]))
    assert not patience.ended(records([0.5, 0.4]))
    assert not patience.ended(records([0.5, 0.4, 0.6]))


STOPS = [
    {"patience": 2},
    {"patience": 2, "metric": "loss", "min_delta": 0.02},
    {"patience": 3, "metric": "accuracy", "min_rounds": 9},
    {"patience": 2, "model": "global"},
]


@pytest.mark.parametrize(("stop", "score_every"), list(zip(STOPS, (1, 2, 1, 2), strict=True)))
def test_a_run_that_stops_is_the_first_rounds_of_one_that_does_not(
    stop: dict[str, Any], score_every: int
) -> None:
    plain = experiment(score_every=score_every)
    run = played(replace(plain, stop=stop))
    assert 3 <= run.round < 40
    assert run.round % score_every == 0
    assert run.done
    assert not differences(state(run), state(after(plain, run.round)))
    chosen = select(run.history, "personal").chosen.round
    assert run.snapshot("personal", "chosen").round == chosen


def test_the_smallest_error_is_the_best_for_numbers() -> None:
    chosen = experiment(numbers=True, stop={"patience": 3, "metric": "rmse", "model": "personal"})
    run = played(chosen)
    scores = [record.models["personal"].scores["validation"] for record in run.history]
    errors = [score.rmse_fallback or 0.0 for score in scores]
    assert run.round < 40
    assert errors.index(min(errors)) == run.round - 4
    assert chosen.early_stop() == EarlyStop(3, "-rmse", model="personal")
    assert run.experiment.metrics == ()


def test_a_metric_that_records_lack_is_computed() -> None:
    chosen = experiment(stop={"patience": 2, "metric": "f1"})
    assert chosen.metrics == ("f1",)
    run = played(chosen)
    assert not differences(state(run), state(after(experiment(metrics=("f1",)), run.round)))
    assert replace(chosen, rounds=3).metrics == ("f1",)


def test_a_run_that_is_resumed_anywhere_counts_on(tmp_path: Path) -> None:
    chosen = experiment(stop={"patience": 3, "min_delta": 0.01}, score_every=2)
    whole = played(chosen)
    assert whole.round < 40
    for rounds in (1, whole.round - 2, whole.round - 1):
        after(chosen, rounds).save(tmp_path / "saved")
        again = played(chosen, resume=tmp_path / "saved")
        assert not differences(state(whole), state(again))


def test_a_run_that_stopped_goes_on_with_more_patience_alone(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    chosen = experiment(stop={"patience": 2})
    run = played(chosen)
    run.save(saved)
    fix = "to go on, give stop more patience, or leave it out"
    for same in (chosen, replace(chosen, rounds=60)):
        with pytest.raises(ConfigError, match=f"stopped early after round {run.round}.*{fix}"):
            covey.run(same, resume=saved)
    patient = replace(chosen, stop={"patience": 3})
    whole = played(patient)
    assert run.round < whole.round
    assert not differences(state(whole), state(played(patient, resume=saved)))


def test_seeds_do_not_run_in_one_go() -> None:
    each = [experiment(seed=seed, stop={"patience": 2}) for seed in (1, 2)]
    with pytest.raises(ConfigError, match="`stop` ends each of them in a round of its own; run"):
        covey.runs(each)


def test_what_a_run_shows_of_its_stop() -> None:
    run = played(experiment(stop={"patience": 2, "metric": "loss", "min_delta": 0.05}))
    reason = (
        f"stopped early after round {run.round} of 40: no model got better on validation data by "
        "loss (min_delta 0.05) in 2 scored rounds in a row"
    )
    assert run.stopped == reason
    assert f"stopped early after {run.round} of 40 rounds" in repr(run)
    assert f"stopped early after {run.round} of 40 rounds" in run._repr_html_()
    assert played(experiment(rounds=2)).stopped is None


def test_a_run_is_told_where_its_stop_cannot_act() -> None:
    few = covey.run(experiment(rounds=9, score_every=2, stop={"patience": 4}))
    needs = "patience = 4 needs 5 scored rounds before the last, and there are 4"
    assert f"stop cannot act in 9 rounds: {needs}." in few.notes
    late = covey.run(experiment(rounds=9, stop={"patience": 2, "min_rounds": 9}))
    assert "stop cannot act in 9 rounds: min_rounds = 9." in late.notes
    with_train = experiment(rounds=9, score_every=2, score_train_every=3, stop={"patience": 4})
    assert not any("stop" in note for note in covey.run(with_train).notes)
    chosen = experiment(algorithm=FedAvg(), stop={"patience": 2, "model": "personal"})
    other = "stop: this run has no model 'personal' but global; every model that trains counts."
    assert other in covey.run(chosen).notes


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (5, "stop = 5 must be a table"),
        ({}, "stop.patience is missing"),
        ({"metric": "loss"}, "stop.patience is missing"),
        ({"patience": 0}, "stop.patience = 0 must be"),
        ({"patience": 2.5}, "stop.patience = 2.5 must be"),
        ({"patience": True}, "stop.patience = true must be"),
        ({"patience": 2, "min_rounds": -1}, "stop.min_rounds = -1 must be"),
        ({"patience": 2, "min_delta": -0.1}, "stop.min_delta = -0.1 must be"),
        ({"patience": 2, "min_delta": NAN}, "stop.min_delta = NaN must be"),
        ({"patience": 2, "min_delta": "1"}, "stop.min_delta = .1. must be"),
        ({"patience": 2, "metric": 3}, "stop.metric = 3 must be"),
        ({"patience": 2, "metric": "fun"}, "stop: metric = 'fun'; .*there is no metric 'fun'"),
        ({"patience": 2, "metric": "rmse"}, "stop: metric = 'rmse'; .*rmse is not for this data"),
        ({"patience": 2, "metric": "-f1"}, "stop: metric = '-f1': the largest f1 is the best"),
        ({"patience": 2, "metric": "confusion"}, "stop: metric = 'confusion' is a table"),
        ({"patience": 2, "wait": 3}, "unknown key stop.wait; known are patience, metric"),
    ],
)
def test_mistakes_are_named(stop: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(stop=stop)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "paper"}, "protocol = 'paper' has no validation part, and test data must"),
        ({"parts": ("test",)}, "stop needs scores on validation data, but parts"),
        ({"data": shards(validation=0)}, "stop needs validation data, but no device has"),
    ],
)
def test_without_validation_data_it_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(stop={"patience": 2}, **changes)


def test_a_rule_is_its_own_table() -> None:
    stop = EarlyStop(3, "f1", 0.5)
    assert early_stop(stop) == early_stop(vars(stop)) == stop
    assert early_stop(None) is None


FILE = (*SMALL, "rounds=30", "stop.patience=2", "stop.min_delta=0.02")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds that stop in different rounds."""
    folder = tmp_path_factory.mktemp("stopping") / "several"
    ended = exits(0, "run", *FILE, "seeds=2", "--out", folder)
    assert "seed 1  stopped early after round " in ended.out
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the seeds, in a folder of its own."""
    folder = tmp_path_factory.mktemp("stopping") / "alone"
    exits(0, "run", *FILE, "seed=1", "--out", folder)
    return folder


def rounds_of(folder: Path) -> list[int]:
    """The rounds that each seed ran."""
    places = sorted(folder.glob("seed-*"))
    return [len((place / "metrics.jsonl").read_text().splitlines()) for place in places]


def test_every_seed_is_the_seed_alone(several: Path, alone: Path, tmp_path: Path) -> None:
    rounds = rounds_of(several)
    assert len(set(rounds)) > 1
    assert max(rounds) < 30
    seed = tmp_path / "seed"
    shutil.copytree(several / "seed-1", seed)
    for name in ("config.toml", "summary.json"):  # which are those of all seeds
        shutil.copy(alone / name, seed / name)
    assert difference(seed, alone) is None


def test_what_is_said_of_a_run_that_stopped(several: Path) -> None:
    rounds = rounds_of(several)
    summary = json.loads((several / "summary.json").read_text())
    assert summary["rounds_by_seed"] == rounds
    listed = json.loads(command("runs", several, "--json").out)[0]
    assert (listed["state"], listed["done"], listed["rounds"]) == ("finished", min(rounds), 30)
    shown = command("show", several).out
    numbers = ", ".join(map(str, rounds))
    assert f"stopped early after round {numbers} of 30, as stop says" in shown
    assert f"{min(rounds)} to {max(rounds)} rounds, 2 seeds" in shown
    assert "resume with" not in shown
    assert json.loads(command("show", several, "--json").out)["finished"] is True
    loaded = covey.load(several, seed=1)
    assert loaded.finished
    assert loaded.stopped_early
    assert len(loaded.devices()) > 0
    assert loaded.chosen["personal"] <= rounds[1]


def test_a_run_that_stopped_is_done(several: Path) -> None:
    rounds = rounds_of(several)
    before = (several / "seed-0" / "checkpoint.safetensors").read_bytes()
    again = exits(0, "run", "--resume", several, "rounds=50")
    assert f"seed 0  stopped early after round {rounds[0]} of 50 before" in again.out
    assert (several / "seed-0" / "checkpoint.safetensors").read_bytes() == before
    exits(0, "run", "--resume", several, "rounds=30")


def test_a_folder_goes_on_with_another_stop_alone(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    refused = command("run", "--resume", folder, "stop.patience=1")
    assert refused.code != 0
    assert "to go on, give stop more patience, or leave it out" in refused.err
    refused = command("run", "--resume", folder, "algorithm.lr=0.1")
    assert "may only get more rounds, another stop or another store" in refused.err
    assert (folder / "config.toml").read_text() == (alone / "config.toml").read_text()
    again = command("run", "--resume", folder)
    assert "to go on, add stop.patience=7" in again.out
    assert difference(folder, alone) is None


@pytest.mark.skipif(not os.environ.get("COVEY_TEST_ALL"), reason="only `make test-all`")
def test_a_folder_that_goes_on_is_one_that_had_more_patience(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = tmp_path / "whole"
    shutil.copytree(alone, folder)
    exits(0, "run", "--resume", folder, "stop.patience=3")
    exits(0, "run", *FILE, "seed=1", "stop.patience=3", "--out", whole)
    assert difference(folder, whole) is None
    assert difference(folder, alone) is not None


def test_a_run_that_is_interrupted_counts_on(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    rounds = len(covey.load(alone).history)
    whole = Recorder.log

    def interrupted(self: Recorder, records: Any) -> None:
        whole(self, records)
        if self.run.round == rounds - 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "log", interrupted)
        exits(130, "run", *FILE, "seed=1", "--out", folder)
    exits(0, "run", "--resume", folder)
    assert difference(folder, alone) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stop.patience=0", "stop.patience = 0 must be"),
        ("stop.metric=fun", "stop: metric = 'fun'; metrics: there is no metric 'fun'"),
        ("stop.min_delta=-1", "stop.min_delta = -1 must be"),
        ("stop=5", "stop = 5 must be a table"),
        ("protocol=paper", "protocol = 'paper' has no validation part"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path: Path, change: str, message: str) -> None:
    ended = command("run", *FILE, change, "--out", tmp_path / "run")
    assert ended.code != 0
    assert message in ended.err
    assert not (tmp_path / "run").exists()


def test_a_summary_has_the_rounds_of_seeds_only_where_they_differ() -> None:
    short = played(experiment(rounds=2)).history
    long = played(experiment(rounds=3)).history
    assert summarise([short, long]).rounds_by_seed == [2, 3]
    assert summarise([long, long]).rounds_by_seed == []
    assert "rounds_by_seed" not in summarise([long]).as_dict()
