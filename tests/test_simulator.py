"""`ask` in the simulator: who runs, what arrives, what is averaged, and every byte of it counted by
hand.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm, Experiment, Masked, Nodes, Tree, exact
from covey.data import Shards, own_parts
from covey.errors import DivergedError, ProgramError
from covey.models import linear
from covey.runs.run import Run

HEADER = 6
P = 4  # a linear model with one input and two outputs


def shards(devices: int = 5) -> Shards:
    one = (torch.ones(3, 1), torch.tensor([0, 1, 1]))
    return own_parts(train=[one] * devices, test=[one] * devices)


def start(algorithm: Algorithm, tree: Tree, **more: Any) -> Run:
    given = {"rounds": 3, "parts": ("test",), "score_every": 100, "dtype": torch.float64, **more}
    return covey.run(Experiment(algorithm, shards(tree.devices), linear(1, 2), tree, **given))


def number(me: Nodes) -> Tensor:
    """Each node's id, as a row."""
    return me.ids[:, None].double().expand(-1, P)


class Base(Algorithm):
    """Devices answer the row they got plus their number."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Tensor) -> Any:
        return w + number(me)


def test_the_mean_over_all() -> None:
    run = start(Base(), Tree.flat(5))
    before = run.w.clone()
    record = next(run)
    torch.testing.assert_close(run.w, before + 2)
    assert record.cohorts == {"device": [0, 1, 2, 3, 4]}


class Sampled(Base):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        replies = me.ask(self.device, w, sample=2)
        if len(me):
            assert replies.count.tolist() == [2]
            gathered = replies.gather()
            torch.testing.assert_close(
                gathered.rows - w, gathered.child[:, None].double().expand(-1, P)
            )
        return replies.mean()


@pytest.mark.parametrize("idle", ["skip", "train"])
def test_a_sample(idle: str) -> None:
    run = start(Sampled(), Tree.flat(5), idle=idle)
    before = run.w.clone()
    first, second = next(run), next(run)
    ids = first.cohorts["device"] + second.cohorts["device"]
    torch.testing.assert_close(run.w, before + sum(ids) / 2)
    assert len(first.cohorts["device"]) == len(second.cohorts["device"]) == 2
    size = HEADER + 8 * P
    assert first.bytes(direction="up") == 2 * size
    assert first.bytes(direction="down") == (5 if idle == "train" else 2) * size


class Each(Algorithm):
    """One value for each child, over all children; the runtime picks."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.edge, w).mean()

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        here = torch.tensor([int(i) in me.ids.tolist() for i in (0, 0, 1, 1, 1)], dtype=torch.bool)
        values = 10.0 * torch.arange(5)[here].float()
        replies = me.ask(
            self.device, w, each=(values, values.double()[:, None].expand(-1, 2)), sample=1
        )
        return replies.mean()

    def device(self, me: Nodes, w: Tensor, value: Tensor, wide: Tensor) -> Tensor:
        assert torch.equal(value, 10 * me.ids.float())
        assert torch.equal(wide, 10.0 * me.ids[:, None].double().expand(-1, 2))
        return w + value[:, None]


def test_each_child_gets_its_own_value() -> None:
    run = start(Each(), Tree.grouped([2, 3]))
    before = run.w.clone()
    record = next(run)
    assert len(record.cohorts["device"]) == 2
    torch.testing.assert_close(run.w, before + 10 * sum(record.cohorts["device"]) / 2)
    row, single, wide = HEADER + 8 * P, HEADER + 4, HEADER + 16
    # always dense, one value a child
    assert record.bytes("edge-device", "down") == 2 * (row + single + wide)


@dataclass(frozen=True)
class Fine(Base):
    """Numbers that float32 cannot hold, sent down both ways and back up."""

    kind: torch.dtype = torch.float64

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        fine = torch.full((len(me), 1), 1 + 2**-40, dtype=self.kind)
        each = torch.full((int(me.children.sum()),), 1 + 2**-40, dtype=self.kind)
        rows, numbers = me.ask(self.device, w, exact(fine), each=(each,))
        if len(me):
            assert numbers.gather().rows.unique().item() == float(fine[0])
        return rows.mean()

    def device(self, me: Nodes, w: Tensor, fine: Tensor, each: Tensor) -> Any:
        assert fine.dtype == each.dtype == self.kind
        assert torch.equal(fine[:, 0], each)
        return w, exact(fine)


@pytest.mark.parametrize(("kind", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_numbers_arrive_in_the_type_that_is_metered(kind: torch.dtype, size: int) -> None:
    """In a float32 run: a float64 takes 8 bytes and arrives whole, a float32 takes 4."""
    record = next(start(Fine(kind), Tree.flat(3), dtype=torch.float32))
    rows, numbers = 3 * (HEADER + 4 * P), 3 * (HEADER + size)
    assert record.bytes("server-device", "down") == rows + 2 * numbers
    assert record.bytes("server-device", "up") == rows + numbers


@dataclass(frozen=True)
class Odd(Base):
    """Sends numbers of another type than links carry, in one of three places."""

    place: str
    kind: torch.dtype

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        down = exact(w.to(self.kind)) if self.place == "down" else w
        each = torch.zeros(
            int(me.children.sum()), dtype=self.kind if self.place == "each" else w.dtype
        )
        return me.ask(self.device, w, down, each=(each,))[0].mean()

    def device(self, me: Nodes, w: Tensor, down: Tensor, each: Tensor) -> Any:
        return w, exact(w.to(self.kind) if self.place == "up" else w)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("place", "who"),
    [
        ("down", r"server: ask\(device\) sends"),
        ("each", r"server: ask\(device\) sends"),
        ("up", "device: device answers"),
    ],
)
def test_other_types_are_refused_before_the_first_round(
    place: str, who: str, kind: torch.dtype
) -> None:
    with pytest.raises(
        ProgramError, match=rf"^{who} {kind}, but links carry float32 and float64 only; convert it"
    ):
        start(Odd(place, kind), Tree.flat(3))


class TooFew(Base):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w, each=(torch.zeros(2),)).mean()


def test_each_needs_a_value_for_every_child() -> None:
    with pytest.raises(
        ProgramError, match="each= holds 2 values for the 0 children of 0 server nodes"
    ):
        start(TooFew(), Tree.flat(3))


class Some(Algorithm):
    """Only edge 1 asks, the others keep what they have and cost nothing."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.edge, w).mean()

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        replies = me.ask(self.device, w, where=me.ids == 1)
        assert replies.count.tolist() == [3 if i == 1 else 0 for i in me.ids.tolist()]
        return replies.mean(default=w)

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("seen", w + 1)


def test_where() -> None:
    run = start(Some(), Tree.grouped([2, 3, 1]))
    before = run.w.clone()
    record = next(run)
    torch.testing.assert_close(run.w, before + 1 / 3)
    assert record.cohorts == {"edge": [0, 1, 2], "device": [2, 3, 4]}
    assert run.rows("seen")[0].tolist() == [2, 3, 4]
    size = HEADER + 8 * P
    assert record.bytes("edge-device", "down") == record.bytes("edge-device", "up") == 3 * size
    assert record.bytes("server-edge", "down") == record.bytes("server-edge", "up") == 3 * size


class Picked(Algorithm):
    """Every edge but 1 asks its last child alone."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.edge, w).mean()

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        last = torch.zeros(int(me.children.sum()), dtype=torch.bool)
        last[torch.cumsum(me.children, 0) - 1] = True
        replies = me.ask(self.device, w, sample=last, where=me.ids != 1)
        assert replies.count.tolist() == [int(i != 1) for i in me.ids.tolist()]
        return replies.mean(default=w)

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("seen", w + 1)


@pytest.mark.parametrize("idle", ["skip", "train"])
def test_a_sample_may_say_which_children(idle: str) -> None:
    run = start(Picked(), Tree.grouped([2, 3, 1]), idle=idle)
    before = run.w.clone()
    record = next(run)
    torch.testing.assert_close(run.w, before + 2 / 3)
    assert record.cohorts == {"edge": [0, 1, 2], "device": [1, 5]}
    assert run.rows("seen")[0].tolist() == ([1, 5] if idle == "skip" else [0, 1, 5])


class Wrong(Base):
    def __init__(self, sample: Tensor) -> None:
        self.sample = sample

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w, sample=self.sample).mean()


@pytest.mark.parametrize(
    ("sample", "error"),
    [
        (torch.ones(2, dtype=torch.bool), "sample= holds 2 values for the 0 children of 0 server nodes"),
        (torch.ones(0), r"server: sample= is torch.float32; give a number, or a bool for each child"),
    ],
)  # fmt: skip
def test_a_sample_that_says_which_has_a_bool_for_every_child(sample: Tensor, error: str) -> None:
    with pytest.raises(ProgramError, match=error):
        start(Wrong(sample), Tree.flat(3))


class Tuple(Base):
    """A row, a mask of it, an exact number, nothing."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        rows, masked, numbers, nothing = me.ask(self.device, w)
        assert torch.equal(numbers.sum(), torch.full((len(me), 1), 6.0).double())
        assert nothing.sum() is None
        assert nothing.count.tolist() == [4] * len(me)
        return torch.cat(
            [rows.mean()[:, :2], masked.mean(default=torch.full_like(w, -7.0))[:, 2:]], dim=1
        )

    def device(self, me: Nodes, w: Tensor) -> Any:
        mask = torch.zeros(len(me), P, dtype=torch.bool)
        mask[:, 2] = me.ids < 2  # nobody sends the last coordinate
        return w + number(me), Masked(number(me) + 5, mask), exact(me.ids[:, None].double()), None


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("codec", "masked"), [("dense", HEADER + 1 + 8 * P), ("bitmap", None)])
def test_a_tuple_comes_back_as_a_tuple(workers: int, codec: str, masked: int | None) -> None:
    run = start(Tuple(), Tree.flat(4), workers=workers, codec=codec)
    before = run.w.clone()
    record = next(run)
    torch.testing.assert_close(
        run.w, torch.cat([before[:, :2] + 1.5, torch.tensor([[5.5, -7.0]]).double()], dim=1)
    )
    row, number_bytes = HEADER + 8 * P, HEADER + 8
    # a bitmap holds only what is under the mask
    parts = 4 * masked if masked else 2 * (HEADER + 1 + 8) + 2 * (HEADER + 1)
    assert record.bytes(direction="up") == 4 * row + parts + 4 * number_bytes


class SmallSteps(Algorithm):
    """Devices cut at 0.5, edges at 5; what is cut does not arrive."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        edges = me.ask(self.edge, w, exact(w))
        return edges.mean()

    def edge(self, me: Nodes, w: Tensor, whole: Tensor) -> Tensor:
        if len(me):
            assert (w == 0).all()
            assert torch.equal(whole[0], torch.tensor([0.1, 0.2, 0.3, 0.4]).double())
        sent = torch.tensor([[1.0, 6.0, -6.0, 5.0]]).double().expand(len(me), P)
        return me.keep("mean", me.ask(self.device, sent).mean()) * 10

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        assert w.tolist() == [[0.0, 6.0, -6.0, 0.0]] * len(me)
        return me.keep("full", torch.tensor([[0.25, -0.5, 0.75, 3.0]]).double().expand(len(me), P))

    def cut(self, tier: str, round: int = 0) -> float | None:
        return {"server": 1.0, "edge": 5.0, "device": 0.5}[tier]


def test_the_cut_is_what_the_receiver_uses() -> None:
    run = start(SmallSteps(), Tree.grouped([2, 3]), codec={"edge-device": "bitmap"})
    run.w = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).double()
    record = next(run)
    torch.testing.assert_close(run.rows("mean")[1][0], torch.tensor([0.0, 0.0, 0.75, 3.0]).double())
    torch.testing.assert_close(run.w, torch.tensor([[0.0, 0.0, 7.5, 30.0]]).double())
    assert run.rows("full")[1][0].tolist() == [0.25, -0.5, 0.75, 3.0]  # memory is not a message
    dense, half = HEADER + 8 * P, HEADER + 1 + 8 * 2
    assert {
        (link, way): record.bytes(link, way)
        for link in ("server-edge", "edge-device")
        for way in ("down", "up")
    } == {
        ("server-edge", "down"): 2 * 2 * dense,  # the row and its exact copy
        ("server-edge", "up"): 2 * dense,
        ("edge-device", "down"): 5 * half,
        ("edge-device", "up"): 5 * half,
    }
    up = record.traffic["edge-device", "up", "train"]
    assert (up.messages, up.values, up.nonzeros) == (5, 5 * P, 5 * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_of_a_flat_tree(dtype: torch.dtype) -> None:
    class Zeros(Base):
        def device(self, me: Nodes, w: Tensor) -> Tensor:
            return torch.zeros_like(w)

    size = torch.finfo(dtype).bits // 8
    dense, bitmap = (
        next(start(Zeros(), Tree.flat(5), codec=name, dtype=dtype)) for name in ("dense", "bitmap")
    )
    ways = {dense.bytes("server-device", way) for way in ("down", "up")}
    assert ways == {5 * (HEADER + size * P)}
    # no zeros: falls back to dense
    assert bitmap.bytes("server-device", "down") == 5 * (HEADER + size * P)
    assert bitmap.bytes("server-device", "up") == 5 * (HEADER + 1)
    assert bitmap.traffic["server-device", "up", "train"].nonzeros == 0


def test_scoring_has_a_lane_of_its_own() -> None:
    run = start(Base(), Tree.flat(3), score_every=1)
    record = next(run)
    assert record.bytes() == 2 * 3 * (HEADER + 8 * P)
    assert record.traffic["server-device", "down", "score"].messages == 2 * 3  # rows and a flag
    assert record.traffic["server-device", "up", "score"].bytes > 0


class Explodes(Base):
    def device(self, me: Nodes, w: Tensor) -> Tensor:
        me.keep("last", w + me.round)
        return torch.where((me.ids == 1)[:, None] & (me.round == 1), torch.inf, w + 1)


def test_a_round_that_fails_leaves_the_last_good_one() -> None:
    run = start(Explodes(), Tree.flat(3))
    next(run)
    w, totals = run.w.clone(), dict(run.meter.totals)
    kept = run.rows("last")[1].clone()
    with pytest.raises(
        DivergedError,
        match=r"round 2: the answer of device of device 1 is no longer finite \(1 of 3 nodes\)",
    ):
        next(run)
    assert torch.equal(run.w, w)
    assert torch.equal(run.rows("last")[1], kept)
    assert run.meter.totals == totals
    assert run.round == 1
    assert len(run.history) == 1


@dataclass(frozen=True)
class Noisy(Algorithm):
    """Two asks that draw: each has a path of its own."""

    first: bool = True

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        a, b = me.ask(self.device, w).mean(), me.ask(self.device, w).mean()
        return a if self.first else b

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return me.uniform("x", P)


def test_the_second_ask_has_other_draws() -> None:
    one, two, again = (start(Noisy(first), Tree.flat(3)) for first in (True, False, True))
    for run in (one, two, again):
        next(run)
    assert torch.equal(one.w, again.w)
    assert not torch.equal(one.w, two.w)


def test_the_callers_threads_come_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        next(start(Base(), Tree.flat(2)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class OneForAll(Base):
    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return w[:1]


def test_a_program_answers_one_row_per_node() -> None:
    with pytest.raises(ProgramError, match=r"shape \(1, .*for 3 nodes"):
        next(start(OneForAll(), Tree.flat(3)))


class Global(Base):
    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("global", w + 1)


def test_the_name_global_is_taken() -> None:
    with pytest.raises(ProgramError, match="global"):
        start(Global(), Tree.flat(3))


class MaskedDown(Base):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, Masked(w, w > 0)).mean()  # type: ignore[call-overload]


def test_masked_rows_go_up_only() -> None:
    with pytest.raises(ProgramError, match="Masked"):
        start(MaskedDown(), Tree.flat(3))


class Closure(Base):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(lambda me, w: w, w).mean()


def test_only_methods_can_be_asked_for() -> None:
    with pytest.raises(ProgramError, match="only its name can travel"):
        start(Closure(), Tree.flat(3))
