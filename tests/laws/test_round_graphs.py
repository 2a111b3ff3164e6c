"""A whole round replayed on static memory does what it does when it runs: every algorithm, with
what stands in for a CUDA graph.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey.errors import DivergedError
from covey.kernel.moved import on_device
from covey.runtimes.cuda.round_graphs import Rounds
from tests import peek
from tests.laws.cases import CASES, Case, differences, every, experiment, state
from tests.laws.test_graphs import CAPTURED, Odd, Rerun

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
ROUNDS = 4
FEW = (
    "FedAvg-sample-train-cyclic", "FedMac-sparse-bitmap", "HierFAVG-device_sample-train", "FedAlt-four-tiers",
    "PerMFL", "PFedMe", "Pruned", "Scaffold", "SFedHP-floor",
)  # fmt: skip
"""They ask once or often, recall, note, prune, cut, answer in part; on two to four tiers."""


def captured(here: covey.Experiment) -> tuple[covey.Run, Rounds]:
    run = covey.run(here)
    rounds = peek.use_round_graphs(run, Rerun)
    list(run)
    return run, rounds


def plain(here: covey.Experiment) -> covey.Run:
    run = covey.run(here)
    list(run)
    return run


@every(CAPTURED if ALL else {name: CASES[name] for name in FEW})
def test_replaying_a_round_changes_no_bit(case: Case) -> None:
    here = experiment(case, rounds=ROUNDS)
    run, rounds = captured(here)
    if rounds.reason is None:
        assert rounds.replays > 0
        assert f"the whole round, replayed {rounds.replays} times" in run.engine["graph"]
    else:
        assert rounds.replays == 0
        assert f"a round is not one graph: {rounds.reason}" in run.engine["graph"]
    if case.name in FEW and "cyclic" not in case.name:
        assert rounds.reason is None
    assert differences(state(run), state(plain(here))) == []


def odd(kind: str, **settings: Any) -> covey.Experiment:
    return covey.Experiment(
        algorithm=Odd(kind),
        data=covey.data.synthetic(devices=4, seed=1),
        model=covey.models.linear(60, 10),
        tree=covey.Tree.flat(4),
        rounds=8,
        score_every=8,
        **settings,
    )


@pytest.mark.parametrize(
    ("kind", "idle", "reason"),
    [
        ("after", "skip", "other nodes are asked in every round"),
        ("after", "train", None),
        ("ids", "train", None),
        ("decay", "train", "round's number"),
        ("parity", "train", "round's number"),
        ("full", "train", "round's number"),
        ("recall", "train", "without a default"),
        ("idle", "train", "idle"),
    ],
)
def test_what_is_no_graph_runs_and_says_why(kind: str, idle: str, reason: str | None) -> None:
    here = odd(kind, idle=idle)
    run, rounds = captured(here)
    assert torch.equal(run.w, plain(here).w)
    if reason is None:
        assert rounds.reason is None
        assert rounds.replays == 8 - (2 if kind == "after" else 1)  # `after` has two variants
    else:
        assert rounds.reason is not None
        assert reason in rounds.reason
        assert rounds.replays == 0


class Growing(Odd):
    """Its devices draw and recall more in the second round, as no number of `me` says."""

    def device(self, me: covey.Nodes, w: Tensor) -> Tensor:
        w = me.keep("seen", me.recall("seen", default=w) + 1) if self.kind == "recalls" else w
        SEEN.append(len(me))
        for _ in [n for n in SEEN if n][1:]:
            w = w + (me.uniform("a") if self.kind == "draws" else me.recall("other", default=w))
        return me.keep("other", w)


SEEN: list[int] = []


@pytest.mark.parametrize("kind", ["draws", "recalls"])
@pytest.mark.parametrize("whole", [True, False], ids=["round", "program"])
def test_a_program_that_does_more_in_another_round_is_no_graph(kind: str, whole: bool) -> None:
    SEEN.clear()
    here = odd("", idle="train")
    run = covey.run(covey.Experiment(**{**vars(here), "algorithm": Growing(kind), "rounds": 3}))
    use = peek.use_round_graphs if whole else peek.use_graphs
    use(run, Rerun)
    list(run)
    assert "do not do the same in every round" in run.engine["graph"]


class Diverging(Odd):
    """Its devices answer infinity from the third round on."""

    def device(self, me: covey.Nodes, w: Tensor) -> Tensor:
        last = me.recall("seen", default=w)
        return me.keep("seen", last * 1e20 + 1)


def test_a_diverged_round_is_undone_and_names_the_nodes() -> None:
    here = odd("", idle="train")
    here = covey.Experiment(**{**vars(here), "algorithm": Diverging("")})
    told = []
    rows = []
    for replay in (False, True):
        run = covey.run(here)
        if replay:
            peek.use_round_graphs(run, Rerun)
        with pytest.raises(DivergedError) as error:
            list(run)
        told.append(str(error.value))
        rows.append(run.rows("seen")[1])
    assert told[0] == told[1]
    assert torch.equal(rows[0], rows[1])


def test_a_full_gpu_after_a_replay_undoes_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the round are stored by then: to run it again on them would give other bits."""
    here = experiment(CASES["SFedHP"], rounds=ROUNDS)
    run = covey.run(here)
    rounds = peek.use_round_graphs(run, Rerun)
    for _ in range(2):
        next(run)
    store = peek.store(run)
    put = store.put
    stored: list[str] = []

    def full(tier: str, name: str, ids: Tensor, rows: Tensor, round: int) -> None:
        if stored:
            raise RuntimeError("CUDA out of memory")
        stored.append(name)
        put(tier, name, ids, rows, round)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", full)
        with pytest.raises(RuntimeError, match="out of memory"):
            next(run)
    assert stored
    list(run)
    assert rounds.reason is None
    assert differences(state(run), state(plain(here))) == []


def test_numbers_on_a_gpu_are_left_where_they_are() -> None:
    numbers = torch.arange(3, device="meta")
    assert on_device(numbers, torch.device("cpu")) is numbers


@pytest.mark.parametrize("name", ["PFedMe", "HierFAVG-device_sample-train"])
def test_seeds_side_by_side_are_replayed_together(name: str) -> None:
    """In one graph the draws of every seed have keys of their own."""
    heres = [experiment(CASES[name], rounds=ROUNDS, seed=seed) for seed in (3, 4)]
    many = covey.runs(heres)
    rounds = peek.use_round_graphs(many.seeds[0], Rerun)
    list(many)
    assert rounds.replays == ROUNDS - 1
    for run, here in zip(many.seeds, heres, strict=True):
        assert differences(state(run), state(plain(here))) == []


def test_a_run_goes_on_from_a_checkpoint_in_the_middle_of_replays(tmp_path: Path) -> None:
    here = experiment(CASES["SFedHP"], rounds=ROUNDS)
    run = covey.run(here)
    peek.use_round_graphs(run, Rerun)
    for _ in range(3):
        next(run)
    run.save(tmp_path / "c.safetensors")
    resumed = covey.run(here, resume=tmp_path / "c.safetensors")
    rounds = peek.use_round_graphs(resumed, Rerun)
    list(resumed)
    list(run)
    assert rounds.reason is None
    assert differences(state(resumed), state(run)) == []
