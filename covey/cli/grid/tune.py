"""The settings that are tried for a method: its step sizes and its main penalty.

The fields are the levers that the algorithm states (`Algorithm.levers`). A penalty is tried around
the curvature L of the data loss, a step around the one that L and the penalties allow, and the step
of an upper model as a share of its way. The first trial is the given setting. About half of the
others cover the ranges evenly (a Halton sequence); the last ones lie around the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.advice import levers
from covey.advice.curvature import Curvature
from covey.cli.grid.axes import Axis
from covey.kernel.advice import Tie
from covey.kernel.algorithm import Algorithm

Settings = dict[str, Any]
Point = dict[str, float]
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
    """The trials of one method; `axes` are fields whose values the user has given."""

    algorithm: Algorithm
    curvature: Curvature | None
    axes: tuple[Axis, ...] = ()

    def fields(self) -> list[str]:
        """What is tuned: given fields, penalties, steps, steps of upper models."""
        own = [axis.key for axis in self.axes]
        fields = [*own, *self._penalties(), *self._steps(), *self._uppers()]
        return list(dict.fromkeys(fields))

    def trials(self, count: int, scores: Sequence[float]) -> list[Settings]:
        """The settings that can be tried by now: `scores` are those of the first trials.

        Those around the best wait until all before them are known.
        """
        first = explored(count)
        points = self._explored(first)
        if len(points) == first and len(scores) >= first:
            best = max(range(first), key=lambda number: scores[number])
            points = self._refined(points, points[best], count)
        return [self.settings(point) for point in points]

    def settings(self, point: Mapping[str, float] | None) -> Settings:
        """The values of all tuned fields at a point; None stands for the given ones."""
        if point is None:
            return self._given()
        changed: Any = self.algorithm
        out: Settings = {}
        for fields in ([axis.key for axis in self.axes], self._penalties()):
            out |= self._values(changed, fields, point)
            changed = replace(changed, **out)
        for fields in (self._steps(), self._uppers()):
            free = [field for field in fields if field not in out]
            out |= self._values(changed, free, point)
            changed = replace(changed, **out)
        return out

    def _given(self) -> Settings:
        """The values of the file, with the first of every list that the user has given."""
        values = {field: getattr(self.algorithm, field) for field in self.fields()}
        for axis in self.axes:
            if axis.is_list:
                values[axis.key] = axis.values[0]
            else:
                values[axis.key] = axis.at(0.5)
        return values

    def _explored(self, count: int) -> list[Point | None]:
        points: list[Point | None] = [None]
        return self._grown(points, count, self._halton)

    def _refined(
        self, points: list[Point | None], best: Point | None, count: int
    ) -> list[Point | None]:
        centre = best
        if centre is None:
            centre = self._position(self._given())
        middle = centre

        def near(number: int) -> Point:
            drawn = self._halton(number)
            out = {}
            for field, share in drawn.items():
                position = middle[field] + _NARROW * (share - 0.5)
                low = min(0.0, middle[field])
                high = max(1.0, middle[field])
                out[field] = min(max(position, low), high)
            return out

        return self._grown(list(points), count, near)

    def _grown(
        self, points: list[Point | None], count: int, draw: Callable[[int], Point]
    ) -> list[Point | None]:
        """More points up to `count`, as long as they give settings that are not there yet."""
        known = [self.settings(point) for point in points]
        start = len(points)
        for number in range(start, start + _ATTEMPTS + count):
            if len(points) >= count:
                break
            point = draw(number)
            settings = self.settings(point)
            if settings not in known:
                points.append(point)
                known.append(settings)
        return points

    def _halton(self, number: int) -> Point:
        """The point of this number in a sequence that fills the ranges evenly."""
        fields = self.fields()
        return {
            field: _radical_inverse(number, _PRIMES[k % len(_PRIMES)])
            for k, field in enumerate(fields)
        }

    def _values(
        self, algorithm: Algorithm, fields: Sequence[str], point: Mapping[str, float]
    ) -> Settings:
        """The values of some fields at a point, under the settings of `algorithm`."""
        out: Settings = {}
        by_key = {axis.key: axis for axis in self.axes}
        for field in fields:
            if field in by_key:
                out[field] = by_key[field].at(point[field])
                continue
            low, high = self._range(algorithm, field)
            value = levers.neat(low * (high / low) ** point[field])
            out |= dict.fromkeys([field, *self._alike(field)], value)
        return out

    def _position(self, settings: Settings) -> Point:
        """Where given values lie in their ranges, perhaps outside of 0 to 1."""
        out = {}
        by_key = {axis.key: axis for axis in self.axes}
        for field in self.fields():
            out[field] = 0.5
            value = settings[field]
            if field not in by_key and value > 0:
                low, high = self._range(self.algorithm, field)
                out[field] = math.log(value / low) / math.log(high / low)
        return out

    def _range(self, algorithm: Algorithm, field: str) -> tuple[float, float]:
        """The smallest and the largest value of a field that is tried."""
        scale, (low, high) = self._scale(algorithm, field)
        return scale * low, scale * high

    def _scale(self, algorithm: Algorithm, field: str) -> tuple[float, tuple[float, float]]:
        given = abs(float(getattr(self.algorithm, field))) or 1.0
        if self.curvature is None:
            return given, _AROUND
        for step in levers.steps(algorithm):
            if step.field == field:
                return levers.safe(step, self.curvature), _STEP
        for upper in levers.uppers(algorithm, self.curvature):
            if upper.field == field:
                return 2 * upper.best, _UPPER  # `best` goes half of the way
        for tie in self._ties():
            if tie.field == field:
                return self.curvature.typical * tie.scale, _PENALTY
        return given, _AROUND

    def _ties(self) -> list[Tie]:
        L = 1.0 if self.curvature is None else self.curvature.typical
        stated = levers.stated(self.algorithm, L).penalties
        return [tie for tie in stated if isinstance(tie, Tie)]

    def _penalties(self) -> list[str]:
        """The main penalty: the first that the algorithm states, else its field `lam`."""
        own = {axis.key for axis in self.axes}
        fields = [tie.field for tie in self._ties()] or ["lam"]
        numbers = [field for field in fields if self._is_number(field)]
        return [field for field in numbers[:1] if field not in own]

    def _alike(self, field: str) -> list[str]:
        """The fields that take the value of this one."""
        own = {axis.key for axis in self.axes}
        names = [name for tie in self._ties() if tie.field == field for name in tie.alike]
        return [name for name in names if name not in own]

    def _steps(self) -> list[str]:
        return [step.field for step in levers.steps(self.algorithm)]

    def _uppers(self) -> list[str]:
        curvature = self.curvature or Curvature(1.0, 1.0)
        return [upper.field for upper in levers.uppers(self.algorithm, curvature)]

    def _is_number(self, field: str) -> bool:
        value = getattr(self.algorithm, field, None)
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def explored(count: int) -> int:
    """How many of the trials do not depend on others.

    >>> [explored(count) for count in (1, 2, 3, 8, 12)]
    [1, 2, 3, 5, 7]
    """
    return min(count, max(count // 2 + 1, 3))


def _radical_inverse(number: int, base: int) -> float:
    """The digits of a number mirrored at the point: 1, 2, 3 in base 2 are 1/2, 1/4, 3/4."""
    out = 0.0
    share = 1.0
    while number:
        share /= base
        out += share * (number % base)
        number //= base
    return out
