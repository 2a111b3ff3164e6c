"""A parent that lies: what a device and an edge refuse, and that they go on with the honest parent.

One run serves all tests. After two rounds somebody with the certificate of a parent orders and asks
what no run does. Each is refused, with the disk and the folder as before, bit for bit. In the end
the honest parent plays the last round, and all bits are those of the simulator.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

import covey
from covey.codecs import CODECS
from covey.deployed.node import node_rows
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import NodeRow, seal_order
from covey.deployed.node.server_run import finish, server_run
from covey.deployed.transport.transport import AskKey
from covey.links.packed import Packed, Schema
from covey.runtimes.alone.envelope import seal
from fuzz import parent
from tests.given import drained
from tests.laws.cases import differences, state
from tests.laws.test_loopback import nodes

WIDTH = 6
ROW = torch.zeros(WIDTH)
MODEL = {"model": "personal", "tier": "device", "label": "present", "round": 1, "beside": []}
SCORES = {
    "names": [["edge", "edge"], ["device", "personal"]],
    "parts": ["validation"],
    "top": "server",
    "slots": [],
    "bins": 10,
    "sample": None,
    "select": "",
}


class Besieged:
    """A run whose parents may lie."""

    def __init__(self, folder: Path) -> None:
        self.tree = LocalTree(folder / "nodes")
        self.folder = folder
        torch.manual_seed(0)
        self.experiment = parent.experiment()
        self.run = server_run(self.experiment, self.tree)
        next(self.run)
        next(self.run)
        self.epoch: Epoch = self.tree.nodes["server", 0].epoch

    def node(self, tier: str) -> Node:
        return self.tree.nodes[tier, 0]

    def key(self, lane: Any, program: str) -> AskKey:
        """A key that no honest parent has used: its parameters are another's."""
        path = 0 if lane == "order" else 7
        return AskKey(self.epoch.run, 1, lane, path, program, "ab", self.epoch.attempt)

    def contents(self, tier: str) -> Any:
        """The disk of a node, and all files around the disks of all nodes."""
        files = {}
        for path in self.folder.rglob("*"):
            if path.is_file() and "sqlite" not in path.name:
                files[path] = path.read_bytes()
        return list(self.node(tier).database.file.connection.iterdump()), files

    def refuses(self, key: AskKey, common: bytes, own: bytes, tier: str) -> str:
        """Why a node refuses a request; it is as before."""
        before = self.contents(tier)
        reply = self.node(tier).answer(key, common, own)
        failure = parent.error_in(key, reply)
        assert failure is not None, "it was obeyed"
        assert self.contents(tier) == before
        return str(failure[1])


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    out = Besieged(tmp_path_factory.mktemp("parent"))
    yield out
    drained(out.run)
    finish(out.run)
    assert sorted(
        path.name for path in (out.folder / "nodes" / "device0" / "models").iterdir()
    ) == ["edge.safetensors", "global.safetensors", "personal.safetensors"]
    simulated = covey.run(out.experiment)
    drained(simulated)
    assert differences(state(simulated) | nodes(simulated), state(out.run) | nodes(out.run)) == []
    out.tree.close()


# Orders

Order = tuple[str, Any, list[NodeRow]]


def thawed(**changes: Any) -> Order:
    row = replace(NodeRow("device", 0, "personal", "present", 1, ROW), **changes)
    return "thaw", {"routes": [[0, 0, row.number]]}, [row]


def written(*rows: NodeRow, **changes: Any) -> Order:
    return "write", {"models": [{**MODEL, **changes}], "broadcast": True}, list(rows)


def row(tier: str, name: str, values: torch.Tensor | None = ROW) -> NodeRow:
    return NodeRow(tier, 0, name, "present", 1, values)


HELD = {"label": "chosen personal", "columns": [["device", "personal"]]}
ORDERS: dict[str, tuple[Order, str]] = {
    "a model outside": (written(row("edge", "../../x"), model="../../x", tier="edge"), "../../x"),
    "an absolute model": (written(row("edge", "/tmp/x"), model="/tmp/x", tier="edge"), "/tmp/x"),
    "another model": (written(model="m1"), "keeps 'personal' (device), 'edge' (edge) alone"),
    "2,000 models": (
        ("write", {"models": [{**MODEL, "model": f"m{i}"} for i in range(2000)], "broadcast": True}, []),
        "this algorithm keeps",
    ),
    "a model twice": (("write", {"models": [MODEL, MODEL], "broadcast": True}, []), "twice"),
    "a model of another tier": (written(tier="edge"), "('edge', 'personal')"),
    "a model under another label": (written(label="L0"), "6 labels of edge, global, personal alone"),
    "a model beside others": (written(beside=["../x"]), "'../x'"),
    "a model with a new field": (written(path="/tmp"), "path"),
    "a model that is a text": (("write", {"models": ["personal"], "broadcast": True}, []), "models"),
    "a row that no model needs": (written(row("edge", "edge")), "none of its models needs"),
    "a wide row of a model": (
        written(row("server", "fallback personal", torch.zeros(9))),
        "expected [6] of torch.float32",
    ),
    "a label": (("hold", {**HELD, "label": "L0"}, []), "the 6 labels of edge, global, personal"),
    "a path as a label": (("hold", {**HELD, "label": "chosen ../x"}, []), "the label"),
    "the present as a label": (("hold", {**HELD, "label": "present"}, []), "hold with"),
    "a label that is a list": (("release", {"label": ["chosen personal"]}, []), "label with"),
    "the release of a label": (("release", {"label": "L0"}, []), "the label 'L0'"),
    "columns that are no pairs": (("hold", {**HELD, "columns": [["device"]]}, []), "columns"),
    "rows of another name": (thawed(name="junk", row=torch.zeros(2**16)), "('device', 'junk')"),
    "rows of another device": (thawed(number=1), "not in this subtree"),
    "rows of a tier above": (thawed(tier="server"), "not below"),
    "wide rows": (thawed(row=torch.zeros(7)), "expected [6]"),
    "rows of another type": (thawed(row=ROW.double()), "expected [6] of torch.float32"),
    "rows that are not finite": (thawed(row=ROW / 0), "is not finite"),
    "rows without values": (thawed(row=None), "without values"),
    "rows of no round": (thawed(round=2**40), "without a name, a label or a round"),
    "rows of another label": (thawed(label="L0"), "the label 'L0'"),
    "rows twice": (("thaw", {"routes": [[0, 0, 0]] * 2}, [row("device", "personal")] * 2), "twice"),
    "rows without a way": (("thaw", {"routes": []}, [row("device", "personal")]), "shorter"),
    "rows with a false way": (("thaw", {"routes": [[0, 0, -1]]}, [row("device", "personal")]), "routes with -1"),
    "rows beside an order": (("hold", HELD, [row("device", "personal")]), "hold with 1 rows"),
    "no such order": (("erase", {}, []), "there are hold, release, read, freeze, thaw, write"),
    "a method as an order": (("__init__", {}, []), "the order '__init__'"),
    "more arguments": (("read", {"name": "personal", "label": "present", "path": "/"}, []), "read with"),
    "fewer arguments": (("read", {"name": "personal"}, []), "without 'label'"),
    "a list of arguments": (("freeze", [], []), "arguments with"),
    "a part in words": (("freeze", {"part": ["device", "0", "1"]}, []), "part with '0'"),
}  # fmt: skip


@pytest.mark.parametrize("tier", ["device", "edge"])
@pytest.mark.parametrize("case", list(ORDERS))
def test_an_order_is_refused(besieged: Besieged, case: str, tier: str) -> None:
    (name, arguments, rows), text = ORDERS[case]
    if tier == "edge" and case in ("rows of another device", "a row that no model needs"):
        pytest.skip("below an edge they are good")
    if case in ("a model outside", "an absolute model") and tier == "edge":
        rows = []
    header = {"name": name, "arguments": arguments, "round": 1, "deepest": "device"}
    own = seal_order({**header, "epoch": asdict(besieged.epoch)}, rows if name == "thaw" else [])
    common = b""
    if name != "thaw" and rows:
        common = b"".join(node_rows.pieces(rows))
    assert text in besieged.refuses(besieged.key("order", name), common, own, tier)


def test_many_labels_leave_no_row(besieged: Besieged) -> None:
    for number in range(100):
        header = {"arguments": {**HELD, "label": f"chosen L{number}"}, "deepest": "device"}
        own = seal_order({**header, "epoch": asdict(besieged.epoch)})
        key = besieged.key("order", "hold")
        if number in (0, 99):
            besieged.refuses(key, b"", own, "device")
        else:
            assert parent.error_in(key, besieged.node("device").answer(key, b"", own)) is not None
    labels = {kept.label for kept in besieged.node("device").database.kept()}
    assert labels <= parent.LABELS


# Programs


def asked(
    besieged: Besieged, program: str, lane: str = "train", *, rows: Any = None, **changes: Any
) -> tuple[AskKey, bytes, bytes]:
    """A request for a program; `changes` are those of its headers."""
    if rows is None:
        rows = [packed(ROW)]
    shared = {"parameters": {}, "rows": len(rows), "shapes": []}
    personal = {"epoch": asdict(besieged.epoch), "idle": None, "answers": True}
    for name, value in changes.items():
        (shared if name in shared else personal)[name] = value
    return besieged.key(lane, program), seal(shared, rows), seal(personal, [])


def packed(
    values: torch.Tensor, copies: int = 1, kind: Any = "rows", width: int | None = None
) -> Packed:
    schema = Schema(kind, width or len(values), values.dtype)
    return Packed(schema, (CODECS["dense"].encode(values),) * copies)


Ask = Callable[[Besieged], tuple[AskKey, bytes, bytes]]


def scored(**changes: Any) -> Ask:
    """Scores with other parameters: of no model above the device but the global and the edge's."""
    flag = packed(torch.ones(1, dtype=torch.float64), kind="exact")
    rows = [packed(ROW, kind="exact"), flag] * 2
    values = {**SCORES, **changes}
    return lambda b: asked(b, "Scorer.node", "score", rows=rows, parameters=values)


def with_key(**changes: Any) -> Ask:
    def ask(b: Besieged) -> tuple[AskKey, bytes, bytes]:
        key, common, own = asked(b, "algorithm.device")
        return replace(key, **changes), common, own

    return ask


def with_epoch(**changes: Any) -> Ask:
    return lambda b: asked(b, "algorithm.device", epoch={**asdict(b.epoch), **changes})


ASKS: dict[str, tuple[Ask, str]] = {
    **{f"the program {name}": (lambda b, name=name: asked(b, f"algorithm.{name}"), "device 0 is asked for algorithm.device alone") for name in ("__init__", "__class__", "__setattr__", "server", "edge", "fit", "advice", "nope")},
    "a program of a module": (lambda b: asked(b, "os.system"), "nobody is asked for to train"),
    "a program that trains while it scores": (
        lambda b: asked(b, "algorithm.device", "score"),
        "nobody is asked for to score",
    ),
    "a program with parameters": (
        lambda b: asked(b, "algorithm.device", parameters={"lr": 9}),
        "nobody is asked for",
    ),
    "the scores of the server": (
        lambda b: asked(b, "Scorer.server", "score", parameters=SCORES),
        "device 0 is asked for Scorer.node alone",
    ),
    "scores with junk": (scored(x=1), "refuses its parent: the parameters {"),
    "scores of nothing": (
        lambda b: asked(b, "Scorer.node", "score", rows=[], parameters={}),
        "refuses its parent: the parameters {}",
    ),
    "scores of another part": (scored(parts=["secret"]), "this experiment does not have"),
    "scores of another model": (scored(names=[["device", "junk"]]), "('device', 'junk')"),
    "scores in a billion bins": (scored(bins=10**9), "this experiment does not have"),
    "scores of other slots": (scored(slots=[["w", 0, 3]]), "this experiment does not have"),
    "scores of single examples": (scored(least=1), "multiple values for keyword argument 'least'"),
    "a wide row": (lambda b: asked(b, "algorithm.device", rows=[packed(torch.zeros(9))]), "more than 6"),
    "a row of 2^31 values in few bytes": (
        lambda b: asked(b, "algorithm.device", rows=[packed(ROW, width=2**31)]),
        "more than 6",
    ),
    "a row that is narrower than it says": (
        lambda b: asked(b, "algorithm.device", rows=[packed(ROW[:3], width=6)]),
        "a row of",
    ),
    "a row of another type": (lambda b: asked(b, "algorithm.device", rows=[packed(ROW.double())]), "with such rows"),
    "two rows": (lambda b: asked(b, "algorithm.device", rows=[packed(ROW, 2)]), "a message of 2 rows"),
    "two messages": (lambda b: asked(b, "algorithm.device", rows=[packed(ROW)] * 2), "with such rows"),
    "no rows": (lambda b: asked(b, "algorithm.device", rows=[]), "with such rows"),
    "a shape": (lambda b: asked(b, "algorithm.device", rows_=0, shapes=[[7]]), "values, not of [7]"),
    "a count that is none": (lambda b: asked(b, "algorithm.device", idle="x"), "idle with 'x'"),
    "a header of lists": (lambda b: (b.key("train", "algorithm.device"), deep(), b""), "read"),
    "a long header": (lambda b: asked(b, "algorithm.device", junk="x" * 2**19), "more than"),
    "nothing": (lambda b: (b.key("train", "algorithm.device"), b"", b""), "an envelope of 0 bytes"),
    "an epoch without a run": (with_epoch(run=7), "run with 7"),
    "an epoch of a negative round": (with_epoch(before=-1), "before with -1"),
    "an epoch of words": (with_epoch(rollbacks=["a"]), "rollbacks with 'a'"),
    "the key of another run": (with_key(run="other"), "not of the epoch beside it"),
    "the key of another attempt": (with_key(attempt=3), "not of the epoch beside it"),
    "the key of a round that no run has": (with_key(round=2**62), "round with"),
    "a key with a long digest": (with_key(parameters="a" * 999), "parameters with"),
}  # fmt: skip


def deep() -> bytes:
    return struct.pack("<I", 100_000) + b"[" * 100_000


@pytest.mark.parametrize("case", list(ASKS))
def test_a_request_is_refused(besieged: Besieged, case: str) -> None:
    ask, text = ASKS[case]
    key, common, own = ask(besieged)
    assert text in besieged.refuses(key, common, own, "device")


def test_a_request_of_an_edge_is_refused(besieged: Besieged) -> None:
    """It is asked for its own program, not for that of a device."""
    key, common, own = asked(besieged, "algorithm.device")
    text = besieged.refuses(key, common, own, "edge")
    assert text.startswith("edge 0 refuses its parent: 'algorithm.device'")
    assert "edge 0 is asked for algorithm.edge alone" in text


def test_fuzz() -> None:
    """400 changed requests here; `make test-deployed` tries 100,000."""
    counts = parent.fuzz(400, seed=3)
    assert sum(counts.values()) == 400
    assert min(counts[f"{lane}: refused"] for lane in ("train", "score", "order")) > 10
    assert counts["order: obeyed"] > 5
