"""Pretrained weights from a safetensors file into a module."""

from __future__ import annotations

import os

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from covey.errors import ModelError

_SHOWN = 5
"""Names that an error lists."""


def load_weights(module: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """The module itself, with the values of a safetensors file.

    The file must have every parameter and persistent buffer of the module under its name and in
    its shape, and nothing else. Of tied parameters one name is enough.
    """
    try:
        with safe_open(path, framework="pt") as file:
            values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path} to take weights from.") from error
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} is not a safetensors file ({error}); "
            "write one with safetensors.torch.save_file(module.state_dict(), path)."
        ) from error
    wanted = module.state_dict()
    given = {_memory(wanted[name]) for name in values if name in wanted}
    missing = [
        name
        for name, own in wanted.items()
        if name not in values and not (own.numel() and _memory(own) in given)
    ]
    unexpected = [name for name in values if name not in wanted]
    if missing or unexpected:
        raise ModelError(_names_differ(path, module, missing, unexpected, values))
    for name, own in wanted.items():
        value = values.get(name, own)
        if value.shape != own.shape:
            shapes = f"{tuple(value.shape)} in the file, {tuple(own.shape)} in the module"
            raise ModelError(
                f"{path}: {name} has the shape {shapes}; give the model the sizes of the file."
            )
    with torch.no_grad():
        for name, value in values.items():
            wanted[name].copy_(value)
    return module


def _memory(value: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """That of tied parameters is the same."""
    return value.data_ptr(), value.shape, value.stride()


def _names_differ(
    path: str | os.PathLike[str],
    module: nn.Module,
    missing: list[str],
    unexpected: list[str],
    values: dict[str, Tensor],
) -> str:
    """Which names are missing in a file, or are too many."""
    faults = []
    if missing:
        faults.append(f"it lacks {_some(missing)}")
    if unexpected:
        faults.append(f"it has {_some(unexpected)}, which the module has not")
    text = f"{path} does not fit {type(module).__name__}: {'; '.join(faults)}."
    if "ids" in values:
        return f"{text} It holds the models of a run; write one of them with `covey export`."
    return f"{text} The names must be those of the module's state_dict()."


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        return f"{shown} and {len(names) - _SHOWN} more"
    return shown
