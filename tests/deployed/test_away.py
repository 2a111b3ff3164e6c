"""Children that are late or away: what they still owe, and what is no lie of theirs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc")

from covey.deployed.node.disk import Disk
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.missed import FollowedOrders, PendingOrders
from covey.deployed.node.node_rows import open_order, seal_order
from covey.deployed.node.server_run import server_run
from covey.deployed.operate.progress import Progress
from covey.deployed.transport import ask as asks
from covey.deployed.transport.answers import REMEMBERED, SentKeys
from covey.deployed.transport.grpc_transport import Conversation
from covey.deployed.transport.local_transport import LocalTransport, SeatLost
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import Answer, AskKey, Blob, Handler, Patience
from covey.deployed.transport.wire import Reply, Welcome, key_sent
from covey.runtimes.alone.envelope import Pieces
from tests.deployed.tree import Family, Gated, Silent, check_replay, echo, family, key, until
from tests.laws.cases import CASES, experiment
from tests.laws.test_deployed import slow

PATIENCE = Patience(seconds=0.01, quorum=1)
FEEDBACK = {"name": "int8", "update": True, "feedback": True}


def noted(handled: list[str], gate: threading.Event | None = None) -> Handler:
    """A handler that notes the keys it gets, once a gate is open."""

    def handle(asked: AskKey, common: bytes, own: bytes) -> bytes:
        if gate is not None:
            gate.wait(10)
        handled.append(f"{asked.lane} {asked.round}")
        return b"done"

    return handle


def dying(killed: threading.Event) -> Handler:
    """A handler whose process ends within its first request."""

    def handle(asked: AskKey, common: bytes, own: bytes) -> bytes:
        killed.wait(10)
        raise SeatLost

    return handle


def reply(asked: AskKey) -> Reply:
    return Reply(key=key_sent(asked))


def test_a_request_that_is_sent_twice_may_be_answered_twice() -> None:
    owed = SentKeys()
    owed.send(0, key(1))
    assert owed.lie(reply(key(1)), [0]) is None
    owed.send(0, key(1))  # on another stream
    for _ in range(2):
        assert owed.lie(reply(key(1)), [0]) is None
        owed.answered(0, key(1))
    assert "a second answer" in str(owed.lie(reply(key(1)), [0]))
    assert "was not asked" in str(owed.lie(reply(key(2)), [0]))


def test_a_child_that_slept_long_has_told_no_lie(plain: Family) -> None:
    """Asks that were never sent to it are not counted among those that it may answer."""
    gate = threading.Event()
    handled: list[str] = []
    plain.dial(0, handler=noted(handled, gate))
    plain.dial(1)
    plain.wait(0, 1)
    own = {0: b"", 1: b""}
    for number in range(REMEMBERED + 5):
        plain.parent.ask(key(number), b"", own, PATIENCE)
    gate.set()
    assert plain.parent.ask(key(999), b"", own)[0].status == "answered"
    assert handled == ["train 0", "train 1", "train 999"]
    assert plain.parent.refused["dropped"] == 0


def test_an_ask_while_a_process_is_welcomed_comes_after_the_orders(
    plain: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seat is taken before its process has the welcome, and may be asked in between."""
    own = {0: b""}
    plain.parent.owe(key(0, "order"), own)
    welcomed = threading.Event()
    send = Conversation.send

    async def held(conversation: Conversation, message: Any) -> None:
        if isinstance(message.head, Welcome):
            await asyncio.to_thread(welcomed.wait)
        await send(conversation, message)

    monkeypatch.setattr(Conversation, "send", held)
    handled: list[str] = []
    plain.dial(0, handler=noted(handled))
    until(lambda: 0 in plain.parent.members())
    asking = threading.Thread(target=plain.parent.ask, args=(key(7), b"", own))
    asking.start()
    until(lambda: key(7) in plain.parent.asks.open)
    welcomed.set()
    asking.join()
    assert handled == ["order 0", "train 7"]


def test_an_order_is_owed_by_who_was_away(plain: Family) -> None:
    """It comes before the next request; what else was asked meanwhile does not come."""
    plain.dial(1)
    plain.wait(1)
    own = {0: b"", 1: b""}
    for number in range(2):
        for lane in ("train", "order"):
            answers = plain.parent.ask(key(number, lane), b"", own, PATIENCE)
            assert answers[0].status == "absent"
    handled: list[str] = []
    served = plain.dial(0, handler=noted(handled))
    plain.wait(0, 1)
    plain.parent.ask(key(7), b"", own)
    assert handled == ["order 0", "order 1", "train 7"]
    assert not plain.parent.asks.pending
    served.end()
    plain.dial(0, handler=noted(handled))
    plain.wait(0, 1)
    plain.parent.ask(key(8), b"", own)
    assert handled[3:] == ["train 8"]


def test_an_order_that_is_owed_and_asked_takes_one_place_of_the_window(plain: Family) -> None:
    gate = threading.Event()
    handled: list[str] = []
    order = key(1, "order")
    plain.parent.owe(order, {0: b""})
    asking = threading.Thread(target=plain.parent.ask, args=(order, b"", {0: b""}))
    asking.start()
    until(lambda: order in plain.parent.asks.open)
    plain.dial(0, handler=noted(handled, gate))
    plain.wait(0)
    sent = plain.parent._answers.sent.by_seat
    until(lambda: 0 in sent and sent[0][order] == 2)
    gate.set()
    asking.join()
    assert set(handled) == {"order 1"}
    assert not plain.parent.table.streams[0].unanswered[0]


def test_an_owed_order_keeps_what_is_owed_alone(plain: Family) -> None:
    """The requests of seats that have followed it, and all answers, are forgotten."""
    plain.dial(1)
    plain.wait(1)
    order = key(1, "order")
    answers = plain.parent.ask(order, b"", {0: b"first", 1: b"second"}, PATIENCE)
    assert answers[1].data == b"1:+second"
    owed = plain.parent.asks.pending[order]
    assert owed.own == {0: b"first"}
    assert owed.answers == {}
    plain.dial(0)
    until(lambda: not plain.parent.asks.pending)


def test_an_order_comes_again_after_a_broken_stream(plain: Family) -> None:
    gate = threading.Event()
    handled: list[str] = []
    first = plain.dial(0, handler=noted(handled, gate))
    plain.dial(1)
    plain.wait(0, 1)
    answers = plain.parent.ask(key(1, "order"), b"", {0: b"", 1: b""}, PATIENCE)
    assert answers[0].status == "late"
    stream = plain.parent.table.streams[0]
    plain.parent._loop.call_soon_threadsafe(stream.close, "UNAVAILABLE", "a cut")
    until(lambda: first.port.joined == 2)
    gate.set()
    until(lambda: not plain.parent.asks.pending)
    assert set(handled) == {"order 1"}
    assert plain.parent.refused["dropped"] == 0


class Sockets:
    """A parent and processes that dial it."""

    def __init__(self, folder: Path) -> None:
        self.family = Family(folder, secure=False)
        self.transport = self.family.parent
        self.close = self.family.close

    def take(self, seat: int, handler: Handler) -> None:
        self.leave(seat)
        self.family.dial(seat, handler=handler)
        until(lambda: seat in self.transport.members())

    def leave(self, seat: int) -> None:
        for served in self.family.served:
            if seat in served.port.seats.values():
                served.end()
        until(lambda: seat not in self.transport.members())


class Objects:
    """A parent and nodes of this process."""

    def __init__(self, _: Path) -> None:
        self.transport = LocalTransport()
        self.take = self.transport.take
        self.leave = self.transport.leave
        self.close = self.transport.close


@pytest.fixture(params=[Objects, Sockets])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sockets | Objects]:
    out = request.param(tmp_path)
    yield out
    out.close()


def test_a_late_training_comes_again_to_a_process_that_was_killed(tree: Sockets | Objects) -> None:
    """Before the orders that came after it; a training that was never sent does not come."""
    killed = threading.Event()
    tree.take(0, dying(killed))
    tree.take(1, echo)
    own = {0: b"own", 1: b""}
    answers = tree.transport.ask(key(1), b"common", own, Patience(0.2, 1))
    assert answers[0].status == "late"
    killed.set()
    until(lambda: 0 not in tree.transport.members())
    for later in (key(2, "order"), key(3), key(4, "score")):
        assert tree.transport.ask(later, b"", own, PATIENCE)[0].status == "absent"
    handled = []

    def handle(asked: AskKey, common: bytes, own: bytes) -> bytes:
        handled.append((asked.lane, asked.round, bytes(common), own))
        return b"done"

    tree.take(0, handle)
    assert tree.transport.ask(key(5), b"", own)[0].status == "answered"
    assert handled[0] == ("train", 1, b"common", b"own")
    assert [entry[:2] for entry in handled[1:]] == [("order", 2), ("train", 5)]


def test_a_late_training_that_was_answered_does_not_come_again(tree: Sockets | Objects) -> None:
    gate = threading.Event()
    handled: list[str] = []
    tree.take(0, noted(handled, gate))
    tree.take(1, echo)
    own = {0: b"", 1: b""}
    assert tree.transport.ask(key(1), b"", own, Patience(0.2, 1))[0].status == "late"
    gate.set()
    assert tree.transport.ask(key(2), b"", own)[0].status == "answered"
    tree.leave(0)
    tree.take(0, noted(handled))
    tree.transport.ask(key(3), b"", own)
    assert handled == ["train 1", "train 2", "train 3"]


def test_a_late_training_comes_before_what_was_asked_after_it(plain: Family) -> None:
    """It takes a place of the window, as it did before its stream broke."""
    gate = threading.Event()
    handled: list[str] = []
    first = plain.dial(0, handler=noted(handled, gate))
    plain.dial(1)
    plain.wait(0, 1)
    own = {0: b"", 1: b""}
    states = [plain.parent.ask(key(n), b"", own, PATIENCE)[0].status for n in range(3)]
    assert states == ["late", "late", "absent"]
    stream = plain.parent.table.streams[0]
    plain.parent._loop.call_soon_threadsafe(stream.close, "UNAVAILABLE", "a cut")
    until(lambda: first.port.joined == 2)
    assert plain.parent.ask(key(3), b"", own, PATIENCE)[0].status == "absent"
    gate.set()
    until(lambda: not plain.parent.asks.pending)
    plain.parent.ask(key(4), b"", own)
    assert handled == ["train 0", "train 1", "train 4"]  # each once
    assert plain.parent.refused["dropped"] == 0


def test_a_parent_keeps_the_last_late_trainings(
    plain: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children that never come back do not fill its disk."""
    monkeypatch.setattr(asks, "_LATE", 1)
    gate = threading.Event()
    plain.dial(0, handler=noted([], gate))
    plain.dial(1)
    plain.wait(0, 1)
    own = {0: b"", 1: b""}
    for number in (1, 2):
        assert plain.parent.ask(key(number), b"", own, PATIENCE)[0].status == "late"
    assert [owed.round for owed in plain.parent.asks.pending] == [2]
    gate.set()


def test_a_long_request_of_a_late_training_waits_in_a_file(tmp_path: Path) -> None:
    """Of a child that never comes back a parent holds no model in its memory."""
    long = bytes(range(256)) * 1024
    with family(tmp_path, secure=False, keeps=tmp_path) as tree:
        killed = threading.Event()
        tree.dial(0, handler=dying(killed))
        tree.dial(1)
        tree.wait(0, 1)
        pieces = Pieces([long, b"end"])
        tree.parent.ask(key(1), pieces, {0: b"own", 1: b""}, Patience(0.2, 1))
        kept = tree.parent.asks.pending[key(1)]
        until(lambda: isinstance(kept.common, Stored))
        assert kept.own.keys() == {0}
        killed.set()
        tree.wait(1)
        got = []

        def handle(asked: AskKey, common: bytes, own: bytes) -> bytes:
            got.append((bytes(common), own))
            return b""

        tree.dial(0, handler=handle)
        until(lambda: not tree.parent.asks.pending)
        assert got == [(long + b"end", b"own")]


def order(number: int, name: str) -> AskKey:
    return replace(key(number, "order"), program=name)


def test_orders_that_are_of_no_use_any_more_are_not_owed(plain: Family) -> None:
    """Those that only read, and all but the last of those that write models."""
    plain.dial(1)
    plain.wait(1)
    own = {0: b"", 1: b""}
    names = ["write", "hold", "read", "freeze", "write", "release"]
    for number, name in enumerate(names):
        plain.parent.ask(order(number, name), b"", own, PATIENCE)
    assert [owed.program for owed in plain.parent.asks.pending] == ["hold", "write", "release"]
    handled: list[str] = []
    plain.dial(0, handler=noted(handled))
    until(lambda: not plain.parent.asks.pending)
    assert handled == ["order 1", "order 4", "order 5"]


def test_an_order_that_failed_late_is_owed_still(
    plain: Family, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk; it comes again when the seat is taken again."""
    fails = Gated(seal_order({"error": ["CheckpointError", "the disk is full"]}))
    first = plain.dial(0, handler=fails)
    plain.dial(1)
    plain.wait(0, 1)
    own = {0: b"", 1: b""}
    assert plain.parent.ask(order(1, "hold"), b"", own, PATIENCE)[0].status == "late"
    fails.gate.set()
    until(lambda: "order_failed: device0 has not followed" in caplog.text)
    first.end()
    handled: list[str] = []
    plain.dial(0, handler=noted(handled))
    until(lambda: not plain.parent.asks.pending)
    assert handled == ["order 1"]


class Gone(Silent):
    """A transport whose seat is empty, and whose ask waits."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.end = threading.Event()
        self.there = frozenset({0})

    def ask(
        self, key: AskKey, common: Blob, own: Mapping[int, bytes], *more: Any
    ) -> Mapping[int, Answer]:
        self.there = frozenset()
        self.asked.set()
        self.end.wait(10)
        return {0: Answer("absent")}

    def members(self) -> frozenset[int]:
        return self.there


def test_the_status_tells_who_is_gone_while_an_ask_waits() -> None:
    progress = Progress("server", "server")
    gone = Gone()
    transport = progress.transport({0: "edge0"}, gone)
    transport.members()
    assert progress.as_dict()["seats"][0]["state"] == "waiting"
    asking = threading.Thread(target=transport.ask, args=(key(), b"", {0: b""}))
    asking.start()
    gone.asked.wait(10)
    assert progress.as_dict()["seats"][0]["state"] == "empty"
    assert 'covey_seat_taken{process="server",seat="edge0"} 0.0' in progress.prometheus()
    gone.end.set()
    asking.join()


def test_a_child_that_was_late_may_come_back(local: LocalTree) -> None:
    """Its disk is ahead of what the parent has received, in training and in scores."""
    case = CASES["PFedMe"]
    local.patience = {"server": Patience(0.2, 7)}
    run = server_run(experiment(case, score_every=1, rounds=2), local)
    next(run)
    server = local.nodes["server", 0]
    device = local.nodes["device", 2]
    behind = device.database.last_key
    local.transport_above("device", 2).take(2, slow(device.answer, 0.5))
    next(run)
    until(lambda: device.database.last_key != behind)
    assert server.refusal(2, device.database.last_key) is None
    assert "its disk is behind" in str(server.refusal(2, None))


def test_an_order_that_comes_again_is_not_followed_again(local: LocalTree) -> None:
    """The row that is held stays that of the first time, though the device has trained since."""
    case = CASES["PFedMe"]
    run = server_run(experiment(case, score_every=9, rounds=2), local)
    next(run)
    run.runtime.commit()  # so that the order is not of an earlier round than the next training
    device = local.nodes["device", 2]
    orders = []

    def watched(asked: AskKey, common: bytes, own: bytes) -> bytes:
        if asked.lane == "order":
            orders.append((asked, common, own))
        return device.answer(asked, common, own)

    local.transport_above("device", 2).take(2, watched)
    run.runtime.hold("chosen personal", 0, [("device", "personal")])
    (held,) = device.own.rows("personal", "chosen personal")
    next(run)
    header, _ = open_order(device.answer(*orders[0]))
    assert header["error"] is None
    (again,) = device.own.rows("personal", "chosen personal")
    (present,) = device.own.rows("personal", "present")
    assert held.row is not None
    assert again.row is not None
    assert present.row is not None
    assert torch.equal(again.row, held.row)
    assert not torch.equal(again.row, present.row)


def test_an_order_is_owed_though_the_parent_was_started_again(local: LocalTree) -> None:
    """The device holds the row that it had when the order was given, and nothing owes it then."""
    case = CASES["PFedMe"]
    one = experiment(case, score_every=9, rounds=4)
    run = server_run(one, local)
    next(run)
    (before,) = local.nodes["device", 2].own.rows("personal", "present")
    run.runtime.commit()
    local.nodes["server", 0].asks.patience = Patience(0.05, 7)
    local.transport_above("device", 2).leave(2)
    run.runtime.hold("chosen personal", 0, [("device", "personal")])
    run.runtime.hold("final personal", 0, [("device", "personal")])
    assert not local.nodes["device", 2].own.rows("personal", "chosen personal")
    local.patience["server"] = Patience(60, 7)  # nobody is late
    again = server_run(one, local)  # all nodes are made anew, from their disks
    next(again)
    device = local.nodes["device", 2]
    (present,) = device.own.rows("personal", "present")
    for label in ("chosen personal", "final personal"):
        (held,) = device.own.rows("personal", label)
        assert held.row is not None
        assert present.row is not None
        assert before.row is not None
        assert torch.equal(held.row, before.row)
        assert not torch.equal(held.row, present.row)
    again.runtime.commit()
    assert not PendingOrders(local.nodes["server", 0].database).facts()["owed orders"]


@pytest.mark.parametrize("seed", [2, 5])
def test_a_choice_that_a_kill_interrupted_holds_nothing(local: LocalTree, seed: int) -> None:
    """A device is away when rows are held, and back when the killed server runs the round again.

    With its answer the server may choose otherwise. All hold what the run has chosen then.
    """
    one = experiment(CASES["PFedMe"], score_every=1, rounds=3, seed=seed)
    run = server_run(one, local)
    next(run)
    local.patience["server"] = Patience(0.05, 7)
    local.nodes["server", 0].asks.patience = local.patience["server"]
    local.transport_above("device", 2).leave(2)
    next(run)
    assert local.nodes["server", 0].database.fact("owed orders")
    again = server_run(one, local)  # the round was not good
    next(again)
    again.runtime.commit()
    check_replay(again, local, one)


@pytest.mark.parametrize(("before", "after"), [(False, False), (False, True), (True, False)])
def test_a_choice_is_undone_once_where_others_may_answer(
    local: LocalTree, before: bool, after: bool
) -> None:
    """The server had a quorum before it was killed, or has one after."""
    one = experiment(CASES["PFedMe"], score_every=1, rounds=3)
    quorum = {"server": Patience(9.0, 7)}
    if before:
        local.patience = quorum
    next(server_run(one, local))
    local.patience = {}
    if after:
        local.patience = quorum
    rollbacks: tuple[int, ...] = ()
    if before or after:
        rollbacks = (0,)
    for _ in range(2):
        run = server_run(one, local)
        assert local.nodes["server", 0].epoch.rollbacks == rollbacks
    next(run)
    run.runtime.commit()
    server_run(one, local)
    assert local.nodes["server", 0].epoch.rollbacks == rollbacks


@pytest.mark.parametrize("between", [False, True])
def test_a_round_that_is_run_again_knows_who_was_missing(local: LocalTree, between: bool) -> None:
    """A device had an ask and lost it. The round is rolled back, or the next one (`between`).

    An edge wrote that the device was late, and learns that it was absent when it answers again.
    """
    local.patience = {"edge": Patience(0.05, 1)}
    one = experiment(CASES["HierFAVG"], score_every=1, rounds=4, codec=FEEDBACK)
    run = server_run(one, local)
    next(run)
    lost = Gated()  # it answers nobody: the tree is made anew by then
    local.transport_above("device", 2).take(2, lost)
    next(run)
    if between:
        run.runtime.commit()
        run = server_run(one, local)
        lost.gate.set()
        next(run)
    run.runtime.rollback()
    again = server_run(one, local)
    lost.gate.set()
    next(again)
    again.runtime.commit()
    check_replay(again, local, one)


def test_late_scores_correct_what_was_trained(local: LocalTree) -> None:
    """A device says with its scores that it has trained, though what it answered was refused.

    The scores of its edge come too late.
    """
    quorum = {"server": Patience(0.3, 2), "edge": Patience(9.0, 1)}
    local.patience = quorum
    one = experiment(CASES["HierFAVG"], score_every=1, rounds=4, codec=FEEDBACK)
    run = server_run(one, local)
    next(run)
    edge = next(node for node in local.nodes.values() if node.place.tier == "edge")
    device = local.nodes["device", edge.asks.seats[0]]
    gate = threading.Event()

    def garbled(asked: AskKey, common: bytes, own: bytes) -> bytes:
        answer = device.answer(asked, common, own)
        if asked.lane == "train":
            return b""
        return answer

    def late(asked: AskKey, common: bytes, own: bytes) -> bytes:
        answer = edge.answer(asked, common, own)
        if asked.lane == "score":
            gate.wait(10)
        return answer

    above = local.transport_above("device", device.place.number)
    above.take(device.place.number, garbled)
    local.transport_above("edge", edge.place.number).take(edge.place.number, late)
    next(run)
    gate.set()
    above.take(device.place.number, device.answer)
    next(run)
    run.runtime.commit()
    check_replay(run, local, one)


def test_owed_orders_are_the_last_ones_of_each_label(tmp_path: Path) -> None:
    """Children with the same request share it; what a child has followed is forgotten."""
    disk = Disk(tmp_path / "node.sqlite")
    orders = PendingOrders(disk)
    orders.add(key(0, "order"), "chosen global", {0: b"old", 2: b"old"}, before=0)
    for number in range(1, 40):
        requests = {0: b"same", 1: b"same", 2: b"other"}
        orders.add(key(number, "order"), "chosen personal", requests, before=0)
    orders.add(key(40, "order"), "chosen personal", {2: b"last"}, before=0)
    rounds = [(entry[0]["round"], entry[3]) for entry in disk.fact("owed orders")]
    assert rounds == [(0, [0, 2]), (39, [0, 1]), (40, [2])]
    again = PendingOrders(disk)
    assert again.facts() == orders.facts()
    again.settle(2)
    assert [entry[3] for entry in again.facts()["owed orders"]] == [[0], [0, 1]]
    disk.seat_children({"a": 0, "b": 1, "c": 2})
    disk.seat_children({"b": 0, "d": 1})
    assert [entry[3] for entry in disk.fact("owed orders")] == [[0]]
    disk.close()


def test_the_last_owed_order_of_a_good_round_stays(tmp_path: Path) -> None:
    """The round of a later one may still be rolled back."""
    disk = Disk(tmp_path / "node.sqlite")
    orders = PendingOrders(disk)
    for number, before in ((1, 1), (2, 2), (3, 2), (4, 4), (5, 4)):
        orders.add(key(number, "order"), "chosen personal", {0: b"hold"}, before)
    assert [entry[0]["round"] for entry in disk.fact("owed orders")] == [3, 5]
    disk.close()


def test_an_owed_choice_stays_where_a_later_one_is_rolled_back(local: LocalTree) -> None:
    """The device holds the row of the last choice that counts, though it was away for it."""
    personal = [("device", "personal")]
    one = experiment(CASES["PFedMe"], score_every=9, rounds=6)
    run = server_run(one, local)
    next(run)
    run.runtime.hold("chosen personal", 0, personal)
    next(run)
    (chosen,) = local.nodes["device", 2].own.rows("personal", "present")
    local.patience["server"] = Patience(0.05, 7)
    local.nodes["server", 0].asks.patience = local.patience["server"]
    local.transport_above("device", 2).leave(2)
    run.runtime.hold("chosen personal", 0, personal)
    next(run)
    run.runtime.hold("chosen personal", 0, personal)  # of a round that never becomes good
    local.patience["server"] = Patience(60, 7)  # nobody is late any more
    again = server_run(one, local)
    assert local.nodes["server", 0].epoch.rollbacks == (2,)
    next(again)
    again.runtime.commit()
    next(again)
    (held,) = local.nodes["device", 2].own.rows("personal", "chosen personal")
    assert held.round == chosen.round == 1
    assert held.row is not None
    assert chosen.row is not None
    assert torch.equal(held.row, chosen.row)


def test_an_order_before_the_last_one_of_its_label_is_not_followed(tmp_path: Path) -> None:
    """However many orders a child has followed since, or a round that was run again."""
    disk = Disk(tmp_path / "node.sqlite")
    followed = FollowedOrders(disk)
    first = key(0, "order")
    followed.add("chosen global", first)
    for number in range(100):
        assert not followed.includes("chosen personal", key(number, "order"))
        followed.add("chosen personal", key(number, "order"))
    again = FollowedOrders(disk)
    assert again.includes("chosen global", first)
    assert all(again.includes("chosen personal", key(number, "order")) for number in range(100))
    other = replace(key(99, "order"), program="release")  # of the same round
    assert not again.includes("chosen personal", other)
    again.add("chosen personal", other)
    assert again.includes("chosen personal", key(99, "order"))
    assert not again.includes("chosen personal", replace(key(50, "order"), attempt=1))
    assert not again.includes("chosen personal", replace(key(0, "order"), run="another"))
    disk.close()


def test_a_seat_that_has_long_been_empty_is_not_waited_for(plain: Family) -> None:
    patience = Patience(seconds=1.0, quorum=1)
    plain.dial(0)
    plain.wait(0)
    own = {0: b"", 1: b""}
    seconds = []
    for number in range(3):
        began = time.monotonic()
        answers = plain.parent.ask(key(number), b"", own, patience)
        seconds.append(time.monotonic() - began)
        assert [answers[seat].status for seat in own] == ["answered", "absent"]
    assert seconds[0] >= 1.0
    assert max(seconds[1:]) < 0.9
    late = plain.dial(1)
    plain.wait(0, 1)
    assert plain.parent.ask(key(3), b"", own, patience)[1].status == "answered"
    late.end()
    plain.wait(0)
    began = time.monotonic()
    assert plain.parent.ask(key(4), b"", own, patience)[1].status == "absent"
    assert time.monotonic() - began >= 0.3  # it has only just gone
