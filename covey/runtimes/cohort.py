"""The nodes of a cohort as a record holds them: a list, or few words for many.

A cohort of more than `MOST` nodes is recorded as ranges of ids. Where it has too many ranges, it is
recorded as a count and a hash: the seed, the round and the ask decide who is drawn, so the same
experiment draws the same nodes again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from covey.errors import ConfigError

MOST = 1000
"""The largest cohort whose ids are listed."""
_RANGES = 250
"""The most ranges that are listed."""


@dataclass(frozen=True)
class ManyIds(Sequence[int]):
    """Ids in rising order: ranges [first, stop), or none of them and a hash of the ids."""

    size: int
    ranges: tuple[tuple[int, int], ...] = ()
    digest: str = ""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        self._check_listed()
        for first, stop in self.ranges:
            yield from range(first, stop)

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        return list(self)[position]

    @property
    def listed(self) -> bool:
        """Whether the ids are here, not only their hash."""
        return not self.digest

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        if self.listed:
            return {"count": self.size, "ranges": [list(pair) for pair in self.ranges]}
        return {"count": self.size, "digest": self.digest}

    def _check_listed(self) -> None:
        if not self.listed:
            raise ConfigError(
                f"the ids of this cohort are not recorded: it has {self.size}, and more than "
                f"{MOST} are recorded as a hash; run the round again to see them."
            )


def recorded(ids: npt.NDArray[np.int64]) -> Sequence[int]:
    """Different ids in rising order, in the form of a record.

    >>> recorded(np.arange(3))
    [0, 1, 2]
    >>> recorded(np.arange(5000)).as_dict()
    {'count': 5000, 'ranges': [[0, 5000]]}
    >>> recorded(np.arange(0, 5000, 2)).as_dict()
    {'count': 2500, 'digest': 'fa4ec7beff3c7688'}
    """
    if len(ids) <= MOST:
        out: list[int] = ids.tolist()
        return out
    ends = np.flatnonzero(np.diff(ids) != 1)
    if len(ends) < _RANGES:
        starts = ids[np.concatenate([[0], ends + 1])]
        stops = ids[np.concatenate([ends, [len(ids) - 1]])] + 1
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        return ManyIds(len(ids), ranges=tuple(pairs))
    little = ids.astype("<i8")
    digest = hashlib.blake2b(little.tobytes(), digest_size=8).hexdigest()
    return ManyIds(len(ids), digest=digest)


def read(facts: Sequence[int] | Mapping[str, Any]) -> Sequence[int]:
    """A cohort from a file: a list, or what `ManyIds.as_dict` gave."""
    if not isinstance(facts, Mapping):
        return facts
    ranges = [(int(first), int(stop)) for first, stop in facts.get("ranges", [])]
    return ManyIds(int(facts["count"]), tuple(ranges), str(facts.get("digest", "")))


def plain(cohort: Sequence[int]) -> Any:
    """A cohort as JSON can hold it."""
    if isinstance(cohort, ManyIds):
        return cohort.as_dict()
    return cohort
