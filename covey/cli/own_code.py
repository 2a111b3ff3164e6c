"""The modules of a user's own that an experiment names: they travel with it to every node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from covey.cli.config import Config
from covey.cli.folder import refused
from covey.deployed.own_models import replace_text
from covey.errors import ConfigError
from covey.runs import source

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def own_modules(config: Config) -> dict[str, str]:
    """The texts of the modules that an experiment names and of those that they import, by path.

    Installed packages are not among them.
    """
    out = {}
    for path, file in sorted(source.own_files(_named(config)).items()):
        try:
            out[path] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be sent to the nodes: {error}.") from error
    return out


def write_modules(folder: Path, texts: Mapping[str, str]) -> None:
    """Write modules below a folder; each file is replaced in one step."""
    for path, text in texts.items():
        file = folder / path
        with refused(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)


def _named(config: Config) -> list[str]:
    """The modules of all that is named as package.module:name."""
    table = config.resolved()
    table.pop("deploy", None)
    return [text.partition(":")[0] for text in _texts(table) if _OWN.fullmatch(text)]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a table, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
