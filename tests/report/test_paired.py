"""The signed-rank test and Holm's correction, against scipy and by hand."""

import numpy as np
import pytest
import scipy.stats

from covey.report.paired import holm, wilcoxon


@pytest.mark.parametrize("n", [1, 2, 5, 12, 30, 50])
def test_few_pairs_without_ties_are_counted_out(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.3, 1.0, n)
    tested = wilcoxon(differences)
    expected = scipy.stats.wilcoxon(differences, method="exact")
    assert tested.method == "exact"
    assert tested.statistic == expected.statistic
    assert tested.p == pytest.approx(expected.pvalue, rel=1e-12)


@pytest.mark.parametrize(("n", "digits"), [(6, 0), (20, 1), (60, 1), (51, 9), (400, 9)])
def test_ties_or_many_pairs_take_the_normal_approximation(n: int, digits: int) -> None:
    differences = np.round(np.random.default_rng(n).normal(0.3, 1.0, n), digits)
    tested = wilcoxon(differences)
    expected = scipy.stats.wilcoxon(differences, method="asymptotic", correction=True)
    assert tested.method == "normal"
    assert tested.pairs == np.count_nonzero(differences)
    assert tested.statistic == expected.statistic
    assert tested.p == pytest.approx(expected.pvalue, rel=1e-12)


def test_no_difference_at_all_has_p_1() -> None:
    assert wilcoxon([]).p == 1.0
    assert wilcoxon([0.0, 0.0]) == wilcoxon([])


def test_one_sign_alone_is_unlikely() -> None:
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]).p == 2 / 2**5
    assert wilcoxon([-1.0, -2.0, -3.0, -4.0, -5.0]).p == 2 / 2**5


def test_a_figure_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        wilcoxon([1.0, float("nan")])


def test_holm_multiplies_by_the_comparisons_that_are_left() -> None:
    # Sorted: .005 x 4, .01 x 3, .03 x 2, .04 x 1; the last may not fall below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
