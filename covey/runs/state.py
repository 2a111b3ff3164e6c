"""Where runs stand between two rounds, as one value.

An assignment moves them all from one round to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, overload

from torch import Tensor

from covey.links.meter import Meter
from covey.runs.choice import Chosen
from covey.runs.devices import Sums
from covey.runs.observed import Observed
from covey.runs.record import Round
from covey.runs.totals import Totals


@dataclass(frozen=True, eq=False)
class History(Sequence[Round]):
    """The records of one seed: all of them, or the last ones and a way to read those before."""

    held: tuple[Round, ...] = ()
    before: int = 0
    """How many are not held."""
    read: Callable[[int], Round] | None = None
    """A record that is not held, by its round."""

    def __len__(self) -> int:
        return self.before + len(self.held)

    @overload
    def __getitem__(self, place: int) -> Round: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, place: int | slice) -> Round | tuple[Round, ...]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return tuple(self[each] for each in places)
        if places >= self.before or self.read is None:
            return self.held[places - self.before]
        return self.read(places)


@dataclass(frozen=True, eq=False)
class State:
    """The rows, records and choices of every seed.

    `w` are the global rows, [seeds, P]. `chosen` are the choices of each seed, by the label under
    which the runtime holds the rows. `scored` has, for each seed and model, the last scored round
    and how every device did in it. `meters` are what each seed has sent, `totals` the same by node;
    they are None in a run that began before nodes were counted. `observed` are the other figures of
    nodes in the last round, None where it was not scored.
    """

    w: Tensor
    round: int
    histories: tuple[History, ...]
    chosen: tuple[dict[str, Chosen], ...]
    scored: tuple[dict[str, tuple[int, Sums]], ...]
    meters: tuple[Meter, ...]
    totals: tuple[Totals | None, ...]
    observed: tuple[Observed | None, ...]

    @staticmethod
    def start(w: Tensor) -> State:
        """Before the first round, from these rows."""
        count = len(w)
        return State(
            w=w.clone(),
            round=0,
            histories=(History(),) * count,
            chosen=tuple({} for _ in range(count)),
            scored=tuple({} for _ in range(count)),
            meters=tuple(Meter() for _ in range(count)),
            totals=tuple({} for _ in range(count)),
            observed=(None,) * count,
        )

    def of_seed(self, copy: int) -> State:
        """The state of one seed alone."""
        w = self.w[copy : copy + 1]
        return State(
            w,
            self.round,
            (self.histories[copy],),
            (self.chosen[copy],),
            (self.scored[copy],),
            (self.meters[copy],),
            (self.totals[copy],),
            (self.observed[copy],),
        )

    def with_row(self, copy: int, row: Tensor) -> State:
        """The same, but for the global row of one seed."""
        w = self.w.clone()
        w[copy] = row
        return replace(self, w=w)

    def with_seed(self, copy: int, seed: State) -> State:
        """The same, but for one seed; `seed` is the state of that seed alone."""
        return State(
            w=self.with_row(copy, seed.w[0]).w,
            round=seed.round,
            histories=_with(self.histories, copy, seed.histories[0]),
            chosen=_with(self.chosen, copy, seed.chosen[0]),
            scored=_with(self.scored, copy, seed.scored[0]),
            meters=_with(self.meters, copy, seed.meters[0]),
            totals=_with(self.totals, copy, seed.totals[0]),
            observed=_with(self.observed, copy, seed.observed[0]),
        )


T = TypeVar("T")


def _with(values: tuple[T, ...], position: int, value: T) -> tuple[T, ...]:
    """The values, but for one of them."""
    out = list(values)
    out[position] = value
    return tuple(out)
