"""Few cases contain every pair of values."""

import itertools

import pytest

from tests.covering import covering


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_of_so_many_values_is_in_a_case(strength: int) -> None:
    dimensions = [range(5), "abc", [None, 1.0, 2.0, 3.0], [False, True]]
    cases = covering(*dimensions, strength=strength)
    for places in itertools.combinations(range(4), strength):
        want = set(itertools.product(*(dimensions[place] for place in places)))
        assert {tuple(case[place] for place in places) for case in cases} == want
    smallest, product = {1: 5, 2: 20, 3: 60}[strength], 5 * 3 * 4 * 2
    assert smallest <= len(cases) <= min(product, 1.3 * smallest)


def test_the_strength_of_all_dimensions_is_the_product() -> None:
    dimensions = ["ab", range(3), range(2)]
    assert covering(*dimensions, strength=3) == list(itertools.product(*dimensions))


def test_what_is_not_allowed_is_in_no_case_and_all_else_is() -> None:
    cases = covering(
        range(3), range(3), range(3), allowed=lambda first, second, third: first != second
    )
    assert {(a, b) for a, b, _ in cases} == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert {(b, c) for _, b, c in cases} == set(itertools.product(range(3), repeat=2))


def test_the_cases_are_the_same_every_time() -> None:
    """Workers of a parallel run must agree on the cases."""
    dimensions = [range(16), range(6), range(3)]
    assert covering(*dimensions) == covering(*dimensions)
