"""`python -m experiments.papers.summary`: how many cells of each table have which verdict.

`--write` puts the counts into docs/reproduce.md and the pages of the papers.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from covey.papers import report, results, tables

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"
PAPERS = sorted({name.partition("/")[0] for name in tables.names()})
PAPERS_HEAD = ("paper", *report.SUMMARY_HEAD[1:])


def summary(paper: str) -> str:
    """One line per table of a paper: its printed cells, and how many have each verdict."""
    content = results.read(FOLDER / f"{paper}.json")
    rows = [report.summary_cells(table, content) for table in tables_of(paper)]
    return "\n".join(report.rows_of_markdown(report.SUMMARY_HEAD, rows))


def papers() -> str:
    """One line per paper; a cell that stands in two tables counts once."""
    rows = [
        report.paper_cells(paper, tables_of(paper), results.read(FOLDER / f"{paper}.json"))
        for paper in PAPERS
    ]
    return "\n".join(report.rows_of_markdown(PAPERS_HEAD, rows))


def tables_of(paper: str) -> list[tables.Table]:
    """The tables of a paper, without those of its figures."""
    return [tables.read(name) for name in tables.names() if name.startswith(f"{paper}/table")]


def counts() -> dict[Path, str]:
    """The table of counts on every page."""
    pages = {DOCS / f"reproduce-{paper}.md": summary(paper) for paper in PAPERS}
    return {DOCS / "reproduce.md": papers(), **pages}


def replaced(text: str, table: str) -> str:
    """A page with this table in the place of the one that has the same head.

    >>> replaced("one\\n\\n| a |\\n|---|\\n| 1 |\\n\\ntwo", "| a |\\n|---|\\n| 3 |")
    'one\\n\\n| a |\\n|---|\\n| 3 |\\n\\ntwo'
    """
    head = re.escape(table.partition("\n")[0])
    return re.sub(rf"^{head}\n(\|.*\n)*\|.*$", lambda _: table, text, flags=re.M)


def main() -> None:
    """Print the counts of every page, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the counts into the pages")
    write = parser.parse_args().write
    for page, table in counts().items():
        print(f"{page.name}\n\n{table}\n")
        if write:
            page.write_text(replaced(page.read_text(), table))


if __name__ == "__main__":
    main()
