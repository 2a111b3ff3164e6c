"""Another tree for a run that stands: seats move, come and go, and go on with what they keep."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import covey
from covey import Experiment, Tree, laws, models
from covey.algorithms import FedAvg, PerMFL, SFedHP
from covey.data import census
from covey.deployed.commands import deploy_change
from covey.deployed.files.deployment import Deployment
from covey.deployed.node.disk import Disk, DiskAdmission
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.missed import PendingOrders
from covey.deployed.node.server_run import captured_in, finish, server_run
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.plan import plan_files
from covey.deployed.plan.change import Seats, TreeChange, changed, check_followed, disk_change
from covey.deployed.plan.local import free_ports
from covey.deployed.plan.process import Process
from covey.deployed.plan.seats import names_by_tier, names_of, seats_of
from covey.deployed.transport.transport import AskKey
from covey.errors import CheckpointError, ConfigError
from covey.files.config import load
from covey.kernel.store.store import Entry, Frozen
from covey.runs.saved.fingerprint import of as fingerprint_of
from tests.cli.command import SMALL, exits, spawn
from tests.deployed.scripts import Tools
from tests.given import drained

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
OLD = {"north": ["a", "b"], "south": ["c", "d"]}
NEW = {"north": ["b"], "south": ["c", "a"], "west": ["e"]}
"""a moves to another edge, d is gone, e is new on an edge that is new."""
FEEDBACK = {"name": "int8", "update": True, "feedback": True}
ORDER = AskKey("run", 0, "order", 0, "hold", "ab")
ALGORITHMS = {
    "PerMFL": PerMFL(edge_rounds=2, steps=2),
    "SFedHP": SFedHP(edge_rounds=2, steps=2),
    "FedAvg": FedAvg(steps=2),
}


def names(edges: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    devices = [device for group in edges.values() for device in group]
    return {"server": ["server"], "edge": list(edges), "device": devices}


def seats(edges: Mapping[str, Sequence[str]], tree: Tree | None = None) -> Seats:
    """The seats of a tree, or of one of its tiers alone."""
    tree = tree or Tree.grouped([len(group) for group in edges.values()])
    return seats_of(tree, {tier: names(edges)[tier] for tier in tree.tiers[1:]})


def examples(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of a device, which follow its name."""
    draws = torch.Generator().manual_seed(ord(device))
    count = 5 + ord(device) % 3
    return torch.randn(count, 3, generator=draws), torch.randint(2, (count,), generator=draws)


def experiment(edges: Mapping[str, Sequence[str]], algorithm: str, rounds: int) -> Experiment:
    own = [examples(device) for device in names(edges)["device"]]
    return Experiment(
        ALGORITHMS[algorithm],
        covey.data.own_parts(train=own, validation=own, test=own, classes=2),
        models.linear(3, 2),
        Tree.grouped([len(group) for group in edges.values()]),
        rounds,
        score_every=1,
        codec=FEEDBACK,
    )


def seats_used(edges: Mapping[str, Sequence[str]], one: Experiment) -> Seats:
    """The seats of the tiers that the algorithm uses."""
    tree, _ = one.algorithm.fit(one.tree)
    return seats(edges, tree)


def moved_rows(frozen: Frozen, places: Sequence[int]) -> Frozen:
    """The rows of a column with the new numbers of their nodes."""
    new = {place: number for number, place in enumerate(places) if place >= 0}
    entries = {}
    for label, entry in frozen.entries.items():
        rows = zip(entry.ids.tolist(), entry.rounds.tolist(), entry.places.tolist(), strict=True)
        kept = sorted((new[node], round, row) for node, round, row in rows if node in new)
        columns = list(zip(*kept, strict=True)) or [(), (), ()]
        ids, rounds, at = (torch.tensor(column, dtype=torch.int64) for column in columns)
        entries[label] = Entry(ids, rounds, at)
    return replace(frozen, entries=entries)


def simulated(algorithm: str, *, before: int, rounds: int, planned: int) -> covey.Run:
    """The same in the simulator: rows are put where the new tree has their nodes."""
    old = covey.run(experiment(OLD, algorithm, planned))
    while old.round < before:
        next(old)
    old.runtime.commit()
    new = covey.run(experiment(NEW, algorithm, rounds))
    change = TreeChange(seats_used(OLD, old.experiment), seats_used(NEW, new.experiment))
    captured = changed(old.captured(), change, fingerprint_of(new.experiment))
    for frozen in old.runtime.freeze(0):
        new.runtime.thaw(moved_rows(frozen, change.places(frozen.tier)), 0)
    new.stand(captured, [record.as_dict() for record in old.history])
    new.runtime.commit()
    return drained(new)


def move_disks(folder: Path, change: TreeChange) -> None:
    """What an operator does: every seat keeps its disk, whatever its number is."""
    for tier in list(names_by_tier(change.new))[1:]:
        for number, place in enumerate(change.places(tier)):
            if place >= 0:
                shutil.move(folder / "old" / f"{tier}{place}", folder / "new" / f"{tier}{number}")
    top = next(iter(change.new.values())).tier
    shutil.move(folder / "old" / f"{top}0", folder / "new" / f"{top}0")


def deployed(folder: Path, algorithm: str, *, before: int, rounds: int, planned: int) -> covey.Run:
    """Two trees of nodes with disks, one after the other; `planned` rounds on the first."""
    first = LocalTree(folder / "old")
    old = experiment(OLD, algorithm, planned)
    run = server_run(old, first)
    while run.round < before:
        next(run)
    run.runtime.commit()
    first.close()
    new = experiment(NEW, algorithm, rounds)
    change = TreeChange(seats_used(OLD, old), seats_used(NEW, new))
    path = folder / "old" / "server0" / "node.sqlite"
    disk = Disk(path)
    prepared = disk_change(disk, change, fingerprint_of(new))
    assert prepared.rounds == before
    prepared.write(disk, folder / "backup")
    disk.close()
    move_disks(folder, change)
    second = LocalTree(folder / "new")
    run = server_run(new, second)
    assert run.round == before
    drained(run)
    finish(run)
    return run


@pytest.mark.parametrize("planned", [2, 3], ids=["ended", "interrupted"])
@pytest.mark.parametrize("algorithm", list(ALGORITHMS) if ALL else ["PerMFL"])
def test_a_run_goes_on_as_in_the_simulator(algorithm: str, planned: int, tmp_path: Path) -> None:
    run = deployed(tmp_path, algorithm, before=2, rounds=4, planned=planned)
    expected = simulated(algorithm, before=2, rounds=4, planned=planned)
    assert laws.differences(laws.state(expected), laws.state(run)) == []
    assert len(run.history) == 4


def test_another_tree_gives_other_rows(tmp_path: Path) -> None:
    """Or the test above could not fail."""
    run = covey.run(experiment(OLD, "PerMFL", 4))
    drained(run)
    other = simulated("PerMFL", before=2, rounds=4, planned=4)
    assert not torch.equal(run.w, other.w)


def test_sums_and_scores_follow_their_nodes() -> None:
    old = covey.run(experiment(OLD, "PerMFL", 3))
    next(old)
    new = experiment(NEW, "PerMFL", 3)
    change = TreeChange(seats(OLD), seats(NEW))
    before = old.captured()
    after = changed(before, change, fingerprint_of(new))
    assert change.places("device") == [1, 2, 0, -1]
    assert change.added == ["west", "e"]
    assert change.removed == ["d"]
    for number, (tier, _) in enumerate(before.facts["totals"]):
        was = before.tensors[f"totals.{number}"].tolist()
        now = after.tensors[f"totals.{number}"].tolist()
        assert now == [was[place] if place >= 0 else 0 for place in change.places(tier)]
    scores = [name for name in before.tensors if name.startswith("devices.")]
    assert scores
    for name in scores:
        assert after.tensors[f"{name}.ids"].tolist() == [0, 1, 2]
        assert torch.equal(after.tensors[name], before.tensors[name][[1, 2, 0]])


def test_what_else_changes_is_refused() -> None:
    old = covey.run(experiment(OLD, "PerMFL", 3))
    next(old)
    other = replace(experiment(NEW, "PerMFL", 3), seed=7)
    with pytest.raises(ConfigError, match=r"the run's seed is 0, the new file's is 7"):
        changed(old.captured(), TreeChange(seats(OLD), seats(NEW)), fingerprint_of(other))
    with pytest.raises(ConfigError, match="keeps the tiers"):
        TreeChange(seats(OLD), seats_of(Tree.flat(1), {"device": ["a"]}))


def test_a_disk_without_a_round_has_nothing_to_keep(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    change = TreeChange(seats(OLD), seats(NEW))
    with pytest.raises(CheckpointError, match="covey deploy plan"):
        disk_change(disk, change, {})
    assert captured_in(disk) is None


def test_a_tree_does_not_change_twice(tmp_path: Path) -> None:
    """A command that is given again would move sums and scores a second time."""
    one = experiment(OLD, "FedAvg", 1)
    tree = LocalTree(tmp_path)
    run = server_run(one, tree)
    next(run)
    run.runtime.commit()
    tree.close()
    old = seats_used(OLD, one)
    first, second, *others = names(OLD)["device"]
    change = TreeChange(old, seats_of(Tree.flat(4), {"device": [second, first, *others]}))
    disk = Disk(tmp_path / "server0" / "node.sqlite")
    disk_change(disk, change, fingerprint_of(one)).write(disk, tmp_path / "backup")
    with pytest.raises(ConfigError, match=r"another order; give --server"):
        disk_change(disk, change, fingerprint_of(one))
    disk_change(disk, TreeChange(change.new, old), fingerprint_of(one))
    disk.close()


def test_a_seat_does_not_move_from_an_edge_that_owes_an_order(tmp_path: Path) -> None:
    """The device would never hold the rows that were chosen while its edge was away."""
    disk = Disk(tmp_path / "node.sqlite")
    change = TreeChange(seats(OLD), seats(NEW))
    north, south = (names(OLD)["edge"].index(name) for name in ("north", "south"))
    check_followed(disk, change)
    owed = PendingOrders(disk)
    owed.add(ORDER, "best", {south: b""}, before=1)
    check_followed(disk, change)  # nobody moves away from it
    owed.add(ORDER, "best", {north: b""}, before=1)
    text = r"north was away .* and a, which moves away .*; start the tree as it was until north"
    with pytest.raises(ConfigError, match=text):
        check_followed(disk, change)
    owed.settle(north)
    disk.note(**owed.facts())
    check_followed(disk, change)
    disk.close()


def test_a_disk_that_is_behind_is_refused_before_its_parent_is_ready(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.receive({3: 5})
    admission = DiskAdmission(disk)
    assert admission.refusal(3, "run/0/3/train/7/device/ab#5") is None
    assert "behind its parent's journal" in str(admission.refusal(3, "run/0/3/train/7/device/ab#4"))
    assert "behind its parent's journal" in str(admission.refusal(3, None))
    assert admission.refusal(2, None) is None


def test_an_edge_knows_its_children_by_name(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.seat_children({"a": 0, "b": 1, "c": 2})
    disk.receive({0: 10, 1: 11, 2: 12})
    late: list[Any] = [["k", [0, "train", 7, "device", 2, "late"]], ["k", [0, "train", 7, "device", 1, "late"]]]  # fmt: skip
    below: list[Any] = [["k", [[0, "train", 7, "device", 2, "absent"]]], ["l", []]]
    disk.note(owed=late, **{"ended": below, "good ended": below[:1]})
    disk.seat_children({"a": 0, "b": 1, "c": 2})
    assert disk.received(2) == 12
    disk.seat_children({"c": 1, "new": 2, "a": 3})
    assert [disk.received(seat) for seat in range(4)] == [0, 12, 0, 10]
    assert disk.fact("owed") == [["k", [0, "train", 7, "device", 1, "late"]]]
    assert disk.fact("ended") == [["k", []], ["l", []]]  # nobody can say who has which number now
    assert disk.fact("good ended") == [["k", []]]


def test_the_backup_is_the_disk_as_it_was(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.note(run="one")
    disk.file.copy(tmp_path / "copy.sqlite")
    disk.note(run="two")
    assert Disk(tmp_path / "copy.sqlite").fact("run") == "one"


def test_seats_have_the_names_of_the_file() -> None:
    tree = Tree.grouped([2, 1])
    given = {"device": ["pump-a", "pump-b", "pump-c"]}
    named = seats_of(tree, given)
    assert list(named) == ["server", "edge0", "edge1", "pump-a", "pump-b", "pump-c"]
    assert named["edge0"].children == ("pump-a", "pump-b")
    assert named["pump-c"].parent == "edge1"
    other = seats_of(Tree.grouped([1, 2]), given)
    assert TreeChange(named, other).moved == {"pump-b": ("edge0", "edge1")}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": ["a"]}, "has 1 names of 3"),
        ({"device": ["a", "a", "b"]}, "two seats are called 'a'"),
        ({"device": ["edge0", "a", "b"]}, "two seats are called 'edge0'"),
        ({"device": ["A", "b", "c"]}, "lower-case"),
        ({"server": ["top"]}, "can be named"),
        ({"pump": ["a"]}, "can be named"),
    ],
)
def test_names_that_are_none_are_refused(given: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        names_of(Tree.grouped([2, 1]), given)


# The command

FILE = """
name = "pumps"
rounds = ROUNDS
least = 1
score_every = 1

[algorithm]
name = "permfl"
edge_rounds = 2
steps = 2

[data]
name = "census"
path = "facts"
order = ORDER
features = ["heat", "speed"]
classes = ["hot", "ok"]

[model]
name = "linear"

[tree]
edges = EDGES

[deploy]
control_port = CONTROL
state = "FOLDER/state"

[deploy.names]
edge = NAMES

[deploy.address]
ADDRESSES

[deploy.data]
device = "FOLDER/{seat}.csv"
"""


@dataclass
class Pumps:
    """Files of pumps in a folder, and trees of them."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "facts").mkdir()
        for number, name in enumerate("abcde"):
            draws = torch.Generator().manual_seed(number)
            rows = torch.randn(20 + number, 2, generator=draws).tolist()
            lines = [f"{heat},{speed},{'hot' if heat > speed else 'ok'}" for heat, speed in rows]
            own = self.folder / f"{name}.csv"
            own.write_text("\n".join(["heat,speed,label", *lines]), encoding="utf-8")

    def describe(self, file: Path) -> None:
        for name in "abcde":
            told = exits(0, "deploy", "describe", file, self.folder / f"{name}.csv")
            (self.folder / "facts" / f"{name}.json").write_text(told.out, encoding="utf-8")

    def file(self, name: str, edges: Mapping[str, Sequence[str]], rounds: int) -> Path:
        ports = free_ports(len(edges) + 2)
        lines = [f'server = "127.0.0.1:{ports[0]}"']
        lines += [f'{edge} = "127.0.0.1:{port}"' for edge, port in zip(edges, ports[1:], strict=False)]  # fmt: skip
        values = {
            "ROUNDS": rounds,
            "ORDER": [device for group in edges.values() for device in group],
            "EDGES": [len(group) for group in edges.values()],
            "NAMES": list(edges),
            "CONTROL": ports[-1],
            "FOLDER": self.folder,
            "ADDRESSES": "\n".join(lines),
        }
        text = FILE
        for key, value in values.items():
            shown = json.dumps(value) if isinstance(value, list) else str(value)
            text = text.replace(key, shown)
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def pumps(tmp_path: Path) -> Pumps:
    pytest.importorskip("cryptography")
    out = Pumps(tmp_path)
    out.describe(out.file("old.toml", OLD, 2))
    exits(0, "deploy", "plan", tmp_path / "old.toml", "--out", tmp_path / "old")
    return out


def run_tree(plan: Path) -> None:
    """All processes of a plan, until the server has ended."""
    folders = sorted(path.parent for path in plan.glob("*/node.toml"))
    running = {}
    for folder, control in zip(folders, free_ports(len(folders)), strict=True):
        words = ["node", folder / "node.toml", "--insecure", "--control-port", control]
        listen = Process.load(folder / "node.toml").listen
        if listen is not None:
            words += ["--listen", listen.replace("0.0.0.0", "127.0.0.1")]
        running[folder.name] = spawn(*words)
    try:
        code = running["server"].wait(300)
    except subprocess.TimeoutExpired:
        code = None
    said = []
    for name, process in running.items():
        process.terminate()
        try:
            said.append(f"{name}: {process.communicate(timeout=20)[1]}")
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(f"{name}: {process.communicate()[1]}")
    assert code == 0, "\n".join(said)


@pytest.mark.skipif(not ALL, reason="starts many processes")
def test_real_processes_go_on_after_a_change(pumps: Pumps) -> None:
    pytest.importorskip("grpc")
    folder = pumps.folder
    run_tree(folder / "old")
    file = pumps.file("new.toml", NEW, 4)
    out = folder / "new"
    server = folder / "old" / "server"
    authority = ("--authority", folder / "our certs")
    done = exits(0, "deploy", "change", file, "--server", server, "--out", out, *authority)
    assert f"{{1:-'{folder}/our certs'}}" in (out / "sign.sh").read_text(encoding="utf-8")
    assert f"  sh {out}/start.sh" in done.out
    assert "a: from north to south; it keeps its disk" in done.out
    assert "west: new" in done.out
    assert "d: gone" in done.out
    assert "goes on after round 2" in done.out
    assert not (out / "b" / "key.pem").exists()  # b has its key and its certificate
    assert (out / "e" / "key.pem").exists()
    disk = folder / "state" / "server" / "server" / "node.sqlite"
    assert (disk.parent / "node.before-2.sqlite").exists()
    run_tree(out)
    records = [json.loads(record) for record in Disk(disk).records()]
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    rows = Disk(folder / "state" / "a" / "a" / "node.sqlite").rows("device", 2)
    assert {kept.round for kept in rows if kept.label == "present"} == {3}
    again = exits(
        2, "deploy", "change", file, "--server", folder / "old" / "server", "--out", folder / "x"
    )
    assert "stands on another tree" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--server", "nowhere"], "the folder that covey deploy plan wrote for the server"),
        (["seed=3"], "there is no disk"),
        (["deploy.state=/elsewhere"], "the server's disk is in"),
    ],
)
def test_the_command_refuses_before_it_writes(pumps: Pumps, words: list[str], said: str) -> None:
    file = pumps.file("new.toml", NEW, 4)
    out = pumps.folder / "new"
    result = exits(
        2, "deploy", "change", file, "--server", pumps.folder / "old" / "server", *words, "--out", out,
    )  # fmt: skip
    assert said in result.err.replace("\n", " ")
    assert not out.exists()


def test_the_command_refuses_where_an_edge_owes_an_order(
    pumps: Pumps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_change, "disk_change", Mock())  # there is no run yet
    state = pumps.folder / "state" / "server"
    (state / "run").mkdir(parents=True)
    disk = Disk(state / "server" / "node.sqlite")
    PendingOrders(disk).add(ORDER, "best", {0: b""}, before=1)
    disk.close()
    file = pumps.file("new.toml", NEW, 4)
    out = pumps.folder / "new"
    server = pumps.folder / "old" / "server"
    refused = exits(2, "deploy", "change", file, "--server", server, "--out", out)
    assert "north was away when the server ordered to hold rows" in refused.err.replace("\n", " ")
    assert not out.exists()


def test_a_change_keeps_the_scaling_of_the_run(
    pumps: Pumps, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[deploy_change.Replanned] = []

    def changed_now(both: deploy_change.Replanned, *_: Any) -> int:
        seen.append(both)
        return 2

    monkeypatch.setattr(deploy_change.Replanned, "write", changed_now)
    state = pumps.folder / "state" / "server"
    (state / "run").mkdir(parents=True)
    Disk(state / "server" / "node.sqlite").close()
    server = pumps.folder / "old" / "server"
    file = pumps.file("new.toml", NEW, 4)
    exits(0, "deploy", "change", file, "--server", server, "--out", pumps.folder / "new")
    old = json.loads((server / "census.json").read_text(encoding="utf-8"))
    new = json.loads(seen[0].new.files()["census.json"])
    assert new["columns"] == old["columns"]
    assert new["devices"] != old["devices"]
    (pumps.folder / "census.json").write_text(json.dumps(new), encoding="utf-8")
    read_again = census(str(pumps.folder / "census.json"), classes=("hot", "ok"))
    assert read_again.scaling.factor.equal(seen[0].old.experiment.data.scaling.factor)


FAR = (
    'deploy.address={server="s", edge="{seat}"}',
    'deploy.machine={device="{process}.far"}',
    "deploy.state=/srv/covey",
)


def planned(file: Path, *changes: str) -> Deployment:
    return Deployment.of(load(file, [*FAR, *changes]))


def test_the_scripts_of_a_change_can_be_started_again(pumps: Pumps, tmp_path: Path) -> None:
    """d leaves its process, a joins it, and keeps its own certificate from before no longer."""
    tools = Tools(tmp_path / "bin")
    authority = tmp_path / "certs"
    old = planned(tmp_path / "old.toml", 'deploy.processes.gate=["c", "d"]')
    plan = tmp_path / "old plan"
    plan_files.write(old.processes, old.files(), plan, old.deploy.image)
    plan_files.add_requests(old.processes, plan)
    plan_files.write_signing(old.processes, plan, authority)
    assert tools.run(plan / "sign.sh") == 0, tools.said
    new_file = pumps.file("new.toml", NEW, 4)
    new = planned(new_file, 'deploy.processes.gate=["c", "a"]')
    out = tmp_path / "new plan"
    deploy_change.Replanned(old, new).write_plan(out, authority)
    for _ in range(2):
        assert tools.run(out / "sign.sh") == 0, tools.said
    for name in ("gate/c", "a/a"):
        make_disk(tools, f"{name.partition('/')[0]}.far", name)
    assert tools.run(out / "start.sh") == 1
    moved_by_hand = tools.disk("gate.far", "gate/a")
    moved_by_hand.parent.mkdir()
    tools.disk("a.far", "a/a").rename(moved_by_hand)
    assert tools.run(out / "start.sh") == 0, tools.said
    assert set(Identity(out / "gate").check().seats) == {"a", "c"}
    revoked = {entry.name for entry in Authority(authority).issued() if entry.revoked}
    assert revoked == {"gate", "a"}
    (out / "b" / "ca.pem").write_bytes((plan / "b" / "ca.pem").read_bytes())
    assert len(Identity(out / "b").revoked()) == 2  # b keeps its own, and is told of both
    assert not (out / "b" / "key.pem").exists()
    assert "systemctl disable --now covey-a.service" in tools.log()
    assert not (out / "compose.yaml").exists()  # the disks of containers are elsewhere


def make_disk(tools: Tools, machine: str, name: str) -> None:
    """A disk of PROCESS/SEAT on a machine, whose bytes are its name."""
    disk = tools.disk(machine, name)
    disk.parent.mkdir(parents=True)
    disk.write_text(name, encoding="utf-8")


def test_a_disk_follows_its_seat_into_a_process_of_another_name(
    pumps: Pumps, tmp_path: Path
) -> None:
    """b joins c: a-1 becomes a, and c-3 becomes b-2; one edge has another machine."""
    tools = Tools(tmp_path / "bin")
    pairs = ("deploy.devices_per_process=2", 'deploy.machine={device="m"}')
    old = planned(pumps.file("old2.toml", {"north": "ab", "south": "cd"}, 2), *pairs)
    new_file = pumps.file("new2.toml", {"north": "a", "south": "bcd"}, 2)
    new = planned(new_file, *pairs, 'deploy.address={server="s", north="north", south="other"}')
    assert [process.name for process in old.processes][-2:] == ["a-1", "c-3"]
    assert [process.name for process in new.processes][-3:] == ["a", "b-2", "d"]
    both = deploy_change.Replanned(old, new)
    out = tmp_path / "new plan"
    both.write_plan(out, tmp_path / "certs")
    assert [str(move) for move in both.disks()] == [
        "south: its disk must go from south:/srv/covey/south/south to other:/srv/covey/south/south; "
        "start.sh moves it where that is one machine, and otherwise waits until you have",
        "a: start.sh moves its disk from m:/srv/covey/a-1/a to m:/srv/covey/a/a",
        "b: start.sh moves its disk from m:/srv/covey/a-1/b to m:/srv/covey/b-2/b",
        "c: start.sh moves its disk from m:/srv/covey/c-3/c to m:/srv/covey/b-2/c",
        "d: start.sh moves its disk from m:/srv/covey/c-3/d to m:/srv/covey/d/d",
    ]
    for name in ("a-1/a", "a-1/b", "c-3/c"):
        make_disk(tools, "m", name)
    make_disk(tools, "south", "south/south")
    for own in out.glob("*/"):
        (own / "certificate.pem").touch()
    assert tools.run(out / "start.sh") == 1
    assert "not done: south d. When the cause is mended" in tools.said
    by_hand = "move the folder /srv/covey/south/south from south to /srv/covey/south/south on other"
    assert f"other has no disk of south: {by_hand}." in tools.said
    assert "m has no disk of d: move the folder /srv/covey/c-3/d" in tools.said
    enabled = [line.split()[-1] for line in tools.log() if line.startswith("systemctl enable")]
    assert enabled == [f"covey-{name}.service" for name in ("server", "north", "a", "b-2")]
    make_disk(tools, "m", "c-3/d")
    make_disk(tools, "other", "south/south")
    for _ in range(2):
        assert tools.run(out / "start.sh") == 0, tools.said
        for name, before in {"a/a": "a-1/a", "b-2/b": "a-1/b", "b-2/c": "c-3/c", "d/d": "c-3/d"}.items():  # fmt: skip
            assert tools.disk("m", name).read_text(encoding="utf-8") == before
            assert not tools.disk("m", before).parent.exists()


def test_a_disk_is_not_moved_over_another_or_under_a_process(pumps: Pumps, tmp_path: Path) -> None:
    tools = Tools(tmp_path / "bin")
    machine = 'deploy.machine={device="m"}'
    file = pumps.file("old2.toml", {"north": "ab", "south": "cd"}, 2)
    old = planned(file, machine, "deploy.devices_per_process=2")
    out = tmp_path / "new"
    deploy_change.Replanned(old, planned(file, machine)).write_plan(out, tmp_path)
    for own in out.glob("*/"):
        (own / "certificate.pem").touch()
    for name in ("a-1/a", "a/a", "a-1/b", "c-3/c", "c-3/d"):
        make_disk(tools, "m", name)
    (tools.folder / "covey-c-3.service.running").touch()
    assert tools.run(out / "start.sh") == 1
    assert "not done: a c d." in tools.said
    assert "a has a disk in" in tools.said
    assert "covey-c-3 still runs; stop it first" in tools.said
    for name in ("a-1/a", "a/a", "c-3/c", "c-3/d"):
        assert tools.disk("m", name).read_text(encoding="utf-8") == name
    assert tools.disk("m", "b/b").read_text(encoding="utf-8") == "a-1/b"


def test_the_authority_is_beside_the_new_plan(tmp_path: Path) -> None:
    """The plan is copied to the operator's machine, where no other folder of this one is."""
    authority = deploy_change.authority_of(tmp_path / "old" / "server", tmp_path / "x" / "new")
    (tmp_path / "x" / "new").mkdir(parents=True)
    plan_files.write_signing([], tmp_path / "x" / "new", authority, change=True)
    text = (tmp_path / "x" / "new" / "sign.sh").read_text(encoding="utf-8")
    assert 'authority=${1:-"$folder"/../certs}' in text


def test_a_change_says_where_it_is_signed() -> None:
    facts = {
        "folder": "it's", "rounds": 2, "moved": {}, "added": [], "removed": ["d"],
        "stopped": ["gate"], "disks": ["c: its disk"], "commands": ["sh x/sign.sh"],
    }  # fmt: skip
    assert deploy_change.sentences(facts) == [
        "d: gone",
        "c: its disk",
        "start.sh disables covey-gate",
        "the run goes on after round 2; all nodes need their new folders",
        """copy 'it'"'"'s' to the operator's machine, where the authority is; there:""",
        "  sh x/sign.sh",
    ]


def test_shared_data_do_not_follow_their_devices(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    file = [*SMALL, 'deploy.address={server="s", edge="{seat}"}']
    exits(0, "deploy", "plan", *file, "--out", tmp_path / "old")
    result = exits(
        2, "deploy", "change", *file, "--server", tmp_path / "old" / "server", "--out", tmp_path / "n",
    )  # fmt: skip
    assert "follow their devices" in result.err.replace("\n", " ")
