"""Augmentation by address: a training batch is changed before the forward pass.

Random numbers come from the draw of the batch, as masks of dropout do. Nothing is augmented where
models are scored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.batches import Draw
from covey.engine.modules import rowwise
from covey.engine.modules.generator import UnaddressedDraw
from covey.errors import ConfigError
from covey.fields import Count, Positive, check, named_kind, read
from covey.origin import FAULTS, told

_STREAM = 1
"""The word of augmentation in an address; that of dropout is another."""


class RandomNumbers:
    """The random numbers of N examples, which an augmentation asks for; every call gives others.

    u(k) gives k uniform numbers in [0, 1) per example, [N, k]; u.normal(k) standard normal ones.
    """

    def __init__(self, draw: Draw, examples: int, dtype: torch.dtype) -> None:
        self._draw = draw
        self._examples = examples  # of each device
        self._dtype = dtype
        self._calls = 0

    def __call__(self, count: int) -> Tensor:
        """Uniform numbers in [0, 1), [N, count]."""
        mantissas = (self._bits(count) >> 40) & (2**24 - 1)
        return mantissas.to(self._dtype) * 2.0**-24

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers, [N, count] (Box-Muller)."""
        bits = self._bits(2 * count)
        uniform = ((bits >> 11) & (2**53 - 1)).double() * 2.0**-53
        u, v = uniform.chunk(2, dim=1)
        radius = torch.sqrt(-2 * rowwise.elementwise(torch.log1p)(-u))
        angle = 2 * math.pi * v
        return (radius * rowwise.elementwise(torch.cos)(angle)).to(self._dtype)

    def _bits(self, count: int) -> Tensor:
        """Random bits, int64 [N, count]."""
        draw = self._draw.at(self._calls)
        self._calls += 1
        return draw.bits(self._examples * count).reshape(-1, count)


class Augmentation(ABC):
    """A change of training examples."""

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def apply(self, x: Tensor, u: RandomNumbers) -> Tensor:
        """The changed examples, [N, ...] as they came."""

    @abstractmethod
    def check(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """An error if it makes no sense for examples of this shape and type."""


@dataclass(frozen=True)
class Crop(Augmentation):
    """A window of the image's size from the image with a border of `pad` zeros."""

    pad: Count = 4  # width of the border of zeros

    def check(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Images only."""
        _check_images("crop", shape)
        if not 1 <= self.pad <= min(shape[-2:]):
            rule = f"a whole number from 1 to {min(shape[-2:])}, the size of an image"
            raise ConfigError(f"augment.pad = {self.pad}; give {rule}.")

    def apply(self, x: Tensor, u: RandomNumbers) -> Tensor:
        """The windows."""
        height, width = x.shape[-2:]
        images = x.reshape(len(x), -1, height, width)
        padded = F.pad(images, (self.pad,) * 4)
        corner = (u(2) * (2 * self.pad + 1)).long()
        rows = corner[:, :1] + torch.arange(height, device=x.device)
        columns = corner[:, 1:] + torch.arange(width, device=x.device)
        number = torch.arange(len(x), device=x.device)
        by_point = padded[number[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return by_point.movedim(-1, 1).reshape(x.shape)


@dataclass(frozen=True)
class Flip(Augmentation):
    """Left and right change places, with probability 1/2."""

    def check(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Images only."""
        _check_images("flip", shape)

    def apply(self, x: Tensor, u: RandomNumbers) -> Tensor:
        """Some examples turned."""
        turned = u(1) < 0.5
        ones = [1] * (x.dim() - 2)
        return torch.where(turned.view(-1, 1, *ones), x.flip(-1), x)


@dataclass(frozen=True)
class GaussianNoise(Augmentation):
    """Gaussian noise of standard deviation `sd`, added to every number."""

    sd: Positive = 0.1  # standard deviation

    def check(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Numbers only."""
        if not dtype.is_floating_point:
            raise ConfigError('augment: "noise" needs numbers, but examples are whole numbers.')

    def apply(self, x: Tensor, u: RandomNumbers) -> Tensor:
        """Examples with noise."""
        size = x[0].numel() if len(x) else 0
        return x + self.sd * u.normal(size).view_as(x)


@dataclass(frozen=True)
class OwnAugmentation(Augmentation):
    """A function of the user's own: function(x, u, **options)."""

    function: Callable[..., Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What errors call it."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def check(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Nothing is known of it before it runs."""

    def apply(self, x: Tensor, u: RandomNumbers) -> Tensor:
        """What the function gives; an error if it fails or changes the shape."""
        try:
            out: object = self.function(x, u, **self.options)
        except UnaddressedDraw:
            raise
        except FAULTS as error:
            raise ConfigError(f"augment: {self.name} fails with {told(error)}") from error
        if not isinstance(out, Tensor):
            raise ConfigError(
                f"augment: {self.name} returns {type(out).__name__}; return the examples."
            )
        if out.shape != x.shape or out.dtype != x.dtype:
            have = f"{tuple(out.shape)} of {out.dtype}"
            want = f"{tuple(x.shape)} of {x.dtype}"
            raise ConfigError(f"augment: {self.name} gives {have} for {want}; keep the shape.")
        return out


Augment = str | Mapping[str, Any] | Callable[..., Tensor] | Augmentation
"""A name ("flip"), a table ({"name": "crop", "pad": 2}), or a function of one's own."""
NAMED: dict[str, type[Augmentation]] = {"crop": Crop, "flip": Flip, "noise": GaussianNoise}


def augmentations(value: Augment | list[Augment] | tuple[Augment, ...]) -> tuple[Augmentation, ...]:
    """What a setting means, in the order in which it is applied.

    >>> augmentations(["flip", {"name": "crop", "pad": 2}])
    (Flip(), Crop(pad=2))
    """
    items = value if isinstance(value, list | tuple) else [value]
    out = []
    for item in items:
        if isinstance(item, Augmentation):
            out.append(item)
            continue
        options = dict(item) if isinstance(item, Mapping) else {"name": item}
        name = options.pop("name", None)
        if callable(name):
            out.append(OwnAugmentation(name, options))
        else:
            out.append(read(named_kind(NAMED, name, "augment"), options, "augment."))
    return tuple(out)


def augmented(steps: Sequence[Augmentation], x: Tensor, draw: Draw) -> Tensor:
    """The batch x [n, B, ...] with every change made, in order."""
    if not len(x):
        return x
    for number, step in enumerate(steps):
        x = _changed(step, x, draw.at(_STREAM, number))
    return x


def _changed(step: Augmentation, x: Tensor, draw: Draw) -> Tensor:
    rows, size = x.shape[:2]
    if isinstance(step, OwnAugmentation) and x.device.type == "cpu" and rows > 1:
        # Bits of a function that is not known may depend on how many rows there are.
        each = [slice(i, i + 1) for i in range(rows)]
        return torch.cat([_changed(step, x[row], draw.take(row)) for row in each])
    numbers = RandomNumbers(draw, size, x.dtype if x.is_floating_point() else torch.float32)
    return step.apply(x.flatten(0, 1), numbers).reshape(x.shape)


def _check_images(name: str, shape: Sequence[int]) -> None:
    if len(shape) not in (2, 3):
        raise ConfigError(
            f'augment: "{name}" needs images, examples of shape [channels, height, width] or '
            f"[height, width], but these have shape {tuple(shape)}; reshape x, and let the model "
            "begin with nn.Flatten() if it takes vectors."
        )
