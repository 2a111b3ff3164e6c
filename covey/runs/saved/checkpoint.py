"""A run on disk: one safetensors file with a JSON header.

It is written so that a crash leaves the old file or the new one. The file before the last stays
beside it (`previous`), should the last one be damaged later.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey import native
from covey.atomic import refused, replacing, sync
from covey.errors import CheckpointError, OtherExperiment

FORMAT = "covey-checkpoint-6"
ROWS = "rows"
"""The fact that says where rows lie in files of their own (covey/runs/saved/kept_rows.py)."""
PARTS = "parts"
"""The fact that lists the files of rows that several processes wrote
(covey/runs/saved/rank_parts.py).
"""
LACKS = "lacks"
"""The fact that says which rows a checkpoint does not have."""
CODE = " code"
"""How facts of an experiment end that are hashes of its code."""

_NO_BITS = (
    "advice", "cli", "deployed", "files", "folder", "grid", "laws", "papers", "report",
)  # fmt: skip
"""Folders of covey that decide no bits of a run, or those of a simulated one again."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Replace the file at `path` in one step and keep the one before.

    Whatever goes wrong, a good file there stays.
    """
    target = Path(path)
    tensors, metadata = as_file(checkpoint, FORMAT)
    with refused(target, "an older checkpoint there is untouched"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(target, tensors, metadata, keep=previous(target))


def as_file(checkpoint: Checkpoint, format: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a file that holds these tensors and facts."""
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        tensors[name] = tensor.detach().cpu().contiguous()
    facts = json.dumps(checkpoint.facts)
    header = {
        "format": format,
        "facts": facts,
        "facts_sum": _digest(facts.encode()),
        "sum": _sum(tensors),
    }
    return tensors, header


def previous(path: str | os.PathLike[str]) -> Path:
    """Where the checkpoint before the last one is."""
    target = Path(path)
    return target.with_name(f"{target.stem}.previous{target.suffix}")


def write_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    *,
    keep: Path | None = None,
) -> None:
    """Write a safetensors file, replaced in one step and synced.

    Equal contents give equal bytes. An old file stays at `keep`.
    """
    with replacing(path) as part:
        save_file(tensors, part, metadata=metadata)
        _sort_header(part)
        sync(part)
        if keep is not None and path.exists():
            with replacing(keep) as second:
                try:
                    os.link(path, second)
                except OSError:  # the disk has no links
                    shutil.copy2(path, second)
    sync(path.parent)


def _sort_header(path: Path) -> None:
    """Sort the metadata of a safetensors file.

    Its writer puts them in an order that differs from process to process.
    """
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:
            file.seek(8)
            file.write(text.ljust(length))


def read(path: str | os.PathLike[str], *, tensors: bool = True) -> Checkpoint:
    """The checkpoint at `path`, or its facts alone.

    An error says whether it is missing, foreign or damaged.
    """
    try:
        return _read(path, tensors)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}.") from error
    except DAMAGE as error:
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint: {error}{older(path)}."
        ) from error


def read_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The facts of the checkpoint at `path`."""
    return read(path, tensors=False).facts


DAMAGE = (OSError, SafetensorError, KeyError, ValueError, RecursionError, AttributeError)
"""Errors that a damaged file leads to."""


def _read(path: str | os.PathLike[str], with_tensors: bool) -> Checkpoint:
    tensors = {}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            has = metadata.get("format", "none")
            raise CheckpointError(
                f"{path} is not a checkpoint of this version: its format is {has}, not {FORMAT}; "
                "go on with the covey that wrote it, or start a new run."
            )
        if _digest(metadata["facts"].encode()) != metadata["facts_sum"]:
            raise CheckpointError(
                f"{path} is damaged: its facts are not what was written{older(path)}."
            )
        if with_tensors:
            tensors = tensors_of(file)
    if with_tensors and _sum(tensors) != metadata["sum"]:
        raise CheckpointError(
            f"{path} is damaged: its checksum is not that of its contents{older(path)}."
        )
    facts = json.loads(metadata["facts"])
    if not isinstance(facts, dict):
        raise ValueError(f"its facts are {facts!r:.50}")
    round = facts["round"]
    if type(round) is not int or round < 0:
        raise ValueError(f"it stands at round {round!r:.50}")
    if not isinstance(facts["experiment"], dict):
        raise ValueError(f"its experiment is {facts['experiment']!r:.50}")
    return Checkpoint(tensors, facts)


def tensors_of(file: Any) -> dict[str, Tensor]:
    """All tensors of an open safetensors file, by name.

    Windows replaces no file that is mapped into memory, so there they are copies.
    """
    names = file.keys()
    tensors = {name: file.get_tensor(name) for name in names}
    if os.name == "nt":
        return {name: tensor.clone() for name, tensor in tensors.items()}
    return tensors


def file_name(name: Any) -> str:
    """The name of a file beside a checkpoint, which it says; a ValueError where it has a folder."""
    if not isinstance(name, str) or name != os.path.basename(name):
        raise ValueError(f"a part of it is in the file {name!r:.80}")
    return name


def older(path: str | os.PathLike[str]) -> str:
    """What to do about a damaged checkpoint, as the end of a sentence on what is wrong with it."""
    before = previous(path)
    if before.exists():
        return f"; the one before it is {before}"
    return "; there is none before it, start the run anew"


def same_experiment(
    path: str | os.PathLike[str],
    saved: dict[str, str],
    wanted: dict[str, str],
    *,
    data: str = "the data",
) -> None:
    """An error that names the first thing in which a checkpoint's experiment differs from this one.

    `data` is what the experiment's data is called, for instance its file: a hash would say nothing.
    """
    of_another = f"{path} is of another experiment"
    anew = "or start a new run"
    for name in {**wanted, **saved}:
        if saved.get(name) == wanted.get(name):
            continue
        if name in ("draws", "covey"):
            made, this = (
                f"covey {facts.get('covey')} with draws = {facts.get('draws')}"
                for facts in (saved, wanted)
            )
            raise OtherExperiment(
                f"{path} was written by {made}, this is {this}: its next rounds could draw other "
                f"batches; go on with the covey that wrote it, {anew}."
            )
        if name == "data" and name in saved:
            raise OtherExperiment(
                f"{of_another}: {data} changed since it was written (its examples, or which device "
                f"holds which); put the old data back, {anew}."
            )
        if name == "frozen" and name in saved and name in wanted:
            raise OtherExperiment(
                f"{of_another}: the values of frozen parameters changed since it was written; "
                f"put the old weights back, {anew}."
            )
        if name.endswith(CODE) and name in saved and name in wanted:
            raise OtherExperiment(
                f"{of_another}: the {name} changed since it was written, or other lines of its "
                "modules did, which count too; put the old code back, start a new run, or go on "
                "anyway: covey run --resume DIR --anyway."
            )
        had, want = around_difference(str(saved.get(name)), str(wanted.get(name)))
        raise OtherExperiment(f"{of_another}: its {name} is {had}, this one's is {want}.")


def around_difference(had: str, want: str) -> tuple[str, str]:
    """Both texts near the first character in which they differ."""
    same = 0
    while had[same : same + 1] == want[same : same + 1] != "":
        same += 1
    start = max(0, same - 50)
    stop = same + 50
    before = "..." if start else ""
    excerpts = [
        f"{before}{text[start:stop]}{'...' if len(text) > stop else ''}" for text in (had, want)
    ]
    return excerpts[0], excerpts[1]


@cache
def versions() -> dict[str, str]:
    """Versions that may change the last bits: of torch, the native kernel and what trains."""
    package = Path(__file__).parents[2]
    files: list[Path] = []
    for pattern in ("*.py", "*.c", "*.h"):
        files += package.rglob(pattern)
    digest = hashlib.sha256()
    for file in sorted(files):
        folder = file.relative_to(package).parts[0]
        if folder not in _NO_BITS:
            digest.update(file.read_bytes())
    return {
        "torch": torch.__version__,
        "kernel": native.status(),
        "covey": digest.hexdigest()[:16],
        "processor": torch.backends.cpu.get_cpu_capability(),
        "MKL_CBWR": os.environ.get("MKL_CBWR", ""),
    }


def _sum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        head = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        digest.update(head.encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()
