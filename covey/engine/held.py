"""What a module must not hold: layers and tensors that no row can stand in for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covey.engine.norm import BatchNorm
from covey.errors import ModelError

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_KNOWN = ("torch.nn.", "covey.")
"""Whose classes of BatchNorm normalize by what a pass says."""


def check(module: nn.Module) -> None:
    """An error that names the first layer or parameter of a module that cannot train."""
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    for name, parameter in module.named_parameters():
        _check_parameter(name, parameter)


def _check_layer(name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    if isinstance(layer, torch.jit.ScriptModule):
        raise ModelError(
            f"layer {name!r} is {kind} of torch.jit, whose parameters cannot be replaced; give the "
            "module as it was before torch.jit.script or torch.jit.trace."
        )
    if isinstance(layer, _EMBEDDINGS) and (layer.scale_grad_by_freq or layer.sparse):
        raise ModelError(
            f"layer {name!r} is {kind} with scale_grad_by_freq or sparse; set both to False: rows "
            "are dense, and batches are filled up with examples that would be counted."
        )
    if isinstance(layer, BatchNorm) and not type(layer).forward.__module__.startswith(_KNOWN):
        raise ModelError(
            f"layer {name!r} is {kind}, a BatchNorm with a forward of its own, which would not "
            "run; use nn.BatchNorm1d to 3d, and put the rest into a layer beside it."
        )
    for key, value in vars(layer).items():
        if isinstance(value, Tensor) and value.grad_fn is not None:
            raise ModelError(
                f"layer {name!r} ({kind}) holds {key!r}, which was computed from parameters before "
                "the run, as torch.nn.utils.weight_norm does; compute it in forward, or use "
                "torch.nn.utils.parametrizations."
            )


def _check_parameter(name: str, parameter: Tensor) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ModelError(
            "the module has lazy layers; run one example through it first, so that their shapes "
            "are known."
        )
    if parameter.is_meta:
        raise ModelError(
            f"parameter {name!r} has no values (it is on the device 'meta'); use "
            "module.to_empty(device='cpu') and initialise it."
        )
    if parameter.is_complex():
        raise ModelError(
            f"parameter {name!r} is complex, but rows are real; hold a real parameter "
            "[..., 2] and use torch.view_as_complex in forward."
        )
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise ModelError(
            f"parameter {name!r} has a hook, which would not be called; use a hook of a layer, or "
            "change the gradient in forward."
        )
