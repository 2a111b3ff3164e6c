"""A deployed node, with its own disk and a transport to its children, does what it does in the
simulator, bit for bit; also if it is dropped at any moment and made again from its disk.
"""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.deployed.faults import set_fault
from covey.deployed.node import tree_runtime
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import finish, missing_of, server_run
from covey.deployed.transport.local_transport import SeatLost
from covey.deployed.transport.transport import AskKey, Handler, Patience
from covey.errors import ConfigError, DivergedError, ProgramError, TransportError
from covey.runs.saved import snapshot
from covey.runtimes.alone.envelope import header_of
from tests.given import drained, played
from tests.laws import test_least as least
from tests.laws.cases import CASES, PLAIN, TIMED, TREES, Case, differences, experiment, state, whole
from tests.laws.test_loopback import ALL, FEW, LINKS, WIRED, Failing, everything

VARIED = [case for case in WIRED.values() if case.name not in PLAIN]
SOME = list(WIRED.values()) if ALL else [*list(PLAIN.values())[::4], *VARIED[::12]]
"""The cases that CI tries; test-all tries every one."""


@pytest.fixture
def tree(folder: Path) -> Iterator[LocalTree]:
    local = LocalTree(folder)
    yield local
    set_fault(None)
    local.close()


@pytest.mark.parametrize("case", SOME, ids=str)
def test_every_case_is_the_simulators(case: Case, tree: LocalTree) -> None:
    run = drained(covey.run(experiment(case), runtime=tree))
    assert differences(everything(whole(case.name)), everything(run)) == []


@pytest.mark.parametrize("form", least.FORMS)
def test_small_devices_are_counted_as_in_the_simulator(form: str, tree: LocalTree) -> None:
    """By a tree and by its replay (laws/test_least.py)."""
    changes = least.FORMS[form]
    simulated = played(least.experiment(**changes))
    run = played(least.experiment(**changes), runtime=tree)
    missing = missing_of(tree.nodes["server", 0].database)
    assert differences(everything(simulated), everything(run)) == []
    again = drained(replay(least.experiment(**changes), missing))
    assert differences(everything(simulated), everything(again)) == []
    assert [record.models for record in again.history] == [r.models for r in simulated.history]


@pytest.mark.parametrize("link", list(LINKS) if ALL else FEW[:1])
def test_codecs_with_memory_and_draws(link: str, tree: LocalTree) -> None:
    changes: dict[str, Any] = {"codec": LINKS[link]}
    case = CASES["SFedHP"]
    simulated = drained(covey.run(experiment(case, **changes)))
    run = drained(covey.run(experiment(case, **changes), runtime=tree))
    assert differences(everything(simulated), everything(run)) == []


# Crashes


class Killer:
    """Ends nodes at fault points, at random but for a first share of all passes."""

    def __init__(self, seed: int, share: float, where: Callable[[str], bool]) -> None:
        self._draw = random.Random(seed)
        self._share = share
        self._where = where
        self._alone = threading.Lock()
        self.killed: Counter[str] = Counter()

    def __call__(self, point: str) -> None:
        with self._alone:
            kills = self._where(point) and self._draw.random() < self._share
            if kills:
                self.killed[point] += 1
        if kills:
            raise SeatLost(point)


def below(point: str) -> bool:
    """Whether a thread of a seat passes a point: the server's is the main one."""
    return threading.current_thread() is not threading.main_thread()


CRASHED = ["SFedHP", "Scaffold-sample", "PFedBayes"]
FEEDBACK = {"name": "int8", "update": True, "feedback": True}


@pytest.mark.parametrize("name", list(WIRED) if ALL else CRASHED)
def test_nodes_that_are_killed_go_on(name: str, tree: LocalTree) -> None:
    """Devices and edges, inside an ask, inside a transaction, and between asks."""
    changes = {"codec": FEEDBACK, "score_every": 1}
    if "codec" in CASES[name].settings:
        changes = {"score_every": 1}
    killer = Killer(7, 0.1, below)
    set_fault(killer)
    run = drained(covey.run(experiment(CASES[name], **changes), runtime=tree))
    set_fault(None)
    simulated = drained(covey.run(experiment(CASES[name], **changes)))
    assert sum(killer.killed.values()) > 3
    assert differences(everything(simulated), everything(run)) == []


@pytest.mark.parametrize("name", list(PLAIN) if ALL else ["Scaffold-sample", "DemLearn"])
def test_a_server_that_is_killed_goes_on(name: str, tree: LocalTree) -> None:
    """With it all others: every object is made again from its disk."""
    changes: dict[str, Any] = {"codec": FEEDBACK, "score_every": 1}
    if "codec" in CASES[name].settings:
        changes = {"score_every": 1}
    killer = Killer(3, 0.3, lambda point: not below(point))
    starts = 0
    while True:
        run = server_run(experiment(CASES[name], **changes), tree)
        starts += 1
        set_fault(killer)
        run.runtime.rollback = lambda: None  # type: ignore[method-assign]
        try:
            drained(run)
            finish(run)
        except SeatLost:
            set_fault(None)
            continue
        set_fault(None)
        break
    simulated = drained(covey.run(experiment(CASES[name], **changes)))
    assert starts > 3
    assert differences(state(simulated), state(run)) == []


def test_the_same_key_does_not_train_twice(tree: LocalTree) -> None:
    """A reply that is lost is asked for again: the answer comes from the disk."""
    trained: Counter[str] = Counter()

    def hook(point: str) -> None:
        trained[point] += 1
        if point == "after-commit" and trained[point] == 3:
            raise SeatLost(point)

    run = covey.run(experiment(PLAIN["FedAvg"], rounds=1), runtime=tree)
    set_fault(hook)
    drained(run)
    set_fault(None)
    plain = drained(covey.run(experiment(PLAIN["FedAvg"], rounds=1)))
    assert trained["inside-ask"] == trained["before-commit"] == 2 * 8  # to train, and to score
    assert differences(everything(plain), everything(run)) == []


# Missing nodes


def slow(handler: Handler, seconds: float) -> Handler:
    """A node that takes its time."""

    def answer(key: AskKey, common: bytes, own: bytes) -> bytes:
        if key.lane == "train":
            time.sleep(seconds)
        return handler(key, common, own)

    return answer


def rows_of(run: covey.Run) -> dict[str, Any]:
    """All rows of a run, without its traffic and its notes."""
    return {key: value for key, value in state(run).items() if isinstance(value, torch.Tensor)}


MAY_MISS = [name for name, case in PLAIN.items() if case.algorithm.idle_trains]


@pytest.mark.parametrize("name", MAY_MISS if ALL else ["PFedMe", "HierFAVG"])
def test_a_quorum_goes_on_and_its_replay_is_equal(name: str, folder: Path) -> None:
    """Device 2 is late in the first round, and absent in the second."""
    case = CASES[name]
    asker = experiment(case).tree.tiers[-2]
    local = LocalTree(folder, patience={asker: Patience(0.25, 1)})
    changes: dict[str, Any] = {"score_every": 2, "rounds": 3}
    run = server_run(experiment(case, **changes), local)
    device = local.nodes["device", 2]
    parent = local.transport_above("device", 2)
    parent.take(2, slow(device.answer, 1.0))
    next(run)
    parent.leave(2)
    next(run)
    parent.take(2, device.answer)
    drained(run)
    finish(run)
    missing = missing_of(local.nodes["server", 0].database)
    assert {(entry.round, entry.status) for entry in missing if entry.number == 2} >= {
        (0, "late"),
        (1, "absent"),
    }
    again = drained(replay(experiment(case, **changes), missing))
    rows = rows_of(run)
    deployed = state(run)
    local.close()
    assert differences(state(again), deployed) == []
    plain = drained(covey.run(experiment(case, **changes)))
    assert differences(rows_of(plain), rows) != []


def test_a_late_node_that_lost_the_ask_was_absent(folder: Path) -> None:
    """Its next answer tells: the record is corrected, and the replay equals."""
    case = CASES["PFedMe"]
    local = LocalTree(folder, patience={"server": Patience(0.25, 1)})
    changes: dict[str, Any] = {"score_every": 3, "rounds": 3}
    run = server_run(experiment(case, **changes), local)
    device = local.nodes["device", 2]
    parent = local.transport_above("device", 2)

    over = threading.Event()

    def loses(key: AskKey, common: bytes, own: bytes) -> bytes:
        over.wait()
        return b""

    parent.take(2, loses)
    next(run)
    parent.take(2, device.answer)
    over.set()
    server = local.nodes["server", 0]
    server.asks.patience = None
    drained(run)
    finish(run)
    missing = missing_of(server.database)
    first = [entry.status for entry in missing if entry.number == 2 and entry.round == 0]
    assert first == ["late", "absent"]
    rows = rows_of(run)
    local.close()
    again = drained(replay(experiment(case, **changes), missing))
    assert differences(rows_of(again), rows) == []


def test_a_quorum_is_refused_where_every_answer_counts(folder: Path) -> None:
    local = LocalTree(folder, patience={"server": Patience(1.0, 4)})
    with pytest.raises(ConfigError, match="Scaffold counts on every answer; wait for all"):
        covey.run(experiment(PLAIN["Scaffold"]), runtime=local)
    local.close()
    with pytest.raises(ConfigError, match="quorum = 0: give 1 or more answers"):
        Patience(1.0, 0)


# Models


USED = ["SFedHP", "FedRep", "PFedBayes"]


@pytest.mark.parametrize("name", list(PLAIN) if ALL else USED[1:])
def test_every_device_has_its_models_as_files(name: str, tree: LocalTree) -> None:
    """Those of the chosen round, equal to the simulator's; nobody above has them."""
    changes: dict[str, Any] = {"score_every": 1}
    simulated = drained(covey.run(experiment(CASES[name], **changes)))
    run = drained(server_run(experiment(CASES[name], **changes), tree))
    for node in tree.nodes.values():
        node.shares_rows = False
    finish(run)
    space = run.runtime.task.space
    topology = simulated.runtime.tree
    for model in simulated.models():
        wanted = simulated.snapshot(model, "chosen")
        first, stop = topology.span(wanted.tier, torch.arange(topology.size(wanted.tier)))
        for device in range(8):
            path = tree.folder / f"device{device}" / "models" / f"{model}.safetensors"
            own = snapshot.read(path, space)
            (above,) = ((first <= device) & (device < stop)).nonzero()[0].tolist()
            expected = wanted.row(above, device)
            got = own.row(above, device)
            assert expected is not None
            assert got is not None
            assert torch.equal(expected, got)
            assert own.round == wanted.round
            for key, part in own.beside.items():
                rows = wanted.beside[key].rows[wanted.beside[key].ids == device]
                assert torch.equal(part.rows, rows)


def test_rows_stay_where_they_are_kept(tree: LocalTree) -> None:
    run = drained(server_run(experiment(PLAIN["PFedMe"]), tree))
    tree.nodes["device", 4].shares_rows = False
    with pytest.raises(TransportError, match="device 4 does not hand out the rows it keeps"):
        run.rows("personal")


# Errors


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("value", ProgramError, "device 5: ValueError: a sensor is broken"),
        ("diverged", DivergedError, "round 2: the kept 'personal' of device 5 is no longer finite"),
    ],
)
def test_an_error_ends_the_round_everywhere(
    how: str, kind: type[Exception], text: str, tree: LocalTree
) -> None:
    run = covey.run(experiment(Case("Failing", Failing(how=how))), runtime=tree)
    next(run)
    before = state(run)
    for _ in range(2):  # and again, when the round is tried again
        with pytest.raises(kind, match=re.escape(text)):
            next(run)
        assert differences(before, state(run)) == []


def test_a_disk_that_is_behind_is_refused_by_name(tree: LocalTree) -> None:
    run = covey.run(experiment(PLAIN["FedAvg"], rounds=2), runtime=tree)
    next(run)
    server = tree.nodes["server", 0]
    device = tree.nodes["device", 3]
    assert server.refusal(3, device.database.last_key) is None
    behind = server.refusal(3, None)
    assert behind is not None
    assert "device 3: its disk is behind its parent's journal (empty)" in behind
    assert server.refusal(3, f"key#{device.database.number + 1}") is None  # it may be ahead


def test_a_parent_whose_disk_is_behind_is_told_by_name(tree: LocalTree) -> None:
    """It asks for what was answered and followed by other asks, or it stands at an old round."""
    run = server_run(experiment(CASES["SFedHP"], rounds=3), tree)
    device = tree.nodes["device", 3]
    asked: list[tuple[AskKey, bytes, bytes]] = []

    def recorded(key: AskKey, common: bytes, own: bytes) -> bytes:
        asked.append((key, common, own))
        return device.answer(key, common, own)

    tree.transport_above("device", 3).take(3, recorded)
    next(run)
    first, *_, last = [one for one in asked if one[0].lane == "train"]
    assert header_of(device.answer(*last))["error"] is None
    kind, text = header_of(device.answer(*first))["error"]
    assert kind == "TransportError"
    assert "device 3 is asked again for" in text
    assert "the disk of a node above it is behind, or a parent lied; restore that disk" in text
    next(run)
    _, text = header_of(device.answer(*last))["error"]
    assert "device 3 is told that round 1 comes next, after round 2 did" in text
    drained(run)


def test_a_disk_of_another_run_is_refused(tree: LocalTree) -> None:
    run = covey.run(experiment(PLAIN["FedAvg"]), runtime=tree)
    next(run)
    tree.nodes["device", 2].database.note(run="another")
    with pytest.raises(TransportError, match="device 2 has the disk of another run"):
        next(run)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"radio": TIMED, "tree": TREES[3]}, "virtual clock"),
        ({"holdout_devices": 2}, "every device has a seat"),
    ],
)
def test_what_a_deployed_tree_cannot_run_is_refused(
    changes: dict[str, Any], text: str, tree: LocalTree
) -> None:
    with pytest.raises(ConfigError, match=text):
        covey.run(experiment(PLAIN["FedAvg"], **changes), runtime=tree)


def test_several_seeds_are_refused(tree: LocalTree) -> None:
    both = [experiment(PLAIN["FedAvg"], seed=seed) for seed in (0, 1)]
    with pytest.raises(ConfigError, match="one seed at a time"):
        covey.runs(both, runtime=tree)


# Checkpoints


@pytest.mark.parametrize("rows", [tree_runtime.ROWS, 1])
@pytest.mark.parametrize("name", ["SFedHP", "PFedBayes"] if ALL else ["SFedHP"])
def test_a_run_moves_between_runtimes(
    name: str, rows: int, folder: Path, tree: LocalTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the simulator to a deployed tree and back, with all rows at once or one by one."""
    monkeypatch.setattr(tree_runtime, "ROWS", rows)
    case = CASES[name]
    changes: dict[str, Any] = {"rounds": 4, "score_every": 1, "codec": FEEDBACK}
    first = covey.run(experiment(case, **changes))
    next(first)
    first.save(folder / "first")
    second = covey.run(experiment(case, **changes), resume=folder / "first", runtime=tree)
    next(second)
    second.save(folder / "second")
    rest = drained(covey.run(experiment(case, **changes), resume=folder / "second"))
    plain = drained(covey.run(experiment(case, **changes)))
    assert differences(state(plain), state(rest)) == []
    deployed = drained(second)
    assert differences(state(plain), state(deployed)) == []


def test_many_rows_come_in_several_messages(
    tree: LocalTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is longer than the rows of as many nodes as the limit holds."""
    run = drained(covey.run(experiment(CASES["SFedHP"], score_every=1), runtime=tree))
    together = list(run.runtime.freeze(0))
    size = max(frozen.rows[0].nbytes for frozen in together)
    lengths: list[int] = []
    for (tier, number), node in tree.nodes.items():
        if tier != "server":
            transport = tree.transport_above(tier, number)
            transport.take(number, measured(node.answer, lengths))
    list(run.runtime.freeze(0))
    longest = max(lengths)
    lengths.clear()
    monkeypatch.setattr(tree_runtime, "ROWS", 4 * size)
    apart = list(run.runtime.freeze(0))
    assert 2 * max(lengths) < longest
    assert len(together) == len(apart)
    for one, other in zip(together, apart, strict=True):
        assert (one.tier, one.name) == (other.tier, other.name)
        assert torch.equal(one.rows, other.rows)
        assert list(one.entries) == list(other.entries)
    lengths.clear()
    ids, _, rows = run.runtime.read("device", "personal", "present", 0)
    assert len(ids) == len(rows) == run.runtime.tree.size("device")
    assert 2 * max(lengths) < longest


def measured(handler: Handler, lengths: list[int]) -> Handler:
    """The same handler, which notes how long its answers are."""

    def answer(key: AskKey, common: bytes, own: bytes) -> bytes:
        out = handler(key, common, own)
        lengths.append(len(out))
        return out

    return answer
