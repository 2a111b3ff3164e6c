"""Asks, answers, commits and rollbacks in any order, against models of what a node must do.

    python -m fuzz.machine 100000 1            # so many sequences, and the seed

`child` sends one node requests of rounds that are over, undone or not yet begun, twice, of other runs, and changed
bytes. `parent` plays rounds at a server whose children are late, absent, killed, or answer with the bytes of another
round, of another seat, or with changed ones; the server itself is killed within asks. After every sequence rows and
records must be those of a model in plain Python.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch

import covey
from covey import Algorithm, Nodes, Rows, Tree
from covey.codecs import CODECS
from covey.deployed.node.assemble import node_of, tree_members
from covey.deployed.node.disk import Disk
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.missed import Missing
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import dtype_of
from covey.deployed.node.process import parts_of
from covey.deployed.node.replay import by_ask
from covey.deployed.node.tree_runtime import TreeRuntime
from covey.deployed.transport.transport import Answer, AskKey, AskLane, Blob, Check, Patience
from covey.kernel.store.store import PRESENT
from covey.links.link import Ledger, Link
from covey.links.packed import Packed, Schema
from covey.links.spec import LinkSpec
from covey.runtimes.alone.envelope import Pieces, header_of, open_sealed, seal
from covey.runtimes.facts import SubtreeFacts

DEVICES = 3
DENSE = CODECS["dense"]


class Killed(BaseException):
    """The server's process ends here."""


@dataclass(frozen=True)
class Steps(Algorithm):
    """Devices count what they were asked: whole numbers, so that every sum is exact."""

    sends: ClassVar[str] = "a count"

    def server(self, me: Nodes, w: Rows) -> Rows:
        one = me.ask(self.device, w)
        three = me.ask(self.third, w)
        sums = (one.sum(), three.sum())
        return w + sum(total for total in sums if total is not None)

    def device(self, me: Nodes, w: Rows) -> Rows:
        count = me.recall("count", default=torch.zeros_like(w))
        return me.keep("count", count + 1)

    def third(self, me: Nodes, w: Rows) -> Rows:
        count = me.recall("count", default=torch.zeros_like(w))
        return me.keep("count", count + 3)


class Looks:
    """The owner of a program that scores."""

    def server(self, me: Nodes, w: Rows) -> Rows:
        me.ask(self.look, w)
        return w

    def look(self, me: Nodes, w: Rows) -> Rows:
        return me.recall("count", default=torch.zeros_like(w))

    def parameters(self) -> dict[str, Any]:
        return {}


class Yard:
    """What all nodes are made of."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        examples = [(torch.ones(4, 1), torch.tensor([0, 1, 0, 1])) for _ in range(DEVICES)]
        self.experiment = covey.Experiment(
            algorithm=Steps(),
            data=covey.data.own(examples, classes=2),
            model=torch.nn.Linear(1, 2, bias=False),
            tree=Tree.flat(DEVICES),
            rounds=1,
            workers=1,
        )
        self.parts = parts_of(self.experiment)
        self.members = tree_members(self.parts.tree, self.parts.data)
        self.width = self.parts.start.shape[1]
        disk = Disk(":memory:")
        self.empty = disk.file.connection.serialize()
        """The file of a node that has done nothing."""
        disk.close()

    def node(
        self, tier: str, number: int, disk: Disk, transport: Any = None, patience: Any = None
    ) -> Node:
        """A node from its disk."""
        out = node_of(
            self.parts, self.members[tier][number], disk, transport=transport, patience=patience
        )
        out.makers = {"Looks": lambda parameters: Looks()}
        return out


def changed(data: bytes, draw: random.Random) -> bytes:
    """Bytes with one thing wrong."""
    out = bytearray(data or b"\0")
    kind = draw.randrange(5)
    place = draw.randrange(len(out))
    if kind == 0:
        out[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del out[place:]
    elif kind == 2:
        out[place:place] = draw.randbytes(draw.randint(1, 8))
    elif kind == 3:
        out = bytearray(draw.randbytes(draw.randint(0, 60)))
    else:
        digits = [position for position, byte in enumerate(out[:400]) if 48 <= byte < 58]
        if digits:
            out[draw.choice(digits)] = draw.choice(b"0123456789-e.")
    return bytes(out)


# The child


@dataclass
class ChildModel:
    """What a device must do with a request that is whole."""

    run: str | None = None
    good: int = 0
    now: int = 0
    pending: tuple[int, int] | None = None
    answers: dict[str, tuple[str, int]] = field(default_factory=dict)
    stood: tuple[int, int] = (0, 0)
    """(round that comes next, rollbacks) as the last request that was answered had them."""
    trained: set[str] = field(default_factory=set)
    """The trainings of the round that is not good yet."""

    def ask(self, key: AskKey, epoch: Epoch) -> int | None:
        """The count that is answered; None: an error."""
        if key.round > epoch.before:
            return None
        if self.run is None:
            self.run = epoch.run
        elif self.run != epoch.run:
            return None
        if epoch.before < self.stood[0] or epoch.attempt < self.stood[1]:
            return None
        self._catch_up(epoch)
        if self.answers.get(key.lane, ("", 0))[0] == str(key):
            return self.answers[key.lane][1]
        if key.lane == "train" and key.round < epoch.before:
            return None
        if str(key) in self.trained:
            return None
        self.stood = (epoch.before, epoch.attempt)
        if key.lane == "train":
            self.trained.add(str(key))
            self.now += {"algorithm.device": 1, "algorithm.third": 3}[key.program]
        self.pending = (key.round, key.attempt)
        self.answers[key.lane] = (str(key), self.now)
        return self.now

    def _catch_up(self, epoch: Epoch) -> None:
        """What was pending is good, or undone."""
        if self.pending is None:
            return
        round, attempt = self.pending
        if any(failed <= round for failed in epoch.rollbacks[attempt:]):
            self.now, self.pending = self.good, None
            self.answers.clear()
            self.trained.clear()
        elif round < epoch.before:
            self.good, self.pending = self.now, None
            self.trained.clear()


def child(yard: Yard, draw: random.Random, node: Node, counts: Counter[str]) -> None:
    """One sequence of requests to a device."""
    node.database.file.connection.deserialize(yard.empty)
    node.forget()
    model = ChildModel()
    common = seal({"parameters": {}, "rows": 1, "shapes": []}, [_packed(torch.zeros(yard.width))])
    asked: list[tuple[AskKey, Epoch]] = []
    for _ in range(draw.randint(2, 6)):
        key, epoch = _request(draw, asked)
        own = seal({"epoch": asdict(epoch), "idle": None, "answers": True}, [])
        if draw.random() < 0.1:
            _dirty(node, draw, key, common, own, counts)
            break  # a changed request may be a good one: the model cannot know
        if draw.random() < 0.1:  # its process is killed, and made again from the disk
            node.forget()
        asked.append((key, epoch))
        expected = model.ask(key, epoch)
        reply = node.answer(key, common, own)
        header, messages = open_sealed(reply)
        if expected is None:
            assert header["error"] is not None, (key, epoch)
            counts["child: error"] += 1
            continue
        assert header["error"] is None, header["error"]
        row, _ = DENSE.decode(messages[0].messages[0], limit=yard.width)
        assert row.tolist() == [expected] * yard.width, (row.tolist(), expected, asked)
        if draw.random() < 0.3:
            assert model.ask(key, epoch) == expected
            assert node.answer(key, common, own) == reply, "asked twice, it answers something else"
        counts["child: answer"] += 1


def _request(draw: random.Random, asked: list[tuple[AskKey, Epoch]]) -> tuple[AskKey, Epoch]:
    """A request like the last one, the next one, an old one, or of another run."""
    kind = draw.randrange(12)
    if asked and kind < 2:
        return draw.choice(asked)
    round = 0
    before = 0
    rollbacks: tuple[int, ...] = ()
    run = "run"
    if asked:
        key, epoch = asked[-1]
        round, before, rollbacks = key.round, epoch.before, epoch.rollbacks
    if kind < 5:  # the round is good, and the next one begins
        before = round + 1
        round = before
    elif kind == 5:
        rollbacks = (*rollbacks, draw.randint(0, round + 1))
    elif kind == 6:
        round += draw.randint(-2, 2)
    elif kind == 7:
        before += draw.randint(-1, 1)
    elif kind == 8 and draw.random() < 0.3:
        run = "another"
    lane: AskLane = draw.choice(("train", "train", "score"))
    program = "Looks.look"
    if lane == "train":
        program = draw.choice(["algorithm.device", "algorithm.third"])
    attempt = len(rollbacks)
    key = AskKey(run, max(round, 0), lane, draw.randrange(3), program, "", attempt)
    return key, Epoch(run, max(before, 0), rollbacks)


def _dirty(
    node: Node, draw: random.Random, key: AskKey, common: bytes, own: bytes, counts: Counter[str]
) -> None:
    """A request with changed bytes: an answer or an error, and never an exception."""
    if draw.random() < 0.5:
        common = changed(common, draw)
    else:
        own = changed(own, draw)
    reply = node.answer(key, common, own)
    refused = header_of(reply).get("error") is not None
    counts[f"child: changed bytes, {'error' if refused else 'answer'}"] += 1


def _packed(row: torch.Tensor, copies: int = 1) -> Packed:
    return Packed(Schema("rows", len(row), row.dtype), (DENSE.encode(row),) * copies)


# The parent


@dataclass(eq=False)
class Children:
    """The devices below a server, and what becomes of each ask: a transport without threads."""

    yard: Yard
    draw: random.Random
    counts: Counter[str]
    nodes: list[Node]
    disks: list[Disk]
    present: list[int] = field(default_factory=lambda: [0] * DEVICES)
    """What the model says each device has counted."""
    good: list[int] = field(default_factory=lambda: [0] * DEVICES)
    calm: bool = False
    """Whether everybody answers well."""
    old: list[tuple[tuple[str, int], bytes]] = field(default_factory=list)
    """Answers so far, with their keys and seats."""
    ran: set[tuple[AskKey, int]] = field(default_factory=set)
    """Who has run which ask, though a killed server may not have heard of it."""
    ended: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """What the record must say, by round, path and seat."""
    heard: dict[AskKey, int] = field(default_factory=dict)
    """What the model says the server has heard in this round, by ask."""

    def ask(
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[int, bytes],
        patience: Patience | None = None,
        check: Check | None = None,
        most: int | None = None,
    ) -> dict[int, Answer]:
        """An ask, in which anything may happen to every seat."""
        assert check is not None
        if isinstance(common, Pieces):
            common = common.joined()
        if key.lane == "order":
            return {
                seat: Answer("answered", self.nodes[seat].answer(key, common, own[seat]))
                for seat in own
            }
        if not self.calm and self.draw.random() < 0.05:
            self.counts["parent: killed before an ask"] += 1
            raise Killed
        out: dict[int, Answer] = {}
        for seat in own:
            out[seat] = self._answer(seat, key, common, own[seat], patience, check, out)
        if not self.calm and self.draw.random() < 0.05:
            self.counts["parent: killed after an ask"] += 1
            raise Killed
        self._hear(key, out)
        return out

    def _hear(self, key: AskKey, answers: Mapping[int, Answer]) -> None:
        """The server has these answers."""
        for seat, answer in answers.items():
            if answer.status == "answered":
                _, messages = open_sealed(answer.read())
                row, _ = DENSE.decode(messages[0].messages[0], limit=self.yard.width)
                assert row[0] == self.present[seat]
                self.heard[key] = self.heard.get(key, 0) + self.present[seat]

    def _answer(
        self,
        seat: int,
        key: AskKey,
        common: bytes,
        own: bytes,
        patience: Patience | None,
        check: Check,
        others: Mapping[int, Answer],
    ) -> Answer:
        if self.draw.random() < 0.1:  # a device is killed between asks
            self.nodes[seat] = self.yard.node("device", seat, self.disks[seat])
        good = sum(answer.status == "answered" for answer in others.values())
        left = DEVICES - 1 - len(others)
        may_miss = patience is not None and good + left >= patience.quorum
        place = (key.round, key.path, seat)
        kind = self.draw.randrange(10)
        if self.calm:
            kind = 9
        if may_miss and kind == 0:
            self.counts["parent: absent"] += 1
            self.ended[place] = "late" if (key, seat) in self.ran else "absent"
            return Answer("absent")
        runs = kind != 1
        reply = b""
        if runs:
            reply = self._run(seat, key, common, own)
        if may_miss and kind == 2:
            self.counts["parent: late"] += 1
            self.ended[place] = "late"
            return Answer("late")
        if kind < 6:
            self._lies(seat, key, reply, check)
            if may_miss:
                self.ended[place] = "late" if (key, seat) in self.ran else "bad"
                self.counts["parent: bad"] += 1
                return Answer("bad")
            self.counts["parent: bad, asked again"] += 1
            reply = self._run(seat, key, common, own)
        assert check(seat, reply) is None, check(seat, reply)
        self.ended.pop(place, None)
        self.old.append(((str(key), seat), reply))
        self.counts["parent: answered"] += 1
        return Answer("answered", reply)

    def _run(self, seat: int, key: AskKey, common: bytes, own: bytes) -> bytes:
        """The device answers; it counts once, however often it is asked."""
        reply = self.nodes[seat].answer(key, common, own)
        self.ran.add((key, seat))
        _, messages = open_sealed(reply)
        row, _ = DENSE.decode(messages[0].messages[0], limit=self.yard.width)
        self.present[seat] = int(row[0])
        return reply

    def _lies(self, seat: int, key: AskKey, reply: bytes, check: Check) -> None:
        """Answers that are none: every one is refused, or can be added up without an error."""
        lies = [b"", self.draw.randbytes(40)]
        lies += [data for ask, data in self.old[-6:] if ask != (str(key), seat)]
        if reply:
            header, _ = open_sealed(reply)
            wide = torch.zeros(self.yard.width + 1)
            lies.append(seal(header, [_packed(wide)]))
            lies.append(seal(header, [_packed(wide[1:].double())]))
            lies.append(seal(header, [_packed(wide[1:] / 0)]))
            lies.append(seal(header, [_packed(wide[1:], 2)]))
            lies.append(seal(header, []))
            lies.append(seal({**header, "seat": (seat + 1) % DEVICES}, [_packed(wide[1:])]))
        lie = self.draw.choice(lies)
        assert check(seat, lie) is not None, lie
        if reply:
            dirty = self.draw.choice([changed, with_false_field])(reply, self.draw)
            if check(seat, dirty) is None:
                _adds_up(self.yard, dirty)
                self.counts["parent: changed bytes, taken"] += 1
            else:
                self.counts["parent: changed bytes, refused"] += 1

    def members(self) -> frozenset[int]:
        return frozenset(range(DEVICES))

    def close(self) -> None:
        pass


FALSE: list[Any] = [
    None,
    True,
    -1,
    0.5,
    2**53,
    2**70,
    1e308,
    float("nan"),
    "",
    "\ud800",
    [],
    [[]],
    {},
]
"""Values that may stand in a field of a header."""


def with_false_field(data: bytes, draw: random.Random) -> bytes:
    """An answer with one value of its header replaced, doubled or left out, at any depth."""
    header, messages = open_sealed(data)
    table: Any = header
    while True:
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        key = draw.choice(keys)
        deeper = isinstance(table[key], (dict, list)) and len(table[key])
        if not deeper or draw.random() < 0.2:
            break
        table = table[key]
    kind = draw.randrange(4)
    if kind == 0:
        del table[key]
    elif kind == 1 and isinstance(table, list):
        table.append(table[key])
    else:
        table[key] = draw.choice(FALSE)
    return seal(header, messages)


def _adds_up(yard: Yard, data: bytes) -> None:
    """What a check takes can be used without an error."""
    header, messages = open_sealed(data)
    if header["error"] is not None:
        return
    facts = SubtreeFacts(yard.parts.tree)
    facts.merge(header["facts"])
    facts.played(None, None, {}, {})
    json.dumps(facts.as_dict(), ensure_ascii=False).encode()
    for _, _, dtype, shape in header["kept"]:
        torch.zeros((0, *shape), dtype=dtype_of(dtype))
    [Missing(*values) for values in header["missing"]]
    link = Link(LinkSpec(DENSE), Ledger([]))
    for packed in messages:
        link.unpack(packed)


def parent(yard: Yard, draw: random.Random, counts: Counter[str]) -> None:
    """One sequence of rounds at a server."""
    disks = [Disk(":memory:") for _ in range(DEVICES)]
    nodes = [yard.node("device", seat, disks[seat]) for seat in range(DEVICES)]
    below = Children(yard, draw, counts, nodes, disks)
    disk = Disk(":memory:")
    patience = Patience(0.0, draw.randint(1, DEVICES)) if draw.random() < 0.6 else None
    tree = _server(yard, disk, below, patience)
    w = torch.zeros(1, yard.width)
    total = 0
    for round in range(draw.randint(1, 3)):
        while True:
            before = dict(below.ended)
            try:
                played = tree.play(Steps().server, w, round=round)
            except Killed:
                tree = _server(yard, disk, below, patience)
                counts["parent: server again from its disk"] += 1
                continue
            if draw.random() < 0.15:
                tree.rollback()
                below.present = list(below.good)
                below.ended = {place: end for place, end in before.items() if place[0] < round}
                below.heard.clear()
                counts["parent: rolled back"] += 1
                continue
            break
        total += sum(below.heard.values())
        below.heard.clear()
        assert played.answer[0].tolist() == [float(total)] * yard.width, (played.answer, total)
        w = played.answer
        tree.commit()
        below.good = list(below.present)
        counts["parent: rounds"] += 1
    below.calm = True
    tree.play(Steps().server, w, round=100)
    tree.commit()
    _, _, rows = tree.read("device", "count", PRESENT, 0)
    assert rows[:, 0].tolist() == [float(count) for count in below.present]
    recorded = {}
    for (at, _, path, _), statuses in by_ask(Missing(*entry) for entry in disk.missing()).items():
        for seat, status in statuses.items():
            recorded[at, path, seat] = status
    assert recorded == below.ended, (recorded, below.ended)
    for one in (disk, *disks):
        one.close()


def _server(yard: Yard, disk: Disk, below: Children, patience: Patience | None) -> TreeRuntime:
    """The server, from its disk."""
    return TreeRuntime(yard.parts.tree, yard.node("server", 0, disk, below, patience))


def fuzz(count: int, seed: int, parents: int = 20) -> Counter[str]:
    """Try random sequences, one in `parents` at a server; what happened in them."""
    yard = Yard()
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    device = yard.node("device", 1, Disk(":memory:"))
    for number in range(count):
        try:
            if number % parents == 0:
                parent(yard, draw, counts)
                counts["parent: sequences"] += 1
            else:
                child(yard, draw, device, counts)
                counts["child: sequences"] += 1
        except Exception:
            print(f"sequence {number} of seed {seed} fails")
            raise
    return counts


if __name__ == "__main__":
    began = time.perf_counter()
    result = fuzz(int(sys.argv[1]), seed=int(sys.argv[2]), parents=100)
    for name, number in sorted(result.items()):
        print(f"{number:10,} {name}")
    print(f"{time.perf_counter() - began:.0f} s")
