"""The rows of a checkpoint that several processes write: each rank has a file of its own.

All ranks write their files, and then rank 0 writes the checkpoint, which names them and has the
length and a checksum of each. The name of a file has a checksum of its contents, so no file takes
the place of another. A file goes when neither the checkpoint nor the one before it names it. So
whenever a process ends, the last checkpoint and its files are whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from covey.errors import CheckpointError
from covey.runs.saved import checkpoint
from covey.runs.saved.checkpoint import Checkpoint

FORMAT = "covey-part-1"
_DIGEST = 8
PartFacts = Mapping[str, Any]
"""What a checkpoint says of one file: its name, its length and its checksum."""


def write(
    target: Path,
    part: Checkpoint,
    *,
    rank: int,
    world: int,
) -> dict[str, Any]:
    """Write the rows of one rank beside the checkpoint that will be at `target`."""
    tensors, header = checkpoint.as_file(part, FORMAT)
    digest = _digest(header)
    number = part.facts["round"]
    name = f"{target.stem}.part-{rank}-of-{world}.{number}.{digest}{target.suffix}"
    path = target.with_name(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_tensors(path, tensors, header)
        length = path.stat().st_size
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"rank {rank} cannot write {path}: {error}; an older checkpoint is untouched."
        ) from error
    return {"file": name, "length": length, "sum": digest}


def check_visible(target: Path, parts: Sequence[PartFacts]) -> None:
    """Raise unless this process sees the files of all ranks."""
    for rank, part in enumerate(parts):
        path = target.with_name(part["file"])
        if not path.exists() or path.stat().st_size != part["length"]:
            raise CheckpointError(
                f"rank 0 cannot see {path}, which rank {rank} has written; "
                "save to a folder that all machines share."
            )


def clean(target: Path, parts: Sequence[PartFacts]) -> None:
    """Remove files that neither the checkpoint with these parts nor the one before names.

    Nothing is removed where the one before cannot be read.
    """
    stem = re.escape(target.stem)
    digits = rf"[0-9a-f]{{{2 * _DIGEST}}}"
    pattern = rf"{stem}\.part-\d+-of-\d+\.\d+\.{digits}{re.escape(target.suffix)}"
    files = {name for name in os.listdir(target.parent) if re.fullmatch(pattern, name)}
    if not files:
        return
    named = {part["file"] for part in parts}
    before = checkpoint.previous(target)
    if before.exists():
        try:
            facts = checkpoint.read_facts(before)
            named |= {_file_name(part) for part in _listed(facts)}
        except (CheckpointError, ValueError):
            return
    for name in files - named:
        target.with_name(name).unlink(missing_ok=True)


def read(path: Path, facts: Mapping[str, Any]) -> Iterator[Checkpoint]:
    """The parts of a checkpoint with these facts, in id order; none where one process wrote it."""
    for part in _listed(facts):
        yield _read(path, part)


def check(path: Path, facts: Mapping[str, Any]) -> None:
    """Raise unless all parts of a checkpoint are there and whole."""
    try:
        for _ in read(path, facts):
            pass
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}{checkpoint.older(path)}.") from error


def _read(path: Path, part: PartFacts) -> Checkpoint:
    """One part; an error names its file."""
    file = path.with_name(_file_name(part))
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {})["facts"])
            out = Checkpoint(checkpoint.tensors_of(opened), facts)
        _, header = checkpoint.as_file(out, FORMAT)
        whole = _digest(header) == part["sum"]
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} has rows in {file}, which is missing; put it back: a checkpoint and its parts "
            f"belong together{checkpoint.older(path)}."
        ) from error
    except checkpoint.DAMAGE as error:
        raise CheckpointError(f"{file} is damaged: {error}{checkpoint.older(path)}.") from error
    if not whole:
        raise CheckpointError(
            f"{file} is damaged: it is not what was written with {path}{checkpoint.older(path)}."
        )
    return out


def _listed(facts: Mapping[str, Any]) -> list[PartFacts]:
    """What a checkpoint says of its parts."""
    parts = facts.get(checkpoint.PARTS, [])
    if not isinstance(parts, list):
        raise ValueError(f"its parts are {parts!r:.80}")
    return parts


def _file_name(part: PartFacts) -> str:
    return checkpoint.file_name(part.get("file") if isinstance(part, dict) else part)


def _digest(header: Mapping[str, str]) -> str:
    """A checksum of the facts and the tensors of a part."""
    sums = header["facts_sum"] + header["sum"]
    return hashlib.blake2b(sums.encode(), digest_size=_DIGEST).hexdigest()
