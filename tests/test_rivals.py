"""The rivals of the benchmark compute what covey computes, and their figures become tables."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from benchmarks.rivals import report
from benchmarks.rivals.__main__ import prepare, rivals
from benchmarks.rivals.covey_run import experiment_of
from benchmarks.rivals.crew import Engine
from benchmarks.rivals.jaxed import Jaxed
from benchmarks.rivals.spec import Spec
from benchmarks.rivals.tidy import Tidy
from benchmarks.rivals.vmap import Vmapped

FEDAVG = Spec("W2", 3, 3, 8, 6, 5, 3, 1, 4, 0.1, None, 0.0, 1, True, "")
WORKS = {
    "FedAvg": FEDAVG,
    "linear": replace(FEDAVG, hidden=0),
    "pFedMe": replace(FEDAVG, inner=2, lam=2.0, personal_lr=0.1),
}
ENGINES = {"tidy": Tidy, "vmap": Vmapped}


def _jax(spec: Spec, threads: int) -> Engine:
    return Jaxed(spec, threads, how="map")


if importlib.util.find_spec("jax") is not None:
    ENGINES["jax"] = _jax  # type: ignore[assignment]


@pytest.mark.parametrize("name", WORKS)
def test_a_rival_computes_what_covey_computes(name: str, tmp_path: Path) -> None:
    spec = prepare(WORKS[name], tmp_path, devices=3)
    run = covey.run(experiment_of(spec))
    next(run)
    ours = [p.detach().numpy() for p in run.module().parameters()]
    for make in ENGINES.values():
        engine = make(spec, 1)
        total = engine.total(engine.pack(spec.first()), *spec.cohort(np.random.default_rng()))
        for value, own in zip(engine.unpack(total / 3), ours, strict=True):
            np.testing.assert_allclose(value, own, atol=1e-6)
    assert any(np.abs(own - w).max() > 1e-3 for own, w in zip(ours, spec.first(), strict=True))


def _facts() -> dict[str, Any]:
    def rounds(seconds: float) -> list[dict[str, float]]:
        return [{"seconds": s * seconds, "cpu": seconds} for s in (1.0, 2.0, 4.0)]

    programs = {"covey": 0.01, "tidy loop, 2 processes": 0.05, report.BESIDE: 0.02, "Flower": 0.04}
    work = {
        "apart": {"covey": 0.0, "tidy loop, 2 processes": 2e-6},
        "rounds": {name: rounds(seconds) for name, seconds in programs.items()},
    }
    conditions = {"processor": "P", "cores": 2, "load": 0.1, "rounds": 3, "starts": 1}
    return {**conditions, "versions": {"torch": "2"}, "works": {"W1": work}}


def test_ratios_are_those_of_the_same_turns() -> None:
    facts = _facts()
    figures = report.summary(facts["works"]["W1"])
    assert figures["tidy loop, 2 processes"]["ratio"] == pytest.approx(5.0)
    assert figures["Flower"]["ratio"] == pytest.approx(2.0)  # to covey beside Flower
    assert report.strongest(facts["works"]["W1"]) == "Flower"


def test_tables_stand_between_their_marks(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    file.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.write(_facts(), file)
    text = file.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| tidy loop, 2 processes | 0.1000 (0.0500) | **5.0x** (5.0x) |" in text


def test_every_rival_has_a_name_of_its_own() -> None:
    names = [rival.name for rival in rivals(2)]
    assert len(set(names)) == len(names)
    assert names[0] == "covey"
