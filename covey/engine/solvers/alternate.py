"""Rows that move by turns, each along gradients at the others.

`alternate` computes all turns of a device in one call of the native kernel where that fits, so that
its rows stay in the cache. Elsewhere it takes one step after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey import native
from covey.engine.descend import minimised
from covey.engine.solvers import native_call
from covey.engine.solvers.objective import (
    NO_DATA,
    Coefficient,
    DataLoss,
    Gradient,
    Method,
    Objective,
)
from covey.engine.solvers.optimiser import PLAIN
from covey.errors import ProgramError, meant
from covey.types import Rows

__all__ = ["Mix", "Move", "alternate"]

Registers = Mapping[str, Rows]


@dataclass(frozen=True, eq=False)
class Mix:
    """The rows a + share (b - a), of two rows by name; the share may differ by row, [n, 1]."""

    a: str
    b: str
    share: Coefficient

    def value(self, rows: Registers) -> Rows:
        """The mixture."""
        return torch.lerp(rows[self.a], rows[self.b], self.share)


@dataclass(frozen=True, eq=False)
class Move:
    """The rows `to` become those after `steps` steps of `descend`.

    The steps begin at the rows `start`, by default at `to` itself. The gradient is taken at the
    rows `at`, of which one step is possible; by default at the rows that move. `prox` is (lam, name
    of the anchor), `linear` is (factor, name): the term factor <name, x>.
    """

    to: str
    gradient: Gradient
    lr: Coefficient
    start: str | None = None
    at: str | Mix | None = None
    steps: int = 1
    prox: tuple[Coefficient, str] | None = None
    linear: tuple[float, str] | None = None
    l1: tuple[Coefficient, float] | None = None
    method: Method = "gradient"
    tol: float | None = None

    @property
    def origin(self) -> str:
        """The name of the rows from which the steps begin."""
        return self.start or self.to

    @property
    def names(self) -> set[str]:
        """All rows that the move reads or writes."""
        names = {self.to, self.origin}
        if isinstance(self.at, Mix):
            names |= {self.at.a, self.at.b}
        elif self.at is not None:
            names.add(self.at)
        for term in (self.prox, self.linear):
            if term is not None:
                names.add(term[1])
        return names

    def objective(self, rows: Registers, *, scaled: bool = True) -> Objective:
        """The terms of the steps; unless `scaled`, the linear term without its factor."""
        prox = None
        if self.prox is not None:
            lam, anchor = self.prox
            prox = (lam, rows[anchor])
        linear = None
        if self.linear is not None:
            factor, name = self.linear
            linear = rows[name]
            if scaled:
                linear = factor * linear
        l1 = self.l1
        if l1 is not None and not isinstance(l1[0], Tensor) and l1[0] == 0:
            l1 = None
        terms = Objective(self.steps, self.lr, prox, l1, linear)
        return replace(terms, method=self.method, tol=self.tol)

    def value(self, rows: Registers, turn: int) -> Rows:
        """The rows `to` after the move of a turn."""
        start = rows[self.origin]
        terms = self.objective(rows)
        gradient = self.gradient
        if isinstance(gradient, DataLoss):
            gradient = gradient.of_turn(turn)
        if self.at is not None:
            data = gradient(self.point(rows))
            step = self.lr * terms.gradient(start, data)
            moved = torch.sub(start, step, out=step)
            return terms.shrink(moved, self.lr)
        return minimised(start, gradient, terms)

    def refusal(self, rows: Registers) -> str | None:
        """Why the native kernel cannot make the move; None if it can."""
        start = rows[self.origin]
        terms = self.objective(rows, scaled=False)
        loss = self.gradient
        if loss is NO_DATA:
            return native_call.refusal(loss, start, terms)
        if not isinstance(loss, DataLoss):
            return "a gradient is a function of the program's own"
        if loss.task.optimiser != PLAIN:
            return "the experiment has a solver of its own"
        if self.steps > 1 and loss.fixed is None and not loss.by_turn:
            return "every step of a turn has a batch of its own"
        if self.at is not None and self.linear is not None and loss.task.l2:
            return "l2 and a linear term meet a gradient at other rows"
        return native_call.data_refusal(loss, start, terms)

    def work(self, rows: Registers) -> native.NativeWork:
        """The move as the kernel has it, in place on these rows."""
        start = rows[self.origin]
        at = None
        other = None
        if isinstance(self.at, Mix):
            at = rows[self.at.a]
            other = (rows[self.at.b], self.at.share)
        elif self.at is not None:
            at = rows[self.at]
        kernel = None
        l2 = 0.0
        if isinstance(self.gradient, DataLoss):
            task = self.gradient.task
            assert isinstance(task.native, native_call.NativeKernel)
            kernel = task.native
            l2 = task.l2
        # With `at`, the ridge is that of the rows where the gradient is taken.
        decay = l2 if at is None else 0.0
        terms = self.objective(rows, scaled=False)
        work = native_call.make_work(
            start, terms, decay, to=rows[self.to], at=at, other=other, kernel=kernel
        )
        work.l2 = l2
        if self.linear is not None:
            work.linear_scale = self.linear[0]
        return work

    def point(self, rows: Registers) -> Rows:
        """The rows at which the gradient is taken."""
        if isinstance(self.at, Mix):
            return self.at.value(rows)
        return rows[self.at or self.origin]


def alternate(rows: Registers, *moves: Move, times: int) -> dict[str, Rows]:
    """All rows after `times` turns; in each turn every move is made once, in the order given.

    A move sees the rows as the moves before it left them. The rows given are not changed.

    >>> to_mean = Move("x", NO_DATA, lr=0.5, prox=(1.0, "y"))
    >>> to_x = Move("y", NO_DATA, lr=0.5, prox=(1.0, "x"))
    >>> rows = {"x": torch.tensor([[0.0]]), "y": torch.tensor([[8.0]])}
    >>> after = alternate(rows, to_mean, to_x, times=1)
    >>> after["x"].item(), after["y"].item()
    (4.0, 6.0)
    """
    _check(rows, moves)
    reason = refusal(rows, moves)
    _remember(moves, reason)
    if reason is None:
        return _in_kernel(rows, moves, times)
    steps: dict[DataLoss, int] = {}  # how many steps of each gradient all turns take
    for move in moves:
        if isinstance(move.gradient, DataLoss):
            steps[move.gradient] = steps.get(move.gradient, 0) + times * move.steps
    for gradient, count in steps.items():
        gradient.expect(count)
    current = dict(rows)
    for turn in range(times):
        for move in moves:
            current[move.to] = move.value(current, turn)
    return current


def _in_kernel(rows: Registers, moves: Sequence[Move], times: int) -> dict[str, Rows]:
    """All turns in the native kernel, in place on copies of the rows.

    A data loss gives one batch for each time, which serves all steps of the move.
    """
    after = {}
    for name, value in rows.items():
        after[name] = value.clone(memory_format=torch.contiguous_format)
    works = [move.work(after) for move in moves]
    on_data: list[tuple[DataLoss, native.NativeWork]] = []
    for move, work in zip(moves, works, strict=True):
        if isinstance(move.gradient, DataLoss):
            terms = move.objective(after, scaled=False)
            move.gradient.begin(after[move.origin], replace(terms, steps=times * move.steps))
            on_data.append((move.gradient, work))
    dtype = after[moves[0].to].dtype
    for first in range(0, times, native_call.AHEAD):
        count = min(native_call.AHEAD, times - first)
        for loss, work in on_data:
            batches = [loss.fixed] if loss.fixed is not None else []
            if not batches:
                batches = list(map(loss.batch_of, range(first, first + count)))
            native_call.give(work, batches, dtype)
        native.alternate(works, count, dtype)
    for loss, _ in on_data:
        loss.skip(times)
    return after


def _check(rows: Registers, moves: Sequence[Move]) -> None:
    """Refuse moves of rows that are not there, and steps at a fixed point."""
    for move in moves:
        unknown = sorted(move.names - rows.keys())
        if unknown:
            have = ", ".join(sorted(rows))
            hint = meant(unknown[0], rows)
            raise ProgramError(f"a move names the rows {unknown[0]!r}{hint}; there are {have}.")
        if move.at is not None and (move.steps != 1 or move.method != "gradient" or move.tol):
            raise ProgramError(
                f"the move of {move.to!r} takes its gradient at other rows, so it is one plain "
                "step; leave steps, method and tol at their defaults."
            )


def _remember(moves: Sequence[Move], reason: str | None) -> None:
    """Let the task say that its steps ran by turns, and why the kernel did not take them."""
    for move in moves:
        if not isinstance(move.gradient, DataLoss):
            continue
        used = move.gradient.task.solvers
        if reason is None:
            used.setdefault("native by turns", {})
        else:
            used.setdefault("by turns", {"native by turns": reason})


def refusal(rows: Registers, moves: Sequence[Move]) -> str | None:
    """Why the native kernel cannot make these moves; None if it can."""
    if len(moves) > native.MAX_MOVES:
        return f"there are more than {native.MAX_MOVES} moves"
    if not any(isinstance(move.gradient, DataLoss) for move in moves):
        return "no move is on data"
    if len({(value.shape, value.dtype) for value in rows.values()}) > 1:
        return "the rows differ in shape or type"
    for move in moves:
        reason = move.refusal(rows)
        if reason is not None:
            return reason
    return None
