"""The records of a run, in a file that only grows.

The checkpoint beside it says how much of the file is its own. A checkpoint would otherwise hold all
records so far, and a run of T rounds write T^2 / 2 of them. What lies behind the length that a
checkpoint names was written by a process that died before its next checkpoint; it is cut off before
more is appended. A line may replace an earlier one of the same round, so a prefix that a checkpoint
counts on never changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.atomic import refused
from covey.errors import CheckpointError

_DIGEST = 16


def append_at(path: Path, length: int, text: bytes) -> None:
    """Write behind the first `length` bytes of a file, in place of the rest; wait for the disk."""
    with open(path, "r+b" if length else "wb") as file:
        file.truncate(length)
        file.seek(length)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class Journal:
    """One file of records, up to a length that this process knows to be good."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 0
        self.records = 0  # of the run's records, those that the file holds as they are
        self._sum = hashlib.blake2b(digest_size=_DIGEST)

    @staticmethod
    def beside(checkpoint: Path) -> Journal:
        """A new journal for a checkpoint.

        An old one beside it may belong to a run that can still go on.
        """
        stem = checkpoint.stem
        path = checkpoint.with_name(f"{stem}.history.jsonl")
        number = 1
        while path.exists():
            number += 1
            path = checkpoint.with_name(f"{stem}.history-{number}.jsonl")
        return Journal(path)

    @staticmethod
    def read(checkpoint: Path, facts: dict[str, Any]) -> tuple[Journal, list[dict[str, Any]]]:
        """The journal that a checkpoint names, and its records in order.

        A CheckpointError where it is damaged.
        """
        name = facts["file"]
        length = facts["length"]
        is_name = isinstance(name, str) and name == os.path.basename(name)
        if not is_name or type(length) is not int or length < 0:
            raise CheckpointError(
                f"{checkpoint} is damaged: its history is {name!r}, {length!r} bytes long."
            )
        journal = Journal(checkpoint.with_name(name))
        try:
            with open(journal.path, "rb") as file:
                text = file.read(length)
        except OSError as error:
            raise CheckpointError(
                f"{checkpoint} has its history in {journal.path}, which cannot be read ({error}); "
                "keep both files together."
            ) from error
        journal._sum.update(text)
        if len(text) < length or journal._sum.hexdigest() != facts["sum"]:
            raise CheckpointError(
                f"{journal.path} is damaged: it is not what was written with {checkpoint}."
            )
        journal.length = length
        by_round = {}
        for line in text.splitlines():
            record = json.loads(line)
            by_round[record["round"]] = record
        if list(by_round) != list(range(len(by_round))):
            raise CheckpointError(f"{journal.path} is damaged: it lacks rounds.")
        journal.records = len(by_round)
        return journal, list(by_round.values())

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {
            "file": self.path.name,
            "length": self.length,
            "sum": self._sum.hexdigest(),
        }

    @property
    def whole(self) -> bool:
        """Whether the file still holds what was written."""
        try:
            return self.path.stat().st_size >= self.length
        except OSError:
            return False

    def append(self, records: Sequence[dict[str, Any]], count: int) -> None:
        """Write records behind the last good one; then the file holds `count` of the run's."""
        text = "".join(json.dumps(record) + "\n" for record in records).encode()
        with refused(self.path, "an older checkpoint is untouched"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_at(self.path, self.length, text)
        self._sum.update(text)
        self.length += len(text)
        self.records = count
