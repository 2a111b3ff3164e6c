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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.atomic import refused
from covey.errors import CheckpointError

_DIGEST = 16


class CountedFile:
    """A file that only grows, up to a length that this process knows to be good."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 0
        self._sum = hashlib.blake2b(digest_size=_DIGEST)

    def append(self, text: bytes) -> None:
        """Write behind the last good byte, in place of the rest; wait for the disk."""
        with open(self.path, "r+b" if self.length else "wb") as file:
            file.truncate(self.length)
            file.seek(self.length)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._sum.update(text)
        self.length += len(text)

    def read(self, facts: Mapping[str, Any]) -> bytes | None:
        """As much as a checkpoint with these facts counts on; None where that is not there.

        An OSError where the file cannot be read.
        """
        with open(self.path, "rb") as file:
            text = file.read(facts["length"])
        self._sum.update(text)
        self.length = len(text)
        whole = self.length == facts["length"] and self._sum.hexdigest() == facts["sum"]
        return text if whole else None

    def facts(self) -> dict[str, Any]:
        """How long it is, and a checksum of that much of it."""
        return {"length": self.length, "sum": self._sum.hexdigest()}


class Journal:
    """The file of a run's records."""

    def __init__(self, path: Path) -> None:
        self.file = CountedFile(path)
        self.records = 0  # of the run's records, those that the file holds as they are

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
            text = journal.file.read(facts)
        except OSError as error:
            raise CheckpointError(
                f"{checkpoint} has its history in {journal.file.path}, which cannot be read "
                f"({error}); keep both files together."
            ) from error
        if text is None:
            raise CheckpointError(
                f"{journal.file.path} is damaged: it is not what was written with {checkpoint}."
            )
        by_round = {}
        for line in text.splitlines():
            record = json.loads(line)
            by_round[record["round"]] = record
        if list(by_round) != list(range(len(by_round))):
            raise CheckpointError(f"{journal.file.path} is damaged: it lacks rounds.")
        journal.records = len(by_round)
        return journal, list(by_round.values())

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {"file": self.file.path.name, **self.file.facts()}

    @property
    def whole(self) -> bool:
        """Whether the file still holds what was written."""
        try:
            return self.file.path.stat().st_size >= self.file.length
        except OSError:
            return False

    def append(self, records: Sequence[dict[str, Any]], count: int) -> None:
        """Write records behind the last good one; then the file holds `count` of the run's."""
        text = "".join(json.dumps(record) + "\n" for record in records).encode()
        with refused(self.file.path, "an older checkpoint is untouched"):
            self.file.path.parent.mkdir(parents=True, exist_ok=True)
            self.file.append(text)
        self.records = count
