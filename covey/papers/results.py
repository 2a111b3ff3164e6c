"""Results of rows on disk: one JSON file per paper, safe with several processes at once.

A result is {"rounds", "seeds", "score_every", "seconds", "device", "draws", "models": {model:
[accuracy of every seed]}}; older ones lack "score_every", "device" and "draws" (the rule of draws:
1 where the row would draw otherwise today, left out where it would not). A row has {"settings": its
digest, "paper": result, "honest": result}. A row whose settings are searched also has "search":
{"rounds", "seeds", "seconds", "points", "chosen"}.

Of two results of a row the better one stays: the one with more rounds, then more seeds, then
products in fp32, then more scored rounds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from covey import atomic
from covey.errors import ConfigError
from covey.papers import tables
from covey.papers.measure import Options, Protocol
from covey.papers.tables import Row
from covey.runs.saved import lock

Entry = Mapping[str, Any]
Results = Mapping[str, Entry]
"""What is stored of each row, by its key."""

_FILE = 0  # the byte of the lock file that stands for the file of results


def read(path: Path) -> dict[str, Entry]:
    """All results of a file; none where there is no file."""
    if path.parent.is_file():
        raise ConfigError(f"{path.parent} is a file; give a folder of results.")
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the results in {path}: {error}; move it away.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold results of rows; move it away.")
    for key, entry in content.items():
        whole = isinstance(entry, dict) and isinstance(entry.get("settings"), str)
        if not whole or not all(_PARTS[name](entry[name]) for name in _PARTS.keys() & entry):
            raise ConfigError(f"{path} does not hold a result of {key}; take it out.")
    return content


def read_papers(folder: Path, papers: Iterable[str]) -> dict[str, Results]:
    """The results of these papers in a folder; each file is read once."""
    return {paper: read(folder / f"{paper}.json") for paper in dict.fromkeys(papers)}


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "rounds": int,
    "seeds": int,
    "seconds": (int, float),
    "score_every": int,
    "device": str,
    "draws": int,
    "compute": str,
    "diverged": str,
    "missing": str,
    "points": list,
    "chosen": dict,
}
"""The kinds of what a result or a search may have, but for figures."""
_ALWAYS = ("rounds", "seeds", "seconds")


def _has_kinds(values: Any, always: Sequence[str] = _ALWAYS) -> bool:
    """Whether these names are there, and every known name has a value of its kind."""
    return (
        isinstance(values, dict)
        and values.keys() >= {*always}
        and all(isinstance(values[name], _KINDS[name]) for name in _KINDS.keys() & values)
    )


def _is_result(result: Any) -> bool:
    """Whether this has rounds, seeds and seconds, and figures by model and seed."""
    return _has_kinds(result) and all(
        isinstance(by_model, dict) and all(map(_are_numbers, by_model.values()))
        for by_model in (result.get("models", {}), result.get("area", {}))
    )


def _is_search(search: Any) -> bool:
    """Whether this has the points of a grid, each with its fields and scores."""
    return _has_kinds(search, (*_ALWAYS, "points")) and all(
        isinstance(point, dict)
        and isinstance(point.get("fields"), dict)
        and isinstance(point.get("validation"), dict)
        and _are_numbers([*point["validation"].values(), point.get("seconds")])
        for point in search["points"]
    )


_PARTS: Mapping[str, Callable[[Any], bool]] = {
    "paper": _is_result,
    "honest": _is_result,
    "search": _is_search,
}
"""What an entry may have besides the digest of its settings, and what each has to be."""


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)


def valid(results: Results, row: Row) -> Entry:
    """The results of a row, unless they are of other settings."""
    entry = results.get(row.key, {})
    return entry if entry.get("settings") == row.digest() else {}


def has(results: Results, row: Row, protocol: Protocol, options: Options) -> bool:
    """Whether there is a result of this row: of its settings, with as many rounds and seeds.

    A result in bf16 does not stand for one in fp32, nor one that was scored less often. Of an older
    result it is not known how often it was scored, and it stands.
    """
    result = valid(results, row).get(protocol)
    if result is None:
        return False
    enough = result["rounds"] >= options.rounds_of(row)
    exact = result.get("compute", options.compute) == options.compute
    often = result.get("score_every", 0) <= options.score_every_of(row)
    return bool(enough and exact and often and result["seeds"] >= options.seeds)


def is_better(result: Entry, other: Entry) -> bool:
    """Whether a result is better than another, by its size alone."""
    if _size(result) != _size(other):
        return _size(result) > _size(other)
    if "score_every" in result and "score_every" in other:
        return bool(result["score_every"] < other["score_every"])
    return False


def size_in_words(result: Entry) -> str:
    """The rounds and seeds of a result, and the type of products where it is not fp32.

    >>> size_in_words({"rounds": 800, "seeds": 3, "compute": "bf16"})
    '800 rounds, 3 seeds, bf16'
    """
    words = [f"{result['rounds']} rounds", f"{result['seeds']} seeds"]
    if "compute" in result:
        words.append(result["compute"])
    return ", ".join(words)


class ResultStore(AbstractContextManager["ResultStore"]):
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
            fix = "choose another folder"
            raise ConfigError(f"cannot write to {folder}: {error.strerror}; {fix}.") from error

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    def read(self) -> dict[str, Entry]:
        """All results."""
        return read(self.path)

    def put(
        self,
        row: Row,
        protocol: Protocol | Literal["search"],
        result: Entry,
    ) -> Entry | None:
        """Add the result of a row, or a search for it.

        Results of other settings of the row are dropped, and those of a shorter search. Where a
        better result is there, that one stays, and is returned.
        """
        with self._alone():
            content = self.read()
            entry = valid(content, row)
            before: Entry | None = entry.get(protocol)
            if before is not None and is_better(before, result):
                return before
            if not entry or (protocol == "search" and _rounds(before) != result["rounds"]):
                entry = {"settings": row.digest()}
            content[row.key] = {**entry, protocol: result}
            self._write(content)
        return None

    def merge(self, other: Path) -> tuple[int, int]:
        """Add the results of another file.

        Returns how many rows there are then, and how many of the other file bring nothing. A file
        that is not there is an error.

        Of two results of a row and protocol the better one stays. Results of the present settings
        of a row stay before those of old ones, and results of a finished or longer search before
        those of another.
        """
        if not other.exists():
            raise ConfigError(f"{other} does not exist; give files of results, PAPER.json.")
        own = tables.of_paper(self.path.stem)
        present = {row.key: row.digest() for table in own for row in table.rows}
        left = 0
        with self._alone():
            content = self.read()
            for key, entry in read(other).items():
                before = content.get(key)
                content[key] = _merged(before or {}, entry, present.get(key))
                left += content[key] == before
            self._write(content)
        return len(content), left

    @contextmanager
    def claim(self, row: Row, protocol: Protocol | Literal["search"]) -> Iterator[bool]:
        """Claim a row for this process while it runs; False where another process has it."""
        byte = _byte(f"{row.key} {protocol}")
        claimed = lock.try_lock_byte(self._locks, byte)
        try:
            yield claimed
        finally:
            if claimed:
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
        """Replace the file in one step; every result is a line."""
        rows = []
        for key, entry in content.items():
            lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in entry.items()]
            rows.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n}")
        atomic.write(self.path, "{\n" + ",\n".join(rows) + "\n}\n")


def _byte(text: str) -> int:
    """The byte of the lock file that stands for a row."""
    return 1 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def _merged(ours: Entry, theirs: Entry, present: str | None) -> dict[str, Any]:
    """What two files say of a row together; `present` is the digest of its settings today."""
    if not ours:
        return dict(theirs)
    if ours["settings"] != theirs["settings"]:
        return dict(theirs if theirs["settings"] == present else ours)
    if _chosen(ours) != _chosen(theirs):
        return dict(theirs if _searched(theirs) > _searched(ours) else ours)
    out = dict(ours)
    for name, result in theirs.items():
        if name != "settings" and not (name in out and is_better(out[name], result)):
            out[name] = result
    return out


def _chosen(entry: Entry) -> Any:
    """The point that a search has chosen; None where there is none, or not yet."""
    return entry.get("search", {}).get("chosen")


def _searched(entry: Entry) -> tuple[bool, int]:
    """How far a search is: whether it has chosen a point, and the rounds of its points."""
    return _chosen(entry) is not None, _rounds(entry.get("search"))


def _rounds(result: Entry | None) -> int:
    return int(result["rounds"]) if result else 0


def _size(result: Entry) -> tuple[int, int, bool, int]:
    points = len(result.get("points", ()))
    return result["rounds"], result["seeds"], "compute" not in result, points
