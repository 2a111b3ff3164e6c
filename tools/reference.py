"""docs/reference.md, from the classes of options: `python -m tools.reference` writes the page."""

from __future__ import annotations

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from covey.algorithms import ALGORITHMS
from covey.codecs import CODECS
from covey.fields import REQUIRED, Option, meanings, options, plain, spelled, words
from covey.files import registry
from covey.files.named import meaning, schema
from covey.files.registry import KINDS
from covey.files.settings import SETTINGS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
HEAD = """# Every option of a file

A key, what it may be, its default and its meaning. In Python an experiment has the same options
as keywords. `covey list settings` shows these tables too, `covey list algorithms pfedme` those of
one method. A value that may be `"none"` is None in Python.

`python -m tools.reference` writes this page from the classes that state the options.
"""


def page() -> str:
    """The whole page."""
    out = [HEAD]
    for name, kind in SETTINGS.items():
        out += [f"\n## {name}\n\n", f"{first_line(kind)}\n\n", *rows(options(kind), meanings(kind))]
    out.append("\n## Algorithms\n")
    for name, algorithm in ALGORITHMS.items():
        told = {key: meaning(name, key, algorithm) for key in options(algorithm)}
        out += [f"\n### {name}\n\n", *rows(schema(algorithm, "algorithm"), told)]
    for section in ("data", "model"):
        out.append(f"\n## {section.capitalize()}\n")
        for name, entry in registry.REGISTRY[KINDS[section]].items():
            if ":" not in name:
                out += [f"\n### {name}\n\n", *rows(schema(entry.make, section), {})]
    out.append("\n## Codecs\n")
    for name, codec in CODECS.items():
        kind = type(codec)
        free = {key: each for key, each in options(kind).items() if each.default is not REQUIRED}
        out += [f"\n### {name}\n\n", f"{first_line(kind)}\n\n", *rows(free, meanings(kind))]
    return "".join(out)


def first_line(kind: Any) -> str:
    """The first line of a docstring."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def rows(schema: dict[str, Option], told: dict[str, str]) -> list[str]:
    """The lines of a table of options."""
    if not schema:
        return ["It has no options.\n"]
    out = ["| key | value | default | meaning |\n", "|---|---|---|---|\n"]
    for key, option in schema.items():
        default = "must be given"
        if is_dataclass(option.default):
            default = "those of its table"
        elif option.default is not REQUIRED:
            default = f"`{spelled(plain(option.default, option.hint))}`"
        cells = (f"`{key}`", words(option.hint), default, told.get(key, ""))
        out.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return out


if __name__ == "__main__":
    PAGE.write_text(page())
