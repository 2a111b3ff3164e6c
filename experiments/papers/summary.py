"""`python -m experiments.papers.summary`: the verdicts of all tables, counted, as Markdown."""

from __future__ import annotations

from pathlib import Path

from covey.papers import report, results, tables

FOLDER = Path(__file__).parent


def summary() -> str:
    """One line per table: its printed cells, and how many have each verdict."""
    listed = [tables.read(name) for name in tables.names() if "/table" in name]
    rows = [
        report.summary_cells(table, results.read(FOLDER / f"{table.paper}.json"))
        for table in listed
    ]
    return "\n".join(report.rows_of_markdown(report.SUMMARY_HEAD, rows))


if __name__ == "__main__":
    print(summary())
