"""A program replayed on static memory does what it does when it runs: every algorithm, with what
stands in for a CUDA graph.
"""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey.runtimes.cuda.cuda_graphs import Refused, Tape, Watched, Work
from covey.runtimes.simulator import Simulator
from tests import peek
from tests.laws.cases import (
    CASES,
    PLAIN,
    TIMED,
    TREES,
    Case,
    differences,
    every,
    experiment,
    finished,
    state,
)


class Rerun:
    """Repeats the work itself on the same inputs and writes to the same outputs, as a graph does."""

    def __init__(self, work: Work, beside: Any, device: torch.device) -> None:
        self._work = work
        self.kept, self.answer = work()

    def replay(self) -> None:
        kept, answer = self._work()
        _write((self.kept, self.answer), (kept, answer))


def _write(old: Any, new: Any) -> None:
    if isinstance(old, Tensor):
        old.copy_(new)
    elif isinstance(old, dict):
        for key in old:
            _write(old[key], new[key])
    elif isinstance(old, tuple):
        for mine, other in zip(old, new, strict=True):
            _write(mine, other)
    elif dataclasses.is_dataclass(old):
        for field in dataclasses.fields(old):
            _write(getattr(old, field.name), getattr(new, field.name))


def captured(here: covey.Experiment) -> covey.Run:
    run = covey.run(here)
    peek.use_graphs(run, Rerun)
    list(run)
    return run


# With a radio programs are not captured: their steps are counted as they are taken.
CAPTURED = {name: case for name, case in CASES.items() if "radio" not in case.settings}


@every(CAPTURED)
def test_replaying_changes_no_bit(case: Case) -> None:
    rounds = 4
    run = captured(experiment(case, rounds=rounds))
    graphs = peek.graphs(run)
    if case.algorithm.eager is not None:
        assert graphs.replays == 0
        assert case.algorithm.eager in run.engine["graph"]
    elif case.name in PLAIN:
        assert graphs.replays > 0, graphs.reasons
    else:
        assert graphs.replays > 0 or graphs.reasons
    assert differences(state(run), state(finished(case, rounds=rounds))) == []


def test_no_capture_is_tried_of_an_algorithm_that_says_it_cannot_be() -> None:
    """A capture that fails would print errors of the CUDA libraries."""
    tried = []

    class Refused(Rerun):
        def __init__(self, work: Work, beside: Any, device: torch.device) -> None:
            tried.append(device)
            raise RuntimeError("capture")

    for name in ("PFedGP", "FedAvg"):
        tried.clear()
        run = covey.run(experiment(PLAIN[name], rounds=3, score_every=3))
        peek.use_graphs(run, Refused)
        list(run)
        if name == "PFedGP":
            assert tried == []
            assert "Cholesky" in run.engine["graph"]
        else:
            assert tried
            assert "it cannot be captured: capture" in run.engine["graph"]


@dataclasses.dataclass(frozen=True)
class Odd(covey.Algorithm):
    """Does one thing more than once, according to the round."""

    kind: str

    def server(self, me: covey.Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w, sample=2).mean()

    def device(self, me: covey.Nodes, w: Tensor) -> Tensor:
        if self.kind == "decay":
            return w - 0.1 * 0.9**me.round
        if self.kind == "after":
            return w + (1.0 if me.round >= 3 else 0.1)
        if self.kind == "ids":
            return w + me.ids[:, None].to(w)
        if self.kind == "recall":
            last = me.recall("seen")
            return me.keep("seen", w + 1 if last is None else last + w)
        if self.kind == "full":
            return w + torch.full((len(me), 1), me.round)
        if self.kind == "idle":
            return me.keep("seen", w if me.idle is None else w + me.idle[:, None])
        return w + me.uniform("a") if me.round % 2 else w


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("decay", "round's number"),
        ("ids", "numbers"),
        ("recall", "default"),
        ("parity", "round's number"),
        ("after", None),
        ("full", "round's number"),
        ("idle", "idle"),
    ],
)
def test_what_cannot_be_captured_runs_and_says_why(kind: str, reason: str | None) -> None:
    shards = covey.data.synthetic(devices=4, seed=1)
    model = covey.models.linear(60, 10)
    settings: dict[str, Any] = {
        "rounds": 8,
        "score_every": 8,
        "idle": "train" if kind == "idle" else "skip",
    }
    here = covey.Experiment(
        algorithm=Odd(kind), data=shards, model=model, tree=covey.Tree.flat(4), **settings
    )
    plain, run = covey.run(here), captured(here)
    list(plain)
    assert torch.equal(plain.w, run.w)
    if "seen" in plain.models():
        assert torch.equal(plain.rows("seen")[1], run.rows("seen")[1])
    graphs = peek.graphs(run)
    if reason is None:
        assert graphs.replays == 6
        assert "replayed 6 times" in run.engine["graph"]
    else:
        assert graphs.replays == 0
        assert reason in run.engine["graph"]


def test_the_rounds_number_remembers_comparisons_only() -> None:
    tape = Tape(peek.services(covey.run(experiment(CASES["FedAvg"]))), 7)
    round: Any = Watched(7, tape)
    assert round >= 5
    assert round < 9
    assert round != 3
    assert tape.fits(8)
    assert not tape.fits(4)
    assert not tape.fits(3)
    for use in (
        lambda r: 0.9**r,
        lambda r: r + 1,
        lambda r: [0] * 9 and range(r),
        lambda r: f"{r}",
        lambda r: -r,
        float,
        hash,
    ):
        with pytest.raises(Refused, match="round's number"):
            use(round)


def test_only_so_many_sizes_are_captured() -> None:
    sizes = [3, 5, 7, 11, 13, 4, 6, 10]
    shards = covey.data.synthetic(devices=sum(sizes), sizes=[20] * sum(sizes), seed=1)
    algorithm = covey.algorithms.HierFAVG(sample=3, edge_rounds=1, steps=1)
    here = covey.Experiment(
        algorithm, shards, covey.models.linear(60, 10), covey.Tree.grouped(sizes), rounds=60, score_every=60,
    )  # fmt: skip
    plain, run = covey.run(here), captured(here)
    list(plain)
    assert torch.equal(plain.w, run.w)
    graphs = peek.graphs(run)
    assert graphs.others > 0
    assert peek.variants(run) <= 8
    assert "number of devices changes" in run.engine["graph"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"capture": False}, "capture = false"),
        ({"schedules": {"lr": "cosine"}}, "schedules change lr with the round, and a graph has"),
        ({"radio": TIMED, "tree": TREES[3]}, "the environment counts the steps"),
    ],
)
def test_a_run_without_graphs_says_why(changes: dict[str, Any], reason: str | None) -> None:
    """What `run.engine` says of it on a GPU."""
    runtime = covey.run(experiment(CASES["FedAvg"], **changes)).runtime
    assert isinstance(runtime, Simulator)
    said = runtime.no_graphs()
    if reason is None:
        assert said is None
    else:
        assert said is not None
        assert reason in said
