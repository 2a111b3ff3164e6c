"""Scores of a sample of the devices, all of which are away."""

from __future__ import annotations

import pytest

import covey
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.server_run import finish, server_run
from covey.deployed.transport.transport import Patience
from covey.errors import TransportError
from covey.kernel.nodes import Drawn
from covey.runs.scores import node_round
from tests.deployed.test_checked import lying, without_reports
from tests.deployed.tree import check_replay
from tests.laws.cases import CASES, experiment

SAMPLE = 1


def edge_of_the_drawn(local: LocalTree, round: int) -> int:
    """The edge of the one device that is scored in a round."""
    server = local.nodes["server", 0]
    (device,) = Drawn.of(server.tree, "device", SAMPLE, server.seeds, round, "score").ids.tolist()
    for (tier, number), node in local.nodes.items():
        if tier == "edge" and device in node.asks.seats:
            return number
    raise AssertionError(device)


@pytest.mark.parametrize("name", ["HierFAVG", "PerMFL", "SFedHP"])
def test_a_round_without_the_drawn_devices_has_no_scores(name: str, local: LocalTree) -> None:
    """The run goes on, and its replay says the same."""
    described = experiment(CASES[name], rounds=3, score_every=1, score_sample=SAMPLE)
    local.patience = {"server": Patience(0.05, 2)}
    run = server_run(described, local)
    local.nodes["server", 0].asks.patience = Patience(9.0, 2)
    next(run)
    edge = edge_of_the_drawn(local, 1)
    above = local.transport_above("edge", edge)
    above.leave(edge)
    local.nodes["server", 0].asks.patience = Patience(0.05, 2)
    record = next(run)
    for model in record.models.values():
        for score in model.scores.values():
            assert (score.sampled, score.loss_fallback) == (0, None)
            assert score.standard_error_fallback is None
    assert node_round.of(run) is None
    above.take(edge, local.nodes["edge", edge].answer)
    local.nodes["server", 0].asks.patience = Patience(9.0, 2)
    record = next(run)
    assert record.models["global"].scores["test"].sampled == SAMPLE
    finish(run)
    histories = [entry.models for entry in run.history]
    repeated = check_replay(run, local, described)
    assert [entry.models for entry in repeated.history] == histories


def test_a_reached_device_must_tell_its_scores(local: LocalTree) -> None:
    """Though another edge is away."""
    described = experiment(CASES["HierFAVG"], rounds=3, score_every=1, score_sample=SAMPLE)
    local.patience = {"server": Patience(0.5, 1)}
    run = covey.run(described, runtime=local)
    edge = edge_of_the_drawn(local, 0)
    _, liar = lying(local, "edge", edge, 99)
    liar.change = without_reports
    other = (edge + 1) % 3
    local.transport_above("edge", other).leave(other)
    with pytest.raises(TransportError, match="nobody has told the scores of any device"):
        next(run)
