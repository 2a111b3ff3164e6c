"""Shared and private layers, and pruning: what they coincide with where nothing is private, nothing
shared or nothing pruned.
"""

from typing import Any

import pytest
import torch

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAlt, FedAvg, FedSim, HierFAVG, Local, Pruned
from tests.identities.worlds import (
    DEVICES,
    DIGITS,
    EQUAL,
    FLAT,
    UNEQUAL,
    WORLDS,
    deviation,
    digits,
    trajectory,
)

every_world = pytest.mark.parametrize("world", WORLDS)
full_and_mini = pytest.mark.parametrize("batch", [None, 6], ids=["full", "mini-batch"])
every_tree = pytest.mark.parametrize("tree", [FLAT, UNEQUAL], ids=["flat", "edges"])
weights = pytest.mark.parametrize("weight", ["uniform", "samples"])
LR, ROUNDING = 0.1, 1e-12


@every_world
@full_and_mini
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", [FedAlt, FedSim])
def test_with_all_layers_shared_it_is_fedavg_to_the_bit(
    world: str, batch: int | None, dtype: torch.dtype, algorithm: Any
) -> None:
    settings: dict[str, Any] = {
        "steps": 4, "lr": LR, "batch": batch, "sample": 7, "weight": "samples",
    }  # fmt: skip
    parts = trajectory(
        algorithm(**settings, personal_lr=0.3), world, FLAT, dtype=dtype, private=""
    )[0]
    assert torch.equal(parts, trajectory(FedAvg(**settings), world, FLAT, dtype=dtype)[0])


@full_and_mini
@weights
def test_with_all_layers_shared_it_is_hierfavg_on_edges(batch: int | None, weight: str) -> None:
    settings: dict[str, Any] = {
        "steps": 4, "lr": LR, "batch": batch, "edge_rounds": 2, "sample": 3, "device_sample": 0.5,
        "weight": weight,
    }  # fmt: skip
    hier = trajectory(HierFAVG(**settings), "digits", UNEQUAL)[0]
    assert torch.equal(trajectory(FedAlt(**settings), "digits", UNEQUAL, private="")[0], hier)
    assert (
        deviation(trajectory(Pruned(0.0, **settings), "digits", UNEQUAL, private="")[0], hier)
        < ROUNDING
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAlt(personal_steps=4, personal_lr=LR, batch=None),
        FedSim(steps=4, personal_lr=LR, batch=None),
    ],
)
def test_with_all_layers_private_it_is_local_training(algorithm: Any) -> None:
    runs = []
    for one, private in ((algorithm, "*"), (Local(steps=4, lr=LR, batch=None), ())):
        settings = {"workers": 1, "score_every": 3, "private": private, **digits()}
        run = covey.run(Experiment(algorithm=one, tree=FLAT, rounds=3, **settings))
        list(run)
        runs.append(run)
    assert deviation(runs[0].rows("personal")[1], runs[1].rows("personal")[1]) < ROUNDING
    assert torch.equal(runs[0].w, runs[0].runtime.start)


@full_and_mini
@every_tree
@weights
@pytest.mark.parametrize(
    "private", ["head", "1.*", ()], ids=["head private", "first layer private", "all shared"]
)
def test_pruning_nothing_is_fedalt_and_together_fedsim(
    batch: int | None, tree: Tree, weight: str, private: Any
) -> None:
    settings: dict[str, Any] = {
        "steps": 4, "lr": LR, "personal_lr": 0.05, "batch": batch, "sample": 3, "weight": weight,
    }  # fmt: skip
    settings |= {"edge_rounds": 2, "device_sample": 0.5}
    alternate = (
        Pruned(0.0, "alternate", personal_steps=3, **settings),
        FedAlt(personal_steps=3, **settings),
    )
    together = (Pruned(0.0, "together", **settings), FedSim(**settings))
    for one, other in (alternate, together):
        (left, pruned), (right, plain) = (
            trajectory(a, "digits", tree, rounds=2, private=private) for a in (one, other)
        )
        assert deviation(left, right) < ROUNDING
        assert deviation(pruned.rows("personal")[1], plain.rows("personal")[1]) < ROUNDING
        assert pruned.history[-1].notes["device"]["kept"].least == 1.0
        assert pruned.history[-1].notes["device"]["error"].most == 0.0


@pytest.mark.parametrize("ratio", [0.3, 0.8])
@pytest.mark.parametrize("order", ["alternate", "together"])
def test_the_order_of_the_devices_is_irrelevant(ratio: float, order: Any) -> None:
    ratios = [ratio, 0.1, 0.9, 0.5] * 5
    turned = [(7 * k + 3) % DEVICES for k in range(DEVICES)]
    rows = []
    for devices in (list(range(DEVICES)), turned):
        algorithm = Pruned(
            [ratios[d] for d in devices], order, steps=3, personal_steps=3, lr=LR, personal_lr=LR, batch=None,
        )  # fmt: skip
        rows.append(
            trajectory(algorithm, "digits", FLAT, private="head", data=DIGITS.chosen(devices))[0]
        )
    assert deviation(*rows) < ROUNDING


@pytest.mark.parametrize(
    "tree",
    [Tree.grouped([1] * DEVICES), Tree.grouped([DEVICES])],
    ids=["an edge each", "one edge for all"],
)
def test_edges_that_average_nothing_new_change_nothing(tree: Tree) -> None:
    algorithm = Pruned(0.6, steps=3, personal_steps=3, lr=LR, personal_lr=LR, batch=None)
    deep, flat = (
        trajectory(algorithm, "digits", shape, private="head")[0] for shape in (tree, FLAT)
    )
    assert deviation(deep, flat) < ROUNDING


@every_tree
def test_who_prunes_everything_leaves_the_shared_part_as_it_was(tree: Tree) -> None:
    algorithm = Pruned(1.0, steps=3, personal_steps=3, lr=LR, personal_lr=LR, batch=6)
    settings = {"workers": 1, "private": "head", "codec": "bitmap", **digits()}
    run = covey.run(Experiment(algorithm=algorithm, tree=tree, rounds=2, **settings))
    for record in run:
        assert record.notes["server"]["uncovered"].least == 1.0
    assert torch.equal(run.w, run.runtime.start)
    shared, personal = run.runtime.task.space.shared, run.rows("personal")[1]
    assert not personal[:, :shared].any()
    assert (personal[:, shared:] - run.w[:, shared:]).abs().max() > 0.01


@pytest.mark.parametrize("ratio", [0.3, 0.9])
def test_a_weight_that_nobody_kept_keeps_its_value(ratio: float) -> None:
    algorithm = Pruned(
        ratio, steps=3, personal_steps=3, lr=LR, personal_lr=LR, batch=None, sample=2
    )
    run = covey.run(
        Experiment(algorithm=algorithm, tree=EQUAL, rounds=1, workers=1, private="head", **digits())
    )
    (record,) = run
    shared = run.runtime.task.space.shared
    ids, rows = run.rows("personal")
    assert ids.tolist() == record.cohorts["device"]
    uncovered = (rows[:, :shared] == 0).all(dim=0)
    before, after = run.runtime.start[0, :shared], run.w[0, :shared]
    assert torch.equal(before[uncovered], after[uncovered])
    assert uncovered.double().mean() == pytest.approx(
        record.notes["server"]["uncovered"].mean, abs=1e-12
    )
    assert uncovered.any()
