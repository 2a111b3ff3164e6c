"""Overlaps are counted as a plain loop over sets counts them, and quickly."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.data import Part, Shards, partition
from covey.data.partitions.leaks import Copies, Overlaps, copies, overlaps

EXAMPLES = 8
pieces = st.lists(st.integers(0, EXAMPLES - 1), max_size=6)


def shards(train: list[list[int]], validation: list[list[int]], test: list[list[int]]) -> Shards:
    return Shards(
        torch.zeros(EXAMPLES, 1), torch.zeros(EXAMPLES), Part.of(train), Part.of(validation), Part.of(test),
    )  # fmt: skip


def by_sets(train: list[list[int]], validation: list[list[int]], test: list[list[int]]) -> Overlaps:
    trained, validated, tested = (
        [set(piece) for piece in part] for part in (train, validation, test)
    )
    used = [a | b for a, b in zip(trained, validated, strict=True)]
    held = [a | b for a, b in zip(used, tested, strict=True)]
    others = [(d, o) for d in range(len(test)) for o in range(len(test)) if d != o]
    twice = [
        (a & b) | (a & c) | (b & c) for a, b, c in zip(trained, validated, tested, strict=True)
    ]
    return Overlaps(
        held=len(set().union(*held)),
        shared=sum(sum(example in piece for piece in held) > 1 for example in range(EXAMPLES)),
        tested=len(set().union(*tested)),
        leaks=len(set().union(*(tested[d] & used[o] for d, o in others))),
        pairs=sum(bool(tested[d] & used[o]) for d, o in others),
        validated=len(set().union(*validated)),
        validation_leaks=len(set().union(*(validated[d] & trained[o] for d, o in others))),
        validation_pairs=sum(bool(validated[d] & trained[o]) for d, o in others),
        reused=len(set().union(*twice)),
    )


@given(st.lists(st.tuples(pieces.filter(bool), pieces, pieces), min_size=1, max_size=6))
def test_overlaps_are_those_of_sets(devices: list[tuple[list[int], list[int], list[int]]]) -> None:
    train, validation, test = ([device[part] for device in devices] for part in range(3))
    assert overlaps(shards(train, validation, test)) == by_sets(train, validation, test)


BY_HAND: dict[str, tuple[list[list[list[int]]], dict[str, int]]] = {
    "a device does not leak to itself, but reuses": (
        [[[0], [1]], [[], []], [[0], [2]]],
        {"held": 3, "shared": 0, "tested": 2, "leaks": 0, "pairs": 0, "reused": 1},
    ),
    "a test example leaks into validation": (
        [[[0], [1]], [[], [2]], [[2], []]],
        {"held": 3, "shared": 1, "tested": 1, "leaks": 1, "pairs": 1, "validated": 1},
    ),
    "a validation example leaks into training": (
        [[[0], [1], [1, 2]], [[1], [3], []], [[], [], []]],
        {"leaks": 0, "validated": 2, "validation_leaks": 1, "validation_pairs": 2},
    ),
}


@pytest.mark.parametrize("what", BY_HAND)
def test_overlaps_by_hand(what: str) -> None:
    parts, counts = BY_HAND[what]
    found = vars(overlaps(shards(*parts)))
    assert {name: found[name] for name in counts} == counts


def test_many_entries_take_no_time() -> None:
    n, draws = 50_000, np.random.default_rng(0)
    parts = partition.split([draws.integers(0, n, 250) for _ in range(1000)])
    made = Shards(torch.zeros(n, 1), torch.zeros(n), *parts)
    start = time.process_time()
    found = overlaps(made)
    assert time.process_time() - start < 3
    assert found.leaks > 0.9 * found.tested


@given(
    st.lists(st.tuples(pieces.filter(bool), pieces, pieces), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=EXAMPLES, max_size=EXAMPLES),
)
def test_copies_are_those_of_sets(
    devices: list[tuple[list[int], list[int], list[int]]], features: list[int]
) -> None:
    lists = ([device[part] for device in devices] for part in range(3))
    trained, validated, judged = map(Part.of, lists)
    x = torch.tensor(features).float()[:, None, None].expand(EXAMPLES, 2, 3)
    train, validation, test = (set().union(*(d[part] for d in devices)) for part in range(3))
    used = train | validation
    contents = {features[number] for number in used}
    leaks = [number for number in test - used if features[number] in contents]
    different = {features[number] for number in used | test}
    made = Shards(x, torch.zeros(EXAMPLES), trained, validated, judged)
    assert copies(made) == Copies(
        held=len(used | test), different=len(different), tested=len(test), leaks=len(leaks)
    )


def test_hashes_of_many_examples_take_no_time() -> None:
    x = torch.arange(60_000.0)[:, None].expand(60_000, 784)
    parts = partition.split([np.arange(60_000)])
    made = Shards(x, torch.zeros(60_000), *parts)
    start = time.process_time()
    assert copies(made).leaks == 0
    assert time.process_time() - start < 5


def test_a_device_without_leaks_costs_no_row_of_all_devices() -> None:
    devices = 300_000
    numbers = np.arange(devices + 1)
    train = Part(torch.arange(devices), torch.from_numpy(numbers))
    index = torch.arange(devices, 2 * devices)
    index[0] = 1  # the only leak: device 0 tests what device 1 trains on
    test = Part(index, torch.from_numpy(numbers))
    nothing = Part(torch.arange(0), torch.zeros(devices + 1, dtype=torch.int64))
    x = torch.zeros(2 * devices, 1)
    start = time.process_time()
    found = overlaps(Shards(x, torch.zeros(2 * devices), train, nothing, test))
    assert (found.leaks, found.pairs) == (1, 1)
    assert time.process_time() - start < 5
