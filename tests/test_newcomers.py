"""Devices that took no part in training: who they are, what they start from, and that nobody looks
at their test labels.
"""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey.algorithms import FedAvg, FedProx, Local, PerMFL, SFedHP
from covey.data import Shards, own_parts
from covey.errors import ConfigError, DivergedError, ProgramError
from covey.runs.experiment import difference
from covey.runs.newcomers import Newcomers, held_out
from tests import peek
from tests.laws.cases import CASES, PLAIN, Case, every, every_case, experiment

TREE = covey.Tree.grouped([5, 5, 5, 5])


def make(algorithm: covey.Algorithm | None = None, **changes: Any) -> covey.Experiment:
    settings: dict[str, Any] = {
        "rounds": 2, "holdout_devices": 4, "tree": TREE, "data": covey.data.digits(), **changes,
    }  # fmt: skip
    return covey.Experiment(
        algorithm or PerMFL(edge_rounds=2), model=covey.models.mlp(64, 8, 10), **settings
    )


def test_a_number_is_drawn_evenly_from_all_edges_and_by_the_seed() -> None:
    found = [held_out(make(seed=seed)) for seed in range(6)]
    assert all([device // 5 for device in devices] == [0, 1, 2, 3] for devices in found)
    assert len(set(found)) > 1
    assert held_out(make(holdout_devices=(7, 2))) == (2, 7)
    assert len(held_out(make(holdout_devices=19))) == 19
    uneven = make(tree=covey.Tree.grouped([1, 12, 7]), holdout_devices=10)
    assert len(set(held_out(uneven))) == 10


@pytest.mark.parametrize("wrong", [-1, 20, [0, 0], [20], True, ["a"]])
def test_what_cannot_be_held_out_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="holdout_devices"):
        make(holdout_devices=wrong)


def test_the_tree_loses_its_leaves_and_what_has_none_left() -> None:
    tree = covey.Tree(((2,), (2, 1), (2, 3, 1)), ("server", "region", "edge", "device"))
    assert tree.without([5]).children == ((1,), (2,), (2, 3))
    assert tree.without([0, 4]).children == ((2,), (2, 1), (1, 2, 1))
    assert tree.without([]).children == tree.children


def test_who_is_held_out_changes_nothing_for_the_others() -> None:
    """Training is that of the other devices alone."""
    run, data = covey.run(make(holdout_devices=(3, 11))), covey.data.digits()
    others = [device for device in range(20) if device not in (3, 11)]
    alone = covey.run(
        make(holdout_devices=0, data=data.chosen(others), tree=covey.Tree.grouped([4, 5, 4, 5]))
    )
    for record, other in zip(run, alone, strict=True):
        assert record.traffic == other.traffic
        assert {name: record.models[name] for name in other.models} == other.models
    assert torch.equal(run.w, alone.w)


@every_case
def test_every_algorithm_adapts(case: Case) -> None:
    here = experiment(case, rounds=2)
    if here.tree.devices < 2 or "lists" in case.name or here.least > 1:
        pytest.skip("one device, settings that name every device, or few examples of the newcomer")
    record = list(covey.run(replace(here, holdout_devices=(1,))))[-1]
    names = [name for name in record.models if name.startswith("new_")]
    assert names[0] == "new_global"
    assert names[-1] == "new_personal"
    assert ("new_edge" in names) == (here.algorithm.above() in set(record.models) - {"global"})
    model = record.models["new_personal"]
    assert (model.tier, model.holders) == ("new device", 1)
    given = record.models["new_edge" if "new_edge" in names else "new_global"]
    losses = [found.scores["validation"].loss for found in (given, model)]
    assert losses[0] != losses[1]  # something was learned


@every(CASES if os.environ.get("COVEY_TEST_ALL") else PLAIN)
def test_test_labels_are_never_seen(case: Case) -> None:
    here = experiment(case, rounds=1)
    if "lists" in case.name:
        pytest.skip("settings that name every device")
    y = here.data.y.clone()
    where = torch.cat([here.data.test.index, here.data.validation.index])
    y[where] = (y[where] + 1) % 3 if here.data.classes else y[where] + 1
    found = []
    for data in (here.data, replace(here.data, y=y)):
        run = covey.run(replace(here, data=data, holdout_devices=(0,)))
        list(run)
        found.append(peek.runs(run).newcomers.adapted(run.w, round=0))
    assert torch.equal(*found)


def test_the_best_fitting_model_is_that_of_least_training_loss() -> None:
    """Two models, each right for one of two devices."""
    x = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
    pairs = [(x, torch.tensor([1, 0, 1, 0])), (x, torch.tensor([0, 1, 0, 1]))]
    data = own_parts(train=pairs, test=pairs)
    here = covey.Experiment(
        FedAvg(), data, covey.models.linear(1, 2, bias=False), covey.Tree.flat(2), rounds=1
    )
    new = Newcomers([here], [data])
    rising = torch.tensor([[-1.0, 1.0]])
    assert new.fitting([torch.cat([-rising, rising])]).tolist() == [1, 0]
    assert new.fitting([torch.cat([rising, rising])]).tolist() == [0, 0]


def test_adapting_is_the_algorithms_own_inner_problem() -> None:
    """PerMFL with full batches by hand: L steps on f + lam/2 |theta - w|^2 from w."""
    data, algorithm = covey.data.digits(devices=3), PerMFL(batch=None, steps=7, lr=0.1, lam=2.0)
    here = covey.Experiment(
        algorithm, data, covey.models.linear(64, 10), covey.Tree.grouped([3]), rounds=1, dtype=torch.float64,
    )  # fmt: skip
    new = Newcomers([here], [data])
    g = torch.Generator().manual_seed(0)
    w = torch.randn(3, new.task.space.width, generator=g, dtype=torch.float64) / 10
    theta = w.clone()
    for _ in range(7):
        theta = theta - 0.1 * (new.task.full_gradient(theta, new.ids) + 2.0 * (theta - w))
    torch.testing.assert_close(new.adapted(w, round=0), theta, rtol=0, atol=1e-13)
    again = new.adapted(w, round=0)
    assert torch.equal(again, new.adapted(w, round=0))  # nothing is remembered


def test_a_new_device_of_sfedhp_is_tied_to_phi_or_to_its_own_phi() -> None:
    """Full batches by hand: "edge" starts from phi_i and keeps it, "own" starts from w_i."""
    data, lam1, lam2, lr = covey.data.digits(devices=3), 2.0, 3.0, 0.1
    starts: tuple[tuple[Any, str], ...] = (("edge", "edge"), ("own", "edge_global"))
    for tie, above in starts:
        algorithm = SFedHP(lam1, lam2, edge_rounds=3, steps=2, lr2=lr, batch=None, tie=tie)
        assert algorithm.above() == above
        tree = covey.Tree.grouped([3])
        trained = make(algorithm, data=data, tree=tree, holdout_devices=0, dtype=torch.float64)
        new = Newcomers([trained], [data])
        start = theta = phi = new.task.space.initial(0).double().repeat(3, 1)
        for _ in range(3):
            for _ in range(2):
                slope = new.task.full_gradient(theta, new.ids)
                theta = theta - lr * (slope + lam1 * (theta - phi))
            if tie == "own":
                phi = (lam1 * theta + lam2 * start) / (lam1 + lam2)
        torch.testing.assert_close(new.adapted(start, round=0), theta, rtol=0, atol=1e-13)


def test_a_new_personal_model_is_not_cut_as_if_it_travelled() -> None:
    """The smooth l1 makes small numbers and no zeros; only a link sets them to 0."""
    data = covey.data.digits(devices=4)
    algorithm = SFedHP(gamma1=0.05, lr2=0.05, edge_rounds=3, steps=2)
    here = make(algorithm, data=data, tree=covey.Tree.grouped([4]), holdout_devices=0)
    new = Newcomers([here], [data])
    start = new.task.space.initial(0).repeat(4, 1)
    adapted = new.adapted(start, round=0)
    cut = algorithm.cut("device", 0)
    assert cut is not None
    small = adapted.abs() <= cut
    assert 0.05 < float(small.double().mean()) < 0.95
    assert not bool((adapted == 0).any())


def test_newcomers_do_not_depend_on_their_number() -> None:
    data, here = covey.data.digits(), make(Local(), holdout_devices=0)
    three, one = (Newcomers([here], [data.chosen(some)]) for some in ([4, 7, 9], [4]))
    w = three.task.space.initial(0)[None]
    assert torch.equal(three.adapted(w.repeat(3, 1), round=1)[:1], one.adapted(w, round=1))


def test_seeds_side_by_side_have_their_own_newcomers() -> None:
    every = [make(seed=seed, data=covey.data.digits(seed=seed)) for seed in range(3)]
    assert difference(every) is None
    together = list(covey.runs(every))[-1]
    for seed, here in enumerate(every):
        assert list(covey.run(here))[-1].models == together[seed].models


def test_a_step_that_is_too_large_for_a_newcomer_says_so() -> None:
    here = make(FedAvg(lr=0.1), rounds=1, holdout_devices=0)
    data = here.data.chosen([0])
    new = Newcomers([here], [replace(data, x=data.x * 1e30)])
    with pytest.raises(DivergedError, match="adapting to new devices, round 1"):
        new.adapted(new.task.space.initial(0)[None], round=0)


class Mute(FedProx):
    """Answers something that is no model."""

    def device(self, me: covey.Nodes, w: Tensor) -> Any:
        return w[:, :1]


def test_an_algorithm_without_a_personal_model_needs_an_adapt() -> None:
    new = Newcomers([make(holdout_devices=0)], [covey.data.digits().chosen([0])])
    new.algorithm = Mute()
    with pytest.raises(ProgramError, match="Mute neither keeps nor answers a personal model"):
        new.adapted(new.task.space.initial(0)[None], round=0)


def test_chosen_devices_keep_their_examples_names_and_edges() -> None:
    data: Shards = covey.data.edges.given(covey.data.digits(devices=4), ["n", "s", "n", "s"])[0]
    data = replace(data, names=replace(data.names, devices=("a", "b", "c", "d")))
    some = data.chosen([1, 2])
    assert (some.names.devices, some.names.edges, some.edges) == (("b", "c"), ("n", "s"), (1, 1))
    assert torch.equal(some.train.held(1), data.train.held(2))
    assert data.chosen([2, 1, 3]).edges == ()  # their devices stand apart
