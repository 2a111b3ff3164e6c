"""Factored steps are plain steps: the same rows to rounding, for every quadratic term and any
chunking.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey import native
from covey.data import own_parts
from covey.engine.descend import ON_DATA, choose, descend
from covey.engine.solvers.objective import Objective
from covey.engine.task import Batch, Task
from covey.models import linear, mlp
from tests.given import Given

IDS = torch.arange(3)


def task(model: Any, dtype: torch.dtype = torch.float64, l2: float = 0.0) -> Task:
    g = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(n, 30, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g))
        for n in (5, 40, 9)
    ]
    return Task(model, own_parts(train=pairs, classes=3), dtype=dtype, l2=l2)


def rows(task: Task, seed: int) -> Tensor:
    return torch.randn(
        3, task.space.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(task.dtype)


def factored(task: Task, start: Tensor, batch: Batch, terms: Objective) -> Tensor:
    loss = Given(task, one=batch)
    chosen, _ = choose(loss, start, terms)
    assert chosen.name in ("factored native", "factored")
    return chosen.run(loss, start, terms)


@pytest.mark.parametrize(
    "model", [mlp(30, 7, 3), mlp(30, 5, 4, 3), linear(30, 3), linear(30, 3, bias=False)], ids=str
)
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("lam", [None, 0.0, 2, 1.5])
def test_factored_steps_are_plain_steps(
    model: Any, l2: float, decay: float, lam: float | None
) -> None:
    it = task(model, l2=l2)
    start, anchor = rows(it, 1), rows(it, 2)
    batch = it.examples.draw(7, IDS, 6)[0]
    terms = Objective(5, 0.1, prox=None if lam is None else (lam, anchor), decay=decay)
    plain = descend(
        start, lambda x: it.gradients.gradient(x, batch) + l2 * x, steps=5, lr=0.1, prox=terms.prox, decay=decay,
    )  # fmt: skip
    torch.testing.assert_close(factored(it, start, batch, terms), plain, rtol=1e-12, atol=1e-12)


def test_an_anchor_that_is_the_start_and_weighted_examples() -> None:
    it = task(mlp(30, 7, 3))
    start = rows(it, 1)
    batch = it.examples.cyclic(IDS, 6, torch.tensor([0, 6, 1]))  # short last batches
    plain = descend(
        start, lambda x: it.gradients.gradient(x, batch), steps=4, lr=0.1, prox=(2.0, start)
    )
    steps = factored(it, start, batch, Objective(4, 0.1, prox=(2.0, start)))
    torch.testing.assert_close(steps, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 6])
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype, size: int) -> None:
    it = task(mlp(30, 7, 3), dtype)
    start, anchor = rows(it, 1), rows(it, 2)
    drawn = it.examples.draw(7, IDS, size)[0]
    whole = factored(it, start, drawn, Objective(4, 0.1, prox=(2.0, anchor)))
    for some in ([0], [1, 2], [2], []):
        chosen = torch.tensor(some, dtype=torch.int64)
        own = Batch(drawn.data, drawn.examples[chosen])
        part = factored(it, start[chosen], own, Objective(4, 0.1, prox=(2.0, anchor[chosen])))
        assert torch.equal(part, whole[chosen]), some


def refused(task: Task, terms: Objective, batch: int) -> str | None:
    """Why torch does not factor these steps."""
    loss = Given(task, one=task.examples.draw(7, IDS, batch)[0])
    [factored] = [candidate for candidate in ON_DATA if candidate.name == "factored"]
    return factored.fits(loss, rows(task, 1), terms)


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"steps": 2}, "fewer than 3 steps"),
        ({"l1": (0.1, 0.01)}, "an l1 term"),
        ({"linear": torch.zeros(3, 1)}, "a linear term"),
    ],
)
def test_what_is_not_quadratic_or_does_not_pay_is_left_to_plain_steps(
    terms: dict[str, Any], reason: str
) -> None:
    it = task(mlp(30, 7, 3))
    assert refused(it, Objective(3, 0.1), 15) is None
    assert "more than half as many examples" in str(refused(it, Objective(3, 0.1), 16))
    assert reason in str(refused(it, Objective(**{"steps": 5, "lr": 0.1, **terms}), 6))


def test_what_diverges_is_not_finite_and_does_not_raise() -> None:
    it = task(mlp(30, 7, 3), torch.float32)
    out = factored(
        it, rows(it, 1), it.examples.draw(7, IDS, 6)[0], Objective(60, 1e3, prox=(1e3, rows(it, 2)))
    )
    assert not torch.isfinite(out).all()


@pytest.mark.parametrize("steps", [100, 500])
@pytest.mark.parametrize("lam", [0.0, 0.01])
@pytest.mark.skipif(not native.loaded(), reason=f"the compiled kernel is {native.status()}")
def test_many_steps_in_float32_lose_no_more_than_one_rounding_a_step(
    steps: int, lam: float
) -> None:
    """As exact as a plain loop in float32: sums over a batch round once, and no decay adds up."""
    model = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 3))
    short, exact = task(model, torch.float32), task(model)
    start = rows(short, 1) / 5

    def error(out: Tensor) -> float:
        difference = out.double() - factored(exact, start.double(), *at(exact, start.double()))
        return float(difference.abs().max(1).values.median())

    def at(task: Task, start: Tensor) -> tuple[Batch, Objective]:
        return task.examples.draw(7, IDS, 15)[0], Objective(steps, 0.2, prox=(lam, start))

    batch, terms = at(short, start)
    plain = start
    for _ in range(steps):
        plain = plain - 0.2 * (short.gradients.gradient(plain, batch) + lam * (plain - start))
    assert error(factored(short, start, batch, terms)) < 2 * error(plain)
