"""An experiment on several processes has the bits of one process, and an error of one rank is an error
of all.

CI runs two ranks, and `make test-all` three as well. One torchrun runs all cases (tests/laws/sharded.py),
since a process takes seconds to start.
"""

import itertools
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.errors import ConfigError
from covey.runtimes.ranks import launch, ranks
from covey.runtimes.ranks.launch import Launch
from covey.runtimes.ranks.shares import Shares, deal
from tests.given import drained
from tests.laws.cases import CASES, PLAIN, TREES, differences, every, experiment, state, whole
from tests.laws.test_loopback import WIRED

ROOT = Path(__file__).parents[2]
ALL = bool(os.environ.get("COVEY_TEST_ALL"))
WORLDS = (2, 3) if ALL else (2,)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@cache
def results(world: int, folder: Path) -> dict[str, Any]:
    """What differs between the ranks and the simulator, by law and case."""
    target = folder / f"{world}-ranks" / "differences.json"  # beside its own checkpoints
    target.parent.mkdir()
    script = ("-m", "tests.laws.sharded", str(target))
    more = ("all",) if ALL else ()
    command = [sys.executable, *TORCHRUN, str(world), *script, *more]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=1200, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    out: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return out


@pytest.fixture(scope="module", params=WORLDS, ids="{} ranks".format)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return results(request.param, tmp_path_factory.getbasetemp())


LAWS = ("gathered", "added", "settings", "codecs", "resumed")


@pytest.mark.parametrize("law", LAWS)
def test_ranks_have_the_bits_of_one_process(law: str, found: dict[str, Any]) -> None:
    """With all-reduced sums ("added") rows differ by 1e-12 of their largest entry at most."""
    assert found[law]
    assert {name: lines for name, lines in found[law].items() if lines} == {}


@pytest.mark.skipif(not ALL, reason="a minute; COVEY_TEST_ALL=1")
def test_one_rank_that_torchrun_started(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every case, with the links of its tree, and resumed from checkpoints of other ranks."""
    found = results(1, tmp_path_factory.getbasetemp())
    for law in LAWS:
        assert found[law]
        assert {name: lines for name, lines in found[law].items() if lines} == {}


def test_a_save_that_fails_leaves_the_checkpoint_before(found: dict[str, Any]) -> None:
    """All ranks had written their parts, which the next save removes or uses."""
    unsaved = found["unsaved"]
    ranks = len(unsaved["texts"])
    assert unsaved["texts"] == ["CheckpointError: the disk is full"] * ranks
    assert unsaved["written"] == 2 * ranks
    assert unsaved["found"] == []
    for text in unsaved["damaged"]:
        assert re.search(r"unsaved\.part-1-of-.* is damaged: it is not what was written with", text)


ERRORS = {
    "other experiments": "the seed of rank 1 is not that of rank 0 (1 and 0)",
    "other data": "the data of rank 1 is not that of rank 0",
    "radio": "a radio has a virtual clock",
    "seeds": "it runs one seed at a time",
    "devices": "ranks for a tree with 1 devices",
    "gpu": "each rank takes the GPU of its LOCAL_RANK",
    "other calls": "Call run, save and rows on all ranks, in the same order",
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_rank_says_what_is_refused(name: str, found: dict[str, Any]) -> None:
    texts = found["errors"][name]
    assert all(ERRORS[name] in text for text in texts), texts


def test_an_error_on_one_rank_ends_the_round_on_all(found: dict[str, Any]) -> None:
    """A list of one text has no line about a state that has changed."""
    (first,), *others = found["errors"]["value"]
    assert re.match(r"ProgramError: rank \d: ValueError: a sensor is broken .*line \d+", first)
    (last,) = others[-1]
    assert "the algorithm Failing fails in round 2, with ValueError" in last
    for (text,) in found["errors"]["diverged"]:
        assert text.startswith("DivergedError: round 2: the kept 'personal' of device 6 is no")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that torchrun has started alone."""
    monkeypatch.setattr(ranks, "_joined", None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


@every(WIRED if ALL else dict(list(PLAIN.items())[::8]))
@pytest.mark.usefixtures("alone")
def test_one_rank_is_the_simulator(case: Any) -> None:
    run = covey.run(experiment(case), runtime="sharded")
    drained(run)
    assert differences(state(whole(case.name)), state(run)) == []
    assert run.engine["ranks"] == 1


# How processes are started


def test_a_process_knows_whether_it_is_one_of_several() -> None:
    two = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert not launch.several({})
    assert not launch.several({"WORLD_SIZE": "2"})
    assert launch.several(two)
    read = Launch.read(two | {"LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert read == Launch(1, 2, 0, "10.0.0.1", 29500, hosts_store=False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE = 'two': it must be a whole number of 1 or more"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE = '0'"),
        ({"RANK": "-1"}, "RANK = '-1': it must be a whole number of 0 or more"),
        ({"RANK": "2"}, "RANK = 2, but WORLD_SIZE = 2: ranks count from 0 to 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT = 70000 is no port"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK = 'x'"),
    ],
)
def test_a_wrong_launch_is_an_error(changes: dict[str, str], text: str) -> None:
    good = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with pytest.raises(ConfigError, match=re.escape(text)):
        Launch.read(good | changes)


def test_sharded_needs_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_joined", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="WORLD_SIZE is not set; start every process with torch"):
        covey.run(experiment(CASES["FedAvg"]), runtime="sharded")


def test_a_torch_without_gloo_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_joined", None)
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(ConfigError, match="with gloo, which this torch lacks"):
        covey.run(experiment(CASES["FedAvg"]))


# Shares


def test_subtrees_are_dealt_at_the_first_tier_that_is_wide_enough() -> None:
    examples = torch.tensor([10, 10, 10, 30, 10, 10, 5, 5])
    edges = Shares.of(TREES[3], examples, 2)
    assert (edges.tier, edges.above) == ("edge", ("server",))
    assert edges.bounds == {"edge": (0, 1, 3), "device": (0, 3, 8)}
    four = Shares.of(TREES[4], examples, 3)
    assert (four.tier, four.above) == ("edge2", ("server", "edge1"))
    assert Shares.of(TREES[3], examples, 4).tier == "device"
    assert edges.counts("device", torch.tensor([0, 2, 3, 7])) == (2, 2)
    assert edges.nodes("device", 1) == slice(3, 8)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_everybody_gets_a_share(ranks: int) -> None:
    draw = torch.Generator().manual_seed(ranks)
    for _ in range(20):
        weights = torch.randint(1, 1000, (8,), generator=draw).tolist()
        bounds = deal(weights, ranks)
        assert bounds[0] == 0
        assert bounds[-1] == 8
        assert all(low < high for low, high in itertools.pairwise(bounds))
        # A bound is within half of the heaviest node of where it should be, unless it had to move.
        heaviest = max(sum(weights[a:b]) for a, b in itertools.pairwise(bounds))
        assert heaviest <= sum(weights) / ranks + ranks * max(weights)
