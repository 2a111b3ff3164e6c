"""Many steps on one mini-batch, factored: the first layer moves only in the span of the batch.

With a quadratic pull, W_k = a_k W_0 + b_k A + x' C_k for scalars a_k, b_k and coefficients C_k
[batch, hidden], and these are all that changes from step to step: x W_k = a_k (x W_0) + b_k (x A) +
(x x') C_k. The weights, most of a row, are read and written once instead of at every step. Exact
algebra, other rounding. Not for an l1 term or a mask, which are not quadratic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.engine.modules import rowwise
from covey.engine.solvers import gpu_steps, in_place
from covey.engine.solvers.objective import MIN_STEPS, DataLoss, Objective
from covey.engine.solvers.stack import LinearStack
from covey.types import Rows


def refusal(loss: DataLoss, start: Rows, terms: Objective) -> str | None:
    """Why these steps are not factored here; None if they can be and it is worth it."""
    reason = loss.unfactored(terms) or in_place.refusal(loss, start, terms)
    if reason is None and terms.longest < MIN_STEPS:
        return f"a batch has fewer than {MIN_STEPS} steps"
    return reason


def run(loss: DataLoss, start: Rows, terms: Objective) -> Rows:
    """The rows after `terms.steps` plain steps on one batch."""
    stack = loss.task.stack
    assert not isinstance(stack, str)
    if start.is_cuda and gpu_steps.unfit(stack, loss.task.space) is None:
        return gpu_steps.factored(loss, start, terms)
    return descend(loss, start, terms)


def descend(loss: DataLoss, start: Rows, terms: Objective) -> Rows:
    """The rows after `terms.steps` plain steps on one batch."""
    stack, space, l2 = loss.task.stack, loss.task.space, loss.task.l2
    batch, lr = loss.fixed, terms.lr
    assert isinstance(stack, LinearStack)
    assert batch is not None
    assert not isinstance(lr, Tensor)
    number = stack.layers[0].weight
    slot = space.slots[number]
    shrink, pull, anchor = terms.quadratic(start, lr, l2)
    x = batch.x.flatten(2)
    x_transposed = x.transpose(1, 2)
    w_0, w_anchor = slot.view(start), slot.view(anchor)
    out = gpu_steps.all_but(slice(slot.start, slot.stop), start)
    views = [s.view(out) for s in space.slots]
    pairs = zip(views, space.slots, strict=True)
    others = [(view, each.view(anchor)) for view, each in pairs if each is not slot]
    gram = rowwise.bmm(x, x_transposed)
    from_start = rowwise.bmm(x, w_0)
    from_anchor = from_start
    if anchor is not start:
        from_anchor = rowwise.bmm(x, w_anchor)
    a = torch.ones((), dtype=x.dtype)  # tensors, since they may overflow
    b = torch.zeros((), dtype=x.dtype)
    c = torch.zeros_like(from_start)
    for _ in range(terms.longest):
        inside = rowwise.baddbmm(a * from_start + b * from_anchor, gram, c)
        factors = stack.factors(views, x, batch.y, batch.weight, inside=inside)
        for view, anchor_view in others:
            view.mul_(shrink).add_(anchor_view, alpha=pull)
        stack.add(views, factors, scale=-lr, first=False)
        a = shrink * a
        b = shrink * b + pull
        c = torch.add(shrink * c, factors[-1].errors, alpha=-lr)
    w = views[number]
    if terms.decay + l2 == 0:  # a + b = 1, and one pass over the weights does
        torch.lerp(w_0, w_anchor, float(b), out=w)
    else:
        torch.add(a * w_0, b * w_anchor, out=w)
    rowwise.baddbmm_(w, x_transposed, c, keep=1.0, scale=1.0)
    return out
