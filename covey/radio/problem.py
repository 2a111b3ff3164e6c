"""The problem of sharing a cell's band in one round, without units.

A device with share b of the band keeps at most the part kept(b) = (A e - m) / (c e + s) of its
shared weights, so that it ends at the deadline. A is the time left until the deadline after the
work that no pruning shortens. c is the time to train all shared weights. s and m are the times to
send all of them and to send their mask over the whole band. e(b) is the rate over the share,
relative to the rate over the whole band: b itself where noise has a fixed power,
b log(1 + snr / b) / log(1 + snr) where it has a density. The ratio is rho = 1 - kept. docs/radio.md
derives all of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

MIN_SHARE = 1e-200
"""By noise density a share is never 0: the first hertz is worth more than any price."""
_MIN_LOG = math.log(MIN_SHARE)
_ROUNDING = 1e-12  # by which a share may seem to exceed the band
_SMALL = 1e-4
"""Below this snr the slope of e is a difference of nearly equal numbers; its series is exact."""


class Reason(IntEnum):
    """Why a device is not asked this round."""

    ASKED = 0
    TIME = 1
    COMPUTING = 2
    CHANNEL = 3
    CROWDED = 4


@dataclass(frozen=True, eq=False)
class Problem:
    """One entry per device and round, float64 [n].

    The devices of one cell in one round are a group and share a band.
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
        """The problem of the chosen devices alone."""
        names = ("budget", "compute", "send", "mask", "weight", "group")
        columns = {name: getattr(self, name)[chosen] for name in names}
        return replace(self, snr=None if self.snr is None else self.snr[chosen], **columns)

    def total(self, values: Tensor) -> Tensor:
        """Sums by group, [groups]."""
        zeros = torch.zeros(self.groups, dtype=torch.float64)
        return zeros.index_add(0, self.group, values.double())

    def max(self, values: Tensor) -> Tensor:
        """The maximum by group; -inf where a group is empty."""
        start = torch.full((self.groups,), -torch.inf, dtype=torch.float64)
        return start.scatter_reduce(0, self.group, values, "amax")

    def rate(self, share: Tensor) -> Tensor:
        """e(b)."""
        if self.snr is None:
            return share
        snr_of_share = self.snr / share.clamp(min=MIN_SHARE)
        rate = share * torch.log1p(snr_of_share) / torch.log1p(self.snr)
        return torch.where(share > 0, rate, 0.0)

    def rate_slope(self, share: Tensor) -> Tensor:
        """e'(b)."""
        if self.snr is None:
            return torch.ones_like(share)
        snr_of_share = self.snr / share.clamp(min=MIN_SHARE)
        return _psi(snr_of_share) / torch.log1p(self.snr)

    def kept(self, share: Tensor) -> Tensor:
        """The part of the shared weights that meets the deadline exactly.

        It is above 1 where there is time to spare.
        """
        e = self.rate(share)
        return (self.budget * e - self.mask) / (self.compute * e + self.send)

    def slope(self, share: Tensor) -> Tensor:
        """d kept / d b, positive and falling: kept is concave."""
        gain = self.budget * self.send + self.mask * self.compute
        cost = self.compute * self.rate(share) + self.send
        return gain * self.rate_slope(share) / cost**2

    def bend(self, share: Tensor) -> Tensor:
        """d log slope / d log b, negative."""
        e = self.rate(share)
        slope = self.rate_slope(share)
        bend = -2 * self.compute * share * slope / (self.compute * e + self.send)
        if self.snr is not None:
            u = self.snr / share.clamp(min=MIN_SHARE)
            bend = bend - (u / (1 + u)) ** 2 / _psi(u)
        return bend

    def share(self, kept: Tensor | float) -> Tensor:
        """The share with which a device keeps this part, the inverse of `kept`.

        It is inf where the whole band is too little.
        """
        left = self.budget - kept * self.compute
        send = kept * self.send + self.mask
        e = torch.where(left > 0, send / left, torch.inf)
        if self.snr is None:
            return e
        within = e.clamp(MIN_SHARE, 1.0)

        def rate_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
            b = torch.exp(x)
            e = self.rate(b)
            return torch.log(e / within), b * self.rate_slope(b) / e

        log_share = root(rate_and_slope, within.log(), low=2 * _MIN_LOG, high=0.0)
        share = torch.where(e > 0, torch.exp(log_share), 0.0)
        return torch.where(e > 1 + _ROUNDING, torch.inf, share)

    def demand(self, price: Tensor, start: Tensor) -> Tensor:
        """The share at which its last bit is worth its price, [n]; the search begins at `start`."""
        if self.snr is None:
            gain = self.weight * (self.budget * self.send + self.mask * self.compute)
            return (torch.sqrt(gain / price) - self.send) / self.compute
        target = torch.log(price / self.weight)

        def price_and_bend(x: Tensor) -> tuple[Tensor, Tensor]:
            b = torch.exp(x)
            return target - torch.log(self.slope(b)), -self.bend(b)

        return torch.exp(root(price_and_bend, start.log(), low=_MIN_LOG, high=0.0))


def _psi(u: Tensor) -> Tensor:
    """log(1 + u) - u / (1 + u): the gain of a wider share, less the cost of its noise."""
    series = u**2 * (1 / 2 - u * (2 / 3 - u * (3 / 4 - u * 4 / 5)))
    exact = torch.log1p(u) - u / (1 + u)
    return torch.where(u < _SMALL, series, exact)


def root(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    low: Tensor | float,
    high: Tensor | float,
    last: float = 1e-11,
) -> Tensor:
    """The zeros of increasing functions, all at once.

    It takes Newton's steps, and halves the bracket where a step leaves it. `function` gives values
    and derivatives. An end of the bracket is the answer where the root lies beyond it. An entry is
    done after a step of size up to `last`, and does not move again while others do. The error after
    one of Newton's steps is of the order of the step's square.
    """
    zeros = torch.zeros_like(start)
    left = zeros + low
    right = zeros + high
    right = torch.where(function(left)[0] >= 0, left, right)
    left = torch.where(function(right)[0] <= 0, right, left)
    x = start.maximum(left).minimum(right)
    done = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(100):
        value, slope = function(x)
        left = torch.where(value < 0, x, left)
        right = torch.where(value > 0, x, right)
        newton = x - value / slope
        inside = (newton >= left) & (newton <= right)
        new = torch.where(inside, newton, (left + right) / 2)
        close = (new - x).abs() <= last
        x = torch.where(done, x, new)
        done = done | close
        if done.all():
            break
    return x
