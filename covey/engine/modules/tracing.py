"""From a module to a graph that is known to be the module's pass.

A recording may be wrong where the module does what it cannot see. So a graph of a user's own code
counts only if its outputs and gradients equal the module's own, in float64, on two batches of
different sizes. Plain `nn.Sequential`s of torch's layers need no such check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from covey.engine.modules import norm
from covey.engine.modules.batched import Step
from covey.engine.modules.graph import Graph, Unknown, merged, site_count
from covey.engine.modules.intercept import SiteRecorder
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass
from covey.engine.modules.recording import is_float, record
from covey.origin import FAULTS

_PRIMES = (5, 7, 11, 13, 17, 19)
"""Sizes of the batches that are recorded: two that are no lengths of an example."""
_CHECKED = (2, 3)
"""How many examples of each are checked."""
_CLOSE = 1e-9
"""Largest difference relative to the largest number of a tensor, in float64."""
_LARGE = 20_000_000
"""Models of more parameters are checked in float32, to spare memory."""
_LARGE_CLOSE = 1e-3
_PATTERN = 1009
"""Length of the noise that is repeated over a row; a prime, so that layers differ."""
_CACHED = 64

Compile = Callable[[Graph, ParameterLayout], Step]


def traced(
    space: ParameterLayout, example: torch.Size, sample: Tensor | None, compile: Compile
) -> tuple[Graph, Step]:
    """The graph of a module on examples of this shape, and its pass.

    Raises `Unknown` where there is none.

    `sample` are some examples. `compile` makes a pass of a graph, or raises `Unknown` itself.
    """
    # Refuse modules whose calls do more than their forward pass.
    for layer in space.module.modules():
        compiled = (
            type(layer).__name__ == "OptimizedModule" or layer._compiled_call_impl is not None
        )
        if compiled or isinstance(layer, torch.jit.ScriptModule):
            raise Unknown("it is compiled")
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
        if any(hooks) or layer._backward_pre_hooks:
            raise Unknown("it has hooks")
    if is_plain(space.module):
        graph = _plain_graph(space, example, sample, compile)
        return graph, compile(graph, space)
    module = copy.deepcopy(space.module).cpu()
    if space.width <= _LARGE:
        module = module.double()
    module = norm.for_recording(module)
    draw = torch.Generator().manual_seed(0)
    batches = _batches(module, example, sample, draw)
    graph = _recorded(module, batches, lambda graph: compile(graph, space))
    step = compile(graph, space)
    _check_equal(graph, module, batches, compile, draw)
    return graph, step


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a layer of torch's, or an nn.Sequential of such."""
    if "forward" in vars(module):
        return False
    if type(module) is nn.Sequential:
        return all(is_plain(child) for child in module.children())
    if not type(module).__module__.startswith("torch.nn.modules."):
        return False
    return not list(module.children()) and not list(module.buffers())


_plain_graphs: dict[Any, Graph] = {}


def _plain_graph(
    space: ParameterLayout, example: torch.Size, sample: Tensor | None, compile: Compile
) -> Graph:
    """The graph of torch's own layers, which is that of all modules with the same settings."""
    module = space.module
    integers = sample is not None and not sample.is_floating_point()
    # What decides the graph of torch's layers: their kinds, settings and parameters.
    settings: list[object] = []
    for layer in module.modules():
        values = [(key, repr(value)) for key, value in vars(layer).items() if key[0] != "_"]
        settings.append((type(layer), tuple(values)))
    for name, parameter in module.named_parameters():
        settings.append((name, parameter.shape, parameter.requires_grad))
    key = (tuple(settings), example, integers)
    if key in _plain_graphs:
        return _plain_graphs[key]
    if not all(layer.training for layer in module.modules()):
        module = copy.deepcopy(module).train()
    draw = torch.Generator().manual_seed(0)
    batches = _batches(module, example, sample, draw)
    graph = _recorded(module, batches, lambda graph: compile(graph, space))
    if all(parameter.requires_grad for parameter in module.parameters()):
        if len(_plain_graphs) >= _CACHED:
            _plain_graphs.clear()
        _plain_graphs[key] = graph  # it holds no tensor of the module
    return graph


def _batches(
    module: nn.Module, example: torch.Size, sample: Tensor | None, draw: torch.Generator
) -> list[Tensor]:
    """Two batches of different sizes: normal numbers, or else those that occur in the sample."""
    sizes = [size for size in _PRIMES if size not in example]
    if len(sizes) < 2:
        raise Unknown("its examples have too many axes")
    parameter = next(module.parameters())
    batches = []
    for size in sizes[:2]:
        if sample is None or sample.is_floating_point():
            x = torch.randn(size, *example, generator=draw)
            batches.append(x.to(parameter))
        else:
            chosen = torch.randint(sample.numel(), (size, *example), generator=draw)
            values = sample.flatten().cpu()
            batches.append(values[chosen].to(parameter.device))
    return batches


def _recorded(
    module: nn.Module, batches: Sequence[Tensor], check: Callable[[Graph], object]
) -> Graph:
    """The graph of both batches, which must be the same in training and in scoring.

    `check` raises `Unknown` where a recording has operations that are not known.
    """
    first, second = (batch.clone() for batch in batches)
    plain = is_plain(module)
    try:
        small = record(module.train(), first)
        check(small)
        large = record(module, second)
        graph = merged(small, large, (len(first), len(second)))
        if not plain:
            _check_scoring(module, batches[1])
    except Unknown:
        raise
    except FAULTS as error:
        raise Unknown(f"it cannot be recorded ({type(error).__name__})") from error
    return graph


def _check_scoring(module: nn.Module, batch: Tensor) -> None:
    """Refuse a module that does more in training than to drop entries and to normalize."""
    training = record(module.train(), batch.clone(), sites=False)
    scoring = record(module.eval(), batch.clone(), sites=False)
    try:
        merged(training, scoring, (len(batch), len(batch)))
    except Unknown as error:
        raise Unknown("its pass differs between training and scoring") from error


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
    pattern = torch.randn(_PATTERN, generator=draw).to(row)
    times = 2 * len(row) // _PATTERN + 1
    noise = pattern.repeat(times)[: 2 * len(row)]
    rows = row + 0.1 * noise.view(2, -1)
    first, second = (batch[:size] for batch, size in zip(batches, _CHECKED, strict=True))
    sites = site_count(graph)
    module.train()
    _compare(module, space, step, rows, torch.stack([first, first.flip(0)]), sites)
    module.eval()
    _compare(module, space, step, rows[:1], second[None], sites)


def _compare(
    module: nn.Module,
    space: ParameterLayout,
    step: Step,
    rows: Tensor,
    x: Tensor,
    sites: int,
) -> None:
    """Compare a pass of many models with the module's own, on the inputs x [n, B, ...]."""
    try:
        outputs, gradients = _of_graph(module, space, step, rows, x)
        for i, row in enumerate(rows):
            output, gradient = _of_module(module, space, row, x[i], sites)
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
    module: nn.Module, space: ParameterLayout, row: Tensor, x: Tensor, sites: int
) -> tuple[Tensor, Tensor]:
    """Outputs and the gradient [P] of the module itself, which must drop at so many sites."""
    leaves = [slot.view(row[None])[0].detach().requires_grad_() for slot in space.slots]
    values = {}
    for slot, leaf in zip(space.slots, leaves, strict=True):
        values[slot.name] = slot.oriented(leaf)
    mode = _Probe(Pass(leaves), module)  # nothing is dropped
    with torch.enable_grad(), mode:
        outputs: Tensor = functional_call(module, values, (x.clone(),))
        total = (outputs * _weights(outputs)).sum()
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True)
    flat = [gradient.flatten() for gradient in gradients]
    if module.training and len(mode.met) != sites:
        raise Unknown("which entries it drops depends on the size of the batch")
    return outputs.detach(), torch.cat(flat)


class _Probe(SiteRecorder):
    """The mode in which a module in float64 stays there: `x.float()` means the module's type."""

    def __init__(self, pass_: Pass, module: nn.Module) -> None:
        super().__init__(pass_, module)
        self.dtype = pass_.parameters[0].dtype

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if is_float(func, args, kwargs or {}):
            return args[0].to(self.dtype)
        return super().__torch_function__(func, types, args, kwargs)


def _weights(outputs: Tensor) -> Tensor:
    """Different numbers for all outputs, so that no two gradients are alike by chance."""
    count = torch.arange(outputs.numel(), dtype=outputs.dtype)
    return torch.cos(1.7 * count + 0.3).view(outputs.shape)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not other.numel():
        return True
    close = _CLOSE
    if other.dtype != torch.float64:
        close = _LARGE_CLOSE
    largest = other.abs().max()
    return bool((one - other).abs().max() <= close * largest)
