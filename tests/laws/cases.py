"""Every algorithm in the folder, small and with large steps, and the experiment a law runs it in.

A new file in `covey/algorithms` is found by itself and runs with its defaults, its steps doubled
until one round moves the model. Give it an entry in `SMALL` to make it quick, and in `VARIANTS` for
the settings that take another way through its programs.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Algorithm, Experiment, Run, Tree, data, laws, models
from covey.algorithms import ALGORITHMS
from covey.algorithms.nested import Level, Nested
from covey.errors import DivergedError
from covey.kernel.environment import Environment
from covey.laws import differences as differences
from covey.runs.seed import Seed
from tests import peek
from tests.given import drained

INPUTS, CLASSES = 13, 5
SIZES = (30, 9, 460, 55, 21, 40, 12, 77)  # one device has more examples than a block of a full pass


@dataclass(frozen=True)
class Case:
    """One algorithm in one setting, and what a law must know of it."""

    name: str
    algorithm: Algorithm
    settings: dict[str, Any] = field(default_factory=dict)
    l1: bool = False  # a penalty without a fixed point
    noisy: bool = False  # what it draws, or adds in its first rounds, leaves no fixed point
    prunes: bool = False  # as l1, for what is set to zero
    idle: bool = True  # skipped or trained, idle nodes leave the global model alone

    def __str__(self) -> str:
        return self.name


def levels(*middle: str, correlation: bool = False, **last: Any) -> tuple[Level, ...]:
    """A level for the server, each tier in the middle and two for the devices."""
    between = [Level(tier, tier, lam=2.0, steps=2, lr=0.2) for tier in middle]
    tie: dict[str, Any] = {"lam": 0.05, "coupling": "correlation"} if correlation else {"lam": 2.0}
    mine = Level(
        "device", "local", lam=2.0, steps=2, lr=4.0 if correlation else 0.2,
        ridge=0.05 if correlation else 0.0,
    )  # fmt: skip
    personal = {"steps": 3, "lr": 0.2, "warm": True, "batch": 6, **tie, **last}
    return (Level("server", lr=0.5), *between, mine, Level("device", "personal", **personal))


HEADS = {"@private": ("*weight",)}  # of every model a law uses
PARTS = {"steps": 4, "lr": 0.3, "personal_lr": 0.2, "batch": 6, "@private": "head"}
FLAT = Tree.flat(8)
TREES = {2: FLAT, 3: Tree.grouped([3, 1, 4]), 4: Tree(((2,), (1, 2), (3, 1, 4)))}

SMALL: dict[str, dict[str, Any]] = {
    "FedAdam": {"steps": 4, "lr": 0.3, "batch": 6, "server_lr": 0.3},
    "FedAlt": {**PARTS, "personal_steps": 3},
    "FedAvg": {"steps": 4, "lr": 0.3, "batch": 6},
    "FedAvgM": {"steps": 4, "lr": 0.3, "batch": 6, "server_lr": 0.9},
    "FedProx": {"mu": 0.5, "steps": 4, "lr": 0.3, "batch": 6},
    "FedSim": {**PARTS, "personal_lr": 0.3},
    "FedYogi": {"steps": 4, "lr": 0.3, "batch": 6, "server_lr": 0.3},
    "FineTune": {"steps": 4, "lr": 0.3, "tune_steps": 3, "tune_lr": 0.2, "batch": 6},
    "Centralised": {"steps": 4, "lr": 0.3, "batch": 6},
    "Local": {"steps": 4, "lr": 0.3, "batch": 6},
    "Scaffold": {"steps": 4, "lr": 0.2, "server_lr": 0.9, "batch": 6},
    "PerFedAvg": {"alpha": 0.2, "steps": 4, "lr": 0.3, "batch": 6},
    "Ditto": {"lam": 0.5, "steps": 4, "lr": 0.3, "personal_steps": 3, "personal_lr": 0.2, "batch": 6},
    "APFL": {"alpha": 0.4, "alpha_lr": 0.1, "steps": 4, "lr": 0.3, "batch": 6},
    "L2GD": {"lam": 0.1, "p": 0.05, "lr": 0.2, "batch": 6},
    "AL2GD": {"lam": 0.2, "gamma": 0.1, "p": 0.05, "edge_p": 0.3, "lr": 0.2, "batch": 6},
    "FedPer": {"steps": 4, "lr": 0.3, "batch": 6, **HEADS},
    "FedBN": {"steps": 4, "lr": 0.3, "batch": 6, **HEADS},
    "FedRep": {"head_steps": 3, "head_lr": 0.3, "steps": 2, "lr": 0.3, "batch": 6, **HEADS},
    "FedAMP": {"lam": 0.5, "alpha": 0.5, "sigma": 4.0, "steps": 4, "lr": 0.3, "batch": 6},
    "HeurFedAMP": {"self_weight": 0.4, "sigma": 5.0, "lam": 0.5, "steps": 4, "lr": 0.3, "batch": 6},
    "Clustered": {"clusters": 3, "pick": 6, "steps": 4, "lr": 0.3, "batch": 6},
    "HierFAVG": {"edge_rounds": 2, "steps": 3, "lr": 0.3, "batch": 6},
    "PFedMe": {"lam": 2.0, "local_rounds": 3, "steps": 3, "lr": 0.2, "personal_lr": 0.2, "beta": 1.5, "batch": 6},
    "FedMac": {"lam": 0.05, "local_rounds": 4, "steps": 2, "lr": 6.0, "personal_lr": 0.2, "batch": 6},
    "PerMFL": {"lam": 1.0, "gamma": 1.5, "lr": 0.3, "edge_lr": 0.4, "edge_rounds": 3, "steps": 3, "batch": 6},
    "Pruned": {**PARTS, "personal_steps": 3, "probe_steps": 2, "ratio": 0.4, "@codec": "bitmap", "!prunes": True},
    "SFedHP": {"lam1": 2.0, "lam2": 3.0, "edge_rounds": 3, "steps": 3, "lr1": 0.4, "lr2": 0.2, "batch": 6},
    "DemLearn": {"levels": 3, "mu": 0.1, "steps": 4, "lr": 0.3, "batch": 6},
    "PFedBayes": {
        "zeta": 10.0, "local_rounds": 3, "steps": 2, "lr": 0.05, "personal_lr": 0.05, "batch": 6, "!noisy": True,
    },
    "PFedGP": {
        "steps": 2, "lr": 0.5, "batch": 8, "support": 9, "gibbs_steps": 1, "draws": 2, "predict_draws": 3,
        "!noisy": True,
    },
    "Nested": {"levels": levels("edge")},
}  # fmt: skip

SPARSE_MAC = {"gamma": 0.02, "gamma_w": 0.002, "rho": 1e-3}
SPARSE_HP = {"gamma1": 0.02, "gamma2": 0.02, "rho": 1e-3}
LISTS = {"lr": [0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, 0.2], "steps": [1, 2, 3, 4, 3, 2, 1, 2]}

DOUBLINGS = 10  # of a new file's steps: by a factor of a thousand
RATIOS = [0.1, 0.9, 0.5, 0.0, 1.0, 0.3, 0.8, 0.7]

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "FedAlt": {
        "flat-sample": {"sample": 3, "@tree": FLAT, "weight": "samples", "!idle": False},
        "edge-rounds": {"edge_rounds": 2, "device_sample": 0.5, "!idle": False},
        "full-all-shared": {"batch": None, "@private": ()},
        "cyclic-first-layer": {
            "@batches": "cyclic", "@private": "1.*", "@idle": "train", "sample": 2, "!idle": False,
        },
        "four-tiers": {"@tree": Tree(((2,), (1, 2), (3, 1, 4)))},
    },
    "FedSim": {
        "two-step-sizes": {"personal_lr": 0.1},
        "flat-sample": {"sample": 3, "@tree": FLAT, "weight": "samples", "!idle": False},
        "edge-rounds": {"edge_rounds": 2, "device_sample": 0.5, "!idle": False, "personal_lr": 0.1},
    },
    "Pruned": {
        "flat-sample": {"sample": 3, "@tree": FLAT, "weight": "samples", "!idle": False},
        "lists": {"ratio": RATIOS, "edge_rounds": 2, "device_sample": 0.5, "!idle": False},
        "flat-together-lists": {
            "ratio": RATIOS, "order": "together", "personal_lr": 0.1, "@tree": FLAT, "@codec": "dense",
        },
        "together": {"order": "together", "personal_lr": 0.3, "batch": None},
        "pruning-alone": {"@private": (), "sample": 2},
        "nothing-pruned": {"ratio": 0.0, "!prunes": False},
    },
    "FedAvg": {
        "full-samples": {"batch": None, "weight": "samples"},
        "sample": {"sample": 3},
        "sample-train-cyclic": {"sample": 0.5, "@idle": "train", "@batches": "cyclic", "!idle": False},
    },
    "FedProx": {"sample-samples": {"sample": 3, "weight": "samples"}},
    "FineTune": {"sample": {"sample": 3}, "cyclic": {"@batches": "cyclic"}},
    "Centralised": {
        "full-l2": {"batch": None, "@l2": 0.01},
        "cyclic-bitmap": {"@batches": "cyclic", "@codec": "bitmap"},
    },
    "Local": {"full": {"batch": None}},
    "Scaffold": {"sample": {"sample": 3}, "full-bitmap": {"batch": None, "@codec": "bitmap"}},
    "PerFedAvg": {
        "hessian-free": {"order": "hessian-free", "sample": 3},
        "difference": {"order": "hessian-free", "hessian": "difference", "sample": 3},
        "full-l2": {"order": "hessian-free", "batch": None, "@l2": 0.01, "weight": "samples"},
        "cyclic": {"@batches": "cyclic"},
    },
    "Ditto": {"sample": {"sample": 3, "weight": "samples"}, "full-l2": {"batch": None, "@l2": 0.01}},
    "APFL": {"sample": {"sample": 3, "weight": "samples"}, "fixed": {"alpha_lr": 0.0}, "full": {"batch": None}},
    "L2GD": {"full-l2": {"batch": None, "@l2": 0.01}, "bitmap": {"p": 0.1, "@codec": "bitmap"}},
    "AL2GD": {"lists": {"edge_p": [0.1, 0.7, 0.4]}, "full": {"batch": None}},
    "FedPer": {"sample": {"sample": 3, "!idle": False}, "shared": {"@private": (), "@codec": "bitmap"}},
    "FedRep": {"sample": {"sample": 3, "weight": "samples", "!idle": False}, "full": {"batch": None}},
    "FedAMP": {"sample": {"sample": 3}, "far": {"sigma": 0.5, "alpha": 3.0, "batch": None}},
    "HeurFedAMP": {"sample": {"sample": 3}, "full": {"batch": None, "sigma": 50.0}},
    "Clustered": {"sample": {"sample": 3, "weight": "samples"}, "full": {"batch": None, "pick": None, "spread": 0.5}},
    "HierFAVG": {
        "sample-samples": {"sample": 2, "device_sample": 0.5, "weight": "samples"},
        "device_sample-train": {"device_sample": 0.5, "@idle": "train"},
        "least": {"device_sample": 0.5, "@least": 5},
    },
    "PFedMe": {
        "sample": {"sample": 3, "weight": "samples", "weight_decay": 0.01},
        "sparse-bitmap": {"gamma": 0.02, "rho": 1e-3, "@codec": "bitmap", "!l1": True},
        "full-l2": {"batch": None, "@l2": 0.01},
        "cyclic": {"@batches": "cyclic", "@idle": "train", "sample": 3, "!idle": False},
        "tol": {"steps": 6, "tol": 0.2},
        "nesterov": {"method": "nesterov", "weight_decay": 0.01, "sample": 3},
    },
    "FedMac": {
        "sparse-bitmap": {**SPARSE_MAC, "@codec": "bitmap", "!l1": True},
        "sparse-sample": {**SPARSE_MAC, "sample": 3, "!l1": True},
        "floor": {**SPARSE_MAC, "floor": 0.9, "gamma_low": 0.001, "sample": 3, "!l1": True, "!idle": False},
        "prox": {**SPARSE_MAC, "l1": "prox", "gamma_w_until": 2, "batch": None, "!l1": True},
        "samples": {"weight": "samples", "sample": 0.5},
        "tol": {"steps": 12, "tol": 0.2},
        "nesterov": {"steps": 4, "method": "nesterov", "batch": None},
    },
    "PerMFL": {
        "lists": {**LISTS, "edge_lr": [0.4, 0.2, 0.3], "edge_rounds": [3, 1, 2]},
        "stale": {"stale": "include", "sample": 2},
        "sample": {"sample": 2, "device_sample": 0.5, "batch": None},
        "stale-train": {"stale": "include", "sample": 1, "@idle": "train"},
    },
    "SFedHP": {
        "sparse-bitmap": {**SPARSE_HP, "@codec": "bitmap", "!l1": True},
        "floor": {**SPARSE_HP, "floor": 0.9, "gamma_low": 0.001, "gamma2_until": 2, "!l1": True},
        "prox": {**SPARSE_HP, "l1": "prox", "!l1": True},
        "sample": {"sample": 2, "batch": None},
        "device_sample": {"sample": 2, "device_sample": 0.5, "!idle": False},
        "own": {"tie": "own"},
        "own-floor-sample": {
            **SPARSE_HP, "tie": "own", "floor": 0.9, "gamma_low": 0.001, "device_sample": 0.5, "!l1": True,
            "!idle": False,
        },
        "tol": {"steps": 6, "tol": 0.2, "batch": None},
        "sparse-tol-nesterov": {**SPARSE_HP, "steps": 6, "tol": 0.1, "method": "nesterov", "!l1": True},
    },
    "DemLearn": {
        "average-amplify": {"linkage": "average", "amplify": 1.15, "amplify_rounds": 2, "!noisy": True},
        "one-level": {"levels": 1, "alpha": 1.0, "batch": None},
    },
    "PFedBayes": {
        "sample": {"sample": 3, "beta": 0.7, "!idle": False},
        "restart-draws": {"sample": 0.5, "restart": True, "draws": 3, "batch": None},
        "gradient": {"method": "gradient", "zeta": 0.1, "rho": -2.0},
    },
    "PFedGP": {
        "sample-cyclic": {"sample": 3, "weight": "samples", "@batches": "cyclic", "@l2": 0.01, "!idle": False},
    },
    "Nested": {
        "four-tiers": {"levels": levels("edge1", "edge2", batch=None)},
        "two-tiers": {"levels": levels(gamma=0.02, rho=1e-3), "!l1": True},
        "correlation": {"levels": levels("edge", correlation=True)},
        "sample": {"levels": (replace(levels("edge")[0], sample=2), *levels("edge")[1:])},
    },
}  # fmt: skip


def build(cls: type[Algorithm], label: str, changes: dict[str, Any]) -> Case:
    """The case of an algorithm with some changes: "@name" is a field of the experiment, "!name" one
    of the case.
    """
    kinds: dict[str, dict[str, Any]] = {"@": {}, "!": {}, "": {}}
    for key, value in {**SMALL.get(cls.__name__, {}), **changes}.items():
        mark = key[0] if key[0] in "@!" else ""
        kinds[mark][key.removeprefix(mark)] = value
    name = f"{cls.__name__}-{label}" if label else cls.__name__
    case = Case(name, cls(**kinds[""]), kinds["@"], **kinds["!"])
    if cls.__name__ in SMALL:
        return case
    return moving(case)


def moving(case: Case) -> Case:
    """The case with its steps doubled until one round moves a model by a tenth of its norm."""
    for _ in range(DOUBLINGS):
        if moved_in_one_round(case) > 0.1:
            break
        fields = [step.field for step in case.algorithm.levers(0.0).steps]
        values = {field: getattr(case.algorithm, field) for field in fields}
        steps = {
            field: 2 * value for field, value in values.items() if isinstance(value, int | float)
        }
        longer = replace(case, algorithm=with_fields(case.algorithm, **steps))
        if not steps or moved_in_one_round(longer) == math.inf:
            break
        case = longer
    return case


def moved_in_one_round(case: Case) -> float:
    """How far the furthest model moves, in parts of its norm; infinite where training diverges."""
    run = covey.run(experiment(case))
    try:
        next(run)
    except DivergedError:
        return math.inf
    return moved(run)


def cases() -> Iterator[Case]:
    """Every algorithm with its defaults and in its variants, those that rooms add last."""
    variants = [VARIANTS, *variants_of_rooms()]
    for cls in ALGORITHMS.values():
        of_class = [each.get(cls.__name__, {}) for each in variants]
        for label, changes in itertools.chain({"": {}}.items(), *map(dict.items, of_class)):
            yield build(cls, label, changes)


def variants_of_rooms() -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
    """What `law_cases.py` of a room's tests adds to `VARIANTS`."""
    for path in sorted(Path(__file__).parents[1].glob("*/law_cases.py")):
        yield import_module(f"tests.{path.parent.name}.{path.stem}").VARIANTS


class Clock(Environment):
    """An environment that counts, for laws of what runs in the simulator alone."""

    ideal = False


class Timed:
    """What an experiment says of it."""

    name = "radio"

    def check(self, experiment: Experiment) -> None:
        """It suits every experiment."""

    def environment(self, *_: Any) -> Clock:
        return Clock()


TIMED: Any = Timed()


def every(some: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", some.values(), ids=some.keys())


def shards(dtype: torch.dtype = torch.float32, seed: int = 5) -> data.Shards:
    """Devices of very different sizes, each with its own rule from features to labels."""
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for size in SIZES:
        x = torch.randn(size, INPUTS, generator=draw)
        y = (x @ torch.randn(INPUTS, CLASSES, generator=draw)).argmax(1)
        pairs.append((x.to(dtype), y))
    return data.own(pairs, classes=CLASSES)


SHARDS = shards()


def experiment(case: Case, **changes: Any) -> Experiment:
    tree = TREES[len(case.algorithm.tiers())]
    plain = {
        "data": SHARDS, "model": models.mlp(INPUTS, 7, CLASSES), "tree": tree, "rounds": 3, "score_every": 3,
        "workers": 1,
    }  # fmt: skip
    return Experiment(**{"algorithm": case.algorithm, **plain, **case.settings, **changes})


def finished(case: Case, **changes: Any) -> Run:
    """The run after its last round; the model must have moved."""
    run = covey.run(experiment(case, **changes))
    drained(run)
    assert_moved(run)
    return run


@cache
def whole(name: str, dtype: torch.dtype = torch.float32) -> Run:
    """The case's run as it stands above, once in a process: many laws compare others with it."""
    return finished(CASES[name], dtype=dtype)


def bytes_of_nodes(run: Seed) -> dict[tuple[str, str], int]:
    """What all nodes of a tier received and sent, by tier and direction."""
    sums = {
        key: int(values.sum()) for key, values in run.totals.items() if key[1] in ("down", "up")
    }
    return {key: total for key, total in sums.items() if total}


def bytes_of_links(run: Seed) -> dict[tuple[str, str], int]:
    """What training sent over each link, by its lower tier and direction."""
    out = {}
    for above, tier in itertools.pairwise(run.sizes):
        for way in ("down", "up"):
            out[tier, way] = run.meter.bytes(link=f"{above}-{tier}", direction=way)
    return {key: total for key, total in out.items() if total}


def state(run: Seed) -> dict[str, Any]:
    """Everything a run holds; the bytes of single nodes must add up to those of the links."""
    assert bytes_of_nodes(run) == bytes_of_links(run)
    return laws.state(run)


def assert_moved(run: Run, least: float = 0.05) -> None:
    """The global model or a kept one is far from where it began."""
    far = moved(run)
    assert far > least, f"the furthest model moved by {far:.1e} of its norm"


def moved(run: Run) -> float:
    """How far the global model, or a kept one, is from where it began, in parts of its norm."""
    begin = run.runtime.start[0]
    kept = [
        (name, rows)
        for _, name, *_, rows in peek.dump(run)
        if rows.shape[1:] == begin.shape and len(rows)
    ]
    models = [rows for name, rows in kept if not name.startswith("_")]
    return max(float((rows - begin).norm(dim=1).max() / begin.norm()) for rows in [run.w, *models])


def with_fields(algorithm: Any, **changes: Any) -> Any:
    """The algorithm with those changes that name a field of it; in every level of `Nested`."""
    if isinstance(algorithm, Nested):
        return Nested(tuple(with_fields(level, **changes) for level in algorithm.levels))
    have = {f.name for f in fields(algorithm)}
    return replace(algorithm, **{name: value for name, value in changes.items() if name in have})


class Odd(nn.Module):
    """A module that only vmap takes: a gate, a residual and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(INPUTS, 7), nn.Linear(7, CLASSES), nn.LayerNorm(7)
        self.gate = nn.Parameter(torch.full((7,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x.flatten(1)))
        h = h + self.gate * torch.special.i1(h)  # no layer is known for it
        out: Tensor = self.b(self.norm(h))
        return out


class Conv(nn.Module):
    """A small convolution over the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(1, 3, 4, stride=3), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.conv(x.flatten(1)[:, None])).flatten(1))
        return out


CASES = {case.name: case for case in cases()}
PLAIN = {cls.__name__: CASES[cls.__name__] for cls in ALGORITHMS.values()}
every_case, every_algorithm = every(CASES), every(PLAIN)
