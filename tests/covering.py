"""Fewer cases that still try every combination of any two values (or any three).

`COVEY_TEST_ALL=1` runs the whole product instead.
"""

import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Case = tuple[int, ...]
Part = tuple[tuple[int, int], ...]


def covering(
    *dimensions: Iterable[Any],
    strength: int = 2,
    allowed: Callable[..., bool] = lambda *values: True,
) -> list[tuple[Any, ...]]:
    """Few cases that contain every allowed combination of `strength` values.

    A greedy choice: the next case is the first of those with the most combinations that no case
    has so far.

    >>> cases = covering("ab", [1, 2, 3], [True, False])
    >>> len(cases), {(letter, truth) for letter, _, truth in cases} == {
    ...     ("a", True), ("a", False), ("b", True), ("b", False)}
    (6, True)
    """
    values = [list(dimension) for dimension in dimensions]
    cases = [
        case
        for case in itertools.product(*(range(len(dimension)) for dimension in values))
        if allowed(*_values(values, case))
    ]
    waiting = {part for case in cases for part in _parts(case, strength)}
    most = min(strength, len(values))
    # The gain of a case only falls, so that a gain which is still right at the top is the largest.
    queue = [(-len(_parts(case, most)), order) for order, case in enumerate(cases)]
    heapq.heapify(queue)
    chosen = []
    while waiting:
        claimed, order = heapq.heappop(queue)
        gain = sum(part in waiting for part in _parts(cases[order], strength))
        if gain == -claimed:
            chosen.append(order)
            waiting.difference_update(_parts(cases[order], strength))
        elif gain:
            heapq.heappush(queue, (-gain, order))
    return [_values(values, cases[order]) for order in sorted(chosen)]


def _values(values: Sequence[Sequence[Any]], case: Case) -> tuple[Any, ...]:
    return tuple(dimension[index] for dimension, index in zip(values, case, strict=True))


def _parts(case: Case, strength: int) -> list[Part]:
    """The combinations of `strength` values that a case has."""
    return list(itertools.combinations(enumerate(case), min(strength, len(case))))


def pairs(**dimensions: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrises a test with cases that contain every pair of values.

    `instructions` is a fixture and receives its value as a parameter.
    """
    names, values = list(dimensions), [list(dimension) for dimension in dimensions.values()]
    strength = len(names) if "COVEY_TEST_ALL" in os.environ else 2
    return pytest.mark.parametrize(
        names,
        covering(*values, strength=strength),
        indirect=[name for name in names if name == "instructions"],
        ids=str,
    )
