"""Who was skipped changes no result: idle nodes that train, as the papers have it, leave the global
model and its bytes alone.
"""

from dataclasses import fields
from typing import Any

import pytest
import torch

import covey
from covey.algorithms import PerMFL
from covey.algorithms.nested import Nested
from covey.errors import ConfigError
from tests.laws.cases import CASES, Case, assert_moved, every, experiment, finished


def sampled(case: Case) -> bool:
    parts: Any = case.algorithm.levels if isinstance(case.algorithm, Nested) else [case.algorithm]
    return any(
        getattr(part, f.name) is not None
        for part in parts
        for f in fields(part)
        if f.name.endswith("sample")
    )


REFUSED = {name: case for name, case in CASES.items() if not case.algorithm.idle_trains}
SAMPLED = {
    name: case
    for name, case in CASES.items()
    if sampled(case) and name not in REFUSED and not case.algorithm.planned
}
ALONE = {name: case for name, case in SAMPLED.items() if case.idle}
TOUCHED = {name: case for name, case in SAMPLED.items() if not case.idle}


@every(ALONE)
def test_skipping_leaves_every_global_model_as_training_does(case: Case) -> None:
    skip, train = (
        covey.run(experiment(case, rounds=4, score_every=4, idle=idle))
        for idle in ("skip", "train")
    )
    for _ in zip(skip, train, strict=True):
        assert torch.equal(skip.w, train.w)
    assert_moved(skip)


@every(SAMPLED)
def test_those_who_only_train_receive_but_do_not_answer(case: Case) -> None:
    skip, train = (finished(case, rounds=2, idle=idle).meter for idle in ("skip", "train"))
    link = first_sampled_link(case)
    messages = [run.traffic(link=link, direction="up").messages for run in (train, skip)]
    assert messages[0] == messages[1]
    assert train.bytes(link=link, direction="down") > skip.bytes(link=link, direction="down")
    if case.idle and not case.l1:
        assert train.bytes(link=link, direction="up") == skip.bytes(link=link, direction="up")


@every(TOUCHED)
def test_memory_that_feeds_the_global_model_does_depend_on_it(case: Case) -> None:
    """Else `idle=False` of a case would only hide a law that holds."""
    skip, train = (finished(case, rounds=4, idle=idle) for idle in ("skip", "train"))
    assert not torch.equal(skip.w, train.w)


@every(REFUSED)
def test_training_is_refused_where_the_server_counts_on_what_devices_keep(case: Case) -> None:
    with pytest.raises(ConfigError, match=f"idle = 'train', but {type(case.algorithm).__name__}"):
        experiment(case, idle="train")


def first_sampled_link(case: Case) -> str:
    """The topmost link on which not everybody is asked; below an idle edge, devices do answer."""
    tiers = experiment(case).tree.tiers
    top = (
        case.algorithm.levels[0].sample
        if isinstance(case.algorithm, Nested)
        else getattr(case.algorithm, "sample", None)
    )
    return "-".join(tiers[:2] if top is not None else tiers[1:3])


def test_nobody_under_an_idle_edge_is_in_the_cohort() -> None:
    case = Case("idle edges", PerMFL(sample=1, edge_rounds=1, steps=1))
    skipped, trained = (
        next(covey.run(experiment(case, idle=idle))).cohorts for idle in ("skip", "train")
    )
    assert skipped == trained
    assert len(trained["device"]) < 8
