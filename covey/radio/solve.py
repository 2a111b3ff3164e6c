"""The optimal shares of every group at once, by the price of a band, and their certificate.

At the optimum every device between its bounds has weight * slope(b) = price, and the shares add up
to 1. Shares fall as the price rises. So the price is found in a bracket, by Newton's steps and
halving, for all groups in the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.radio.problem import MIN_SHARE, Problem, Reason, root

_EXACT = 1e-14  # the relative rounding error between two ways to the same number


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far shares are from the optimum, by group, [groups].

    Every figure is relative, and 0 at the optimum.
    `stationarity`: the largest |weight * slope - price| / price over devices between their bounds,
    and over devices at a bound that are on the wrong side of it.
    `complementarity`: the part of the band that has a price and is not allocated.
    `feasibility`: by how much shares exceed the band or a bound.
    `gap`: a bound on the gain of any other shares, relative to the sum of the parts kept. It uses
    the concavity of `kept` and nothing else from the solver.
    """

    stationarity: Tensor
    complementarity: Tensor
    feasibility: Tensor
    gap: Tensor

    def largest(self) -> Tensor:
        """The largest figure of each group, [groups]."""
        return torch.stack(list(vars(self).values())).amax(0)

    def worst(self) -> dict[str, float]:
        """The largest figure over all groups, by name."""
        return {
            name: float(values.max()) if len(values) else 0.0 for name, values in vars(self).items()
        }


@dataclass(frozen=True, eq=False)
class Allocation:
    """The share and ratio of every device and round, [n].

    `price` [groups] is the value of one more band, 0 where band is left.
    """

    share: Tensor
    kept: Tensor  # 1 - ratio, which has more digits where the ratio is close to 1
    reason: Tensor  # int8, a `Reason`
    price: Tensor
    certificate: Certificate | None = None

    @property
    def ratio(self) -> Tensor:
        """rho, the share of the shared weights that is pruned."""
        return 1 - self.kept


def admit(p: Problem) -> tuple[Tensor, Tensor]:
    """Which devices can be asked, as reasons [n], and the smallest share that each needs.

    With that share a device prunes no more than rho_max. Where a group's smallest shares exceed its
    band, the largest is dropped until they do not, which keeps as many devices as possible.
    """
    kept = 1 - p.rho_max
    min_share = p.share(kept)
    reason = torch.zeros_like(p.group, dtype=torch.int8)
    reason[min_share > 1] = Reason.CHANNEL
    reason[p.budget <= kept * p.compute] = Reason.COMPUTING
    reason[p.budget <= 0] = Reason.TIME
    asked = (reason == Reason.ASKED).nonzero()[:, 0]
    order = asked[torch.argsort(min_share[asked], stable=True)]
    order = order[torch.argsort(p.group[order], stable=True)]
    needed = p.total(torch.where(reason == Reason.ASKED, min_share, 0.0))
    crowded = (needed > 1).nonzero()[:, 0]
    group_and_next = torch.stack([crowded, crowded + 1])
    bounds = torch.searchsorted(p.group[order], group_and_next)
    for first, end in bounds.t().tolist():
        members = order[first:end]
        over = min_share[members].cumsum(0) > 1
        reason[members[over]] = Reason.CROWDED
    return reason, min_share


def _asked(p: Problem) -> tuple[Tensor, Problem, Tensor, Tensor]:
    """All reasons, the problem of the devices asked, and their smallest and largest shares."""
    reason, min_share = admit(p)
    asked = reason == Reason.ASKED
    low = min_share[asked]
    q = p.take(asked)
    if q.snr is not None:
        low = low.clamp(min=MIN_SHARE)
    return reason, q, low, q.share(1.0).clamp(max=1.0).maximum(low)


def best(p: Problem) -> Allocation:
    """The shares that minimise the weighted sum of ratios."""
    reason, q, low, high = _asked(p)
    price = _price(q, low, high)
    share = _demand(q, price, low, high, high)
    # The band that rounding of the price left over goes to the devices between their bounds, as by
    # a small change of the price.
    answer = _answer(q, share, low, high)
    whole = q.total(answer)
    rest = (1 - q.total(share)) / whole.clamp(min=1e-300)
    rest = torch.where((price > 0) & (whole > 0), rest, 0.0)
    share = share + answer * rest[q.group]
    share = share.clamp(low, high)
    price = price * torch.exp(-rest)
    certificate = certify(q, share, price, low, high)
    return _spread(p, q, reason, share, price, certificate)


def level(p: Problem) -> Allocation:
    """The shares that minimise the largest ratio: all devices asked keep the same part."""
    reason, q, low, high = _asked(p)

    def overdrawn(part: Tensor) -> tuple[Tensor, Tensor]:
        share = q.share(part[q.group])
        slope = q.slope(share.clamp(max=1.0))
        return q.total(share) - 1, q.total(1 / slope)

    lowest = torch.full((p.groups,), 1 - p.rho_max, dtype=torch.float64)
    part = root(overdrawn, lowest, low=lowest, high=1.0, last=1e-15)
    share = q.share(part[q.group]).minimum(high)
    for _ in range(2):  # the band that rounding of the part left over, so that all gain the same
        per_part = 1 / q.slope(share)
        unused = 1 - q.total(share)
        rest = torch.where(part < 1, unused / q.total(per_part), 0.0)
        share = (share + per_part * rest[q.group]).clamp(low, high)
    # The same shares minimise a weighted sum, with the weights that make every slope the same: its
    # certificate is theirs.
    per_part = 1 / q.slope(share)
    total = q.total(per_part)
    price = torch.where(part < 1, 1 / total, 0.0)
    weighted = replace(q, weight=per_part / total[q.group])
    certificate = certify(weighted, share, price, low, high)
    kept = q.kept(share)
    uneven = q.total(weighted.weight * kept) + q.max(-kept)  # the weighted mean less the min
    gap = certificate.gap + uneven.clamp(min=0)
    return _spread(p, q, reason, share, price, replace(certificate, gap=gap))


def certify(p: Problem, share: Tensor, price: Tensor, low: Tensor, high: Tensor) -> Certificate:
    """The certificate of any shares between bounds at any price, from the slopes alone."""
    worth = p.weight * p.slope(share)
    over = worth - price[p.group]
    at_low = share <= low * (1 + _EXACT)
    at_high = share >= high * (1 - _EXACT)
    too_low = over.clamp(min=0)
    too_high = (-over).clamp(min=0)
    wrong = torch.where(at_high, too_high, over.abs())
    wrong = torch.where(at_low, too_low, wrong)
    wrong[at_low & at_high] = 0.0
    scale = torch.where(price > 0, price, 1.0)
    unused = 1 - p.total(share)
    outside = torch.maximum(low - share, share - high).clamp(min=0)
    # A concave function lies under its tangents, so that a move to b' gains at most
    # (worth - price)(b' - b) beyond its price.
    gain = torch.maximum(over * (high - share), over * (low - share))
    max_gain = p.total(gain) + price * unused
    value = p.total(p.weight * p.kept(share)).clamp(min=1e-300)
    stationarity = p.max(wrong / scale[p.group])
    feasibility = torch.maximum(-unused, p.max(outside))
    return Certificate(
        stationarity=stationarity.clamp(min=0),
        complementarity=torch.where(price > 0, unused.abs(), 0.0),
        feasibility=feasibility.clamp(min=0).abs(),
        gap=max_gain.clamp(min=0) / value,
    )


def _price(p: Problem, low: Tensor, high: Tensor) -> Tensor:
    """The price at which the shares of a group add up to 1; 0 where the band is enough for all."""
    enough = p.total(high) <= 1
    left = (1 - p.total(low)).clamp(min=0)
    room = (left / p.total(torch.ones_like(low)))[p.group]
    worth = p.weight * p.slope(low + room)  # at this price no share exceeds low + room
    max_log = torch.where(enough, 0.0, p.max(torch.log(worth)))
    worth = p.weight * p.slope(high)  # at this price every share is high
    min_log = torch.where(enough, 0.0, -p.max(-torch.log(worth)))
    share = high

    def left_over(x: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal share
        share = _demand(p, torch.exp(x), low, high, share)
        answer = _answer(p, share, low, high)
        return 1 - p.total(share), p.total(answer)

    log_price = root(left_over, (min_log + max_log) / 2, low=min_log, high=max_log)
    return torch.where(enough, 0.0, torch.exp(log_price))


def _demand(p: Problem, price: Tensor, low: Tensor, high: Tensor, start: Tensor) -> Tensor:
    """Each device's share at a price, within bounds; `high` where the price is 0."""
    cost = price[p.group]
    positive = torch.where(cost > 0, cost, 1.0)
    share = p.demand(positive, start.clamp(min=MIN_SHARE))
    return torch.where(cost > 0, share.clamp(low, high), high)


def _answer(p: Problem, share: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """-d share / d log price: 0 for devices at a bound."""
    between = (share > low) & (share < high)
    return torch.where(between, -share / p.bend(share), 0.0)


def _spread(
    p: Problem,
    q: Problem,
    reason: Tensor,
    share: Tensor,
    price: Tensor,
    certificate: Certificate,
) -> Allocation:
    """The allocation of all devices, from the shares of those asked, whose problem is `q`.

    The others have no band and prune everything.
    """
    asked = reason == Reason.ASKED
    zeros = torch.zeros_like(p.budget)
    kept = q.kept(share).clamp(1 - p.rho_max, 1.0)
    return Allocation(
        share=zeros.masked_scatter(asked, share),
        kept=zeros.masked_scatter(asked, kept),
        reason=reason,
        price=price,
        certificate=certificate,
    )
