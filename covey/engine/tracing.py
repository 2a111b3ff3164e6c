"""From a module to a graph that is known to be the module's pass.

A recording may be wrong where the module does what it cannot see. So a graph of a user's own code
counts only if its outputs and gradients equal the module's own, in float64, on two batches of
different sizes. Plain `nn.Sequential`s of torch's layers need no such check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from covey.engine import norm
from covey.engine.batched import Step
from covey.engine.graph import ATTENTION, SITE, Graph, Node, Unknown, merged
from covey.engine.intercept import Recorder
from covey.engine.layout import ParameterLayout
from covey.engine.passing import Pass
from covey.engine.recording import record
from covey.origin import FAULTS

SIZES = (5, 7)
"""Of the two batches: rare among the sizes of layers."""
_CLOSE = 1e-9
"""Largest difference relative to the largest number of a tensor, in float64."""

Compile = Callable[[Graph, ParameterLayout], Step]


def traced(
    space: ParameterLayout, example: torch.Size, sample: Tensor | None, compile: Compile
) -> tuple[Graph, Step]:
    """The graph of a module on examples of this shape, and its pass.

    Raises `Unknown` where there is none.

    `sample` are some examples. `compile` makes a pass of a graph, or raises `Unknown` itself.
    """
    module = space.module
    _check_calls(module)
    plain = _is_plain(module)
    if not plain or not _is_training(module):
        module = norm.for_recording(copy.deepcopy(module).cpu().double())
    draw = torch.Generator().manual_seed(0)
    batches = [_inputs(module, size, example, sample, draw) for size in SIZES]
    graph = _recorded(module, batches, plain)
    step = compile(graph, space)
    if not plain:
        _check_equal(graph, module, batches, compile, draw)
    return graph, step


def _check_calls(module: nn.Module) -> None:
    """Refuse modules whose calls do more than their forward pass."""
    for layer in module.modules():
        if isinstance(layer, torch.jit.ScriptModule) or layer._compiled_call_impl is not None:
            raise Unknown("it is compiled")
        if type(layer).__name__ == "OptimizedModule":
            raise Unknown("it is compiled")
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
        if any(hooks) or layer._backward_pre_hooks:
            raise Unknown("it has hooks")


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is a layer of torch's, or an nn.Sequential of such."""
    if type(module) is nn.Sequential:
        return all(_is_plain(child) for child in module.children())
    if not type(module).__module__.startswith("torch.nn.modules."):
        return False
    return not list(module.children()) and not list(module.buffers())


def _is_training(module: nn.Module) -> bool:
    return all(layer.training for layer in module.modules())


def _inputs(
    module: nn.Module,
    size: int,
    example: torch.Size,
    sample: Tensor | None,
    draw: torch.Generator,
) -> Tensor:
    """A batch of this size: normal numbers, or else those that occur in the sample."""
    parameter = next(module.parameters())
    if sample is None or sample.is_floating_point():
        x = torch.randn(size, *example, generator=draw)
        return x.to(parameter)
    chosen = torch.randint(sample.numel(), (size, *example), generator=draw)
    values = sample.flatten().cpu()
    return values[chosen].to(parameter.device)


def _recorded(module: nn.Module, batches: Sequence[Tensor], plain: bool) -> Graph:
    """The graph of both batches, which must be the same in training and in scoring."""
    first, second = (batch.clone() for batch in batches)
    try:
        small = record(module.train(), first)
        drops = any(node.operation == SITE or _drops(node) for node in small.nodes)
        if drops or plain:
            large = record(module, second)
        else:
            large = record(module.eval(), second)
        graph = merged(small, large, SIZES)
        if drops and not plain:
            _check_scoring(module, batches)
    except Unknown:
        raise
    except FAULTS as error:
        raise Unknown(f"it cannot be recorded ({type(error).__name__})") from error
    return graph


def _drops(node: Node) -> bool:
    """Whether attention drops some of its weights."""
    return node.operation == ATTENTION and node.arguments[4] is not None


def _check_scoring(module: nn.Module, batches: Sequence[Tensor]) -> None:
    """Refuse a module that does more in training than to drop entries."""
    first, second = (batch.clone() for batch in batches)
    training = record(module.train(), first, sites=False)
    scoring = record(module.eval(), second, sites=False)
    merged(training, scoring, SIZES)


def _check_equal(
    graph: Graph,
    module: nn.Module,
    batches: Sequence[Tensor],
    compile: Compile,
    draw: torch.Generator,
) -> None:
    """Refuse a graph whose outputs or gradients are not the module's own.

    Rows are near the module's weights but not at them: some layers start at zero, and would hide
    whatever follows them.
    """
    space = ParameterLayout(module)
    step = compile(graph, space)
    row = space.row(module)
    rows = row + 0.1 * torch.randn(2, len(row), generator=draw, dtype=row.dtype)
    first, second = batches
    module.train()
    _compare(module, space, step, rows, torch.stack([first, first.flip(0)]))
    module.eval()
    _compare(module, space, step, rows[:1], second[None])


def _compare(
    module: nn.Module, space: ParameterLayout, step: Step, rows: Tensor, x: Tensor
) -> None:
    """Compare a pass of many models with the module's own, on the inputs x [n, B, ...]."""
    try:
        outputs, gradients = _of_graph(module, space, step, rows, x)
        for i, row in enumerate(rows):
            output, gradient = _of_module(module, space, row, x[i])
            if not bool(torch.isfinite(output).all()):
                raise Unknown("its outputs on random examples are not finite")
            if not _close(outputs[i], output):
                raise Unknown("its recording gives other outputs than the module")
            if not _close(gradients[i], gradient):
                raise Unknown("its recording gives other gradients than the module")
    except Unknown:
        raise
    except FAULTS as error:
        raise Unknown(f"its recording cannot be checked ({type(error).__name__})") from error


def _of_graph(
    module: nn.Module, space: ParameterLayout, step: Step, rows: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and gradients [n, P] of a pass of many models, in the mode of the module."""
    statistics = None
    if not module.training:
        statistics = norm.running(module, len(rows))
    leaves = [slot.view(rows).detach().requires_grad_() for slot in space.slots]
    with torch.enable_grad():
        outputs = step(Pass(leaves, statistics=statistics), x)
        total = (outputs * _weights(outputs[0])).sum()
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True)
    flat = [gradient.flatten(1) for gradient in gradients]
    return outputs.detach(), torch.cat(flat, dim=1)


def _of_module(
    module: nn.Module, space: ParameterLayout, row: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and the gradient [P] of the module itself."""
    leaves = [slot.view(row[None])[0].detach().requires_grad_() for slot in space.slots]
    values = {}
    for slot, leaf in zip(space.slots, leaves, strict=True):
        values[slot.name] = slot.oriented(leaf)
    with torch.enable_grad(), Recorder(Pass(leaves), module):  # nothing is dropped
        outputs: Tensor = functional_call(module, values, (x.clone(),))
        total = (outputs * _weights(outputs)).sum()
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True)
    flat = [gradient.flatten() for gradient in gradients]
    return outputs.detach(), torch.cat(flat)


def _weights(outputs: Tensor) -> Tensor:
    """Different numbers for all outputs, so that no two gradients are alike by chance."""
    count = torch.arange(outputs.numel(), dtype=torch.float64)
    return torch.cos(1.7 * count + 0.3).view(outputs.shape)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not other.numel():
        return True
    largest = other.abs().max()
    return bool((one - other).abs().max() <= _CLOSE * largest)
