"""Devices without training examples: they stand in the tree, receive, are scored and never train."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Tree
from covey.algorithms import FedAvg, FedPer, HierFAVG, PFedGP
from covey.data import Part, Shards, own_parts
from covey.engine.task import Task
from covey.errors import ConfigError, DataError, ProgramError, TreeError
from covey.runs.experiment import difference
from covey.runs.newcomers import Newcomers
from covey.runs.run import Run
from covey.runtimes.alone.place import Place, TrainingPlace
from covey.runtimes.training_tree import TrainingTree, training_tree

COUNTS = (6, 0, 9, 4, 0, 0)
"""Training examples per device; devices 1, 4 and 5 receive."""
TREE = Tree.grouped([2, 2, 2])


def pair(count: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, 3))
    return x, (x[:, 0] > 0).astype(int)


def shards(counts: tuple[int, ...] = COUNTS) -> Shards:
    """Device 5 has nothing at all; the others have five test examples."""
    return own_parts(
        train=[pair(count, device) for device, count in enumerate(counts)],
        test=[pair(5 if device < 5 else 0, 10 + device) for device in range(len(counts))],
        classes=2,
    )


def experiment(algorithm: covey.Algorithm, **changes: Any) -> covey.Experiment:
    plain = {"data": shards(), "model": nn.Linear(3, 2), "tree": TREE, "rounds": 2, "workers": 1}
    return covey.Experiment(algorithm, **{**plain, **changes})


def finished(algorithm: covey.Algorithm, **changes: Any) -> Run:
    run = covey.run(experiment(algorithm, **changes))
    list(run)
    return run


@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_means_are_those_of_the_devices_that_train(weight: Any) -> None:
    """With all examples in a step nothing is drawn, and numbers of devices decide no bit."""
    algorithm = FedAvg(batch=None, steps=3, weight=weight)
    with_them = finished(algorithm, tree=Tree.flat(6))
    others = shards().chosen([0, 2, 3])
    assert torch.equal(with_them.w, finished(algorithm, data=others, tree=Tree.flat(3)).w)
    assert with_them.history[-1].cohorts["device"] == [0, 2, 3]


def test_a_receiver_is_scored_with_the_model_it_would_receive() -> None:
    run = finished(FedPer(batch=None), private="bias")
    data = shards()
    module = run.module("global")
    scores = {(row.model, row.device): row for row in run.devices() if row.part == "test"}
    for device in (1, 4):
        held = data.test.held(device)
        right = (module(data.x[held].float()).argmax(1) == data.y[held]).float().mean()
        for model in ("global", "personal"):
            assert scores[model, str(device)].accuracy == pytest.approx(float(right))
        assert not scores["personal", str(device)].holds
    assert ("global", "5") not in scores  # it has no test example
    assert run.history[-1].models["personal"].holders == 3


def test_an_edge_of_receivers_alone_is_not_asked() -> None:
    run = finished(HierFAVG(batch=None, edge_rounds=2, weight="samples"))
    assert run.history[-1].cohorts == {"edge": [0, 1], "device": [0, 2, 3]}
    assert bool(torch.isfinite(run.w).all())
    assert run.notes[-1].startswith("3 of 6 devices have no training examples: they receive")


def test_a_cohort_is_drawn_from_those_who_train() -> None:
    run = finished(FedAvg(sample=2, batch=2), tree=Tree.flat(6), rounds=30)
    cohorts = [tuple(record.cohorts["device"]) for record in run.history]
    assert set(cohorts) == {(0, 2), (0, 3), (2, 3)}
    half = finished(FedAvg(sample=0.5, batch=2), tree=Tree.flat(6))
    assert len(half.history[0].cohorts["device"]) == 2  # of three, not of six


@pytest.mark.parametrize("runtime", ["simulator", "loopback"])
def test_a_sample_larger_than_those_who_train_is_refused(runtime: str) -> None:
    with pytest.raises(TreeError, match="server 0 has only 3 children that train"):
        covey.run(experiment(FedAvg(sample=4), tree=Tree.flat(6)), runtime=runtime)


def test_a_held_out_receiver_keeps_the_global_model() -> None:
    run = finished(HierFAVG(batch=2), holdout_devices=[1, 3])
    models = run.history[-1].models
    assert models["new_personal"].scores["test"].devices == 2
    newcomers = run.newcomer_data
    assert newcomers is not None
    assert newcomers.receivers.tolist() == [0]
    task = Newcomers([run.experiment], [newcomers])
    rows = torch.cat([run.w, run.w])
    personal = task.adapted(rows, round=2)
    assert torch.equal(personal[0], run.w[0])
    assert not torch.equal(personal[1], run.w[0])
    [scores] = task.scores(run.w, [torch.stack([run.w[0] + 1, run.w[0]])], 2, ("test",))
    losses = [sums["test"].values[0, 1] for sums in scores.sums.values()]  # global, edge, personal
    assert len(losses) == 3
    assert len({float(loss) for loss in losses}) == 1
    with pytest.raises(ConfigError, match="none of the devices 1, 4 has training examples"):
        finished(FedAvg(), holdout_devices=[1, 4])


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(x))
        return out


def test_what_needs_examples_of_every_device_is_refused() -> None:
    with pytest.raises(DataError, match=r"device 1 has no training examples.*BatchNorm"):
        covey.run(experiment(FedAvg(), model=Norm()))
    with pytest.raises(DataError, match=r"3 of 6 devices.*PFedGP needs some of every device"):
        experiment(PFedGP())


def test_validation_examples_train_by_the_protocol_of_the_papers() -> None:
    data = shards()
    later = replace(data, train=data.test, validation=data.train, test=data.test)
    assert later.paper().receivers.tolist() == [5]
    experiment(PFedGP(), data=replace(later, train=longer(data)), protocol="paper")


def longer(data: Shards) -> Part:
    """A part in which every device holds an example."""
    return Part.of([[0]] * data.devices)


def test_seeds_with_other_receivers_do_not_run_side_by_side() -> None:
    other = experiment(FedAvg(), seed=1, data=shards((0, 6, 9, 4, 0, 0)))
    reason = difference([experiment(FedAvg()), other])
    assert reason == "their devices without training examples differ"


def test_nobody_draws_the_examples_of_a_neighbour() -> None:
    task = Task(nn.Linear(3, 2), shards())
    with pytest.raises(ProgramError, match="device 1 has no training examples"):
        task.examples.draw(0, torch.tensor([0, 1]), 2)
    with pytest.raises(ProgramError, match="device 4 has no training examples"):
        task.examples.cyclic(torch.tensor([4]), 2, torch.tensor([0]))
    gradient = task.full_gradient(torch.ones(2, task.space.width), torch.tensor([0, 1]))
    assert bool(gradient[0].any())
    assert not bool(gradient[1].any())


def trains() -> TrainingTree:
    under = {"server": [19], "edge": [6, 13, 0], "device": COUNTS}
    tree = training_tree(TREE, {tier: torch.tensor(counts) for tier, counts in under.items()})
    assert isinstance(tree, TrainingTree)
    return tree


def test_a_tree_in_which_all_train_stays_itself() -> None:
    under = {"server": [3], "edge": [1, 1, 1], "device": [1] * 6}
    counts = {tier: torch.tensor(examples) for tier, examples in under.items()}
    assert training_tree(TREE, counts) is TREE


def test_children_are_numbered_among_those_who_train() -> None:
    tree = trains()
    edges = torch.tensor([0, 1])
    position = torch.tensor([0, 1, 1])
    number = torch.tensor([0, 0, 1])
    child = tree.child("edge", edges, position, number)
    assert child.tolist() == [0, 2, 3]
    assert torch.equal(tree.child_number("edge", edges, position, child), number)
    assert (tree.widest("edge"), tree.smallest("edge"), tree.widest("device")) == (2, 1, 0)


@pytest.mark.parametrize("sample", [1, 0.5, 1.0])
def test_a_node_is_told_its_children_that_train(sample: float) -> None:
    tree = trains()
    for number in range(3):
        place = TrainingPlace.within(tree, Place.of(TREE, "edge", number))
        picks = place.picks("edge", sample).tolist()
        assert picks[number] == tree.picks("edge", sample)[number]
        own = torch.tensor([number])
        expected = tree.cohort("edge", own, sample=None, address=0)[1]
        assert torch.equal(place.cohort("edge", own, sample=None, address=0)[1], expected)
    with pytest.raises(TreeError, match="edge 0 has only 1 children that train"):
        tree.picks("edge", 2)
