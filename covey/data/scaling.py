"""The scaling of measured values to a model's inputs: (value - shift) * factor.

It is the same for every device, and new devices use it too. Statistics come from the devices'
training parts alone; "paper" is labelled, because it looks at test examples as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from covey.errors import DataError, meant

Normalise = Literal["none", "unit", "half", "channel", "pixel", "standard", "paper"]
"""none: as measured. unit: pixels in [0, 1]. half: in [-1, 1]. channel: mean 0 and deviation 1 of
each channel; pixel: of each pixel, by (x - mean) / (std + 0.001) of pixels in [0, 255]; standard:
of each feature. The last three by training parts alone; paper: as pixel, but over all examples,
test examples too, as pFedMe's public code has it."""

_EPS = 1e-3  # of pFedMe's public code


@dataclass(frozen=True, eq=False)
class Scaling:
    """x = (value - shift) * factor.

    Both broadcast against one example. Measured ones are float64.
    """

    kind: str
    shift: Tensor
    factor: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """The inputs of a model, float32 where values are whole numbers."""
        if values.is_floating_point():
            x = values
        else:
            x = values.to(torch.float32)
        if self.kind == "none":
            return x
        return (x - self.shift.to(x.dtype)).mul_(self.factor.to(x.dtype))

    def undone(self, x: Tensor) -> Tensor:
        """The measured values of scaled ones, in their type."""
        return x / self.factor.to(x.dtype) + self.shift.to(x.dtype)

    def on(self, device: torch.device) -> Scaling:
        """The same, for values there."""
        return Scaling(self.kind, self.shift.to(device), self.factor.to(device))

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"kind": self.kind, "shift": self.shift.tolist(), "factor": self.factor.tolist()}

    @staticmethod
    def read(facts: Mapping[str, Any] | None) -> Scaling | None:
        """What `as_dict` wrote; None of None."""
        if facts is None:
            return None
        shift, factor = (
            torch.tensor(facts[key], dtype=torch.float64) for key in ("shift", "factor")
        )
        return Scaling(facts["kind"], shift, factor)


def scaling(kind: Normalise, values: Tensor, train: Tensor) -> Scaling:
    """The scaling of this kind for `values` [n, ...].

    `train` numbers the examples that devices train on.

    >>> pixels = torch.tensor([[0, 255], [255, 255]], dtype=torch.uint8)
    >>> scaling("unit", pixels, torch.tensor([0]))(pixels)
    tensor([[0., 1.],
            [1., 1.]])
    """
    if kind not in get_args(Normalise):
        raise DataError(
            f"normalise = {kind!r}{meant(kind, get_args(Normalise))}: "
            f"choose one of {', '.join(map(repr, get_args(Normalise)))}."
        )
    one = torch.ones(())
    zero = torch.zeros(())
    if kind == "none":
        return Scaling(kind, zero, one)
    if kind == "unit":
        return Scaling(kind, zero, one / 255)
    if kind == "half":
        return Scaling(kind, one * 127.5, one / 127.5)
    used = torch.unique(train)
    if kind == "paper":
        used = torch.arange(len(values))
    mean, deviation = _moments(values, used, _axes(kind, values.ndim))
    if kind in ("pixel", "paper"):
        return Scaling(kind, mean, 1 / (deviation + _EPS))
    return Scaling(
        kind,
        mean,
        torch.where(deviation > 0, 1 / deviation, torch.ones_like(deviation)),
    )


def _axes(kind: Normalise, ndim: int) -> tuple[int, ...]:
    """The axes over which the moments are taken."""
    if kind != "channel":
        return (0,)
    if ndim == 4:
        return (0, 2, 3)
    return tuple(range(ndim))  # one channel


def _moments(values: Tensor, used: Tensor, over: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation in float64, computed in pieces.

    A whole data set in float64 might not fit into memory.
    """
    array = values.numpy()
    where = used.numpy()
    shape = tuple(1 if axis in over else size for axis, size in enumerate(array.shape))
    total = np.zeros(shape)
    count = 0
    square = np.zeros(shape)
    if len(where):
        centre = array[where[:1]].astype(np.float64).mean(axis=tuple(over), keepdims=True)
    else:
        centre = np.zeros(shape)
    for start in range(0, len(where), 4096):
        piece = array[where[start : start + 4096]].astype(np.float64) - centre
        total += piece.sum(axis=tuple(over), keepdims=True)
        square += np.square(piece).sum(axis=tuple(over), keepdims=True)
        count += piece.size // max(total.size, 1)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(square / max(count, 1) - mean**2, 0))
    return torch.as_tensor((mean + centre)[0]), torch.as_tensor(deviation[0])
