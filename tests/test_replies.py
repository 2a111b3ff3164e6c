"""Reductions per asker, against a loop over the answers."""

import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.errors import ProgramError
from covey.kernel.replies import Deferred, Exact, Masked, Message, Replies, exact
from tests import peek

quick = settings(max_examples=60)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """(rows, mask, weights, asker, askers) of up to 12 answers to up to 5 askers, some of whom
    nobody answers.
    """
    askers = draw(st.integers(1, 5))
    count = draw(st.integers(0, 12))
    width = draw(st.integers(1, 3))
    asker = sorted(draw(st.lists(st.integers(0, askers - 1), min_size=count, max_size=count)))
    numbers = st.floats(-10, 10, width=32)
    rows = [[draw(numbers) for _ in range(width)] for _ in range(count)]
    mask = [[draw(st.booleans()) for _ in range(width)] for _ in range(count)]
    weights = [[draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))] for _ in range(count)]
    shaped = torch.tensor(rows, dtype=torch.float64).reshape(count, width)
    return (
        shaped,
        torch.tensor(mask, dtype=torch.bool).reshape(count, width),
        torch.tensor(weights, dtype=torch.float64).reshape(count, 1),
        torch.tensor(asker, dtype=torch.int64),
        askers,
    )


def naive(
    rows: Tensor, mask: Tensor, weights: Tensor, asker: Tensor, askers: int
) -> tuple[list[list[float]], list[list[float]]]:
    total = [[0.0] * rows.shape[1] for _ in range(askers)]
    scale = [[0.0] * rows.shape[1] for _ in range(askers)]
    for i, a in enumerate(asker.tolist()):
        for c in range(rows.shape[1]):
            total[a][c] += float(rows[i, c] * mask[i, c] * weights[i, 0])
            scale[a][c] += float(mask[i, c] * weights[i, 0])
    return total, scale


@quick
@given(case=answers(), masked=st.booleans(), weighted=st.booleans())
def test_means_and_sums_equal_a_loop(
    case: tuple[Tensor, Tensor, Tensor, Tensor, int], masked: bool, weighted: bool
) -> None:
    rows, mask, weights, asker, askers = case
    replies = Replies(rows, asker=asker, askers=askers, mask=mask if masked else None)
    weight = Replies(weights, asker=asker, askers=askers) if weighted else None
    if not masked:
        mask = torch.ones_like(mask)
    if not weighted:
        weights = torch.ones_like(weights)
    total, scale = (
        torch.tensor(t, dtype=torch.float64) for t in naive(rows, mask, weights, asker, askers)
    )

    sums, weights_sum = replies.sums(weight)
    torch.testing.assert_close(sums, total)
    torch.testing.assert_close(weights_sum.expand_as(scale), scale)
    assert replies.count.tolist() == torch.bincount(asker, minlength=askers).tolist()

    held = naive(rows, mask, torch.ones_like(weights), asker, askers)[1]
    assert replies.cover.tolist() == held

    default = torch.arange(askers * rows.shape[1], dtype=torch.float64).view(askers, -1)
    expected = torch.where(scale == 0, default, total / scale)
    torch.testing.assert_close(replies.mean(weight=weight, default=default), expected)
    if (scale == 0).any():
        with pytest.raises(ProgramError, match="the mean of no answers"):
            replies.mean(weight=weight)
    else:
        torch.testing.assert_close(replies.mean(weight=weight), expected)


@quick
@given(case=answers())
def test_the_sum_leaves_out_what_is_masked(
    case: tuple[Tensor, Tensor, Tensor, Tensor, int],
) -> None:
    rows, mask, _, asker, askers = case
    for sent, total in ((mask, rows * mask), (None, rows)):
        replies = Replies(rows, asker=asker, askers=askers, mask=sent)
        expected = torch.stack([total[asker == a].sum(0) for a in range(askers)])
        torch.testing.assert_close(replies.sum(), expected)
        message = replies.total()
        assert isinstance(message, Exact)
        torch.testing.assert_close(message.rows, expected)


def test_an_askers_bits_do_not_depend_on_other_askers() -> None:
    rows = torch.randn(60, 7, generator=torch.Generator().manual_seed(0))
    asker = torch.arange(60) % 4
    order = torch.argsort(asker, stable=True)
    replies = Replies(rows[order], asker=asker[order], askers=4)
    weights = torch.rand(60, 1, generator=torch.Generator().manual_seed(1))[order]
    for a in range(4):
        mine = asker[order] == a
        nobody = torch.zeros(int(mine.sum()), dtype=torch.int64)
        alone = Replies(rows[order][mine], asker=nobody, askers=1)
        assert torch.equal(alone.mean()[0], replies.mean()[a])
        weight = Replies(weights, asker=asker[order], askers=4)
        weight_alone = Replies(weights[mine], asker=nobody, askers=1)
        assert torch.equal(alone.mean(weight=weight_alone)[0], replies.mean(weight=weight)[a])


def test_gather_says_who_sent_what_to_whom() -> None:
    rows, asker, child = torch.randn(3, 2), torch.tensor([0, 0, 2]), torch.tensor([1, 4, 0])
    gathered = Replies(rows, asker=asker, askers=3, child=child).gather()
    assert torch.equal(gathered.rows, rows)
    assert gathered.asker.tolist() == [0, 0, 2]
    assert gathered.child.tolist() == [1, 4, 0]
    table = torch.zeros(3, 5, rows.shape[1], dtype=rows.dtype)
    assert gathered.into(table) is table
    assert torch.equal(table[[0, 0, 2], [1, 4, 0]], rows)
    assert int((table != 0).any(2).sum()) == 3
    with pytest.raises(ProgramError, match="cannot be gathered"):
        Replies(rows, asker=asker, askers=3).gather()


def test_a_program_that_answers_nothing() -> None:
    nothing = Replies(None, asker=torch.tensor([0, 0]), askers=1)
    assert nothing.count.tolist() == [2]
    assert nothing.sum() is None
    assert nothing.total() is None
    for reduce in (nothing.mean, nothing.sums):
        with pytest.raises(ProgramError, match="answers None"):
            reduce()
    some = Replies(torch.tensor([[1.0], [3.0]]), asker=torch.tensor([0, 0]), askers=1)
    # a device that sends no weight weighs as all others
    assert some.mean(weight=nothing).tolist() == [[2.0]]


def test_weights_are_one_number_per_answer() -> None:
    asker = torch.tensor([0, 0])
    rows = Replies(torch.ones(2, 3), asker=asker, askers=1)
    with pytest.raises(
        ProgramError, match=r"weights of shape \(2, 3\) for 2 answers; answer one number per node"
    ):
        rows.mean(weight=Replies(torch.ones(2, 3), asker=asker, askers=1))
    with pytest.raises(ProgramError, match=r"weights of shape \(1, 1\) for 2 answers"):
        rows.sums(Replies(torch.ones(1, 1), asker=asker[:1], askers=1))


def test_no_askers_and_dtype() -> None:
    empty = Replies(torch.empty(0, 4), asker=torch.empty(0, dtype=torch.int64), askers=0)
    assert empty.mean().shape == (0, 4)
    assert empty.count.tolist() == []
    weights = Replies(torch.ones(1, 1, dtype=torch.float64), asker=torch.tensor([0]), askers=1)
    replies = Replies(torch.ones(1, 2), asker=torch.tensor([0]), askers=1)
    assert replies.mean(weight=weights).dtype == torch.float32
    assert exact(torch.ones(1, 2)).rows.shape == (1, 2)


class Shelf:
    """Answers that are made anew at every read, and how many of them are alive at most."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Tensor]] = []
        self.most = 0

    def defer(self, rows: Tensor, mask: Tensor | None = None) -> Deferred:
        def read() -> Message:
            copy = rows.clone()
            self.made.append(weakref.ref(copy))
            self.most = max(self.most, sum(ref() is not None for ref in self.made))
            return copy if mask is None else Masked(copy, mask)

        return Deferred(read, masked=mask is not None)


Reduce = Callable[[Replies, Replies | None], tuple[Tensor | None, ...]]
REDUCTIONS: dict[str, Reduce] = {
    "sum": lambda replies, weight: (replies.sum(),),
    "sums": lambda replies, weight: replies.sums(weight),
    "mean": lambda replies, weight: (replies.mean(weight=weight, default=torch.ones(5, 9)),),
    "cover": lambda replies, weight: (replies.cover,),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_change_no_bit_and_one_is_held_at_a_time(
    name: str, masked: bool, weighted: bool, dtype: torch.dtype
) -> None:
    """Against one tensor of all answers, whose weighted rows are added as a whole."""
    g = torch.Generator().manual_seed(4)
    rows = (
        torch.randn(24, 9, generator=g, dtype=torch.float64)
        * 10.0 ** torch.randint(-6, 6, (24, 1), generator=g)
    ).to(dtype)
    rows[3, 2] = -0.0
    masks = torch.rand(24, 9, generator=g) < 0.7 if masked else None
    asker = torch.tensor([0] * 7 + [1] * 1 + [3] * 16)  # nobody answers 2 and 4
    weights = torch.rand(24, 1, generator=g, dtype=torch.float64)
    weight = Replies(weights, asker=asker, askers=5) if weighted else None
    want = REDUCTIONS[name](Replies(rows, asker=asker, askers=5, mask=masks), weight)
    for size in (1, 5, 24):
        cuts = [slice(k, k + size) for k in range(0, 24, size)]
        shelf = Shelf()
        deferred = [shelf.defer(rows[cut], None if masks is None else masks[cut]) for cut in cuts]
        held = [rows[cut] if masks is None else Masked(rows[cut], masks[cut]) for cut in cuts]
        for parts, mask in ((deferred, None), (held, None), ([rows[cut] for cut in cuts], masks)):
            got = REDUCTIONS[name](Replies(parts, asker=asker, askers=5, mask=mask), weight)
            for a, b in zip(got, want, strict=True):
                assert a.numpy().tobytes() == b.numpy().tobytes()
        assert len(shelf.made) == len(cuts)  # each was read once
        assert shelf.most == 1


def test_a_weighted_sum_is_the_loop_in_id_order() -> None:
    """To the bit, so that the parts above are compared with the right thing."""
    g = torch.Generator().manual_seed(5)
    rows, weights = torch.randn(6, 3, generator=g), torch.rand(6, 1, generator=g)
    asker = torch.tensor([0, 0, 0, 1, 1, 1])
    total, scale = torch.zeros(2, 3), torch.zeros(2, 1)
    for k in range(6):
        total[asker[k]] += rows[k] * weights[k]
        scale[asker[k]] += weights[k]
    sums = Replies(rows, asker=asker, askers=2).sums(Replies(weights, asker=asker, askers=2))
    assert torch.equal(sums[0], total)
    assert torch.equal(sums[1], scale)


def test_deferred_answers_are_read_again_by_every_reduction_until_they_are_gathered() -> None:
    rows, asker = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 0, 1])
    shelf = Shelf()
    replies = Replies(
        [shelf.defer(rows[:2]), shelf.defer(rows[2:])], asker=asker, askers=2, child=torch.arange(3)
    )
    assert replies.count.tolist() == [2, 1]
    assert shelf.made == []  # a count needs none of them
    first = replies.mean()
    assert torch.equal(first, replies.mean())
    assert len(shelf.made) == 4
    assert torch.equal(replies.gather().rows, rows)
    assert torch.equal(replies.mean(), first)
    assert len(shelf.made) == 6


def test_masks_survive_a_gather() -> None:
    rows = torch.ones(3, 2)
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    asker = torch.zeros(3).long()
    shelf = Shelf()
    parts = [shelf.defer(rows[:2], mask[:2]), shelf.defer(rows[2:], mask[2:])]
    replies = Replies(parts, asker=asker, askers=1, child=torch.arange(3))
    replies.gather()
    assert replies.cover.tolist() == [[2.0, 1.0]]


def test_parts_that_do_not_fit_together_are_refused() -> None:
    rows, asker = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ProgramError, match="some of the answers have masks"):
        Replies([rows[:1], Masked(rows[1:], rows[1:] > 0)], asker=asker, askers=1)
    with pytest.raises(ProgramError, match="some of the answers have masks"):
        Replies([Deferred(lambda: rows, masked=True)], asker=asker, askers=1).sum()
    with pytest.raises(ProgramError, match="answer None"):
        Replies([Deferred(lambda: None)], asker=asker, askers=1).sum()
    for parts in ([rows, rows], [rows, rows[:1]], [torch.ones(3, 3)], [rows[:1]]):
        with pytest.raises(ProgramError, match="2 children were asked"):
            Replies(parts, asker=asker, askers=1).sum()
    assert Replies([Deferred(lambda: exact(rows))], asker=asker, askers=1).mean().tolist() == [
        [1.0] * 3
    ]


@quick
@given(case=answers(), cut=st.integers(0, 12))
def test_sums_as_on_a_gpu_equal_those_on_a_cpu(
    case: tuple[Tensor, Tensor, Tensor, Tensor, int], cut: int
) -> None:
    """A GPU adds up all parts at the end, in a fixed order."""
    rows, _, _, asker, askers = case
    replies = Replies(rows, asker=asker, askers=askers)
    parts = [(rows[:cut], asker[:cut]), (rows[cut:], asker[cut:])]
    torch.testing.assert_close(peek.total_on_gpu(replies, parts), replies.sum())
    whole = [(rows, asker)]
    assert torch.equal(peek.total_on_gpu(replies, whole), peek.total_on_gpu(replies, parts))


@pytest.mark.parametrize("askers", [1, 2, 3])
def test_sums_as_on_a_gpu_of_groups_of_one_size(askers: int) -> None:
    rows = torch.arange(6.0 * 2).reshape(6, 2)
    asker = torch.arange(askers).repeat_interleave(6 // askers)
    replies = Replies(rows, asker=asker, askers=askers)
    sums = replies.sum()
    assert sums is not None
    assert torch.equal(peek.total_on_gpu(replies, [(rows, asker)]), sums)
