"""Dropout by address: masks are made outside of the forward pass and passed in as inputs.

A site is a place of the forward pass where something is dropped. Sites are numbered in the order in
which the pass meets them. The mask of a site depends on the draw of the batch and on that number
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.engine.batches import Draw
from covey.errors import ModelError

_LEVELS = 2**16
"""A probability is a multiple of 1 / _LEVELS: one hash of 64 bits serves four entries."""
_STREAM = 0
"""The word of masks in an address; that of augmentation is another."""
_ALPHA = 1.7580993408473766
"""AlphaDropout puts its negative in place of a dropped entry: the limit of SELU at -infinity."""


def levels(p: float) -> int:
    """The probability that is used for p, in parts of 65,536: the nearest.

    >>> levels(0.5), levels(1e-9)
    (32768, 0)
    """
    nearest = round(p * _LEVELS)
    if nearest >= _LEVELS:
        raise ModelError(f"dropout with p = {p} leaves nothing to learn; give a p below 1.")
    return nearest


def is_site(p: float) -> bool:
    """Whether anything is dropped: a probability below 1 / 131,072 counts as 0."""
    return levels(p) > 0


@dataclass(frozen=True)
class Site:
    """One place of the forward pass where entries are dropped with probability p."""

    p: float
    fixed: tuple[int, ...]
    """The sizes of a mask for no examples."""
    per_example: tuple[int, ...]
    """By how much each of the sizes grows with an example."""
    alpha: bool = False
    """Whether it is AlphaDropout, whose mask is not scaled."""

    def shape(self, examples: int) -> tuple[int, ...]:
        """The shape of a mask for one model and so many examples."""
        both = zip(self.fixed, self.per_example, strict=True)
        return tuple(size + examples * growth for size, growth in both)

    @property
    def scale(self) -> float:
        """What a kept entry is multiplied by: the inverse of its probability."""
        if self.alpha:
            return 1.0
        return _LEVELS / (_LEVELS - levels(self.p))


@dataclass(frozen=True)
class Met:
    """A site that a pass of so many examples met, with the shape of its mask."""

    p: float
    shape: tuple[int, ...]
    alpha: bool


def sites(two: Sequence[Met], three: Sequence[Met]) -> tuple[Site, ...]:
    """The sites that passes of two and of three examples met.

    >>> [site] = sites([Met(0.5, (2, 7), False)], [Met(0.5, (3, 7), False)])
    >>> site.shape(10)
    (10, 7)
    """
    kinds = [[(met.p, len(met.shape), met.alpha) for met in passed] for passed in (two, three)]
    if kinds[0] != kinds[1]:
        raise ModelError(
            "which entries the model drops depends on the number of examples; drop in the same "
            "places in every pass."
        )
    out = []
    for first, second in zip(two, three, strict=True):
        growth = [more - less for less, more in zip(first.shape, second.shape, strict=True)]
        fixed = [size - 2 * each for size, each in zip(first.shape, growth, strict=True)]
        out.append(Site(first.p, tuple(fixed), tuple(growth), first.alpha))
    return tuple(out)


def masks(
    places: Sequence[Site], draw: Draw, examples: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """A mask for each site, [n, *shape]: 0 where an entry is dropped, else the site's scale."""
    out = []
    for number, site in enumerate(places):
        shape = site.shape(examples)
        entries = math.prod(shape)
        bits = draw.at(_STREAM, number).bits((entries + 3) // 4)
        # Four signed numbers of 16 bits, each uniform from -32,768 on.
        numbers = bits.view(torch.int16)[:, :entries]
        keep = numbers >= levels(site.p) - _LEVELS // 2
        mask = keep.to(dtype).mul_(site.scale)
        out.append(mask.view(len(mask), *shape))
    return tuple(out)


def drop(x: Tensor, mask: Tensor, alpha_p: float | None = None) -> Tensor:
    """x with dropped entries; for AlphaDropout `alpha_p` is its p."""
    if alpha_p is None:
        return x * mask
    p = levels(alpha_p) / _LEVELS
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    offset = (mask - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return x * (mask * scale) + offset
