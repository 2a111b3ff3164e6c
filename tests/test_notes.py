"""Figures that programs note: what is recorded of whom, per tier and seed, whatever the chunks;
saved, resumed and replayed.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm, Experiment, Nodes, Tree
from covey.errors import DivergedError, ProgramError
from covey.models import linear
from covey.runs.scores.record import read
from covey.runtimes.facts import Note, Notes, Partial, exact_sums
from tests import peek
from tests.laws.cases import PLAIN, differences, experiment, state
from tests.laws.test_graphs import captured
from tests.test_simulator import shards

TREE = Tree.grouped([2, 3])


@pytest.mark.parametrize("first", [True, False])
def test_a_sum_with_a_value_that_is_not_finite_is_that_value(first: bool) -> None:
    values = [1.0, 1e300, 0.1]
    values.insert(0 if first else 3, math.inf)
    assert exact_sums(values) == (math.inf,)
    assert Partial.of(exact_sums(values)).note().mean == math.inf


@dataclass(frozen=True)
class Noting(Algorithm):
    """Devices note their number and 1, edges their number of devices in each of two rounds, the
    server the round.
    """

    sends: ClassVar[str] = "what it got"
    sample: int | None = None
    shape: str = "row"

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        me.note("round", torch.full((len(me),), float(me.round)))
        return me.ask(self.edge, w, sample=self.sample).mean()

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        for k in range(2):
            w = me.ask(self.device, w).mean()
            me.note("children", me.children + k)
        return w

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        number = me.local[:, None].to(w)
        wrong = {"wide": number.expand(-1, 2), "all": number.sum()}
        me.note("number", wrong.get(self.shape, number))
        me.note("one", torch.ones(len(me), dtype=torch.bool))
        me.note("drawn", me.uniform("drawn"))
        if self.shape == "infinite":
            me.note("far", torch.where(number == 3, torch.inf, 0.0)[:, 0])
        return me.keep("personal", w + 1)


def start(algorithm: Algorithm | None = None, **changes: Any) -> covey.Run:
    settings: dict[str, Any] = {"rounds": 2, "parts": ("test",), "workers": 1, **changes}
    return covey.run(Experiment(algorithm or Noting(), shards(), linear(1, 2), TREE, **settings))


def test_mean_least_and_most_by_tier_and_name() -> None:
    first, second = start()
    assert list(first.notes) == ["server", "edge", "device"]
    assert first.notes["server"] == {"round": Note(0.0, 0.0, 0.0, 1)}
    assert second.notes["server"] == {"round": Note(1.0, 1.0, 1.0, 1)}
    assert first.notes["edge"] == {"children": Note(3.0, 2.0, 4.0, 4)}  # 2 and 3, then one more
    assert first.notes["device"]["number"] == Note(2.0, 0.0, 4.0, 10)  # five devices, asked twice
    assert first.notes["device"]["one"] == Note(1.0, 1.0, 1.0, 10)
    assert first.bytes() == 2 * 10 * (6 + 4 * 4) + 2 * 2 * (6 + 4 * 4)  # notes are not sent


@pytest.mark.parametrize("idle", ["skip", "train"])
def test_only_those_asked_count(idle: Any) -> None:
    for record in start(Noting(sample=1), idle=idle):
        asked = record.cohorts["device"]
        assert record.notes["device"]["number"] == Note(
            sum(asked) / len(asked), min(asked), max(asked), 2 * len(asked)
        )
        assert record.notes["edge"]["children"].count == 2


def test_idle_nodes_that_train_note_nothing() -> None:
    skip, train = (list(start(Noting(sample=1), idle=idle)) for idle in ("skip", "train"))
    assert [record.notes for record in skip] == [record.notes for record in train]


@pytest.mark.parametrize("chunks", [{"workers": 3}, {"memory": 1}])
def test_chunks_change_no_bit(chunks: dict[str, Any]) -> None:
    assert [record.notes for record in start(**chunks)] == [record.notes for record in start()]


def test_every_seed_has_its_own() -> None:
    apart = [
        Experiment(Noting(), shards(), linear(1, 2), TREE, 2, seed=seed, parts=("test",))
        for seed in (3, 4)
    ]
    for records, alone in zip(zip(*covey.runs(apart), strict=True), apart, strict=True):
        assert [record.notes for record in records] == [record.notes for record in covey.run(alone)]
        assert records[0].notes["device"]["number"].count == 10
    drawn = [next(covey.run(one)).notes["device"]["drawn"].mean for one in apart]
    assert drawn[0] != drawn[1]


def test_a_captured_program_notes_as_it_did_when_it_ran() -> None:
    here = experiment(PLAIN["Pruned"], rounds=6)
    run, plain = captured(here), covey.run(here)
    list(plain)
    assert peek.graphs(run).replays > 0
    assert [record.notes for record in run.history] == [record.notes for record in plain.history]
    assert run.history[-1].notes != run.history[-2].notes


def test_they_are_saved_with_the_history(tmp_path: Path) -> None:
    run = start(rounds=4)
    next(run), next(run)
    run.save(tmp_path / "saved")
    assert [record.notes for record in covey.history(tmp_path / "saved")] == [
        record.notes for record in run.history
    ]
    resumed = covey.run(run.experiment, resume=tmp_path / "saved")
    list(run), list(resumed)
    assert differences(state(run), state(resumed)) == []


def test_they_are_json_and_records_without_any_are_read() -> None:
    record = next(start())
    facts = json.loads(json.dumps(record.as_dict()))
    assert facts["notes"]["device"]["number"] == {
        "mean": 2.0, "least": 0.0, "most": 4.0, "count": 10,
    }  # fmt: skip
    assert read(facts) == record
    del facts["notes"]
    assert read(facts).notes == {}


def test_scoring_and_newcomers_note_nothing() -> None:
    case = PLAIN["Pruned"]
    run = covey.run(experiment(case, holdout_devices=(0, 5), score_every=1))
    for record in run:
        assert record.notes["device"]["kept"].count == len(record.cohorts["device"]) == 6


@pytest.mark.parametrize(
    ("shape", "words"), [("wide", r"\(0, 2\) for 0 nodes"), ("all", r"got shape \(\) for 0 nodes")]
)
def test_one_number_per_node(shape: str, words: str) -> None:
    with pytest.raises(
        ProgramError, match=rf"device: note\('number'\).*{words}; give one number per node"
    ):
        start(Noting(shape=shape))


def test_a_figure_that_is_not_finite_is_named_and_undone() -> None:
    run = start(Noting(shape="infinite"))
    with pytest.raises(
        DivergedError, match=r"round 1: the note 'far' of device 3 is no longer finite"
    ):
        next(run)
    assert run.round == 0


def test_the_mean_does_not_depend_on_the_order_of_arrival() -> None:
    values = torch.rand(
        1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ) * 10.0 ** torch.arange(-12, 13).repeat(40)
    turned = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    found = []
    for order in (torch.arange(1000), turned):
        notes = Notes()
        for part in order.split(77):
            notes.add("device", "x", part, values[part])
        found.append(notes.read(Tree.flat(1000)))
    assert found[0] == found[1]
