"""The scaling of measured values to a model's inputs: (value - shift) * factor.

It is the same for every device, and new devices use it too. Statistics come from the devices'
training parts alone; "paper" is labelled, because it looks at test examples as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.errors import DataError, meant

Normalise = Literal["none", "unit", "half", "channel", "pixel", "standard", "paper"]
"""none: as measured. unit: pixels in [0, 1]. half: in [-1, 1]. channel: mean 0 and deviation 1 of
each channel; pixel: of each pixel, by (x - mean) / (std + 0.001) of pixels in [0, 255]; standard:
of each feature. The last three by training parts alone; paper: as pixel, but over all examples,
test examples too, as pFedMe's public code has it."""

Floats = npt.NDArray[np.float64]

_BLOCK = 4096  # images that are scaled at once, so that no second copy of all of them is made
_EPS = 1e-3  # of pFedMe's public code
_PIECE = 2**22  # values in float64 at a time: a whole data set might not fit into memory


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
        x = values if values.is_floating_point() else values.to(torch.float32)
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
        double = partial(torch.tensor, dtype=torch.float64)
        shift = double(facts["shift"])
        factor = double(facts["factor"])
        return Scaling(facts["kind"], shift, factor)


@dataclass(frozen=True, eq=False)
class Moments:
    """Of each column: how many values it has, their mean, and their squares around it, summed."""

    count: Floats
    mean: Floats
    squares: Floats

    @staticmethod
    def of(values: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> Moments:
        """The moments of some of the values [n, ...]; NaN is none."""
        pieces = []
        step = max(1, _PIECE * len(values) // max(values.size, 1))
        for start in range(0, max(len(rows), 1), step):
            piece = values[rows[start : start + step]].astype(np.float64)
            pieces.append(_together(1.0 - np.isnan(piece), piece, np.zeros_like(piece)))
        return Moments.merged(pieces)

    def each(self, change: Callable[[Floats], Floats]) -> Moments:
        """The same change of all three."""
        return Moments(change(self.count), change(self.mean), change(self.squares))

    @staticmethod
    def merged(parts: Sequence[Moments]) -> Moments:
        """The moments of the values of all parts."""
        arrays = [(part.count, part.mean, part.squares) for part in parts]
        return _together(*map(np.stack, zip(*arrays, strict=True)))

    def scaling(self, rows: int) -> Scaling:
        """The standard scaling of these columns, of which gaps in so many rows become means."""
        deviation = torch.as_tensor(np.sqrt(self.squares / max(rows, 1)))
        factor = torch.where(deviation > 0, 1 / deviation, torch.ones_like(deviation))
        return Scaling("standard", torch.as_tensor(self.mean), factor)


def _together(count: Floats, mean: Floats, squares: Floats) -> Moments:
    """The moments of the union of sets that have these, [sets, ...].

    They are taken around one of the means, so that equal values deviate by exactly 0.
    """
    total = count.sum(axis=0)
    centre = np.where(count > 0, mean, np.inf).min(axis=0, initial=np.inf)
    centre = np.where(total > 0, centre, 0)
    away = np.where(count > 0, mean - centre, 0)
    shift = (count * away).sum(axis=0) / np.maximum(total, 1)
    between = count * np.square(away - shift)
    around = squares.sum(axis=0) + between.sum(axis=0)
    return Moments(total, centre + shift, around)


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
    used = torch.arange(len(values)) if kind == "paper" else torch.unique(train)
    moments = Moments.of(values.numpy(), used.numpy())
    if kind == "channel":  # one, unless examples are [channels, height, width]
        channels = values.shape[1] if values.ndim == 4 else 1
        pixels = moments.each(lambda moment: moment.reshape(channels, -1).T)
        shape = (channels, *[1] * (values.ndim - 2))
        together = _together(pixels.count, pixels.mean, pixels.squares)
        moments = together.each(lambda moment: moment.reshape(shape))
    if kind in ("pixel", "paper"):
        deviation = np.sqrt(moments.squares / np.maximum(moments.count, 1))
        return Scaling(kind, torch.as_tensor(moments.mean), torch.as_tensor(1 / (deviation + _EPS)))
    return replace(moments.scaling(int(moments.count.max(initial=0))), kind=kind)


def scaled(images: Tensor, how: Scaling) -> Tensor:
    """Images of bytes, or other examples, as float32; block by block.

    >>> images = torch.tensor([[0, 255]], dtype=torch.uint8)
    >>> scaled(images, scaling("unit", images, torch.tensor([0])))
    tensor([[0., 1.]])
    """
    x = torch.empty(images.shape, dtype=torch.float32)
    for start in range(0, len(x), _BLOCK):
        x[start : start + _BLOCK] = how(images[start : start + _BLOCK])
    return x
