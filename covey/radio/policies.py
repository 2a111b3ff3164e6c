"""Ways to share a band: the best in several senses, and the baselines.

A policy says what the devices work on, and how a problem becomes shares and ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.kernel.work import Work
from covey.radio.problem import Problem, Reason, root
from covey.radio.solve import Allocation, best, level


@dataclass(frozen=True)
class Policy:
    """`allocate` shares the band; `work` maps the algorithm's work to the work that devices do.

    `prunes` says whether its ratios may be above 0, `listed` whether it holds a value for each
    device of a scenario. To a checkpoint two policies of one name are the same.
    """

    name: str
    allocate: Callable[[Problem], Allocation]
    work: Callable[[Work], Work] = lambda work: work
    prunes: bool = True
    listed: bool = False


def assigned(
    p: Problem,
    *,
    ratio: Tensor | float | None = None,
    share: Tensor | float | None = None,
) -> Allocation:
    """These ratios and shares for all devices.

    A ratio of None is the smallest that meets the deadline (Theorem 2), a share of None the same
    for all. Theorem 2's ratio stops at rho_max, where the device ends late. A device for which no
    ratio meets the deadline is not asked.
    """
    hopeless = torch.zeros_like(p.group, dtype=torch.bool)
    if ratio is None:
        hopeless = p.budget <= 0
    if share is None:
        counts = p.total(~hopeless)[p.group]
        shares = (~hopeless / counts).nan_to_num(0.0)
    else:
        shares = _column(p, share)
    kept = p.kept(shares).clamp(1 - p.rho_max, 1)
    if ratio is not None:
        kept = 1 - _column(p, ratio)
    return Allocation(
        share=shares,
        kept=torch.where(hopeless, 0.0, kept),
        reason=torch.where(hopeless, Reason.TIME, Reason.ASKED).to(torch.int8),
        price=torch.zeros(p.groups, dtype=torch.float64),
    )


def fastest(p: Problem, *, ratio: float = 0.0) -> Allocation:
    """One ratio for all, and the shares with which the last of a group ends soonest."""
    kept = 1 - ratio
    send = kept * p.send + p.mask
    needed = kept * p.compute - p.budget
    soonest = p.max(needed)  # after the deadline: all have trained, none has sent

    def shares(x: Tensor) -> tuple[Tensor, Tensor]:
        time = (soonest + torch.exp(x))[p.group] - needed
        later = replace(p, budget=p.budget + needed + time)
        return time, later.share(kept)

    def left_over(x: Tensor) -> tuple[Tensor, Tensor]:
        time, share = shares(x)
        fall = send / time**2 / p.rate_slope(share.clamp(max=1.0))  # e = send / time
        return 1 - p.total(share), torch.exp(x) * p.total(fall)

    counts = p.total(torch.ones_like(send))[p.group]
    even = send / p.rate(1 / counts) + needed - soonest[p.group]
    low = -p.max(-torch.log(send))
    high = torch.log(p.max(even.clamp(min=0)))
    _, share = shares(root(left_over, high, low=low, high=high))
    return assigned(p, ratio=ratio, share=share.clamp(max=1.0))


def _column(p: Problem, value: Tensor | float) -> Tensor:
    """One number for all, or one for each device of every round."""
    values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
    return values.repeat(len(p.budget) // len(values))


optimal = Policy("optimal", best)
fair = Policy("fair", level)
equal = Policy("equal", assigned)
personal_only = Policy(
    "personal_only",
    lambda p: assigned(p, ratio=0.0),
    Work.unprobed,
    prunes=False,
)
personal_fastest = Policy(
    "personal_fastest",
    lambda p: fastest(p, ratio=0.0),
    Work.unprobed,
    prunes=False,
)
pruning_only = Policy("pruning_only", best, Work.whole)


def fixed(ratio: Tensor | float, share: Tensor | float | None = None) -> Policy:
    """These ratios, and these shares or the same for all."""
    name = f"fixed {ratio}" if share is None else f"fixed {ratio} with shares {share}"
    tensors = [value for value in (ratio, share) if isinstance(value, Tensor)]
    listed = any(tensor.numel() > 1 for tensor in tensors)
    return Policy(name, lambda p: assigned(p, ratio=ratio, share=share), listed=listed)


def weighted(weight: Tensor) -> Policy:
    """The minimum sum of weight * ratio, such as by examples held; `weight` is [n], per device."""

    def allocate(p: Problem) -> Allocation:
        return best(replace(p, weight=_column(p, weight)))

    return Policy("weighted", allocate, listed=True)


_ABOUT = {
    optimal: "min weighted sum of the pruning ratios; all devices end at the deadline",
    equal: "equal shares; each device prunes as much as the deadline needs",
    fair: "min of the max ratio: all devices prune the same fraction and end at the deadline",
    personal_only: "equal shares, nothing pruned; for algorithms that do not prune",
    personal_fastest: "nothing pruned; the shares let the last device end as early as possible; "
    "for algorithms that state their devices' work",
    pruning_only: "as optimal, but the personal part is pruned and sent too; "
    'in a run, give private = "" instead',
}
POLICIES = {policy.name: policy for policy in _ABOUT}
LISTED = {policy.name: (policy.allocate, about) for policy, about in _ABOUT.items()}
"""What makes each, and a line about it, for `covey list policies`."""
