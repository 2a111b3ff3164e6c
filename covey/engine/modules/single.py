"""The pass of one model at a time, for rows that run one by one.

The tensors of such a pass have no axis of rows, and its parameters have the shapes of the module.
So it costs what the module itself costs. On a CPU convolutions run with channels last.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import GetSetDescriptorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.engine.modules import norm, rowwise
from covey.engine.modules.batched import (
    INPUTS,
    PASS,
    Instructions,
    Run,
    Step,
    machine,
    pooled_first,
)
from covey.engine.modules.dropout import drop
from covey.engine.modules.graph import (
    ATTENTION,
    BATCH_NORM,
    FILLED,
    INPUT,
    PARAMETER,
    SITE,
    Graph,
    Multiple,
    Operation,
    Shared,
    Unknown,
    Value,
)
from covey.engine.modules.intercept import Interception, attention_weights
from covey.engine.modules.layout import ParameterLayout, aligned, copy_to_run
from covey.engine.modules.passing import Pass

_NORMS = -4
"""The number of the pass for norms among the values that nodes read."""
Places = list[list[tuple[Any, Any]]]
"""Where a module holds the parameter of each slot: containers with their keys."""


def each(space: ParameterLayout, single: Step) -> Step:
    """Row by row, so that no row's bits can depend on its neighbours."""

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        outputs = []
        recorded: list[dict[int, Tensor]] = []
        for pass_of_row, x_of_row in zip(pass_.unbind(), x.unbind(), strict=True):
            parameters = space.oriented(pass_of_row.parameters)
            one = replace(pass_of_row, parameters=parameters)
            if pass_.recorded is not None:
                recorded.append({})
                one = replace(one, recorded=recorded[-1])
            outputs.append(single(one, x_of_row))
        if pass_.recorded is not None:
            for number in recorded[0]:
                pass_.recorded[number] = torch.cat([of_row[number] for of_row in recorded])
        return torch.stack(outputs)

    return apply


# The module itself


class ModuleOfThread(threading.local):
    """A copy of the layout's module for each thread, in which parameters are replaced.

    `alone` says that rows come one at a time. Then `places` are where parameters stand.
    """

    def __init__(self, space: ParameterLayout, *, alone: bool) -> None:
        self._space = space
        self._alone = alone
        self._norms = norm.Current(alone=alone)
        self._module: nn.Module | None = None
        self.places: Places = []

    def enter(self, pass_: Pass) -> nn.Module:
        """The module, whose BatchNorm layers follow the pass of one model."""
        space = self._space
        if self._module is None:
            self._module = norm.with_sites(copy_to_run(space.module), space.norms, self._norms)
            if self._alone:
                self.places = _places(self._module, space)
        if space.norms:
            self._norms.pass_ = norm.beside_rows(pass_)
        if self._module.training != pass_.training:
            self._module.train(pass_.training)
        return self._module

    def run(
        self,
        pass_: Pass,
        outputs: Callable[[], Tensor],
        *,
        batched: bool,
    ) -> Tensor:
        """What `outputs` gives, in a mode that drops by masks where there are any.

        In eval mode, layers of attention have a shortcut of other bits. It is not taken in a mode.
        """
        if not self._space.needs_mode and not pass_.masks:
            return outputs()
        mode = Interception(pass_, batched=batched)
        with mode:
            out = outputs()
        mode.finish()
        return out


def of_module(space: ParameterLayout) -> Step:
    """The module on one model's pass and inputs [B, ...].

    Its parameters are replaced where they stand, which is faster than `functional_call`.
    """
    own = ModuleOfThread(space, alone=True)

    def call(pass_: Pass, x: Tensor) -> Tensor:
        module = own.enter(pass_)
        for parameter, places in zip(pass_.parameters, own.places, strict=True):
            value = aligned(parameter)
            for container, key in places:
                container[key] = value
        if space.changes_inputs:
            x = x.clone()
        out = own.run(pass_, lambda: module(x), batched=False)
        # The layout of the output decides the kernels of the backward pass.
        return out.contiguous()

    return call


def _places(module: nn.Module, space: ParameterLayout) -> Places:
    """Where the module keeps the parameter of each slot, which may be in several layers."""
    numbers = {}
    for number, slot in enumerate(space.slots):
        numbers[id(module.get_parameter(slot.name))] = number
    places: Places = [[] for _ in space.slots]
    for layer in module.modules():
        containers: list[tuple[Any, Any, Tensor | None]] = [
            (layer._parameters, name, parameter) for name, parameter in layer._parameters.items()
        ]
        if isinstance(layer, nn.RNNBase):
            containers += _flat_weights(layer)
        for container, key, parameter in containers:
            if id(parameter) in numbers:
                places[numbers[id(parameter)]].append((container, key))
    return places


def _flat_weights(layer: nn.RNNBase) -> list[tuple[Any, Any, Tensor | None]]:
    """The list of weights from which a recurrent layer computes, by index.

    Before every pass the layer compares the list with its parameters, and makes it anew. Here it
    is told that nothing has changed: whoever replaces a parameter replaces it in the list too.
    """
    names = layer._flat_weights_names
    if any(name not in layer._parameters for name in names):
        return []  # a weight that is computed from others
    weights = [layer._parameters[name] for name in names]
    layer._flat_weights = weights
    layer._weights_have_changed = lambda: False  # type: ignore[method-assign]
    return [(weights, index, weight) for index, weight in enumerate(weights)]


# The graph of a module


def of_graph(graph: Graph, space: ParameterLayout) -> Step:
    """The pass of one model through a graph; raises `Unknown` where torch has no such function."""
    graph = pooled_first(graph)
    readers = graph.readers
    instructions: Instructions = []

    def then(run: Run, *reads: int) -> int:
        instructions.append((run, reads))
        return len(instructions) - 1

    registers = {PASS: PASS}
    if any(graph.nodes[number].operation == BATCH_NORM for number in graph.needed):
        registers[_NORMS] = then(norm.beside_rows, PASS)
    for number in graph.needed:
        node = graph.nodes[number]
        if node.operation == INPUT:
            registers[number] = INPUTS
        elif node.operation == PARAMETER:
            [name] = node.arguments
            if name not in space.numbers:
                raise Unknown(f"parameter {name} is not part of a row")
            slot = space.numbers[name]
            registers[number] = then(lambda pass_, slot=slot: pass_.parameters[slot], PASS)
        else:
            function = _function(node, graph, readers, space.module)
            node = _complete(node)
            reads = [registers[value.number] for value in node.values]
            registers[number] = then(_bound(function, node, space.module), INPUTS, *reads)
    # The layout of the output decides the kernels of the backward pass.
    output = then(Tensor.contiguous, registers[graph.output.number])
    return machine(instructions, output)


def _complete(node: Operation) -> Operation:
    """A node with all that its function reads: a ReLU its operand alone, some others the pass."""
    if node.operation == "relu":
        return Operation("relu", tuple(node.values), {}, node.shape)  # it may also say `inplace`
    if node.operation in (SITE, ATTENTION):
        return replace(node, arguments=(Value(PASS), *node.arguments))
    if node.operation == BATCH_NORM:
        return replace(node, arguments=(Value(_NORMS), *node.arguments))
    return node


def _bound(function: Callable[..., Any], node: Operation, module: nn.Module) -> Run:
    """The function of a node, from the inputs and the values that it reads."""
    places = {value.number: place for place, value in enumerate(node.values)}
    given = (*node.arguments, *node.keywords.values())
    template = [_constant(argument, module, places) for argument in given]
    whole = [(k, places[each.number]) for k, each in enumerate(given) if isinstance(each, Value)]
    parts = [k for k, each in enumerate(given) if _varies(each) and not isinstance(each, Value)]
    names = tuple(node.keywords)
    count = len(given) - len(names)

    def run(x: Tensor, *values: Any) -> Any:
        arguments = template.copy()
        for k, place in whole:
            arguments[k] = values[place]
        for k in parts:
            arguments[k] = _read(template[k], values, len(x))
        if names:
            named = dict(zip(names, arguments[count:], strict=True))
            out = function(*arguments[:count], **named)
        else:
            out = function(*arguments)
        return out if node.part is None else out[node.part]

    return run


def _varies(argument: Any) -> bool:
    """Whether an operand depends on the model or on the batch."""
    if isinstance(argument, tuple):
        return any(_varies(part) for part in argument)
    if isinstance(argument, slice):
        return _varies((argument.start, argument.stop, argument.step))
    return isinstance(argument, Value | Multiple)


def _constant(argument: Any, module: nn.Module, places: Mapping[int, int]) -> Any:
    """An operand with a module's tensors for those that all models share, and places of values."""
    if isinstance(argument, tuple):
        return tuple(_constant(part, module, places) for part in argument)
    if isinstance(argument, Value):
        return Value(places[argument.number])
    return argument.of(module) if isinstance(argument, Shared) else argument


def _read(argument: Any, values: Sequence[Any], size: int) -> Any:
    """An operand, given the values that its node reads and the size of the batch."""
    if isinstance(argument, Value):
        return values[argument.number]
    if isinstance(argument, Multiple):
        return argument.factor * size
    if isinstance(argument, tuple):
        return tuple(_read(part, values, size) for part in argument)
    if isinstance(argument, slice):
        return slice(*_read((argument.start, argument.stop, argument.step), values, size))
    return argument


# Functions

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Functions that replace those of torch, by name."""


def _replaces(*names: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Lets a function replace those of torch of these names."""

    def registered(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return registered


def _function(
    node: Operation, graph: Graph, readers: Mapping[int, list[int]], module: nn.Module
) -> Callable[..., Any]:
    """The function of torch that a node names, or what replaces it."""
    name = node.operation
    if name == "relu":
        # In place where no one else reads its operand, not even autograd.
        [operand] = node.values
        unsaved = graph.nodes[operand.number].operation in _UNSAVED
        return torch.relu_ if unsaved and len(readers[operand.number]) == 1 else torch.relu
    if name == FILLED:
        parameter = next(module.parameters())
        return partial(torch.full, dtype=parameter.dtype)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    for place in (F, torch, Tensor):
        function = getattr(place, name, None)
        if callable(function):
            called: Callable[..., Any] = function
            return called
    if isinstance(getattr(Tensor, name, None), property | GetSetDescriptorType):
        return operator.attrgetter(name)
    raise Unknown(f"{name} is not a known operation")


@_replaces(SITE)
def _dropped(pass_: Pass, x: Tensor, site: int, alpha_p: float | None) -> Tensor:
    return drop(x, pass_.masks[site], alpha_p) if pass_.masks else x


@_replaces(BATCH_NORM)
def _batch_norm(
    pass_: Pass,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    number: int,
    eps: float,
) -> Tensor:
    if weight is not None:
        weight = weight[None]
    if bias is not None:
        bias = bias[None]
    return norm.folded(pass_, number, x, weight=weight, bias=bias, eps=eps, alone=True)


@_replaces(ATTENTION)
def _attention(
    pass_: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    site: int | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention whose weights are dropped by a mask; torch's own where that will do."""
    if site is None or not pass_.masks:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale
        )
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    return drop(weights, pass_.masks[site]) @ value


def _by_point(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A convolution of images with channels last."""
    return lambda x, *arguments, **named: convolve(channels_last(x), *arguments, **named)


@_replaces("conv1d")
def _conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution of images of height 1, since only these have channels last."""
    if not isinstance(padding, str):
        padding = (0, _one(padding))
    steps, apart = (1, _one(stride)), (1, _one(dilation))
    image = channels_last(x.unsqueeze(2))
    out = F.conv2d(image, weight.unsqueeze(2), bias, steps, padding, apart, groups)
    return out.squeeze(2)


def _one(number: Any) -> int:
    """The number of one axis."""
    return int(number[0] if isinstance(number, tuple) else number)


def channels_last(x: Tensor) -> Tensor:
    """Images with the channels of a point side by side.

    A CPU convolves and pools them up to twice as fast.
    """
    if x.dim() != 4:
        return x
    if x.shape[1] == 1:
        # One channel has both layouts; only these strides make torch go on with channels last.
        height, width = x.shape[2:]
        by_point = x.reshape(len(x), height, width, 1)
        return by_point.movedim(-1, 1)
    return x.contiguous(memory_format=torch.channels_last)


def _keeps_layout(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that leaves channels last, with gradients that have the layout of its operand.

    Its own gradients would not, and a ReLU is five times slower if its two operands differ.
    """

    def call(x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if x.requires_grad and _is_last(x):
            x.register_hook(_GRADIENTS[x.dim()])  # type: ignore[no-untyped-call]
        return function(x, *arguments, **named)

    return call


_GRADIENTS: dict[int, Callable[[Tensor], Tensor]] = {
    3: lambda gradient: gradient.transpose(1, 2).contiguous().transpose(1, 2),
    4: lambda gradient: gradient.contiguous(memory_format=torch.channels_last),
}


def _is_last(x: Tensor) -> bool:
    """Whether series or images have the channels of a point side by side."""
    return x.dim() in (3, 4) and x.stride(1) == 1


@_replaces("mean")
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, **named: Any) -> Tensor:
    """A mean over all points of an image runs, and has its gradients, with channels last."""
    if dim is None:
        return torch.mean(x, **named)
    axes = dim if isinstance(dim, tuple) else (dim,)
    points = list(range(2, x.dim()))
    if not _is_last(x) or named or sorted(axis % x.dim() for axis in axes) != points:
        return torch.mean(x, dim, keepdim, **named)
    mean = x.movedim(1, -1).mean(tuple(range(1, x.dim() - 1)))
    if not keepdim:
        return mean
    ones = [1] * len(points)
    return mean.view(*mean.shape, *ones)


@_replaces("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def _adaptive_mean(x: Tensor, output_size: Any) -> Tensor:
    """Adaptive mean pooling of series and images."""
    points = tuple(range(2, x.dim()))
    if output_size in (1, (1,), (1, 1)) and len(points) in (1, 2) and _is_last(x):
        return _mean(x, points, keepdim=True)
    return _POOLS[len(points)](x, output_size)


_POOLS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d}


@_replaces("linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product of the kernel that many models would use, which tiny products decide."""
    if x.dim() != 2 or x.numel() * len(weight) >= _TINY:
        return F.linear(x, weight, bias)
    matrix = weight.t()[None]
    if bias is None:
        return rowwise.bmm(x[None], matrix)[0]
    return rowwise.baddbmm(bias[None, None], x[None], matrix)[0]


_TINY = 400
"""Products of fewer multiplications do not go to the library of matrix products."""
_UNSAVED = (
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "linear",
    "add",
    "max_pool1d",
    "max_pool2d",
    "avg_pool2d",
)
"""Operations whose results autograd does not keep."""
_FUNCTIONS |= {
    "getitem": operator.getitem,
    "view": _keeps_layout(Tensor.reshape),
    "reshape": _keeps_layout(Tensor.reshape),
    "flatten": _keeps_layout(torch.flatten),
    "view_as": Tensor.reshape_as,
    "conv2d": _by_point(F.conv2d),
    "conv_transpose2d": _by_point(F.conv_transpose2d),
}
