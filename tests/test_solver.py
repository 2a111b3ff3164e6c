"""The choice of solver: which descent is computed how, why not faster, and what a run says about
it.
"""

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import NO_DATA, Algorithm, Experiment, Tree, descend, native
from covey.algorithms import FedAvg, PFedMe
from covey.data import own_parts
from covey.engine.descend import ON_DATA, WITHOUT_DATA, choose, explanation
from covey.engine.solvers.objective import Objective
from covey.engine.solvers.stack import ACTIVATIONS
from covey.engine.task import Task
from covey.errors import ProgramError
from covey.kernel.nodes import Nodes
from tests.given import Given, labelled

IDS = torch.arange(3)
SETS = {"plain": "plain C", "avx2": "AVX2", "avx512": "AVX-512"}
NATIVE = pytest.mark.skipif(not native.loaded(), reason=f"the compiled kernel is {native.status()}")


def shards(*shape: int) -> Any:
    return own_parts(train=labelled((5, 40, 9), shape), classes=3)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 3))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def mish() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 4), nn.Mish(), nn.Linear(4, 3))


class Odd(nn.Module):
    """A module whose forward only vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cumsum(x, dim=1))


def run(model: nn.Module, algorithm: Any, *shape: int) -> covey.Run:
    data = shards(*shape or (30,))
    return covey.run(Experiment(algorithm, data=data, model=model, tree=Tree.flat(3), rounds=1))


def engine(model: nn.Module, algorithm: Any = None, *shape: int) -> dict[str, Any]:
    found: dict[str, Any] = run(model, algorithm or FedAvg(), *shape).engine
    return found


# The choice


@NATIVE
def test_the_fastest_that_fits_is_chosen() -> None:
    task = Task(mlp(), shards(30))
    start = torch.zeros(3, task.space.width)
    one = Given(task, one=task.examples.draw(7, IDS, 4)[0])
    fresh = Given(task, lambda step: task.examples.draw(step, IDS, 4)[0])
    assert choose(one, start, Objective(3, 0.1))[0].name == "factored native"
    assert choose(one, start, Objective(3, 0.1, l1=(0.1, 0.1)))[0].name == "native"
    assert choose(fresh, start, Objective(3, 0.1))[0].name == "native"
    assert choose(fresh, start, Objective(3, 0.1, tol=0.1))[0].name == "step by step"
    assert choose(NO_DATA, start, Objective(3, 0.1))[0].name == "native"
    task.native = "the test compares it with torch"
    assert choose(one, start, Objective(3, 0.1))[0].name == "factored"
    assert choose(one, start, Objective(2, 0.1))[0].name == "in place"
    assert choose(fresh, start, Objective(3, 0.1))[0].name == "in place"
    assert choose(one, start, Objective(2, 0.1))[1] == {
        "factored native": "the test compares it with torch",
        "native": "the test compares it with torch",
        "factored": "a batch has fewer than 3 steps",
    }


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"method": "adam"}, "the method is adam"),
        ({"tol": 0.1}, "tol is set"),
        ({"lr": torch.full((1, 3), 0.1)}, "step sizes differ from row to row or from column to column"),
        ({"steps": torch.tensor([1, 2])}, "steps differ from row to row"),
        ({"mask": torch.ones(2, 3)}, "a mask is set"),
        ({"part": slice(0, 2)}, "only a part of the columns moves"),
        ({"prox": (torch.ones(2, 1), torch.ones(2, 3))}, "the weight of the prox term differs from row to row"),
    ],
)  # fmt: skip
def test_a_reason_in_words(terms: dict[str, Any], reason: str) -> None:
    asked = Objective(**{"steps": 1, "lr": 0.1, **terms})
    [in_place] = [candidate for candidate in WITHOUT_DATA if candidate.name == "in place"]
    assert in_place.fits(NO_DATA, torch.zeros(2, 3), asked) == reason
    assert in_place.fits(NO_DATA, torch.zeros(2, 3), Objective(1, 0.1)) is None


def test_the_names_are_told_apart_and_the_last_takes_everything() -> None:
    for candidates in (WITHOUT_DATA, ON_DATA):
        assert len({candidate.name for candidate in candidates}) == len(candidates)
        everything = Objective(
            torch.tensor([1, 2]), 0.1, tol=0.1, mask=torch.ones(2, 3), method="adam"
        )
        assert candidates[-1].fits(NO_DATA, torch.zeros(2, 3), everything) is None


def test_no_data_is_a_gradient_with_a_name_and_zeros_like_still_is_one() -> None:
    assert covey.NO_DATA is NO_DATA
    assert str(NO_DATA) == "NO_DATA"
    x, anchor = torch.randn(2, 2, 3, dtype=torch.float64)
    for terms in ({}, {"tol": 1e-9}, {"l1": (0.1, 0.0)}, {"method": "nesterov"}):
        rows = [
            descend(x, gradient, steps=3, lr=0.1, prox=(2.0, anchor), **terms)
            for gradient in (NO_DATA, torch.zeros_like, lambda y: 0 * y)
        ]
        assert torch.equal(rows[0], rows[1])
        torch.testing.assert_close(rows[0], rows[2], rtol=1e-14, atol=1e-14)


def test_an_unknown_method_without_data() -> None:
    with pytest.raises(ProgramError, match="method = 'sgd'"):
        descend(torch.zeros(1, 2), NO_DATA, steps=1, lr=0.1, method="sgd")  # type: ignore[arg-type]


# What a run says


@NATIVE
def test_fused_native() -> None:
    facts = engine(mlp())
    assert facts["sentence"] == f"fused layers, native {SETS[native.status()]} kernel"
    assert facts["solver"] == "native"
    assert facts["why not faster"] == "factored native: not all steps have the same batch"
    assert engine(mlp(), PFedMe(batch=4))["solver"] == "factored native"
    assert "why not faster" not in engine(mlp(), PFedMe(batch=4))


def test_fused_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_library", "COVEY_NATIVE=0")
    facts = engine(mlp())
    assert facts["sentence"].endswith("because the native kernel is off: COVEY_NATIVE=0")
    assert facts["solver"] == "in place"
    assert engine(mlp(), PFedMe(batch=4))["solver"] == "factored"


def test_each() -> None:
    facts = engine(cnn(), None, 1, 6, 6)
    reason = f"conv2d is neither Linear nor {ACTIVATIONS}"
    assert facts["sentence"] == f"one device after the other in torch, because {reason}"
    assert facts["solver"] == "in place"


def test_batched() -> None:
    reason = f"mish is neither Linear nor {ACTIVATIONS}"
    assert engine(mish())["sentence"] == f"batched layers in torch, because {reason}"


def test_vmap() -> None:
    reason = "Odd is not a graph of known layers: cumsum is not a known operation"
    slower = "on a CPU 3 to 25 times slower than fused layers"
    assert engine(Odd())["sentence"] == f"vmap, because {reason} ({slower})"
    task = Task(nn.Sequential(Odd()), shards(30))
    assert explanation(task).startswith("vmap, because Sequential is not a graph of known layers: ")


@pytest.mark.parametrize(
    ("model", "loss", "reason"),
    [
        (nn.Sequential(nn.Linear(30, 3), nn.ReLU()), "cross_entropy", "the last layer is not Linear"),
        (nn.Sequential(nn.ReLU(), nn.Linear(30, 3)), "cross_entropy", "relu does not follow a Linear layer"),
        (mlp(), lambda out, y: out.square().sum(1), "the loss is a function of your own"),
    ],
)  # fmt: skip
def test_why_a_model_is_not_fused(model: nn.Module, loss: Any, reason: str) -> None:
    task = Task(model, shards(30), loss=loss)
    assert task.stack == task.native == reason
    assert explanation(task) == f"batched layers in torch, because {reason}"


@dataclass(frozen=True)
class Mean(Algorithm):
    """The mean of what devices do."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        raise NotImplementedError


class Careful(Mean):
    """Devices stop where the gradient is small."""

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return descend(w, me.grad(4), steps=2, lr=0.1, tol=0.1)


class AllExamples(Mean):
    """Devices take whole gradients."""

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return descend(w, me.grad(None), steps=2, lr=0.1)


class ByHand(Mean):
    """Devices do without `descend`."""

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        gradient = me.grad(4)
        return w - 0.1 * gradient(w)


class OwnLoss(Mean):
    """Devices have a loss of their own."""

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        batch = me.batch(4)
        assert batch is not None
        return w - 0.1 * me.gradient(w, batch, lambda outputs: outputs.square().mean((1, 2)))


class Twice(Mean):
    """Two descents, of which the kernel takes one."""

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        w = descend(w, me.grad(4), steps=2, lr=0.1)
        return descend(w, me.grad(4), steps=2, lr=0.1, method="adam")


@NATIVE
@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Careful, "fused layers in torch, because tol is set"),
        (AllExamples, "fused layers in torch, because each step takes the gradient of all examples"),
        (ByHand, "fused layers in torch, because the algorithm takes its steps itself"),
        (OwnLoss, "fused layers in torch, because the algorithm has a loss of its own"),
        (Twice, r"fused layers, native [\w -]+ kernel; some steps in torch, because the method is adam"),
    ],
)  # fmt: skip
def test_an_algorithm_may_be_the_reason(algorithm: type[Mean], words: str) -> None:
    facts = engine(mlp(), algorithm())
    assert re.fullmatch(words, facts["sentence"])
    assert facts["solver"] == ("native and step by step" if algorithm is Twice else "step by step")
