"""Advice against the papers' settings, and against runs: what is called an error diverges, what is
not can converge.
"""

import importlib
import math
import os
import pkgutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import covey
from covey import Algorithm, Experiment, Nodes, Rows, Run, Tree, descend
from covey.advice import (
    Advice,
    Curvature,
    Findings,
    Probe,
    advise,
    improve,
    levers,
    smoothness,
    theory,
)
from covey.advice.theory import stated_by
from covey.algorithms import (
    AL2GD,
    ALGORITHMS,
    APFL,
    L2GD,
    Clustered,
    DemLearn,
    Ditto,
    FedAdam,
    FedAlt,
    FedAMP,
    FedAvg,
    FedAvgM,
    FedMac,
    FedPer,
    FedProx,
    FedRep,
    FineTune,
    HeurFedAMP,
    HierFAVG,
    Level,
    Local,
    Nested,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedMe,
    Scaffold,
    SFedHP,
)
from covey.data import Part
from covey.errors import ConfigError, CoveyError, DivergedError
from covey.runs.experiment import describe
from tests import peek
from tests import test_no_examples as no_examples
from tests.algorithms import quadratics
from tests.algorithms.gaussians import divergence_gradients
from tests.given import drained
from tests.laws.cases import with_fields
from tests.test_hostile_values import extremes

PAPERS = sorted(info.name for info in pkgutil.iter_modules(theory.__path__))
PERMFL_CLI = PerMFL(beta=0.99, lam=5, gamma=5, lr=0.01, edge_lr=0.03)


def experiment(
    algorithm: Algorithm, curvatures: Sequence[float], *, optimum: float = 0.0, rounds: int = 1
) -> Experiment:
    """One parameter; two devices, or four on two edges, each with loss sum over its examples of h/2
    (x - optimum)^2.
    """
    tree = Tree.grouped([2, 2]) if "edge" in algorithm.tiers() else Tree.flat(2)
    pairs = [
        (
            torch.tensor([[math.sqrt(h)]], dtype=torch.float64),
            torch.tensor([math.sqrt(h) * optimum], dtype=torch.float64),
        )
        for h in list(curvatures) * (tree.devices // len(curvatures))
    ]
    return Experiment(
        algorithm=algorithm, data=covey.data.own_parts(train=pairs), model=nn.Sequential(nn.Linear(1, 1, bias=False)), tree=tree,
        rounds=rounds, loss="squared_error", score_every=rounds, parts=("train",), dtype=torch.float64, workers=1,
    )  # fmt: skip


def play(algorithm: Algorithm, *curvatures: float, optimum: float = 0.0, rounds: int = 1) -> Run:
    """From w = 1."""
    run = covey.run(experiment(algorithm, curvatures, optimum=optimum, rounds=rounds))
    run.w = torch.ones_like(run.w)
    return drained(run)


def about(found: list[Advice], topic: str) -> Advice:
    (only,) = [advice for advice in found if advice.about == topic]
    return only


def told(topic: str, algorithm: Algorithm, **facts: Any) -> Advice:
    """What is advised of one topic."""
    return about(advise(algorithm, **facts), topic)


def levels(found: list[Advice]) -> set[str]:
    return {advice.level for advice in found}


def test_permfl_defaults_of_the_command_line_get_a_warning_with_the_server_factor() -> None:
    found = advise(PERMFL_CLI)
    server = about(found, "server step")
    assert server.level == "warning"
    assert server.numbers["beta*gamma"] == pytest.approx(4.95)
    assert server.numbers["server factor"] == pytest.approx(-3.95)
    assert "4.95" in server.text
    assert "-3.95" in server.text
    assert "error" not in levels(found)


def test_permfl_defaults_converge_on_flat_losses_and_not_on_steep_ones() -> None:
    edge = told("one round", PERMFL_CLI).numbers["highest curvature"]
    calm = replace(PERMFL_CLI, batch=None)
    below, above = (abs(float(play(calm, share * edge, rounds=3).w)) for share in (0.9, 1.1))
    assert below < 1 < above  # a round is linear here: what grows once grows for ever


def test_pfedme_in_the_comparison_of_sfedhp_is_stable_only_below_ten() -> None:
    found = advise(PFedMe(lam=30, personal_lr=0.05, lr=0.05))
    inner = about(found, "inner step")
    assert inner.numbers["largest L"] == pytest.approx(10)
    assert "stable only for L < 2/personal_lr - lam = 10" in inner.text
    steep = advise(PFedMe(lam=30, personal_lr=0.05, lr=0.05), smoothness=12)
    assert about(steep, "inner step").level == "warning"
    known = advise(PFedMe(lam=30, personal_lr=0.05, lr=0.05), smoothness=12, exact=True)
    assert about(known, "inner step").level == "warning"  # flatter directions converge
    assert "error" not in levels(known)


@pytest.mark.parametrize(("lam", "amplitude"), [(25, 5.3e-4), (30, 8.0e-4)])
def test_sfedhp_figure_4_alternates_with_the_amplitude_said(lam: float, amplitude: float) -> None:
    found = advise(SFedHP(lam1=lam, lam2=lam, gamma1=0.008, gamma2=0.008, lr1=0.05, lr2=0.05))
    device, edge = (advice for advice in found if advice.about == "smooth l1")
    assert device.level == edge.level == "warning"
    assert device.numbers["largest amplitude"] == pytest.approx(amplitude, rel=0.01)
    algorithm = SFedHP(lam1=lam, lam2=lam, gamma1=0.008, gamma2=0.008, lr1=0.05, lr2=0.05)
    assert device.numbers["cut"] == pytest.approx(algorithm.cut("device"))
    assert edge.numbers["cut"] == pytest.approx(algorithm.cut("edge"))
    x = torch.full((1, 1), 1e-6, dtype=torch.float64)
    for _ in range(2):  # an even and an odd number of steps end on opposite sides
        terms: dict[str, Any] = {
            "prox": (lam, torch.zeros_like(x)),
            "l1": (0.008, 6e-5),
            "lr": 0.05,
        }
        ends = [descend(x, torch.zeros_like, steps=n, **terms) for n in (500, 501)]
        assert float(ends[0]) == pytest.approx(-float(ends[1]))
        assert abs(float(ends[0])) == pytest.approx(device.numbers["largest amplitude"], rel=1e-3)
    soft = advise(SFedHP(lam1=lam, lam2=lam, gamma1=0.008, gamma2=0.008, l1="prox"))
    assert not [advice for advice in soft if advice.about == "smooth l1"]


def test_sfedhp_theorem_1_asks_for_both_links_and_no_experiment_meets_them() -> None:
    theorem = told("Theorem 1 of sFedHP", SFedHP(gamma1=0.001, gamma2=0.001), smoothness=1)
    assert theorem.text.count("fails") == 2
    wide = told(
        "Theorem 1 of sFedHP", SFedHP(lam1=40, lam2=81, gamma1=0.001, lr2=0.01), smoothness=1
    )
    assert wide.text.count("holds") == 2
    assert told("Theorem 3 of sFedHP", SFedHP()).text.count("not given") == 1


def test_fedmac_figure_6_moves_a_weight_by_two_in_one_step() -> None:
    found = advise(FedMac(lr=2000, gamma_w=0.001, gamma=0.001))
    penalty = about(found, "penalty step")
    assert penalty.level == "warning"
    assert penalty.numbers["lr*gamma_w"] == pytest.approx(2.0)
    assert about(found, "smooth l1").numbers["largest amplitude"] == pytest.approx(2 / 1.8)
    local = about(found, "correlation")
    assert local.numbers["personal_lr*lam"] == pytest.approx(5e-6)
    assert "error" not in levels(found)


def test_fedmac_is_convex_only_below_mu() -> None:
    assert told("Theorem 1 of FedMac", FedMac(), strong=1e-5).text.endswith("not convex: fails.")
    best = told("Theorem 1 of FedMac", FedMac(), strong=1e9).numbers["largest lr"]
    assert best == pytest.approx(1.8, rel=0.02)


def test_pfedme_theorems_are_far_below_practice() -> None:
    found = advise(PFedMe(lam=15, local_rounds=20, beta=1), strong=1e-3, smoothness=5)
    assert about(found, "Theorem 1 of pFedMe").numbers["largest lr"] == pytest.approx(
        2.9e-10, rel=0.01
    )
    assert about(found, "Theorem 2 of pFedMe").numbers["largest lr"] == pytest.approx(
        2e-7, rel=0.02
    )
    assert about(found, "Theorem 2 of pFedMe").numbers["least lam"] == pytest.approx(math.sqrt(201))


def test_permfl_theorem_1_bounds_the_rate_of_a_run() -> None:
    algorithm = PerMFL(
        lam=3, gamma=2, beta=0.25, lr=0.2, steps=10, edge_lr=0.1, edge_rounds=40, batch=None
    )
    theorem = told("Theorem 1 of PerMFL", algorithm, smoothness=1, strong=1)
    assert "fails" not in theorem.text
    assert theorem.numbers["mu_F"] == pytest.approx(6 / (3 + 2 + 6))
    assert float(play(algorithm, 1.0, rounds=6).w) ** 2 <= 2 * theorem.numbers["rate"] ** 6


def test_permfl_loops_are_as_long_as_the_equations_ask() -> None:
    printed = PerMFL(lam=0.5, lr=0.01, edge_lr=0.03)  # of its Table 2
    numbers = told("K and L of PerMFL (convex)", printed, strong=0.01).numbers
    shrink = 1 - 0.03 * (0.5 * 0.01 / 0.51 + 1.5) / 2
    assert shrink ** numbers["K"] <= 1e-3 < shrink ** (numbers["K"] - 1)
    assert (1 - 0.01 * 0.51) ** numbers["L"] <= shrink ** numbers["K"]
    nonconvex = told("K and L of PerMFL (nonconvex)", printed, smoothness=0.2).numbers
    assert nonconvex["K per T"] == pytest.approx(2 * 0.6 * 1.5**2 / 0.03)
    assert nonconvex["L per K"] == pytest.approx(0.25 * 0.03 / (0.02 * (1 - 0.0035) * 0.09))


ROUNDS = [
    PFedMe(lam=3, lr=0.2, personal_lr=0.15, beta=1.7, steps=2, local_rounds=3, weight_decay=0.1, batch=None),
    FedMac(lam=0.4, lr=2.5, personal_lr=0.15, beta=0.8, steps=2, local_rounds=3, batch=None),
    SFedHP(lam1=3, lam2=2, lr1=0.5, lr2=0.15, beta=1.3, steps=2, edge_rounds=3, batch=None),
    PerMFL(lam=1.3, gamma=2.1, beta=0.7, lr=0.1, edge_lr=0.2, steps=3, edge_rounds=2, batch=None),
]  # fmt: skip


@pytest.mark.parametrize("curvature", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("algorithm", ROUNDS, ids=lambda a: type(a).__name__)
def test_the_factor_of_a_round_is_that_of_a_run(algorithm: Algorithm, curvature: float) -> None:
    said = told("one round", algorithm, smoothness=curvature, exact=True)
    factor = float(play(algorithm, curvature).w)
    assert said.numbers["factor at L"] == pytest.approx(factor, rel=1e-9)
    assert (said.level != "note") == (abs(factor) > 1)


@given(
    lam=st.floats(0.1, 20),
    speed=st.floats(0.05, 4),
    pull=st.floats(0.05, 4),
    rounds=st.integers(1, 4),
    h=st.floats(0.01, 30),
)
@settings(max_examples=25)
def test_what_is_said_of_an_exact_l_is_what_a_run_does_there(
    lam: float, speed: float, pull: float, rounds: int, h: float
) -> None:
    algorithm = PFedMe(
        lam=lam, lr=pull / lam, personal_lr=speed / (lam + h), steps=2, local_rounds=rounds, batch=None,
    )  # fmt: skip
    said = told("one round", algorithm, smoothness=h, exact=True)
    factor = abs(float(play(algorithm, h).w))
    if abs(factor - 1) > 1e-9:
        assert (said.level != "note") == (factor > 1)


CERTAIN = [
    PerMFL(lam=30, gamma=1, beta=0.3, lr=[0.08, 0.08, 0.08, 0.08], edge_lr=0.01, batch=None),
    PFedMe(lam=30, personal_lr=0.08, lr=0.005, batch=None),
    SFedHP(lam1=30, lam2=30, lr2=0.08, lr1=0.01, batch=None),
    FedProx(mu=30, lr=0.08, batch=None),
    FedProx(
        mu=40, lr=0.05, batch=None
    ),  # lr mu = 2: at no curvature a factor of -1, at any other more
    DemLearn(mu=30, lr=0.08, batch=None),
    FedAMP(lam=30, lr=0.08, batch=None),
    HeurFedAMP(lam=30, lr=0.08, batch=None),
    Nested((Level("server", lr=0.01), Level("device", name="personal", lam=30, lr=0.08, steps=20))),
]


def grown(algorithm: Algorithm, curvature: float, rounds: int = 1) -> float:
    """What so many rounds multiply the distance to the optimum by; infinite where a run stops as
    diverged.
    """
    run = covey.run(experiment(algorithm, [curvature], rounds=rounds))
    if not isinstance(algorithm, DemLearn):  # whose devices start from the initial model
        run.w = torch.ones_like(run.w)
    start = float(run.w)
    try:
        drained(run)
    except DivergedError:
        return math.inf
    return abs(float(run.w) / start)


@pytest.mark.parametrize("algorithm", CERTAIN, ids=lambda a: type(a).__name__)
def test_what_is_an_error_whatever_the_loss_diverges_whatever_the_loss(
    algorithm: Algorithm,
) -> None:
    assert "error" in levels(advise(algorithm))
    for curvature in (0.05, 2.0, 10.0):
        once, thrice = grown(algorithm, curvature), grown(algorithm, curvature, rounds=3)
        assert 1 < once < thrice or once == thrice == math.inf


ODD = [
    FedProx(mu=41, lr=0.05, steps=21, batch=None),
    DemLearn(mu=41, lr=0.05, steps=21, batch=None),
    FedAMP(lam=41, lr=0.05, steps=21, batch=None),
    HeurFedAMP(lam=41, lr=0.05, steps=21, batch=None),
    PerMFL(
        lam=41, gamma=1.5, beta=0.6, lr=0.05, edge_lr=0.001, edge_rounds=3, steps=21, batch=None
    ),
    PerMFL(
        lam=0.5, gamma=2, beta=0.3, edge_lr=1.5, edge_rounds=10, batch=None
    ),  # where devices overshoot as well
    PFedMe(lam=41, personal_lr=0.05, lr=0.005, steps=21, local_rounds=1, batch=None),
    SFedHP(lam1=41, lam2=10, lr2=0.05, lr1=0.05, steps=21, edge_rounds=1, batch=None),
    FedMac(
        lam=1, lr=3, personal_lr=0.5, steps=4, batch=None
    ),  # above h = lam, where theta = w is a fixed point
    Nested((Level("server", lr=0.01), Level("device", name="personal", lam=41, lr=0.05, steps=21))),
]


@pytest.mark.parametrize("algorithm", ODD, ids=lambda a: type(a).__name__)
def test_loops_that_overshoot_may_converge_and_get_a_warning(algorithm: Algorithm) -> None:
    found = advise(algorithm)
    assert found[0].level == "warning"
    stretch = about(found, "one round").numbers
    inside = stretch["lowest curvature"] + 0.5 * (
        stretch["highest curvature"] - stretch["lowest curvature"]
    )
    assert grown(algorithm, inside) < 1
    assert grown(algorithm, 1.005 * stretch["highest curvature"]) > 1


def test_fedprox_beyond_two_reaches_the_optimum() -> None:
    algorithm = FedProx(mu=41, lr=0.05, steps=21, batch=None)
    assert "error" not in levels(advise(algorithm))
    assert float(play(algorithm, 1.0, 2.0, optimum=3.0, rounds=150).w) == pytest.approx(
        3.0, abs=1e-6
    )


def test_an_exact_l_narrows_the_curvatures_that_count() -> None:
    """FedMac's factor is 1 at h = lam, so that it diverges at all below and not at all above."""
    algorithm = FedMac(lam=1, lr=3000, batch=None)
    assert "error" in levels(advise(algorithm, smoothness=0.9, exact=True))
    assert "error" not in levels(advise(algorithm, smoothness=0.9))  # an estimate is no limit
    assert "error" not in levels(advise(algorithm, smoothness=2.0, exact=True))
    assert min(grown(algorithm, h) for h in (0.01, 0.3, 0.9)) > 1


def by_hand(algorithm: Algorithm, h: float, longer: Fraction = Fraction(1)) -> Fraction:
    """The factor of one round along curvature h, step by step in exact fractions, with so much
    longer steps.
    """
    a, curvature = _fractions(algorithm), Fraction(h)
    a |= {name: longer * value for name, value in a.items() if "lr" in name}

    def steps(x: Fraction, anchor: Fraction, lr: Fraction, lam: Fraction, count: int) -> Fraction:
        for _ in range(count):
            x = x - lr * (curvature * x + lam * (x - anchor))
        return x

    w = theta = phi = Fraction(1)
    if isinstance(algorithm, FedProx):
        return steps(w, w, a["lr"], a["mu"], algorithm.steps)
    if isinstance(algorithm, PFedMe):
        for _ in range(algorithm.local_rounds):
            theta = steps(theta, w, a["personal_lr"], a["lam"], algorithm.steps)
            w = w - a["lr"] * a["lam"] * (w - theta)
        return 1 - a["beta"] + a["beta"] * w
    if isinstance(algorithm, PerMFL):
        assert isinstance(algorithm.steps, int)
        assert isinstance(algorithm.edge_rounds, int)
        for _ in range(algorithm.edge_rounds):
            theta = steps(w, w, a["lr"], a["lam"], algorithm.steps)
            w = w - a["edge_lr"] * (a["lam"] * (w - theta) + a["gamma"] * (w - 1))
        return 1 - a["beta"] * a["gamma"] * (1 - w)
    assert isinstance(algorithm, SFedHP)
    for _ in range(algorithm.edge_rounds):
        theta = steps(theta, phi, a["lr2"], a["lam1"], algorithm.steps)
        phi = (a["lam1"] * theta + a["lam2"] * w) / (a["lam1"] + a["lam2"])
        w = w - a["lr1"] * a["lam2"] * (w - phi)
    return 1 - a["beta"] + a["beta"] * w


ROUNDING = Fraction(1, 2**50)


def _fractions(algorithm: Algorithm) -> dict[str, Fraction]:
    return {
        name: Fraction(value)
        for name, value in vars(algorithm).items()
        if isinstance(value, int | float)
    }


def _any_setting(
    kind: int, speed: float, pull: float, tie: float, steps: int, rounds: int
) -> Algorithm:
    """One of four methods; `speed` is lr lam of its inner loop, `pull` the product of its next one."""
    if kind == 0:
        return FedProx(mu=tie, lr=speed / tie, steps=steps)
    if kind == 1:
        return PFedMe(
            lam=tie, personal_lr=speed / tie, lr=pull / tie, steps=steps, local_rounds=rounds
        )
    if kind == 2:
        return PerMFL(
            lam=tie, lr=speed / tie, gamma=1.5, edge_lr=pull / 1.5, beta=0.5, steps=steps, edge_rounds=rounds,
        )  # fmt: skip
    return SFedHP(
        lam1=tie, lam2=tie, lr2=speed / tie, lr1=2 * pull / tie, steps=steps, edge_rounds=rounds
    )


@given(
    kind=st.integers(0, 3), speed=st.floats(0.5, 3.5), pull=st.floats(0.05, 3.5), tie=st.floats(0.5, 50),
    steps=st.integers(1, 8), rounds=st.integers(1, 4),
)  # fmt: skip
@example(kind=0, speed=2.0, pull=1.0, tie=3.0, steps=2, rounds=1)  # lr is just below 2 / 3
@example(kind=1, speed=2.0, pull=2.0, tie=2.0, steps=2, rounds=2)  # converges near h = 1 alone
@example(kind=2, speed=1.0, pull=2.0, tie=10.0, steps=2, rounds=2)  # ... at h = 10 alone
@settings(max_examples=120, deadline=None)
def test_an_error_is_divergence_at_every_curvature_and_nothing_else_is(
    kind: int, speed: float, pull: float, tie: float, steps: int, rounds: int
) -> None:
    """Up to the rounding of steps: at lr mu = 2 - 1e-16, which is 2 in floats, a round converges at
    curvatures below 1e-16.
    """
    algorithm = _any_setting(kind, speed, pull, tie, steps, rounds)
    said = told("one round", algorithm)

    def sizes(h: float) -> list[Fraction]:
        return [abs(by_hand(algorithm, h, 1 + part * ROUNDING)) for part in (-1, 0, 1)]

    if said.level == "error":
        for h in (1e-60, 1e-12, 1e-4, 0.01, 0.3, 1.0, 7.0, 40.0, 1e3, 1e6):
            assert max(sizes(h)) > 1, h
        return
    low, high = said.numbers["lowest curvature"], said.numbers["highest curvature"]
    if not math.isnan(low):
        inside = math.sqrt(max(low, 1e-60)) * math.sqrt(min(high, 1e6))
        assert min(sizes(inside)) <= 1 + ROUNDING * Fraction(inside)


@pytest.mark.parametrize("changes", [{"tol": 0.1}, {"method": "nesterov"}])
@pytest.mark.parametrize("algorithm", [PFedMe(), FedMac(), SFedHP()])
def test_the_factor_of_plain_steps_says_nothing_of_others(
    algorithm: Any, changes: dict[str, Any]
) -> None:
    other = replace(algorithm, **changes)
    assert told("one round", algorithm)
    assert "one round" not in {advice.about for advice in advise(other)}


@pytest.mark.parametrize(("lam", "lr"), [(0.0, 0.1), (0.5, 0.1), (4.0, 0.2)])
def test_nesterovs_steps_diverge_from_the_limit_said(lam: float, lr: float) -> None:
    """Of 4000 steps: those of FedMac have no penalty, whose momentum grows to 1."""
    algorithm = (
        SFedHP(lam1=lam, lr2=lr, method="nesterov")
        if lam
        else FedMac(personal_lr=lr, method="nesterov")
    )
    limit = told("momentum", algorithm).numbers["limit"]
    for times, diverges in ((0.98, False), (1.02, True)):
        curvature = times * limit / lr - lam
        x = torch.ones(1, 1, dtype=torch.float64)
        prox = (lam, torch.zeros_like(x)) if lam else None
        end = descend(
            x, lambda x, h=curvature: h * x, prox=prox, steps=4000, lr=lr, method="nesterov"
        )
        assert (float(end.abs()) > 1e3) == diverges
        said = told("momentum", algorithm, smoothness=curvature).level
        assert said == ("warning" if diverges else "note")


def test_a_product_of_two_exactly_is_two_or_more() -> None:
    """At lr lam = 2 every convex loss makes the step overshoot: after an even number of steps
    nothing converges.
    """
    found = advise(FedProx(mu=4, lr=0.5, steps=2))
    assert about(found, "inner step").numbers["factor"] == -1
    assert "is 2 or more" in about(found, "inner step").text
    assert about(found, "one round").level == "error"
    assert min(grown(FedProx(mu=4, lr=0.5, steps=2, batch=None), h) for h in (1e-3, 1.0, 50.0)) > 1
    assert told("one round", FedProx(mu=4, lr=0.499, steps=2)).level == "note"


def test_dittos_personal_model_diverges_from_two_on_whatever_the_number_of_steps() -> None:
    for steps in (1, 2, 3):
        algorithm = Ditto(lam=4.0, personal_lr=0.5, personal_steps=steps)
        assert told("one round", algorithm).level == "error"
        assert told("one round", replace(algorithm, personal_lr=0.49)).level == "note"


PLAIN = (FedAvg, HierFAVG, Local, FineTune, FedProx, Scaffold, APFL, FedPer, Clustered)


@pytest.mark.parametrize(
    "algorithm", [algorithm(lr=0.1) for algorithm in PLAIN], ids=lambda a: type(a).__name__
)
def test_plain_steps_are_never_an_error(algorithm: Any) -> None:
    """At an exact L above 2/lr they diverge along that direction, and converge along flatter ones."""
    assert levels(advise(algorithm)) == {"note"}
    assert levels(advise(algorithm, smoothness=19)) == {"note"}
    assert "warning" in levels(advise(algorithm, smoothness=21))
    assert advise(algorithm, smoothness=21, exact=True)[0].level == "warning"
    run = play(replace(algorithm, batch=None), 21.0, rounds=5)
    left = run.rows("personal")[1] if isinstance(algorithm, Local) else run.w
    assert float(left.abs().max()) > 1e2


def test_sufficient_is_not_necessary_for_permfl() -> None:
    both = PerMFL(
        lam=1, gamma=1.5, beta=1, lr=0.4, steps=10, edge_lr=0.6, edge_rounds=10, batch=None
    )
    found = advise(both)
    assert about(found, "edge step").numbers["edge_lr*(lam+gamma)"] == pytest.approx(1.5)
    assert about(found, "server step").numbers["beta*gamma"] == pytest.approx(1.5)
    assert {about(found, "edge step").level, about(found, "server step").level} == {"warning"}
    assert "error" not in levels(found)
    assert float(play(both, 0.5, 2.0, optimum=3.0, rounds=60).w) == pytest.approx(3.0, abs=1e-6)


def test_an_outer_product_above_two_is_no_certain_divergence() -> None:
    algorithm = PFedMe(lam=10, lr=0.25, personal_lr=0.05, steps=20, local_rounds=2, batch=None)
    found = advise(algorithm)
    outer = about(found, "outer step")
    assert outer.level == "warning"
    assert outer.numbers == pytest.approx({"lr*lam": 2.5, "largest L": 40})
    assert "error" not in levels(found)
    assert float(play(algorithm, 1.0, 2.0, optimum=3.0, rounds=150).w) == pytest.approx(
        3.0, abs=1e-6
    )
    steep = advise(PFedMe(lam=10, lr=0.25, personal_lr=0.01, steps=20), smoothness=60, exact=True)
    assert about(steep, "one round").level == "warning"


@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_the_heuristic_for_beta(beta: float) -> None:
    found = [a for a in advise(PFedMe(beta=beta, lr=0.05)) if a.about == "server step"]
    assert [a.level for a in found] == (["warning"] if abs(1 - beta * (1 - 0.25**20)) >= 1 else [])


def test_one_step_from_its_anchor_does_not_feel_the_penalty() -> None:
    assert "error" not in levels(advise(FedProx(mu=30, lr=0.1, steps=1)))
    assert abs(float(play(FedProx(mu=30, lr=0.1, steps=1, batch=None), 1.0, rounds=100).w)) < 1e-3


def test_lists_are_checked_by_their_largest() -> None:
    assert told("inner step", PerMFL(lam=0.5, lr=[0.01, 0.5], edge_lr=[0.1, 0.4])).numbers[
        "lr*lam"
    ] == pytest.approx(0.25)
    steep = PerMFL(gamma=5, edge_lr=[0.01, 0.4], edge_rounds=[1, 2])
    assert told("edge step", steep).level == "warning"


def test_lists_that_differ_are_no_proof_of_divergence() -> None:
    """The mean over devices is not the round of the one that goes furthest."""
    some = PerMFL(lam=30, gamma=1, beta=0.3, lr=[0.01, 0.01, 0.01, 0.08], edge_lr=0.01)
    said = told("one round", some)
    assert said.level == "warning"
    assert said.text.startswith("while every list and schedule has its largest entry, one round")
    assert told("one round", replace(some, lr=[0.08] * 4)).level == "error"


def test_the_smallest_steps_of_lists_take_the_most_rounds() -> None:
    even = PerMFL(lam=5, gamma=12, beta=0.01, lr=0.001, edge_lr=0.002, edge_rounds=10, steps=20)
    uneven = replace(even, lr=[0.02, 0.001], edge_lr=[0.002, 0.02, 0.02])
    convex = "K and L of PerMFL (convex)"
    given: dict[str, Any] = {"smoothness": 2.0, "strong": 0.5}
    asked = told(convex, even, **given).numbers
    assert told(convex, uneven, **given).numbers == asked
    nonconvex = "K and L of PerMFL (nonconvex)"
    each = told(nonconvex, even, **given).numbers
    most = told(nonconvex, uneven, **given).numbers
    assert most["K per T"] == each["K per T"]
    assert most["L per K"] == pytest.approx(10 * each["L per K"])  # of the edge that goes furthest


def test_theorem_1_of_pfedme_asks_for_rounds() -> None:
    """T >= 2 / (eta_1 mu_F), eta_1 = 1 / (6 lam (3 + 128 kappa_F / beta))."""
    algorithm = PFedMe(lam=15.0, lr=1e-9, beta=2.0)
    kappa = 15.1 / 0.1
    fewest = 2 * 6 * 15 * (3 + 128 * kappa / 2) / (15 * 0.1 / 15.1)
    for rounds, word in ((int(fewest) - 1, "fails"), (int(fewest) + 1, "holds")):
        said = told("Theorem 1 of pFedMe", algorithm, strong=0.1, rounds=rounds)
        assert said.numbers["fewest T"] == pytest.approx(fewest)
        assert f"rounds T = {rounds} >= 2/(eta_1 mu_F) = {fewest:.4g}: {word}" in said.text


def test_the_bound_of_permfl_that_is_false_as_printed_is_named() -> None:
    assert "(16) is false as printed" in told("Theorem 2 of PerMFL (nonconvex)", PerMFL()).text


def test_every_level_of_nested_is_checked() -> None:
    levels_of = (
        Level("server", lr=0.1),
        Level("edge", name="edge", lam=1.5, lr=2.0, steps=5),
        Level("device", name="personal", lam=0.5, lr=0.05, steps=5, gamma=0.01),
    )
    found = {advice.about: advice for advice in advise(Nested(levels_of), smoothness=3)}
    assert found["edge: inner step"].level == "warning"
    assert found["server: inner step"].level == "note"
    assert found["personal: inner step"].numbers["lr*(lam+L)"] == pytest.approx(0.05 * 3.5)
    assert found["personal: smooth l1"].level == "warning"


@pytest.mark.parametrize("algorithm", [*ROUNDS, *CERTAIN], ids=lambda a: type(a).__name__)
def test_the_most_serious_comes_first_and_reads_as_a_sentence(algorithm: Algorithm) -> None:
    found = advise(algorithm, smoothness=2, strong=0.1)
    order = [("error", "warning", "note").index(a.level) for a in found]
    assert order == sorted(order)
    assert all(
        a.text.endswith(".") and a.numbers and str(a) == f"{a.level}: {a.about}: {a.text}"
        for a in found
    )


@pytest.mark.parametrize(
    "wrong", [{"smoothness": -1.0}, {"strong": math.nan}, {"smoothness": 1.0, "strong": 2.0}]
)
def test_impossible_losses_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"strong|smoothness"):
        advise(FedAvg(), **wrong)


def test_an_unknown_algorithm_gets_a_note() -> None:
    class Own(FedAvg):
        pass

    (note,) = advise(Own())
    assert note.level == "note"
    assert "Own" in note.text


def states(algorithm: type[Algorithm]) -> bool:
    """Whether something is stated for it, in its file or in that of its paper."""
    own = {"advice", "step_sizes"} & {*vars(algorithm)}
    return bool(own) or algorithm.__module__.rpartition(".")[2] in PAPERS


def linear(
    sizes: Sequence[int], width: int, *, l2: float = 0.0, dtype: torch.dtype = torch.float64
) -> tuple[Experiment, float]:
    """Least squares on random examples, and the largest eigenvalue of any device's X'X/m, plus l2."""
    rng = np.random.default_rng(width)
    xs = [rng.normal(size=(m, width)) * rng.uniform(0.5, 2, width) for m in sizes]
    pairs = [(torch.from_numpy(x), torch.from_numpy(rng.normal(size=len(x)))) for x in xs]
    built = Experiment(
        algorithm=FedAvg(), data=covey.data.own_parts(train=pairs), model=nn.Sequential(nn.Linear(width, 1, bias=False)),
        tree=Tree.flat(len(sizes)), rounds=1, loss="squared_error", l2=l2, dtype=dtype,
    )  # fmt: skip
    return built, max(float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) for x in xs) + l2


@pytest.mark.parametrize("l2", [0.0, 0.7])
@pytest.mark.parametrize(
    ("sizes", "width"), [([7, 300, 20], 5), ([40, 60], 30), ([9], 1), ([500, 300], 120)]
)
def test_smoothness_of_least_squares_is_the_top_eigenvalue(
    sizes: list[int], width: int, l2: float
) -> None:
    built, top = linear(sizes, width, l2=l2)
    assert smoothness(built) == pytest.approx(top, rel=1e-4)
    with torch.no_grad():
        assert smoothness(built) == smoothness(built)
    assert smoothness(built, at=torch.full((width,), 5.0)) == pytest.approx(top, rel=1e-4)
    assert smoothness(linear(sizes, width, l2=l2, dtype=torch.float32)[0]) == pytest.approx(
        top, rel=1e-4
    )


@pytest.mark.parametrize("bend", [nn.Tanh(), nn.ReLU()], ids=["tanh", "relu"])
def test_smoothness_of_a_network_is_that_of_its_hessian(bend: nn.Module) -> None:
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(600, 3))), torch.from_numpy(rng.integers(0, 3, 600))
    model = nn.Sequential(nn.Linear(3, 4), bend, nn.Linear(4, 3)).double()
    data = covey.data.own_parts(train=[(x, y), (x[:9], y[:9])])
    built = Experiment(
        algorithm=FedAvg(), data=data, model=model, tree=Tree.flat(2), rounds=1, dtype=torch.float64
    )
    row = covey.run(built).w[0]
    shapes = [(3, 4), (4,), (4, 3), (3,)]  # linear weights lie [in, out] in a row

    def loss(row: torch.Tensor, size: int) -> torch.Tensor:
        a, b, c, d = (
            part.view(s)
            for part, s in zip(
                torch.split(row, [math.prod(s) for s in shapes]), shapes, strict=True
            )
        )
        return nn.functional.cross_entropy(bend(x[:size] @ a + b) @ c + d, y[:size])

    hessian = torch.autograd.functional.hessian
    hessians = [hessian(lambda row, size=size: loss(row, size), row) for size in (600, 9)]
    assert smoothness(built) == pytest.approx(
        max(float(torch.linalg.eigvalsh(h).abs().max()) for h in hessians), rel=1e-4
    )


def test_smoothness_does_not_see_relus_switch() -> None:
    built = Experiment(
        algorithm=FedAvg(), data=covey.data.digits(devices=4), model=covey.models.mlp(64, 100, 10),
        tree=Tree.flat(4), rounds=1,
    )  # fmt: skip
    assert 1 < smoothness(built) < 4


@pytest.mark.parametrize(
    "algorithm", [a for a in ALGORITHMS.values() if a is not Nested], ids=lambda a: a.__name__
)
def test_defaults_are_known_and_safe_for_ordinary_losses(algorithm: type[Algorithm]) -> None:
    unknown = "unknown algorithm" in {advice.about for advice in advise(algorithm())}
    assert unknown != states(algorithm)
    assert levels(advise(algorithm(), smoothness=2.0)) == {"note"}


def test_the_files_state_their_conditions() -> None:
    """All there were when the statements moved into the files; a new file may leave them out."""
    assert sum(states(algorithm) for algorithm in ALGORITHMS.values()) >= 28


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_speaks_for_the_algorithm_of_its_name_alone(name: str) -> None:
    kind = ALGORITHMS[name]
    paper = importlib.import_module(f"covey.advice.theory.{name}")
    assert not {"advice", "levers", "step_sizes"} & {*vars(kind)}
    own = type("Own", (kind,), {})
    for hook in ("advice", "levers"):
        assert stated_by(object.__new__(kind), hook) is getattr(paper, hook)
        assert stated_by(object.__new__(own), hook) is getattr(Algorithm, hook)


def test_step_sizes_say_what_is_a_step_on_the_data() -> None:
    class Own(FedAvg):
        step_sizes = ("lr",)

    class Heir(Own):
        pass

    assert advise(Own(lr=1.0), smoothness=3.0) == advise(FedAvg(lr=1.0), smoothness=3.0)
    assert told("unknown algorithm", Heir(lr=1.0)).level == "note"


def test_a_step_of_the_server_is_no_step_on_the_data() -> None:
    for algorithm in (Scaffold(), FedAdam(), FedAvgM()):
        assert [step.field for step in levers.steps(algorithm)] == ["lr"]


def test_a_part_of_the_columns_may_curve_less_than_the_whole() -> None:
    """An exact L is that of all columns, also where head and base learn in turn."""
    for algorithm in (FedRep(lr=1.0, head_lr=1.0), FedAlt(lr=1.0, personal_lr=1.0)):
        said = [item.text for item in advise(algorithm, smoothness=3.0, exact=True)]
        assert all("(if the estimate is right)" in text for text in said)


def test_a_personal_model_that_lasts_diverges_by_one_step_a_round() -> None:
    algorithm = Ditto(lam=5.0, personal_lr=0.5, personal_steps=1, steps=1, lr=0.1, batch=None)
    assert "error" in levels(advise(algorithm))
    assert float(play(algorithm, 1.0, rounds=30).rows("personal")[1].abs().max()) > 100


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_an_inner_step_beyond_the_curvature_turns_per_fedavg_around(order: Any) -> None:
    """At alpha h = 2 the first-order step goes the wrong way; with the Hessian it goes the right
    way, by h (1 - alpha h)^2.
    """
    algorithm = PerFedAvg(alpha=1.0, lr=0.1, steps=2, order=order, batch=None)
    factor = (1 - 0.1 * 2 * (1 - 2) ** (1 if order == "first" else 2)) ** 2
    found = advise(algorithm, smoothness=2.0, exact=True)
    assert about(found, "one round").numbers["factor at L"] == pytest.approx(factor)
    assert (about(found, "one round").level == "warning") == (order == "first")
    assert "error" not in levels(found)
    assert float(play(algorithm, 2.0).w) == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize(
    "algorithm",
    [L2GD(lr=0.1, p=0.5, lam=0.1), AL2GD(lr=0.1, p=0.5, edge_p=0.2, lam=0.1, gamma=0.1)],
)
def test_local_flips_are_as_long_as_they_are_rare(algorithm: Any) -> None:
    local = 0.1 / 0.5 / (1 - getattr(algorithm, "edge_p", 0.0))
    assert "warning" not in levels(advise(algorithm, smoothness=1.9 / local, exact=True))
    assert "warning" in levels(advise(algorithm, smoothness=2.1 / local, exact=True))
    run = play(replace(algorithm, batch=None), 4 / local, rounds=40)
    assert float(run.w.abs().max()) > 1e3


def test_ties_and_averaging_steps_are_named() -> None:
    assert told("inner step", FedAMP(lam=10.0, alpha=0.1, lr=0.03)).level == "warning"
    assert told("one round", FedAMP(lam=10.0, alpha=0.1, lr=0.03)).level == "error"
    assert told("inner step", HeurFedAMP(lam=10.0, lr=0.03)).numbers["lr*lam"] == pytest.approx(0.3)
    assert told("averaging step", L2GD(lam=20.0, p=0.1, lr=0.02)).level == "warning"
    assert told("averaging step", AL2GD(gamma=20.0, p=0.1, lr=0.02)).numbers == {
        "lr*gamma/p": pytest.approx(4.0)
    }
    rate = told("the rate of L2GD", L2GD(lam=1.0, p=0.1, lr=0.02), smoothness=1.0)
    assert rate.numbers["largest lr"] == 0.05
    found = advise(FedRep(head_lr=0.5), smoothness=5.0, exact=True)
    assert [advice.level for advice in found] == ["warning", "note"]


def test_a_pull_beyond_two_is_said_once_with_momentum_too() -> None:
    found = advise(SFedHP(lam1=25, lr2=0.1, method="nesterov"))
    assert about(found, "inner step").numbers["lr2*lam1"] == 2.5
    assert all(advice.about != "momentum" for advice in found)


def test_lists_of_probabilities_are_checked_by_the_rarest_and_the_most_frequent() -> None:
    """The rarest move goes farthest: lr*lam/((1-p) p_j) for the pull, lr/((1-p) (1-p_j)) else."""
    algorithm = AL2GD(lam=10.0, p=0.5, lr=0.02, edge_p=[0.1, 0.6], gamma=0.0)
    found = advise(algorithm)
    pull = about(found, "averaging step")
    assert pull.numbers["lr*lam/((1-p) edge_p)"] == pytest.approx(0.02 * 10 / 0.5 / 0.1)
    local = about(found, "inner step")
    longest = 0.02 / 0.5 / 0.4
    assert local.numbers["largest L"] == pytest.approx(2 / longest)
    assert f"L < 2/(lr/((1-p)(1-edge_p))) = {2 / longest:g}." in local.text


def test_sfedhp_theorem_2_has_the_constants_of_the_paper() -> None:
    """lr1 <= min(1/mu_F, 1/(3 L_F (3 + 128 L_F/(mu_F beta))))/(beta R), with L_F = lam2 +
    gamma2/rho.
    """
    algorithm = SFedHP(lam1=4.0, lam2=3.0, gamma2=0.0, beta=2.0, edge_rounds=5)
    numbers = told("Theorem 2 of sFedHP", algorithm, strong=0.5).numbers
    strong = 12 / 31  # 1/(1/mu + 1/lam1 + 1/lam2) = 1/(2 + 1/4 + 1/3)
    assert numbers["mu_F"] == pytest.approx(strong)
    assert numbers["largest lr1"] == pytest.approx(1 / (9 * (3 + 128 * 3 / (strong * 2))) / 10)


def test_the_amplitude_with_a_known_l_is_that_of_lam_and_l_together() -> None:
    """A curved loss makes the alternation wider, not narrower."""
    algorithm = SFedHP(lam1=25, lam2=25, gamma1=0.008, lr2=0.05)
    flat, curved = (told("smooth l1", algorithm, smoothness=L) for L in (None, 10.0))
    assert flat.numbers["largest amplitude"] == pytest.approx(0.05 * 0.008 / (2 - 0.05 * 25))
    assert curved.numbers["largest amplitude"] == pytest.approx(0.05 * 0.008 / (2 - 0.05 * 35))
    x = torch.full((1, 1), 1e-6, dtype=torch.float64)
    end = descend(
        x, lambda x: 10 * x, prox=(25, torch.zeros_like(x)), l1=(0.008, 6e-5), steps=4000, lr=0.05
    )
    assert abs(float(end)) == pytest.approx(curved.numbers["largest amplitude"], rel=1e-3)
    assert (
        "of up to lr2*gamma1/(2 - lr2*(lam1+L)) = 0.0016. The cut at 0.0011 does not hide it"
        in curved.text
    )


def test_without_ties_and_curvature_the_amplitude_is_half_the_step_of_the_penalty() -> None:
    """+-a with a = lr gamma tanh(a/rho)/2: the loss is flat, and FedMac has no pull on theta."""
    said = told("smooth l1", FedMac(personal_lr=0.05, gamma=0.008))
    assert "of up to personal_lr*gamma/2 = 0.0002" in said.text
    x = torch.full((1, 1), 1e-6, dtype=torch.float64)
    end = descend(x, lambda x: 0 * x, l1=(0.008, 6e-5), steps=4000, lr=0.05)
    again = descend(end, lambda x: 0 * x, l1=(0.008, 6e-5), steps=1, lr=0.05)
    assert float(again) == pytest.approx(-float(end), rel=1e-6)
    assert abs(float(end)) == pytest.approx(said.numbers["largest amplitude"], rel=5e-3)


def test_a_slow_alternation_stays_below_the_amplitude_said() -> None:
    algorithm = PFedMe(lam=5.0, personal_lr=0.05, gamma=(2.1 / 0.05 - 5) * 6e-5, lr=0.001)
    limit = told("smooth l1", algorithm).numbers["largest amplitude"]
    x = torch.full((1, 1), 1e-6, dtype=torch.float64)
    end = descend(
        x, torch.zeros_like, prox=(5.0, torch.zeros_like(x)), l1=(algorithm.gamma, 6e-5), steps=4000, lr=0.05
    )  # fmt: skip
    assert 1e-6 < abs(float(end)) < 0.5 * limit


def bayes(examples: int, **settings: Any) -> float:
    """By how much one step of every mean of q in the first round multiplies a difference of two
    starts, the draws being equal.
    """
    once = {"method": "gradient", "local_rounds": 1, "steps": 1, "batch": None, "restart": False}
    algorithm = PFedBayes(**{**once, **settings})
    ends = []
    for start in (1.0, 2.0):
        x = torch.full((examples, 1), math.sqrt(3.0), dtype=torch.float64)  # curvature 3
        built = replace(
            experiment(algorithm, [3.0]),
            data=covey.data.own_parts(train=[(x, torch.zeros(examples))] * 2),
        )
        run = covey.run(built)
        peek.store(run).put(
            "device", "personal", torch.arange(2), torch.full((2, 1), start, dtype=torch.float64), 0
        )
        run.w = torch.zeros_like(run.w)
        next(iter(run))
        ends.append(float(run.rows("personal")[1][0]))
    return ends[1] - ends[0]


@pytest.mark.parametrize("rho", [-3.0, -0.5])
def test_plain_steps_of_pfedbayes_are_stable_from_the_number_of_examples_said(rho: float) -> None:
    """A step multiplies by 1 - personal_lr (L + zeta/(n s^2)), which is -1 at the least n."""
    algorithm = PFedBayes(method="gradient", personal_lr=0.1, lr=0.05, zeta=3.0, rho=rho)
    note = told("inner step", algorithm, smoothness=3.0)
    least, s = note.numbers["least n"], math.log1p(math.exp(rho))
    assert note.level == "note"
    assert least == pytest.approx(3.0 / s**2 / (2 / 0.1 - 3.0))
    for n in (math.floor(least), math.ceil(least) + 1):
        if n:
            factor = bayes(n, personal_lr=0.1, lr=0.05, zeta=3.0, rho=rho)
            assert factor == pytest.approx(1 - 0.1 * (3 + 3.0 / (n * s**2)), rel=1e-6)
            assert (abs(factor) > 1) == (n < least)
            said = advise(algorithm, smoothness=3.0, examples=n)
            assert levels(said) == ({"warning"} if n < least else {"note"})


def test_pfedbayes_with_plain_steps_has_a_condition_and_with_adam_none() -> None:
    assert "no condition" in told("inner step", PFedBayes()).text
    plain = told("inner step", PFedBayes(method="gradient", zeta=10.0, lr=0.001, personal_lr=0.001))
    assert "no condition" not in plain.text
    assert plain.numbers["least n"] == pytest.approx(10 / plain.numbers["s"] ** 2 * 0.001 / 2)
    steep = told("inner step", PFedBayes(method="gradient", personal_lr=0.5), smoothness=4.0)
    assert steep.level == "warning"
    assert "L = 4 alone is too much" in steep.text
    # rho's own curvature, 2 g^2/s^2, is the larger
    wide = PFedBayes(method="gradient", rho=3.0, zeta=1.0, personal_lr=0.1)
    g, s = 1 / (1 + math.exp(-3)), math.log1p(math.exp(3))
    assert told("inner step", wide).numbers["least n"] == pytest.approx(2 * g * g / s**2 * 0.1 / 2)


def test_the_curvature_along_rho_is_that_of_the_divergence() -> None:
    rho = torch.tensor([[1.5]], dtype=torch.float64)
    g, s = torch.sigmoid(rho), torch.nn.functional.softplus(rho)
    own, local = (
        [divergence_gradients(*arguments)[at] for arguments in shifts]
        for at, shifts in (
            (1, [(rho, rho + d, rho, rho) for d in (-1e-5, 1e-5)]),
            (3, [(rho, rho, rho, rho + d) for d in (-1e-5, 1e-5)]),
        )
    )
    for below, above in (own, local):
        assert float((above - below) / 2e-5) == pytest.approx(float(2 * g**2 / s**2), rel=1e-6)


def digits(algorithm: Algorithm, **settings: Any) -> Experiment:
    """A few devices and rounds."""
    shards = covey.data.digits(devices=6, labels=3)
    return Experiment(algorithm, shards, covey.models.linear(64, 10), Tree.flat(6), 12, **settings)


def settings_of(findings: Findings) -> list[Any]:
    return [
        (describe(trial.algorithm), trial.figures, trial.curvature) for trial in findings.trials
    ]


def test_trials_never_see_test_data() -> None:
    whole = digits(FedAvg(lr=0.001))
    blind = replace(whole, data=replace(whole.data, test=Part.of([[]] * 6)))
    with_test, without = improve(whole), improve(blind)
    assert with_test.part == without.part == "validation"
    assert settings_of(with_test) == settings_of(without)
    assert with_test.changes == without.changes
    assert len(with_test.changes) == 1


def test_without_validation_examples_training_data_judge() -> None:
    whole = digits(FedAvg(lr=0.001))
    assert improve(replace(whole, data=whole.data.paper())).part == "train"
    assert improve(replace(whole, protocol="paper")).part == "validation"


@pytest.mark.parametrize(("select", "metric"), [("loss", "loss"), ("balanced_accuracy", None)])
def test_the_metric_of_select_judges(select: str, metric: str | None) -> None:
    whole = replace(digits(FedAvg(lr=0.001)), rounds=6, select=select, stop={"patience": 1})
    findings = improve(whole)
    given = findings.given.figures["global"]
    advised = findings.advised.figures["global"]
    assert findings.metric == select
    assert findings.classifies == (metric is None)
    if findings.classifies:
        assert 0 < given < advised <= 100
    else:
        assert 0 < advised < given < 10


def test_regression_is_judged_by_its_loss() -> None:
    built, top = linear([60, 60, 60, 60], 5)
    findings = improve(replace(built, algorithm=FedAvg(lr=1e-3, batch=None), rounds=30))
    (change,) = findings.changes
    assert not findings.classifies
    assert findings.advised.figures["global"] < 0.98 * findings.given.figures["global"]
    assert 1e-3 < change.new < 2 / top
    assert findings.curvature.typical == pytest.approx(findings.start.typical), (
        "a quadratic curves alike everywhere"
    )


def test_the_curvature_along_a_run_is_that_of_the_devices_own_rows() -> None:
    """Least squares curve by the top eigenvalue of X'X/m, wherever; a device that is not measured
    does not count.
    """
    built, _ = linear([30, 40, 50, 60, 70, 80, 90, 100, 110], 4, l2=0.3)
    run = covey.run(built)
    probe = Probe(built, run.trained)
    xs = [built.data.x[built.data.train.held(device)].numpy() for device in range(9)]
    tops = [float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) + 0.3 for x in xs]
    measured = probe.measure(run.w)
    chosen = torch.linspace(0, 8, 8).round().long().tolist()
    assert measured.typical == pytest.approx(
        float(torch.tensor([tops[d] for d in chosen]).median()), rel=1e-6
    )
    two = probe.measure(torch.zeros(2, 4, dtype=torch.float64), torch.tensor([8, 0]))
    assert (two.typical, two.high) == pytest.approx(
        (min(tops[0], tops[8]), np.quantile([tops[0], tops[8]], 0.9)), rel=1e-6
    )
    assert probe.measure(torch.full((1, 4), math.nan, dtype=torch.float64)) is None
    assert probe.measure(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([77])) is None


def test_a_curvature_that_grows_makes_a_setting_unstable_that_was_stable_at_the_start() -> None:
    """Along a run of the digits the curvature becomes several times that of the initial model."""
    shards = covey.data.digits(devices=6, labels=2)
    built = Experiment(FedAvg(lr=0.05), shards, covey.models.mlp(64, 16, 10), Tree.flat(6), 20)
    findings = improve(built)
    assert findings.trials[0].curvature.typical > 2 * findings.start.typical


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=lambda kind: kind.__name__)
def test_every_algorithm_has_steps_or_a_reason_why_not(kind: type[Algorithm]) -> None:
    if kind is Nested:
        nested = Nested((Level("server"), Level("device")))
        assert levers.steps(nested) == ()
        assert "those of its levels" in levers.without(nested)
        return
    algorithm: Any = kind()
    assert bool(levers.steps(algorithm)) != bool(levers.stated(algorithm).without)
    curved = Curvature(7.0, 20.0)
    for step in levers.steps(algorithm):
        safe = replace(algorithm, **{step.field: levers.safe(step, curved)})
        assert levers.product(step, safe, curved) == pytest.approx(
            min(1.0, 2 * (step.tie + 7) / (step.tie + 20))
        )
    for proposal in [
        *levers.moves(algorithm, algorithm, curved),
        *levers.ties(algorithm, algorithm, curved),
    ]:
        assert replace(algorithm, **proposal.values) != algorithm
        assert proposal.values.keys() == proposal.reasons.keys()


def test_what_is_proposed_converges_on_quadratics_of_the_measured_curvature() -> None:
    """One round of the proposed setting brings the error down at L, by the closed form of `advise`."""
    curved = Curvature(7.0, 7.0)
    pfedme = PFedMe(lam=15, lr=0.005, personal_lr=0.09)
    for slow in (pfedme, SFedHP(lam1=25, lam2=25, lr1=0.5), PerMFL(lam=0.5, lr=0.01, edge_lr=0.03)):
        proposals = [*levers.moves(slow, slow, curved), *levers.ties(slow, slow, curved)]
        assert proposals
        for proposal in proposals:
            changed: Any = with_fields(slow, **proposal.values)
            changed = replace(
                changed, **{step.field: levers.safe(step, curved) for step in levers.steps(changed)}
            )
            numbers = told("one round", changed, smoothness=7.0, exact=True).numbers
            assert abs(numbers["factor at L"]) < 0.9


def test_an_unknown_algorithm_is_searched_by_the_names_of_its_fields() -> None:
    @dataclass(frozen=True)
    class Own(FedAvg):
        head_lr: float = 0.1
        decay: float = 0.0

    class Fieldless(Algorithm):
        lr = 0.1  # not a field

        def server(self, me: Nodes, w: Rows) -> Rows:
            return w

    assert [step.field for step in levers.steps(Own())] == ["lr", "head_lr"]
    assert [step.field for step in levers.steps(PerMFL(lr=[0.1, 0.2]))] == []
    assert levers.steps(Fieldless()) == ()
    assert levers.without(Fieldless()) == "Fieldless has no step size that is a number"


LATER = pytest.mark.skipif(
    "COVEY_TEST_ALL" not in os.environ, reason="takes a minute: make test-all"
)
ALWAYS = (Clustered, FedMac, PFedBayes, Scaffold, FedRep)
KINDS = [
    pytest.param(kind, marks=() if kind in ALWAYS else LATER)
    for kind in ALGORITHMS.values()
    if kind is not Nested
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_algorithm_can_be_advised(kind: type[Algorithm]) -> None:
    """On a tree with sampling, held-out devices, a cut and two rounds."""
    algorithm: Any = kind()
    shards = covey.data.digits(devices=6, labels=3)
    tree = Tree.grouped([3, 3])
    if len(algorithm.tiers()) == 2 and not algorithm.any_depth:
        tree = Tree.flat(6)
    private = "head" if algorithm.splits else ()
    built = Experiment(
        algorithm, shards, covey.models.linear(64, 10), tree, 2, private=private, holdout_devices=1
    )
    if hasattr(algorithm, "sample") and not algorithm.splits:
        built = replace(built, algorithm=replace(algorithm, sample=0.5))
    if algorithm.splits:
        built = replace(built, model=covey.models.mlp(64, 4, 10))
    findings = improve(built)
    if reason := levers.stated(algorithm).without:
        assert findings.nothing == reason
        return
    assert findings.rounds == 2
    assert {"personal", "global", "edge"} & findings.given.figures.keys()
    for change in findings.changes:
        assert getattr(findings.advised.algorithm, change.field) == change.new != change.old
        assert change.reason


@pytest.mark.parametrize("n", [5, 20, 1100])
def test_a_round_of_fedamp_contracts_by_the_stated_factor_for_any_number_of_devices(n: int) -> None:
    algorithm = FedAMP(batch=None)
    rng = np.random.default_rng(1)
    fs = [quadratics.quadratic(np.eye(1), 0.3 * rng.normal(size=1)) for _ in range(n)]
    run = quadratics.start(algorithm, fs, w=np.ones(1), rounds=4)
    ws = [float(run.w) for _ in run]
    measured = (ws[3] - ws[2]) / (ws[2] - ws[1])
    said = told("one round", algorithm, smoothness=1.0, exact=True, devices=n)
    assert said.numbers["factor at L"] == pytest.approx(measured, abs=1e-3)
    assert measured < 1


def test_curvature_is_measured_on_devices_that_train() -> None:
    measured = Probe(no_examples.experiment(FedAvg()), no_examples.shards())
    assert measured._ids.tolist() == [0, 2, 3]


def test_advice_of_extreme_values_is_an_answer_or_an_error_of_covey() -> None:
    count = 0
    for what, algorithm in extremes():
        try:
            with suppress(CoveyError):
                advise(algorithm, smoothness=1.0, strong=0.1)
            count += 1
        except Exception as error:
            raise AssertionError(what) from error
    assert count > 80
