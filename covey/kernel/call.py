"""What one call of a program did besides answering.

The runtime owns it; the author's view of it is `Nodes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Call:
    """Everything that n nodes kept, noted and worked while their program ran."""

    nodes: int
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Rows by name, [n, ...]."""
    recalled: set[str] = field(default_factory=set)
    """The names that were recalled from before this call."""
    needs: dict[str, set[str]] = field(default_factory=dict)
    """The names that predictions with a model recalled, by model."""
    notes: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """Figures for the round's record, [n] each time."""
    reports: dict[str, Tensor] = field(default_factory=dict)
    """Figures of every single node, [n, k], for whoever plays the program."""
    gradients: Tensor | float = 0.0
    """How many gradients each node evaluated on its data, [n] or the same for all."""
    moved: Tensor | float = 0.0
    """How many weights each node moved, a weight as often as it moved.

    It is counted if the environment asks for it.
    """
    ratio: Tensor | None = None
    """The pruning ratio that the environment admits for each node, [n]."""
    elapsed: Tensor = field(init=False)
    """Seconds that each node waited for its children on the virtual clock, [n, 2]."""

    def __post_init__(self) -> None:
        self.elapsed = torch.zeros(self.nodes, 2, dtype=torch.float64)

    def worked(self, gradients: Tensor | float, moved: Tensor | float) -> None:
        """Count gradients that nodes evaluated, and weights that they moved."""
        self.gradients = self.gradients + gradients
        self.moved = self.moved + moved

    def needed_for(self, model: str) -> None:
        """Record which kept rows predictions with a model need.

        They are those that were recalled since the last such call.
        """
        names = self.needs.setdefault(model, set())
        names.update(self.recalled)
        self.recalled.clear()
