"""Changes to a TOML file that leave its comments, its order and everything else as they are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from covey.atomic import refused, replacing
from covey.errors import ConfigError
from covey.files.validate import parsed

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
    says = None
    with suppress(ConfigError):  # it may be no TOML any more
        says = parsed(after, "the file")
    if not lines or says != wanted:
        listed = ", ".join(f"{key} = {value!r}" for key, value in values.items())
        raise ConfigError(
            f"the file has [{section}] in a form that is not changed here; write into it: {listed}."
        )
    return after


def rewrite(path: Path, section: str, values: Mapping[str, float]) -> None:
    """Put numbers into a table of a file, in one step.

    The file keeps its line endings and permissions, and a link keeps pointing at it.
    """
    with open(path, newline="", encoding="utf-8") as file:
        text = edited(file.read(), section, values)
    target = path.resolve()
    with refused(path), replacing(target) as part:
        part.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(target, part)


def _with_value(
    lines: list[str],
    section: str,
    key: str,
    value: str,
) -> list[str]:
    """The lines with the value set.

    The value goes into the table's own lines, or into a line `section.key = value` above all
    tables.
    """
    for position in _places(lines, section):
        name = re.escape(f"{section}.{key}")
        if _header(lines, position) == section:
            name = f'{re.escape(key)}|"{re.escape(key)}"'
        match = re.match(_VALUE.format(key=name), lines[position])
        if match:
            changed = match["start"] + value + match["end"]
            return [*lines[:position], changed, *lines[position + 1 :]]
    return _with_line(lines, section, key, value)


def _with_line(
    lines: list[str],
    section: str,
    key: str,
    value: str,
) -> list[str]:
    """The lines with one more, behind the table's last line that says something."""
    places = _places(lines, section)
    name = key
    own = [position for position in places if _header(lines, position) == section]
    if not own:
        name = f"{section}.{key}"
        own = [p for p in places if lines[p].lstrip().startswith(f"{section}.")]
    if not own:
        return lines
    last = [position for position in own if not re.match(r"\s*(#|$)", lines[position])][-1]
    ending = "\r\n" if lines[last].endswith("\r\n") else "\n"
    if not lines[last].endswith(("\n", "\r")):
        lines = [*lines[:last], lines[last] + ending, *lines[last + 1 :]]
    return [*lines[: last + 1], f"{name} = {value}{ending}", *lines[last + 1 :]]


def _places(lines: list[str], section: str) -> list[int]:
    """The lines of a table, header included, and those above all tables."""
    return [
        position for position in range(len(lines)) if _header(lines, position) in (None, section)
    ]


def _header(lines: list[str], position: int) -> str | None:
    """The table that a line stands in; None above the first."""
    for line in reversed(lines[: position + 1]):
        if _HEADER.match(line):
            return line.split("#")[0].strip().strip("[]").strip()
    return None
