"""Who gets which share of a cell's band, without units: the problem that a round is for every cell.

A device with share b of the band keeps at most the part kept(b) = (A e - m) / (c e + s) of its
shared weights, so that it ends at the deadline: A is the time left of it after what no pruning
shortens, c the time to train all shared weights, s and m the times to send all of them and to send
their mask over the whole band, and e(b) the rate over the share as a part of the rate over the
whole band: b itself where noise has a fixed power, b log(1 + snr / b) / log(1 + snr) where it has a
density. Its ratio is rho = 1 - kept. docs/radio.md derives all of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

LEAST_SHARE = (
    1e-200  # a share by noise density is never 0: the first hertz is worth more than any price
)
LEAST_LOG = math.log(LEAST_SHARE)
_ROUNDING = 1e-12  # by which a share may seem to exceed the band
_SMALL = 1e-4  # below this snr the slope of e is a difference of nearly equal numbers; four terms of its series are exact


class Reason(IntEnum):
    """Why a device is not asked this round."""

    ASKED = 0
    TIME = 1
    COMPUTING = 2
    CHANNEL = 3
    CROWDED = 4


@dataclass(frozen=True, eq=False)
class Problem:
    """One entry per device and round, float64 [n]; those of one cell and one round are a group and
    share a band.
    """

    budget: Tensor  # A
    compute: Tensor  # c
    send: Tensor  # s
    mask: Tensor  # m
    weight: Tensor
    snr: Tensor | None  # over the whole band; None: noise of a fixed power
    group: Tensor  # int64
    groups: int
    rho_max: float

    def take(self, chosen: Tensor) -> Problem:
        """The problem of some devices alone."""
        columns = ("budget", "compute", "send", "mask", "weight", "group")
        snr = None if self.snr is None else self.snr[chosen]
        return replace(self, snr=snr, **{name: getattr(self, name)[chosen] for name in columns})

    def total(self, values: Tensor) -> Tensor:
        """Sums by group, [groups]."""
        return torch.zeros(self.groups, dtype=torch.float64).index_add(
            0, self.group, values.double()
        )

    def most(self, values: Tensor) -> Tensor:
        """The largest by group; -inf where a group is empty."""
        start = torch.full((self.groups,), -torch.inf, dtype=torch.float64)
        return start.scatter_reduce(0, self.group, values, "amax")

    def rate(self, share: Tensor) -> Tensor:
        """e(b)."""
        if self.snr is None:
            return share
        held = share.clamp(min=LEAST_SHARE)
        return torch.where(
            share > 0, share * torch.log1p(self.snr / held) / torch.log1p(self.snr), 0.0
        )

    def rate_slope(self, share: Tensor) -> Tensor:
        """e'(b)."""
        if self.snr is None:
            return torch.ones_like(share)
        return _psi(self.snr / share.clamp(min=LEAST_SHARE)) / torch.log1p(self.snr)

    def kept(self, share: Tensor) -> Tensor:
        """The part of the shared weights that meets the deadline exactly; above 1 where there is
        time to spare.
        """
        e = self.rate(share)
        return (self.budget * e - self.mask) / (self.compute * e + self.send)

    def slope(self, share: Tensor) -> Tensor:
        """d kept / d b, positive and falling: kept is concave."""
        gain = self.budget * self.send + self.mask * self.compute
        return gain * self.rate_slope(share) / (self.compute * self.rate(share) + self.send) ** 2

    def bend(self, share: Tensor) -> Tensor:
        """d log slope / d log b, negative."""
        e, de = self.rate(share), self.rate_slope(share)
        bend = -2 * self.compute * share * de / (self.compute * e + self.send)
        if self.snr is not None:
            u = self.snr / share.clamp(min=LEAST_SHARE)
            bend = bend - (u / (1 + u)) ** 2 / _psi(u)
        return bend

    def share(self, kept: Tensor | float) -> Tensor:
        """The share with which a device keeps this part, the inverse of `kept`; inf where the whole
        band is too little.
        """
        left = self.budget - kept * self.compute
        e = torch.where(left > 0, (kept * self.send + self.mask) / left, torch.inf)
        within = e.clamp(LEAST_SHARE, 1.0)
        if self.snr is None:
            return e
        found = torch.exp(
            root(
                lambda x: self._rate_and_slope(x, within), within.log(), low=2 * LEAST_LOG, high=0.0
            )
        )
        return torch.where(e > 1 + _ROUNDING, torch.inf, torch.where(e > 0, found, 0.0))

    def demand(self, price: Tensor, start: Tensor) -> Tensor:
        """The share at which its last bit is worth its price, [n]; `start` is where the search
        begins.
        """
        if self.snr is None:
            gain = self.weight * (self.budget * self.send + self.mask * self.compute)
            return (torch.sqrt(gain / price) - self.send) / self.compute
        target = torch.log(price / self.weight)
        return torch.exp(
            root(lambda x: self._price_and_bend(x, target), start.log(), low=LEAST_LOG, high=0.0)
        )

    def _rate_and_slope(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        b = torch.exp(x)
        e = self.rate(b)
        return torch.log(e / target), b * self.rate_slope(b) / e

    def _price_and_bend(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        b = torch.exp(x)
        return target - torch.log(self.slope(b)), -self.bend(b)


def _psi(u: Tensor) -> Tensor:
    """log(1 + u) - u / (1 + u): what a wider share gains, less what its noise costs."""
    series = u**2 * (1 / 2 - u * (2 / 3 - u * (3 / 4 - u * 4 / 5)))
    return torch.where(u < _SMALL, series, torch.log1p(u) - u / (1 + u))


def root(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    low: Tensor | float,
    high: Tensor | float,
    last: float = 1e-11,
) -> Tensor:
    """Where increasing functions are 0, all at once: Newton's steps, halving where one leaves the
    bracket.

    `function` gives values and derivatives. An end of the bracket is the answer where the root lies
    beyond it. Each ends with a step up to `last`, and does not move again while others do; the
    error after one of Newton's is of the order of its square.
    """
    left, right = torch.zeros_like(start) + low, torch.zeros_like(start) + high
    right = torch.where(function(left)[0] >= 0, left, right)
    left = torch.where(function(right)[0] <= 0, right, left)
    x = start.maximum(left).minimum(right)
    found = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(100):
        value, slope = function(x)
        left, right = torch.where(value < 0, x, left), torch.where(value > 0, x, right)
        step = x - value / slope
        new = torch.where((step >= left) & (step <= right), step, (left + right) / 2)
        close = (new - x).abs() <= last
        x, found = torch.where(found, x, new), found | close
        if found.all():
            break
    return x
