"""Algorithms that coincide when their parameters say so, on full batches and, where both draw
alike, on mini-batches.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from covey import Algorithm, Nodes, Rows, data, descend
from covey.algorithms import (
    DemLearn,
    FedAvg,
    FedMac,
    FedProx,
    FineTune,
    HierFAVG,
    PerMFL,
    PFedBayes,
    PFedMe,
    SFedHP,
)
from covey.algorithms.nested import Level, Nested
from covey.tree import Tree
from tests.identities.worlds import EQUAL, FLAT, UNEQUAL, WORLDS, deviation, trajectory

every_world = pytest.mark.parametrize("world", WORLDS)
full_and_mini = pytest.mark.parametrize("batch", [None, 6], ids=["full", "mini-batch"])
LAM, LR, ROUNDING = 0.7, 0.1, 1e-12


def assert_coincide(
    world: str, left: Algorithm, right: Algorithm, left_tree: Tree = FLAT, right_tree: Tree = FLAT
) -> None:
    one, other = trajectory(left, world, left_tree)[0], trajectory(right, world, right_tree)[0]
    assert deviation(one, other) < ROUNDING


@every_world
@full_and_mini
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sample", [None, 7])
def test_fedprox_without_its_term_is_fedavg_to_the_bit(
    world: str, batch: int | None, dtype: torch.dtype, sample: int | None
) -> None:
    prox = FedProx(mu=0, steps=4, lr=LR, batch=batch, sample=sample)
    plain = FedAvg(steps=4, lr=LR, batch=batch, sample=sample)
    assert torch.equal(
        trajectory(prox, world, FLAT, dtype=dtype)[0],
        trajectory(plain, world, FLAT, dtype=dtype)[0],
    )


@every_world
@full_and_mini
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_global_model_of_finetune_is_fedavg_to_the_bit(
    world: str, batch: int | None, dtype: torch.dtype
) -> None:
    tuned, run = trajectory(
        FineTune(steps=4, lr=LR, tune_steps=3, tune_lr=LR, batch=batch), world, FLAT, dtype=dtype
    )
    assert torch.equal(
        tuned, trajectory(FedAvg(steps=4, lr=LR, batch=batch), world, FLAT, dtype=dtype)[0]
    )
    assert (run.rows("personal")[1] - run.w).abs().max() > 1e-3


@every_world
@full_and_mini
def test_hierfavg_with_one_edge_round_and_equal_groups_is_fedavg(
    world: str, batch: int | None
) -> None:
    settings: dict[str, Any] = {"steps": 4, "lr": LR, "batch": batch}
    assert_coincide(world, HierFAVG(edge_rounds=1, **settings), FedAvg(**settings), EQUAL)


@every_world
@full_and_mini
def test_hierfavg_weighed_by_samples_is_fedavg_in_any_groups(world: str, batch: int | None) -> None:
    settings: dict[str, Any] = {"steps": 4, "lr": LR, "batch": batch, "weight": "samples"}
    assert_coincide(world, HierFAVG(edge_rounds=1, **settings), FedAvg(**settings), UNEQUAL)


@every_world
@pytest.mark.parametrize(("batch", "steps"), [(None, 4), (6, 1)], ids=["full", "one mini-batch"])
def test_pfedme_that_jumps_to_theta_is_fedprox(world: str, batch: int | None, steps: int) -> None:
    pfedme = PFedMe(
        lam=LAM, local_rounds=1, steps=steps, lr=1 / LAM, personal_lr=LR, beta=1.0, batch=batch
    )
    assert_coincide(world, pfedme, FedProx(mu=LAM, steps=steps, lr=LR, batch=batch))


@every_world
@full_and_mini
def test_permfl_that_jumps_to_theta_is_fedprox(world: str, batch: int | None) -> None:
    permfl = PerMFL(
        lam=LAM, gamma=2.0, beta=0.5, lr=LR, edge_lr=1 / LAM, edge_rounds=1, steps=4, batch=batch
    )
    assert_coincide(world, permfl, FedProx(mu=LAM, steps=4, lr=LR, batch=batch), EQUAL)


@every_world
@pytest.mark.parametrize(("batch", "steps"), [(None, 4), (6, 1)], ids=["full", "one mini-batch"])
def test_sfedhp_that_jumps_to_theta_is_fedprox(world: str, batch: int | None, steps: int) -> None:
    lam2 = 1.9
    sfedhp = SFedHP(
        lam1=LAM, lam2=lam2, edge_rounds=1, steps=steps, lr1=(LAM + lam2) / (LAM * lam2), lr2=LR, batch=batch,
    )  # fmt: skip
    assert_coincide(world, sfedhp, FedProx(mu=LAM, steps=steps, lr=LR, batch=batch), EQUAL)


@every_world
@pytest.mark.parametrize(("batch", "steps"), [(None, 4), (6, 1)], ids=["full", "one mini-batch"])
def test_permfl_with_one_edge_round_is_pfedme_with_one_local_round(
    world: str, batch: int | None, steps: int
) -> None:
    permfl = PerMFL(
        lam=LAM, gamma=1.5, beta=0.6, lr=LR, edge_lr=0.8, edge_rounds=1, steps=steps, batch=batch
    )
    pfedme = PFedMe(
        lam=LAM, local_rounds=1, steps=steps, lr=0.6 * 1.5 * 0.8, personal_lr=LR, batch=batch
    )
    assert_coincide(world, permfl, pfedme, EQUAL)


ALONE = Tree.grouped([1] * 20)
LAM2, FAST = 1.9, 0.25
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
    assert (
        deviation(
            trajectory(converged, "least squares", ALONE, rounds=2)[0],
            trajectory(pfedme, "least squares", FLAT, rounds=2)[0],
        )
        < 1e-11
    )


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


@every_world
@full_and_mini
def test_demlearn_with_one_level_that_takes_over_the_mean_is_fedprox(
    world: str, batch: int | None
) -> None:
    settings: dict[str, Any] = {"mu": LAM, "steps": 4, "lr": LR, "batch": batch}
    assert_coincide(world, DemLearn(levels=1, alpha=1.0, **settings), FedProx(**settings))


@every_world
def test_demlearn_with_one_level_is_fedavg_whose_devices_mix_with_the_mean(world: str) -> None:
    @dataclass(frozen=True)
    class Mixing(Algorithm):
        """FedAvg from (1 - alpha) one's own last model + alpha the mean."""

        alpha: float

        def server(self, me: Nodes, w: Rows) -> Rows:
            return me.ask(self.device, w).mean()

        def device(self, me: Nodes, w: Rows) -> Rows:
            start = torch.lerp(me.recall("own", default=w), w, self.alpha)
            return me.keep("own", descend(start, me.grad(6), steps=4, lr=LR))

    assert_coincide(
        world, DemLearn(levels=1, alpha=0.4, mu=0.0, steps=4, lr=LR, batch=6), Mixing(0.4)
    )


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
