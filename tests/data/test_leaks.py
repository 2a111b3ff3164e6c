"""Overlaps are counted as a plain loop over sets counts them, and quickly."""

import time

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.data import Part, Shards, partition
from covey.data.leaks import Overlaps, overlaps

EXAMPLES = 8
pieces = st.lists(st.integers(0, EXAMPLES - 1), max_size=6)


def shards(train: list[list[int]], validation: list[list[int]], test: list[list[int]]) -> Shards:
    return Shards(torch.zeros(EXAMPLES, 1), torch.zeros(EXAMPLES), Part.of(train), Part.of(validation), Part.of(test))


def by_sets(train: list[list[int]], validation: list[list[int]], test: list[list[int]]) -> Overlaps:
    used = [{*a, *b} for a, b in zip(train, validation, strict=True)]
    tested = [set(piece) for piece in test]
    held = [a | b for a, b in zip(used, tested, strict=True)]
    others = [(d, o) for d in range(len(test)) for o in range(len(test)) if d != o]
    return Overlaps(
        held=len(set().union(*held)),
        shared=sum(sum(example in piece for piece in held) > 1 for example in range(EXAMPLES)),
        tested=len(set().union(*tested)),
        leaks=len(set().union(*(tested[d] & used[o] for d, o in others))),
        pairs=sum(bool(tested[d] & used[o]) for d, o in others),
    )


@given(st.lists(st.tuples(pieces.filter(bool), pieces, pieces), min_size=1, max_size=6))
def test_overlaps_are_those_of_sets(devices: list[tuple[list[int], list[int], list[int]]]) -> None:
    train, validation, test = ([device[part] for device in devices] for part in range(3))
    assert overlaps(shards(train, validation, test)) == by_sets(train, validation, test)


def test_a_device_does_not_leak_to_itself() -> None:
    assert overlaps(shards([[0], [1]], [[], []], [[0], [2]])) == Overlaps(held=3, shared=0, tested=2, leaks=0, pairs=0)


def test_validation_leaks_too() -> None:
    assert overlaps(shards([[0], [1]], [[], [2]], [[2], []])) == Overlaps(held=3, shared=1, tested=1, leaks=1, pairs=1)


def test_many_entries_take_no_time() -> None:
    n, draws = 50_000, np.random.default_rng(0)
    parts = partition.split([draws.integers(0, n, 250) for _ in range(1000)])
    made = Shards(torch.zeros(n, 1), torch.zeros(n), *parts)
    start = time.process_time()
    found = overlaps(made)
    assert time.process_time() - start < 3
    assert found.leaks > 0.9 * found.tested
