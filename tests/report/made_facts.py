"""Facts of runs made by hand, in every shape that a report can have (covey/report/facts.py)."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Facts = dict[str, Any]
Numbers = npt.NDArray[Any]
MOST_NODE_ROUNDS = 160
CLASSES = 10


@dataclass(frozen=True)
class Shape:
    """The shape of a run; `sizes` are the nodes of every tier, from the server down."""

    sizes: Sequence[int] = (1, 3, 12)
    tiers: Sequence[str] = ("server", "edge", "device")
    rounds: int = 20
    models: Sequence[str] = ("global", "edge", "personal")
    metric: str = "accuracy"
    seeds: int = 1
    sample: int | None = None
    asked: bool = False
    radio: bool = False
    newcomers: int = 0
    nodes: bool = True  # False: too many devices for figures of single nodes
    names: Sequence[str] = ()
    metrics: Sequence[tuple[str, bool]] = ()  # beside `metric`: names, and whether higher is better
    shown: str = ""
    confusion: bool = False


FLAT = Shape(sizes=(1, 12), tiers=("server", "device"), models=("global",))
LOCAL = Shape(sizes=(1, 12), tiers=("server", "device"), models=("personal",))


def facts(*runs: tuple[str, Shape], title: str = "digits on some devices") -> Facts:
    """The facts of runs by their titles; the runs after the first are baselines."""
    populations: list[Facts] = []
    out = []
    for number, (name, shape) in enumerate(runs):
        out.append(_run(f"run-{number}", name, shape, populations))
    return {
        "format": 2, "made_by": "covey 0.1.0", "title": title, "baselines": [run["key"] for run in out[1:]],
        "populations": populations, "runs": out,
    }  # fmt: skip


def _run(key: str, title: str, shape: Shape, populations: list[Facts]) -> Facts:
    seeds = [_seed(number, shape, populations) for number in range(shape.seeds)]
    run = {
        "key": key,
        "title": title,
        "folder": f"runs/{key}",
        "command": f"covey run runs/{key}/config.toml",
        "state": "finished",
        "finished": True,
        "planned": shape.rounds,
        "done": shape.rounds,
        "settings": {"rounds": shape.rounds, "seed": 0, "algorithm": {"name": key, "lr": 0.1}},
        "metric": shape.metric,
        "protocol": "honest",
        "parameters": 7510,
        "slots": {"1.weight": 6400, "1.bias": 100},
        "seeds": seeds,
    }
    if shape.metrics:
        every = [(shape.metric, shape.metric == "accuracy"), *shape.metrics]
        run["metrics"] = [{"name": name, "higher": higher} for name, higher in every]
        run["shown"] = shape.shown or shape.metric
    if shape.sample is not None:
        run["sample"] = {"devices": shape.sample}
    return run


def _seed(number: int, shape: Shape, populations: list[Facts]) -> Facts:
    rng = np.random.default_rng(number)
    devices = shape.sizes[-1]
    population = _population(rng, devices, shape.metric)
    if population not in populations:
        populations.append(population)
    rounds = list(range(1, shape.rounds + 1))
    kept = sorted({*np.linspace(1, shape.rounds, MOST_NODE_ROUNDS).astype(int).tolist()})
    seed: Facts = {
        "seed": number,
        "tiers": list(shape.tiers),
        "sizes": list(shape.sizes),
        "rounds": rounds,
        "node_rounds": kept,
        "seconds": 5.9,
        "gradients": 180000,
        "models": _models(rng, shape, population, kept),
        "links": _links(rng, shape),
    }
    if shape.nodes:
        seed |= _nodes(rng, shape, populations.index(population))
    else:
        seed["note"] = "Figures of single nodes are left out: there are too many devices."
    if shape.radio:
        seed["radio"] = _radio(rng, shape)
    if shape.newcomers:
        seed["newcomers"] = _newcomers(rng, shape)
    return seed


def _population(rng: np.random.Generator, devices: int, metric: str) -> Facts:
    parts = {"train": 60, "validation": 10, "test": 20}
    out: Facts = {name: rng.integers(n, 3 * n, devices).tolist() for name, n in parts.items()}
    if metric == "accuracy":
        labels = np.zeros((devices, CLASSES), dtype=int)
        for row in labels:
            row[rng.choice(CLASSES, 2, replace=False)] = rng.integers(20, 100, 2)
        out |= {"labels": labels.tolist(), "classes": [str(c) for c in range(CLASSES)]}
    return out


def _nodes(rng: np.random.Generator, shape: Shape, population: int) -> Facts:
    parents = {}
    counts = {}
    for above, (tier, size) in zip(
        shape.sizes, list(zip(shape.tiers, shape.sizes, strict=True))[1:], strict=False
    ):
        parents[tier] = [node * above // size for node in range(size)]
        counts[tier] = {
            way: rng.integers(1_000_000, 2_000_000, size).tolist() for way in ("down", "up")
        }
    out: Facts = {"population": population, "parents": parents, "bytes": counts}
    if shape.asked:
        out["asked"] = {
            tier: rng.integers(0, shape.rounds + 1, size).tolist()
            for tier, size in zip(shape.tiers[1:], shape.sizes[1:], strict=True)
        }
    if shape.names:
        out["names"] = {shape.tiers[-1]: list(shape.names)}
    return out


def _models(
    rng: np.random.Generator, shape: Shape, population: Facts, kept: list[int]
) -> dict[str, Facts]:
    tiers = {"global": shape.tiers[0], "edge": shape.tiers[-2], "personal": shape.tiers[-1]}
    out = {}
    for rank, name in enumerate(shape.models):
        tier = tiers[name]
        size = shape.sizes[shape.tiers.index(tier)]
        out[name] = _model(rng, shape, population, kept, top=0.85 + 0.05 * rank)
        out[name] |= {"tier": tier, "holders": size}
        if shape.nodes:
            out[name]["sparsity"] = rng.uniform(0.1, 0.3, size).round(4).tolist()
    return out


def _model(
    rng: np.random.Generator, shape: Shape, population: Facts, kept: list[int], top: float
) -> Facts:
    test = np.array(population["test"])
    steps = np.arange(shape.rounds)
    curve = top - (top - 0.1) * np.exp(-steps / (0.12 * shape.rounds))
    curve = (curve + rng.normal(0, 0.004, shape.rounds)).clip(0, 1)
    skill = rng.normal(0, 0.05, len(test))
    share = (curve[np.array(kept) - 1][:, None] + skill).clip(0, 1)
    sums: Numbers = rng.binomial(test, share)
    if shape.metric != "accuracy":
        curve = 1.2 - curve
        sums = ((1.2 - share) ** 2 * test).astype("f4")
    if shape.sample is not None:
        drawn = rng.random(sums.shape).argsort(1) < shape.sample
        sums = np.where(drawn, sums, 255 if shape.metric == "accuracy" else np.nan)
    model: Facts = {
        "chosen": shape.rounds, "value": float(curve[-1]), "last": float(curve[-1]), "nonzeros": 0.18,
        "cut": 0.001, "layers": {"1.weight": 0.2, "1.bias": 0.3}, "curve": curve.round(5).tolist(),
    }  # fmt: skip
    if shape.metric == "accuracy":
        model["worst"] = float(curve[-1] - 0.1)
    if shape.metrics:
        model["metrics"] = {name: _metric(rng, shape, len(test), kept) for name, _ in shape.metrics}
    if shape.confusion:
        model["confusion"] = rng.integers(0, 30, (CLASSES, CLASSES)).tolist()
    if shape.nodes:
        model["sums"] = _packed(sums, "u1" if shape.metric == "accuracy" else "f4")
    return model


def _metric(rng: np.random.Generator, shape: Shape, devices: int, kept: list[int]) -> Facts:
    """A metric of a model: its curve, and the values of devices, of which the last has none."""
    curve = rng.uniform(0.2, 0.6, shape.rounds).round(5)
    values = rng.uniform(0.2, 0.9, (len(kept), devices))
    values[:, -1] = np.nan
    last = float(curve[-1])
    facts: Facts = {"value": last, "last": last, "best": last, "curve": curve.tolist()}
    if shape.nodes:
        facts["devices"] = _packed(values, "f4")
    return facts


def _packed(values: Numbers, dtype: str) -> Facts:
    raw = values.astype(f"<{dtype}").tobytes()
    return {"dtype": dtype, "shape": list(values.shape), "data": base64.b64encode(raw).decode()}


def _links(rng: np.random.Generator, shape: Shape) -> dict[str, Facts]:
    if "global" not in shape.models:
        return {}
    out = {}
    for above, below in zip(shape.tiers, shape.tiers[1:], strict=False):
        decay = 0.2 + 0.8 * np.exp(-np.arange(shape.rounds) / 6)
        sent = (1e6 * decay * rng.uniform(0.9, 1.1)).astype(int).tolist()
        dense = [2_000_000] * shape.rounds
        out[f"{above}-{below}"] = {"down": sent, "up": sent, "dense": dense}
    return out


def _radio(rng: np.random.Generator, shape: Shape) -> Facts:
    devices = shape.sizes[-1]
    seconds: list[float | None] = rng.uniform(0.1, 2.0, devices).tolist()
    seconds[0] = None  # a device that never answered
    return {
        "seconds": rng.uniform(1, 2, shape.rounds).tolist(),
        "joules": rng.uniform(5, 9, shape.rounds).tolist(),
        "left_out": [1] * shape.rounds,
        "late": [0] * shape.rounds,
        "devices": {
            "bandwidth": rng.uniform(1e5, 2e6, devices).tolist(),
            "rate": rng.uniform(1e5, 2e6, devices).tolist(),
            "ratio": rng.uniform(0, 0.6, devices).tolist(),
            "seconds": seconds,
            "joules": rng.uniform(1, 9, devices).tolist(),
            "left_out": [shape.rounds] + [0] * (devices - 1),
            "late": [0] * devices,
        },
    }


def _newcomers(rng: np.random.Generator, shape: Shape) -> Facts:
    test = rng.integers(10, 20, shape.newcomers)
    models = {}
    for rank, name in enumerate(("new_global", "new_edge", "new_personal")):
        share = 0.8 + 0.05 * rank
        models[name] = {
            "value": share,
            "last": share,
            "chosen": shape.rounds,
            "curve": np.linspace(0.2, share, shape.rounds).round(4).tolist(),
            "nonzeros": 0.2,
            "sums": rng.binomial(test, share).tolist(),
        }
    return {"train": test.tolist(), "test": test.tolist(), "models": models}
