"""Orders and requests of a hostile parent, at one device: it obeys what its algorithm has, or stays as it was.

    python -m fuzz.parent 100000 1            # so many orders and requests, and the seed

A run of PerMFL is recorded as one device of it hears it: every request, every answer, and the disk before each. Then
its requests are changed: a value of a header, at any depth, a field of the key, a row, or plain bytes. After a refused
one the disk and the folder of the device must be those from before, bit for bit. After one that is obeyed they must
have no other rows, labels and files than the algorithm has. In between the honest parent goes on, and gets the answers
of the undisturbed run.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import covey
from covey import Tree
from covey.codecs import CODECS
from covey.deployed.node import node_rows
from covey.deployed.node.assemble import node_of, tree_members
from covey.deployed.node.disk import Disk
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import NodeRow, open_order, seal_order
from covey.deployed.node.process import parts_of
from covey.deployed.node.server_run import finish, server_run
from covey.deployed.transport.transport import AskKey
from covey.errors import TransportError
from covey.links.packed import Packed, Schema
from covey.runtimes.alone.envelope import open_sealed, seal
from fuzz.machine import FALSE, changed

NAMES = [
    "../../x",
    "/tmp/x",
    "__init__",
    "personal",
    "edge",
    "global",
    "chosen personal",
    "present",
    "device",
    "server",
]
"""Words that may stand in the place of a name."""
MODELS = ("global", "edge", "personal")
LABELS = {"present", *(f"{start} {model}" for model in MODELS for start in ("chosen", "final"))}
FILES = {"node.json", *(f"{model}.safetensors" for model in MODELS)}


@dataclass(frozen=True)
class Heard:
    """One request, as a device heard it, and what it answered."""

    key: AskKey
    common: bytes
    own: bytes
    reply: bytes


def experiment() -> covey.Experiment:
    examples = [(torch.randn(6, 2), torch.tensor([0, 1] * 3)) for _ in range(4)]
    return covey.Experiment(
        algorithm=covey.algorithms.PerMFL(edge_rounds=2, steps=2),
        data=covey.data.own(examples, classes=2),
        model=torch.nn.Linear(2, 2),
        tree=Tree.grouped([2, 2]),
        rounds=3,
        workers=1,
    )


class Siege:
    """A run as one device heard it, and a device in memory that can stand anywhere in it."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.experiment = experiment()
        self.heard: list[Heard] = []
        self._record(folder / "run")
        parts = parts_of(self.experiment)
        disk = Disk(":memory:")
        disk.path = folder / "device" / "node.sqlite"
        disk.path.parent.mkdir()
        self.node: Node = node_of(parts, tree_members(parts.tree, parts.data)["device"][0], disk)
        self.epochs: list[Epoch] = []
        """Those that the request under way was let to tell."""

        def heard_of(epoch: Epoch, key: AskKey) -> None:
            self.epochs.append(epoch)
            Node._catch_up(self.node, epoch, key)

        self.node._catch_up = heard_of  # type: ignore[method-assign]
        self.before = [disk.file.connection.serialize()]
        """The disk before each request."""
        for heard in self.heard:
            assert self.node.answer(heard.key, heard.common, heard.own) == heard.reply
            self.before.append(disk.file.connection.serialize())
        shutil.rmtree(folder / "device")
        disk.path.parent.mkdir()
        self.stand(0)

    def _record(self, folder: Path) -> None:
        tree = LocalTree(folder)
        run = server_run(self.experiment, tree)
        device = tree.nodes["device", 0]

        def spied(key: AskKey, common: bytes, own: bytes) -> bytes:
            heard = (key, bytes(common), bytes(own))
            reply = device.answer(*heard)
            self.heard.append(Heard(*heard, reply))
            return reply

        tree.transport_above("device", 0).take(0, spied)
        for _ in run:
            pass
        for frozen in list(run.runtime.freeze(0)):
            run.runtime.thaw(frozen, 0)
        run.runtime.release("final personal", 0)
        run.runtime.read("device", "personal", "present", 0)
        finish(run)
        tree.close()

    def stand(self, number: int) -> None:
        """Let the device stand before a request of the run."""
        self.number = number
        self.node.database.file.connection.deserialize(self.before[number])
        self.node.forget()

    @property
    def files(self) -> dict[str, bytes]:
        """The files around the device, but for those of the recorded run."""
        return {
            str(path): path.read_bytes()
            for path in self.folder.glob("device/**/*")
            if path.is_file()
        }

    def tries(self, key: AskKey, common: bytes, own: bytes) -> str:
        """What becomes of a request: it is refused and nothing has changed, or obeyed within bounds."""
        disk = self.node.database.file.connection
        self.epochs.clear()
        reply = self.node.answer(key, common, own)
        error = error_in(key, reply)
        if error is not None and not self.epochs:  # a check refuses it
            assert disk.serialize() == self.before[self.number], (
                "it changed the disk",
                key,
                own,
                error,
            )
            assert not self.files, ("it wrote a file", key, own)
            return "refused"
        if error is not None:  # it is late, or of another epoch
            after = list(disk.iterdump())
            self.stand(self.number)
            with suppress(TransportError):
                Node._catch_up(self.node, self.epochs[0], key)
            assert after == list(disk.iterdump()), ("it changed the disk", key, own, error)
            self.stand(self.number)
            return "refused where the server stands"
        assert {kept.name for kept in self.node.database.kept()} <= {"personal"}, (key, own)
        assert {kept.label for kept in self.node.database.kept()} <= LABELS, (key, own)
        assert {Path(path).name for path in self.files} <= FILES, (key, own, self.files)
        assert len(disk.serialize()) < 4 * len(self.before[self.number]), (key, own)
        shutil.rmtree(self.folder / "device")
        (self.folder / "device").mkdir()
        self.stand(self.number)
        return "obeyed"

    def goes_on(self) -> None:
        """The honest parent asks what comes next: the answer is that of the undisturbed run."""
        heard = self.heard[self.number]
        assert self.node.answer(heard.key, heard.common, heard.own) == heard.reply, heard.key
        after = list(self.node.database.file.connection.iterdump())
        self.stand(self.number + 1)
        assert after == list(self.node.database.file.connection.iterdump()), heard.key
        shutil.rmtree(self.folder / "device")
        (self.folder / "device").mkdir()


def error_in(key: AskKey, reply: bytes) -> Any:
    """The kind and the text of the error in an answer; None where there is none."""
    if key.lane == "order":
        return open_order(reply)[0]["error"]
    return open_sealed(reply)[0]["error"]


# Changes


def falsified(header: Any, draw: random.Random) -> Any:
    """A header with one value replaced, doubled or left out, at any depth."""
    out = json.loads(json.dumps(header))
    table: Any = out
    while True:
        place = draw.choice(list(table) if isinstance(table, dict) else list(range(len(table))))
        deeper = isinstance(table[place], (dict, list)) and len(table[place])
        if not deeper or draw.random() < 0.2:
            break
        table = table[place]
    kind = draw.randrange(5)
    if kind == 0:
        del table[place]
    elif kind == 1 and isinstance(table, list):
        table.append(table[place])
    elif kind == 1:
        table[draw.choice(NAMES)] = draw.choice([*FALSE, *NAMES])
    elif kind == 2:
        table[place] = draw.choice(FALSE)
    else:
        table[place] = draw.choice(NAMES)
    return out


def other_key(key: AskKey, draw: random.Random) -> AskKey:
    """A key with another field, of its type: others never arrive."""
    name = draw.choice(["run", "round", "lane", "path", "program", "parameters", "attempt"])
    value: Any = draw.choice(NAMES)
    if name in ("round", "path", "attempt"):
        value = draw.choice([-1, 0, 1, 7, 2**31, 2**62])
    elif name == "lane":
        value = draw.choice(["train", "score", "order"])
    elif name == "program":
        orders = ["hold", "release", "read", "freeze", "thaw", "write", "erase"]
        value = draw.choice(
            [
                *orders,
                *(f"{owner}.{word}" for word in NAMES for owner in ("algorithm", "Scorer", "os")),
            ]
        )
    return replace(key, **{name: value})


def other_row(kept: NodeRow, draw: random.Random) -> NodeRow:
    """A row of a node with one thing wrong."""
    name = draw.choice(["tier", "number", "name", "label", "round", "row"])
    value: Any = draw.choice([*FALSE, *NAMES, 0, 1])
    if name == "row":
        assert kept.row is not None
        value = draw.choice(
            [None, kept.row.double(), kept.row[:-1], kept.row / 0, kept.row.long(), kept.row[None]]
        )
    return replace(kept, **{name: value})


def other_message(packed: Packed, draw: random.Random) -> Packed:
    """A message of another width, type, kind, or number of rows."""
    schema = packed.schema
    row = torch.zeros(
        draw.choice([0, schema.width, schema.width + 1, 10_000]),
        dtype=draw.choice([torch.float32, torch.float64]),
    )
    kind: Any = draw.choice(["rows", "exact", "masked", "nothing"])
    width = draw.choice([len(row), 2**31, schema.width])
    return Packed(
        Schema(kind, width, draw.choice([row.dtype, schema.dtype])),
        (CODECS["dense"].encode(row),) * draw.choice([0, 1, 1, 1, 2]),
    )


def hostile(heard: Heard, draw: random.Random) -> tuple[AskKey, bytes, bytes]:
    """A request with one thing wrong, or nothing."""
    key, common, own = heard.key, heard.common, heard.own
    kind = draw.randrange(5)
    if kind == 0:
        return key, changed(common, draw), own
    if kind == 1:
        return key, common, changed(own, draw)
    if kind == 2:
        return other_key(key, draw), common, own
    if key.lane == "order":
        header, rows = open_order(own)
        above = node_rows.unpack(common) if common else []
        if kind == 3:
            header = falsified(header, draw)
        elif rows or above:
            target = draw.choice([part for part in (rows, above) if part])
            place = draw.randrange(len(target))
            target[place : place + draw.randrange(2)] = [other_row(target[place], draw)]
        else:
            rows = [NodeRow("device", 0, draw.choice(NAMES), draw.choice(NAMES), 0, torch.zeros(6))]
        return (
            key,
            b"".join(node_rows.pieces(above)) if common else common,
            seal_order(header, rows),
        )
    shared, down = open_sealed(common)
    personal, each = open_sealed(own)
    if kind == 4:
        place = draw.randrange(len(down))
        down[place : place + draw.randrange(2)] = [other_message(down[place], draw)]
    elif draw.random() < 0.5:
        shared = falsified(shared, draw)
    else:
        personal = falsified(personal, draw)
    return key, seal(shared, down), seal(personal, each)


def fuzz(count: int, seed: int) -> Counter[str]:
    """Try so many requests; how many were refused and obeyed, by lane."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        siege = Siege(Path(folder))
        for number in range(count):
            if number % 25 == 0:
                if number:
                    siege.goes_on()
                siege.stand(draw.randrange(len(siege.heard)))
            heard = draw.choice([siege.heard[siege.number], draw.choice(siege.heard)])
            request = hostile(heard, draw)
            counts[f"{request[0].lane}: {siege.tries(*request)}"] += 1
    return counts


if __name__ == "__main__":
    begin = time.perf_counter()
    found = fuzz(int(sys.argv[1]), seed=int(sys.argv[2]))
    print(dict(found), f"{time.perf_counter() - begin:.0f} s")
