"""What nodes remember, against a dictionary: rounds, defaults, transactions, and memory that does
not grow.
"""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey.errors import ProgramError
from covey.kernel.store import segments
from covey.kernel.store.segments import Segments
from covey.kernel.store.store import NEVER, PRESENT, Entry, Frozen, Store
from tests.visits import Visits

NODES, WIDTH = 6, 2
Kept = dict[int, tuple[int, list[float]]]
nodes = st.sets(st.integers(0, NODES - 1), max_size=NODES).map(sorted)


def ids_of(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


@settings(max_examples=80)
@given(data=st.data())
def test_it_is_a_dictionary_with_transactions(data: st.DataObject) -> None:
    store = Store({"device": NODES})
    now: Kept = {}
    good: Kept = {}
    round, value = 0, 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(
            st.sampled_from(["put", "put", "put", "get", "commit", "rollback", "reload"])
        ):
            case "put":
                ids = data.draw(nodes)
                rows = [[value + k, -value] for k in range(len(ids))]
                store.put("device", "w", ids_of(ids), torch.tensor(rows).reshape(-1, WIDTH), round)
                now |= {node: (round, row) for node, row in zip(ids, rows, strict=True)}
                value += 10
            case "get":
                ids, since = data.draw(nodes), data.draw(st.integers(0, round + 1))
                default = torch.full((len(ids), WIDTH), 0.5)
                fresh = [node in now and now[node][0] >= since for node in ids]
                expected = [
                    now[node][1] if f else [0.5, 0.5] for node, f in zip(ids, fresh, strict=True)
                ]
                assert store.get("device", "w", ids_of(ids), default, since).tolist() == expected
                bare = store.get("device", "w", ids_of(ids), None, since)
                if ids:
                    assert (bare is not None) == all(fresh)
                assert (default == 0.5).all()
            case "commit":
                store.commit()
                good, round = copy.deepcopy(now), round + 1
            case "rollback":
                store.rollback()
                now = copy.deepcopy(good)
            case "reload":  # only what was committed is ever saved
                store.rollback()
                now = copy.deepcopy(good)
                fresh_store = Store({"device": NODES})
                for frozen in store.freeze({"device": slice(0, NODES)}):
                    fresh_store.thaw(frozen, slice(0, NODES))
                store = fresh_store
        everyone = torch.arange(NODES)
        assert store.rounds("device", "w", everyone).tolist() == [
            now[i][0] if i in now else NEVER for i in range(NODES)
        ]
        held = {
            int(i): (int(r), row.tolist())
            for column in store.columns.values()
            for ids, rounds, rows in [column.read(PRESENT, slice(0, None))]
            for i, r, row in zip(ids, rounds, rows, strict=True)
        }
        assert held == now


def reloaded(store: Store, parts: list[slice]) -> Store:
    """A new store with all that the old one has, part by part."""
    fresh = Store({"device": NODES})
    for nodes_of_seed in parts:
        for frozen in store.freeze({"device": nodes_of_seed}):
            fresh.thaw(frozen, nodes_of_seed)
    return fresh


Step = tuple[list[int], str, int, str]
steps = st.tuples(
    nodes,
    st.sampled_from(["keep", "hold", "hold", "fail", "release", "reload"]),
    st.integers(0, 1),
    st.sampled_from(["a", "b"]),
)
ALL = list(range(NODES))
GROWS_BY_HALF: list[Step] = [
    ([0], "keep", 0, "a"),
    ([1, 2, 3, 4], "hold", 1, "a"),
    ([0, 1, 2, 3, 4], "keep", 0, "a"),
    ([], "hold", 0, "a"),
    ([0, 1, 2, 5], "hold", 0, "b"),
    ([], "hold", 1, "b"),
    (ALL, "keep", 0, "a"),
    (ALL, "keep", 0, "a"),
]
"""23 rows at once, of which the last lacks one slot: there are 22, and half as many are added."""


@settings(max_examples=80)
@given(st.lists(steps, min_size=1, max_size=20))
@example(GROWS_BY_HALF)
def test_held_versions_stay_as_they_were(steps: list[Step]) -> None:
    """Against copies: versions of two halves of the nodes under two labels, with rounds that fail
    and reloads. No slot is lost: each is referred to or free.
    """
    store = Store({"device": NODES})
    halves = [slice(0, 3), slice(3, NODES)]
    copies: dict[tuple[str, int], dict[int, list[float]]] = {}
    store.put("device", "w", ids_of([]), torch.empty(0, WIDTH), 0)
    for round, (ids, step, half, label) in enumerate(steps):
        store.commit()
        value = round + 1.0
        store.put("device", "w", ids_of(ids), torch.full((len(ids), WIDTH), value), round)
        column = store.columns["device", "w"]
        if step in ("hold", "fail"):
            column.hold(label, halves[half])
        if step == "hold":
            kept, _, rows = column.read("present", halves[half])
            copies[label, half] = dict(zip(kept.tolist(), rows.tolist(), strict=True))
        if step == "release":
            column.release(label, halves[half])
            copies.pop((label, half), None)
        if step == "fail":
            store.rollback()
        if step == "reload":
            store = reloaded(store, halves)
        column = store.columns["device", "w"]
        for name in ("a", "b"):
            for k, span in enumerate(halves):
                kept, _, rows = column.read(name, span)
                assert dict(zip(kept.tolist(), rows.tolist(), strict=True)) == copies.get(
                    (name, k), {}
                )
        used = int((column.slots.references(torch.arange(column.capacity)) > 0).sum())
        assert used + column.slots.available() == column.capacity
        # Three versions and what this round put; memory grows by half of what there is.
        assert used <= 4 * NODES
        assert column.capacity < 1.5 * 4 * NODES


def test_a_held_row_is_not_written_again_in_its_round() -> None:
    store = Store({"device": 2})
    store.put("device", "w", ids_of([0, 1]), torch.zeros(2, WIDTH), 0)
    column = store.columns["device", "w"]
    column.hold("best", slice(0, 2))
    store.put("device", "w", ids_of([1]), torch.ones(1, WIDTH), 0)
    assert column.read("best", slice(0, 2))[2].tolist() == [[0.0] * WIDTH] * 2
    assert column.read("present", slice(0, 2))[2].tolist() == [[0.0] * WIDTH, [1.0] * WIDTH]


def test_a_row_in_several_versions_is_saved_once() -> None:
    store = Store({"device": 4})
    store.put("device", "w", torch.arange(4), torch.arange(4.0)[:, None], 0)
    store.columns["device", "w"].hold("best", slice(0, 4))
    store.commit()
    store.put("device", "w", torch.tensor([2]), torch.tensor([[9.0]]), 1)
    (frozen,) = store.freeze({"device": slice(0, 4)})
    assert frozen.rows.flatten().tolist() == [0.0, 1.0, 9.0, 3.0, 2.0]
    assert frozen.entries["best"].places.tolist() == [0, 1, 4, 3]
    assert frozen.entries["present"].rounds.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("ids", "rounds", "places", "words"),
    [
        ([0, 1], [0, 0], [0, 2], "places up to 2 of 2 rows"),
        ([0, 1], [0, 0], [-1, 1], "places up to 1 of 2 rows"),
        ([0, 4], [0, 0], [0, 1], "below 4"),
        ([1, 1], [0, 0], [0, 1], "different, rising"),
        ([-1, 1], [0, 0], [0, 1], "below 4"),
        ([0, 1], [0, -1], [0, 1], "kept in round 0"),
        ([0, 1], [0], [0, 1], "lists of equal length"),
    ],
)
def test_an_entry_that_does_not_fit_its_rows_is_refused(
    ids: list[int], rounds: list[int], places: list[int], words: str
) -> None:
    entry = Entry(ids_of(ids), ids_of(rounds), ids_of(places))
    store = Store({"device": 4})
    with pytest.raises(ValueError, match=words):
        store.thaw(Frozen("device", "w", torch.ones(2, 3), {PRESENT: entry}), slice(0, 4))
    assert not store.columns
    fitting = Entry(ids_of([0, 3]), ids_of([0, 5]), ids_of([1, 0]))
    store.thaw(Frozen("device", "w", torch.tensor([[1.0], [2.0]]), {PRESENT: fitting}), slice(0, 4))
    assert store.rounds("device", "w", torch.arange(4)).tolist() == [0, NEVER, NEVER, 5]
    assert store.get("device", "w", ids_of([0, 3]), None, 0).tolist() == [[2.0], [1.0]]


def test_memory_is_used_again() -> None:
    store = Store({"device": 10})
    for round in range(200):
        ids = torch.arange(10)[torch.arange(10) % (round % 3 + 1) == 0]
        store.put("device", "w", ids, torch.full((len(ids), 3), float(round)), round)
        store.put("device", "w", ids, torch.full((len(ids), 3), float(round)), round)
        (store.rollback if round % 7 == 6 else store.commit)()
    assert store.columns["device", "w"].capacity <= 3 * 10
    assert store.get("device", "w", torch.tensor([0]), None, 0).tolist() == [[199.0] * 3]


def test_rows_lie_in_several_segments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In memory and in files of four rows each, against a plain tensor."""
    monkeypatch.setattr(segments, "SEGMENT", 4 * WIDTH * 4)
    for folder in (None, tmp_path):
        store = Store({"device": 40}, folder=folder)
        expected = torch.zeros(40, WIDTH)
        for round in range(30):
            ids = (torch.arange(40) * 7 % 40)[round % 5 :: 3]
            rows = torch.rand(len(ids), WIDTH)
            store.put("device", "w", ids, rows, round)
            if round % 4 == 3:
                store.rollback()
            else:
                store.commit()
                expected[ids] = rows
        column = store.columns["device", "w"]
        assert len(column.segments.segments) > 3
        assert column.capacity <= 3 * 40
        kept = store.get("device", "w", torch.arange(40), None, 0)
        assert kept is not None
        assert torch.equal(kept, expected)
        out = torch.empty(3, WIDTH)
        column.read_into(column.find(torch.tensor([30, 2, 17]), 0), out)
        assert torch.equal(out, expected[[30, 2, 17]])
    assert all(path.stat().st_size == 4 * WIDTH * 4 for path in tmp_path.iterdir())


def visits_of_a_round(nodes: int) -> int:
    """The elements that two rounds of 100 nodes visit, one of which fails."""
    store = Store({"device": nodes})
    everyone = slice(0, nodes)
    ids = torch.arange(0, nodes, nodes // 100)
    rows = torch.ones(100, 1)
    for round in range(3):
        store.put("device", "w", ids + round, rows, round)
        store.columns["device", "w"].hold("best", everyone)
        store.commit()
    with Visits() as visits:
        for shift, end in ((5, store.rollback), (1, store.commit)):
            store.put("device", "w", ids + shift, rows, 3)
            store.columns["device", "w"].hold("best", everyone)
            end()
    return visits.elements


def test_a_round_costs_what_it_touches() -> None:
    assert 2000 < visits_of_a_round(10**6) == visits_of_a_round(10**4)


def test_only_holders_take_memory() -> None:
    store = Store({"device": 10**6})
    store.put("device", "w", torch.tensor([999_999, 3]), torch.tensor([[1.0], [2.0]]), 0)
    assert store.columns["device", "w"].capacity == 2
    assert store.get("device", "w", torch.tensor([3, 999_999]), None, 0).tolist() == [[2.0], [1.0]]


def test_recalled_rows_are_not_the_memory_itself() -> None:
    store = Store({"device": 2})
    given = torch.ones(2, 2)
    store.put("device", "w", torch.arange(2), given, 0)
    given.zero_()
    store.get("device", "w", torch.arange(2), None, 0).zero_()
    store.get("device", "w", torch.arange(2), torch.ones(2, 2), 0).zero_()
    assert store.get("device", "w", torch.arange(2), None, 0).tolist() == [[1.0, 1.0]] * 2


def test_any_trailing_shape_and_type_but_always_the_same() -> None:
    store = Store({"server": 1, "device": 3})
    store.put("server", "table", torch.tensor([0]), torch.ones(1, 2, 3), 0)
    store.put("device", "turn", torch.arange(3), torch.tensor([[4], [5], [6]]), 0)
    assert store.get("server", "table", torch.tensor([0]), None, 0).shape == (1, 2, 3)
    assert store.get("device", "turn", torch.tensor([2]), None, 0).tolist() == [[6]]
    with pytest.raises(ProgramError, match="use another name"):
        store.put("server", "table", torch.tensor([0]), torch.ones(1, 2, 4), 1)
    with pytest.raises(ProgramError, match=r"torch\.float32.*torch\.int64"):
        store.put("device", "turn", torch.arange(3), torch.ones(3, 1), 1)


def test_names_and_tiers_are_apart() -> None:
    store = Store({"edge": 2, "device": 2})
    for k, (tier, name) in enumerate([("edge", "w"), ("device", "w"), ("device", "v")]):
        store.put(tier, name, torch.tensor([1]), torch.full((1, 1), float(k)), k)
    kept = [("edge", "w"), ("device", "w"), ("device", "v")]
    values = [store.get(tier, name, torch.tensor([1]), None, 0).item() for tier, name in kept]
    assert values == [0, 1, 2]
    assert store.get("edge", "v", torch.tensor([0]), None, 0) is None
    assert store.rounds("edge", "v", torch.tensor([0, 1])).tolist() == [NEVER, NEVER]


@pytest.mark.parametrize("slots", [[], [1], [1, 2, 3], [1, 3, 2, 4], [4, 3, 2, 1], [0, 3, 1, 7]])
def test_rows_go_into_the_slots_named_in_any_order(slots: list[int]) -> None:
    segments = Segments(torch.empty(0, 2), nodes=8)
    segments.grow(8)
    segments.write(torch.arange(8), torch.zeros(8, 2))
    rows = torch.randn(len(slots), 2)
    where = torch.tensor(slots, dtype=torch.int64)
    segments.write(where, rows)
    expected = torch.zeros(8, 2)
    expected[where] = rows
    assert torch.equal(segments.read(torch.arange(8)), expected)
