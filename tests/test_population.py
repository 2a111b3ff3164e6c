"""What a round and a save visit, with 100 devices asked of ten thousand and of a million."""

from dataclasses import replace
from pathlib import Path

import torch

import covey
from covey import Experiment, Run, Tree, models
from covey.algorithms import PerMFL
from covey.data import Part, Shards
from tests import peek
from tests.visits import Visits

EDGES = 10
ASKED = 100


def experiment(devices: int) -> Experiment:
    """Ten devices of each of ten edges train, and 100 of all are scored, in every round."""
    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(300) % 3
    part = Part(torch.arange(2 * devices) % 299, torch.arange(devices + 1) * 2)
    return Experiment(
        PerMFL(edge_rounds=1, device_sample=ASKED // EDGES, steps=2, batch=2),
        Shards(x, y, part, part, part, classes=3),
        models.linear(5, 3),
        Tree.uniform(EDGES, devices // EDGES),
        rounds=100,
        score_sample=ASKED,
        workers=1,
    )


def forget_scores(run: Run) -> None:
    """Every model is better than ever in the next round, so that all of them are held anew."""
    runs = peek.runs(run)
    (seed,) = runs.state.seeds
    worse = {label: replace(choice, quality=-1e9) for label, choice in seed.chosen.items()}
    runs.state = replace(runs.state, seeds=(replace(seed, chosen=worse),))


def visits(devices: int, folder: Path) -> tuple[int, int]:
    """Elements that a scored round and a save visit, after two of each."""
    run = covey.run(experiment(devices), store=folder / "live")
    path = folder / "run.safetensors"
    for _ in range(2):
        next(run)
        run.save(path)
        forget_scores(run)
    with Visits() as round:
        next(run)
    assert {choice.round for choice in run.chosen.values()} == {2}
    with Visits() as save:
        run.save(path)
    return round.elements, save.elements


def test_a_round_and_a_save_cost_who_was_asked(tmp_path: Path) -> None:
    """Training, cohorts, scores, totals, held versions and the checkpoint, of 100 devices."""
    few_in_a_round, few_in_a_save = visits(10**4, tmp_path / "few")
    in_a_round, in_a_save = visits(10**6, tmp_path / "many")
    assert few_in_a_round < 10**6
    assert in_a_round < 1.05 * few_in_a_round
    assert few_in_a_save < 10**5
    assert in_a_save < 1.05 * few_in_a_save
