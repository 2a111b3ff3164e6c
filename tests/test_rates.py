"""Schedules of an algorithm's own rates: closed forms, the laws of bits, and what is refused."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import covey
from covey import Algorithm, Nodes, Positive, Rows
from covey.algorithms import FedAvgM
from covey.errors import ConfigError
from covey.files.config import load
from covey.laws import differences, state
from tests.given import drained, played
from tests.laws.cases import CASES, PLAIN, experiment
from tests.test_step_rule import ended

ROUNDS = 5


@dataclass(frozen=True)
class Walk(Algorithm):
    """Every model moves by the rates of the round alone."""

    server_rate: Positive = 0.5
    device_rate: Positive = 0.25

    sends: ClassVar[str] = "its model"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean() + self.server_rate

    def device(self, me: Nodes, w: Rows) -> Rows:
        return w + self.device_rate


@pytest.mark.parametrize("runtime", ["simulator", "loopback"])
def test_every_tier_has_the_rates_of_the_round(runtime: str) -> None:
    """w moves by sum_t 0.5 cos_t + 0.25 (1 - t/T)."""
    schedules = {"server_rate": "cosine", "device_rate": "linear"}
    base = experiment(PLAIN["FedAvg"])
    made = covey.Experiment(
        Walk(), base.data, base.model, base.tree, ROUNDS, dtype=torch.float64, schedules=schedules
    )
    run = played(made, runtime=runtime)
    cosines = [(1 + math.cos(math.pi * t / ROUNDS)) / 2 for t in range(ROUNDS)]
    lines = [1 - t / ROUNDS for t in range(ROUNDS)]
    moved = 0.5 * sum(cosines) + 0.25 * sum(lines)
    torch.testing.assert_close(run.w[0], made.initial() + moved, atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", ["FedAvg", "PerMFL-lists"])
def test_the_step_size_on_data_is_that_of_the_solver_s_schedule(case: str) -> None:
    by_name = played(experiment(CASES[case], schedules={"lr": "cosine"}))
    by_solver = played(experiment(CASES[case], solver={"schedule": "cosine"}))
    torch.testing.assert_close(by_name.w, by_solver.w, atol=1e-6, rtol=1e-6)


def test_a_server_step_of_the_round_is_that_of_a_run_with_this_rate() -> None:
    """A round of FedAvgM without momentum, from the same w, is affine in server_lr."""
    algorithm = FedAvgM(momentum=0, lr=0.2, batch=None, steps=2)
    base = experiment(PLAIN["FedAvg"])
    parts = (base.data, base.model, base.tree, 2)
    plain = covey.run(covey.Experiment(algorithm, *parts))
    halved = covey.run(covey.Experiment(algorithm, *parts, schedules={"server_lr": "linear"}))
    next(plain)
    next(halved)
    assert torch.equal(plain.w, halved.w)  # the factor of round 0 is 1
    w = plain.w.clone()
    next(plain)
    next(halved)
    torch.testing.assert_close(halved.w, (w + plain.w) / 2)


SCHEDULED = {
    "PerMFL-lists": {"beta": "cosine", "gamma": "linear", "lr": "step", "edge_lr": "linear"},
    "PFedMe": {"lr": "linear", "personal_lr": "cosine"},
    "FedAvgM": {"server_lr": "step"},
}
if not os.environ.get("COVEY_TEST_ALL"):
    del SCHEDULED["PFedMe"], SCHEDULED["FedAvgM"]


@pytest.mark.parametrize("name", SCHEDULED)
def test_bits_depend_neither_on_chunks_nor_on_resuming(name: str, tmp_path: Path) -> None:
    def made(**changes: Any) -> covey.Experiment:
        return experiment(CASES[name], schedules=SCHEDULED[name], **changes)

    whole = ended(covey.run(made()))
    constant = ended(covey.run(experiment(CASES[name])))
    assert differences(whole, constant) != []
    assert differences(whole, ended(covey.run(made(workers=3, memory=1)))) == []
    assert differences(whole, ended(covey.run(made(), runtime="loopback"))) == []
    first = covey.run(made())
    next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(made(), resume=tmp_path / "checkpoint")
    assert differences(whole, ended(rest)) == []
    seeds = drained(covey.runs([made(), made(seed=4)]))
    assert differences(whole, state(seeds.seeds[0])) == []


def test_what_decides_bits_is_in_the_fingerprint() -> None:
    def facts(schedules: dict[str, str], **changes: Any) -> str:
        made = experiment(CASES["FedAvgM"], schedules=schedules, **changes)
        return str(made.fingerprint())

    plain = facts({})
    assert facts({"server_lr": "constant"}) == plain
    assert facts({}, rounds=9) == plain
    assert facts({"server_lr": "linear"}) != plain
    assert facts({"server_lr": "linear"}) != facts({"server_lr": "linear"}, rounds=9)


@pytest.mark.parametrize(
    ("schedules", "error"),
    [
        ("cosine", "schedules = .cosine. must be a table"),
        ({"eta": "cosine"}, "FedAvgM has no rate 'eta'; its rates are: momentum, server_lr, lr"),
        ({"steps": "cosine"}, "FedAvgM has no rate 'steps'"),
        ({"server_lr": "cosin"}, r"server_lr = 'cosin' \(did you mean 'cosine'\?\); choose one"),
        ({"server_lr": 0.5}, "schedules.server_lr = 0.5 must be text"),
    ],
)
def test_what_means_nothing_is_refused(schedules: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        experiment(CASES["FedAvgM"], schedules=schedules)


FILE = """
rounds = 4
schedules = {server_lr = "cosine"}
[algorithm]
name = "fedavgm"
[data]
name = "digits"
devices = 4
[model]
name = "linear"
"""


def test_a_file_has_schedules(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(FILE, encoding="utf-8")
    rates = load(file).experiment(0).rates()
    assert rates.schedules == (("server_lr", "cosine"),)
    assert rates.rounds == 4
    other = load(file, ["schedules.lr=step"]).experiment(0).rates()
    assert dict(other.schedules) == {"server_lr": "cosine", "lr": "step"}
    with pytest.raises(ConfigError, match="no rate 'gamma'"):
        load(file, ["schedules.gamma=step"])
    compared = load(file, ["schedules.lr=step", 'compare=["fedavg"]']).yardsticks()
    assert compared["fedavg"].schedules == {"lr": "step"}  # FedAvg has no server_lr
