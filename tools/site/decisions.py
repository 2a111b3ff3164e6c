"""The index of the decisions, from their headings."""

from __future__ import annotations

from pathlib import Path

HEAD = """# Decisions

A decision record has a context, a choice and its price. Each is half a page.

| number | decision |
|---|---|
"""


def pages(root: Path) -> dict[str, str]:
    """The index, by its address in the site."""
    records = sorted((root / "docs" / "decisions").glob("[0-9]*.md"))
    return {"decisions/index.md": HEAD + "\n".join(_row(record) for record in records) + "\n"}


def _row(record: Path) -> str:
    """A line of the table: the heading is "# 12. The title"."""
    heading = record.read_text().partition("\n")[0]
    number, _, title = heading.removeprefix("# ").partition(". ")
    return f"| {number} | [{title}]({record.name}) |"
