"""Steps in few kernels are the same steps: a GPU's way to compute them, here on a CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.data import own_parts
from covey.engine.solvers import gpu_steps, gram, in_place
from covey.engine.solvers.objective import Objective
from covey.engine.solvers.stack import LinearStack
from covey.engine.task import Batch, Task
from covey.models import linear, mlp
from tests.given import Given

IDS = torch.arange(3)
INPUTS = 30


def task(model: nn.Module, classes: int | None = 3, l2: float = 0.0) -> Task:
    g = torch.Generator().manual_seed(0)
    pairs = []
    for count in (5, 40, 9):
        x = torch.randn(count, INPUTS, generator=g, dtype=torch.float64)
        y = torch.randint(3, (count,), generator=g)
        if classes is None:
            y = torch.randn(count, 3, generator=g, dtype=torch.float64)
        pairs.append((x, y))
    loss: Any = "cross_entropy" if classes else "squared_error"
    shards = own_parts(train=pairs, classes=classes)
    return Task(model, shards, loss=loss, dtype=torch.float64, l2=l2)


def rows(it: Task, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(3, it.space.width, generator=g, dtype=torch.float64)


def batches(it: Task) -> list[Batch]:
    """One of equal weights, and one with short last batches."""
    return [it.examples.draw(7, IDS, 6)[0], it.examples.cyclic(IDS, 6, torch.tensor([0, 6, 1]))]


def stack_of(it: Task) -> LinearStack:
    assert isinstance(it.stack, LinearStack)
    assert gpu_steps.unfit(it.stack, it.space) is None
    return it.stack


def other() -> nn.Module:
    """Activations whose derivatives need their inputs, and a layer without a bias."""
    return nn.Sequential(
        nn.Linear(INPUTS, 6), nn.SiLU(), nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)
    )


MODELS: dict[str, Any] = {
    "mlp": lambda: mlp(INPUTS, 7, 3),
    "deep": lambda: mlp(INPUTS, 5, 4, 3),
    "linear": lambda: linear(INPUTS, 3),
    "no bias": lambda: linear(INPUTS, 3, bias=False),
    "other": other,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("lam", [None, 2.0])
def test_factored_steps_are_those_of_gram(name: str, l2: float, lam: float | None) -> None:
    it = task(MODELS[name](), l2=l2)
    start = rows(it, 1)
    for batch in batches(it):
        for anchor in (start, rows(it, 2)):
            prox = None if lam is None else (lam, anchor)
            terms = Objective(5, 0.1, prox=prox)
            loss = Given(it, one=batch)
            wanted = gram.descend(loss, start, terms)
            got = gpu_steps.factored(loss, start, terms)
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [3, None])
def test_steps_in_place_are_those_of_a_stack(name: str, classes: int | None) -> None:
    it = task(MODELS[name](), classes, l2=0.1)
    start = rows(it, 1)
    terms = Objective(3, 0.1, prox=(2.0, rows(it, 2)), l1=(0.2, 0.05))
    for batch in batches(it):
        loss = Given(it, one=batch)
        wanted = start.clone()
        got = start.clone()
        plain = in_place._stack_steps(stack_of(it), loss, wanted, terms, 0.1)
        few = in_place.gpu_stack_steps(stack_of(it), loss, got, terms, 0.1)
        for _ in range(3):
            plain(batch)
            few(batch)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_a_private_layer_between_a_weight_and_its_bias_is_refused() -> None:
    it = task(mlp(INPUTS, 7, 3))
    model = mlp(INPUTS, 7, 3)
    shards = it.shards
    names = [name for name, _ in model.named_parameters()]
    weight = next(name for name in names if name.endswith("weight"))
    apart = Task(model, shards, dtype=torch.float64, private=[weight])
    assert isinstance(apart.stack, LinearStack)
    assert gpu_steps.unfit(apart.stack, apart.space) == "a bias does not lie behind its weight"


@pytest.mark.parametrize("name", MODELS)
def test_no_rows_take_no_steps(name: str) -> None:
    """As in a rehearsal, which asks no device."""
    it = task(MODELS[name]())
    none = torch.arange(0)
    [batch] = it.examples.draw(7, none, 6)
    start = rows(it, 1)[:0]
    terms = Objective(5, 0.1)
    assert gpu_steps.factored(Given(it, one=batch), start, terms).shape == start.shape
    in_place.gpu_stack_steps(stack_of(it), Given(it, one=batch), start.clone(), terms, 0.1)(batch)
