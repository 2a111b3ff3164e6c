"""Every draw of a run has an address of its own: no two addresses of a run have one key.

A collision is an error nowhere else: two rounds train on the same batches, and nobody is told.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey import draws
from covey.runtimes.base import BaseRuntime
from tests.laws.cases import CASES, CLASSES, INPUTS, PLAIN, Case, experiment, with_fields

SEEDS = (0, 1, 2, 3)
ROUNDS = 3
ASKS = 3  # both count from 0: there are pairs (t, a) and (a, t)
SAMPLED = ("FedAvg-sample", "HierFAVG-sample-samples", "HierFAVG-late-train", "FedAlt-four-tiers")
SOME = {name: CASES[name] for name in (*PLAIN, *SAMPLED) if name in CASES}
if os.environ.get("COVEY_TEST_ALL"):
    SOME = CASES


class Addresses:
    """What the keys of a run stand for: the words of addresses, and the asks of paths."""

    def __init__(self) -> None:
        self.words: dict[int, set[Any]] = defaultdict(set)
        self.asks: dict[int, set[Any]] = defaultdict(set)
        self.lanes: dict[int, set[str]] = defaultdict(set)
        self.lane: str | None = None

    def add(self, key: int, words: tuple[int | str, ...]) -> None:
        key %= 2**64
        self.words[key].add(words)
        if self.lane is not None:
            self.lanes[key].add(self.lane)

    def shared(self) -> list[Any]:
        """Keys of two addresses or two paths, and addresses of both training and scoring."""
        tables = (self.words, self.asks, self.lanes)
        return [meant for table in tables for meant in table.values() if len(meant) > 1]


@contextmanager
def watched() -> Iterator[Addresses]:
    """Every key that is made while a run goes on."""
    seen = Addresses()
    key, path, further, play = draws.key, draws.path, draws.further, BaseRuntime.play

    def watched_key(*words: int | str) -> int:
        value = key(*words)
        seen.add(value, words)
        return value

    def watched_path(parent: int, ask: int) -> int:
        value = path(parent, ask)
        seen.asks[value].add((parent, ask))
        return value

    def watched_further(address: draws.Address, *words: int) -> draws.Address:
        longer = further(address, *words)
        one = torch.zeros(1, dtype=torch.int64)
        before = draws.spread(address, one).tolist()
        after = draws.spread(longer, one).tolist()
        for short, long in zip(before, after, strict=True):
            seen.add(long, ("further", short, *words))
        return longer

    def watched_play(self: Any, *args: Any, **options: Any) -> Any:
        seen.lane = options.get("lane", "train")
        played = play(self, *args, **options)
        seen.lane = None
        return played

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "key", watched_key)
        patch.setattr(draws, "path", watched_path)
        patch.setattr(draws, "further", watched_further)
        patch.setattr(BaseRuntime, "play", watched_play)
        yield seen


def addresses(case: Case, **changes: Any) -> Addresses:
    """All addresses of a run of several seeds side by side, with several asks in a round."""
    algorithm = with_fields(case.algorithm, edge_rounds=ASKS)
    settings = {"algorithm": algorithm, "rounds": ROUNDS, "score_every": ROUNDS, **changes}
    with watched() as seen:
        list(covey.runs([experiment(case, seed=seed, **settings) for seed in SEEDS]))
    return seen


def tiers(case: Case) -> int:
    return len(experiment(case).tree.tiers)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_addresses_of_a_run_are_distinct(count: int) -> None:
    some = [case for case in SOME.values() if tiers(case) == count]
    assert some
    for case in some:
        seen = addresses(case)
        assert seen.shared() == [], case
        if hasattr(case.algorithm, "edge_rounds") and count > 2:
            assert len(seen.asks) >= ASKS, case


def test_so_are_those_of_everything_else_that_draws() -> None:
    """Masks, augmentations, orders of examples, rounding, scored and held-out devices."""
    model = nn.Sequential(nn.Linear(INPUTS, 7), nn.Dropout(0.3), nn.Linear(7, CLASSES))
    seen = addresses(
        CASES["HierFAVG-sample-samples"],
        model=model,
        augment=("noise", "noise"),
        solver={"name": "sgd", "epochs": 2},
        codec={"name": "int8", "rounding": "stochastic"},
        score_sample=3,
        holdout_devices=2,
    )
    assert seen.shared() == []
    words = {word for meant in seen.words.values() for one in meant for word in one}
    assert words >= {"further", "wire", "newcomer", "holdout", "initial", "path"}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_round_and_ask_has_its_own_key(seed: int) -> None:
    """Asks of the server, and asks of an edge in each of them."""
    firsts = [draws.path(0, ask) for ask in range(20)]
    nested = [draws.path(first, ask) for first in firsts[1:6] for ask in range(20)]
    paths = [*firsts, *nested, draws.path(nested[7], 3)]
    keys = [draws.key(seed, round, path, "device") for round in range(1, 21) for path in paths]
    assert len(set(keys)) == len(keys) == 20 * 121
