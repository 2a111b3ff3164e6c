"""Results of rows on disk: one JSON file per paper, safe with several processes at once.

A result is {"rounds", "seeds", "seconds", "models": {model: [accuracy of every seed]}}. A row has
{"settings": its digest, "paper": result, "honest": result}. A row whose settings are searched also
has "search": {"rounds", "seeds", "seconds", "points", "chosen"}.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from covey.errors import ConfigError
from covey.papers.measure import PROTOCOLS, Options, Protocol
from covey.papers.tables import Row
from covey.runs import lock

Entry = Mapping[str, Any]
Results = Mapping[str, Entry]
"""What is stored of each row, by its key."""

_FILE = 0  # the byte of the lock file that stands for the file of results


def read(path: Path) -> dict[str, Entry]:
    """All results of a file; none where there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the results in {path}: {error}; move it away.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold results of rows; move it away.")
    for key, entry in content.items():
        if not _is_entry(entry):
            raise ConfigError(f"{path} does not hold a result of {key}; take it out.")
    return content


def _is_entry(entry: Any) -> bool:
    """Whether this is what a row has: the hash of its settings, and results."""
    if not isinstance(entry, dict) or "settings" not in entry:
        return False
    results = [entry[protocol] for protocol in PROTOCOLS if protocol in entry]
    return all(
        isinstance(result, dict) and all(name in result for name in ("rounds", "seeds", "seconds"))
        for result in results
    )


def valid(results: Results, row: Row) -> Entry:
    """The results of a row, unless they are of other settings."""
    entry = results.get(row.key, {})
    return entry if entry.get("settings") == row.digest() else {}


def has(results: Results, row: Row, protocol: Protocol, options: Options) -> bool:
    """Whether there is a result of this row: of its settings, with as many rounds and seeds.

    A result in bf16 does not stand for one in fp32.
    """
    result = valid(results, row).get(protocol)
    if result is None:
        return False
    enough = result["rounds"] >= options.rounds_of(row)
    exact = result.get("compute", options.compute) == options.compute
    return bool(enough and exact and result["seeds"] >= options.seeds)


class Store(AbstractContextManager["Store"]):
    """The results of one paper in a folder; use it in a `with`.

    Processes that write to one folder lock bytes of a file beside it. A process that ends, however
    it does, releases its locks. One process has one store of a paper: closing it releases all.
    """

    def __init__(self, folder: Path, paper: str) -> None:
        self.path = folder / f"{paper}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._locks = open(folder / f".{paper}.lock", "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error}; choose another.") from error

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    def read(self) -> dict[str, Entry]:
        """All results."""
        return read(self.path)

    def put(self, row: Row, protocol: Protocol | Literal["search"], result: Entry) -> None:
        """Add the result of a row, or a search for it.

        Results of other settings of the row are dropped, and those of a search of other length.
        """
        with self._alone():
            content = self.read()
            entry = valid(content, row)
            other = entry.get("search", {}).get("rounds") != result["rounds"]
            if not entry or (protocol == "search" and other):
                entry = {"settings": row.digest()}
            content[row.key] = {**entry, protocol: result}
            self._write(content)

    def merge(self, other: Path) -> int:
        """Add the results of another file, and return how many rows there are then.

        A file that is not there is an error.

        Of two results of a row and protocol the one with more rounds, then seeds, stays; of equal
        ones that in fp32.
        """
        if not other.exists():
            raise ConfigError(f"{other} does not exist; give files of results, PAPER.json.")
        with self._alone():
            content = self.read()
            for key, entry in read(other).items():
                content[key] = _merged(content.get(key, {}), entry)
            self._write(content)
        return len(content)

    @contextmanager
    def claim(self, row: Row, protocol: Protocol | Literal["search"]) -> Iterator[bool]:
        """Claim a row for this process while it runs; False where another process has it."""
        byte = _byte(f"{row.key} {protocol}")
        if not lock.try_lock_byte(self._locks, byte):
            yield False
            return
        try:
            yield True
        finally:
            lock.unlock_byte(self._locks, byte)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time changes the file."""
        lock.lock_byte(self._locks, _FILE)
        try:
            yield
        finally:
            lock.unlock_byte(self._locks, _FILE)

    def _write(self, content: Results) -> None:
        """Replace the file in one step."""
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        rows = [f"{json.dumps(key)}: {_text(entry)}" for key, entry in content.items()]
        part.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
        os.replace(part, self.path)


def _byte(text: str) -> int:
    """The byte of the lock file that stands for a row."""
    return 1 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def _merged(ours: Entry, theirs: Entry) -> dict[str, Any]:
    if _point(ours) != _point(theirs):
        return dict(theirs)
    out = dict(ours)
    for protocol, result in theirs.items():
        if protocol == "settings":
            continue
        before = out.get(protocol)
        if before is None or _size(before) <= _size(result):
            out[protocol] = result
    return out


def _point(entry: Entry) -> tuple[str | None, Entry | None]:
    """The settings of a row, and the point that a search has chosen."""
    return entry.get("settings"), entry.get("search", {}).get("chosen")


def _size(result: Entry) -> tuple[int, int, bool]:
    return result["rounds"], result["seeds"], "compute" not in result


def _text(entry: Entry) -> str:
    """One line per result."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in entry.items()]
    return "{\n" + ",\n".join(lines) + "\n}"
