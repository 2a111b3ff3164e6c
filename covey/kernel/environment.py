"""What surrounds the devices of a run: who of a cohort can be asked, which answers count, and how
long they take.

A runtime tells its environment what happens, and obeys it. The default, `Ideal`, admits everybody
and takes no time. `covey.wireless.clock` is a radio cell with a bandwidth, a deadline and a virtual
clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from covey.kernel.call import Call
from covey.types import Ids


class Admission(Protocol):
    """What an environment grants to the devices of a cohort."""

    @property
    def asked(self) -> Tensor:
        """Which of the cohort are asked, bool [m]; what follows is of those alone."""
        ...

    @property
    def ratio(self) -> Tensor:
        """The part of its shared weights that each device has to prune, [k]."""
        ...


@dataclass(eq=False)
class Effort:
    """What the nodes that run a program have done for it, [m] each."""

    ids: Ids
    admission: Admission | None
    moved: Tensor = field(init=False)
    """Weights moved, a weight as often as it moved."""
    sent: Tensor = field(init=False)
    """Bytes of their answers as encoded."""
    elapsed: Tensor = field(init=False)
    """Seconds that they waited for their own children, [m, 2]."""

    def __post_init__(self) -> None:
        self.moved, self.sent = torch.zeros(2, len(self.ids), dtype=torch.float64)
        self.elapsed = torch.zeros(len(self.ids), 2, dtype=torch.float64)

    def add(self, part: slice, call: Call) -> None:
        """Record the work of some of the nodes."""
        self.moved[part] = (
            call.moved.cpu().double() if isinstance(call.moved, Tensor) else call.moved
        )
        self.elapsed[part] = call.elapsed

    def heard(self, positions: Tensor, lengths: Tensor) -> None:
        """Record messages of some of the nodes; no two workers have the same nodes."""
        self.sent[positions] += lengths

    def ratio(self, part: slice) -> Tensor | None:
        """The ratios admitted for some of the nodes; None where idle nodes run as well, for whom
        nothing is admitted.
        """
        if self.admission is None or len(self.admission.ratio) != len(self.ids):
            return None
        return self.admission.ratio[part]


@dataclass(frozen=True, eq=False)
class Answered:
    """The answers to one ask: who asked, who answered, and what that took."""

    tier: str
    """The tier of the askers."""
    below: str
    """The tier of those who answer."""
    asker: Tensor
    """The position of each answer's asker, [k]."""
    askers: int
    asker_idle: Tensor | None
    """Which askers are idle, bool [n]; None for nobody."""
    effort: Effort
    answers: Tensor
    """The positions of those who answer among those who ran, [k]."""


class Environment(Protocol):
    """The contract between a runtime and what surrounds its devices."""

    @property
    def ideal(self) -> bool:
        """Whether everybody is admitted, every answer counts and nothing takes time, so that
        nothing need be told.
        """
        ...

    def begin(self) -> None:
        """Start a round."""
        ...

    def admit(self, tier: str, ids: Ids, round: int) -> Admission | None:
        """What nodes of a tier that are asked together are granted; None where it is not this
        environment's business.
        """
        ...

    def answered(self, answers: Answered) -> tuple[Tensor, Tensor | None]:
        """Seconds that each asker waits, [n, 2], and a mask of the answers that count, [k] (None:
        all).
        """
        ...

    def read(self, elapsed: Tensor) -> list[Any] | None:
        """The record of the round for each seed, given how long the servers waited, [seeds, 2];
        None: nothing to record.
        """
        ...


class Ideal:
    """Everybody is admitted, every answer counts, nothing takes time."""

    ideal = True

    def begin(self) -> None:
        """Nothing to do."""

    def admit(self, tier: str, ids: Ids, round: int) -> Admission | None:
        """Everybody."""
        return None

    def answered(self, answers: Answered) -> tuple[Tensor, Tensor | None]:
        """At once, and all count."""
        return torch.zeros(answers.askers, 2, dtype=torch.float64), None

    def read(self, elapsed: Tensor) -> list[Any] | None:
        """Nothing."""
        return None
