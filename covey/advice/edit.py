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
        _set(lines, section, key, repr(float(value)))
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


def _set(lines: list[str], section: str, key: str, value: str) -> None:
    """Set a value in the table's own lines, or in a line `section.key = value` above all tables.

    Where there is none, it is added behind the last line of them that says something.
    """
    tables: list[str | None] = []  # that every line stands in; None above the first
    for line in lines:
        if _HEADER.match(line):
            header = line.split("#")[0].strip()
            tables.append(header.strip("[]").strip())
        else:
            tables.append(tables[-1] if tables else None)
    dotted = f"{section}.{key}"
    names = {section: f'{re.escape(key)}|"{re.escape(key)}"', None: re.escape(dotted)}
    for position, table in enumerate(tables):
        if table not in names:
            continue
        match = re.match(_VALUE.format(key=names[table]), lines[position])
        if match:
            lines[position] = match["start"] + value + match["end"]
            return
    says = [n for n, line in enumerate(lines) if not re.match(r"\s*(#|$)", line)]
    own = [n for n in says if tables[n] == section]
    top = [n for n in says if tables[n] is None]
    above = [n for n in top if lines[n].lstrip().startswith(f"{section}.")]
    if own or above:
        last = (own or above)[-1]
        ending = "\r\n" if lines[last].endswith("\r\n") else "\n"
        added = f"{key if own else dotted} = {value}"
        lines[last : last + 1] = [lines[last].rstrip("\r\n") + ending, added + ending]
