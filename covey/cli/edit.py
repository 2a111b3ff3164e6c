"""Changes to a TOML file that leave its comments, its order and everything else as they are."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.cli.folder import refused
from covey.cli.validate import parsed
from covey.errors import ConfigError

_HEADER = re.compile(r"\s*\[")
_VALUE = r"(?P<start>\s*(?:{key})\s*=\s*)(?P<value>[^#\r\n]*?)(?P<end>\s*(?:#[^\r\n]*)?[\r\n]*)$"


def edited(text: str, section: str, values: Mapping[str, float]) -> str:
    """The text with these numbers in one of its tables.

    A line that sets a number is changed. Other numbers are added to the table's lines.

    >>> print(edited('[algorithm]\\nlr = 0.1  # mine\\n', "algorithm", {"lr": 0.2, "lam": 3.0}))
    [algorithm]
    lr = 0.2  # mine
    lam = 3.0
    <BLANKLINE>
    """
    before = parsed(text, "the file")
    lines = text.splitlines(keepends=True)
    for key, value in values.items():
        lines = _with_value(lines, section, key, repr(float(value)))
    after = "".join(lines)
    wanted = {**before, section: {**before.get(section, {}), **values}}
    if not lines or _table(after) != wanted:
        listed = ", ".join(f"{key} = {value!r}" for key, value in values.items())
        raise ConfigError(
            f"the file has [{section}] in a form that is not changed here; write into it: {listed}."
        )
    return after


def rewrite(path: Path, text: str) -> None:
    """Replace a file in one step; it keeps its permissions, and a link keeps pointing at it."""
    target = path.resolve()
    part = target.with_name(f".{target.name}.part")
    with refused(path):
        try:
            with open(part, "w", newline="", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(target, part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


def _table(text: str) -> dict[str, Any] | None:
    """What an edited text says; None where it is no TOML any more."""
    try:
        return parsed(text, "the file")
    except ConfigError:
        return None


def _with_value(lines: list[str], section: str, key: str, value: str) -> list[str]:
    """The lines with the value set.

    The value goes into the table's own lines, or into a line `section.key = value` above all
    tables.
    """
    for position in _places(lines, section):
        dotted = not _inside(lines, position, section)
        if dotted:
            name = re.escape(f"{section}.{key}")
        else:
            name = f'{re.escape(key)}|"{re.escape(key)}"'
        match = re.match(_VALUE.format(key=name), lines[position])
        if match:
            changed = match["start"] + value + match["end"]
            return [*lines[:position], changed, *lines[position + 1 :]]
    return _with_line(lines, section, key, value)


def _says_something(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _with_line(lines: list[str], section: str, key: str, value: str) -> list[str]:
    """The lines with one more, behind the table's last line that says something."""
    places = _places(lines, section)
    name = key
    own = [position for position in places if _inside(lines, position, section)]
    if not own:
        name = f"{section}.{key}"
        own = [p for p in places if lines[p].lstrip().startswith(f"{section}.")]
    if not own:
        return lines
    last = [position for position in own if _says_something(lines[position])][-1]
    ending = "\r\n" if lines[last].endswith("\r\n") else "\n"
    if not lines[last].endswith(("\n", "\r")):
        lines = [*lines[:last], lines[last] + ending, *lines[last + 1 :]]
    return [*lines[: last + 1], f"{name} = {value}{ending}", *lines[last + 1 :]]


def _places(lines: list[str], section: str) -> list[int]:
    """The lines of a table, header included, and those above all tables."""
    return [
        position for position in range(len(lines)) if _header(lines, position) in (None, section)
    ]


def _inside(lines: list[str], position: int, section: str) -> bool:
    return _header(lines, position) == section


def _header(lines: list[str], position: int) -> str | None:
    """The table that a line stands in; None above the first."""
    for line in reversed(lines[: position + 1]):
        if _HEADER.match(line):
            return line.split("#")[0].strip().strip("[]").strip()
    return None
