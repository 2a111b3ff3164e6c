"""A run on disk: one safetensors file with a JSON header, written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey import native
from covey.errors import CheckpointError

FORMAT = "covey-checkpoint-2"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Replace the file at `path` in one step; whatever goes wrong, a good file there stays."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in checkpoint.tensors.items()}
    facts = json.dumps(checkpoint.facts)
    metadata = {"format": FORMAT, "facts": facts, "facts_sum": _digest(facts.encode()), "sum": _sum(tensors)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, part, metadata=metadata)
            _sync(part)
            os.replace(part, target)
            _sync(target.parent)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {target}: {error}; an older checkpoint there is untouched.") from error


def read(path: str | os.PathLike[str], *, tensors: bool = True) -> Checkpoint:
    """The checkpoint at `path`, or its facts alone; an error that says whether it is missing, foreign or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                has = metadata.get("format", "none")
                raise CheckpointError(f"{path} is not a checkpoint of this version: its format is {has}, not {FORMAT}.")
            if _digest(metadata["facts"].encode()) != metadata["facts_sum"]:
                raise CheckpointError(f"{path} is damaged: its facts are not what was written; use an older one.")
            found = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
            if tensors and _sum(found) != metadata["sum"]:
                raise CheckpointError(f"{path} is damaged: its checksum is not that of its contents; use an older one.")
            return Checkpoint(found, json.loads(metadata["facts"]))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}.") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: {error}; use an older one.") from error


def same_experiment(path: str | os.PathLike[str], saved: dict[str, str], wanted: dict[str, str]) -> None:
    """An error that names the first thing in which a checkpoint's experiment differs from this one."""
    for name in {**wanted, **saved}:
        if saved.get(name) != wanted.get(name):
            had, want = _around_difference(str(saved.get(name)), str(wanted.get(name)))
            raise CheckpointError(f"{path} is of another experiment: its {name} is {had}, this one's is {want}.")


def _around_difference(had: str, want: str, reach: int = 50) -> tuple[str, str]:
    """Both texts near the first place where they differ."""
    at = next((i for i, (a, b) in enumerate(zip(had, want, strict=False)) if a != b), min(len(had), len(want)))
    start, stop = max(0, at - reach), at + reach
    before = "..." if start else ""
    return before + had[start:stop] + "..." * (len(had) > stop), before + want[start:stop] + "..." * (len(want) > stop)


@cache
def versions() -> dict[str, str]:
    """What may change the last bits: torch, the compiled kernel, and the files of covey itself."""
    package = Path(__file__).parent
    files = sorted(file for kind in ("*.py", "*.c", "*.h") for file in package.rglob(kind))
    mine = [file for file in files if file.relative_to(package).parts[0] not in ("cli", "report")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in mine))
    return {"torch": torch.__version__, "kernel": native.status(), "covey": digest.hexdigest()[:16]}


def _sum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _sync(path: str | os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
