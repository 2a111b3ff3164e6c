"""A node that has only its own shard, its own rows and bytes on its links does what it does in the
simulator, bit for bit.
"""

import os
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import covey
from covey import Algorithm, Nodes, Rows
from covey.codecs import codec
from covey.errors import ConfigError, CoveyError, DivergedError, ProgramError
from covey.links.link import Ledger, Link, Sending
from covey.links.packed import Packed
from covey.links.spec import LinkSpec
from covey.runtimes.alone.envelope import seal
from covey.runtimes.alone.loopback import Loopback
from covey.runtimes.facts import SubtreeFacts
from tests import peek
from tests.given import drained
from tests.laws.cases import (
    CASES,
    PLAIN,
    SIZES,
    TIMED,
    TREES,
    Case,
    differences,
    every,
    experiment,
    finished,
    state,
    whole,
)

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
WIRED = {name: case for name, case in CASES.items() if "radio" not in case.settings}
"""Radio runs have a virtual clock, which only the simulator has."""

INT8 = {"name": "int8", "rounding": "stochastic"}
LINKS: dict[str, dict[str, Any]] = {
    "int8 updates with feedback": {"name": "int8", "update": True, "feedback": True},
    "stochastic int8 updates": {**INT8, "update": True},
    "stochastic int4 with feedback": {"name": "int4", "rounding": "stochastic", "feedback": True},
    "the largest tenth, with feedback": {"name": "coo", "keep": 0.1, "feedback": True},
    "the largest half of updates, with feedback": {"name": "bitmap", "keep": 0.5, "update": True, "feedback": True},
}  # fmt: skip
FEW = ("stochastic int8 updates", "the largest tenth, with feedback")
CODED: dict[str, Sequence[str]] = {
    "SFedHP": list(LINKS),
    "Scaffold": list(LINKS),
    "Pruned": FEW,
    "AL2GD": FEW,
}
"""The links that an algorithm is tried with in CI; test-all tries every case with every link."""
if ALL:
    CODED = {name: list(LINKS) for name in WIRED}


def ran(case: Case, runtime: str, **changes: Any) -> covey.Run:
    run = covey.run(experiment(case, **changes), runtime=runtime)
    for _ in run:
        pass
    return run


def nodes(run: covey.Run) -> dict[str, Any]:
    """The bytes of every node in all rounds, and its share of non-zeros in the last."""
    totals = {f"{tier} {name}": values for (tier, name), values in run.totals.items()}
    shares = run.observed.nonzeros
    return totals | {model: figures.dense() for model, figures in shares.items()}


def everything(run: covey.Run) -> dict[str, Any]:
    """What a run and each of its nodes hold."""
    return state(run) | nodes(run)


@every(WIRED)
def test_every_case_is_the_simulators(case: Case) -> None:
    simulated = whole(case.name)
    run = ran(case, "loopback")
    assert differences(state(simulated), state(run)) == []
    assert differences(nodes(simulated), nodes(run)) == []


@pytest.mark.parametrize(
    "case", list(WIRED.values()) if ALL else list(PLAIN.values())[::3], ids=str
)
def test_every_case_is_the_simulators_in_float64(case: Case) -> None:
    changes: dict[str, Any] = {"dtype": torch.float64, "rounds": 2}
    assert (
        differences(state(finished(case, **changes)), state(ran(case, "loopback", **changes))) == []
    )


@pytest.mark.parametrize(
    ("name", "link"), [(name, link) for name, links in CODED.items() for link in links]
)
def test_codecs_with_memory_and_draws(name: str, link: str) -> None:
    """Updates are of what goes up; the other options hold in both directions."""
    case, codec = CASES[name], LINKS[link]
    assert (
        differences(state(finished(case, codec=codec)), state(ran(case, "loopback", codec=codec)))
        == []
    )


def test_deferred_answers_are_decoded_when_they_are_reduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At no time are two answers of one ask decoded."""
    alive: list[weakref.ref[Any]] = []
    most = 0
    unpack = Link.unpack

    def counted(self: Link, packed: Any, **options: Any) -> Any:
        nonlocal most
        out = unpack(self, packed, **options)
        if options.get("expect") is not None:
            alive[:] = [one for one in alive if one() is not None]
            alive.append(weakref.ref(out))
            most = max(most, len(alive))
        return out

    monkeypatch.setattr(Link, "unpack", counted)
    ran(PLAIN["FedAvg"], "loopback", rounds=1)
    assert len(alive) > 0
    assert most <= 2


# What a node has not


@pytest.fixture(scope="module")
def tree() -> Loopback:
    runtime = ran(PLAIN["SFedHP"], "loopback", rounds=1).runtime
    assert isinstance(runtime, Loopback)
    return runtime


def test_a_node_has_only_its_own_shard(tree: Loopback) -> None:
    task = peek.station(tree, "device", 3).task
    rows = tree.start.expand(1, -1)
    assert 0 < len(task.x) <= SIZES[3]
    task.full_gradient(rows, torch.tensor([3]))
    for reading in (
        lambda: task.full_gradient(rows, torch.tensor([2])),
        lambda: task.examples.draw(0, torch.tensor([2]), 4),
        lambda: task.evaluate(rows, "test", torch.tensor([2])),
        lambda: task.examples.counts("train", torch.tensor([2])),
        lambda: task.shards.train.held(2),
    ):
        with pytest.raises(ProgramError, match="the examples of device 2 are not on this node"):
            reading()
    assert len(tree.server.task.x) == 0
    assert len(peek.station(tree, "edge", 0).task.x) == 0


def test_a_node_has_only_its_own_rows(tree: Loopback) -> None:
    store = peek.station(tree, "device", 3).store
    assert store.get("device", "personal", torch.tensor([3]), None, 0) is not None
    with pytest.raises(
        ProgramError, match=r"device 3 touched 'personal' of device 2; a node has its own alone"
    ):
        store.get("device", "personal", torch.tensor([2]), None, 0)
    with pytest.raises(ProgramError, match=r"device 3 touched 'edge' of edge 0"):
        store.rounds("edge", "edge", torch.tensor([0]))
    with pytest.raises(ProgramError, match=r"device 3 touched 'x' of device 1, 2"):
        store.put("device", "x", torch.tensor([1, 2]), tree.start.expand(2, -1), 0)


def test_a_node_has_only_its_own_place(tree: Loopback) -> None:
    edge = peek.station(tree, "edge", 1)
    ids = torch.tensor([1])
    assert edge.tree.counts("edge", ids).tolist() == [1]
    assert edge.examples("edge", ids).tolist() == [edge.member.under]
    for asked in (
        lambda: edge.tree.counts("edge", torch.tensor([0])),
        lambda: edge.tree.first("server", torch.tensor([0])),
        lambda: edge.tree.span("edge", ids),
        lambda: edge.examples("edge", torch.tensor([2])),
    ):
        with pytest.raises(ProgramError, match="edge 1 touched"):
            asked()


@dataclass(frozen=True)
class Curious(Algorithm):
    """FedAvg whose devices look at their neighbour: its data, its rows, or the tree."""

    sends: ClassVar[str] = "its model"
    at: str = "shard"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        neighbour = (me.ids + 1) % 8
        if self.at == "shard":
            return w - peek.runtime_of(me).task.full_gradient(w, neighbour)
        if self.at == "store":
            peek.runtime_of(me).store.get(me.tier, "personal", neighbour, w, 0)
        if self.at == "tree":
            peek.runtime_of(me).tree.counts("device", neighbour)
        return me.keep("personal", w + 1)


@pytest.mark.parametrize("at", ["shard", "store", "tree"])
def test_a_program_that_looks_at_its_neighbour_fails(at: str) -> None:
    case = Case("Curious", Curious(at=at))
    finished(case)  # the simulator cannot tell
    with pytest.raises(ProgramError, match=r"not on this node|touched"):
        ran(case, "loopback")


# Errors


@dataclass(frozen=True)
class Failing(Algorithm):
    """FedAvg of which device 5 fails in the second round, in one of several ways."""

    sends: ClassVar[str] = "its model"
    how: str = "value"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.edge, w).mean()

    def edge(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        wrong = (me.ids == 5) & (me.round == 1)
        if bool(wrong.any()) and self.how == "value":
            raise ValueError("a sensor is broken")
        if self.how == "diverged":
            w = torch.where(wrong[:, None], torch.inf, w)
        return me.keep("personal", w + 1)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("value", ProgramError, "device 5: ValueError: a sensor is broken"),
        ("diverged", DivergedError, "round 2: the kept 'personal' of device 5 is no longer finite"),
    ],
)
def test_an_error_ends_the_round_everywhere(how: str, kind: type[Exception], text: str) -> None:
    run = covey.run(experiment(Case("Failing", Failing(how=how))), runtime="loopback")
    next(run)
    before = state(run)
    with pytest.raises(kind, match=re.escape(text)):
        next(run)
    assert differences(before, state(run)) == []


def test_a_hostile_answer_is_refused(tree: Loopback) -> None:
    """What does not look like the rehearsal's answer, or is no envelope at all, never becomes rows."""
    run = covey.run(experiment(PLAIN["FedAvg"]), runtime="loopback")
    next(run)
    server = peek.server(run)
    honest = server.children[4]
    wide = seal(
        {"error": None, "facts": SubtreeFacts(server.tree).as_dict()}, [packed(torch.zeros(1, 3))]
    )
    double = seal(
        {"error": None, "facts": SubtreeFacts(server.tree).as_dict()}, [packed(run.w.double())]
    )
    none = seal({"error": None, "facts": SubtreeFacts(server.tree).as_dict()}, [])
    for answer in (b"", b"\xff" * 40, wide, double, none, honest_cut(honest)):
        server.children[4] = lambda request, answer=answer: (
            answer(request) if callable(answer) else answer
        )
        with pytest.raises(CoveyError):
            next(run)
    server.children[4] = honest
    assert differences(state(whole("FedAvg")), state(drained(run))) == []


def honest_cut(honest: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda request: honest(request)[:-1]


def packed(rows: torch.Tensor) -> Packed:
    wire = LinkSpec(codec("dense"))
    return Link(wire, Ledger([])).pack(Sending(rows))


# Checkpoints


@pytest.mark.parametrize(
    "runtimes",
    [("loopback", "simulator"), ("simulator", "loopback"), ("loopback", "loopback")],
    ids=str,
)
@pytest.mark.parametrize("name", ["SFedHP", "Scaffold-sample", "PFedBayes"])
def test_a_run_resumes_in_another_runtime(
    name: str, runtimes: tuple[str, str], tmp_path: Path
) -> None:
    case, wire = CASES[name], LINKS["int8 updates with feedback"]
    changes: dict[str, Any] = {"rounds": 4, "score_every": 1, "codec": wire}
    first = covey.run(experiment(case, **changes), runtime=runtimes[0])
    next(first), next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(
        experiment(case, **changes), resume=tmp_path / "checkpoint", runtime=runtimes[1]
    )
    assert differences(state(finished(case, **changes)), state(drained(rest))) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"radio": TIMED, "tree": TREES[3]}, "virtual clock"),
        pytest.param(
            {"device": "cuda"},
            'use device = "cpu"',
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ),
    ],
)
def test_what_nodes_that_share_nothing_cannot_run_is_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        covey.run(experiment(PLAIN["FedAvg"], **changes), runtime="loopback")


def test_several_seeds_and_unknown_runtimes_are_refused() -> None:
    both = [experiment(PLAIN["FedAvg"], seed=seed) for seed in (0, 1)]
    with pytest.raises(ConfigError, match="one seed at a time"):
        covey.runs(both, runtime="loopback")
    with pytest.raises(ConfigError, match="choose one of simulator, loopback"):
        covey.run(both[0], runtime="cloud")
