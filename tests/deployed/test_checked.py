"""A bad answer never fails a round: it is dropped, counted, and the round goes on."""

import io
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import covey
from covey import Algorithm, Nodes, Rows
from covey.codecs import CODECS
from covey.deployed.node import node_rows
from covey.deployed.node.checked import ChildCheck, OrderCheck, child_error
from covey.deployed.node.checked_facts import (
    Rehearsed,
    check,
    header_limit,
    nodes_of,
    rows_limit,
    subtrees,
)
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.missed import remembered
from covey.deployed.node.node_rows import NodeRow, open_order, seal_order
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import finish, missing_of, server_run
from covey.deployed.operate.events import EventLog
from covey.deployed.operate.progress import Progress
from covey.deployed.transport import local_transport
from covey.deployed.transport.local_transport import LocalTransport
from covey.deployed.transport.transport import AskKey, Diverged, Handler, Patience
from covey.engine.measures.metrics import COUNT, HOLDS, LOSS, SQUARED
from covey.errors import DecodeError, DivergedError, ProgramError, TransportError
from covey.links.packed import Packed
from covey.runtimes.alone.envelope import open_sealed, seal
from covey.runtimes.facts import SubtreeFacts
from covey.tree import Tree
from tests.deployed.attacks import with_value
from tests.deployed.tree import family, key, until
from tests.given import drained
from tests.laws.cases import CASES, PLAIN, SHARDS, Case, differences, experiment, state
from tests.laws.test_deployed import rows_of
from tests.laws.test_loopback import Failing, everything

ALL = "COVEY_TEST_ALL" in os.environ
MAY_MISS = [name for name, case in PLAIN.items() if case.algorithm.idle_trains]


def assert_simulated(run: covey.Run, case: Case, **changes: Any) -> covey.Run:
    """The run has the bits of the simulator's, which is given."""
    simulated = drained(covey.run(experiment(case, **changes)))
    assert differences(everything(simulated), everything(run)) == []
    return simulated


def nan(data: bytes) -> bytes:
    """An answer with a NaN, where it has rows."""
    _, messages = open_sealed(data)
    if not messages or messages[0].schema.kind != "rows":
        return b"garbage"
    return with_value(data, math.nan)


class Liar:
    """A node whose answers are changed while `lies` is positive; it counts down."""

    def __init__(self, handler: Handler, lies: int, change: Callable[[bytes], bytes] = nan) -> None:
        self.handler = handler
        self.lies = lies
        self.change = change
        self.runs = True
        """Whether the node below runs the program for an answer that is changed."""

    def __call__(self, key: AskKey, common: bytes, own: bytes) -> bytes:
        if key.lane == "order" or not self.lies:
            return self.handler(key, common, own)
        self.lies -= 1
        if not self.runs:
            return b"garbage"
        return self.change(self.handler(key, common, own))


def lying(local: LocalTree, tier: str, number: int, lies: int) -> tuple[LocalTransport, Liar]:
    """Let a node lie; what reaches it, and the liar."""
    transport = local.transport_above(tier, number)
    liar = Liar(local.nodes[tier, number].answer, lies)
    transport.take(number, liar)
    return transport, liar


# Without a quorum


@pytest.mark.parametrize("name", list(PLAIN) if ALL else ["Scaffold", "SFedHP", "DemLearn"])
def test_a_node_that_lies_twice_is_asked_again(name: str, local: LocalTree) -> None:
    """A device and the node above it; the bits are those of the undisturbed run."""
    run = covey.run(experiment(CASES[name]), runtime=local)
    lied = [(lying(local, "device", 5, 2)[0], 5)]
    above = run.runtime.tree.tiers[-2]
    if above != "server":
        lied.append((lying(local, above, 1, 2)[0], 1))
    drained(run)
    refused = [len(transport.refused(seat)) for transport, seat in lied]
    assert refused == [2] * len(lied)
    assert_simulated(run, CASES[name])


def test_a_seat_is_empty_after_three_lies_and_the_round_waits(local: LocalTree) -> None:
    run = covey.run(experiment(PLAIN["FedAvg"]), runtime=local)
    transport, liar = lying(local, "device", 5, 100)
    thread = threading.Thread(target=next, args=(run,), daemon=True)
    thread.start()
    until(lambda: 5 not in transport.members())
    assert liar.lies == 97
    assert "not finite, of a child that does not say" in transport.refused(5)[0]
    assert thread.is_alive()
    transport.take(5, local.nodes["device", 5].answer)
    thread.join(10)
    simulated = covey.run(experiment(PLAIN["FedAvg"]))
    next(simulated)
    assert differences(state(simulated), state(run)) == []


def test_rows_that_are_read_are_checked(local: LocalTree) -> None:
    """The answers to orders too: here a row that is read is not finite, once."""
    run = covey.run(experiment(PLAIN["PFedMe"]), runtime=local)
    next(run)
    device = local.nodes["device", 3]
    transport = local.transport_above("device", 3)
    lies = [1]

    def answer(key: AskKey, common: bytes, own: bytes) -> bytes:
        data = device.answer(key, common, own)
        if not lies:
            return data
        lies.clear()
        header, (kept,) = open_order(data)
        assert kept.row is not None
        bad = NodeRow(kept.tier, kept.number, kept.name, kept.label, kept.round, kept.row / 0)
        return seal_order(header, [bad])

    transport.take(3, answer)
    rows = run.rows("personal")
    assert transport.refused(3) == ["the row 'personal' is not finite."]
    simulated = covey.run(experiment(PLAIN["PFedMe"]))
    next(simulated)
    assert all(map(torch.equal, rows, simulated.rows("personal")))


def without_reports(data: bytes) -> bytes:
    """An answer that leaves out the scores of its devices, also in its sums."""
    header, messages = open_sealed(data)
    header["facts"]["reports"] = []
    return with_scores(lambda row: row.zero_())(seal(header, messages))


def with_scores(change: Callable[[torch.Tensor], Any]) -> Callable[[bytes], bytes]:
    """Changes the sums in an answer, where it has scores."""

    def changed(data: bytes) -> bytes:
        header, messages = open_sealed(data)
        if not messages or messages[0].schema.kind != "exact":
            return data
        (packed,) = messages
        row, _ = CODECS["dense"].decode(packed.messages[0], limit=2**20)
        change(row)
        return seal(header, [Packed(packed.schema, (CODECS["dense"].encode(row),))])

    return changed


def with_report(column: int, value: float) -> Callable[[bytes], bytes]:
    """Changes a figure of every device in what is reported."""

    def changed(data: bytes) -> bytes:
        header, messages = open_sealed(data)
        for name, _, _, figures in header["facts"]["reports"]:
            if name == "global/test":
                figures[0][column] = value
        return seal(header, messages)

    return changed


def without_some(data: bytes) -> bytes:
    header, messages = open_sealed(data)
    reports = header["facts"]["reports"]
    header["facts"]["reports"] = [entry for entry in reports if entry[0] != "global/test"]
    return seal(header, messages)


FALSE_SCORES = {
    "negative": (with_scores(torch.Tensor.neg_), "negative"),
    "others": (with_scores(lambda row: row.mul_(2)), "not those of what devices report"),
    "no report": (without_some, "not those of what devices report"),
    "a negative square": (with_report(SQUARED, -1.0), "negative errors"),
    "a loss": (with_report(LOSS, -5.0), "not those of what devices report"),
    "an infinite loss": (with_report(LOSS, math.inf), "not those of what devices report"),
    "many examples": (with_report(COUNT, 2.0**40), "counts no examples"),
    "half an example": (with_report(COUNT, 0.5), "counts no examples"),
    "a holder": (with_report(HOLDS, math.nan), "counts no examples"),
}


def regression() -> dict[str, Any]:
    """The changes of an experiment whose devices predict numbers."""
    draw = torch.Generator().manual_seed(0)
    xs = [torch.randn(20, 3, generator=draw) for _ in range(SHARDS.devices)]
    shards = covey.data.own([(x, x.sum(1, keepdim=True)) for x in xs])
    return {"data": shards, "model": nn.Linear(3, 1), "loss": "squared_error"}


OF_CLASSES = [(name, False) for name in FALSE_SCORES if name != "a negative square"]


@pytest.mark.parametrize(("name", "numbers"), [*[(one, True) for one in FALSE_SCORES], *OF_CLASSES])
def test_scores_that_cannot_be_true_are_refused(name: str, numbers: bool, local: LocalTree) -> None:
    """They would end the run, in a root or in the file of the devices' figures."""
    case = PLAIN["FedAvg"]
    changes: dict[str, Any] = {"score_every": 1, "rounds": 1}
    if numbers:
        changes |= regression()
    run = covey.run(experiment(case, **changes), runtime=local)
    transport, liar = lying(local, "device", 5, 99)
    change, text = FALSE_SCORES[name]
    lies = [1, 1]

    def twice(data: bytes) -> bytes:
        changed = change(data)
        if changed == data or not lies:
            return data
        lies.pop()
        return changed

    liar.change = twice
    drained(run)
    reasons = transport.refused(5)
    assert len(reasons) == 2
    assert text in reasons[0]
    assert_simulated(run, case, **changes)


def test_a_server_that_hears_no_scores_says_so(local: LocalTree) -> None:
    run = covey.run(experiment(PLAIN["FedAvg"], score_every=1), runtime=local)
    for number in range(run.runtime.tree.size("device")):
        _, liar = lying(local, "device", number, 99)
        liar.change = without_reports
    text = r"round 1: nobody has told the scores of any device, .*: device0, a phone, device2, .*;"
    local.nodes["server", 0].database.seat_children({"a phone": 1})
    with pytest.raises(TransportError, match=rf"{text} .* covey ctl evict NAME\.$"):
        next(run)


# With a quorum


@pytest.mark.parametrize("name", MAY_MISS if ALL else ["PFedMe", "HierFAVG"])
def test_a_quorum_goes_on_without_a_liar_and_its_replay_is_equal(
    name: str, local: LocalTree
) -> None:
    """Device 2 lies: in the first round its memory has moved, in the second it has not."""
    case = CASES[name]
    asker = experiment(case).tree.tiers[-2]
    local.patience = {asker: Patience(20.0, 1)}
    changes: dict[str, Any] = {"score_every": 4, "rounds": 4}
    run = server_run(experiment(case, **changes), local)
    next(run)
    _, liar = lying(local, "device", 2, 1)
    next(run)
    liar.lies, liar.runs = 1, False
    next(run)
    assert liar.lies == 0
    drained(run)
    finish(run)
    missing = missing_of(local.nodes["server", 0].database)
    told = [(entry.number, entry.round, entry.status) for entry in missing]
    assert sorted(told) == [(2, 1, "bad"), (2, 1, "late"), (2, 2, "bad")]
    assert told.index((2, 1, "late")) > 0  # a later answer has told
    again = drained(replay(experiment(case, **changes), missing))
    assert differences(rows_of(again), rows_of(run)) == []
    assert [one.models for one in run.history] == [one.models for one in again.history]
    rows = rows_of(run)
    local.close()
    plain = drained(covey.run(experiment(case, **changes)))
    assert differences(rows_of(plain), rows) != []


def test_a_device_that_diverged_is_dropped_where_that_is_said(local: LocalTree) -> None:
    """Its row is that of the round before, the round goes on, and its replay is equal."""
    case = Case("Failing", Failing(how="diverged"))
    local.patience = {"edge": Patience(20.0, 1)}
    run = server_run(experiment(case), local)
    for (tier, _), node in local.nodes.items():
        node.drops_diverged = tier == "edge"
    drained(run)
    finish(run)
    (reason,) = local.transport_above("device", 5).refused(5)
    assert "its training diverged: \"round 2: the kept 'personal' of device 5" in reason
    missing = missing_of(local.nodes["server", 0].database)
    assert [(entry.number, entry.round, entry.status) for entry in missing] == [(5, 1, "bad")]
    rows = rows_of(run)
    local.close()
    again = drained(replay(experiment(case), missing))
    assert differences(rows_of(again), rows) == []


def test_a_device_that_diverged_ends_the_round_where_others_are_no_quorum(local: LocalTree) -> None:
    case = Case("Failing", Failing(how="diverged"))
    local.patience = {"edge": Patience(20.0, 8)}
    run = server_run(experiment(case), local)
    for (tier, _), node in local.nodes.items():
        node.drops_diverged = tier == "edge"
    next(run)
    with pytest.raises(DivergedError, match=r"seat 5: its training diverged: .*no quorum"):
        next(run)


def diverged(seat: int, data: bytes) -> str | None:
    """A check that takes some bytes for a training that diverged."""
    return Diverged("its training diverged") if data == b"diverged" else None


@pytest.mark.parametrize("sockets", [True, False])
def test_devices_that_diverge_are_not_evicted_and_end_the_ask_without_a_quorum(
    folder: Path, sockets: bool
) -> None:
    """None of them is asked again, and each may diverge in many rounds."""
    asked: Counter[int] = Counter()
    saying: set[int] = set()

    def handler(seat: int) -> Handler:
        def handle(*_: Any) -> bytes:
            asked[seat] += 1
            return b"diverged" if seat in saying else b"good"

        return handle

    with ExitStack() as stack:
        transport: Any = LocalTransport()
        if sockets:
            pytest.importorskip("grpc")
            tree = stack.enter_context(family(folder, count=3, secure=False))
            transport = tree.parent
            for seat in range(3):
                tree.dial(seat, handler=handler(seat))
            tree.wait(0, 1, 2)
        else:
            for seat in range(3):
                transport.take(seat, handler(seat))
            stack.callback(transport.close)
        own = dict.fromkeys(range(3), b"")
        saying.add(1)
        for number in range(4):
            answers = transport.ask(key(number), b"", own, Patience(20, 2), diverged)
            assert [answers[seat].status for seat in own] == ["answered", "bad", "answered"]
        saying.update({0, 1, 2})
        with pytest.raises(DivergedError, match="its training diverged; the others are no quorum"):
            transport.ask(key(4), b"", own, Patience(20, 2), diverged)
        saying.clear()
        answers = transport.ask(key(5), b"", own, None, diverged)
        assert {answer.status for answer in answers.values()} == {"answered"}
        assert max(asked.values()) <= 6


class SameError(ChildCheck):
    """A check that takes every answer for the same error."""

    most = None

    def examine(self, seat: int, data: bytes) -> bool:
        return self._ends_round(seat, ("ProgramError", "a fault"))


@pytest.mark.parametrize("sockets", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_an_error_of_most_ends_an_ask_though_the_others_were_evicted_for_it(
    folder: Path, watched: bool, sockets: bool
) -> None:
    """Seat 0 is evicted for it before seat 1 answers: nobody waits for a quorum of both."""
    answers: list[Any] = []
    with ExitStack() as stack:
        transport: Any = LocalTransport()
        if sockets:
            pytest.importorskip("grpc")
            tree = stack.enter_context(family(folder, count=2, secure=False))
            transport = tree.parent

        def late(*_: Any) -> bytes:
            until(lambda: len(transport.members()) == 1)
            return b"error"

        if sockets:
            tree.dial(0, handler=lambda *_: b"error")
            tree.dial(1, handler=late)
            tree.wait(0, 1)
        else:
            transport.take(0, lambda *_: b"error")
            transport.take(1, late)
            stack.callback(transport.close)
        if watched:  # as in every process
            names = {0: "device0", 1: "device1"}
            transport = Progress("server", "server").transport(names, transport)
        check = SameError()
        check.asked = 2

        def ask() -> None:
            answers.append(transport.ask(key(), b"", {0: b"", 1: b""}, Patience(20, 2), check))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(10)
        assert [answers[0][seat].status == "answered" for seat in (0, 1)] == [False, True]


def test_a_liar_is_asked_again_where_others_are_no_quorum(local: LocalTree) -> None:
    local.patience = {"server": Patience(20.0, 8)}
    run = covey.run(experiment(PLAIN["PFedMe"]), runtime=local)
    transport, _ = lying(local, "device", 5, 2)
    drained(run)
    assert len(transport.refused(5)) == 2
    assert_simulated(run, PLAIN["PFedMe"])


# What is honest


@dataclass(frozen=True)
class Large(Algorithm):
    """Rows are finite, but the difference between one of them and what came down is not."""

    sends: ClassVar[str] = "its model"

    def server(self, me: Nodes, w: Rows) -> Rows:
        me.ask(self.device, torch.full_like(w, 3e38)).mean()
        return w

    def device(self, me: Nodes, w: Rows) -> Rows:
        large = (me.ids == 5) & (me.round == 1)
        return torch.where(large[:, None], -3e38, 0 * w)


def test_a_row_that_a_link_makes_infinite_is_a_divergence(local: LocalTree) -> None:
    """Its sender says so: it is not taken for a lie."""
    case = Case("Large", Large(), {"codec": {"name": "bitmap", "update": True}})
    run = covey.run(experiment(case), runtime=local)
    next(run)
    text = "round 2: the answer of device of device 5 is not finite as its link sends it"
    with pytest.raises(DivergedError, match=text):
        next(run)
    assert local.transport_above("device", 5).refused(5) == []


def test_a_norm_bound_is_of_training_alone(local: LocalTree) -> None:
    run = covey.run(experiment(PLAIN["PFedMe"], score_every=1), runtime=local)
    server = local.nodes["server", 0]
    bounds = {5: 1e-3}
    server.norm_bounds = bounds
    thread = threading.Thread(target=next, args=(run,), daemon=True)
    thread.start()
    transport = local.transport_above("device", 5)
    until(lambda: len(transport.refused(5)) == 3)
    assert "more than norm_bound = 0.001" in transport.refused(5)[0]
    bounds[5] = 100.0
    transport.take(5, local.nodes["device", 5].answer)
    thread.join(10)
    simulated = covey.run(experiment(PLAIN["PFedMe"], score_every=1))
    next(simulated)
    assert differences(state(simulated), state(run)) == []


# What is counted


def test_a_child_that_lies_is_counted_evicted_and_let_in_again(folder: Path) -> None:
    """Over sockets: the status screen, the metrics and the log name the seat and the reason."""
    pytest.importorskip("grpc")
    pytest.importorskip("cryptography")
    stream = io.StringIO()
    with family(folder, count=2) as tree, EventLog("server", stream).library():
        progress = Progress("server", "server")
        names = {0: "device0", 1: "device1"}
        transport = progress.transport(names, tree.parent, tree.parent.evicted)
        bad = [b"bad", b"bad", b"bad", b"good"]
        tree.dial(0)
        liar = tree.dial(1, handler=lambda *_: bad.pop(0))
        tree.wait(0, 1)
        out: list[Any] = []

        def reason(seat: int, data: bytes) -> str | None:
            return "a lie" if data == b"bad" else None

        def ask() -> None:
            out.append(transport.ask(key(), b"", {0: b"", 1: b""}, None, reason))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        until(lambda: 1 in tree.parent.evicted())
        until(lambda: told(progress)["device1"]["state"] == "evicted")
        assert told(progress)["device1"]["asks"] == {"bad": 3}
        assert told(progress)["device1"]["bad_reason"] == "a lie"
        assert progress.as_dict()["waits_for"] == ["device1"]
        metrics = progress.prometheus()
        assert 'covey_asks_total{process="server",seat="device1",status="bad"} 3.0' in metrics
        assert 'covey_seat_evicted{process="server",seat="device1"} 1.0' in metrics
        liar.thread.join(10)
        tree.parent.admit("device1")
        tree.dial(1, handler=lambda *_: bad.pop(0))
        thread.join(10)
        assert out[0][1].data == b"good"
        assert told(progress)["device1"]["state"] == "waiting"
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    lies = [event for event in events if event["event"] == "bad_answer"]
    assert [(event["seat"], event["reason"]) for event in lies] == [("device1", "a lie")] * 3
    assert any(event["event"] == "evicted" and event["seats"] == ["device1"] for event in events)


def told(progress: Progress) -> dict[str, Any]:
    return {seat["seat"]: seat for seat in progress.as_dict()["seats"]}


def test_over_sockets_a_quorum_does_not_count_liars(folder: Path) -> None:
    """One of three lies: it is left out at once. Two of three lie: they are asked again."""
    pytest.importorskip("grpc")

    def reason(seat: int, data: bytes) -> str | None:
        return "a lie" if data == b"bad" else None

    with family(folder, count=3, secure=False) as tree:
        lies = {1: 1, 2: 0}

        def answer(seat: int) -> Callable[..., bytes]:
            def handle(*_: Any) -> bytes:
                lies[seat] -= 1
                return b"bad" if lies[seat] >= 0 else b"good"

            return handle

        tree.dial(0)
        for seat in (1, 2):
            tree.dial(seat, handler=answer(seat))
        tree.wait(0, 1, 2)
        own = dict.fromkeys(range(3), b"")
        patience = Patience(seconds=20, quorum=2)
        statuses = [
            one.status for one in tree.parent.ask(key(1), b"", own, patience, reason).values()
        ]
        assert statuses == ["answered", "bad", "answered"]
        lies.update({1: 1, 2: 1})
        statuses = [
            one.status for one in tree.parent.ask(key(2), b"", own, patience, reason).values()
        ]
        assert statuses == ["answered"] * 3
        assert tree.parent.refused["bad"] == 3


# Facts


@dataclass(frozen=True)
class Late(Algorithm):
    """A model that devices keep from the second round on, and that is scored then."""

    sends: ClassVar[str] = "its model"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        if me.round > 0:
            me.keep("late", w + 1)
        return w


def test_a_model_that_is_first_kept_in_a_later_round_is_scored_from_then_on(
    local: LocalTree,
) -> None:
    case = Case("Late", Late())
    run = drained(covey.run(experiment(case, score_every=1), runtime=local))
    simulated = drained(covey.run(experiment(case, score_every=1)))
    assert [list(record.models) for record in run.history][:2] == [["global"], ["global", "late"]]
    assert differences(everything(simulated), everything(run)) == []


@dataclass(frozen=True)
class Once(Algorithm):
    """A model that devices below edges keep in the second round alone."""

    sends: ClassVar[str] = "its model"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.edge, w).mean()

    def edge(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        if me.round == 1:
            me.keep("once", w + 1)
        return w


def test_a_node_that_is_made_again_knows_what_it_kept_in_an_earlier_round(
    folder: Path, local: LocalTree
) -> None:
    case = Case("Once", Once())
    run = server_run(experiment(case, rounds=4, score_every=1), local)
    for _ in run:
        for tier, number in list(local.nodes):
            if tier != "server":
                local.restart(tier, number)
    finish(run)
    assert (folder / "device0" / "models" / "once.safetensors").exists()


Header = dict[str, Any]


def with_kept(*entry: Any) -> Callable[[Header], None]:
    return lambda header: header["kept"].append(["device", *entry])


def with_fact(name: str, value: Any) -> Callable[[Header], None]:
    return lambda header: header["facts"].__setitem__(name, value)


LIES: dict[str, Callable[[Header], None]] = {
    "a type": with_kept("evil", "no such type", [3]),
    "dimensions": with_kept("evil", "float32", [0, 2**53, 2**53]),
    "a name": with_kept("\ud800", "float32", [3]),
    "another shape": with_kept("personal", "float32", [3]),
    "traffic": with_fact("traffic", [["server-device", "up", "train", *[2**53] * 5]] * 2000),
    "bytes": with_fact("node_bytes", [["device", "up", [2] * 2000, [2**53] * 2000]]),
    "cohorts": with_fact("cohorts", {"device": [2**70]}),
    "a note": with_fact("notes", [["device", "loss", [math.nan], 0.5, 0.5, 1]]),
    "a note's name": with_fact("notes", [["device", "\ud800", [0.5], 0.5, 0.5, 1]]),
    "gradients": with_fact("gradients", math.inf),
    "reports": with_fact("reports", [["global/test", "device", [2], [[math.nan]]]]),
    "needs": with_fact("needs", {"evil": []}),
    "missing": lambda header: header.update(missing=[[0, "train", 7, "device", 2, "late"]]),
    "ended": lambda header: header.update(ended=[["key"]]),
    "number": lambda header: header.update(number=2**70),
    "a seat": lambda header: header.update(seat=3),
    "a key": lambda header: header.update(key="key"),
    "an error": lambda header: header.update(error="evil"),
    "length": lambda header: header.update(more=[[]] * 200_000),
}


def changed_by(change: Callable[[Header], None]) -> Callable[[bytes], bytes]:
    """Changes the header of an answer."""

    def changed(data: bytes) -> bytes:
        header, messages = open_sealed(data)
        change(header)
        return seal(header, messages)

    return changed


def test_a_header_with_anything_false_is_dropped_and_its_sender_struck(
    local: LocalTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lie in every field, one after the other: the bits are those of the undisturbed run."""
    monkeypatch.setattr(local_transport, "STRIKES", 1_000)
    run = covey.run(experiment(PLAIN["PFedMe"]), runtime=local)
    transport, liar = lying(local, "device", 2, len(LIES))
    lies = list(LIES.values())
    liar.change = lambda data: changed_by(lies.pop())(data)
    drained(run)
    assert len(transport.refused(2)) == len(LIES)
    assert_simulated(run, PLAIN["PFedMe"])


def test_a_child_adds_no_model_to_a_run(local: LocalTree) -> None:
    """A name that no rehearsal keeps is not learned, and does not go on to the tiers above."""
    run = covey.run(experiment(CASES["SFedHP"], score_every=1), runtime=local)
    width = run.runtime.task.space.width
    _, liar = lying(local, "device", 2, 99)
    liar.change = changed_by(with_kept("evil", "float32", [width]))
    drained(run)
    assert not [name for _, name in run.runtime.kept() if name == "evil"]
    assert_simulated(run, CASES["SFedHP"], score_every=1)


def fills_its_header(header: Header) -> None:
    """As many notes as a device may send; as JSON each letter of their names has six bytes."""
    facts = header["facts"]
    for number in range(140):
        facts["notes"].append(["device", f"{number}" + "é" * 290, [0.5], 0.5, 0.5, 1])


def test_a_device_cannot_make_the_answer_of_its_edge_too_long(
    local: LocalTree, caplog: pytest.LogCaptureFixture
) -> None:
    """Notes that no rehearsal has go no further than to the edge, which says so once."""
    run = covey.run(experiment(CASES["SFedHP"]), runtime=local)
    edge = local.transport_above("edge", 0)
    for number in local.nodes["edge", 0].asks.seats:
        _, liar = lying(local, "device", number, 99)
        liar.change = changed_by(fills_its_header)
    drained(run)
    assert edge.refused(0) == []
    simulated = assert_simulated(run, CASES["SFedHP"])
    assert [record.notes for record in simulated.history] == [r.notes for r in run.history]
    assert caplog.text.count("note_dropped: 0") == 1


def test_scores_of_two_children_cannot_overflow(local: LocalTree) -> None:
    def huge(data: bytes) -> bytes:
        header, messages = open_sealed(data)
        (packed,) = messages
        row = torch.full((packed.schema.width,), 1.7e308, dtype=torch.float64)
        return seal(header, [Packed(packed.schema, (CODECS["dense"].encode(row),))])

    class Scorer(Liar):
        def __call__(self, key: AskKey, common: bytes, own: bytes) -> bytes:
            if key.lane == "train":
                return self.handler(key, common, own)
            return super().__call__(key, common, own)

    run = covey.run(experiment(PLAIN["FedAvg"], score_every=1, rounds=1), runtime=local)
    for seat in (2, 3):
        liar = Scorer(local.nodes["device", seat].answer, 1, huge)
        local.transport_above("device", seat).take(seat, liar)
    drained(run)
    assert "beyond 1e+290" in local.transport_above("device", 2).refused(2)[0]
    assert_simulated(run, PLAIN["FedAvg"], score_every=1, rounds=1)


SUBTREE = subtrees(Tree.grouped([2, 3]), "edge")[1]
GOOD: dict[str, Any] = {
    "facts": {
        "traffic": [["edge-device", "up", "train", 1, 2, 3, 4, 5]], "node_bytes": [["device", "up", [2, 4], [10, 0]]],
        "cohorts": {"device": [2, 3]}, "notes": [["device", "loss", [0.5], 0.5, 0.5, 1]], "gradients": 4.0,
        "reports": [["m/test", "device", [3], [[1.0, math.nan]]]], "needs": {"personal": ["head"]},
    },
    "kept": [["device", "personal", "float32", [3]], ["edge", "_lost", "float64", []]],
    "number": 7,
    "missing": [[0, "train", 2**63, "device", 4, "late"]],
    "ended": [["key", [[0, "train", 7, "device", 4, "bad"]]]],
}  # fmt: skip


def rehearsed() -> Rehearsed:
    return Rehearsed(
        links=("server-edge", "edge-device"),
        widths={("device", "m/test"): 2},
        needs={"personal": {"head", "body"}},
        templates={("device", "personal"): torch.zeros(0, 3)},
        residuals={("device", "_lost edge-device up device 0"): torch.zeros(0, 3)},
    )


def test_good_facts_pass() -> None:
    check(GOOD, SUBTREE, rehearsed())


BAD: dict[str, list[Any]] = {
    "traffic": [
        [["server-device", "up", "train", 1, 2, 3, 4, 5]],
        [["edge-device", "up", "train", 1, 2, 3, 4]],
        [["edge-device", "up", "train", 1, 2, 3, 4, -5]],
        [["edge-device", "up", "train", 1, 2, 3, 4, 5.0]],
        [["edge-device", "sideways", "train", 1, 2, 3, 4, 5]],
        [["edge-device", "up", "order", 1, 2, 3, 4, 5]],
        [["edge-device", "up", "train", 2**50, 2, 3, 4, 5]],
        [["edge-device", "up", "train", 1, 2, 3, 4, 5]] * 2,
        {"edge-device": 1},
        None,
    ],
    "node_bytes": [
        [["device", "up", [1], [10]]],
        [["device", "up", [2], [10, 11]]],
        [["device", "sideways", [2], [10]]],
        [["server", "up", [0], [10]]],
        [["device", "up", [2], [2**70]]],
        [["device", "up", [True], [1]]],
        [["device", "up", [2], [2**50]]],
        [["device", "up", [2, 2], [1, 1]]],
        [["device", "up", [2], [1]], ["device", "up", [3], [1]]],
    ],
    "cohorts": [{"device": [5]}, {"server": [0]}, {"device": 2}, [["device", [2]]], {"device": ["2"]}],
    "notes": [
        [["device", "loss", [math.nan], 0.5, 0.5, 1]],
        [["device", "loss", [], 0.5, 0.5, 1]],
        [["device", "loss", [0.5], math.inf, 0.5, 1]],
        [["device", "loss", [0.5], 0.5, 0.5, 0]],
        [["device", 3, [0.5], 0.5, 0.5, 1]],
        [["moon", "loss", [0.5], 0.5, 0.5, 1]],
        [["device", "loss", ["0.5"], 0.5, 0.5, 1]],
        [["device", "loss", [1e308, 1e308], 0.5, 0.5, 1]],
        [["device", "loss", [0.5], 0.5, 1e308, 1]],
        [["device", "loss", [0.5] * 65, 0.5, 0.5, 65]],
        [["device", "loss", [0.5], 0.5, 0.5, 1]] * 2,
        [["device", "\x1b[2J", [0.5], 0.5, 0.5, 1]],
        [["device", "n" * 301, [0.5], 0.5, 0.5, 1]],
        [["device", "\ud800", [0.5], 0.5, 0.5, 1]],
    ],
    "gradients": [-1.0, math.nan, "4", None, True, 2**60, 1e308],
    "reports": [
        [["m/test", "device", [], []]],
        [["m/test", "device", [3, 3], [[1.0, 2.0], [1.0, 2.0]]]],
        [["m/test", "device", [3], [[1.0, 2.0]]], ["m/test", "device", [3], [[1.0, 2.0]]]],
        [["m/test", "device", [3], [[1.0]]]],
        [["m/other", "device", [3], [[1.0, 2.0]]]],
        [[["m/test"], "device", [3], [[1.0, 2.0]]]],
        [["m/test", "device", [1], [[1.0, 2.0]]]],
        [["m/test", "device", [3, 3], [[1.0, 2.0]]]],
        [["m/test", "device", [3], [["a", 2.0]]]],
        [["m/test", "device", [3], [1.0]]],
    ],
    "needs": [{"personal": ["tail"]}, {"other": ["head"]}, {"personal": "head"}, {"personal": [[]]},
              {"other": []}, {"personal": {"head": 1}}],
    "kept": [
        [["device", "personal", "float64", [3]]],
        [["device", "personal", "float32", [4]]],
        [["device", "other", "float32", [2**40, 2**40]]],
        [["device", "other", "float32", [-1]]],
        [["device", "other", "float32", [1] * 9]],
        [["device", "other", "float32", [0, 2**53, 2**53]]],
        [["device", "other", "no such type", [3]]],
        [["device", "other", ["float32"], [3]]],
        [["device", "_lost edge-device up device 0", "float64", [3]]],
        [["server", "other", "float32", [1]]],
        [["device", f"n{number}", "float32", []] for number in range(1001)],
    ],
    "missing": [
        [[0.5, "train", 7, "device", 4, "late"]],
        [[0, "train", 7, "device", 5, "late"]],
        [[0, "train", 7, "device", 4, "answered"]],
        [[0, "order", 7, "device", 4, "late"]],
        [[0, "train", 2**64, "device", 4, "late"]],
        [[0, "train", 7, "device", 4]],
        [[0, "train", 7, "edge", 1, "late"]],
        [[0, "train", 7, "device", 4, "late"]] * 5_000,
    ],
    "ended": [[["key", [[0, "train", 7, "device", 4, "late"]] * 100]] * 60, [["k" * 30_000, []]], [[["key"], []]], [1], [["key", []]] * 65, "key", ["key"], [["key", 1]], [["key", [1]]]],
    "number": [-1, 2**60, 1.0, True, "1", None, []],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_bad_facts_are_refused(name: str, value: Any) -> None:
    header = json.loads(json.dumps(GOOD))
    where = header["facts"] if name in header["facts"] else header
    where[name] = value
    with pytest.raises(DecodeError):
        check(header, SUBTREE, rehearsed())
    del where[name]
    with pytest.raises(DecodeError, match=f"a message without '{name}'"):
        check(header, SUBTREE, rehearsed())


def test_what_passes_can_be_added_up() -> None:
    """The largest facts that pass, of every device of a large tree."""
    facts = json.loads(json.dumps(GOOD["facts"]))
    facts["notes"] = [["device", "loss", [1e290] * 64, 1e290, 1e290, 64]]
    facts["gradients"] = float(2**53)
    check(GOOD | {"facts": facts}, SUBTREE, rehearsed())
    both = SubtreeFacts(Tree.grouped([2, 3]))
    for _ in range(100):
        both.merge(facts)
    played = both.played(None, None, {}, {})
    assert played.gradients[0] == 100 * 2**53
    assert played.notes[0]["device"]["loss"].mean == pytest.approx(1e290)


def longest_facts(subtree: Any, rehearsed: Rehearsed) -> Header:
    """Facts of a subtree, each as long as it may be."""
    tiers = list(subtree)
    reports: list[Any] = []
    for (tier, name), width in rehearsed.widths.items():
        figures = [[-1.2345678901234567e-300] * width]
        reports += [[name, tier, [number], figures] for number in subtree.get(tier, ())]
    sums = [1.2345678901234567e280 * 2.0 ** (-54 * power) for power in range(20)]
    notes = [[tier, name, sums, *sums[:2], 64] for tier, name in rehearsed.notes if tier in tiers]
    missing = []
    for level, tier in enumerate(tiers[1:]):
        for number in subtree[tier]:
            entry = [2**53, "train", 2**64 - 1, tier, number, "absent"]
            missing += [entry] * (256 * 2**level)
    counted = [[tier, way, list(subtree[tier]), [2**40] * len(subtree[tier])] for tier in tiers
               for way in ("down", "up")]  # fmt: skip
    facts = {
        "traffic": [["edge-device", "up", "train", 1, 2, 3, 4, 5]],
        "node_bytes": counted,
        "cohorts": {tier: list(ids) for tier, ids in subtree.items()},
        "notes": notes,
        "gradients": 4.0,
        "reports": reports,
        "needs": {"personal": ["head"]},
    }
    ended = [["key", missing]]
    return {"facts": facts, "kept": [], "number": 7, "missing": missing, "ended": ended}


def test_the_longest_facts_of_children_fit_into_the_header_of_their_parent() -> None:
    """Whatever passes the check of every child, also where the names have no ASCII letters."""
    tree = Tree.grouped([2, 3])
    rehearsal = Rehearsed(
        links=("edge-device",),
        widths={("device", "é" * 300): 4, ("edge", "m/share"): 1},
        needs={"personal": {"head"}},
        notes={("device", "ü" * 300), ("device", "loss"), ("edge", "loss")},
    )
    parent = {"region": range(0, 1), "edge": range(0, 2), "device": range(0, 5)}
    children = [{"edge": range(0, 1), "device": range(0, 2)},
                {"edge": range(1, 2), "device": range(2, 5)}]  # fmt: skip
    facts = SubtreeFacts(tree)
    missing = [[2**53, "train", 2**64 - 1, "edge", number, "absent"] for number in range(2)] * 256
    for child in children:
        header = longest_facts(child, rehearsal)
        assert len(json.dumps(header)) < header_limit(child, rehearsal)
        check(header, child, rehearsal)
        unknown = [["device", f"{number}", [0.5], 0.5, 0.5, 1] for number in range(20_000)]
        header["facts"]["notes"] += unknown
        facts.merge(rehearsal.believed(header["facts"]))
        facts.asked("edge", torch.tensor(list(child["edge"]) * 10_000))
        missing += header["missing"] + header["ended"][0][1]
    passed = {**GOOD, "facts": facts.as_dict(), "kept": [], "missing": missing}
    passed["ended"] = remembered([["key", missing]] * 2, nodes_of(parent))
    check(passed, parent, rehearsal)
    assert len(json.dumps(passed)) < header_limit(parent, rehearsal)


def test_a_parent_takes_as_many_ended_asks_as_a_child_sends() -> None:
    """Also where every device was away in a hundred asks of every training."""
    nodes = sum(map(len, SUBTREE.values()))
    away = [[0, "train", 7, "device", number, "absent"] for number in SUBTREE["device"]] * 100
    ended = remembered([[f"key {number}", away] for number in range(32)], nodes)
    assert ended[-1][0] == "key 31"
    check(GOOD | {"ended": ended, "missing": away}, SUBTREE, rehearsed())


FINE: dict[str, Any] = {"error": None, "missing": [], "ended": [], "number": 3, "unreached": []}
ROW = NodeRow("device", 3, "personal", "present", 0, torch.ones(3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"number": 1}, "a fact of node 1"),
        ({"tier": "server"}, "the tier 'server'"),
        ({"name": "other"}, "the row 'other', asked for 'personal'"),
        ({"row": torch.ones(4)}, "of shape [4] of torch.float32, expected [3]"),
        ({"row": torch.ones(3, dtype=torch.float64)}, "of torch.float64, expected"),
        ({"row": torch.full((3,), math.nan)}, "is not finite"),
        ({"row": None}, "without values"),
        ({"round": "1"}, "without a name, a label or a round"),
        ({"round": 2**70}, "without a name, a label or a round"),
        ({"name": "\ud800"}, "asked for 'personal'"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, Any], text: str) -> None:
    arguments = {"name": "personal", "label": "present"}
    templates = {("device", "personal"): torch.zeros(0, 3)}
    reads = OrderCheck("read", arguments, {1: SUBTREE}, templates)
    assert reads(1, seal_order(FINE, [ROW])) is None
    bad = NodeRow(**{**vars(ROW), **change})
    reason = reads(1, seal_order(FINE, [bad]))
    assert reason is not None
    assert text in reason
    assert "twice" in str(reads(1, seal_order(FINE, [ROW, ROW])))
    others = OrderCheck("read", {**arguments, "part": ["device", 0, 3]}, {1: SUBTREE}, templates)
    assert "device 3, which was not asked for" in str(others(1, seal_order(FINE, [ROW])))
    held = OrderCheck("hold", arguments, {1: SUBTREE}, templates)
    assert reads.most is None
    assert held.most is not None
    assert held.most < 2**23  # it has no rows
    assert "rows in the answer" in str(held(1, seal_order(FINE, [ROW])))
    for unreached in ([["server", 0]], [["device", 1]], [3], 3, [["device"]], [["device", 3]] * 9):
        assert held(1, seal_order({**FINE, "unreached": unreached})) is not None
    for lie in ({"missing": BAD["missing"][1]}, {"ended": BAD["ended"][2]}, {"number": -1}):
        assert held(1, seal_order({**FINE, **lie})) is not None
    assert held(1, seal_order({**FINE, "unreached": [["device", 3]]})) is None
    assert held(1, seal_order({"error": ["DivergedError", "why"]})) is None
    assert held.failed == {1}
    assert "[[[" not in str(held(1, seal({"error": 3}, [])))


def packed_with_size(size: Any) -> bytes:
    """Two rows, where the first says that it takes other bytes than it does."""
    data = seal_order(FINE, [ROW, replace(ROW, number=4)])
    return data.replace(b"[3], 12]", f"[3], {size}]".encode(), 1)


@pytest.mark.parametrize("size", ["-2", "99", '""', "[]", "{}"])
def test_the_bytes_of_a_row_are_those_that_are_left(size: str) -> None:
    freezes = OrderCheck("freeze", {}, {1: SUBTREE}, {})
    with pytest.raises(DecodeError, match=r"a row of .* bytes where 24 are left"):
        open_order(packed_with_size(size))
    assert "where 24 are left" in str(freezes(1, packed_with_size(size)))


def test_rows_cannot_overlap() -> None:
    """A negative size let any number of rows lie in the same bytes."""
    heads = []
    for number in range(1_000):
        heads.append(["device", 3, "personal", f"a {number}", 0, ["float32", [3], 12]])
        heads.append(["device", 3, "personal", f"b {number}", 0, ["float32", [0], -12]])
    head = json.dumps([*heads, heads[0]]).encode()
    data = len(head).to_bytes(4, "little") + head + bytes(12)
    with pytest.raises(DecodeError, match="a row of -12 bytes where 0 are left"):
        node_rows.unpack(data)


def test_a_node_has_one_name_and_few_labels_where_its_versions_are_read() -> None:
    freezes = OrderCheck("freeze", {"name": "personal"}, {1: SUBTREE}, {})
    versions = [replace(ROW, label=f"chosen {number}") for number in range(200)]
    assert freezes(1, seal_order(FINE, versions)) is None
    other = seal_order(FINE, [replace(ROW, name="other")])
    assert "the row 'other', asked for 'personal'" in str(freezes(1, other))
    many = [replace(ROW, label=f"chosen {number}") for number in range(1_000)]
    assert "described in more than 32768 bytes" in str(freezes(1, seal_order(FINE, many)))


def test_a_refused_error_does_not_count_once_a_good_answer_came() -> None:
    held = OrderCheck("hold", {}, {1: SUBTREE}, {})
    assert "an error with rows" in str(held(1, seal_order({"error": ["X", "y"]}, [ROW])))
    assert held.failed == set()
    assert held(1, seal_order({"error": ["X", "y"]})) is None
    assert held.failed == {1}
    assert held(1, seal_order(FINE)) is None
    assert held.failed == set()


def error_with_rows(data: bytes) -> bytes:
    _, messages = open_sealed(data)
    return seal({"error": ["ProgramError", "why"]}, messages)


def test_an_error_with_rows_does_not_keep_the_answers_from_the_journal(local: LocalTree) -> None:
    run = covey.run(experiment(CASES["SFedHP"]), runtime=local)
    transport, liar = lying(local, "device", 2, 1)
    liar.change = error_with_rows
    edge = next(node for (tier, _), node in local.nodes.items()
                if tier == "edge" and 2 in node.asks.seats)  # fmt: skip
    next(run)
    assert transport.refused(2) == ["an error with rows."]
    assert set(edge.asks.heard) == set(edge.asks.seats)  # what is journalled beside the answers


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("device 3: it failed", "device 3: it failed"),
        ("round 2: the row of device 4 is odd", "round 2: the row of device 4 is odd"),
        ("device 1: it failed", "edge 1: device 1: it failed"),
        ("device 3 says that device 1 failed", "edge 1: device 3 says that device 1 failed"),
        ("it failed", "edge 1: it failed"),
        ("device " + "9" * 5_000, "edge 1: device 999"),
        ("y" * 10**5, "edge 1: yyy"),
    ],
)
def test_an_error_names_the_child_that_it_came_from(text: str, whole: str) -> None:
    error = child_error("ProgramError", text, ("edge", 1), SUBTREE, ("server", "edge", "device"))
    assert isinstance(error, ProgramError)
    assert str(error).startswith(whole)
    assert len(str(error)) < 4_100


def blames_another(data: bytes) -> bytes:
    return seal({"error": ["ProgramError", "device 5: ValueError: why"]}, [])


@pytest.mark.parametrize("lane", ["train", "order"])
def test_a_device_cannot_blame_another(local: LocalTree, lane: str) -> None:
    run = covey.run(experiment(PLAIN["PFedMe"]), runtime=local)
    if lane == "train":
        _, liar = lying(local, "device", 2, 1)
        liar.change = blames_another
        with pytest.raises(ProgramError, match=r"^device 2: device 5: ValueError: why$"):
            next(run)
    else:
        next(run)
        failure = seal_order({"error": ["ProgramError", "device 5: ValueError: why"]})
        local.transport_above("device", 2).take(2, lambda *_: failure)
        with pytest.raises(ProgramError, match=r"^device 2: device 5: ValueError: why$"):
            run.rows("personal")


def test_a_header_that_is_nested_deeply_is_refused() -> None:
    nested = b"[" * 100_000
    data = len(nested).to_bytes(4, "little") + nested
    with pytest.raises(DecodeError, match="cannot be read"):
        open_sealed(data)
    reads = OrderCheck("read", {}, {1: SUBTREE}, {})
    assert reads(1, data) is not None
    assert reads(1, b"".join(node_rows.pieces([]))) is not None


def test_a_long_header_is_refused_before_it_is_read() -> None:
    limit = header_limit(SUBTREE)
    head = b"[" + b"[]," * (limit // 3) + b"[]]"
    data = len(head).to_bytes(4, "little") + head
    with pytest.raises(DecodeError, match=f"more than {limit}"):
        open_sealed(data, limit)
    with pytest.raises(DecodeError, match=f"more than {limit}"):
        node_rows.unpack(data, limit=limit)
    reads = OrderCheck("read", {}, {1: SUBTREE}, {})
    sealed = seal(FINE, [])
    for lie, most in ((data, limit), (sealed, rows_limit(SUBTREE))):
        whole = len(lie).to_bytes(4, "little") + lie + data
        assert f"more than {most}" in str(reads(1, whole))
    nested = b"[" * 100_000
    with pytest.raises(DecodeError, match="cannot be read"):
        node_rows.unpack(len(nested).to_bytes(4, "little") + nested)


class Faulty(OrderCheck):
    """A check with a fault of its own."""

    error: Exception = ValueError("odd bytes")

    def examine(self, seat: int, data: bytes) -> None:
        raise self.error


def test_a_fault_of_the_parent_is_not_the_childs() -> None:
    """It ends the ask; what an answer may cause is a bad answer."""
    faulty = Faulty("read", {}, {1: SUBTREE}, {})
    assert "it cannot be read: ValueError: 'odd bytes'" in str(faulty(1, b""))
    for error in (NameError("a bug"), MemoryError(), OSError("the disk is gone")):
        faulty.error = error
        with pytest.raises(type(error)):
            faulty(1, b"")
