"""The tests of `covey compare`, against scipy, by hand, and under no difference."""

from collections.abc import Iterable

import numpy as np
import pytest
import scipy.stats

from covey.report.paired import holm, interval, student, t_test, wilcoxon
from covey.runs.scores.headline import named


@pytest.mark.parametrize("n", [1, 2, 5, 12, 30, 50])
def test_few_pairs_without_ties_are_counted_out(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.3, 1.0, n)
    tested = wilcoxon(differences)
    expected = scipy.stats.wilcoxon(differences, method="exact")
    assert tested == pytest.approx(expected.pvalue, rel=1e-12)


@pytest.mark.parametrize(("n", "digits"), [(201, 1), (300, 0), (400, 9)])
def test_more_than_200_pairs_take_the_normal_approximation(n: int, digits: int) -> None:
    differences = np.round(np.random.default_rng(n).normal(0.3, 1.0, 2 * n), digits)
    differences = differences[differences != 0][:n]
    tested = wilcoxon(differences)
    expected = scipy.stats.wilcoxon(differences, method="asymptotic", correction=True)
    assert tested == pytest.approx(expected.pvalue, rel=1e-12)


@pytest.mark.parametrize(
    "differences",
    [[1] * 5, [1, 1, 1, -1, 1, 1], [0.5, 0.5, 1, 1, 1.5, -0.5, 1, 0], [2] * 9 + [-2], [1, -1]],
)
def test_ties_are_counted_out_over_all_signs(differences: list[float]) -> None:
    values = np.array([value for value in differences if value])
    ranks = scipy.stats.rankdata(np.abs(values))
    signs = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
    distance = np.abs(signs @ ranks - ranks.sum() / 2)
    observed = abs(ranks[values > 0].sum() - ranks.sum() / 2)
    tested = wilcoxon(differences)
    assert tested == (distance >= observed).mean()


def test_up_to_200_pairs_the_count_is_near_the_normal_approximation() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1.0, 200)
    tested = wilcoxon(differences)
    expected = scipy.stats.wilcoxon(differences, method="asymptotic", correction=True)
    assert tested == pytest.approx(expected.pvalue, rel=0.02)


@pytest.mark.parametrize(
    ("df", "five", "one"),  # a printed table of Student's t, two-sided
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (4, 2.776, 4.604), (9, 2.262, 3.250), (30, 2.042, 2.750)],
)  # fmt: skip
def test_student_is_that_of_the_tables(df: int, five: float, one: float) -> None:
    assert student(five, df) == pytest.approx(0.05, rel=1e-3)
    assert student(-one, df) == pytest.approx(0.01, rel=2e-3)
    assert student(0.0, df) == 1.0


@pytest.mark.parametrize("n", [3, 4, 5, 10, 101, 1001])
def test_the_t_test_and_its_interval_are_those_of_scipy(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.3, 1.0, n)
    expected = scipy.stats.ttest_1samp(differences, 0.0)
    assert t_test(differences) == pytest.approx(expected.pvalue, abs=1e-13)
    assert t_test(-differences) == t_test(differences)
    bounds = expected.confidence_interval(0.95)
    assert interval(differences) == pytest.approx((bounds.low, bounds.high), abs=1e-8)


def test_few_or_equal_differences_have_no_t_test() -> None:
    assert t_test([1.0, 2.0]) is None
    assert t_test([0.1, 0.1, 0.1]) is None  # seeds that do not differ are one seed
    assert interval([1.0]) == (-np.inf, np.inf)
    assert interval([0.5, 0.5]) == (0.5, 0.5)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_seed_test_keeps_its_size_where_devices_share_a_seed_s_models(seeds: int) -> None:
    """No difference between methods; a seed moves all its devices by 1 point, noise by 5."""
    draws = np.random.default_rng(seeds)
    means = [
        (draws.normal(0, 1, (seeds, 1)) + draws.normal(0, 5, (seeds, 100))).mean(1)
        for _ in range(500)
    ]
    p_values = [t_test(each) for each in means]
    rejected = np.mean([p is not None and p < 0.05 for p in p_values])
    assert 0.03 <= rejected <= 0.07


@pytest.mark.parametrize(("devices", "digits"), [(5, 0), (20, 1), (100, 0), (100, 9)])
def test_the_device_test_keeps_its_size_for_given_models(devices: int, digits: int) -> None:
    draws = np.random.default_rng(devices + digits)
    cases = np.round(draws.normal(0, 1, (500, devices)), digits)
    assert np.mean([wilcoxon(case) < 0.05 for case in cases]) <= 0.07


def test_an_error_is_tested_alike_from_both_sides() -> None:
    """Devices' RMSE under two methods, as `covey compare` takes them."""
    rmse = named("rmse")
    draws = np.random.default_rng(0)
    ours = [1.0, 2.0, 0.5, 1.5, 0.7, 1.1, 3.0, 0.4]
    theirs = [2.0, 1.0, 1.0, 0.9, 1.2, 1.0, 1.1, 1.3]

    def p(first: Iterable[float], second: Iterable[float]) -> float:
        return wilcoxon([rmse.difference(a, b) for a, b in zip(first, second, strict=True)])

    assert p(ours, theirs) == p(theirs, ours)
    cases = np.exp(draws.normal(size=(500, 2, 60)))
    assert np.mean([p(*case) < 0.05 for case in cases]) <= 0.07


def test_no_difference_has_p_1_and_one_sign_alone_is_unlikely() -> None:
    assert wilcoxon([0.0, 0.0]) == wilcoxon([]) == 1.0
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]) == 2 / 2**5
    assert wilcoxon([-1.0, -2.0, -3.0, -4.0, -5.0]) == 2 / 2**5
    with pytest.raises(ValueError, match="not finite"):
        wilcoxon([1.0, float("nan")])


def test_holm_multiplies_by_the_comparisons_that_are_left() -> None:
    # Sorted: .005 x 4, .01 x 3, .03 x 2, .04 x 1; the last may not fall below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
