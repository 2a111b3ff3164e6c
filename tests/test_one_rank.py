"""One rank that sends its rows through a group has the bits of one that sends nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg
from covey.runtimes.ranks import ranks
from covey.runtimes.ranks.launch import Launch
from covey.runtimes.ranks.ranks import Ranks
from tests.given import drained, played
from tests.laws.cases import PLAIN, differences, experiment, state, whole
from tests.test_units import PUMPS


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """This process as the only rank of a gloo group."""
    store = f"file://{tmp_path / 'group'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    own = Ranks(Launch(0, 1), group=dist.group.WORLD)
    monkeypatch.setattr(ranks, "_joined", own)
    yield own
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["SFedHP", "FedAMP"])
def test_rows_of_one_rank_travel_and_come_back(name: str, rank: Ranks) -> None:
    run = covey.run(experiment(PLAIN[name]), runtime="sharded")
    drained(run)
    assert rank.messages > 3 * 3, "a round meets, gathers and exchanges facts"
    assert not differences(state(whole(name)), state(run))


def test_a_rank_reports_and_hands_out_in_the_units_of_the_data(rank: Ranks) -> None:
    shards = covey.data.files(str(PUMPS), label="temperature", exclude=["label"])
    assert shards.target is not None
    assert shards.scaling is not None
    wanted = Experiment(FedAvg(), shards, covey.models.linear(5, 1), Tree.flat(16), rounds=2)
    runs = [played(wanted), played(wanted, runtime="sharded")]
    assert runs[0].history[-1].models == runs[1].history[-1].models
    held = shards.test.index
    outputs = runs[1].module()(shards.scaling.undone(shards.x[held].double()))[:, 0]
    squared = (outputs - shards.y[held]).double().square().mean()
    score = runs[1].history[-1].models["global"].scores["test"]
    assert score.rmse == pytest.approx(float(squared.sqrt().detach()), rel=1e-5)
