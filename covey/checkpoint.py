"""A run on disk: one safetensors file with a JSON header, written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.errors import CheckpointError

FORMAT = "covey-checkpoint-1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Replace the file at `path` in one step; whatever goes wrong, a good file there stays."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)
    try:
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in checkpoint.tensors.items()}
        save_file(tensors, name, metadata={"format": FORMAT, "facts": json.dumps(checkpoint.facts)})
        _sync(name)
        os.replace(name, target)
        _sync(target.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {target}: {error}; an older checkpoint there is untouched.") from error
    finally:
        Path(name).unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`; an error that says whether it is missing, foreign or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = metadata.get("format", "none")
                raise CheckpointError(f"{path} is not a checkpoint of this version: its format is {found}, not {FORMAT}.")
            return Checkpoint({key: file.get_tensor(key) for key in file.keys()}, json.loads(metadata["facts"]))  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}.") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: {error}; use an older one.") from error


def same_experiment(path: str | os.PathLike[str], saved: dict[str, str], wanted: dict[str, str]) -> None:
    """An error that names the first thing in which a checkpoint's experiment differs from this one."""
    for name in wanted:
        if saved.get(name) != wanted[name]:
            had, want = (str(value)[:120] for value in (saved.get(name), wanted[name]))
            raise CheckpointError(f"{path} is of another experiment: its {name} is {had}, this one's is {want}.")


def versions() -> dict[str, str]:
    """What may change the last bits between machines."""
    return {"torch": torch.__version__, "threads": str(torch.get_num_threads())}


def _sync(path: str | os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
