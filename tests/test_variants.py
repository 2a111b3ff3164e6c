"""Methods as public code runs them: where they must be the published ones, and where not."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

import covey
from covey import Tree, data
from covey.algorithms import Local, PerMFL, PFedBayes
from covey.models import linear
from experiments.papers.variants import PulledPerMFL, QuietPFedBayes, ShrinkingAL2GD
from tests.given import drained

FIELDS: dict[str, Any] = {"lr": 0.1, "edge_lr": 0.1, "edge_rounds": 2, "steps": 3, "batch": 8}


def personal(algorithm: covey.Algorithm, rounds: int = 2) -> Tensor:
    """The personal models of four devices with equally many examples, under two edges."""
    shards = data.synthetic(devices=4, sizes=[40] * 4, seed=1)
    torch.manual_seed(0)
    model = linear(shards.x[0].numel(), shards.classes or 1)
    tree = Tree.grouped([2, 2])
    run = covey.run(
        covey.Experiment(algorithm, shards, model, tree, rounds, seed=0, protocol="paper")
    )
    drained(run)
    modules = [run.module("personal", device) for device in range(4)]
    return torch.stack([parameters_to_vector(module.parameters()) for module in modules])


def test_permfl_whose_devices_are_pulled_as_its_teams_is_permfl() -> None:
    pulled = PulledPerMFL(pull=2.0, lam=2.0, gamma=1.5, beta=0.6, **FIELDS)
    published = PerMFL(lam=2.0, gamma=1.5, beta=0.6, **FIELDS)
    assert torch.allclose(personal(pulled), personal(published), atol=1e-6)
    other = PulledPerMFL(pull=5.0, lam=2.0, gamma=1.5, beta=0.6, **FIELDS)
    assert not torch.allclose(personal(other), personal(published), atol=1e-3)


def test_al2gd_of_the_code_trains_alone_or_shrinks() -> None:
    never = 1e-4
    trains = ShrinkingAL2GD(p=never, edge_p=never, lr=0.1, steps=3, batch=8)
    alone = Local(lr=0.1, steps=3, batch=8)
    assert torch.allclose(personal(trains), personal(alone), atol=1e-3)
    always = 1 - never
    rests = personal(ShrinkingAL2GD(p=never, edge_p=always, lr=0.1, steps=3, batch=8))
    shrinks = personal(ShrinkingAL2GD(p=always, edge_p=never, lr=0.1, steps=3, batch=8))
    assert torch.allclose(shrinks, 0.9**2 * rests, atol=1e-4)


def test_pfedbayes_with_whole_noise_is_pfedbayes() -> None:
    fields: dict[str, Any] = {"local_rounds": 2, "steps": 2, "lr": 0.01, "personal_lr": 0.01}
    published = personal(PFedBayes(zeta=3.0, batch=8, **fields))
    examples = 30  # of the 40 of a device, those that it trains on
    whole = personal(QuietPFedBayes(noise=1.0, tie=3.0 / examples, batch=8, **fields))
    assert torch.allclose(whole, published, atol=1e-5)
    quiet = personal(QuietPFedBayes(noise=0.001, tie=3.0 / examples, batch=8, **fields))
    assert not torch.allclose(quiet, published, atol=1e-3)
