"""Low-rank adapters (LoRA, Hu et al., 2021) on the linear layers of any module.

A layer x -> W x + b becomes x -> W x + b + s B A x. W and b are frozen. A is [rank, in], B is
[out, rank] and zero at the start, and s = alpha / rank. So the module computes at first what it
computed before.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ModelError, shown


class Lora(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it.

    The layer is `base`, the adapter's matrices are the weights of `lora_a` and `lora_b`. They are
    plain linear layers, so that their products are batched as those of any other.
    """

    def __init__(self, base: nn.Module, *, rank: int, alpha: float) -> None:
        super().__init__()
        weight = _weight(base)
        outputs, inputs = weight.shape
        like = {"device": weight.device, "dtype": weight.dtype}
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(inputs, rank, bias=False, **like)
        self.lora_b = ZeroLinear(rank, outputs, bias=False, **like)
        self.alpha = alpha
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus the adapter's."""
        change = self.lora_b(self.lora_a(x))
        out: Tensor = self.base(x) + self.scale * change
        return out

    @property
    def weight(self) -> Tensor:
        """W + s B A, which torch's own layers read instead of calling this one."""
        change = self.lora_b.weight @ self.lora_a.weight
        return _weight(self.base) + self.scale * change

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias."""
        bias = self.base.bias
        assert bias is None or isinstance(bias, Tensor)
        return bias

    def merged(self) -> nn.Module:
        """The layer alone, with the adapter added to its weight."""
        layer = copy.deepcopy(self.base)
        weight = self.weight.detach()
        if _is_transposed(layer):
            weight = weight.t()
        with torch.no_grad():
            _parameter(layer).copy_(weight)
        return layer.requires_grad_(True)

    def extra_repr(self) -> str:
        """What decides the adapter besides its layers."""
        return f"alpha={self.alpha}"


class ZeroLinear(nn.Linear):
    """A linear layer whose initial weight is zero."""

    def reset_parameters(self) -> None:
        """Set the weight to zero."""
        nn.init.zeros_(self.weight)


def lora(
    module: nn.Module,
    *,
    rank: int = 4,
    alpha: float | None = None,
    layers: str | Sequence[str] = "*",
    train: str | Sequence[str] = (),
) -> nn.Module:
    """A copy of a module whose linear layers have adapters, and in which nothing else trains.

    `layers` and `train` are patterns of layers' names. Linear layers that match `layers` get an
    adapter of this rank. Layers that match `train`, such as a new head, train as a whole and get
    none. `alpha` is `rank` by default: then the adapter counts as it is.

    Of a run, rows and messages hold the adapters and the layers of `train` alone.

    >>> module = lora(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), train="2")
    >>> sum(p.numel() for p in module.parameters() if p.requires_grad)
    714
    """
    whole = copy.deepcopy(module)
    alpha = float(rank) if alpha is None else float(alpha)
    if type(rank) is not int or rank < 1:
        raise ModelError(f"lora(..., rank={shown(rank)}): give a whole number of 1 or more.")
    if not 0 < alpha < float("inf"):
        raise ModelError(f"lora(..., alpha={shown(alpha)}): give a number above 0.")
    names = [name for name, each in whole.named_modules() if name and list(each.parameters())]
    trained = _matching(names, _patterns(train), "train", "layer")
    adapted = _adaptable(whole, _patterns(layers), trained, rank)
    whole.requires_grad_(False)
    for name in trained:
        whole.get_submodule(name).requires_grad_(True)
    for name, layer in adapted.items():
        adapter = Lora(layer, rank=rank, alpha=alpha)
        if not name:  # the whole module is one linear layer
            return adapter
        _replace(whole, name, adapter)
    return whole


def merge(module: nn.Module) -> nn.Module:
    """A copy of a module without adapters: each is added to the weight beside which it stands.

    It has the layers and the names that it had before `lora`, and all of them train again. A module
    without adapters is returned as it is.

    >>> plain = nn.Sequential(nn.Linear(3, 2))
    >>> merge(lora(plain, rank=1))
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    if isinstance(module, Lora):
        return module.merged()
    if not any(isinstance(layer, Lora) for layer in module.modules()):
        return module
    whole = copy.deepcopy(module)
    for name, layer in list(whole.named_modules()):
        if isinstance(layer, Lora):
            _replace(whole, name, layer.merged())
    return whole.requires_grad_(True)


def _patterns(patterns: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        return (patterns,)
    return tuple(patterns)


def _matching(
    names: Sequence[str],
    patterns: Sequence[str],
    option: str,
    kind: str,
) -> list[str]:
    """The layers whose names match one of the patterns, each of which matches some."""
    matching = []
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ModelError(
                f"lora(..., {option}={pattern!r}) matches no {kind}; "
                f"they are {', '.join(map(repr, names))}."
            )
        matching += found
    return list(dict.fromkeys(matching))


def _adaptable(
    module: nn.Module, patterns: Sequence[str], trained: Sequence[str], rank: int
) -> dict[str, nn.Module]:
    """The linear layers that get an adapter, by name."""
    inside = tuple(f"{name}." for name in trained)
    linear = {
        name: layer
        for name, layer in module.named_modules()
        if name not in trained and not name.startswith(inside)
        if type(layer) in (nn.Linear, ZeroLinear) or _is_transposed(layer)
    }
    if not linear:
        raise ModelError(
            f"lora: {type(module).__name__} has no nn.Linear layer to adapt besides those of "
            "`train`; set requires_grad_(False) on the layers that are to stay as they are."
        )
    names = _matching(list(linear), patterns, "layers", "linear layer")
    out = {name: linear[name] for name in names}
    for name, layer in out.items():
        most = min(_weight(layer).shape)
        if rank > most:
            raise ModelError(
                f"lora(..., rank={rank}): layer {name!r} has rank {most} at most; "
                "give a smaller rank, or leave the layer out of `layers`."
            )
    return out


def _is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is Conv1D of `transformers`: a linear layer whose weight is [in, out]."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def _parameter(layer: Any) -> Tensor:
    weight: Tensor = layer.weight
    return weight


def _weight(layer: nn.Module) -> Tensor:
    """The weight of a linear layer, [out, in]."""
    weight = _parameter(layer)
    if _is_transposed(layer):
        return weight.t()
    return weight


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Put another layer where a layer of this name stands."""
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, layer)
