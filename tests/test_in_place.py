"""Steps in place: closed forms of single terms, and every term against the steps of `plain`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.data import own_parts
from covey.engine.solvers import in_place, smooth_l1
from covey.engine.solvers.methods import plain
from covey.engine.solvers.objective import NO_DATA, Objective
from covey.engine.task import Task
from tests.given import Given

IDS = torch.arange(3)
LR = 0.1
STEPS = 5


def task(layer: nn.Module, l2: float = 0.0) -> Task:
    """Three devices, and a stack or another model, as the layer in the middle is."""
    g = torch.Generator().manual_seed(0)
    pairs = []
    for count in (5, 20, 9):
        x = torch.randn(count, 6, generator=g)
        y = torch.randint(3, (count,), generator=g)
        pairs.append((x, y))
    module = nn.Sequential(nn.Linear(6, 4), layer, nn.Linear(4, 3))
    shards = own_parts(train=pairs, classes=3)
    return Task(module, shards, dtype=torch.float64, l2=l2)


def rows(seed: int, width: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(3, width, dtype=torch.float64, generator=g)


def terms(names: str, width: int) -> dict[str, Any]:
    """Terms by name: several are separated by spaces."""
    gamma = torch.tensor([[0.0], [0.1], [0.3]], dtype=torch.float64)
    known: dict[str, dict[str, Any]] = {
        "prox": {"prox": (2.0, rows(1, width))},
        "decay": {"decay": 0.5},
        "linear": {"linear": rows(2, width)},
        "smooth": {"l1": (0.2, 0.05)},
        "smooth-by-row": {"l1": (gamma, 0.05)},
        "soft": {"l1": (0.2, 0.0)},
        "soft-by-row": {"l1": (gamma, 0.0)},
    }
    out: dict[str, Any] = {}
    for name in names.split():
        out |= known[name]
    return out


ALL = [
    "prox", "decay", "linear", "smooth", "smooth-by-row", "soft", "soft-by-row", "prox decay",
    "prox decay linear smooth", "prox decay linear soft-by-row",
]  # fmt: skip


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_prox_and_decay_without_data_have_a_closed_form() -> None:
    """x' = s x + lr lam a, with s = 1 - lr (lam + decay): a geometric series."""
    start = rows(0, 7)
    anchor = rows(1, 7)
    lam = 2.0
    decay = 0.5
    objective = Objective(STEPS, LR, prox=(lam, anchor), decay=decay)
    s = 1 - LR * (lam + decay)
    limit = lam / (lam + decay) * anchor
    close(in_place.without_data(NO_DATA, start, objective), limit + s**STEPS * (start - limit))


def test_a_linear_term_moves_rows_by_its_multiple() -> None:
    start = rows(0, 7)
    slope = rows(2, 7)
    objective = Objective(STEPS, LR, linear=slope)
    close(in_place.without_data(NO_DATA, start, objective), start - STEPS * LR * slope)


def test_soft_thresholds_add_up_until_zero() -> None:
    start = rows(0, 7)
    objective = Objective(STEPS, LR, l1=(0.4, 0.0))
    got = in_place.without_data(NO_DATA, start, objective)
    close(got, smooth_l1.soft(start, STEPS * LR * 0.4))
    assert bool((got == 0).any())
    assert bool((got != 0).any())


@pytest.mark.parametrize("names", ALL)
def test_every_term_without_data_is_that_of_plain_steps(names: str) -> None:
    start = rows(0, 7)
    before = start.clone()
    objective = Objective(STEPS, LR, **terms(names, 7))
    got = in_place.without_data(NO_DATA, start, objective)
    close(got, plain(start.clone(), NO_DATA, objective))
    assert torch.equal(start, before)
    assert not torch.equal(got, start)


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Mish()], ids=["by hand", "by autograd"])
@pytest.mark.parametrize("names", ALL)
def test_every_term_on_batches_is_that_of_plain_steps(names: str, layer: nn.Module) -> None:
    """The weight decay of the task, l2, is added on both sides."""
    work = task(layer, l2=0.3)
    width = work.space.width
    start = 0.3 * rows(0, width)
    before = start.clone()
    batches = [work.examples.draw(step, IDS, 4)[0] for step in range(STEPS)]
    objective = Objective(STEPS, LR, **terms(names, width))
    got = in_place.on_batches(Given(work, lambda step: batches[step]), start, objective)
    unused = iter(batches)

    def gradient(x: Tensor) -> Tensor:
        return work.gradients.gradient(x, next(unused)) + work.l2 * x

    close(got, plain(start.clone(), gradient, objective))
    assert torch.equal(start, before)
