"""One rank that sends its rows through a group has the bits of one that sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

import covey
from covey.runtimes import ranks
from covey.runtimes.launch import Launch
from covey.runtimes.ranks import Ranks
from tests.laws.cases import PLAIN, differences, experiment, state, whole


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
    for _ in run:
        pass
    assert rank.messages > 3 * 3, "a round meets, gathers and exchanges facts"
    assert not differences(state(whole(name)), state(run))
