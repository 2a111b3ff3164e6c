"""Another tree for a run that stands: seats move, come and go, and go on with what they keep."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey import Experiment, Tree, laws, models
from covey.algorithms import FedAvg, PerMFL, SFedHP
from covey.deployed.change import TreeChange, change_disk, changed, moved
from covey.deployed.disk import Disk
from covey.deployed.local_tree import LocalTree
from covey.deployed.seats import names_of, seats_of
from covey.deployed.server_run import captured_in, finish, server_run
from covey.errors import CheckpointError, ConfigError
from covey.kernel.store import Entry, Frozen
from covey.runs.fingerprint import of as fingerprint_of

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
OLD = {"north": ["a", "b"], "south": ["c", "d"]}
NEW = {"north": ["b"], "south": ["c", "a"], "west": ["e"]}
"""a moves to another edge, d is gone, e is new on an edge that is new."""
FEEDBACK = {"name": "int8", "update": True, "feedback": True}
ALGORITHMS = {
    "PerMFL": PerMFL(edge_rounds=2, steps=2),
    "SFedHP": SFedHP(edge_rounds=2, steps=2),
    "FedAvg": FedAvg(steps=2),
}


def names(edges: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    devices = [device for group in edges.values() for device in group]
    return {"server": ["server"], "edge": list(edges), "device": devices}


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


def tree_names(edges: Mapping[str, Sequence[str]], one: Experiment) -> dict[str, list[str]]:
    """The names of the tiers that the algorithm uses."""
    tree, _ = one.algorithm.fit(one.tree)
    return {tier: names(edges)[tier] for tier in tree.tiers}


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


def simulated(algorithm: str, *, before: int, rounds: int) -> covey.Run:
    """The same in the simulator: rows are put where the new tree has their nodes."""
    old = covey.run(experiment(OLD, algorithm, before + 1))
    while old.round < before:
        next(old)
    old.runtime.commit()
    new = covey.run(experiment(NEW, algorithm, rounds))
    change = TreeChange(tree_names(OLD, old.experiment), tree_names(NEW, new.experiment))
    captured = changed(old.captured(), change, fingerprint_of(new.experiment))
    new.stand(captured, [record.as_dict() for record in old.history])
    for frozen in old.runtime.freeze(0):
        new.runtime.thaw(moved_rows(frozen, change.places(frozen.tier)), 0)
    new.runtime.commit()
    for _ in new:
        pass
    return new


def move_disks(folder: Path, change: TreeChange) -> None:
    """What an operator does: every seat keeps its disk, whatever its number is."""
    for tier in list(change.new)[1:]:
        for number, place in enumerate(change.places(tier)):
            if place >= 0:
                shutil.move(folder / "old" / f"{tier}{place}", folder / "new" / f"{tier}{number}")
    top = next(iter(change.new))
    shutil.move(folder / "old" / f"{top}0", folder / "new" / f"{top}0")


def deployed(folder: Path, algorithm: str, *, before: int, rounds: int) -> covey.Run:
    """Two trees of nodes with disks, one after the other."""
    first = LocalTree(folder / "old")
    old = experiment(OLD, algorithm, before + 1)
    run = server_run(old, first)
    while run.round < before:
        next(run)
    run.runtime.commit()
    first.close()
    new = experiment(NEW, algorithm, rounds)
    change = TreeChange(tree_names(OLD, old), tree_names(NEW, new))
    path = folder / "old" / "server0" / "node.sqlite"
    disk = Disk(path)
    assert change_disk(disk, change, fingerprint_of(new), folder / "backup") == before
    disk.close()
    move_disks(folder, change)
    second = LocalTree(folder / "new")
    run = server_run(new, second)
    assert run.round == before
    for _ in run:
        pass
    finish(run)
    return run


@pytest.mark.parametrize("algorithm", list(ALGORITHMS) if ALL else ["PerMFL"])
def test_a_run_goes_on_as_in_the_simulator(algorithm: str, tmp_path: Path) -> None:
    run = deployed(tmp_path, algorithm, before=2, rounds=4)
    expected = simulated(algorithm, before=2, rounds=4)
    assert laws.differences(laws.state(expected), laws.state(run)) == []
    assert len(run.history) == 4


def test_another_tree_gives_other_rows(tmp_path: Path) -> None:
    """Or the test above could not fail."""
    run = covey.run(experiment(OLD, "PerMFL", 4))
    for _ in run:
        pass
    other = simulated("PerMFL", before=2, rounds=4)
    assert not torch.equal(run.w, other.w)


def test_sums_and_scores_follow_their_nodes() -> None:
    old = covey.run(experiment(OLD, "PerMFL", 3))
    next(old)
    new = experiment(NEW, "PerMFL", 3)
    change = TreeChange(names(OLD), names(NEW))
    before = old.captured()
    after = changed(before, change, fingerprint_of(new))
    assert change.places("device") == [1, 2, 0, -1]
    assert change.added() == ["west", "e"]
    assert change.removed() == ["d"]
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
        changed(old.captured(), TreeChange(names(OLD), names(NEW)), fingerprint_of(other))
    with pytest.raises(ConfigError, match="keeps the tiers"):
        TreeChange(names(OLD), {"server": ["server"], "device": ["a"]})


def test_a_disk_without_a_round_has_nothing_to_keep(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    change = TreeChange(names(OLD), names(NEW))
    with pytest.raises(CheckpointError, match="covey deploy plan"):
        change_disk(disk, change, {}, tmp_path / "backup")
    assert captured_in(disk) is None


def test_an_edge_knows_its_children_by_name(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.seat_children({"a": 0, "b": 1, "c": 2})
    with disk._transaction() as connection:
        for seat in range(3):
            connection.execute("INSERT INTO received VALUES (?, ?)", [seat, f"key {seat}"])
    late: list[Any] = [["k", [0, "train", 7, "device", 2, "late"]], ["k", [0, "train", 7, "device", 1, "late"]]]  # fmt: skip
    disk.note(owed=late)
    disk.seat_children({"a": 0, "b": 1, "c": 2})
    assert disk.received(2) == "key 2"
    disk.seat_children({"c": 1, "new": 2, "a": 3})
    assert [disk.received(seat) for seat in range(4)] == [None, "key 2", None, "key 0"]
    assert disk.fact("owed") == [["k", [0, "train", 7, "device", 1, "late"]]]


def test_the_backup_is_the_disk_as_it_was(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.note(run="one")
    disk.copy(tmp_path / "copy.sqlite")
    disk.note(run="two")
    assert Disk(tmp_path / "copy.sqlite").fact("run") == "one"


def test_seats_have_the_names_of_the_file() -> None:
    tree = Tree.grouped([2, 1])
    given = {"device": ["pump-a", "pump-b", "pump-c"]}
    seats = seats_of(tree, given)
    assert list(seats) == ["server", "edge0", "edge1", "pump-a", "pump-b", "pump-c"]
    assert seats["edge0"].children == ("pump-a", "pump-b")
    assert seats["pump-c"].parent == "edge1"
    other = {name: seat.parent for name, seat in seats.items()} | {"pump-b": "edge1"}
    parents = {name: seat.parent for name, seat in seats.items()}
    assert moved(parents, other) == {"pump-b": ("edge0", "edge1")}


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
