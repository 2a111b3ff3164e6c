"""Ways to share a band: the best in several senses, and what they are measured against.

A policy is what the devices work on, and how a problem becomes shares and ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.kernel.work import Work
from covey.wireless.problem import Problem, Reason, root
from covey.wireless.solve import Allocation, best, level


@dataclass(frozen=True)
class Policy:
    """`allocate` shares the band; `work` says what the devices do instead of the whole, where that
    is something else.

    `prunes`: whether its ratios may be above 0; `listed`: whether it holds a value for each device
    of a scenario. To a checkpoint two policies of one name are the same.
    """

    name: str
    allocate: Callable[[Problem], Allocation]
    work: Callable[[Work], Work] = lambda work: work
    prunes: bool = True
    listed: bool = False


def given(
    p: Problem, *, ratio: Tensor | float | None = None, share: Tensor | float | None = None
) -> Allocation:
    """These ratios and shares for everybody; None: the least ratio that meets the deadline (Theorem
    2), the same share for all.

    Theorem 2's ratio stops at rho_max, where the device ends late; one that no ratio brings to the
    deadline is not asked.
    """
    hopeless = p.budget <= 0 if ratio is None else torch.zeros_like(p.group, dtype=torch.bool)
    shares = (
        (~hopeless / p.total(~hopeless)[p.group]).nan_to_num(0.0)
        if share is None
        else _each(p, share)
    )
    kept = p.kept(shares).clamp(1 - p.rho_max, 1) if ratio is None else 1 - _each(p, ratio)
    reason = torch.where(hopeless, Reason.TIME, Reason.ASKED).to(torch.int8)
    return Allocation(
        shares, torch.where(hopeless, 0.0, kept), reason, torch.zeros(p.groups, dtype=torch.float64)
    )


def fastest(p: Problem, *, ratio: float = 0.0) -> Allocation:
    """One ratio for all, and the shares with which the last of a group ends soonest."""
    kept = 1 - ratio
    send, needed = kept * p.send + p.mask, kept * p.compute - p.budget
    soonest = p.most(needed)  # after the deadline: everybody has trained, nobody has sent

    def shares(x: Tensor) -> tuple[Tensor, Tensor]:
        time = (soonest + torch.exp(x))[p.group] - needed
        return time, replace(p, budget=p.budget + needed + time).share(kept)

    def left_over(x: Tensor) -> tuple[Tensor, Tensor]:
        time, share = shares(x)
        fall = send / time**2 / p.rate_slope(share.clamp(max=1.0))  # e = send / time
        return 1 - p.total(share), torch.exp(x) * p.total(fall)

    even = (
        send / p.rate(1 / p.total(torch.ones_like(send))[p.group]) + needed - soonest[p.group]
    ).clamp(min=0)
    low, high = -p.most(-torch.log(send)), torch.log(p.most(even))
    return given(
        p, ratio=ratio, share=shares(root(left_over, high, low=low, high=high))[1].clamp(max=1.0)
    )


def _each(p: Problem, value: Tensor | float) -> Tensor:
    """One number for all, or one for each device of every round."""
    given = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
    return given.repeat(len(p.budget) // len(given))


optimal = Policy("optimal", best)
fair = Policy("fair", level)
equal = Policy("equal", given)
personal_only = Policy("personal_only", lambda p: given(p, ratio=0.0), Work.unprobed, prunes=False)
personal_fastest = Policy(
    "personal_fastest", lambda p: fastest(p, ratio=0.0), Work.unprobed, prunes=False
)
pruning_only = Policy("pruning_only", best, Work.whole)


def fixed(ratio: Tensor | float, share: Tensor | float | None = None) -> Policy:
    """These ratios, and these shares or the same for all."""
    name = f"fixed {ratio}" if share is None else f"fixed {ratio} with shares {share}"
    listed = any(isinstance(value, Tensor) and value.numel() > 1 for value in (ratio, share))
    return Policy(name, lambda p: given(p, ratio=ratio, share=share), listed=listed)


def weighted(weight: Tensor) -> Policy:
    """The least sum of weight * ratio, such as by examples held; `weight` is [n], one for each
    device.
    """
    return Policy("weighted", lambda p: best(replace(p, weight=_each(p, weight))), listed=True)


POLICIES = {
    policy.name: policy
    for policy in (optimal, equal, fair, personal_only, personal_fastest, pruning_only)
}
