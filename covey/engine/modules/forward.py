"""One forward pass for many models: rows [n, P] and inputs [n, B, ...] to outputs [n, B, ...].

There are three paths. "batched" runs the usual layers as batched products and grouped convolutions.
"each" runs one row after the other, which on a CPU beats a grouped convolution. "vmap" runs any
other module. Modules that vmap cannot run, such as an LSTM, run on the path "each" too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from covey.engine.modules import axes as axes
from covey.engine.modules import rules, single
from covey.engine.modules.batched import Compiler, Step, pooled_first
from covey.engine.modules.graph import Graph, Unknown
from covey.engine.modules.layout import FrozenParameter, ParameterLayout, Slot, aligned
from covey.engine.modules.passing import Pass
from covey.engine.modules.tracing import traced
from covey.origin import FAULTS


@dataclass(frozen=True)
class Forward:
    """The pass and its path: "batched", "each" or "vmap"."""

    path: str
    apply: Step
    graph: Graph | str = "the module was not recorded"  # or why the module has none of known layers
    single: Step | None = None
    """Where rows run one by one: the pass of one model (`single.py`)."""

    def __call__(self, pass_: Pass, x: Tensor) -> Tensor:
        """Outputs for inputs [n, B, ...]."""
        if len(x):
            return self.apply(pass_, x)
        # Neither vmap nor a convolution takes no rows: a row of zeros tells the shape.
        zeros = pass_.map(_row_of_zeros)
        outputs = self.apply(zeros, _row_of_zeros(x))
        return outputs[:0]

    def statistics(self, pass_: Pass, x: Tensor) -> dict[int, Tensor]:
        """What every BatchNorm layer takes from the inputs, [n, 2, C] by number."""
        recorded: dict[int, Tensor] = {}
        self(replace(pass_, statistics=None, recorded=recorded), x)
        if len(x):
            return recorded
        return {number: values[:0] for number, values in recorded.items()}


def _row_of_zeros(rows: Tensor) -> Tensor:
    shape = rows.shape[1:]
    return rows.new_zeros(1, *shape)


def forward(
    space: ParameterLayout,
    example: torch.Size,
    device: str = "cpu",
    sample: Tensor | None = None,
) -> Forward:
    """The fastest exact pass for this module, this shape of example and this type of device.

    `sample` are some examples [B, ...], on which vmap is tried before it is chosen.
    """
    passes = graph_pass(space, example, device, sample)
    if isinstance(passes, str):
        return module_pass(space, device, sample, passes)
    return passes


def graph_pass(
    space: ParameterLayout, example: torch.Size, device: str, sample: Tensor | None
) -> Forward | str:
    """The pass of a module's graph, or why it has none of known operations.

    It goes row by row where it convolves on a CPU.
    """

    def by_row(graph: Graph) -> bool:
        return device == "cpu" and any(n.operation in rules.CONVOLUTIONS for n in graph.nodes)

    def compiled(graph: Graph, space: ParameterLayout) -> Step:
        if by_row(graph):
            return single.each(space, single.of_graph(graph, space))
        return Compiler(pooled_first(graph), space).step()

    try:
        graph, step = traced(space, example, sample, compiled)
    except Unknown as error:
        return str(error)
    if by_row(graph):
        return _by_row(space, graph, single.of_graph(graph, space))
    return Forward("batched", step, graph)


def _by_row(space: ParameterLayout, graph: Graph | str, one: Step) -> Forward:
    """The path "each": one model after the other."""
    return Forward("each", single.each(space, one), graph, one)


def module_pass(space: ParameterLayout, device: str, sample: Tensor | None, reason: str) -> Forward:
    """The pass through a module of unknown layers: vmap, or row by row where vmap cannot.

    Under vmap no backward hook is called, of a layer or of a tensor in `forward`. On a CPU
    convolutions always run row by row, which is faster.
    """
    unknown = f"{type(space.module).__name__} is not a graph of known layers: {reason}"
    by_row = _by_row(space, unknown, single.of_module(space))
    if any(layer._backward_hooks or layer._backward_pre_hooks for layer in space.module.modules()):
        return by_row
    convolution = nn.modules.conv._ConvNd
    if device == "cpu" and any(isinstance(layer, convolution) for layer in space.module.modules()):
        return by_row
    by_vmap = Forward("vmap", _vmapped(space), unknown)
    if sample is None:
        return by_vmap
    with _Hooks() as hooks:
        fault_by_row = _fault(by_row, space, sample)
    if hooks.met and fault_by_row is None:
        return by_row
    fault = _fault(by_vmap, space, sample)
    if fault is None or "random" in fault:  # the trial of the task refuses random draws
        return by_vmap
    if fault_by_row is None:
        return replace(by_row, graph=f"{unknown}, and {fault}")
    return by_vmap  # neither works: the trial of the task says why


class _Hooks(TorchFunctionMode):
    """Notes whether a pass gives a tensor a backward hook."""

    met = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        self.met |= func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


def _fault(passes: Forward, space: ParameterLayout, sample: Tensor) -> str | None:
    """Why two models cannot run on these examples, forward and backward; None where they can."""
    row = space.row(space.module).to(sample.device)
    rows = torch.stack([row, row])
    leaves = [slot.view(rows).requires_grad_() for slot in space.slots]
    inputs = torch.stack([sample, sample])
    try:
        # cuDNN has no backward pass of an LSTM in eval mode.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for training in (False, True):
                outputs: object = passes(Pass(leaves, training=training), inputs)
                if isinstance(outputs, Tensor) and outputs.requires_grad:
                    torch.autograd.grad(outputs.sum(), leaves, allow_unused=True)
    except FAULTS as error:
        # Why vmap failed, in plain words where it has no rule for an operator.
        text, _, _ = str(error).partition(". ")
        operator = text.partition("Batching rule not implemented for ")[2]
        if operator:
            name, _, _ = operator.partition(".")
            return f"vmap has no rule for {name}"
        return f"vmap fails on it ({text})"
    return None


def _vmapped(space: ParameterLayout) -> Step:
    """The module itself on the passes of all models at once.

    functional_call swaps parameters in place, so every worker has a module.
    """
    own = single.ModuleOfThread(space, alone=False)

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        whole = space.with_frozen(pass_)

        def one(tensors: list[Tensor], x: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
            recorded: dict[int, Tensor] = {}
            of_one = whole.with_tensors(tensors)
            if pass_.recorded is not None:
                of_one = replace(of_one, recorded=recorded)
            module = own.enter(of_one)
            out = own.run(of_one, lambda: run_module(space, module, of_one, x), batched=True)
            return out, {number: values[0] for number, values in recorded.items()}

        out, recorded = vmap(one)(whole.tensors, x)
        if pass_.recorded is not None:
            pass_.recorded.update(recorded)
        return out

    return apply


def run_module(space: ParameterLayout, module: nn.Module, pass_: Pass, x: Tensor) -> Tensor:
    """The outputs of a module of the layout with one model's parameters, [B, ...].

    Frozen parameters that the pass does not have are the module's own.
    """
    values = {}
    stored: list[Slot | FrozenParameter] = [*space.slots, *space.frozen]
    for part, parameter in zip(stored, pass_.parameters, strict=False):
        values[part.name] = part.oriented(aligned(parameter))
    if space.changes_inputs:
        x = x.clone()
    out: Tensor = functional_call(module, values, (x,))
    return out
