"""Solvers of a user's own: their steps, their state, the laws of bits, and errors for bad ones."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey import Rows, StepRule
from covey.engine.solvers.optimiser import optimiser
from covey.errors import ConfigError
from covey.files.config import load
from covey.laws import differences, state
from tests.given import played
from tests.laws.cases import CASES, PLAIN, experiment


@dataclass(frozen=True)
class Heavy:
    """Polyak's heavy ball, which is the momentum of sgd."""

    share: float = 0.9

    def begin(self, x: Rows) -> dict[str, Rows]:
        return {"velocity": torch.zeros_like(x)}

    def direction(
        self, x: Rows, gradient: Rows, state: Mapping[str, Rows]
    ) -> tuple[Rows, dict[str, Rows]]:
        velocity = self.share * state["velocity"] + gradient
        return velocity, {"velocity": velocity}


def along_the_gradient(x: Rows, gradient: Rows) -> Rows:
    return gradient


def sign(x: Rows, gradient: Rows) -> Rows:
    return gradient.sign()


SOLVERS: list[Any] = [{"name": Heavy(0.7), "state": "kept"}]
if os.environ.get("COVEY_TEST_ALL"):
    SOLVERS.append(sign)


def ended(run: covey.Run) -> dict[str, Any]:
    list(run)
    return state(run)


@pytest.mark.parametrize("kept", ["reset", "kept"])
@pytest.mark.parametrize("case", ["FedAvg", "FedRep", "PFedMe"])
def test_a_class_is_the_solver_that_it_writes_down(case: str, kept: str) -> None:
    shared = {"clip": 0.5, "schedule": "cosine", "decay": 0.01, "state": kept}
    own = played(experiment(CASES[case], solver={"name": Heavy, "share": 0.8, **shared}))
    named = played(experiment(CASES[case], solver={"momentum": 0.8, **shared}))
    assert torch.equal(own.w, named.w)
    assert "the solver is Heavy" in own.engine["why not faster"]


def test_a_function_is_a_solver_without_state() -> None:
    own = played(experiment(PLAIN["FedAvg"], solver=along_the_gradient))
    plain = played(experiment(PLAIN["FedAvg"]))
    torch.testing.assert_close(own.w, plain.w)
    other = played(experiment(PLAIN["FedAvg"], solver=sign))
    assert not torch.allclose(other.w, plain.w)


@pytest.mark.parametrize("solver", SOLVERS)
def test_bits_depend_on_no_neighbour_and_no_runtime(solver: Any, tmp_path: Path) -> None:
    case = CASES["PerMFL-lists"]
    whole = ended(covey.run(experiment(case, solver=solver)))
    chunks = covey.run(experiment(case, solver=solver, workers=3, memory=1))
    assert differences(whole, ended(chunks)) == []
    alone = covey.run(experiment(case, solver=solver), runtime="loopback")
    assert differences(whole, ended(alone)) == []
    first = covey.run(experiment(case, solver=solver))
    next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(experiment(case, solver=solver), resume=tmp_path / "checkpoint")
    assert differences(whole, ended(rest)) == []


def test_its_code_and_its_settings_are_in_the_fingerprint() -> None:
    specs: list[Any] = [Heavy, Heavy(0.7), {"name": Heavy, "share": 0.7, "clip": 1.0}, sign]
    facts = [experiment(PLAIN["FedAvg"], solver=spec).fingerprint()["solver"] for spec in specs]
    assert len(set(facts)) == 4
    again = experiment(PLAIN["FedAvg"], solver=Heavy(0.7)).fingerprint()["solver"]
    assert again == facts[1]


class Bad(Heavy):
    """A solver with one thing wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        object.__setattr__(self, "fault", fault)

    def begin(self, x: Rows) -> Any:
        fault = getattr(self, "fault")  # noqa: B009
        starts = {
            "begin": None,
            "rows": {"velocity": torch.zeros(1, x.shape[1])},
            "number": {"velocity": 0.0},
        }
        return starts.get(fault, super().begin(x))

    def direction(self, x: Rows, gradient: Rows, state: Mapping[str, Rows]) -> Any:
        fault = getattr(self, "fault")  # noqa: B009
        good, after = super().direction(x, gradient, state)
        answers = {
            "alone": good,
            "width": (good[:, :1], after),
            "type": (good.half(), after),
            "names": (good, {"speed": good}),
        }
        return answers.get(fault, (good, after))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("begin", "the state of `begin` is a NoneType; give a dict of tensors"),
        ("rows", r"'velocity' of `begin` is a tensor of shape \(1, .*one row per row of x, here 0"),
        ("number", "'velocity' of `begin` is a float; give a tensor"),
        ("alone", "return a tuple of the direction and the state"),
        ("width", r"the direction is a tensor of shape \(0, 1\)"),
        ("type", "of shape .* and type torch.float16; give a tensor with the shape and type of x"),
        ("names", "the state of speed, but `begin` that of velocity; return the same names"),
    ],
)
def test_wrong_shapes_are_told_before_the_first_round(fault: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"solver Bad: .*{error}"):
        covey.run(experiment(PLAIN["FedAvg"], solver=Bad(fault)))


def signs_in_place(x: Rows, gradient: Rows) -> Rows:
    return gradient.sign_()


def mixes(x: Rows, gradient: Rows) -> Rows:
    return gradient / gradient.norm()


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (torch.optim.SGD, 'solver SGD of torch steps one model, .*; name "sgd", "adam" or "adamw"'),
        (signs_in_place, "solver signs_in_place changes x or the gradient in place; return new"),
        (mixes, "solver mixes mixes rows, but every row is another device"),
        ({"name": sign, "beta": 0.9}, "solver sign takes no settings, but got beta; name a class"),
        ({"name": Heavy, "beta": 0.9}, r"solver: Heavy\(beta=0.9\) fails with TypeError"),
        ({"name": Heavy, "clip": 0}, "clip = 0 must be above 0"),
        ({"name": sign, "state": "kept"}, 'state = "kept", but sign has no state'),
        (dict, r"solver dict: give it the methods begin\(x\) and direction"),
    ],
)
def test_what_is_no_solver_is_refused(spec: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        optimiser(spec)


def test_the_interface_is_a_protocol() -> None:
    assert isinstance(Heavy(), StepRule)
    assert not isinstance(sign, StepRule)


FILE = """
rounds = 2
solver = {name = "ourstep:Heavy", share = 0.5, clip = 1.0}
[algorithm]
name = "fedavg"
[data]
name = "digits"
devices = 4
[model]
name = "linear"
"""
CODE = """
import torch

class Heavy:
    def __init__(self, share=0.9):
        self.share = share
    def begin(self, x):
        return {"velocity": torch.zeros_like(x)}
    def direction(self, x, gradient, state):
        velocity = self.share * state["velocity"] + gradient
        return velocity, {"velocity": velocity}

class Nothing:
    pass
"""


def test_a_file_names_a_solver_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "ourstep.py").write_text(CODE, encoding="utf-8")
    file = tmp_path / "a.toml"
    file.write_text(FILE, encoding="utf-8")
    run = played(load(file).experiment(0))
    named = load(file, ["solver.name=sgd", "solver.momentum=0.5", "solver.clip=1.0"])
    same = played(named.experiment(0))
    assert torch.equal(run.w, same.w)
    shares = [load(file, [f"solver.share={share}"]).experiment(0) for share in (0.5, 0.6)]
    facts = [experiment.fingerprint()["solver"] for experiment in shares]
    assert facts[0] != facts[1]
    with pytest.raises(ConfigError, match="ourstep has no Heave; it has Heavy"):
        load(file, ["solver.name=ourstep:Heave"])
    with pytest.raises(ConfigError, match="name a function of x and the gradient, or a class"):
        load(file, ["solver.name=ourstep:Nothing"])
