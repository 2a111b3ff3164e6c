"""The settings that are tried for a method: its step sizes and its main penalty.

The fields are the levers that the algorithm states (`Algorithm.levers`). A penalty is tried around
the curvature L of the data loss, a step around the one that L and the penalties allow, and the step
of an upper model as a share of its way. The first trial is the given setting. About half of the
others cover the ranges evenly (a Halton sequence); the last ones lie around the best so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from covey.advice import levers
from covey.advice.curvature import Curvature
from covey.errors import is_number
from covey.grid.axes import Axis, Settings
from covey.grid.search import Scores
from covey.kernel.advice import Tie
from covey.kernel.algorithm import Algorithm

Point = Mapping[str, float]
"""By field, where its value lies: 0 is the lower end of its range, 1 the upper end."""

_STEP = (0.03, 2.0)  # times the step that the curvature allows
_UPPER = (0.05, 1.0)  # of the whole way
_PENALTY = (0.05, 5.0)  # times the curvature
_AROUND = (0.1, 10.0)  # times the given value, where the curvature says nothing
_NARROW = 0.35  # the share of a range in which the last trials lie
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
_ATTEMPTS = 40  # points looked at for one that gives another setting


@dataclass(frozen=True)
class Tuner:
    """The search of one method; `axes` are fields whose values the user has given."""

    algorithm: Algorithm
    count: int
    curvature: Curvature | None
    axes: Sequence[Axis] = ()

    def proposed(self, scores: Scores, running: int = 1) -> list[Settings]:
        """The settings that can be tried by now.

        Those around the best wait until all before them are known.
        """
        first = explored(self.count)
        points = self._grown([None], first, self._halton)
        if len(points) == first and all(number in scores for number in range(first)):
            best = max(range(first), key=lambda number: scores[number])
            middle = points[best] or self._position(self._given())
            points = self._grown(points, self.count, lambda number: self._near(middle, number))
        return [self._settings(point) for point in points]

    def total(self, scores: Scores) -> int:
        """The number of trials: fewer than asked for where there are no other settings."""
        settings = self.proposed(scores)
        first = explored(self.count)
        waiting = len(settings) == first and any(number not in scores for number in range(first))
        return self.count if waiting else len(settings)

    def _given(self) -> Settings:
        """The values of the file, with the first of every list that the user has given."""
        values = {field: getattr(self.algorithm, field) for field in self._fields()}
        for axis in self.axes:
            values[axis.key] = axis.values[0] if axis.values else axis.at(0.5)
        return values

    @cached_property
    def _own(self) -> dict[str, Axis]:
        """The fields whose values the user has given."""
        return {axis.key: axis for axis in self.axes}

    def _groups(self) -> list[list[str]]:
        """What is tuned: given fields, penalties, steps, steps of upper models.

        The range of a field follows from the groups before its own.
        """
        fields = [tie.field for tie in self._ties()] or ["lam"]  # of penalties, the main one first
        values = {field: getattr(self.algorithm, field, None) for field in fields}
        numbers = [field for field, value in values.items() if is_number(value) and value > 0]
        penalties = [field for field in numbers[:1] if field not in self._own]
        steps = [step.field for step in levers.steps(self.algorithm)]
        curvature = self.curvature or Curvature(1.0, 1.0)
        uppers = [upper.field for upper in levers.uppers(self.algorithm, curvature)]
        return [list(self._own), penalties, steps, uppers]

    def _fields(self) -> list[str]:
        return list(dict.fromkeys(itertools.chain(*self._groups())))

    def _settings(self, point: Point | None) -> Settings:
        """The values of all tuned fields at a point; None stands for the given ones."""
        if point is None:
            return self._given()
        changed: Any = self.algorithm
        out: Settings = {}
        for fields in self._groups():
            free = [field for field in fields if field not in out]
            out |= self._values(changed, free, point)
            changed = replace(changed, **out)
        return out

    def _values(self, algorithm: Algorithm, fields: Iterable[str], point: Point) -> Settings:
        """The values of some fields at a point, under the settings of `algorithm`."""
        out: Settings = {}
        for field in fields:
            if field in self._own:
                out[field] = self._own[field].at(point[field])
                continue
            low, high = self._range(algorithm, field)
            value = levers.neat(low * (high / low) ** point[field])
            alike = [name for tie in self._ties() if tie.field == field for name in tie.alike]
            out |= dict.fromkeys([field, *(name for name in alike if name not in self._own)], value)
        return out

    def _grown(
        self, points: list[Point | None], count: int, draw: Callable[[int], Point]
    ) -> list[Point | None]:
        """More points up to `count`, as long as they give settings that are not there yet."""
        points = list(points)
        known = [self._settings(point) for point in points]
        start = len(points)
        for number in range(start, start + _ATTEMPTS + count):
            if len(points) >= count:
                break
            point = draw(number)
            settings = self._settings(point)
            if settings not in known:
                points.append(point)
                known.append(settings)
        return points

    def _halton(self, number: int) -> Point:
        """The point of this number in a sequence that fills the ranges evenly.

        A coordinate has the digits of the number mirrored at the point: 1, 2, 3 in base 2 are 1/2,
        1/4, 3/4.
        """
        out = dict.fromkeys(self._fields(), 0.0)
        for field, base in zip(out, itertools.cycle(_PRIMES), strict=False):
            left = number
            share = 1.0
            while left:
                share /= base
                out[field] += share * (left % base)
                left //= base
        return out

    def _near(self, middle: Point, number: int) -> Point:
        """The point of this number around another; both may lie outside of the ranges."""
        out = {}
        for field, share in self._halton(number).items():
            position = middle[field] + _NARROW * (share - 0.5)
            out[field] = min(max(position, min(0.0, middle[field])), max(1.0, middle[field]))
        return out

    def _position(self, settings: Settings) -> Point:
        """Where given values lie in their ranges, perhaps outside of 0 to 1."""
        out = {}
        for field in self._fields():
            out[field] = 0.5
            value = settings[field]
            if field not in self._own and value > 0:
                low, high = self._range(self.algorithm, field)
                out[field] = math.log(value / low) / math.log(high / low)
        return out

    def _range(self, algorithm: Algorithm, field: str) -> tuple[float, float]:
        """The smallest and the largest value of a field that is tried."""
        L = self.curvature
        scale = abs(float(getattr(self.algorithm, field))) or 1.0
        low, high = _AROUND
        if L is None:
            return scale * low, scale * high
        steps = [step for step in levers.steps(algorithm) if step.field == field]
        uppers = [upper for upper in levers.uppers(algorithm, L) if upper.field == field]
        ties = [tie for tie in self._ties() if tie.field == field]
        if steps:
            scale, (low, high) = levers.safe(steps[0], L), _STEP
        elif uppers:
            scale, (low, high) = 2 * uppers[0].best, _UPPER  # `best` goes half of the way
        elif ties:
            scale, (low, high) = L.typical * ties[0].scale, _PENALTY
        return scale * low, scale * high

    def _ties(self) -> list[Tie]:
        L = 1.0 if self.curvature is None else self.curvature.typical
        stated = levers.stated(self.algorithm, L).penalties
        return [tie for tie in stated if isinstance(tie, Tie)]


def explored(count: int) -> int:
    """How many of the trials do not depend on others.

    >>> [explored(count) for count in (1, 2, 3, 8, 12)]
    [1, 2, 3, 5, 7]
    """
    return min(count, max(count // 2 + 1, 3))
