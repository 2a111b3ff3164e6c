"""The inner solvers: closed forms, terms one by one, rows that stop, and the engine's own loop
against the generic one.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from covey.codecs import CODECS
from covey.data import own_parts
from covey.engine.descend import descend
from covey.engine.solvers import smooth_l1
from covey.engine.task import Task
from covey.errors import ConfigError, ProgramError
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.links.spec import LinkSpec
from covey.models import mlp
from covey.runtimes.simulator import Simulator
from covey.runtimes.spec import NodeSpec
from covey.tree import Tree
from tests.given import labelled

A = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)  # the curvature of a quadratic
# its slope, one row per node
B = torch.tensor([[1.0, -2.0, 3.0], [0.0, 0.3, -0.1]], dtype=torch.float64)
ZERO = torch.zeros(2, 3, dtype=torch.float64)


def quadratic(x: Tensor) -> Tensor:
    """The gradient of sum(A x^2 / 2) - <B, x>."""
    return A * x - B


def close(got: Tensor, want: Tensor, tol: float = 1e-9) -> None:
    torch.testing.assert_close(got, want, atol=tol, rtol=tol)


@pytest.mark.parametrize(
    ("method", "steps", "lr"),
    [("gradient", 400, 0.4), ("nesterov", 400, 0.4), ("adam", 3000, 0.03)],
)
def test_every_method_finds_the_minimiser(method: Any, steps: int, lr: float) -> None:
    close(
        descend(ZERO, quadratic, steps=steps, lr=lr, method=method),
        B / A,
        1e-4 if method == "adam" else 1e-9,
    )
    lam, anchor = 3.0, torch.ones_like(B)
    got = descend(
        ZERO, quadratic, steps=steps, lr=lr / 4, method=method, prox=(lam, anchor), decay=0.5, linear=-B,
    )  # fmt: skip
    close(got, (B + lam * anchor + B) / (A + lam + 0.5), 1e-4 if method == "adam" else 1e-9)


@pytest.mark.parametrize("method", ["gradient", "nesterov"])
def test_lasso_with_the_identity_as_design(method: Any) -> None:
    got = descend(ZERO, lambda x: x - B, steps=200, lr=0.5, l1=(0.5, 0.0), method=method)
    close(got, smooth_l1.soft(B, 0.5))
    assert (got[1] == 0).all()  # exact zeros, not small numbers
    smooth = descend(ZERO, lambda x: x - B, steps=4000, lr=0.01, l1=(0.5, 0.01), method=method)
    close(smooth + 0.5 * torch.tanh(smooth / 0.01), B, 1e-6)
    assert (smooth[1, 1:] != 0).all()


def test_one_step_of_every_term_at_the_same_x() -> None:
    start = torch.randn(2, 3, dtype=torch.float64)
    anchor = torch.randn(2, 3, dtype=torch.float64)
    c = torch.randn(2, 3).double()
    got = descend(
        start, quadratic, steps=1, lr=0.1, prox=(2.0, anchor), l1=(0.7, 0.3), linear=c, decay=0.4
    )
    total = (
        quadratic(start) + 2 * (start - anchor) + 0.7 * torch.tanh(start / 0.3) + c + 0.4 * start
    )
    close(got, start - 0.1 * total, 1e-14)
    sparse = descend(
        start, quadratic, steps=1, lr=0.1, prox=(2.0, anchor), l1=(0.7, 0.0), linear=c, decay=0.4
    )
    close(
        sparse, smooth_l1.soft(start - 0.1 * (total - 0.7 * torch.tanh(start / 0.3)), 0.07), 1e-14
    )


def test_adam_by_hand() -> None:
    x = torch.ones_like(B[:1])
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for k in (1, 2, 3):
        g = A * x - B[:1]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - 0.05 * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
    start = torch.ones(1, 3).double()
    got = descend(start, lambda y: A * y - B[:1], steps=3, lr=0.05, method="adam")
    close(got, x, 1e-14)


def test_without_convexity_nesterov_takes_its_own_momentum() -> None:
    """Step k goes on by k / (k + 3) of its change: 0, 1/4, 2/5."""
    rate = 1 - 0.5 * A
    x1 = rate * ZERO + 0.5 * B
    x2 = rate * x1 + 0.5 * B
    x3 = rate * (x2 + (x2 - x1) / 4) + 0.5 * B
    x4 = rate * (x3 + (x3 - x2) * 2 / 5) + 0.5 * B
    close(descend(ZERO, quadratic, steps=4, lr=0.5, method="nesterov"), x4, 1e-14)


def test_nesterov_is_faster_where_the_problem_is_long() -> None:
    curvature = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    start = torch.ones(1, 2, dtype=torch.float64)
    plain, fast = (
        descend(start, lambda x: curvature * x, steps=100, lr=1.0, method=m)
        for m in ("gradient", "nesterov")
    )
    assert (curvature * fast**2).sum() < 0.2 * (curvature * plain**2).sum()


@pytest.mark.parametrize("method", ["gradient", "nesterov", "adam"])
@pytest.mark.parametrize("l1", [None, (0.3, 0.1), (0.3, 0.0)])
def test_mask_and_part_say_what_moves(method: Any, l1: tuple[float, float] | None) -> None:
    start = torch.full((2, 3), 1.7, dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    got = descend(start, quadratic, steps=5, lr=0.1, l1=l1, mask=mask, method=method)
    assert torch.equal(got == start, ~mask)
    part = descend(start, quadratic, steps=5, lr=0.1, l1=l1, part=slice(1, 3), method=method)
    assert torch.equal(part == start, torch.tensor([[True, False, False]] * 2))
    # the coordinates do not interact here
    free = descend(start, quadratic, steps=5, lr=0.1, l1=l1, method=method)
    assert torch.equal(part[:, 1:], free[:, 1:])
    close(got[mask], free[mask], 1e-14)


def test_a_part_of_no_columns_moves_nothing_and_one_of_all_is_none() -> None:
    start = torch.full((2, 3), 1.7, dtype=torch.float64)
    nothing = descend(start, quadratic, steps=5, lr=0.1, part=slice(3, 3))
    assert torch.equal(nothing, start)
    assert nothing is not start
    assert torch.equal(
        descend(start, quadratic, steps=5, lr=0.1, part=slice(0, 3)),
        descend(start, quadratic, steps=5, lr=0.1),
    )


@pytest.mark.parametrize("method", ["gradient", "nesterov", "adam"])
@pytest.mark.parametrize("l1", [None, (0.3, 0.1), (0.3, 0.0)])
def test_every_parameter_may_have_a_step_size_of_its_own(
    method: Any, l1: tuple[float, float] | None
) -> None:
    start = torch.full((2, 3), 1.7, dtype=torch.float64)
    lr = torch.tensor([[0.1, 0.2, 0.1]], dtype=torch.float64)
    got = descend(start, quadratic, steps=5, lr=lr, l1=l1, method=method)
    for j in range(3):  # the coordinates do not interact here
        close(
            got[:, j],
            descend(start, quadratic, steps=5, lr=float(lr[0, j]), l1=l1, method=method)[:, j],
            1e-14,
        )


@pytest.mark.parametrize("method", ["gradient", "nesterov", "adam"])
def test_rows_may_have_steps_sizes_and_penalties_of_their_own(method: Any) -> None:
    start = torch.randn(2, 3, dtype=torch.float64)
    steps, lr = torch.tensor([2, 5]), torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    lam = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    gamma = torch.tensor([[0.0], [0.2]], dtype=torch.float64)
    together = descend(
        start, quadratic, steps=steps, lr=lr, prox=(lam, ZERO), l1=(gamma, 0.0), method=method
    )
    for i in range(2):
        one = slice(i, i + 1)
        alone = descend(
            start[one], lambda x, one=one: A * x - B[one], steps=int(steps[i]), lr=float(lr[i]), method=method,
            prox=(float(lam[i]), ZERO[one]), l1=(float(gamma[i]), 0.0),
        )  # fmt: skip
        close(together[one], alone, 1e-14)
    column = descend(
        start, quadratic, steps=steps[:, None], lr=lr, prox=(lam, ZERO), l1=(gamma, 0.0), method=method,
    )  # fmt: skip
    assert torch.equal(column, together)


@pytest.mark.parametrize("method", ["gradient", "nesterov", "adam"])
def test_rows_stop_one_by_one_and_stay_stopped(method: Any) -> None:
    start = torch.tensor([[0.0, 0.0, 0.0], [0.001, 0.3 / 2, -0.2]], dtype=torch.float64)
    calls = []

    def gradient(x: Tensor) -> Tensor:
        calls.append(x.clone())
        return quadratic(x)

    tol = 0.05
    got = descend(start, gradient, steps=5000, lr=0.05, tol=tol, method=method)
    assert len(calls) < 5000
    assert torch.equal(got[1], start[1])  # was there already
    assert not torch.equal(got[0], start[0])
    if method == "gradient":
        assert quadratic(got).norm(dim=1).max() <= tol
        assert quadratic(calls[-2]).norm(dim=1)[0] > tol
    # A gradient that grows again does not wake a row up.
    noisy = iter([0.0, 9.0, 9.0])
    rows = descend(
        ZERO[:1], lambda x: torch.full_like(x, next(noisy)), steps=3, lr=1.0, tol=1.0, method=method
    )
    assert torch.equal(rows, ZERO[:1])


def test_a_stopped_row_stays_while_others_move() -> None:
    slopes = iter([[0.0, 5.0], [5.0, 5.0], [5.0, 0.0], [5.0, 5.0]])
    got = descend(
        ZERO,
        lambda x: torch.tensor(next(slopes)).double()[:, None].expand(2, 3),
        steps=4,
        lr=1.0,
        tol=0.1,
    )
    assert got.tolist() == [[0.0] * 3, [-10.0] * 3]


@pytest.mark.parametrize("method", ["gradient", "nesterov", "adam"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_start_is_never_changed(method: Any, steps: int) -> None:
    start = torch.ones(2, 3, dtype=torch.float64)
    got = descend(start, quadratic, steps=steps, lr=0.1, method=method, l1=(0.1, 0.0))
    assert (start == 1).all()
    got.zero_()
    assert (start == 1).all()


@pytest.mark.parametrize("method", ["gradient", "nesterov", "adam"])
@pytest.mark.parametrize("tol", [None, 0.1])
def test_no_rows(method: Any, tol: float | None) -> None:
    none = torch.empty(0, 3)
    got = descend(
        none, lambda x: x, steps=3, lr=torch.empty(0, 1), prox=(1.0, none), l1=(torch.empty(0, 1), 0.0),
        method=method, tol=tol,
    )  # fmt: skip
    assert got.shape == (0, 3)
    assert descend(
        none, lambda x: x, steps=torch.empty(0, dtype=torch.int64), lr=0.1, method=method
    ).shape == (0, 3)


@pytest.mark.parametrize("bad", [{"steps": -1}, {"tol": -0.1}, {"steps": torch.tensor([-1, -2])}])
def test_wrong_numbers(bad: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match="must be 0 or more"):
        descend(ZERO, quadratic, **{"steps": 1, "lr": 0.1, **bad})


def test_an_unknown_method() -> None:
    with pytest.raises(ProgramError, match="method = 'sgd': choose one of gradient, nesterov"):
        descend(ZERO, quadratic, steps=1, lr=0.1, method="sgd")  # type: ignore[arg-type]


# The engine's loop


class Nobody(Algorithm):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return w

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return w


def engine(l2: float, batches: Any) -> Nodes:
    pairs = labelled((5, 40, 9), (4,), dtype=torch.float64)
    task = Task(mlp(4, 5, 3), own_parts(train=pairs, classes=3), dtype=torch.float64, l2=l2)
    dense = LinkSpec(CODECS["dense"])
    links = {("server-device", direction): dense for direction in ("down", "up")}
    start = task.space.initial(0)[None]
    spec = NodeSpec(Nobody(), Tree.flat(3), task, links, start, batches=batches)
    simulator = Simulator(spec)
    return Nodes(simulator, "device", torch.arange(3), round=1, path=0)


COLUMN = torch.tensor([[0.1], [0.5], [0.0]], dtype=torch.float64)
TERMS: dict[str, dict[str, Any]] = {
    "none": {},
    "prox": {"prox": 2.0},
    "smooth l1": {"l1": (0.2, 0.01)},
    "exact l1": {"l1": (0.2, 0.0)},
    "l1 by row": {"l1": (COLUMN, 0.01)},
    "exact l1 by row": {"l1": (COLUMN, 0.0)},
    "linear": {"linear": True},
    "decay": {"decay": 0.3},
    "prox, decay": {"prox": 2.0, "decay": 0.3},
    "prox, l1": {"prox": 2.0, "l1": (0.2, 0.01)},
    "prox, exact l1, linear": {"prox": 2.0, "l1": (0.2, 0.0), "linear": True},
    "all": {"prox": 2.0, "l1": (0.2, 0.01), "linear": True, "decay": 0.3},
    "all by row": {"prox": COLUMN, "l1": (COLUMN, 0.01), "linear": True, "decay": 0.3},
    "mask": {"mask": True, "prox": 2.0, "l1": (0.2, 0.0)},
    "part": {"part": slice(3, 20), "prox": 2.0},
    "lr by row": {"lr": COLUMN},
    "steps by row": {"steps": torch.tensor([1, 4, 0])},
    "adam": {"method": "adam"},
    "nesterov": {"method": "nesterov", "prox": 2.0},
    "tol": {"tol": 0.4},
}


@pytest.mark.parametrize("batches", ["uniform", "cyclic"])
@pytest.mark.parametrize("batch", ["one", "fresh", "all"])
@pytest.mark.parametrize("l2", [0.0, 0.5])
@pytest.mark.parametrize("name", TERMS)
def test_the_engines_loop_is_the_generic_one(
    name: str, l2: float, batch: str, batches: Any
) -> None:
    given: dict[str, Any] = {"steps": 4, "lr": 0.1, **TERMS[name]}
    width = engine(l2, batches).initial().shape[1]
    start, anchor, c, coin = torch.randn(
        4, 3, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    given |= {"prox": (given["prox"], anchor)} if "prox" in given else {}
    given |= {"linear": c} if "linear" in given else {}
    given |= {"mask": coin > 0} if "mask" in given else {}

    def gradient() -> Any:
        me = engine(l2, batches)
        return me.grad(
            {"one": lambda: me.batch(6), "fresh": lambda: 6, "all": lambda: None}[batch]()
        )

    fused, plain = gradient(), gradient()
    if batches == "cyclic" and batch == "fresh" and name in ("steps by row", "tol"):
        with pytest.raises(
            ConfigError, match="same number of steps"
        ):  # the counter of a row would depend on its neighbours
            descend(start, fused, **given)
        return
    kept = start.clone()
    got = descend(start, fused, **given)
    assert torch.equal(start, kept)
    close(got, descend(start, lambda x: plain(x), **given), 1e-12)
    assert not torch.equal(got, start)
    start.zero_()
    assert bool(got.any())  # new memory


def test_fresh_batches_are_fresh_and_one_batch_is_one() -> None:
    me = engine(0.0, "uniform")
    x = me.initial()
    one, fresh = me.grad(me.batch(2)), me.grad(2)
    assert torch.equal(one(x), one(x))
    assert not torch.equal(fresh(x), fresh(x))
    full = me.grad(None)
    assert torch.equal(full(x), full(x))


def test_a_gradient_used_twice_draws_alike_on_both_paths() -> None:
    results = []
    for wrap in (False, True):
        me = engine(0.0, "uniform")
        gradient = me.grad(3)
        used = (lambda x, g=gradient: g(x)) if wrap else gradient
        once = descend(me.initial(), used, steps=2, lr=0.1)
        results.append(descend(once, used, steps=2, lr=0.1))
    close(results[0], results[1], 1e-12)
