"""A run is an iterator; it stops, is looked at, saved and resumed, and refuses what is not its own."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg, SFedHP
from covey.data import synthetic
from covey.errors import CheckpointError, ConfigError, ProgramError
from covey.models import mlp
from covey.runs.saved import checkpoint
from covey.runs.saved.checkpoint import Checkpoint
from tests import peek
from tests.given import played

DATA = synthetic(devices=6, sizes=[20, 30, 40, 20, 30, 25])
MODEL = mlp(60, 8, 10)
TREE = Tree.grouped([2, 4])


def experiment(**more: Any) -> Experiment:
    given = {
        "algorithm": SFedHP(sample=1, device_sample=0.5, edge_rounds=2, steps=2, batch=5, gamma1=0.001),
        "data": DATA, "model": MODEL, "tree": TREE, "rounds": 4, "codec": "bitmap", "batches": "cyclic", **more,
    }  # fmt: skip
    return Experiment(**given)


def test_it_is_an_iterator_of_rounds() -> None:
    run = covey.run(experiment())
    assert iter(run) is run
    assert isinstance(run, Iterator)
    first = next(run)
    assert (first.round, run.round) == (0, 1)
    rest = list(run)
    assert [record.round for record in rest] == [1, 2, 3]
    assert run.history == (first, *rest)
    assert list(run) == []
    with pytest.raises(StopIteration):
        next(run)


def test_every_record_names_its_cohorts() -> None:
    for record in covey.run(experiment()):
        assert record.cohorts.keys() == {"edge", "device"}
        (edge,) = record.cohorts["edge"]
        assert set(record.cohorts["device"]) <= ({0, 1} if edge == 0 else {2, 3, 4, 5})
        assert record.cohorts["device"] == sorted(set(record.cohorts["device"]))


def test_records_are_json() -> None:
    for record in covey.run(experiment(score_every=3)):
        back = json.loads(json.dumps(record.as_dict()))
        assert back["round"] == record.round
        assert back["cohorts"] == record.cohorts
        trained = [t["bytes"] for key, t in back["traffic"].items() if key.endswith("/train")]
        assert sum(trained) == record.bytes()
        assert bool(back["models"]) == (record.round in (2, 3))
        assert f"round {record.round + 1:4d}" in str(record)
        assert ("personal 0." in str(record)) == (record.round in (2, 3))


def test_rows_and_modules() -> None:
    run = covey.run(experiment())
    record = next(run)
    ids, rows = run.rows("personal")
    assert ids.tolist() == record.cohorts["device"]
    assert rows.shape == (len(ids), run.w.shape[1])
    x = DATA.x[:3]
    module = run.module("personal", int(ids[0]))
    assert isinstance(module, nn.Sequential)
    with torch.no_grad():
        assert not torch.equal(module(x), run.module()(x))
        weight = dict(run.module().named_parameters())["1.weight"]
    assert torch.equal(weight.t().reshape(-1), run.w[0, : 60 * 8])
    assert run.models() == ["global", "edge", "edge_global", "personal"]
    run.rows()[1].zero_()
    assert run.w.any()
    absent = next(d for d in range(6) if d not in ids.tolist())
    with pytest.raises(ConfigError, match=f"node {absent} keeps no 'personal' yet; these do: \\["):
        run.module("personal", absent)
    with pytest.raises(ConfigError, match="no model 'theta' in this run; there are global, edge"):
        run.rows("theta")


def equal(a: covey.Run, b: covey.Run) -> None:
    assert torch.equal(a.w, b.w)
    one, two = peek.dump(a), peek.dump(b)
    assert [entry[:2] for entry in one] == [entry[:2] for entry in two]
    for left, right in zip(one, two, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(left[2:], right[2:], strict=True))
    assert a.meter == b.meter
    timeless = [
        [dataclasses.replace(record, seconds=0.0) for record in run.history] for run in (a, b)
    ]
    assert timeless[0] == timeless[1]


def test_resumed_is_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = played(experiment())
    part = played(experiment(rounds=2))
    part.save(tmp_path / "run")
    more = covey.run(experiment(), resume=tmp_path / "run")
    assert more.round == 2
    assert [record.round for record in more] == [2, 3]
    equal(whole, more)
    assert not torch.equal(whole.w, part.w)


def test_a_run_of_the_same_description_made_anew_may_be_resumed(tmp_path: Path) -> None:
    """`mlp` initialises from torch's global generator, which decides nothing here."""
    run = covey.run(experiment(model=mlp(60, 8, 10)))
    next(run)
    run.save(tmp_path / "run")
    again = covey.run(experiment(model=mlp(60, 8, 10)), resume=tmp_path / "run")
    next(run), next(again)
    assert torch.equal(run.w, again.w)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    plain, saved = covey.run(experiment()), covey.run(experiment())
    for _ in zip(plain, saved, strict=True):
        saved.save(tmp_path / "run")
    equal(plain, saved)
    assert sorted(os.listdir(tmp_path)) == ["run", "run.history.jsonl", "run.previous"]


def test_the_records_of_a_saved_run(tmp_path: Path) -> None:
    run = covey.run(experiment(score_every=2))
    for _ in range(3):
        next(run)
    run.save(tmp_path / "run")
    assert covey.history(tmp_path / "run") == list(run.history)


def test_saved_before_the_first_round(tmp_path: Path) -> None:
    covey.run(experiment()).save(tmp_path / "run")
    a, b = covey.run(experiment()), covey.run(experiment(), resume=tmp_path / "run")
    list(a), list(b)
    equal(a, b)


def test_nothing_left_to_run(tmp_path: Path) -> None:
    run = played(experiment(rounds=2))
    run.save(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"rounds = 2, but .*run has run 2 already"):
        covey.run(experiment(rounds=2), resume=tmp_path / "run")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = covey.run(experiment())
    next(run)
    path = tmp_path_factory.mktemp("saved") / "run"
    run.save(path)
    return path


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "algorithm": ({"algorithm": FedAvg(), "codec": "bitmap"}, r"FedAvg\(sample=None"),
    "a field of it": (
        {"algorithm": SFedHP(lam1=24.0, sample=1, device_sample=0.5, edge_rounds=2, steps=2, batch=5)},
        r"lam1=24\.0",
    ),
    "seed": ({"seed": 1}, "its seed is 0, this one's is 1"),
    "data": (
        {"data": synthetic(devices=6, sizes=[20, 30, 40, 20, 30, 26])},
        r"synthetic\(0.5, 0.5\) changed since it was written",
    ),
    "tree": ({"tree": Tree.grouped([3, 3])}, "its tree is .*this one's is"),
    "model": ({"model": mlp(60, 9, 10)}, "its model is"),
    "codec": ({"codec": "dense"}, "its codec is bitmap, this one.s is dense"),
    "idle": ({"idle": "train"}, "its idle is skip, this one's is train"),
    "dtype": ({"dtype": torch.float64}, "its dtype is"),
    "protocol": ({"protocol": "paper"}, "its protocol is honest"),
    "batches": ({"batches": "uniform"}, "its batches is cyclic"),
    "l2": ({"l2": 0.1}, r"its l2 is 0\.0, this one's is 0\.1"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_a_foreign_checkpoint_names_what_differs(saved: Path, what: str) -> None:
    change, words = OTHER[what]
    with pytest.raises(CheckpointError, match=words):
        covey.run(experiment(**change), resume=saved)


def rewritten(path: Path, target: Path, **change: Any) -> Path:
    """The checkpoint with some facts or tensors replaced, or left out where they are None."""
    old = checkpoint.read(path)
    facts = old.facts | {k: v for k, v in change.items() if not isinstance(v, torch.Tensor)}
    tensors = old.tensors | {k: v for k, v in change.items() if isinstance(v, torch.Tensor)}
    if "server" in change and change["server"] is None:
        del tensors["server"]
    checkpoint.write(target, Checkpoint(tensors, {k: v for k, v in facts.items() if v is not None}))
    shutil.copy(path.with_name("run.history.jsonl"), target.with_name("run.history.jsonl"))
    return target


def test_a_rewritten_checkpoint_still_works(saved: Path, tmp_path: Path) -> None:
    assert covey.run(experiment(), resume=rewritten(saved, tmp_path / "run")).round == 1


@pytest.mark.parametrize(
    "change",
    [
        {"experiment": None}, {"columns": None}, {"round": None}, {"history": None}, {"meter": None}, {"server": None},
        {"round": "three"}, {"round": -1}, {"columns": [["device", "personal"]] * 9}, {"columns": [["moon", "personal"]]},
        {"history": [{}]}, {"server": torch.zeros(1, 3)}, {"server": torch.zeros(2, 578)}, {"0.0.ids": torch.tensor([99])},
        {"experiment": []}, {"experiment": "x"}, {"columns": 7}, {"columns": [[[], {}, 3]]}, {"round": 10**30}, {"round": True},
        {"round": 2}, {"meter": 7}, {"meter": [[1, 2]]}, {"meter": {"a": "b"}}, {"chosen": None}, {"chosen": [["a", 1, 2.0]]},
        {"chosen": [["chosen global", 0, float("nan")]]}, {"chosen": [["chosen global", "x", 0.1]]}, {"versions": None},
        {"history": {"file": "../run.history.jsonl", "length": 0, "sum": ""}}, {"history": {"file": "run.history.jsonl"}},
        {"history": {"file": "run.history.jsonl", "length": 10**18, "sum": ""}},
        {"history": {"file": "run.history.jsonl", "length": -1, "sum": ""}}, {"history": {"file": 3, "length": 0, "sum": ""}},
        {"server": torch.full((1, 578), float("nan"))}, {"server": torch.zeros(1, 578, dtype=torch.float64)},
        {"1.rows": torch.full((2, 578), float("nan"))}, {"1.rows": torch.zeros(2, 3)}, {"1.rows": torch.zeros(0, 578)},
        {"1.0.ids": torch.tensor([1, 1])}, {"1.0.ids": torch.tensor([2, 1])}, {"1.0.rounds": torch.tensor([0, 7])},
        {"1.0.places": torch.tensor([0, 99])}, {"1.0.ids": torch.tensor([0.5, 1.5])}, {"1.0.rounds": torch.tensor([-1, 0])},
        {"1.1.ids": torch.tensor([1, 99])}, {"chosen.0": torch.full((1, 578), float("inf"))}, {"chosen.0": torch.zeros(3)},
    ],
    ids=lambda change: " ".join(f"{k}={str(v)[:20]}" for k, v in change.items()),
)  # fmt: skip
def test_a_checkpoint_with_missing_or_wrong_entries(
    saved: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError):
        covey.run(experiment(), resume=rewritten(saved, tmp_path / "run", **change))


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PK\x03\x04 a zip", b'{"round": 1}'])
def test_a_corrupt_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        covey.run(experiment(), resume=tmp_path / "run")


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        covey.run(experiment(), resume=tmp_path / "run")


def test_the_papers_protocol_trains_on_the_validation_part() -> None:
    honest, paper = (covey.run(experiment(protocol=p, rounds=1)) for p in ("honest", "paper"))
    count = torch.arange(6)
    validation = DATA.validation.counts()
    got = paper.runtime.task.examples.counts("train", count) - honest.runtime.task.examples.counts(
        "train", count
    )
    assert torch.equal(got, validation)
    assert not paper.runtime.task.examples.counts("validation", count).any()


def test_an_interrupt_while_scoring_leaves_one_round_or_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, run = covey.run(experiment()), covey.run(experiment())
    real = peek.runs(run)._score
    broken = iter([True])

    def score(w: torch.Tensor) -> Any:
        models = real(w)
        if next(broken, False):
            raise KeyboardInterrupt
        return models

    monkeypatch.setattr(peek.runs(run), "_score", score)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert (run.round, run.history) == (0, ())
    list(run), list(whole)
    equal(run, whole)


@dataclasses.dataclass(frozen=True)
class InPlace(covey.Algorithm):
    def server(self, me: covey.Nodes, w: torch.Tensor) -> torch.Tensor:
        w.add_(1)
        if len(me):
            raise ZeroDivisionError
        return w

    def device(self, me: covey.Nodes, w: torch.Tensor) -> torch.Tensor:
        return w


def test_a_program_that_writes_in_place_and_fails_leaves_the_rows() -> None:
    run = covey.run(experiment(algorithm=InPlace()))
    before = run.w.clone()
    with pytest.raises(ProgramError, match=r"InPlace fails .* ZeroDivisionError .*test_run"):
        next(run)
    assert torch.equal(run.w, before)


@pytest.mark.parametrize("at", ["commit", "after the state"])
def test_an_interrupt_between_two_rounds_is_resumed_to_the_same_bits(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = played(experiment())
    run = covey.run(experiment())
    next(run)

    def torn(*given: Any) -> None:
        original(*given)
        raise KeyboardInterrupt

    owner, name = (type(peek.store(run)), "commit") if at == "commit" else (covey.Runs, "_play")
    original = getattr(owner, name)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, torn)
        with pytest.raises(KeyboardInterrupt):
            next(run)
    assert run.round == (1 if at == "commit" else 2)
    run.save(tmp_path / "run")
    again = played(experiment(), resume=tmp_path / "run")
    assert torch.equal(again.w, whole.w)
    assert torch.equal(again.rows("personal")[1], whole.rows("personal")[1])


def test_more_rounds_score_what_an_undisturbed_run_scores(tmp_path: Path) -> None:
    short = played(experiment(rounds=2, score_every=3))
    short.save(tmp_path / "run")
    longer = covey.run(experiment(rounds=6, score_every=3), resume=tmp_path / "run")
    assert [record.round for record in (*longer, *longer.history[:2]) if record.models] == [2, 5]


@dataclasses.dataclass(frozen=True)
class BestInItsSecondRound(FedAvg):
    """Every other round answers the first model."""

    def server(self, me: covey.Nodes, w: torch.Tensor) -> torch.Tensor:
        trained = super().server(me, w)
        return trained if me.round == 1 else me.initial()


def test_a_round_that_was_scored_for_being_the_last_is_no_choice_of_a_longer_run(
    tmp_path: Path,
) -> None:
    here = experiment(algorithm=BestInItsSecondRound(lr=0.1), rounds=2, score_every=3)
    short = played(here)
    assert [choice.round for choice in short.chosen.values()] == [1]
    short.save(tmp_path / "run")
    longer = played(dataclasses.replace(here, rounds=6), resume=tmp_path / "run")
    assert [choice.round for choice in longer.chosen.values()] == [2]


def test_the_record_says_where_the_time_went(tmp_path: Path) -> None:
    run = covey.run(experiment(rounds=4, score_every=2))
    first, second = next(run), next(run)
    run.save(tmp_path / "run")
    third = next(run)
    assert set(first.spent) == {"other", "cohorts", "links", "training"}
    assert set(second.spent) == {*first.spent, "scores"}
    assert set(third.spent) == {*first.spent, "checkpoint"}
    for record in (first, second, third):
        inside = sum(seconds for name, seconds in record.spent.items() if name != "checkpoint")
        assert inside == pytest.approx(record.seconds, rel=0.2, abs=0.01)
        assert min(record.spent.values()) >= 0
