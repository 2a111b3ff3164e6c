"""Where runs stand between two rounds, as one value.

An assignment moves them all from one round to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from torch import Tensor

from covey.links.meter import Meter
from covey.runs.models import Chosen
from covey.runs.scores.figures import Observed, Sums, Totals
from covey.runs.scores.record import Round


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
class SeedState:
    """Where one seed stands, but for its global row."""

    history: History = field(default_factory=History)
    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    """Its choices, by the label under which the runtime holds the rows."""
    scored: Mapping[str, tuple[int, Sums]] = field(default_factory=dict)
    """For each model, the round that was scored last and how every device did in it."""
    meter: Meter = field(default_factory=Meter)
    """What it has sent."""
    totals: Totals = field(default_factory=dict)
    """The same by node."""
    observed: Observed | None = None
    """Other figures of nodes in the last round; None where it was not scored."""


@dataclass(frozen=True, eq=False)
class State:
    """Where all seeds stand; `w` are their global rows, [seeds, P]."""

    w: Tensor
    round: int
    seeds: tuple[SeedState, ...]

    def of_seed(self, copy: int) -> State:
        """The state of one seed alone."""
        return State(self.w[copy : copy + 1], self.round, (self.seeds[copy],))

    def with_seed(self, copy: int, seed: State) -> State:
        """The same, but for one seed; `seed` is the state of that seed alone."""
        w = self.w.clone()
        w[copy] = seed.w[0]
        seeds = (*self.seeds[:copy], *seed.seeds, *self.seeds[copy + 1 :])
        return State(w, seed.round, seeds)
