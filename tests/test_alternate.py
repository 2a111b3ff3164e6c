"""Moves by turns: the kernel against torch, and both against the loops they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey import NO_DATA, Stepper, native
from covey.engine.batches import Batch
from covey.engine.solvers import native_call
from covey.engine.solvers.alternate import Mix, Move, alternate, refusal
from covey.engine.solvers.objective import Objective
from covey.engine.task import Task
from covey.errors import ProgramError
from tests.covering import pairs
from tests.given import Given
from tests.test_native import (
    DEVICES,
    DTYPES,
    IDS,
    SETS,
    SIZE,
    WIDTH,
    chain,
    column,
    make,
    rows,
    shards,
)

Moves = Callable[[Task, int], tuple[Move, ...]]
ROWS = ("x", "y", "z")


class Loss(Given):
    """The loss of a task on the batch of each step, or of each turn; torch takes single steps."""

    def __init__(self, task: Task, stream: int, *, by_turn: bool = False) -> None:
        drawn = task.examples.draw(stream, IDS, SIZE, range(100))
        super().__init__(task, drawn.__getitem__)
        self.by_turn = by_turn
        self._step = 0

    def __call__(self, x: Tensor) -> Tensor:
        batch = self.batch_of(self._step)
        if not self.by_turn:
            self._step += 1
        return self.task.gradients.gradient(x, batch) + self.task.l2 * x

    def of_turn(self, turn: int) -> Loss:
        if self.by_turn:
            self._step = turn
        return self


class ByTorch(Loss):
    """As `Loss`, where no solver computes whole descents."""

    def __init__(self, task: Task, stream: int, *, by_turn: bool = False) -> None:
        super().__init__(task, stream, by_turn=by_turn)
        self.all_examples = True


def mixture(task: Task, loss: type[Loss]) -> tuple[Move, ...]:
    share = column(0.0, 1.0).to(task.dtype)
    return (
        Move("y", loss(task, 1), lr=0.1 * share, at=Mix("x", "y", share)),
        Move("x", loss(task, 2), lr=0.1),
    )


def ahead(task: Task, loss: type[Loss]) -> tuple[Move, ...]:
    return (Move("y", loss(task, 1), lr=0.2, start="x"), Move("x", loss(task, 2), lr=0.1, at="y"))


def correlation(task: Task, loss: type[Loss]) -> tuple[Move, ...]:
    return (
        Move("x", loss(task, 1, by_turn=True), lr=0.1, linear=(-0.7, "y"), l1=(0.1, 0.05), steps=3),
        Move("y", NO_DATA, lr=0.3, prox=(0.7, "x"), l1=(0.1, 0.0)),
        Move("z", NO_DATA, lr=0.5, prox=(1.0, "y"), linear=(0.2, "x")),
    )


MOVES: dict[str, Any] = {"mixture": mixture, "ahead": ahead, "correlation": correlation}


def registers(task: Task) -> dict[str, Tensor]:
    return {name: rows(task, seed) for seed, name in enumerate(ROWS)}


native_only = pytest.mark.skipif(not native.loaded(), reason="there is no compiled kernel here")


@native_only
@pairs(kernel=SETS, moves=MOVES, dtype=DTYPES, l2=[0.0, 0.2])
def test_the_kernel_makes_the_moves_of_torch(
    kernel: str, moves: str, dtype: torch.dtype, l2: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_library", native._load(kernel))
    task = make(chain(WIDTH, 21, 3, activation=nn.Tanh), dtype=dtype, l2=l2)
    before = registers(task)
    kept = {name: value.clone() for name, value in before.items()}
    assert refusal(before, MOVES[moves](task, Loss)) is None
    assert refusal(before, MOVES[moves](task, ByTorch)) is not None
    got = alternate(before, *MOVES[moves](task, Loss), times=4)
    want = alternate(before, *MOVES[moves](task, ByTorch), times=4)
    for name in ROWS:
        assert torch.equal(before[name], kept[name])
        torch.testing.assert_close(got[name], want[name], rtol=DTYPES[dtype], atol=DTYPES[dtype])


def test_moves_are_the_loops_they_stand_for() -> None:
    """Per-FedAvg's, APFL's and FedMac's loops, written out."""
    task = Task(chain(WIDTH, 9, 3), shards(3, labels=True), dtype=torch.float64)
    loss = [task.examples.draw(stream, IDS, SIZE, range(100)) for stream in range(3)]
    start = registers(task)

    x, y = start["x"], start["y"]
    share = column(0.0, 1.0)
    for step in range(3):
        point = share * y + (1 - share) * x
        y = y - 0.1 * share * task.gradients.gradient(point, loss[1][step])
        x = x - 0.1 * task.gradients.gradient(x, loss[2][step])
    after = alternate(start, *mixture(task, Loss), times=3)
    torch.testing.assert_close(after["x"], x)
    torch.testing.assert_close(after["y"], y)

    x = start["x"]
    for step in range(3):
        y = x - 0.2 * task.gradients.gradient(x, loss[1][step])
        x = x - 0.1 * task.gradients.gradient(y, loss[2][step])
    after = alternate(start, *ahead(task, Loss), times=3)
    torch.testing.assert_close(after["x"], x)
    torch.testing.assert_close(after["y"], y)

    x, y, z = start["x"], start["y"], start["z"]
    for turn in range(3):
        for _ in range(3):
            g = task.gradients.gradient(x, loss[1][turn])
            x = x - 0.1 * (g - 0.7 * y + 0.1 * torch.tanh(x / 0.05))
        y = y - 0.3 * 0.7 * (y - x)
        y = torch.sign(y) * (y.abs() - 0.03).clamp(min=0)
        z = z - 0.5 * (z - y + 0.2 * x)
    after = alternate(start, *correlation(task, Loss), times=3)
    for name, value in (("x", x), ("y", y), ("z", z)):
        torch.testing.assert_close(after[name], value)


@native_only
@pytest.mark.parametrize("moves", MOVES)
def test_rows_do_not_depend_on_their_neighbours(moves: str) -> None:
    task = make(chain(WIDTH, 21, 3), dtype=torch.float32)
    start = registers(task)
    whole = alternate(start, *MOVES[moves](task, Loss), times=3)

    chosen = [3, 1]

    class Some(Loss):
        def batch_of(self, step: int) -> Batch:
            batch = super().batch_of(step)
            return Batch(batch.data, batch.examples[chosen])

    some = {name: value[chosen] for name, value in start.items()}
    few = [Move(**{**vars(move), **_rows_of(move, chosen)}) for move in MOVES[moves](task, Some)]
    got = alternate(some, *few, times=3)
    for name in ROWS:
        assert torch.equal(got[name], whole[name][chosen])


def _rows_of(move: Move, chosen: list[int]) -> dict[str, Any]:
    """The numbers of a move that differ from row to row, for some of the rows."""
    out: dict[str, Any] = {}
    if isinstance(move.lr, Tensor):
        out["lr"] = move.lr[chosen]
    if isinstance(move.at, Mix) and isinstance(move.at.share, Tensor):
        out["at"] = Mix(move.at.a, move.at.b, move.at.share[chosen])
    return out


@native_only
def test_more_turns_than_go_into_one_call() -> None:
    task = make(chain(WIDTH, 7, 3))
    start = registers(task)
    got = alternate(start, *ahead(task, Loss), times=70)
    want = alternate(start, *ahead(task, ByTorch), times=70)
    torch.testing.assert_close(got["x"], want["x"], rtol=1e-10, atol=1e-10)


def test_moves_that_mean_nothing_are_refused() -> None:
    start = {"x": torch.zeros(1, 2)}
    with pytest.raises(ProgramError, match="names the rows 'w'; there are x"):
        alternate(start, Move("x", NO_DATA, lr=0.1, prox=(1.0, "w")), times=1)
    with pytest.raises(ProgramError, match="one plain step"):
        alternate(start, Move("x", torch.zeros_like, lr=0.1, at="x", steps=2), times=1)
    after = alternate(start, Move("x", lambda x: x - 1, lr=0.5), times=2)
    assert after["x"].tolist() == [[0.75, 0.75]]


@native_only
@pairs(kernel=SETS, dtype=DTYPES, short=[False, True])
def test_the_gradient_at_given_rows(
    kernel: str, dtype: torch.dtype, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_library", native._load(kernel))
    task = make(chain(WIDTH, 21, 3), dtype=dtype, l2=0.3)
    x = rows(task, 1)
    [batch] = task.examples.draw(7, IDS, SIZE)
    if short:
        batch = task.examples.cyclic(IDS, 6, torch.full((DEVICES,), 1))
    assert native_call.gradient_refusal(task, x, batch) is None
    bound = DTYPES[dtype]
    want = task.gradients.gradient(x, batch)
    torch.testing.assert_close(task.fast_gradient(x, batch), want, rtol=bound, atol=bound)
    one = native_call.gradient(task, x[2:3], batch.row(2))
    assert torch.equal(one, native_call.gradient(task, x, batch)[2:3])
    wide = torch.cat([x, x], dim=1)[:, : x.shape[1]]  # rows with a gap between them
    assert torch.equal(task.fast_gradient(wide, batch), task.fast_gradient(x, batch))
    other = Batch((task.x.clone(), task.y), batch.examples, batch.weight)
    assert native_call.gradient_refusal(task, x, other) is not None


@native_only
@pairs(kernel=SETS, dtype=DTYPES, width=[1, 7, 64, 83], each=[False, True])
def test_adam_in_the_kernel(
    kernel: str, dtype: torch.dtype, width: int, each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(0)
    lr = column(0.01, 0.1).to(dtype) if each else 0.05
    start = torch.randn(DEVICES, width, generator=g, dtype=torch.float64).to(dtype)
    slopes = torch.randn(6, DEVICES, width, generator=g, dtype=torch.float64).to(dtype)

    def steps() -> Tensor:
        stepper = Stepper("adam", lr)
        x = start
        for slope in slopes:
            [x] = stepper.step((x,), (slope,))
        return x

    monkeypatch.setattr(native, "_library", native._load(kernel))
    before = start.clone()
    got = steps()
    assert torch.equal(start, before)
    monkeypatch.setattr(native, "_library", "gone")
    bound = DTYPES[dtype]
    torch.testing.assert_close(got, steps(), rtol=bound, atol=bound)


def test_objectives_of_moves_have_no_penalty_of_weight_0() -> None:
    move = Move("x", NO_DATA, lr=0.1, l1=(0.0, 0.05))
    assert move.objective({"x": torch.zeros(1, 2)}).l1 is None
    assert isinstance(move.objective({"x": torch.zeros(1, 2)}), Objective)
