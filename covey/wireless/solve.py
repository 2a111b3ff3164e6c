"""The best shares of every group at once, by the price of a band, and a certificate that nothing
better exists.

At the optimum every device between its bounds has weight * slope(b) = price, and the shares add up
to 1. Shares fall as the price rises, so the price is found in a bracket, by Newton's steps and
halving, for all groups in the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from covey.wireless.problem import LEAST_SHARE, Problem, Reason, root

_EXACT = 1e-14  # as near as rounding lets two ways to the same number come


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far shares are from the optimum, by group, [groups]; every figure is 0 at the optimum and
    is relative.

    `stationarity`: the largest |weight * slope - price| / price over devices between their bounds,
    and what those at a bound are on the wrong side. `complementarity`: the part of the band that
    has a price and is not given out. `feasibility`: by how much shares exceed the band or a bound.
    `gap`: a bound on what any other shares could gain, over the sum of what is kept; it takes the
    concavity of `kept` and nothing else from the solver.
    """

    stationarity: Tensor
    complementarity: Tensor
    feasibility: Tensor
    gap: Tensor

    def largest(self) -> Tensor:
        """The largest figure of each group, [groups]."""
        return torch.stack([getattr(self, f.name) for f in fields(self)]).amax(0)

    def worst(self) -> dict[str, float]:
        """The largest figure over all groups, by name."""
        return {
            f.name: float(getattr(self, f.name).max()) if len(self.gap) else 0.0
            for f in fields(self)
        }


@dataclass(frozen=True, eq=False)
class Allocation:
    """What a policy gives every device and round, [n]; `price` [groups] is what one more band would
    be worth, 0 where none is.
    """

    share: Tensor
    kept: Tensor  # 1 - ratio, which of a ratio close to 1 has more digits
    reason: Tensor  # int8, a `Reason`
    price: Tensor
    certificate: Certificate | None = None

    @property
    def ratio(self) -> Tensor:
        """rho, the part of the shared weights that is pruned."""
        return 1 - self.kept


def admit(p: Problem) -> tuple[Tensor, Tensor]:
    """Who can be asked, as reasons [n], and the least share each needs to prune no more than
    rho_max.

    Where a group's least shares exceed its band the largest is dropped until they do not, which
    leaves the most devices.
    """
    kept = 1 - p.rho_max
    least = p.share(kept)
    reason = torch.zeros_like(p.group, dtype=torch.int8)
    reason[least > 1] = Reason.CHANNEL
    reason[p.budget <= kept * p.compute] = Reason.COMPUTING
    reason[p.budget <= 0] = Reason.TIME
    asked = (reason == Reason.ASKED).nonzero()[:, 0]
    order = asked[torch.argsort(least[asked], stable=True)]
    order = order[torch.argsort(p.group[order], stable=True)]
    crowded = (p.total(torch.where(reason == Reason.ASKED, least, 0.0)) > 1).nonzero()[:, 0]
    bounds = torch.searchsorted(p.group[order], torch.stack([crowded, crowded + 1]))
    for first, end in bounds.t().tolist():
        members = order[first:end]
        reason[members[least[members].cumsum(0) > 1]] = Reason.CROWDED
    return reason, least


def best(p: Problem) -> Allocation:
    """The shares that minimise the weighted sum of ratios."""
    reason, least = admit(p)
    asked = reason == Reason.ASKED
    q, low = p.take(asked), least[asked] if p.snr is None else least[asked].clamp(min=LEAST_SHARE)
    high = q.share(1.0).clamp(max=1.0).maximum(low)
    price = _price(q, low, high)
    share, price = _settle(q, _demand(q, price, low, high, high), price, low, high)
    return _spread(p, asked, reason, share, price, certify(q, share, price, low, high))


def level(p: Problem) -> Allocation:
    """The shares that minimise the largest ratio: everybody asked keeps the same part."""
    reason, least = admit(p)
    asked = reason == Reason.ASKED
    q, low = p.take(asked), least[asked] if p.snr is None else least[asked].clamp(min=LEAST_SHARE)
    high = q.share(1.0).clamp(max=1.0).maximum(low)

    def overdrawn(part: Tensor) -> tuple[Tensor, Tensor]:
        share = q.share(part[q.group])
        return q.total(share) - 1, q.total(1 / q.slope(share.clamp(max=1.0)))

    lowest = torch.full((p.groups,), 1 - p.rho_max, dtype=torch.float64)
    part = root(overdrawn, lowest, low=lowest, high=1.0, last=1e-15)
    share = q.share(part[q.group]).minimum(high)
    for _ in range(2):  # what rounding of the part left over, so that all gain the same
        each = 1 / q.slope(share)
        rest = torch.where(part < 1, (1 - q.total(share)) / q.total(each), 0.0)
        share = (share + each * rest[q.group]).maximum(low).minimum(high)
    # The same shares minimise a weighted sum, with the weights that make every slope the same: its
    # certificate is theirs.
    slope = q.slope(share)
    price = torch.where(part < 1, 1 / q.total(1 / slope), 0.0)
    weighted = replace(q, weight=1 / slope / q.total(1 / slope)[q.group])
    found, kept = certify(weighted, share, price, low, high), q.kept(share)
    uneven = q.total(weighted.weight * kept) + q.most(
        -kept
    )  # the weighted mean less the least: 0 where all keep the same
    return _spread(
        p, asked, reason, share, price, replace(found, gap=found.gap + uneven.clamp(min=0))
    )


def certify(p: Problem, share: Tensor, price: Tensor, low: Tensor, high: Tensor) -> Certificate:
    """The certificate of any shares between bounds at any price, from the slopes alone."""
    worth, cost = p.weight * p.slope(share), price[p.group]
    over = worth - cost
    least, most = share <= low * (1 + _EXACT), share >= high * (1 - _EXACT)
    wrong = torch.where(
        least, over.clamp(min=0), torch.where(most, (-over).clamp(min=0), over.abs())
    )
    wrong[least & most] = 0.0
    scale = torch.where(price > 0, price, 1.0)
    unused = 1 - p.total(share)
    outside = torch.maximum(low - share, share - high).clamp(min=0)
    # A concave function lies under its tangents, so a move to b' gains at most (worth - price)(b' -
    # b) beyond its price.
    gain = torch.maximum(over * (high - share), over * (low - share))
    value = p.total(p.weight * p.kept(share)).clamp(min=1e-300)
    return Certificate(
        stationarity=p.most(wrong / scale[p.group]).clamp(min=0),
        complementarity=torch.where(price > 0, unused.abs(), 0.0),
        feasibility=torch.maximum(-unused, p.most(outside)).clamp(min=0).abs(),
        gap=(p.total(gain) + price * unused).clamp(min=0) / value,
    )


def _price(p: Problem, low: Tensor, high: Tensor) -> Tensor:
    """The price at which the shares of a group add up to 1; 0 where there is band enough for all."""
    enough = p.total(high) <= 1
    room = ((1 - p.total(low)).clamp(min=0) / p.total(torch.ones_like(low)))[p.group]
    dear = p.most(torch.log(p.weight * p.slope(low + room)))  # nobody takes more than low + room
    cheap = -p.most(-torch.log(p.weight * p.slope(high)))  # everybody takes all they can use
    cheap, dear = torch.where(enough, 0.0, cheap), torch.where(enough, 0.0, dear)
    share = high

    def left_over(x: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal share
        share = _demand(p, torch.exp(x), low, high, share)
        return 1 - p.total(share), p.total(_answer(p, share, low, high))

    return torch.where(
        enough, 0.0, torch.exp(root(left_over, (cheap + dear) / 2, low=cheap, high=dear))
    )


def _demand(p: Problem, price: Tensor, low: Tensor, high: Tensor, start: Tensor) -> Tensor:
    """Everybody's share at a price, within bounds; all they can use where it costs nothing."""
    cost = price[p.group]
    share = p.demand(torch.where(cost > 0, cost, 1.0), start.clamp(min=LEAST_SHARE))
    return torch.where(cost > 0, share.maximum(low).minimum(high), high)


def _answer(p: Problem, share: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """-d share / d log price: 0 for those at a bound."""
    return torch.where((share > low) & (share < high), -share / p.bend(share), 0.0)


def _settle(
    p: Problem, share: Tensor, price: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """What rounding of the price left over goes to those between their bounds, as a small change of
    the price would give it.
    """
    answer = _answer(p, share, low, high)
    whole = p.total(answer)
    rest = torch.where(
        (price > 0) & (whole > 0), (1 - p.total(share)) / whole.clamp(min=1e-300), 0.0
    )
    return (share + answer * rest[p.group]).maximum(low).minimum(high), price * torch.exp(-rest)


def _spread(
    p: Problem,
    asked: Tensor,
    reason: Tensor,
    share: Tensor,
    price: Tensor,
    certificate: Certificate,
) -> Allocation:
    """The shares of those asked, in the places of all; the others have no band and prune
    everything.
    """
    nothing = torch.zeros_like(p.budget)
    kept = p.take(asked).kept(share).clamp(1 - p.rho_max, 1.0)
    return Allocation(
        nothing.masked_scatter(asked, share),
        nothing.masked_scatter(asked, kept),
        reason,
        price,
        certificate,
    )
