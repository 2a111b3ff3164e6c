"""What tests/laws/test_sharded.py runs under torchrun: `python -m tests.laws.sharded OUT [all]`.

All ranks run every law case together. Each compares some of the cases with the simulator, and rank 0
writes what differs, by law and case, into a JSON file.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch

import covey
from covey import Algorithm, Nodes, Rows, Tree
from covey.errors import CheckpointError, CoveyError
from covey.runs.saved import checkpoint
from covey.runtimes.ranks import ranks as processes
from covey.runtimes.ranks.sharded import Sharded
from tests.given import drained
from tests.laws.cases import CASES, PLAIN, TIMED, TREES, Case, differences, experiment, state
from tests.laws.test_loopback import FEW, LINKS, WIRED, everything
from tests.laws.test_receivers import among
from tests.test_rank_parts import save_as_ranks

Found = list[str]
"""What differs; empty where a law holds."""
RANKS = processes.ALONE
if __name__ == "__main__":  # not where pytest looks for doctests
    RANKS = processes.join()
CLOSE = 1e-12


def ran(case: Case, runtime: str = "sharded", **changes: Any) -> covey.Run:
    """A run with all its rounds."""
    run = covey.run(experiment(case, **changes), runtime=runtime)
    return drained(run)


def shard(run: covey.Run) -> Sharded:
    assert isinstance(run.runtime, Sharded)
    return run.runtime


def compared(number: int, expected: Callable[[], dict[str, Any]], got: dict[str, Any]) -> Found:
    """Where a state differs from the simulator's, which the ranks compute in turn."""
    found: Found = []
    if number % RANKS.world == RANKS.rank:
        found = differences(expected(), got)
    return [line for lines in RANKS.gather_json("compare", found) for line in lines]


# Laws: each gives what differs, by case


def gathered(number: int, case: Case, **changes: Any) -> Found:
    """Gathered sums: every bit is the simulator's."""
    run = ran(case, **changes)
    return compared(number, lambda: everything(ran(case, "simulator", **changes)), everything(run))


def added(number: int, case: Case) -> Found:
    """All-reduced sums: rows are the simulator's to 1e-12, and cohorts and bytes are the same."""
    changes: dict[str, Any] = {"dtype": torch.float64, "rounds": 2, "score_every": 2}
    run = covey.run(experiment(case, **changes), runtime="sharded")
    shard(run).gathered = 0
    got = close_to_text(drained(run))
    return compared(number, lambda: close_to_text(ran(case, "simulator", **changes)), got)


def close_to_text(run: covey.Run) -> dict[str, Any]:
    """A state of which rows count to 1e-12 of their largest entry, and scores of records do not."""
    out = {}
    for key, value in state(run).items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = Close(value)
        out[key] = value
    records = [(record.cohorts, sorted(record.traffic.items())) for record in run.history]
    return {**out, "history": str(records)}


class Close:
    """Rows that equal others up to 1e-12 of the largest entry."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Close)
        if self.rows.shape != other.rows.shape or not self.rows.numel():
            return self.rows.shape == other.rows.shape
        scale = max(float(self.rows.abs().max()), 1e-3)
        return float((self.rows - other.rows).abs().max()) <= CLOSE * scale

    def __repr__(self) -> str:
        return str(self.rows.flatten()[:3].tolist())


def resumed(folder: Path, name: str) -> Found:
    """Checkpoints of ranks go on in the simulator, and the simulator's on ranks."""
    case = CASES[name]
    changes = {"rounds": 4, "score_every": 1, "codec": LINKS["int8 updates with feedback"]}
    expected = everything(ran(case, "simulator", **changes))
    half = covey.run(experiment(case, **changes), runtime="sharded")
    next(half)
    next(half)
    half.save(folder / f"{name}-ranks")
    found = parts(folder / f"{name}-ranks")
    found += goes_on(folder / f"{name}-ranks", "simulator", case, changes, expected)
    found += goes_on(folder / f"{name}-ranks", "sharded", case, changes, expected)
    with RANKS.together("save"):
        if RANKS.leads:
            alone = covey.run(experiment(case, **changes), runtime="simulator")
            next(alone)
            alone.save(folder / f"{name}-alone")
            save_as_ranks(alone, folder / f"{name}-others", 5 - RANKS.world)
    for written in ("alone", "others"):
        found += goes_on(folder / f"{name}-{written}", "sharded", case, changes, expected)
    return found


def parts(path: Path) -> Found:
    """What is wrong with the files of a checkpoint that the ranks have just written."""
    facts = checkpoint.read(path, tensors=False).facts
    if RANKS.world == 1:
        return ["one rank wrote parts"] if checkpoint.PARTS in facts else []
    names = [part["file"] for part in facts[checkpoint.PARTS]]
    found = []
    for rank, name in enumerate(names):
        if not name.startswith(f"{path.stem}.part-{rank}-of-{RANKS.world}.{facts['round']}."):
            found.append(f"rank {rank} wrote {name}")
    if facts["columns"] or len(names) != RANKS.world:
        found.append(f"columns {facts['columns']}, parts {names}")
    if {file.name for file in path.parent.glob(f"{path.stem}.part-*")} != set(names):
        found.append("other files")
    return found


def unsaved(folder: Path) -> dict[str, Any]:
    """Rank 0 fails once all have written their parts, and so do all; the last checkpoint stays."""
    case = CASES["SFedHP"]
    path = folder / "unsaved"
    expected = everything(ran(case, "simulator"))
    run = covey.run(experiment(case), runtime="sharded")
    next(run)
    run.save(path)
    next(run)
    with patch.object(checkpoint, "write", full_disk):
        texts = RANKS.gather_json("compare", error_of(lambda: run.save(path)))
    written = len(list(path.parent.glob("unsaved.part-*")))
    found = goes_on(path, "sharded", case, {}, expected)
    run.save(path)
    found += unnamed(path)
    with RANKS.together("compare"):
        if RANKS.rank == 1:
            file = sorted(path.parent.glob("unsaved.part-1-*.2.*"))[0]
            file.write_bytes(file.read_bytes()[:-1] + b"?")
    damaged = error_of(lambda: covey.run(experiment(case), resume=path, runtime="sharded"))
    damages = RANKS.gather_json("compare", damaged)
    return {"texts": texts, "written": written, "found": found, "damaged": damages}


def unnamed(path: Path) -> Found:
    """Files that neither the last checkpoint nor the one before names, or that are missing."""
    named = set()
    for saved in (path, checkpoint.previous(path)):
        facts = checkpoint.read(saved, tensors=False).facts
        named |= {part["file"] for part in facts[checkpoint.PARTS]}
    there = {file.name for file in path.parent.glob(f"{path.stem}.part-*")}
    return sorted(named ^ there)


def full_disk(*_: Any) -> None:
    raise CheckpointError("the disk is full")


def goes_on(
    path: Path, runtime: str, case: Case, changes: dict[str, Any], expected: dict[str, Any]
) -> Found:
    rest = covey.run(experiment(case, **changes), resume=path, runtime=runtime)
    return differences(expected, everything(drained(rest)))


@dataclass(frozen=True)
class Failing(Algorithm):
    """FedAvg of which device 6 fails in the second round, on its own rank."""

    sends: ClassVar[str] = "its model"
    how: str = "value"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        wrong = (me.ids == 6) & (me.round == 1)
        if bool(wrong.any()) and self.how == "value":
            raise ValueError("a sensor is broken")
        if self.how == "diverged":
            w = torch.where(wrong[:, None], torch.inf, w)
        return me.keep("personal", w + 1)


def error_of(call: Callable[[], Any]) -> str:
    """The kind and the text of the error that a call raises."""
    try:
        call()
    except CoveyError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def failing(how: str) -> list[str]:
    """The error on every rank; the round has not happened on any of them."""
    run = covey.run(experiment(Case("Failing", Failing(how=how))), runtime="sharded")
    next(run)
    before = state(run)
    text = error_of(lambda: next(run))
    changed = differences(before, state(run))
    return RANKS.gather_json("compare", [text, *changed])


def errors() -> dict[str, Any]:
    """What is refused, with its message on every rank."""
    plain = PLAIN["FedAvg"]
    calls: dict[str, Callable[[], Any]] = {
        "other experiments": lambda: ran(plain, seed=RANKS.rank),
        "other data": lambda: ran(plain, data=other_data()),
        "radio": lambda: ran(plain, radio=TIMED, tree=TREES[3]),
        "seeds": lambda: covey.runs(
            [experiment(plain, seed=seed) for seed in (0, 1)], runtime="sharded"
        ),
        "devices": lambda: ran(plain, data=first_device(), tree=Tree.flat(1)),
        "gpu": lambda: RANKS.use(torch.device("cuda:0")),
        "other calls": other_calls,
    }
    out: dict[str, Any] = {"value": failing("value"), "diverged": failing("diverged")}
    for name, call in calls.items():
        out[name] = RANKS.gather_json("compare", error_of(call))
    return out


def other_data() -> covey.data.Shards:
    """The data of the laws, which rank 1 has in another file."""
    shards = experiment(PLAIN["FedAvg"]).data
    if RANKS.rank != 1:
        return shards
    return replace(shards, x=shards.x + 1)


def first_device() -> covey.data.Shards:
    return experiment(PLAIN["FedAvg"]).data.chosen([0])


def other_calls() -> None:
    """Rank 0 reads rows, and the others run a round."""
    run = covey.run(experiment(PLAIN["PFedMe"]), runtime="sharded")
    next(run)
    if RANKS.leads:
        run.rows("personal")
    else:
        next(run)


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "idle devices train": ("PFedMe-sample", {"idle": "train"}),
    "idle edges train": ("SFedHP-sample", {"idle": "train"}),
    "new devices": ("PerMFL", {"holdout_devices": 2}),
    "a sample is scored": ("PFedMe", {"score_sample": 3}),
    "four tiers": ("Nested-four-tiers", {"tree": TREES[4]}),
    "devices without training examples": ("FedAvg-sample", {"data": among()}),
    "an edge without training examples": ("PerMFL-stale", {"data": among()}),
    "a table of the others' models": ("FedAMP", {"data": among()}),
}


def main(folder: Path, thorough: bool) -> dict[str, Any]:
    """Everything that differs, by law and case; CI tries fewer cases than `thorough`."""
    cases = list(WIRED.values())
    short: dict[str, Any] = {}
    some = cases
    coded: dict[str, Sequence[str]] = {name: list(LINKS) for name in ("SFedHP", "Scaffold")}
    if not thorough:
        cases = [*PLAIN.values(), *[case for case in cases if case.name not in PLAIN][::3]]
        short = {"rounds": 2, "score_every": 2}
        some = list(PLAIN.values())[::6]
        coded = {"SFedHP": FEW[:1], "Scaffold": FEW}
    links = [(name, link) for name, names in coded.items() for link in names]
    out: dict[str, Any] = {
        "gathered": {case.name: gathered(k, case, **short) for k, case in enumerate(cases)},
        "added": {case.name: added(k, case) for k, case in enumerate(some)},
        "settings": {
            name: gathered(k, CASES[case], **changes)
            for k, (name, (case, changes)) in enumerate(SETTINGS.items())
        },
        "codecs": {
            f"{name} {link}": gathered(k, CASES[name], codec=LINKS[link])
            for k, (name, link) in enumerate(links)
        },
        "resumed": {name: resumed(folder, name) for name in ("SFedHP", "PFedBayes")},
    }
    if RANKS.world > 1:  # what follows is about one rank and another
        out["unsaved"] = unsaved(folder)
        out["errors"] = errors()
    return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    results = main(target.parent, "all" in sys.argv[2:])
    if RANKS.leads:
        target.write_text(json.dumps(results), encoding="utf-8")
