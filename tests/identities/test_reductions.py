"""Algorithms that coincide when their parameters say so, on full batches and, where both draw
alike, on mini-batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm, Nodes, Rows, data, descend
from covey.algorithms import (
    APFL,
    Clustered,
    DemLearn,
    Ditto,
    FedAvg,
    FedMac,
    FedPer,
    FedProx,
    FedRep,
    FineTune,
    HeurFedAMP,
    HierFAVG,
    Local,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedMe,
    Scaffold,
    SFedHP,
)
from covey.algorithms.nested import Level, Nested
from covey.tree import Tree
from tests.identities.worlds import EQUAL, FLAT, UNEQUAL, WORLDS, deviation, trajectory

every_world = pytest.mark.parametrize("world", WORLDS)
full_and_mini = pytest.mark.parametrize("batch", [None, 6], ids=["full", "mini-batch"])
LAM, LR, ROUNDING = 0.7, 0.1, 1e-12
LAM2, FAST = 1.9, 0.25
EVERYTHING = {"digits": ("1.*", "3.*"), "least squares": ("1.*",)}


@dataclass(frozen=True)
class Mixing(Algorithm):
    """FedAvg from (1 - alpha) one's own last model + alpha the mean."""

    alpha: float
    steps: int
    batch: int | None

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        start = torch.lerp(me.recall("own", default=w), w, self.alpha)
        return me.keep("own", descend(start, me.grad(self.batch), steps=self.steps, lr=LR))


Made = Callable[..., Algorithm]
Sizes = tuple[tuple[int | None, int], ...]
ANY: Sizes = ((None, 4), (6, 4))
"""Batches and steps."""
ONE: Sizes = ((None, 4), (6, 1))
"""On mini-batches they coincide for one step alone, because they draw differently."""


@dataclass(frozen=True)
class Same:
    """Two algorithms whose global rows are the same, given steps and a batch."""

    left: Made
    right: Made
    tree: Tree = FLAT
    """That of the left one; the other is flat."""
    sizes: Sizes = ANY
    to_the_bit: bool = False
    changes: dict[str, Any] | None = None


plain, prox, local = partial(FedAvg, lr=LR), partial(FedProx, mu=LAM, lr=LR), partial(Local, lr=LR)
SOME: dict[str, Any] = {"lr": LR, "sample": 7}
DITTO = partial(Ditto, lam=0.7, personal_steps=3, personal_lr=LR, **SOME)
JUMPS: dict[str, Any] = {"lr1": (LAM + LAM2) / (LAM * LAM2), "lr2": LR, "lam1": LAM, "lam2": LAM2}
SAME = {
    "FedProx without its term is FedAvg": Same(partial(FedProx, mu=0, lr=LR), plain, to_the_bit=True),
    "FedProx without its term, sampled": Same(partial(FedProx, mu=0, **SOME), partial(FedAvg, **SOME), to_the_bit=True),
    "the global model of Ditto is FedAvg": Same(DITTO, partial(FedAvg, **SOME), to_the_bit=True),
    "the first round of Scaffold is FedAvg": Same(partial(Scaffold, lr=LR), plain, to_the_bit=True, changes={"rounds": 1}),
    "FedPer with nothing private is FedAvg": Same(partial(FedPer, lr=LR), plain, to_the_bit=True, changes={"private": ""}),
    "FedRep with nothing private is FedAvg": Same(partial(FedRep, lr=LR), plain, changes={"private": ""}),
    "Per-FedAvg without its inner step is FedAvg": Same(partial(PerFedAvg, alpha=0.0, lr=LR, order="first"), plain),
    "without differences of gradients too": Same(partial(PerFedAvg, alpha=0.0, lr=LR, order="hessian-free"), plain),
    "the global model of APFL is FedAvg": Same(partial(APFL, alpha=0.6, lr=LR), plain),
    "the global model of APFL at alpha 0 too": Same(partial(APFL, alpha=0.0, lr=LR), plain),
    "one cluster is FedAvg": Same(partial(Clustered, clusters=1, lr=LR, weight="uniform"), plain),
    "one cluster by samples is FedAvg by samples": Same(
        partial(Clustered, clusters=1, lr=LR, weight="samples"), partial(FedAvg, lr=LR, weight="samples"),
    ),
    "HierFAVG with one edge round and equal groups is FedAvg": Same(partial(HierFAVG, edge_rounds=1, lr=LR), plain, EQUAL),
    "HierFAVG by samples is FedAvg by samples in any groups": Same(
        partial(HierFAVG, edge_rounds=1, lr=LR, weight="samples"), partial(FedAvg, lr=LR, weight="samples"), UNEQUAL,
    ),
    "pFedMe that jumps to theta is FedProx": Same(
        partial(PFedMe, lam=LAM, local_rounds=1, lr=1 / LAM, personal_lr=LR, beta=1.0), prox, sizes=ONE,
    ),
    "PerMFL that jumps to theta is FedProx": Same(
        partial(PerMFL, lam=LAM, gamma=2.0, beta=0.5, lr=LR, edge_lr=1 / LAM, edge_rounds=1), prox, EQUAL,
    ),
    "sFedHP that jumps to theta is FedProx": Same(partial(SFedHP, edge_rounds=1, **JUMPS), prox, EQUAL, ONE),
    "PerMFL with one edge round is pFedMe with one local round": Same(
        partial(PerMFL, lam=LAM, gamma=1.5, beta=0.6, lr=LR, edge_lr=0.8, edge_rounds=1),
        partial(PFedMe, lam=LAM, local_rounds=1, lr=0.6 * 1.5 * 0.8, personal_lr=LR), EQUAL, ONE,
    ),
    "DemLearn with one level that takes over the mean is FedProx": Same(partial(DemLearn, levels=1, alpha=1.0, mu=LAM, lr=LR), prox),
    "DemLearn with one level is FedAvg whose devices mix with the mean": Same(
        partial(DemLearn, levels=1, alpha=0.4, mu=0.0, lr=LR), partial(Mixing, 0.4), sizes=((6, 4),),
    ),
}  # fmt: skip


@every_world
@pytest.mark.parametrize(
    ("name", "batch", "steps"),
    [(name, *size) for name, same in SAME.items() for size in same.sizes],
)
def test_the_global_rows_coincide(world: str, name: str, batch: int | None, steps: int) -> None:
    same = SAME[name]
    left, right = same.left(steps=steps, batch=batch), same.right(steps=steps, batch=batch)
    for dtype in (torch.float32, torch.float64) if same.to_the_bit else (torch.float64,):
        changes: dict[str, Any] = {"dtype": dtype, **(same.changes or {})}
        one = trajectory(left, world, same.tree, **changes)[0]
        shared = {key: value for key, value in changes.items() if key != "private"}
        other = trajectory(right, world, FLAT, **shared)[0]
        assert torch.equal(one, other) if same.to_the_bit else deviation(one, other) < ROUNDING


def personal(algorithm: Algorithm, world: str, **changes: Any) -> Tensor:
    """All personal models after three rounds; the global one need not move."""
    settings = {"workers": 1, "parts": ("test",), "score_every": 3, **WORLDS[world](), **changes}
    run = covey.run(covey.Experiment(algorithm=algorithm, tree=FLAT, rounds=3, **settings))
    list(run)
    rows = run.rows("personal")[1]
    assert (rows - run.runtime.start[0]).norm() > 0.01 * run.runtime.start[0].norm()
    return rows


DITTO_ALONE = partial(Ditto, lam=0.0, steps=2, lr=LR, personal_lr=LR)
ALONE_LIKE: dict[str, tuple[Made, int, bool]] = {
    "Ditto without its term": (lambda steps, batch: DITTO_ALONE(personal_steps=steps, batch=batch), 4, False),
    "APFL at alpha 1": (partial(APFL, alpha=1.0, alpha_lr=0.0, lr=LR), 4, False),
    "HeurFedAMP that listens to itself alone": (partial(HeurFedAMP, self_weight=1.0, lam=0.0, lr=LR), 4, True),
    # with one step from u = w the term acts on nothing
    "HeurFedAMP with its term, in one step": (partial(HeurFedAMP, self_weight=1.0, lam=5.0, lr=LR), 1, True),
}  # fmt: skip
"""How, in how many steps, and whether on mini-batches too."""


@every_world
@full_and_mini
@pytest.mark.parametrize("name", ALONE_LIKE)
def test_each_device_trains_alone(name: str, world: str, batch: int | None) -> None:
    make, steps, minis = ALONE_LIKE[name]
    if batch is not None and not minis:
        pytest.skip("they draw differently")
    rows = personal(make(steps=steps, batch=batch), world)
    assert deviation(rows, personal(local(steps=steps, batch=batch), world)) < ROUNDING


@every_world
@full_and_mini
def test_with_everything_private_fedper_is_local_to_the_bit(world: str, batch: int | None) -> None:
    alone = personal(FedPer(steps=4, lr=LR, batch=batch), world, private=EVERYTHING[world])
    assert torch.equal(alone, personal(local(steps=4, batch=batch), world))


@every_world
@full_and_mini
def test_finetune_moves_from_the_global_model_of_fedavg(world: str, batch: int | None) -> None:
    algorithm = FineTune(steps=4, lr=LR, tune_steps=3, tune_lr=LR, batch=batch)
    for dtype in (torch.float32, torch.float64):
        tuned, run = trajectory(algorithm, world, FLAT, dtype=dtype)
        average = trajectory(plain(steps=4, batch=batch), world, FLAT, dtype=dtype)[0]
        assert torch.equal(tuned, average)
        assert (run.rows("personal")[1] - run.w).abs().max() > 1e-3


ALONE = Tree.grouped([1] * 20)
LAM_BAR = LAM * LAM2 / (LAM + LAM2)


def test_sfedhp_with_one_device_per_edge_alternates_to_the_theta_of_pfedme_at_lam_bar() -> None:
    """With w held still, theta and phi alternate to their joint minimum, where lam2 (w - phi) =
    lam_bar (w - theta).
    """
    sfedhp = SFedHP(
        lam1=LAM, lam2=LAM2, edge_rounds=40, steps=10, lr1=1e-13, lr2=FAST, beta=1e12, batch=None
    )
    pfedme = PFedMe(lam=LAM_BAR, local_rounds=1, steps=400, lr=0.5, personal_lr=FAST, batch=None)
    _, hp = trajectory(sfedhp, "least squares", ALONE, rounds=1)
    _, me = trajectory(pfedme, "least squares", FLAT, rounds=1)
    w, theta, phi = hp.runtime.start[0], me.rows("personal")[1], hp.rows("edge")[1]
    assert deviation(theta, hp.rows("personal")[1]) < 1e-11
    assert deviation(LAM_BAR * (w - theta), LAM2 * (w - phi)) < 1e-11


def test_sfedhp_whose_alternation_converges_before_each_step_of_w_is_pfedme_at_lam_bar() -> None:
    alternation = (
        Level("edge", lam=LAM2, steps=40, lr=1 / (LAM + LAM2)),
        Level("device", "personal", lam=LAM, steps=10, lr=FAST, warm=True),
    )
    converged = Nested((Level("server", pull=1.0), Level("edge", steps=3, lr=0.5), *alternation))
    pfedme = PFedMe(lam=LAM_BAR, local_rounds=3, steps=400, lr=0.5, personal_lr=FAST, batch=None)
    nested, _ = trajectory(converged, "least squares", ALONE, rounds=2)
    flat, _ = trajectory(pfedme, "least squares", FLAT, rounds=2)
    assert deviation(nested, flat) < 1e-11


@dataclass(frozen=True)
class AveragedPath(Algorithm):
    """FedAvg whose devices answer the exponential average of their path, from w on."""

    rate: float
    steps: int
    lr: float
    batch: int | None

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        theta, average = w, w
        for _ in range(self.steps):
            theta = descend(theta, me.grad(me.batch(self.batch)), steps=1, lr=self.lr)
            average = (1 - self.rate) * average + self.rate * theta
        me.keep("personal", theta)
        return average


@every_world
@full_and_mini
def test_fedmac_without_correlation_is_fedavg_with_an_average_of_the_local_path(
    world: str, batch: int | None
) -> None:
    fedmac = FedMac(lam=1e-13, lr=0.3e13, local_rounds=6, personal_lr=LR, batch=batch)
    one, mac = trajectory(fedmac, world, FLAT)
    other, path = trajectory(AveragedPath(rate=0.3, steps=6, lr=LR, batch=batch), world, FLAT)
    assert deviation(one, other) < 1e-11
    assert deviation(mac.rows("personal")[1], path.rows("personal")[1]) < 1e-11


@dataclass(frozen=True)
class Weakening(Algorithm):
    """pFedMe whose penalty, one per coordinate, is lam e^(-2 r); with a step of w, r grows by step
    times penalty times gap^2.
    """

    local_rounds: int
    steps: int
    lr: float
    personal_lr: float
    beta: float
    batch: int | None

    def server(self, me: Nodes, w: Rows) -> Rows:
        r = me.recall("_r", default=torch.zeros_like(w))
        ws, rs = me.ask(self.device, w, r)
        me.keep("_r", torch.lerp(r, rs.mean(), self.beta))
        return torch.lerp(w, ws.mean(), self.beta)

    def device(self, me: Nodes, w: Rows, r: Rows) -> tuple[Rows, Rows]:
        theta = w
        for _ in range(self.local_rounds):
            penalty, gradient = LAM * torch.exp(-2 * r), me.grad(me.batch(self.batch))
            for _ in range(self.steps):
                theta = theta - self.personal_lr * (gradient(theta) + penalty * (theta - w))
            w, r = w - self.lr * penalty * (w - theta), r + self.lr * penalty * (w - theta) ** 2
        return w, r


@every_world
@full_and_mini
def test_pfedbayes_without_variance_is_pfedme_with_penalties_that_weaken_where_models_disagree(
    world: str, batch: int | None
) -> None:
    """Let sigma = s -> 0 and zeta / n = lam s^2. By the means, the divergence has pFedMe's
    gradients lam e^(-2 r) (mu - m), where r = log s - log s_0. By sigma it has none, as zeta / n
    does; but by log s it has - lam e^(-2 r) (mu - m)^2: a local distribution that is too narrow for
    the personal one widens. One local round of one global round is pFedMe itself.
    """
    shards = _even(world)

    def gap(other: Algorithm, rho: float, rounds: int, **steps: Any) -> float:
        s = torch.nn.functional.softplus(torch.tensor(rho, dtype=torch.float64)).item()
        zeta = LAM * s * s * int(shards.train.counts()[0])
        bayes = PFedBayes(zeta=zeta, rho=rho, method="gradient", restart=True, **steps)
        left, right = (
            trajectory(each, world, FLAT, rounds=rounds, data=shards)[0] for each in (bayes, other)
        )
        return deviation(left, right)

    steps: dict[str, Any] = {
        "local_rounds": 3, "steps": 4, "lr": 0.5, "personal_lr": LR, "beta": 0.7, "batch": batch,
    }  # fmt: skip
    wide, narrow = (gap(Weakening(**steps), rho, 3, **steps) for rho in (-9.0, -18.0))
    assert narrow < 1e-6
    assert narrow < 1e-3 * wide
    once: dict[str, Any] = {**steps, "local_rounds": 1, "steps": 8, "lr": 1 / LAM, "beta": 1.0}
    assert gap(PFedMe(lam=LAM, **once), -18.0, 1, **once) < 1e-6


def _even(world: str) -> data.Shards:
    """The world's data with as many training examples on every device, so that zeta / n is one
    number.
    """
    shards = WORLDS[world]()["data"]
    least = int(shards.train.counts().min())
    held = [shards.train.held(device)[:least].numpy() for device in range(shards.devices)]
    return replace(shards, train=data.shards.Part.of(held))
