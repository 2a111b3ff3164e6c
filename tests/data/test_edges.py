"""Edges keep every device once, and put together what belongs together."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from covey.data import Names, Part, Shards, edges
from covey.engine import similar
from covey.tree import Tree
from tests.given import refused

DEVICES = 12
Made = tuple[Shards, Tree]


def labelled(labels: list[list[int]], examples: int = 6, classes: int = 10) -> Shards:
    """Devices that train on `examples` of each of their labels; x tells the label apart. Device d
    is called str(d).
    """
    y = torch.tensor([label for own in labels for label in own for _ in range(examples)])
    x = torch.eye(classes)[y] + 0.1 * torch.randn(
        len(y), classes, generator=torch.Generator().manual_seed(0)
    )
    ends = np.cumsum([0] + [len(own) * examples for own in labels])
    pieces = [np.arange(start, stop) for start, stop in pairwise(ends)]
    nothing = Part.of([[]] * len(labels))
    names = Names(devices=tuple(map(str, range(len(labels)))))
    return Shards(x, y, Part.of(pieces), nothing, nothing, classes=classes, names=names)


def sliding(devices: int = DEVICES) -> Shards:
    return labelled([[u % 10, (u + 1) % 10] for u in range(devices)])


def model() -> nn.Module:
    return nn.Linear(10, 10)


def who(shards: Shards) -> list[list[int]]:
    """The numbers that the devices of each edge had before."""
    ends = np.cumsum(shards.edges)
    return [
        [int(shards.names.devices[d]) for d in range(end - size, end)]
        for size, end in zip(shards.edges, ends, strict=True)
    ]


WAYS: dict[str, Callable[[Shards], Made]] = {
    "consecutive": lambda shards: edges.consecutive(shards, 5),
    "random": lambda shards: edges.random(shards, 5, seed=1),
    "given": lambda shards: edges.given(shards, ["b", "a", "c", "b"] * 3),
    "by_label": lambda shards: edges.by_label(shards, edges.WORST),
    "similar": lambda shards: edges.similar(shards, model(), 5),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_device_is_kept_once_with_its_examples(way: str) -> None:
    before = sliding()
    after, tree = WAYS[way](before)
    order = [device for edge in who(after) for device in edge]
    assert sorted(order) == list(range(DEVICES))
    assert tree == Tree.grouped(after.edges)
    held = zip(range(len(order)), order, strict=True)
    assert all(after.train.held(at).equal(before.train.held(old)) for at, old in held)
    assert all(edge == sorted(edge) for edge in who(after))


@pytest.mark.parametrize("way", WAYS)
def test_the_same_again(way: str) -> None:
    assert WAYS[way](sliding())[0].fingerprint() == WAYS[way](sliding())[0].fingerprint()


@pytest.mark.parametrize("way", WAYS)
def test_edges_of_before_are_forgotten(way: str) -> None:
    before, _ = edges.given(sliding(), ["x", "y"] * 6)
    after, _ = WAYS[way](before)
    assert sum(after.edges) == DEVICES
    assert after.names.edges == (("b", "a", "c") if way == "given" else ())


@pytest.mark.parametrize("way", [edges.consecutive, edges.random])
def test_sizes_are_near_equal(way: Callable[..., Made]) -> None:
    assert sorted(way(sliding(), 5)[0].edges) == [2, 2, 2, 3, 3]


def test_consecutive_changes_no_order() -> None:
    assert who(edges.consecutive(sliding(), 4)[0]) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_random_depends_on_the_seed() -> None:
    assert who(edges.random(sliding(), 4, seed=0)[0]) != who(edges.random(sliding(), 4, seed=1)[0])


def test_given_orders_edges_by_first_appearance() -> None:
    after, _ = edges.given(sliding(4), ["south", "north", "south", "east"])
    assert who(after) == [[0, 2], [1], [3]]
    assert after.names.edges == ("south", "north", "east")


def test_by_label_goes_by_most_examples_then_by_fewest_devices() -> None:
    shards = labelled([[0], [0], [6], [4, 5], [4, 5], [7, 8, 0]])
    assert who(edges.by_label(shards, edges.WORST)[0]) == [[0, 1, 4], [2, 3, 5]]


def test_by_label_with_sets_that_overlap() -> None:
    shards = labelled([[0, 1], [5, 6], [2, 3], [8, 9], [0, 1], [5, 6]])
    assert who(edges.by_label(shards, edges.AVERAGE)[0]) == [[0, 2, 4], [1, 3, 5]]


def test_similar_finds_two_clusters() -> None:
    labels = [[0, 1], [5, 6], [0, 1], [5, 6], [5, 6], [0, 1], [5, 6], [0, 1], [5, 6]]
    for seed in range(5):
        after, _ = edges.similar(labelled(labels), model(), 2, seed=seed)
        assert who(after) == [[0, 2, 5, 7], [1, 3, 4, 6, 8]]


def test_similar_finds_clusters_by_sketches() -> None:
    labels = [[0], [1], [2]] * 4
    # 2,530 numbers: more than a sketch has
    deep = nn.Sequential(nn.Linear(10, 120), nn.Tanh(), nn.Linear(120, 10))
    after, _ = edges.similar(labelled(labels), deep, 3)
    assert who(after) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_similar_takes_targets() -> None:
    x = torch.ones(8, 1)
    y = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0, 2.0, -2.0, -2.0]) * 10
    nothing = Part.of([[]] * 4)
    shards = Shards(x, y, Part.of([[0, 1], [2, 3], [4, 5], [6, 7]]), nothing, nothing)
    after, _ = edges.similar(shards, nn.Linear(1, 1), 2)
    assert [after.train.held(d)[0].item() for d in range(4)] == [0, 4, 2, 6]


@pytest.mark.parametrize("width", [10, 120])
def test_similar_does_not_depend_on_chunks(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = labelled([[u % 10, (3 * u + 1) % 10] for u in range(30)])
    deep = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 10))
    whole, _ = edges.similar(shards, deep, 4, seed=3)
    monkeypatch.setattr(similar, "_MEMORY", 1)
    assert edges.similar(shards, deep, 4, seed=3)[0].fingerprint() == whole.fingerprint()


def test_sketches_keep_angles() -> None:
    rows = torch.randn(6, 20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[3:] = rows[:3] + 0.5 * rows[3:]
    short = similar._sketched(rows, seed=0)
    assert short.shape == (6, 1024)
    true, kept = (torch.from_numpy(similar._unit(r.numpy())) for r in (rows, short))
    assert torch.allclose(kept @ kept.T, true @ true.T, atol=0.15)
    assert similar._sketched(rows[:, :1024], seed=0).equal(rows[:, :1024])


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 3),
    kinds=st.integers(1, 12),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_no_cluster_is_empty(
    rows: int, columns: int, kinds: int, seed: int, data: st.DataObject
) -> None:
    # some are all zeros
    different = np.random.default_rng(seed).integers(-1, 2, (kinds, columns)).astype(np.float64)
    points = similar._unit(different[np.arange(rows) % kinds])
    count = data.draw(st.integers(1, rows))
    cluster = similar._clusters(points, count, seed)
    assert set(cluster.tolist()) == set(range(count))
    first = [cluster.tolist().index(c) for c in range(count)]
    assert first == sorted(first)


def test_devices_alike_are_still_put_under_every_edge() -> None:
    after, tree = edges.similar(labelled([[0, 1]] * 6), model(), 6)
    assert after.edges == (1,) * 6
    assert tree.devices == 6


@pytest.mark.parametrize("number", [0, 13])
def test_refuses_impossible_numbers_of_edges(number: int) -> None:
    for way in (
        edges.consecutive,
        edges.random,
        lambda shards, n: edges.similar(shards, model(), n),
    ):
        with refused(f"edges={number}", "12 devices", "1 to 12"):
            way(sliding(), number)


def targets(x: Any, y: Any) -> Shards:
    """A training example of each device, and no other."""
    nothing = Part.of([[]] * len(x))
    return Shards(
        torch.tensor(x), torch.tensor(y), Part.of([[i] for i in range(len(x))]), nothing, nothing
    )


REFUSED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a wrong number of names": (
        lambda: edges.given(sliding(), ["a", "b"]), ["2 edge names (a, b)", "12 devices", "one per device"],
    ),
    "edges that stay empty": (
        lambda: edges.by_label(labelled([[0], [1], [2]]), edges.WORST),
        ["5, 6, 7, 8, 9", "edge 1", "3, 0 devices", "other label sets"],
    ),
    **{
        f"labels that are none: {sets}": (
            lambda sets=sets: edges.by_label(sliding(), sets), [f"sets={sets}", "at least one label", "0 to 9"],
        )
        for sets in ((), ((0, 1), ()), ((0,), (10,)), ((0,), (-1,)))
    },
    "targets by label": (lambda: edges.by_label(targets([[0.0]], [0.0]), edges.WORST), ["needs labels", "another way"]),
    "gradients that are not finite": (
        lambda: edges.similar(targets([[1.0], [3e38]], [1e38, -3e38]), nn.Linear(1, 1), 2),
        ["gradients of 1 devices", "devices 1", "scale x"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    with refused(*words):
        make()
