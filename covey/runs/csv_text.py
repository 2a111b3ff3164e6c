"""Tables as CSV, which spreadsheets open: no cell of theirs is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """A table with a line of names; None, and what a row lacks, is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(quoted, columns))
    for row in rows:
        values = map(row.get, columns) if isinstance(row, Mapping) else row
        writer.writerow(map(quoted, values))
    return out.getvalue()


def quoted(value: Any) -> Any:
    """A value as a cell: a text that a spreadsheet would run has a ' before it.

    >>> quoted("=HYPERLINK(1)"), quoted("pump-3"), quoted("-1"), quoted(-1.5)
    ("'=HYPERLINK(1)", 'pump-3', '-1', -1.5)
    """
    if not isinstance(value, str) or not value.startswith(_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def unquoted(cell: str) -> str:
    """The text of a cell that `quoted` made."""
    return cell.removeprefix("'")
