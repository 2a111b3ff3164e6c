"""Trees: who is under whom, and who of them is asked."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import Tree
from covey.errors import TreeError

quick = settings(max_examples=60)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Two to four tiers, with one to four children each."""
    children, size = [], 1
    for _ in range(draw(st.integers(1, 3))):
        children.append(tuple(draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))))
        size = sum(children[-1])
    return Tree(tuple(children))


@quick
@given(tree=trees())
def test_children_of_a_tier_are_the_next_tier(tree: Tree) -> None:
    assert tree.depth == len(tree.sizes) == len(tree.tiers)
    assert tree.devices == tree.size("device") == tree.sizes[-1]
    for tier in tree.tiers[:-1]:
        ids = torch.arange(tree.size(tier))
        first, counts = tree.first(tier, ids), tree.counts(tier, ids)
        below = tree.below(tier)
        assert below is not None
        listed = [
            child
            for f, c in zip(first.tolist(), counts.tolist(), strict=True)
            for child in range(f, f + c)
        ]
        assert listed == list(range(tree.size(below)))
    assert tree.below("device") is None
    assert tree.counts("device", torch.arange(tree.devices)).tolist() == [0] * tree.devices
    assert tree.flattened() == Tree.flat(tree.devices)


@quick
@given(tree=trees(), address=st.integers(0, 2**64 - 1), data=st.data())
def test_a_cohort_has_the_right_counts_and_only_own_children(
    tree: Tree, address: int, data: st.DataObject
) -> None:
    tier = data.draw(st.sampled_from(tree.tiers[:-1]))
    fewest = min(tree.children[tree.index(tier)])
    sample = data.draw(st.one_of(st.none(), st.integers(1, fewest), st.floats(0.01, 1.0)))
    everyone = torch.arange(tree.size(tier))
    position, child = tree.cohort(tier, everyone, sample=sample, address=address)
    assert child.tolist() == sorted(set(child.tolist()))
    first, counts = tree.first(tier, everyone), tree.counts(tier, everyone)
    assert ((child >= first[position]) & (child < (first + counts)[position])).all()
    picked = torch.bincount(position, minlength=len(everyone))
    if sample is None:
        assert torch.equal(picked, counts)
    elif isinstance(sample, int):
        assert picked.tolist() == [sample] * len(everyone)
    else:
        for got, count in zip(picked.tolist(), counts.tolist(), strict=True):
            assert 1 <= got <= count
            assert abs(got - count * sample) <= 0.5 + 1e-5 or got == 1

    some = torch.tensor(
        sorted(data.draw(st.sets(st.sampled_from(everyone.tolist())))), dtype=torch.int64
    )
    at, asked = tree.cohort(tier, some, sample=sample, address=address)
    expected = [
        (i, c)
        for i, node in enumerate(some.tolist())
        for p, c in zip(position.tolist(), child.tolist(), strict=True)
        if p == node
    ]
    assert list(zip(at.tolist(), asked.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("count", "fraction", "picks"),
    [
        (10, 0.25, 3),
        (10, 0.24, 2),
        (10, 0.01, 1),
        (10, 1.0, 10),
        (5, 0.5, 3),
        (1, 0.5, 1),
        (3, 0.5, 2),
        (100, 0.1, 10),
        (7, 0.999, 7),
    ],
)
def test_a_fraction_is_rounded_half_up_and_is_at_least_one(
    count: int, fraction: float, picks: int
) -> None:
    assert Tree.flat(count).picks("server", fraction).tolist() == [picks]


@pytest.mark.parametrize("devices", [8_388_609, 16_777_217, 10**9 + 7])
def test_a_fraction_of_very_many(devices: int) -> None:
    assert Tree.flat(devices).picks("server", 1.0).tolist() == [devices]
    assert Tree.flat(devices).picks("server", 0.25).item() == pytest.approx(devices / 4, abs=0.5)


def test_a_cohort_of_a_large_population_costs_the_sample() -> None:
    position, child = Tree.flat(10**9).cohort("server", torch.tensor([0]), sample=50, address=3)
    assert position.tolist() == [0] * 50
    assert len(child.unique()) == 50


def test_cohorts_change_with_the_address() -> None:
    tree = Tree.flat(20)
    drawn = {
        tuple(tree.cohort("server", torch.tensor([0]), sample=5, address=a)[1].tolist())
        for a in range(30)
    }
    assert len(drawn) >= 29


def test_tiers_have_names() -> None:
    assert Tree.flat(3).tiers == ("server", "device")
    assert Tree.grouped([1, 2]).tiers == ("server", "edge", "device")
    assert Tree.uniform(2, 2, 2).tiers == ("server", "edge1", "edge2", "device")
    assert Tree.uniform(2, 2, tiers=("cloud", "fog", "phone")).below("fog") == "phone"
    assert Tree.grouped([1, 2]).children == ((2,), (1, 2))
    assert Tree.uniform(2, 3) == Tree.grouped([3, 3])
    assert str(Tree.grouped([1, 2])) == "Tree: 1 server, 2 edges, 3 devices"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tree(()), "at least one tier below the server"),
        (lambda: Tree(((0,),)), "server 0 has 0 children"),
        (lambda: Tree(((2,), (3, 0))), "edge 1 has 0 children"),
        (lambda: Tree(((2,), (3, -1))), "edge 1 has -1 children"),
        (lambda: Tree(((2,), (3,))), "2 nodes of tier edge but 1 counts"),
        (lambda: Tree(((2,),), ("server",)), "give 2 different names"),
        (lambda: Tree(((2,),), ("node", "node")), "give 2 different names"),
        (lambda: Tree.flat(0), "server 0 has 0 children"),
        (lambda: Tree.flat(2.7), "2.7 children: counts must be whole numbers"),  # type: ignore[arg-type]
        (lambda: Tree.grouped([]), "server 0 has 0 children"),
        (lambda: Tree.grouped([2, 0]), "edge 1 has 0 children"),
        (lambda: Tree.uniform(), "at least one tier below the server"),
        (lambda: Tree.flat(2).size("edge"), "server, device; there is no tier 'edge'"),
        (
            lambda: Tree.grouped([4, 2, 5]).cohort("edge", torch.tensor([0]), sample=3, address=0),
            "sample = 3 at the edge, but edge 1 has only 2 children; ask for at most 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(TreeError, match=words):
        make()


@pytest.mark.parametrize("sample", [0, -1, True, False, 1.5, 0.0, -0.5, float("nan"), float("inf")])
def test_wrong_samples(sample: float) -> None:
    with pytest.raises(TreeError, match=f"sample = {sample!r} at the server"):
        Tree.flat(5).picks("server", sample)
