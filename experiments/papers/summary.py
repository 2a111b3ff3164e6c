"""`python -m experiments.papers.summary`: the verdicts of all papers and tables, counted, as Markdown."""

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


def papers() -> str:
    """One line per paper; a cell that stands in two tables counts once."""
    rows = []
    for paper in sorted({name.partition("/")[0] for name in tables.names()}):
        own = [tables.read(name) for name in tables.names() if name.startswith(f"{paper}/table")]
        rows.append(report.paper_cells(paper, own, results.read(FOLDER / f"{paper}.json")))
    head = ("paper", *report.SUMMARY_HEAD[1:])
    return "\n".join(report.rows_of_markdown(head, rows))


if __name__ == "__main__":
    print(papers())
    print()
    print(summary())
