"""Who stands where, what is trained, and every job: the set-up of Liu and Ratnarajah (2023),
Section IV, and what it leaves out.

From the paper: 10 devices, 20 MHz, 28 dBm, 3 GHz, 32 bits, -110 dBm, 25 ms, batches of 128,
convolutions personal and linear layers shared. Chosen here: the network, 2 labels a device, the
steps of a round, places on a ring of 20 to 300 m, loss 30 + 35 log10(d) dB with Rayleigh fading, 10
to 60 cycles a weight, and the learning rate (`run.py grid`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

import covey
from covey.algorithms import FedAlt, Pruned
from covey.radio.solve import best
from covey.wireless import (
    Allocation,
    Cells,
    Channel,
    Devices,
    Noise,
    Policy,
    Problem,
    Radio,
    Reason,
    Spread,
    equal,
    fair,
    optimal,
    personal_fastest,
    personal_only,
)

DEVICES, LABELS, DEADLINE = 10, 2, 0.025
POWER = 10 ** ((28 - 30) / 10)
PLACES = 2  # the draw of places and cycles: in draws 0 and 1 hardly a device is near
STEPS, PROBE = 10, 1
SETS = ("mnist", "fashion_mnist")
RATIOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
DEADLINES = (0.015, 0.02, 0.03)  # 25 ms is the scheme "proposed"
RATES = (0.001, 0.003, 0.01, 0.03)  # .001 is the paper's
LR = {
    "mnist": 0.003,
    "fashion_mnist": 0.003,
    "digits": 0.1,
}  # where no grid was run; the digits' by validation data of seed 1000
BATCH = {"mnist": 128, "fashion_mnist": 128, "digits": 32}  # a device has 81 digits to train on
SHARED = Spread(
    "log_uniform", (1e4, 1e5)
)  # N_u of a draw; a hidden weight row of its mlp is 75 weights


def _on_equal_shares(p: Problem) -> Allocation:
    """The optimal plan's ratios, for those it asks, with the same band for each of them."""
    found = best(p)
    asked = found.reason == Reason.ASKED
    share = (asked / p.total(asked)[p.group]).nan_to_num(0.0)
    return replace(found, share=share, certificate=None)


unfitted = Policy("equal shares, optimal ratios", _on_equal_shares)

SCHEMES: dict[str, tuple[Policy, str]] = {  # the band's, and what kind of training
    "proposed": (optimal, "pruned"),
    "equal (a)": (equal, "pruned"),
    "equal (b)": (unfitted, "pruned"),
    "fair": (fair, "pruned"),
    "personalization only": (personal_only, "whole"),
    "personalization only, fastest": (personal_fastest, "whole"),
    "pruning only": (optimal, "all shared"),
}
DRAWN = ("proposed", "equal (a)", "fair", "personalization only", "pruning only")


@dataclass(frozen=True)
class Job:
    """One piece of work: all its seeds in one go; or, of the part "draws", one draw with all its
    schemes.
    """

    part: str
    data: str
    scheme: str
    seeds: int = 3
    rounds: int = 100
    deadline: float = DEADLINE
    ratio: float | None = None  # None: the plan's
    order: Literal["alternate", "together"] = "alternate"
    steps: int = STEPS
    edges: int = 1
    draw: int | None = None
    lr: float | None = None  # None: LR's
    all_shared: bool = False  # at a fixed ratio: no personal layers

    @property
    def key(self) -> str:
        return f"{self.part}/{self.data}/{self.scheme}"

    @property
    def schemes(self) -> tuple[str, ...]:
        """What of SCHEMES is run."""
        if self.draw is not None:
            return DRAWN
        name = self.scheme.removesuffix(", 2 edges")
        return (name if name in SCHEMES else "proposed",)


def grid(*, rounds: int) -> list[Job]:
    """Learning rates, on seed 0: nothing pruned, and half; and for pruning only, which is compared
    at a rate of its own.
    """
    kinds = (
        ("ratio 0", 0.0, False),
        ("ratio 0.5", 0.5, False),
        ("pruning only, ratio 0.5", 0.5, True),
    )
    return [
        Job(
            "grid",
            data,
            f"{lr:g}, {name}",
            seeds=1,
            rounds=rounds,
            ratio=ratio,
            lr=lr,
            all_shared=all_shared,
        )
        for data in SETS
        for lr in RATES
        for name, ratio, all_shared in kinds
    ]


def drawn(count: int, *, rounds: int) -> list[Job]:
    """Random places, cycles and sizes."""
    return [Job("draws", "digits", str(at), seeds=1, rounds=rounds, draw=at) for at in range(count)]


Rates = dict[tuple[str, bool], float]
"""Learning rates by data set and whether all layers are shared."""


def jobs(part: str, *, rounds: int, seeds: int, rates: Rates) -> list[Job]:
    """The jobs of a part of the paper's Section IV, what matters most first."""

    def job(data: str, scheme: str, **changes: Any) -> Job:
        lr = rates[data, scheme == "pruning only"]
        return Job(part, data, scheme, **{"rounds": rounds, "seeds": seeds, "lr": lr, **changes})

    if part == "schemes":
        found = [job(data, name) for data in reversed(SETS) for name in SCHEMES]
        return found + [
            job("fashion_mnist", f"{name}, 2 edges", edges=2)
            for name in ("proposed", "personalization only")
        ]
    if part == "thresholds":
        return [job("fashion_mnist", f"{1e3 * t:g} ms", deadline=t) for t in DEADLINES]
    if part == "fading":
        return [
            job(data, name, seeds=seeds + 2)
            for data in reversed(SETS)
            for name in ("proposed", "fair", "equal (a)")
        ]
    if part == "ratios":
        return [job(data, f"{ratio:g}", ratio=ratio) for data in SETS for ratio in RATIOS]
    return [
        job(data, f"{title}, {ratio:g}", ratio=ratio, order="together", steps=steps)
        for data in SETS
        for ratio in (0.0, 0.5)
        for title, steps in (("together", STEPS), ("together, twice the steps", 2 * STEPS))
    ]


@functools.lru_cache(maxsize=2 * 5)
def shards(name: str, seed: int) -> covey.data.Shards:
    """The data of a seed, dealt by labels."""
    if name == "digits":  # a large test part: 1,797 digits are few
        return covey.data.digits(devices=DEVICES, labels=LABELS, split=(0.45, 0.15, 0.4), seed=seed)
    load = {"mnist": covey.data.mnist, "fashion_mnist": covey.data.fashion_mnist}[name]
    dealt = load(partition="labels", devices=DEVICES, labels=LABELS, seed=seed)
    return replace(dealt, x=_centred(name, dealt.x), scaling=None)


_x: dict[str, Tensor] = {}


def _centred(name: str, x: Tensor) -> Tensor:
    """The images less their mean over their deviation, as published: one tensor for all seeds, so
    that it is held once.
    """
    mean, deviation = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}[name]
    if name not in _x:
        _x[name] = (x - mean) / deviation
    return _x[name]


def network(job: Job) -> nn.Module:
    """A small LeNet, N_u = 26,710 and N_v = 3,424; for a draw 64-64-h-10, whose first layer stands
    for the convolutions.
    """
    if job.draw is None:
        return covey.models.cnn((1, 28, 28), channels=(8, 16), hidden=100, padding="valid")
    wanted = float(SHARED.draw(7, torch.tensor([job.draw])))
    return covey.models.mlp(64, 64, round((wanted - 10) / 75), 10)


def radio(job: Job, policy: Policy) -> Radio:
    """The cell, or a cell for every edge with a band and a wire of its own."""
    each = DEVICES // job.edges
    places = PLACES if job.draw is None else 1000 + job.draw
    devices = Devices.of(
        torch.arange(DEVICES) // each, distance=Spread("disc", (20.0, 300.0)), cpu=3e9, power=POWER,
        cycles=Spread("uniform", (10.0, 60.0)), seed=places,
    )  # fmt: skip
    wire: dict[str, Any] = {} if job.edges == 1 else {"wire_rate": 1e9, "wire_delay": 0.001}
    cells = Cells.of(20e6, count=job.edges, **wire)
    return Radio(
        devices,
        cells,
        Channel(Noise(10 ** ((-110 - 30) / 10))),
        deadline=job.deadline,
        policy=policy,
    )


def algorithm(job: Job, kind: str) -> covey.Algorithm:
    lr = job.lr or LR[job.data]
    if kind == "whole":
        return FedAlt(
            steps=STEPS, personal_steps=STEPS, lr=lr, personal_lr=lr, batch=BATCH[job.data]
        )
    ratio: Any = "plan" if job.ratio is None else job.ratio
    return Pruned(
        ratio=ratio, order=job.order, steps=job.steps, probe_steps=PROBE, personal_steps=STEPS,
        lr=lr, personal_lr=lr, batch=BATCH[job.data],
    )  # fmt: skip


def experiments(job: Job, scheme: str, device: str) -> list[covey.Experiment]:
    """A scheme of a job, an experiment for each seed."""
    planned = job.ratio is None
    policy, kind = (
        SCHEMES[scheme] if planned else (optimal, "all shared" if job.all_shared else "pruned")
    )
    plain: dict[str, Any] = {
        "private": () if kind == "all shared" else "conv*" if job.draw is None else "1",
        "codec": "dense" if kind == "whole" else "bitmap",
        "score_every": 2,
        "device": device,
        "workers": 1,
        "radio": radio(job, policy) if planned else None,
    }
    tree = (
        covey.Tree.flat(DEVICES)
        if job.edges == 1
        else covey.Tree.grouped([DEVICES // job.edges] * job.edges)
    )
    seeds = range(job.seeds) if job.draw is None else [job.draw]
    model, method = network(job), algorithm(job, kind)
    return [
        covey.Experiment(
            method, shards(job.data, seed), model, tree, job.rounds, seed=seed, **plain
        )
        for seed in seeds
    ]
