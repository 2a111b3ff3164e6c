"""What a forward pass of many models is given besides its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pass:
    """The parameters of n models, and what decides how their layers behave in this pass.

    Every tensor has rows first: a pass of n models is n passes of one model.
    """

    parameters: list[Tensor]
    """The views of the slots, [n, ...] each, in the order of the layout."""
    masks: tuple[Tensor, ...] = ()
    """One mask per dropout site in the order of the pass, [n, B, ...]; none: nothing is dropped."""
    weight: Tensor | None = None
    """[n, B], 0 for examples that only fill up a batch; None: all examples count."""
    statistics: tuple[Tensor, ...] | None = None
    """Mean and variance of each BatchNorm layer in the order of the layout, [n, 2, C] each.

    None: every layer takes those of the batch.
    """
    training: bool = False
    """Whether the pass is for a gradient; the module is in that mode."""
    recorded: dict[int, Tensor] | None = None
    """Where BatchNorm layers put the statistics that they take from the batch, by number."""

    @property
    def models(self) -> int:
        """How many models there are, n."""
        return len(self.parameters[0])

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        out = [*self.parameters, *self.masks]
        if self.weight is not None:
            out.append(self.weight)
        if self.statistics is not None:
            out += self.statistics
        return out

    def with_tensors(self, tensors: Sequence[Tensor]) -> Pass:
        """The same pass on other tensors, in the order of `tensors`."""
        remaining = iter(tensors)
        parameters = [next(remaining) for _ in self.parameters]
        masks = tuple(next(remaining) for _ in self.masks)
        weight = self.weight
        if weight is not None:
            weight = next(remaining)
        statistics = self.statistics
        if statistics is not None:
            statistics = tuple(remaining)
        return replace(
            self,
            parameters=parameters,
            masks=masks,
            weight=weight,
            statistics=statistics,
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Pass:
        """The same pass with every tensor changed."""
        return self.with_tensors([change(tensor) for tensor in self.tensors])

    def of_first(self, parameters: list[Tensor]) -> Pass:
        """The pass of the first model without the axis of rows, with these parameters."""
        without = replace(self, parameters=[])
        first = without.map(lambda tensor: tensor[0])
        return replace(first, parameters=parameters)

    def unbind(self) -> list[Pass]:
        """The passes of the single models, whose tensors have no axis of rows."""
        by_tensor = [tensor.unbind() for tensor in self.tensors]
        by_model = zip(*by_tensor, strict=True)
        return [self.with_tensors(tensors) for tensors in by_model]
