"""Laws over kinds of models: whoever computes a row, when and beside whom, its bits are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.laws import differences, state
from tests.laws.networks import NETWORKS, ROUNDS, Network

every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
_WHOLE: dict[str, dict[str, Any]] = {}


def ended(run: covey.Run) -> covey.Run:
    for _ in run:
        pass
    return run


def finished(network: Network, **changes: Any) -> dict[str, Any]:
    return state(ended(covey.run(network.experiment(**changes))))


def whole(network: Network) -> dict[str, Any]:
    """The state of an undisturbed run, computed once."""
    [name] = [name for name, other in NETWORKS.items() if other is network]
    if name not in _WHOLE:
        _WHOLE[name] = finished(network)
    return _WHOLE[name]


@every_network
def test_a_network_learns(network: Network) -> None:
    run = covey.run(network.experiment())
    begin = run.w.clone()
    ended(run)
    assert bool(torch.isfinite(run.w).all())
    far = (run.w - begin).norm() / begin.norm()
    assert far > 1e-3


@every_network
def test_chunks_and_workers_change_no_bit(network: Network) -> None:
    chunks: tuple[dict[str, int], ...] = ({"memory": 1}, {"workers": 3})
    for changes in chunks:
        assert differences(whole(network), finished(network, **changes)) == [], changes


@every_network
def test_a_resumed_run_is_the_run_that_never_stopped(network: Network, tmp_path: Path) -> None:
    first = covey.run(network.experiment())
    for _ in range(ROUNDS - 1):
        next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(network.experiment(), resume=tmp_path / "checkpoint")
    assert differences(whole(network), state(ended(rest))) == []


@every_network
def test_nodes_that_share_nothing_compute_the_same_bits(network: Network) -> None:
    alone = covey.run(network.experiment(), runtime="loopback")
    assert differences(whole(network), state(ended(alone))) == []


@every_network
def test_seeds_side_by_side_are_as_seeds_alone(network: Network) -> None:
    together = covey.runs([network.experiment(seed=seed) for seed in (0, 4)])
    for _ in together:
        pass
    assert differences(whole(network), state(together.seeds[0])) == []
    assert differences(finished(network, seed=4), state(together.seeds[1])) == []
