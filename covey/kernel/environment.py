"""The environment of a run: which devices can be asked, which answers count, how long they take.

A runtime tells its environment what happens, and obeys it. The default admits everybody and takes
no time. Another one may have a bandwidth, a deadline and a virtual clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from covey.kernel.nodes import Call
from covey.types import Ids


class Participation(Protocol):
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
    admission: Participation | None
    moved: Tensor = field(init=False)
    """Weights moved, a weight as often as it moved."""
    sent: Tensor = field(init=False)
    """Bytes of their answers as encoded."""
    elapsed: Tensor = field(init=False)
    """Seconds that they waited for their own children, [m, 2]."""

    def __post_init__(self) -> None:
        nodes = len(self.ids)
        self.moved = torch.zeros(nodes, dtype=torch.float64)
        self.sent = torch.zeros(nodes, dtype=torch.float64)
        self.elapsed = torch.zeros(nodes, 2, dtype=torch.float64)

    def add(self, part: slice, call: Call) -> None:
        """Record the work of some of the nodes."""
        moved = call.moved
        if isinstance(moved, Tensor):
            moved = moved.cpu().double()
        self.moved[part] = moved
        self.elapsed[part] = call.elapsed

    def heard(self, positions: Tensor, lengths: Tensor) -> None:
        """Record messages of some of the nodes; no two workers have the same nodes."""
        self.sent[positions] += lengths

    def ratio(self, part: slice) -> Tensor | None:
        """The pruning ratios admitted for some of the nodes.

        None where idle nodes run as well: no ratio is admitted for them.
        """
        if self.admission is None:
            return None
        ratio = self.admission.ratio
        if len(ratio) != len(self.ids):
            return None
        return ratio[part]


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


class Environment:
    """The contract between a runtime and what surrounds its devices.

    This one admits everybody, every answer counts, and nothing takes time; others override that.
    """

    ideal: ClassVar[bool] = True
    """Whether it is as said above; a runtime then tells it nothing."""

    def begin(self) -> None:
        """Start a round."""

    def admit(self, tier: str, ids: Ids, round: int) -> Participation | None:
        """The admission of nodes of a tier that are asked together; None: all, on no condition."""
        return None

    def answered(self, answers: Answered) -> tuple[Tensor, Tensor | None]:
        """Seconds that each asker waits, [n, 2], and a mask [k] of the answers that count.

        None for the mask: all count.
        """
        return torch.zeros(answers.askers, 2, dtype=torch.float64), None

    def read(self, elapsed: Tensor) -> tuple[Sequence[Any] | None, dict[str, Tensor]]:
        """The record of the round for each seed; None: nothing to record.

        Beside it are figures of the round by name, float64 with one for every device of all seeds.
        `elapsed` is how long the servers waited, [seeds, 2].
        """
        return None, {}
