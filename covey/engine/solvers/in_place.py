"""Plain steps in torch, in place on one buffer of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.engine.solvers import gpu_steps, smooth_l1
from covey.engine.solvers.objective import DataLoss, Gradient, Objective
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.batches import Batch
    from covey.engine.solvers.stack import LinearStack


def refusal(gradient: Gradient, start: Rows, terms: Objective) -> str | None:
    """Why steps in place cannot do what these terms ask for; None if they can."""
    if terms.method != "gradient":
        return f"the method is {terms.method}"
    if terms.tol is not None:
        return "tol is set"
    if terms.mask is not None:
        return "a mask is set"
    if terms.part is not None:
        return "only a part of the columns moves"
    if isinstance(terms.steps, Tensor):
        return "steps differ from row to row"
    if isinstance(terms.lr, Tensor):
        return "step sizes differ from row to row or from column to column"
    if terms.prox is not None and isinstance(terms.prox[0], Tensor):
        return "the weight of the prox term differs from row to row"
    return None


def data_refusal(loss: DataLoss, start: Rows, terms: Objective) -> str | None:
    """As `refusal`, for steps on mini-batches."""
    if loss.all_examples:
        return "each step takes the gradient of all examples"
    return refusal(loss, start, terms)


def without_data(gradient: Gradient, start: Rows, terms: Objective) -> Rows:
    """The rows after steps on all terms but a data loss."""
    assert isinstance(terms.steps, int)
    assert not isinstance(terms.lr, Tensor)
    gamma = terms.exact_l1
    x = start.clone()
    for _ in range(terms.steps):
        step_without_data(x, terms, terms.lr)
        if gamma is not None:
            x = smooth_l1.soft(x, terms.lr * gamma)
    return x


def on_batches(loss: DataLoss, start: Rows, terms: Objective) -> Rows:
    """The rows after steps on mini-batches: of stacks by hand, of other models by autograd."""
    assert isinstance(terms.steps, int)
    assert not isinstance(terms.lr, Tensor)
    gamma = terms.exact_l1
    x = start.clone()
    stack = loss.task.stack
    if isinstance(stack, str):
        take_step = _autograd_steps(loss, x, terms, terms.lr)
    elif x.is_cuda and gpu_steps.unfit(stack, loss.task.space) is None:
        take_step = gpu_stack_steps(stack, loss, x, terms, terms.lr)
    else:
        take_step = _stack_steps(stack, loss, x, terms, terms.lr)
    for step in range(terms.steps):
        take_step(loss.batch_of(step))
        if gamma is not None:
            x.copy_(smooth_l1.soft(x, terms.lr * gamma))
    return x


def _stack_steps(
    stack: LinearStack, loss: DataLoss, x: Rows, terms: Objective, lr: float
) -> Callable[[Batch], None]:
    """Steps in place of a stack: every term is evaluated at the x that comes in."""
    views = loss.task.gradients.views(x)

    def step(batch: Batch) -> None:
        inputs = loss.task.gradients.inputs(batch)
        factors = stack.factors(views, inputs, batch.y, batch.weight)
        step_without_data(x, terms, lr, loss.task.l2)
        stack.add(views, factors, scale=-lr)

    return step


def gpu_stack_steps(
    stack: LinearStack, loss: DataLoss, x: Rows, terms: Objective, lr: float
) -> Callable[[Batch], None]:
    """As `_stack_steps`, in fewer kernels."""
    matrices = gpu_steps.Matrices(stack, loss.task.space, x)
    passes: gpu_steps.Passes | None = None
    ones = x.new_ones(0)

    def step(batch: Batch) -> None:
        nonlocal passes, ones
        inputs = loss.task.gradients.inputs(batch).flatten(2)
        if passes is None or passes.examples != inputs.shape[1]:
            passes = gpu_steps.Passes(stack, matrices, inputs.shape[1])
            ones = inputs.new_ones(len(inputs), 1, inputs.shape[1])
        mean, share = gpu_steps.shares(batch)
        errors = passes.errors(matrices.outputs(inputs), batch.y, share)
        scale = -lr * mean
        step_without_data(x, terms, lr, loss.task.l2)
        matrices.first.baddbmm_(inputs.transpose(1, 2), errors[0], alpha=scale)
        if matrices.bias is not None:
            matrices.bias.baddbmm_(ones, errors[0], alpha=scale)
        passes.add(errors, keep=1.0, scale=scale)

    return step


def _autograd_steps(
    loss: DataLoss, x: Rows, terms: Objective, lr: float
) -> Callable[[Batch], None]:
    """As `_stack_steps`, by autograd. The leaves are made once, since they share x's memory."""
    gradients = loss.task.gradients
    leaves = gradients.leaves(x)

    @torch.no_grad()
    def step(batch: Batch) -> None:
        if not len(x):
            return
        directions = list(gradients.of_leaves(leaves, batch))
        step_without_data(x, terms, lr, loss.task.l2)
        for parameters, direction in zip(leaves, directions, strict=True):
            torch._foreach_add_(parameters, direction, alpha=-lr)

    return step


def step_without_data(x: Rows, terms: Objective, lr: float, l2: float = 0.0) -> None:
    """One step in place on everything but the data loss, each term at the x that comes in."""
    slope = None
    if terms.l1 is not None and terms.l1[1] > 0:
        gamma, rho = terms.l1
        slope = smooth_l1.grad(x, rho)
    decay = terms.decay + l2
    if terms.prox is not None:
        lam, anchor = terms.prox
        pull = lr * lam
        if decay:
            shrink = 1 - lr * (lam + decay)
            x.mul_(shrink).add_(pull * anchor)
        else:
            x.lerp_(anchor, pull)
    elif decay:
        x.mul_(1 - lr * decay)
    if terms.linear is not None:
        x.add_(terms.linear, alpha=-lr)
    if slope is None:
        return
    if isinstance(gamma, Tensor):
        x.sub_(slope.mul_(lr * gamma))
    else:
        x.sub_(slope, alpha=lr * gamma)
