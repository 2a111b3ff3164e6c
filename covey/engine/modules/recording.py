"""A forward pass recorded while it runs: every call of torch becomes a node of a graph.

The module runs as it is on a few examples, so that loops, conditions on shapes, parametrizations
and parameters used twice need no care. What a recording cannot see must refuse: a value read into
Python (`if x.sum() > 0`), a tensor that torch did not make, gradients switched off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from covey.engine.modules.dropout import is_site
from covey.engine.modules.generator import NoDraws, UnaddressedDraw
from covey.engine.modules.graph import (
    ATTENTION,
    BATCH_NORM,
    FILLED,
    FLOAT,
    INPUT,
    PARAMETER,
    SITE,
    Graph,
    Operation,
    Shared,
    Unknown,
    Value,
)
from covey.engine.modules.intercept import inside
from covey.engine.modules.norm import RecordedNorm

_ALPHA = ("alpha_dropout", "feature_alpha_dropout")
_DROPOUT = (
    "dropout",
    "dropout_",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_dropout",
    *_ALPHA,
)
_FACTS = {
    "__len__", "device", "dim", "dtype", "element_size", "is_complex", "is_contiguous", "is_cpu",
    "is_cuda", "is_floating_point", "is_nested", "is_sparse", "itemsize", "layout", "ndim",
    "ndimension", "nelement", "numel", "requires_grad", "shape", "size", "stride",
}  # fmt: skip
"""Calls that tell of a tensor what does not depend on its values."""
_REFUSED = {
    "_set_grad_enabled": "it switches gradients on or off",
    "data": "it takes the data of a tensor without its gradient",
    "empty": "it makes a tensor without values",
    "empty_like": "it makes a tensor without values",
    "new_empty": "it makes a tensor without values",
}
"""Calls after which a recording would not be the module's pass, and why."""
_FILLS = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like",
          "full_like"}  # fmt: skip
_SWAPPED = {"__rsub__": "sub", "__rdiv__": "div", "__rpow__": "pow", "__rmatmul__": "matmul"}
"""Operators whose operands stand the other way round."""
_OPERATORS = {"__getitem__": "getitem", "__pow__": "pow"}


def record(module: nn.Module, x: Tensor, *, sites: bool = True) -> Graph:
    """The graph of a module's pass on these examples; raises `Unknown` where there is none.

    Nothing is dropped. With `sites`, the places where training drops entries are nodes.
    """
    recorder = _Recorder(module, len(x), sites)
    start = recorder.make(INPUT, (), x)
    try:
        with torch.enable_grad(), NoDraws(), recorder:
            output: object = module(x)
    except UnaddressedDraw as error:
        raise Unknown(f"it draws at random by {error}") from error
    if recorder.refusal is not None:  # also where the module caught the exception
        raise Unknown(recorder.refusal)
    if not isinstance(output, Tensor):
        raise Unknown(f"it returns {type(output).__name__}, not a tensor")
    end = recorder.operand(output)
    if not isinstance(end, Value) or end == start:
        raise Unknown("its output does not depend on what it computes")
    return Graph(tuple(recorder.nodes), end)


class _Recorder(TorchFunctionMode):
    """The mode in which every call of torch on a tensor is noted."""

    def __init__(self, module: nn.Module, size: int, sites: bool) -> None:
        super().__init__()
        self._size = size
        self._dtype = next(module.parameters()).dtype
        self._notes_sites = sites
        self._sites = itertools.count()
        self.nodes: list[Operation] = []
        self.refusal: str | None = None
        # The names of the trainable parameters, by the id of the tensor.
        named = module.named_parameters()
        self._names = {id(parameter): name for name, parameter in named if parameter.requires_grad}
        # The numbers of the BatchNorm layers, by the id of their running mean.
        norms = [layer for layer in module.modules() if isinstance(layer, RecordedNorm)]
        self._norms = {id(layer.running_mean): layer.number for layer in norms}
        # The tensors of a module that do not train, by their id.
        self._operands: dict[int, Value | Shared] = {}
        for prefix, layer in module.named_modules():
            attributes = {**vars(layer), **layer._parameters, **layer._buffers}
            for key, tensor in attributes.items():
                if isinstance(tensor, Tensor) and not tensor.requires_grad:
                    name = f"{prefix}.{key}".lstrip(".")
                    self._operands.setdefault(id(tensor), Shared(tensor, name))
        self._alive: list[object] = []  # so that no tensor takes the id of one that is gone

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return self._recorded(func, tuple(args), dict(kwargs or {}))
        except Unknown as error:
            self.refusal = self.refusal or str(error)
            raise

    def _recorded(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a function gives, noted; some others stand in for torch's own."""
        name = _name(func)
        if name in _FACTS:
            return func(*args, **kwargs)
        if name in _REFUSED:
            raise Unknown(_REFUSED[name])
        if name in _DROPOUT:
            return self._dropout(name, *args, **kwargs)
        if name == ATTENTION:
            return self._attention(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # its body calls functions of torch
                return inside(F.multi_head_attention_forward)(*args, **kwargs)
        if is_float(func, args, kwargs):
            # x in the type of the parameters, which here may be float64
            x = args[0].to(self._dtype)
            operand = self.operand(args[0])
            if isinstance(operand, Value):
                self.make(FLOAT, (operand,), x)
            else:
                self._keep(x)
            return x
        return self._call(name, func, args, kwargs)

    def _call(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a function of torch gives, as one node or more where it has values."""
        operands = self._all(args)
        keywords = {key: self.operand(value) for key, value in kwargs.items()}
        out = func(*args, **kwargs)
        if name in _FILLS and self._size in out.shape:
            self.make(FILLED, (tuple(out.shape), out.flatten()[0].item()), out)
        elif Operation(name, operands, keywords).values:
            self._note(name, operands, keywords, out)
        elif name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            # A constant was changed in place; the module's own must stay as they are.
            tensor = args[0]
            operand = self._operands.get(id(tensor))
            if not isinstance(operand, Shared) or operand.name is not None:
                raise Unknown("it changes a tensor that it holds")
            self._operands[id(tensor)] = Shared(tensor.detach().clone())
        else:
            self._keep(out)
        return out

    def _dropout(
        self,
        name: str,
        input: Tensor,
        p: float = 0.5,
        training: bool | None = None,
        inplace: bool = False,
        *,
        train: bool = True,
    ) -> Tensor:
        """A site where training drops entries with probability p, or nothing."""
        if training is None:
            training = train and name not in _ALPHA
        if not training or not is_site(p) or not self._notes_sites:
            return input
        alpha_p = p if name in _ALPHA else None
        out = input * 1
        self.make(SITE, (self.operand(input), next(self._sites), alpha_p), out)
        return out

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """A layer of BatchNorm, whose statistics a pass decides."""
        number = self._norms.get(id(running_mean))
        if number is None:
            raise Unknown("it calls F.batch_norm itself")
        operands = self._all((input, weight, bias))
        out = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        self.make(BATCH_NORM, (*operands, number, eps), out)
        return out

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention whose dropout, if any, is a site."""
        operands = self._all((query, key, value, attn_mask))
        site = None
        if is_site(dropout_p) and self._notes_sites:
            site = next(self._sites)
        if enable_gqa:
            raise Unknown("its attention has groups of heads (enable_gqa)")
        settings: Any = {"is_causal": is_causal, "scale": scale}
        out = F.scaled_dot_product_attention(query, key, value, attn_mask, **settings)
        self.make(ATTENTION, (*operands, site, is_causal, scale), out)
        return out

    def _note(
        self,
        name: str,
        operands: tuple[Any, ...],
        keywords: dict[str, Any],
        out: object,
    ) -> None:
        """A node for every tensor that a call gave."""
        if name in _SWAPPED:
            operands = operands[::-1]
        name = _SWAPPED.get(name, _OPERATORS.get(name, name.rstrip("_")))
        if isinstance(out, Tensor):
            self.make(name, operands, out, keywords)
            return
        if name == "__setitem__":
            raise Unknown("it writes into a tensor")
        if not isinstance(out, tuple | list):
            raise Unknown(f"it reads values into Python ({name})")
        for part, tensor in enumerate(out):
            if isinstance(tensor, Tensor):
                self.make(name, operands, tensor, keywords, part)

    def make(
        self,
        operation: str,
        arguments: tuple[Any, ...],
        out: Tensor,
        keywords: Mapping[str, Any] | None = None,
        part: int | None = None,
    ) -> Value:
        """A node that makes this tensor."""
        shape = tuple(out.shape)
        self.nodes.append(Operation(operation, arguments, keywords or {}, shape, part))
        value = Value(len(self.nodes) - 1)
        self._operands[id(out)] = value
        self._alive.append(out)
        return value

    def _keep(self, out: object) -> None:
        """The tensors of a call on constants are constants."""
        parts = out if isinstance(out, tuple | list) else (out,)
        for tensor in parts:
            if isinstance(tensor, Tensor):
                self._operands.setdefault(id(tensor), Shared(tensor.detach().clone()))
                self._alive.append(tensor)

    def _all(self, arguments: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(self.operand(argument) for argument in arguments)

    def operand(self, argument: Any) -> Any:
        """An argument of a call as a graph holds it."""
        if isinstance(argument, Tensor):
            operand = self._operands.get(id(argument))
            if operand is not None:
                return operand
            name = self._names.get(id(argument))
            if name is None:
                raise Unknown("it uses a tensor whose origin is unknown")
            return self.make(PARAMETER, (name,), argument)
        if isinstance(argument, tuple | list):
            return self._all(argument)
        if isinstance(argument, slice):
            return slice(*self._all((argument.start, argument.stop, argument.step)))
        return argument


def is_float(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call turns a tensor to float32: `x.float()` or `x.to(torch.float32)`."""
    name = _name(func)
    settings = (*args[1:], *kwargs.values())
    if name in ("to", "type"):
        return settings == (torch.float32,)
    return name == "float" and not settings


def _name(func: Any) -> str:
    """The name of a function, method or property of torch."""
    name: str = func.__name__
    if name == "__get__":
        name = func.__self__.__name__
    return name
