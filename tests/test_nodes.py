"""What a program may use: its data, memory, draws and numbers of its own."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.codecs import CODECS
from covey.data import own_parts
from covey.engine.task import Task
from covey.errors import ConfigError, ProgramError
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Exact
from covey.links.spec import LinkSpec
from covey.models import mlp
from covey.runtimes.simulator import Simulator
from covey.runtimes.spec import NodeSpec
from covey.tree import Tree
from tests.peek import end


class Nobody(Algorithm):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return w

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        return w

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return w


def simulator(batches: Any = "uniform", seed: int = 0) -> Simulator:
    pairs = [
        (torch.arange(float(n))[:, None] + 100 * n, torch.zeros(n, dtype=torch.int64))
        for n in (2, 3, 4, 5, 6)
    ]
    task = Task(
        mlp(1, 2, 2), own_parts(train=pairs, classes=2), private=("3.*",), dtype=torch.float64
    )
    dense = LinkSpec(CODECS["dense"])
    ways = itertools.product(("server-edge", "edge-device"), ("down", "up"))
    links = dict.fromkeys(ways, dense)
    spec = NodeSpec(
        Nobody(), Tree.grouped([2, 3]), task, links, task.space.initial(seed)[None], seeds=(seed,),
        batches=batches,
    )  # fmt: skip
    return Simulator(spec)


def nodes(
    ids: list[int],
    *,
    tier: str = "device",
    round: int = 0,
    path: int = 0,
    on: Simulator | None = None,
) -> Nodes:
    return Nodes(
        on or simulator(), tier, torch.tensor(ids, dtype=torch.int64), round=round, path=path
    )


def test_who_they_are() -> None:
    assert nodes([0, 1], tier="edge").children.tolist() == [2, 3]
    assert nodes([1], tier="edge").leaf is False
    assert nodes([0, 1], tier="edge").max_children == 3
    assert nodes([0, 1], tier="edge").device_ids.tolist() == [0, 1]
    assert nodes([4]).leaf is True
    assert len(nodes([3, 4])) == 2
    me = nodes([0])
    assert (me.shared, me.private) == (slice(0, 4), slice(4, 10))


def test_draws_belong_to_the_address() -> None:
    def draw(me: Nodes) -> list[Tensor]:
        return [me.uniform("a", 2), me.uniform("a", 2), me.normal("b", 3), me.batch(4).x]

    base = draw(nodes([0, 1, 2, 3, 4]))
    for a, b in zip(base, draw(nodes([3, 1])), strict=True):
        assert torch.equal(a[[3, 1]], b)
    assert not torch.equal(base[0], base[1])  # the second call of a stream
    for other in (
        nodes([0, 1, 2, 3, 4], round=1),
        nodes([0, 1, 2, 3, 4], path=5),
        nodes([0, 1, 2, 3, 4], on=simulator(seed=1)),
    ):
        assert all(not torch.equal(a, b) for a, b in zip(base, draw(other), strict=True))
    me = nodes([0, 1, 2, 3, 4])
    me.uniform("other")
    me.batch(4, stream="probe")
    # streams do not disturb each other
    assert all(torch.equal(a, b) for a, b in zip(base, draw(me), strict=True))
    assert base[0].dtype == torch.float64


def test_a_batch_holds_the_nodes_own_examples() -> None:
    batch = nodes([1, 4]).batch(50)
    assert sorted(set(batch.x[0].flatten().tolist())) == [300.0, 301.0, 302.0]
    assert set(batch.x[1].flatten().tolist()) == {600.0 + k for k in range(6)}
    assert nodes([0]).batch(None) is None


def test_cyclic_batches_go_on_where_the_last_call_stopped() -> None:
    on = simulator("cyclic")
    seen: list[list[float]] = []
    for round, ids in enumerate([[1], [0, 1], [0], [1, 4]]):
        me = nodes(ids, round=round, on=on)
        batch = me.batch(2)
        if 1 in ids:
            at = ids.index(1)
            seen.append(batch.x[at, batch.weight[at] == 1, 0].tolist())
        end(on, me, round)
        on.store.commit()
    assert seen == [[300.0, 301.0], [302.0], [300.0, 301.0]]
    turn = on.store.get("device", "_probe_turn", torch.tensor([1]), torch.zeros(1, 1).long(), 0)
    assert not turn.any()


def test_weights() -> None:
    weight = nodes([0, 4]).weight("samples")
    assert isinstance(weight, Exact)
    assert weight.rows.tolist() == [[2.0], [6.0]]
    assert nodes([0, 4]).weight("uniform") is None


def test_memory_within_and_after_a_call() -> None:
    on = simulator()
    me = nodes([1, 3], round=4, on=on)
    row = torch.ones(2, 3)
    assert me.recall("a") is None
    assert me.recall("a", default=row) is row
    assert me.age("a").tolist() == [[-1], [-1]]
    kept = me.keep("a", 2 * row)
    assert torch.equal(me.recall("a", default=row), kept)  # visible to the call itself
    assert nodes([1], on=on).recall("a") is None  # and to nobody else before it ends
    end(on, me, 4)
    later = nodes([0, 1], round=6, on=on)
    assert later.recall("a", default=torch.zeros(2, 3)).tolist() == [[0.0] * 3, [2.0] * 3]
    assert later.recall("a", default=torch.zeros(2, 3), since=5).tolist() == [[0.0] * 3] * 2
    assert later.age("a").tolist() == [[-1], [2]]
    with pytest.raises(ProgramError, match=r"keep\('a'\) got 3 rows for 2 nodes"):
        me.keep("a", torch.ones(3, 3))


def test_a_number_for_all_or_one_for_each() -> None:
    me = nodes([4, 0])
    assert me.own(0.5) == 0.5
    column = me.own([0.1, 0.2, 0.3, 0.4, 0.5])
    assert isinstance(column, Tensor)
    assert column.tolist() == [[0.5], [0.1]]
    assert nodes([1], tier="edge").own([1.0, 2.0]).tolist() == [[2.0]]
    with pytest.raises(ConfigError, match=r"2 values for 5 nodes of tier device: \[1, 2\]"):
        me.own([1, 2])


def test_a_number_for_shared_columns_and_one_for_private_ones() -> None:
    me = nodes([4, 0])
    assert me.by_part(0.5, 0.5) == 0.5
    row = me.by_part(0.5, 0.1)
    assert isinstance(row, Tensor)
    assert row.tolist() == [[0.5] * 4 + [0.1] * 6]
    whole = simulator()
    whole.task.space.shared = whole.task.space.width
    assert nodes([0], on=whole).by_part(0.5, 0.1) == 0.5
    whole.task.space.shared = 0
    assert nodes([0], on=whole).by_part(0.5, 0.1) == 0.1


def test_initial_rows_are_the_same_for_all_and_may_be_changed() -> None:
    on = simulator()
    me = nodes([0, 3], on=on)
    rows = me.initial()
    assert torch.equal(rows[0], rows[1])
    rows.zero_()
    assert torch.equal(me.initial()[0], on.start[0])
    assert on.start.any()


def test_one_row_per_node_is_sent() -> None:
    with pytest.raises(ProgramError, match=r"edge: ask\(device\) got 3 rows for 2 nodes"):
        nodes([0, 1], tier="edge").ask(Nobody().device, torch.ones(3, 2))
    with pytest.raises(ProgramError, match="a device asked for device, but it has no children"):
        nodes([0, 1]).ask(Nobody().device, torch.ones(2, 2))


def test_losses_of_a_batch_and_of_everything() -> None:
    me, draw = nodes([1, 4, 0]), torch.Generator().manual_seed(0)
    rows = torch.randn(3, 10, generator=draw, dtype=torch.float64)
    tally = me.task.evaluate(rows, "train", me.ids)
    torch.testing.assert_close(me.loss(rows, None), (tally.loss / tally.count)[:, None])
    batch = me.batch(4)
    assert batch is not None
    assert torch.equal(me.loss(rows, batch)[1:2], nodes([4]).loss(rows[1:2], nodes([4]).batch(4)))


def test_rounds_go_on_for_the_nodes_that_have_more() -> None:
    me = nodes([0, 1], tier="edge")
    assert [(k, going.tolist()) for k, going in me.rounds(2)] == [
        (0, [[True], [True]]),
        (1, [[True], [True]]),
    ]
    lists = [(k, going.tolist()) for k, going in me.rounds([1, 3])]
    assert lists == [(0, [[True], [True]]), (1, [[False], [True]]), (2, [[False], [True]])]
    swapped = [going.tolist() for _, going in nodes([1, 0], tier="edge").rounds([1, 3])]
    assert swapped[1] == [[True], [False]]  # a node's own number, whoever stands beside it
    nobody = nodes([], tier="edge")
    # as many for everybody, so that paths agree
    assert [going.shape for _, going in nobody.rounds([1, 3])] == [(0, 1)] * 3


def test_rounds_of_the_wrong_number_of_nodes() -> None:
    with pytest.raises(ConfigError, match=r"3 values for 2 nodes of tier edge"):
        list(nodes([0], tier="edge").rounds([1, 2, 3]))
