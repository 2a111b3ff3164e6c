"""Another algorithm on the command line: the fields it takes over from that of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.errors import ConfigError
from covey.fields import spelled, values
from covey.files import glossary, named


def taken_over(
    section: str,
    old: dict[str, Any],
    name: Any,
    changes: Sequence[str],
    notes: list[str],
) -> dict[str, Any]:
    """The fields of an algorithm that another one has too, with the same meaning.

    A note says which are dropped.
    """
    if section != "algorithm" or not isinstance(name, str):
        return {}
    old_name = str(old["name"])
    changed = {change.partition("=")[0].strip() for change in changes}
    kept = {}
    dropped = []
    for key, value in old.items():
        if key == "name":
            continue
        if _same_field(old_name, name, key, value):
            kept[key] = value
        elif f"{section}.{key}" not in changed:
            dropped.append(f"{key} = {spelled(value)}")
    if dropped:
        note = f"dropped {', '.join(dropped)}, fields of {old_name} alone"
        if kept:
            note += f"; kept {', '.join(kept)}"
        notes.append(f"algorithm.name = {name}: {note}")
    return kept


def _same_field(old: str, new: str, key: str, value: Any) -> bool:
    """Whether two algorithms mean the same by this field, and the new one may have this value."""
    try:
        makers = [named.maker("algorithm", name) for name in (old, new)]
        schemas = [named.schema(build, "algorithm") for build in makers]
    except (
        ConfigError,
        AssertionError,
    ):  # a name that is wrong is refused later, by name
        return False
    if any(key not in schema for schema in schemas):
        return False
    both = zip((old, new), makers, strict=True)
    meanings = {glossary.meaning(name, key, build) for name, build in both}
    if len(meanings - {""}) > 1:
        return False
    try:
        values({key: schemas[1][key]}, {key: value}, "")
    except ConfigError:
        return False
    return True
