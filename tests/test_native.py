"""The compiled kernel against torch: equal rows up to rounding, on every instruction set.

A row has the same bits whatever its neighbours are. Cases contain every pair of values.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from covey import native
from covey.codecs import Bitmap, gaps, integers
from covey.codecs.blocks import count, patterns
from covey.data import Shards, own_parts
from covey.engine.descend import choose, descend
from covey.engine.solvers import native_call, smooth_l1
from covey.engine.solvers.objective import NO_DATA, Objective
from covey.engine.task import Batch, Task
from covey.errors import DecodeError, ProgramError
from covey.models import linear, mlp
from tests.covering import pairs
from tests.given import Given, descended
from tests.own_folder import ROOT

pytestmark = pytest.mark.skipif(
    not native.loaded(), reason=f"the compiled kernel is {native.status()}"
)
SETS = [
    name
    for name in native.SETS
    if isinstance(native._library, native.Library) and native._library.supports(name)
]
WIDTH, DEVICES, SIZE = 19, 5, 6
IDS = torch.arange(DEVICES)
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5}


@pytest.fixture(params=SETS)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set that this processor has."""
    monkeypatch.setattr(native, "_library", native._load(request.param))
    assert native.status() == request.param
    return str(request.param)


def chain(
    *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1], bias=bias)]
    for inputs, outputs in pairwise(sizes[1:]):
        layers += [activation(), nn.Linear(inputs, outputs, bias=bias)]
    return nn.Sequential(*layers)


STACKS: dict[str, nn.Module] = {
    "one layer": linear(WIDTH, 3),
    "without bias": linear(WIDTH, 3, bias=False),
    "one output": chain(WIDTH, 1),
    "one hidden": chain(WIDTH, 1, 1),
    "relu": chain(WIDTH, 7, 3),
    "tanh": chain(WIDTH, 7, 3, activation=nn.Tanh),
    "sigmoid": chain(WIDTH, 33, 3, activation=nn.Sigmoid, bias=False),
    "three layers": chain(WIDTH, 70, 17, 16),
    "no activation": nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, 5)),
    "wide": chain(WIDTH, 130, 40, activation=nn.Tanh),
    "leaky relu": chain(WIDTH, 33, 3, activation=partial(nn.LeakyReLU, 0.2)),
    "elu": chain(WIDTH, 9, 7, 3, activation=partial(nn.ELU, 0.7)),
    "silu": chain(WIDTH, 21, 3, activation=nn.SiLU),
    "gelu": chain(WIDTH, 21, 5, 3, activation=nn.GELU),
    "gelu tanh": chain(WIDTH, 21, 3, activation=partial(nn.GELU, approximate="tanh")),
}


def shards(outputs: int, labels: bool, width: int = WIDTH) -> Shards:
    g = torch.Generator().manual_seed(0)

    def targets(n: int) -> Tensor:
        if labels:
            return torch.randint(outputs, (n,), generator=g)
        return torch.randn(n, outputs, generator=g, dtype=torch.float64)

    pairs = [
        (torch.randn(n, width, generator=g, dtype=torch.float64), targets(n))
        for n in (5, 40, 9, 1, 13)
    ]
    return own_parts(train=pairs, classes=outputs if labels else None)


def make(
    module: nn.Module,
    *,
    loss: Any = "cross_entropy",
    dtype: torch.dtype = torch.float64,
    l2: float = 0.0,
    width: int = WIDTH,
) -> Task:
    outputs = next(
        m for m in reversed(list(module.modules())) if isinstance(m, nn.Linear)
    ).out_features
    task = Task(
        module, shards(outputs, loss == "cross_entropy", width), loss=loss, dtype=dtype, l2=l2
    )
    assert task.kernel == f"native {native.status()}"
    return task


def rows(task: Task, seed: int, scale: float = 0.5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(DEVICES, task.space.width, generator=g, dtype=torch.float64).to(
        task.dtype
    )


def fresh(task: Task, size: int = SIZE) -> Callable[[int], Batch]:
    drawn = task.examples.draw(7, IDS, size, range(100))
    return drawn.__getitem__


def by_torch(
    task: Task, start: Tensor, batch_of: Callable[[int], Batch], terms: Objective
) -> Tensor:
    """The same descent step by step, every gradient by the torch path."""
    step = iter(range(10**6))

    def gradient(x: Tensor) -> Tensor:
        return task.gradients.gradient(x, batch_of(next(step))) + task.l2 * x

    fields = {
        name: getattr(terms, name) for name in ("prox", "l1", "linear", "mask", "part", "decay")
    }
    return descend(start, gradient, steps=terms.steps, lr=terms.lr, **fields)


def compare(
    task: Task,
    terms: Objective,
    batch_of: Callable[[int], Batch] | None = None,
    one: Batch | None = None,
) -> Tensor:
    start = rows(task, 1)
    before = start.clone()
    batch_of = (lambda step: one) if one is not None else batch_of or fresh(task)
    got = descended(task, start, batch_of, terms, one=one)
    assert torch.equal(start, before)
    bound = DTYPES[task.dtype]
    torch.testing.assert_close(got, by_torch(task, start, batch_of, terms), rtol=bound, atol=bound)
    return got


@pairs(instructions=SETS, name=STACKS, loss=native.LOSSES, dtype=DTYPES)
def test_every_stack_and_loss(instructions: str, name: str, loss: Any, dtype: torch.dtype) -> None:
    compare(
        make(STACKS[name], loss=loss, dtype=dtype),
        Objective(3, 0.1 if loss == "cross_entropy" else 0.002),
    )


@pairs(
    instructions=SETS,
    hidden=[1, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 65, 100],
    size=[1, 2, 5, 7, 13, 40],
)
def test_every_size(instructions: str, hidden: int, size: int) -> None:
    task = make(chain(WIDTH, hidden, 3))
    compare(task, Objective(2, 0.1, prox=(1.0, rows(task, 2))), fresh(task, size))


@pytest.mark.parametrize("inputs", [1, 2, 63, 64, 65, 129, 200])
def test_every_depth(instructions: str, inputs: int) -> None:
    task = make(chain(inputs, 11, 3), width=inputs)
    compare(task, Objective(2, 0.02, prox=(1.0, rows(task, 2))))


def column(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, DEVICES, dtype=torch.float64)[:, None]


def case(task: Task, name: str) -> dict[str, Any]:
    anchor, dtype = rows(task, 2), task.dtype
    mask = torch.rand(anchor.shape, generator=torch.Generator().manual_seed(3)) > 0.4
    cases: dict[str, dict[str, Any]] = {
        "prox": {"prox": (1.5, anchor)},
        "far prox": {"prox": (8.0, anchor)},
        "one anchor for all": {"prox": (1.5, anchor[:1].expand(DEVICES, -1))},
        "decay": {"decay": 0.3},
        "smooth": {"l1": (0.1, 0.05)},
        "soft": {"l1": (0.1, 0.0)},
        "linear": {"linear": anchor},
        "mask": {"mask": mask},
        "one mask for all": {"mask": mask[0]},
        "part": {"part": slice(3, 40)},
        "last layer": {"part": slice(task.space.slots[2].start, None)},
        "no column": {"part": slice(4, 4)},
        "lr of each": {"lr": column(0.05, 0.1).to(dtype)},
        "lam of each": {"prox": (column(0, 2).to(dtype), anchor)},
        "gamma of each": {"l1": (column(0, 0.3).to(dtype), 0.05)},
        "gamma of each, soft": {"l1": (column(0, 0.3).to(dtype), 0.0)},
        "steps of each": {"steps": torch.tensor([3, 0, 1, 4, 2])},
    }
    return cases[name]


SINGLE = [
    "prox", "far prox", "one anchor for all", "decay", "smooth", "soft", "linear", "mask", "one mask for all", "part",
    "last layer", "no column", "lr of each", "lam of each", "gamma of each", "gamma of each, soft", "steps of each",
]  # fmt: skip


@pairs(instructions=SETS, name=SINGLE, dtype=DTYPES)
def test_every_term(instructions: str, name: str, dtype: torch.dtype) -> None:
    task = make(chain(WIDTH, 21, 3), dtype=dtype)
    compare(task, Objective(**{"steps": 4, "lr": 0.1, **case(task, name)}))


@given(names=st.sets(st.sampled_from(SINGLE)), l2=st.sampled_from([0.0, 0.2]), one=st.booleans())
def test_terms_together(names: set[str], l2: float, one: bool) -> None:
    task = make(chain(WIDTH, 21, 3), l2=l2)
    terms: dict[str, Any] = {"steps": 4, "lr": 0.1}
    for name in sorted(names):
        terms.update(case(task, name))
    compare(task, Objective(**terms), one=fresh(task)(0) if one else None)


@pytest.mark.parametrize("turn", [0, 1, 6])
def test_short_batches(instructions: str, turn: int) -> None:
    task = make(STACKS["relu"])
    batch = task.examples.cyclic(IDS, 6, torch.full((DEVICES,), turn))
    compare(task, Objective(4, 0.1, prox=(1.0, rows(task, 2))), one=batch)
    compare(
        task,
        Objective(2, 0.1),
        lambda step: task.examples.cyclic(IDS, 4, torch.full((DEVICES,), turn + step)),
    )


@pairs(instructions=SETS, name=STACKS, lam=[None, 0.0, 1.0, 8.0], dtype=DTYPES)
def test_factored_steps_are_plain_steps(
    instructions: str, name: str, lam: float | None, dtype: torch.dtype
) -> None:
    task = make(STACKS[name], dtype=dtype, l2=0.0 if lam == 1.0 else 0.1)
    prox = None if lam is None else (lam, rows(task, 2))
    batch = fresh(task)(0)
    terms = Objective(5, 0.1, prox=prox)
    assert choose(Given(task, one=batch), rows(task, 1), terms)[0].name == "factored native"
    compare(task, terms, one=batch)
    compare(
        task,
        Objective(torch.tensor([0, 2, 3, 5, 9]), column(0.05, 0.1).to(dtype), prox=prox),
        one=batch,
    )


def test_more_steps_than_go_into_one_call() -> None:
    task = make(STACKS["relu"])
    compare(task, Objective(torch.tensor([70, 64, 65, 3, 0]), 0.02, prox=(1.0, rows(task, 2))))


@pairs(instructions=SETS, dtype=DTYPES, one=[False, True])
def test_a_row_does_not_depend_on_its_neighbours(
    instructions: str, dtype: torch.dtype, one: bool
) -> None:
    task = make(chain(WIDTH, 21, 3), dtype=dtype)
    start, anchor, steps = rows(task, 1), rows(task, 2), torch.tensor([1, 2, 3, 4, 5])
    drawn = task.examples.draw(7, IDS, SIZE, range(5))

    def some(chosen: list[int]) -> Tensor:
        batches = [Batch(batch.data, batch.examples[chosen]) for batch in drawn]
        terms = Objective(
            steps[chosen], 0.1, prox=(1.0, anchor[chosen]), l1=None if one else (0.1, 0.05)
        )
        return descended(
            task, start[chosen], batches.__getitem__, terms, one=batches[0] if one else None
        )

    whole = some([0, 1, 2, 3, 4])
    for chosen in ([0], [4], [1, 2], [4, 0, 3], []):
        assert torch.equal(some(chosen), whole[chosen]), chosen


@pairs(
    instructions=SETS,
    name=["relu", "tanh", "three layers", "one layer"],
    one=[False, True],
    dtype=DTYPES,
)
def test_what_diverges_is_not_finite(
    instructions: str, name: str, dtype: torch.dtype, one: bool
) -> None:
    task = make(STACKS[name], dtype=dtype)
    batch_of = fresh(task)
    terms = Objective(99, 1e6, prox=(1e6, rows(task, 2)))
    out = descended(task, rows(task, 1), batch_of, terms, one=batch_of(0) if one else None)
    assert not torch.isfinite(out).all(1).any()


def test_a_value_that_is_no_number_stays_in_its_row(instructions: str) -> None:
    task = make(STACKS["relu"])
    start = rows(task, 1)
    start[2, 5] = torch.nan
    out = descended(task, start, fresh(task), Objective(2, 0.1))
    assert torch.isfinite(out).all(1).tolist() == [True, True, False, True, True]


def test_a_start_at_the_anchor_stays_where_the_data_does_not_pull(instructions: str) -> None:
    task = make(linear(WIDTH, 1, bias=False), loss="squared_error")
    start = torch.zeros(DEVICES, WIDTH, dtype=torch.float64)
    start[:, :] = 0.1
    still = task.examples.take("train", IDS, torch.zeros(DEVICES, 1, dtype=torch.int64), None)
    still = Batch((torch.zeros_like(task.x), torch.zeros_like(task.y)), still.examples)
    kernel = task.native
    assert isinstance(kernel, native_call.NativeKernel)
    task.native = replace(kernel, x=still.data[0], y=still.data[1])
    loss = Given(task, lambda step: still)
    for lam in (1.0, 9.0):
        out = native_call.on_batches(loss, start, Objective(5, 0.1, prox=(lam, start)))
        assert torch.equal(out, start)


def test_what_the_kernel_is_not_asked() -> None:
    task = make(STACKS["relu"])
    start = rows(task, 1)
    for loss in (NO_DATA, Given(task, fresh(task))):
        assert choose(loss, start, Objective(1, 0.1))[0].name == "native"
        others: list[dict[str, Any]] = [
            {"method": "adam"},
            {"tol": 0.1},
            {"part": slice(0, 9, 2)},
            {"mask": torch.ones_like(start)},
        ]
        for other in others:
            assert "native" not in choose(loss, start, Objective(1, 0.1, **other))[0].name
    wrong = Batch((task.x, task.y), torch.full((DEVICES, 2), len(task.x)))
    with pytest.raises(IndexError, match="an example that is not there"):
        descended(task, start, lambda step: wrong, Objective(1, 0.1))


def test_convolutions_and_own_losses_stay_with_torch() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, 4), nn.Mish(), nn.Linear(4, 3))
    assert Task(module, shards(3, True)).kernel == "torch"
    own = Task(linear(WIDTH, 3), shards(3, True), loss=lambda out, y: out.square().sum(1))
    assert own.kernel == "torch"


@pytest.mark.parametrize(("dtype", "ulps"), [(torch.float32, 4), (torch.float64, 4)])
def test_tanh(instructions: str, dtype: torch.dtype, ulps: int) -> None:
    grid = torch.cat(
        [
            torch.linspace(-30, 30, 200_001, dtype=torch.float64),
            torch.logspace(-30, 4, 20_001, dtype=torch.float64),
        ]
    )
    x = torch.cat([grid, -grid]).to(dtype)
    exact, got = torch.tanh(x.double()), native.tanh(x)
    error = (got.double() - exact).abs() / exact.abs().clamp(min=1e-300)
    assert float(error.max()) < ulps * torch.finfo(dtype).eps
    edge = native.tanh(
        torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40], dtype=dtype)
    )
    assert edge[0].isnan()
    assert edge[1:5].tolist() == [1.0, -1.0, 0.0, -0.0]
    assert torch.copysign(torch.ones(()), edge[4]) == -1


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-3, -1e-3, 1e-40, torch.nan, torch.inf, -torch.inf]


@pairs(
    instructions=SETS,
    shape=[(0, 4), (3, 0), (1, 1), (3, 10), (2, 1000), (4, 77)],
    threshold=[None, 0.0, 1e-3, 0.1, -1.0],
    dtype=DTYPES,
)
def test_cut_and_count_in_one_pass(
    instructions: str, shape: tuple[int, int], threshold: float | None, dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(1)
    some = torch.tensor([*SPECIAL, 0.1, 0.1 + 1e-9], dtype=dtype)
    values = some[torch.randint(len(some), shape, generator=g)]
    got, counts = native.cut_count(values, threshold)
    want = smooth_l1.cut(values, threshold)
    assert torch.equal(patterns(got), patterns(want))
    assert torch.equal(counts, count(patterns(want)))
    assert Bitmap().nbytes(got).shape == counts.shape
    if threshold is not None:
        assert got.data_ptr() != values.data_ptr() or not values.numel()


@pairs(instructions=SETS, size=[0, 1, 15, 64, 5000], dtype=DTYPES)
def test_finite(instructions: str, size: int, dtype: torch.dtype) -> None:
    values = torch.full((1, size), torch.finfo(dtype).max, dtype=dtype)
    assert native.finite(values)
    for at in {0, size // 2, size - 1} if size else ():
        for bad in (torch.nan, torch.inf, -torch.inf):
            values[0, at] = bad
            assert not native.finite(values), (at, bad)
        values[0, at] = 1.0


def test_rows_on_their_side(instructions: str) -> None:
    turned = torch.randn(6, 40).t()
    assert torch.equal(native.cut_count(turned, 0.5)[0], smooth_l1.cut(turned, 0.5))
    assert native.finite(turned)


_ALONE = """
import sys, torch
from covey import native
from tests.test_native import *
rows, kernel = prox_rows()
torch.save({"rows": rows, "status": native.status(), "kernel": kernel}, sys.argv[1])
"""


def prox_rows() -> tuple[Tensor, str]:
    """Four steps with a proximal term and an l1 penalty, and the kernel that made them."""
    task = Task(mlp(WIDTH, 21, 3), shards(3, True), dtype=torch.float64)
    terms = Objective(4, 0.1, prox=(1.0, rows(task, 2)), l1=(0.1, 0.05))
    return descended(task, rows(task, 1), fresh(task), terms), task.kernel


@pytest.mark.parametrize("wish", ["", "0", "sse9", *SETS])
def test_a_wish_decides(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    want = {
        "0": "off: COVEY_NATIVE=0",
        "": SETS[-1],
        "sse9": "off: COVEY_NATIVE=sse9 is none of 0, plain, avx2, avx512",
    }
    here, _ = prox_rows()
    monkeypatch.setattr(native, "_library", native._load(wish))
    there, kernel = prox_rows()
    assert native.status() == want.get(wish, wish)
    assert kernel == ("torch" if wish in ("0", "sse9") else f"native {native.status()}")
    torch.testing.assert_close(there, here, rtol=1e-12, atol=1e-12)


def test_the_environment_has_the_wish(tmp_path: Any) -> None:
    file = str(tmp_path / "out.pt")
    environment = {**os.environ, "COVEY_NATIVE": "plain", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _ALONE, file]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    alone = torch.load(file)
    assert (alone["status"], alone["kernel"]) == ("plain", "native plain")
    torch.testing.assert_close(alone["rows"], prox_rows()[0], rtol=1e-12, atol=1e-12)


def test_without_the_kernel_the_passes_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([[1.0, -0.0, 0.5], [0.0, torch.inf, 2.0]])
    here = native.cut_count(values, 0.5), native.cut_count(values, None), native.finite(values)
    monkeypatch.setattr(native, "_library", "gone")
    there = native.cut_count(values, 0.5), native.cut_count(values, None), native.finite(values)
    assert native.status() == "off: gone"
    assert str(here) == str(there)


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ABI", 99)
    said = native._load("")
    assert isinstance(said, str)
    assert "not 99; install covey again" in said


def test_a_library_of_other_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_source", lambda: "0123456789abcdef")
    said = native._load("")
    assert isinstance(said, str)
    assert "was built from another rows.c" in said


def test_what_does_not_fit_is_refused_before_the_kernel_sees_it() -> None:
    task = make(STACKS["relu"])
    x, terms = rows(task, 1), Objective(3, 0.1)
    with pytest.raises(ProgramError, match="a model has"):
        descended(task, x[:, :-1], fresh(task), terms)
    with pytest.raises(ProgramError, match=r"5 devices meets 10 rows"):
        descended(task, x.repeat(2, 1), fresh(task), terms)
    with pytest.raises(ProgramError, match=r"10 rows to score for 5 devices"):
        task.evaluate(x.repeat(2, 1), "train", IDS)
    with pytest.raises(ProgramError, match=rf"rows of shape \({task.space.width},\), but a model"):
        task.evaluate(x[0], "train", IDS)
    with pytest.raises(ProgramError, match=rf"\(5, {task.space.width - 1}\), but a model has"):
        task.evaluate(x[:, 1:], "train", IDS)


def test_a_batch_of_other_data_is_descended_on() -> None:
    task = make(STACKS["without bias"])
    drawn = fresh(task)(0)
    blank = Batch((torch.zeros_like(task.x), task.y), drawn.examples)
    x, terms = rows(task, 1), Objective(3, 0.1)
    moved = descended(task, x, lambda step: blank, terms, one=blank)
    assert torch.equal(moved, x)  # no feature, no gradient
    usual = descended(task, x, lambda step: drawn, terms, one=drawn)
    assert not torch.equal(usual, x)


def test_a_module_with_parameters_of_its_own_is_no_stack() -> None:
    module = chain(WIDTH, 4, 3)
    module.register_parameter("extra", nn.Parameter(torch.full((2,), 7.0)))
    task = Task(module, shards(3, True))
    assert task.path != "fused"
    assert task.kernel == "torch"


def test_an_empty_layer_runs_in_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that such a layer cannot be initialised
        task = Task(chain(WIDTH, 0, 3), shards(3, True))
    assert task.kernel == "torch"


def test_labels_under_a_squared_error_are_scored_as_torch_scores_them() -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    pairs = [(x, torch.zeros(7, dtype=torch.int64))]
    task = Task(linear(3, 1), own_parts(train=pairs, classes=1), loss="squared_error")
    scores = task.evaluate(task.space.initial(0)[None], "train", torch.arange(1))
    assert scores.right.tolist() == [7.0]


@pairs(instructions=SETS, stack=STACKS, loss=native.LOSSES, dtype=DTYPES)
def test_scores_are_those_of_torch(
    instructions: str, stack: str, loss: Any, dtype: torch.dtype
) -> None:
    task = make(STACKS[stack], loss=loss, dtype=dtype)
    x = rows(task, 3, scale=2.0)
    got, alone = task.evaluate(x, "train", IDS), task.evaluate(x[1:2], "train", IDS[1:2])
    task.native = "the test compares it with torch"
    want = task.evaluate(x, "train", IDS)
    assert torch.equal(got.count, want.count)
    assert torch.equal(got.right, want.right)
    torch.testing.assert_close(got.loss, want.loss, rtol=DTYPES[dtype], atol=DTYPES[dtype])
    assert torch.equal(alone.loss, got.loss[1:2])


def test_scores_of_large_outputs_and_of_nobody(instructions: str) -> None:
    task = make(STACKS["relu"], dtype=torch.float32)
    got = task.evaluate(rows(task, 3, scale=3e3), "train", IDS)
    assert bool(torch.isfinite(got.loss).all())
    # nobody has test examples
    assert task.evaluate(rows(task, 3), "test", IDS).count.tolist() == [0.0] * DEVICES
    assert task.evaluate(rows(task, 3)[:0], "train", IDS[:0]).loss.shape == (0,)
    broken = rows(task, 3)
    broken[2] = torch.nan
    assert task.evaluate(broken, "train", IDS).loss.isnan().tolist() == [
        False, False, True, False, False,
    ]  # fmt: skip


WIDTHS = [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 130, 191, 300, 1025]
FILL = 0xA5  # what lies around an array that a pass writes, and must stay


def unaligned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values at an odd address, as in a message."""
    raw = np.full(values.nbytes + 7, FILL, np.uint8)
    there = raw[3 : 3 + values.nbytes].view(values.dtype)
    there[:] = values
    return there


def guarded(count: int, dtype: Any) -> tuple[np.ndarray[Any, Any], Callable[[], bool]]:
    """Memory for `count` values at an odd address, and whether what lies around it is as it was."""
    raw = np.full(count * np.dtype(dtype).itemsize + 131, FILL, np.uint8)
    size = count * np.dtype(dtype).itemsize
    return raw[67 : 67 + size].view(dtype), lambda: bool(
        (raw[:67] == FILL).all() and (raw[67 + size :] == FILL).all()
    )


@pairs(instructions=SETS, share=[0.0, 0.01, 0.1, 0.5, 0.95, 1.0], dtype=["f4", "f8"])
def test_bits_and_the_values_under_them(instructions: str, share: float, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    for width in WIDTHS:
        values = np.where(rng.random(width) < share, rng.standard_normal(width), 0).astype(dtype)
        values[rng.random(width) < 0.02] = -0.0
        yes = values.view(f"u{values.itemsize}") != 0
        bits, bits_alone = guarded((width + 7) // 8, np.uint8)
        assert native.nonzero(unaligned(values), bits) == yes.sum() == native.ones(bits, width)
        assert (bits == np.packbits(yes, bitorder="little")).all()
        some, some_alone = guarded(int(yes.sum()), dtype)
        native.squeeze(unaligned(values), bits, some)
        assert some.tobytes() == values[yes].tobytes()
        row, row_alone = guarded(width, dtype)
        native.spread(some, bits, row)
        assert row.tobytes() == values.tobytes()
        assert bits_alone()
        assert some_alone()
        assert row_alone()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_values_and_bits_that_do_not_agree_stay_within_their_memory(
    instructions: str, dtype: Any
) -> None:
    for width in WIDTHS:
        bits, values = np.full((width + 7) // 8, 255, np.uint8), np.ones(width, dtype)
        for fewer in {0, 1, width // 2, max(0, width - 1)}:
            some, alone = guarded(min(fewer, width), dtype)
            native.squeeze(values, bits, some)
            assert alone()
            row, alone = guarded(width, dtype)
            native.spread(unaligned(some), bits, row)
            assert alone()
            assert row.sum() == len(some)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.003, 0.05, 0.5, 1.0])
def test_gaps(share: float) -> None:
    rng = np.random.default_rng(2)
    for width in [*WIDTHS, 70_000]:
        yes = rng.random(width) < share
        bits = np.packbits(yes, bitorder="little")
        length = native.gap_length(bits, width)
        out, alone = guarded(length, np.uint8)
        native.write_gaps(bits, width, out)
        assert alone()
        back, alone = guarded(len(bits), np.uint8)
        back[:] = 0
        assert native.read_gaps(out, int(yes.sum()), back, width)
        assert (back == bits).all()
        assert alone()
        for sent in (int(yes.sum()) - 1, int(yes.sum()) + 1):
            assert not native.read_gaps(out, sent, np.zeros_like(bits), width) or sent < 0
        for narrower in {w for w in (width - 1, width // 2) if w >= 0 and yes[w:].any()}:
            few, alone = guarded((narrower + 7) // 8, np.uint8)
            few[:] = 0
            assert not native.read_gaps(out, int(yes.sum()), few, narrower)
            assert alone()


@given(block=st.binary(max_size=40), sent=st.integers(0, 45), width=st.integers(0, 600))
def test_gaps_of_any_bytes_are_those_of_numpy(block: bytes, sent: int, width: int) -> None:
    raw = np.frombuffer(block, np.uint8)
    bits, alone = guarded((width + 7) // 8, np.uint8)
    bits[:] = 0
    taken = native.read_gaps(raw, sent, bits, width)
    assert alone()
    try:
        places = gaps.places(raw, sent, width)
    except DecodeError:
        assert not taken
    else:
        assert taken
        assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == places.tolist()


@pairs(instructions=SETS, dtype=["f4", "f8"], brain=[False, True])
def test_halves(instructions: str, dtype: Any, brain: bool) -> None:
    half = torch.bfloat16 if brain else torch.float16
    rng = np.random.default_rng(3)
    for width in WIDTHS:
        values = (rng.standard_normal(width) * 10.0 ** rng.uniform(-9, 4, width)).astype(dtype)
        want = torch.from_numpy(values).float().to(half)
        words, alone = guarded(2 * width, np.uint8)
        native.narrow(values, words, brain=brain)
        assert words.tobytes() == want.view(torch.int16).numpy().tobytes()
        assert alone()
        wide = np.empty(width, dtype)
        assert native.widen(words, wide, brain=brain) == 0
        assert (wide == want.double().numpy()).all()
        bits, alone = guarded((width + 7) // 8, np.uint8)
        values[rng.random(width) < 0.5] *= 1e-40 if brain else 1e-8
        native.nonzero_halves(values, bits, brain=brain)
        few = torch.from_numpy(values).float().to(half)
        assert (
            bits.tolist()
            == np.packbits(few.view(torch.int16).numpy() != 0, bitorder="little").tolist()
        )
        assert alone()
        blurred = np.empty(width, dtype)
        native.blur(values, blurred, brain=brain)
        assert blurred.tobytes() == few.double().numpy().astype(dtype).tobytes()


@pairs(instructions=SETS, dtype=DTYPES, levels=[7, 127], key=[None, 0, 2**64 - 1, -17])
def test_quantised(instructions: str, dtype: torch.dtype, levels: int, key: int | None) -> None:
    g = torch.Generator().manual_seed(4)
    for width in WIDTHS:
        row = torch.randn(width, generator=g, dtype=torch.float64).to(dtype)
        row[torch.rand(width, generator=g) < 0.02] = torch.inf
        for block in (1, 5, 64, 256):
            keys = None if key is None else torch.tensor([(key + 2**63) % 2**64 - 2**63])
            whole, scale = integers.quantise_rows(row[None], block=block, levels=levels, keys=keys)
            got, alone = guarded(width, np.int8)
            scales = np.empty(scale.shape[1], row.numpy().dtype)
            native.quantise(row.numpy(), got, scales, block=block, levels=levels, key=key)
            assert alone()
            assert got.tolist() == whole[0].tolist()
            assert scales.tobytes() == scale[0].numpy().tobytes()
            back, peaks = np.empty_like(row.numpy()), np.empty(len(scales), np.uint8)
            native.dequantise(got, scales, back, peaks, block=block)
            want = whole[0].to(dtype) * scale[0].repeat_interleave(block)[:width]
            assert torch.equal(torch.from_numpy(back).nan_to_num(9e9), want.nan_to_num(9e9))
            assert (
                peaks.tolist() == [int(part.abs().max()) for part in whole[0].split(block)]
                if width
                else True
            )


def test_nibbles() -> None:
    for count_ in range(70):
        some = np.random.default_rng(5).integers(-8, 8, count_).astype(np.int8)
        packed, alone = guarded((count_ + 1) // 2, np.uint8)
        native.pack_nibbles(some, packed)
        assert alone()
        assert [int(byte) & 15 for byte in packed] == [int(v) & 15 for v in some[::2]]
        back, alone = guarded(count_, np.int8)
        native.unpack_nibbles(packed, back)
        assert alone()
        assert back.tolist() == some.tolist()
