"""Devices without training examples receive and are scored; for all others they might not be there.

They stand last in the tree, so that the others have the same ids with and without them: a draw is
addressed by ids.
"""

import json
import os
from dataclasses import fields, replace
from typing import Any

import torch

import covey
from covey import Algorithm, Tree
from covey.algorithms.nested import Nested
from covey.data import Part, Shards
from covey.runs.run import Run
from tests import peek
from tests.given import drained, played
from tests.laws.cases import (
    CASES,
    FLAT,
    PLAIN,
    SHARDS,
    TREES,
    Case,
    differences,
    every,
    experiment,
    state,
    whole,
)

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
DEVICES = SHARDS.devices
RECEIVERS = [DEVICES, DEVICES + 1]

LARGER = {
    FLAT: Tree.flat(10),
    TREES[3]: Tree.grouped([3, 1, 5, 1]),
    TREES[4]: Tree(((3,), (1, 2, 1), (3, 1, 5, 1))),
}
"""The trees of the laws with a receiver at the last edge, and one alone at an edge of its own."""

LEARNERS = {
    name: case
    for name, case in CASES.items()
    if "radio" not in case.settings and case.algorithm.needs_examples is None
}
SOME = (
    "FedAvg-sample", "FedAvg-sample-train-cyclic", "HierFAVG-sample-samples", "PerMFL-lists", "PerMFL-stale",
    "FedAMP-sample", "Nested-four-tiers",
)  # fmt: skip
QUICK = {name: case for name, case in LEARNERS.items() if name in PLAIN or name in SOME}
NAMES = ("FedAvg-sample", "FedAMP", "HierFAVG-device_sample-train", "PerMFL-stale", "FedPer")
ACROSS = {name: LEARNERS[name] for name in NAMES}
"""Cohorts, tables of all children, idle devices, edges, private layers."""
MIDDLE = [0, 3, 5]
"""Receivers among the others; device 3 is alone at its edge."""


def with_receivers(shards: Shards = SHARDS) -> Shards:
    """The shards with two more devices: one is tested on device 0's examples, one has nothing."""
    test = [shards.test.held(device).numpy() for device in range(DEVICES)]
    return replace(
        shards,
        train=longer(shards.train),
        validation=longer(shards.validation),
        test=Part.of([*test, shards.train.held(0).numpy(), []]),
    )


def longer(part: Part) -> Part:
    """The part with two more devices that hold nothing."""
    return Part(part.index, torch.cat([part.offset, part.offset[-1:].repeat(2)]))


def lengthened(algorithm: Algorithm) -> Algorithm:
    """The algorithm with entries for the new nodes in its lists of one value per node."""
    if isinstance(algorithm, Nested):
        return algorithm
    more: dict[str, Any] = {}
    for field in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if isinstance(value, list | tuple) and len(value) in (3, DEVICES):
            extra = len(value) // 3  # one edge, two devices
            more[field.name] = [*value, *value[:extra]]
    return replace(algorithm, **more)  # type: ignore[type-var]


def received(case: Case, *, runtime: str = "simulator", **changes: Any) -> Run:
    """The case's run with receivers."""
    case = replace(case, algorithm=lengthened(case.algorithm))
    plain = experiment(case)
    changes = {"data": with_receivers(), "tree": LARGER[plain.tree], **changes}
    ready = experiment(replace(case, settings={**case.settings, **changes}))
    return played(ready, runtime=runtime)


def of_training(run: Run) -> dict[str, Any]:
    """Everything that training left: rows, cohorts, notes, bytes; without scores and their bytes."""
    out = state(run)
    meter = [entry for entry in run.meter.state() if "score" not in str(entry)]
    out["meter"] = json.dumps(sorted(meter))
    records = json.loads(out.pop("history"))
    for record in records:
        del record["models"]
        traffic = record["traffic"].items()
        record["traffic"] = {key: value for key, value in traffic if "score" not in key}
    out["history"] = json.dumps(records)
    return out


@every(LEARNERS if ALL else QUICK)
def test_for_the_others_receivers_might_not_be_there(case: Case) -> None:
    assert differences(of_training(whole(case.name)), of_training(received(case))) == []


def among(shards: Shards = SHARDS) -> Shards:
    """The shards in which some devices in the middle have no training examples."""
    held = [shards.train.held(device).tolist() for device in range(DEVICES)]
    for device in MIDDLE:
        held[device] = []
    return replace(shards, train=Part.of(held))


def finished(case: Case, *, runtime: str = "simulator", **changes: Any) -> Run:
    return played(experiment(case, data=among(), **changes), runtime=runtime)


@every(LEARNERS if ALL else ACROSS)
def test_neither_runtimes_nor_workers_nor_seeds_change_a_bit(case: Case) -> None:
    alone = state(finished(case))
    assert differences(alone, state(finished(case, runtime="loopback"))) == []
    assert differences(alone, state(finished(case, workers=3, memory=1))) == []
    together = drained(covey.runs([experiment(case, data=among(), seed=seed) for seed in (0, 4)]))
    assert differences(alone, state(together.seeds[0])) == []


@every(LEARNERS if ALL else ACROSS)
def test_receivers_keep_nothing_and_are_in_no_cohort(case: Case) -> None:
    run = finished(case)
    for tier, name, ids, _, _ in peek.columns(run):
        if tier == "device":
            assert not set(ids.tolist()) & set(MIDDLE), name
    for record in run.history:
        assert not set(record.cohorts["device"]) & set(MIDDLE)
