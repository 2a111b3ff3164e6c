"""`covey list`: what an experiment file can name."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
import typer
from rich.markup import escape

from covey.cli.options import AsJson
from covey.folder.terminal import Console

if TYPE_CHECKING:
    from covey.files.registry import Listed


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    data = "data"
    models = "models"
    partitions = "partitions"
    codecs = "codecs"
    policies = "policies"
    settings = "settings"


def list_(
    kind: Annotated[
        Kind | None,
        typer.Argument(help="What to list. Default: the names of every kind."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="One of them: its table, with defaults and meanings."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """With a name, show its table: every field, its default and its meaning.

    Examples:

      covey list

      covey list algorithms

      covey list algorithms pfedme

      covey list codecs --json
    """
    import covey.files.settings  # noqa: F401  # which it lists
    from covey.files import registry
    from covey.files.config import defaults

    if kind is not None and name is None:
        _list_entries(kind, as_json)
        return
    if kind is not None and name is not None:
        text = json.dumps(defaults(kind, name)) if as_json else _table_with_meanings(kind, name)
        print(text.rstrip("\n"))
        return
    names = {kind.value: registry.names(kind) for kind in Kind}
    if as_json:
        print(json.dumps(names))
        return
    console = Console()
    for each, entries in names.items():
        listed = f"[bold]{each}[/] ({len(entries)}): {escape(', '.join(entries))}"
        console.print(listed, markup=True)
    console.print("more: covey list algorithms; every field of one: covey list algorithms pfedme")


def _list_entries(kind: Kind, as_json: bool) -> None:
    from covey.files import registry

    rows = [
        {"name": entry.name, "about": entry.line, **_more(kind, entry)}
        for entry in registry.entries(kind)
    ]
    if as_json:
        print(json.dumps(rows))
        return
    console = Console()
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        console.print(f"[bold]{row['name']:{width}}[/] {escape(row['about'])}", markup=True)
        for key in list(row)[2:]:
            console.print(f"{'':{width}} [dim]{key}:[/] {escape(row[key])}", markup=True)
    if kind == Kind.algorithms:
        console.print(
            "of a deployed tree, a device's scores and its number of examples leave it too: "
            "its parent and the server see them"
        )


def _table_with_meanings(kind: Kind, name: str) -> str:
    """The TOML table of one entry, every field with its meaning as a comment."""
    from covey.files.config import SECTIONS, defaults, explain

    fields = defaults(kind, name)
    meanings = explain(kind, name)
    lines = {key: tomli_w.dumps({key: value}).rstrip("\n") for key, value in fields.items()}
    width = max(len(line) for line in lines.values() if "\n" not in line)
    out = [f"[{SECTIONS.get(kind, kind)}]"]
    for key, line in lines.items():
        meaning = meanings.get(key, "")
        if meaning and "\n" in line:
            out += [f"# {meaning}", line]
        elif meaning:
            out.append(f"{line:{width}}  # {meaning}")
        else:
            out.append(line)
    return "\n".join(out) + "\n"


def _more(kind: Kind, entry: Listed) -> dict[str, str]:
    package = {"package": entry.package} if entry.package else {}
    if kind != Kind.algorithms or entry.broken:
        return package
    make: Any = entry.make
    names = [tier for tier in ("server", "edge", "device") if hasattr(make, tier)]
    tiers = "any"
    if len(names) > 1 and not make.any_depth:
        tiers = ", ".join(names)
    return {"tiers": tiers, "leaves the device in training": make.sends} | package
