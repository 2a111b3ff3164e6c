"""Many steps on one mini-batch, factored: the first layer moves only in the span of the batch.

With a quadratic pull, W_k = a_k W_0 + b_k A + x' C_k for scalars a_k, b_k and coefficients C_k
[batch, hidden], and these are all that changes from step to step: x W_k = a_k (x W_0) + b_k (x A) +
(x x') C_k. The weights, most of a row, are read and written once instead of at every step. Exact
algebra, other rounding. Not for an l1 term or a mask, which are not quadratic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.engine import in_place, rowwise
from covey.engine.layout import ParameterLayout
from covey.engine.objective import Coefficient, DataLoss, Objective
from covey.engine.stack import LinearStack
from covey.types import Rows

MIN_STEPS = 3
"""With fewer, the products with the anchor and with the batch itself cost more than they save."""


def unfit(loss: DataLoss, terms: Objective) -> str | None:
    """Why steps on this loss cannot be factored, whoever computes them; None if they can."""
    task = loss.task
    if isinstance(task.stack, str):
        return task.stack
    if loss.fixed is None:
        return "not all steps have the same batch"
    if terms.l1 is not None:
        return "an l1 term is set"
    if terms.linear is not None:
        return "a linear term is set"
    if terms.mask is not None:
        return "a mask is set"
    if terms.part is not None:
        return "only a part of the columns moves"
    inputs = task.space.slots[task.stack.layers[0].weight].shape[1]
    if 2 * loss.fixed.examples.shape[1] > inputs:
        return "the batch has more than half as many examples as the model has inputs"
    return None


def refusal(loss: DataLoss, start: Rows, terms: Objective) -> str | None:
    """Why these steps are not factored here; None if they can be and it is worth it."""
    reason = unfit(loss, terms) or in_place.refusal(loss, start, terms)
    if reason is None and terms.longest < MIN_STEPS:
        return f"a batch has fewer than {MIN_STEPS} steps"
    return reason


def run(loss: DataLoss, start: Rows, terms: Objective) -> Rows:
    """The rows after `terms.steps` plain steps on one batch."""
    task = loss.task
    batch = loss.fixed
    assert batch is not None
    assert not isinstance(task.stack, str)
    assert not isinstance(terms.lr, Tensor)
    return descend(
        task.stack,
        task.space,
        start,
        batch.x,
        batch.y,
        batch.weight,
        terms=terms,
        lr=terms.lr,
        l2=task.l2,
    )


def descend(
    stack: LinearStack,
    space: ParameterLayout,
    start: Rows,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    *,
    terms: Objective,
    lr: float,
    l2: float,
) -> Rows:
    """The rows after `terms.steps` plain steps on one batch."""
    number = stack.layers[0].weight
    slot = space.slots[number]
    lam: Coefficient = 0.0
    anchor = start
    if terms.prox is not None:
        lam, anchor = terms.prox
    assert not isinstance(lam, Tensor)
    shrink = 1 - lr * (lam + terms.decay + l2)
    x = x.flatten(2)
    out = _all_but(slot.start, slot.stop, start)
    views = [s.view(out) for s in space.slots]
    pulls = [s.view(anchor) for s in space.slots]
    gram = rowwise.bmm(x, x.transpose(1, 2))
    first = rowwise.bmm(x, slot.view(start))
    pulled = first
    if anchor is not start:
        pulled = rowwise.bmm(x, slot.view(anchor))
    a = torch.ones((), dtype=x.dtype)  # tensors, since they may overflow
    b = torch.zeros((), dtype=x.dtype)
    c = torch.zeros_like(first)
    for _ in range(terms.longest):
        inside = rowwise.baddbmm(a * first + b * pulled, gram, c)
        factors = stack.factors(views, x, y, weight, inside=inside)
        for i, view in enumerate(views):
            if i != number:
                view.mul_(shrink).add_(pulls[i], alpha=lr * lam)
        stack.add(views, factors, scale=-lr, first=False)
        a = shrink * a
        b = shrink * b + lr * lam
        c = torch.add(shrink * c, factors[-1].errors, alpha=-lr)
    if terms.decay + l2 == 0:  # a + b = 1, and one pass over the weights does
        torch.lerp(slot.view(start), slot.view(anchor), float(b), out=views[number])
    else:
        torch.add(a * slot.view(start), b * slot.view(anchor), out=views[number])
    rowwise.baddbmm_(views[number], x.transpose(1, 2), c, keep=1.0, scale=1.0)
    return out


def _all_but(start: int, stop: int, rows: Rows) -> Rows:
    """A copy whose columns [start, stop) are not yet set."""
    out = torch.empty_like(rows)
    out[:, :start] = rows[:, :start]
    out[:, stop:] = rows[:, stop:]
    return out
