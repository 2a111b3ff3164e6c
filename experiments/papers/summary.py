"""`python -m experiments.papers.summary`: what came out of each paper, counted from the results.

`--write` puts the counts into docs/reproduce.md and the pages of the papers, and writes the tables
of all rows beside the results.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.papers import report, reproduce, results, tables, verdicts
from covey.papers.verdicts import Claim, Verdict, VerdictLine

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"
PAPERS = sorted({name.partition("/")[0] for name in tables.names()})
PAPERS_HEAD = ("paper", *report.SUMMARY_HEAD[1:])
READING_HEAD = ("table, one reading", *report.SUMMARY_HEAD[1:])
READING = {"sfedhp": ("*-half/*", "cifar*", "*/pfedgp")}
"""The rows of one reading of a text, where several were run; pFedGP and CIFAR-10 have one."""
SETTINGS = {"permfl/figure2": "fmnist*"}  # a table may have more settings than the printed figure
NAMES = {
    "pfedme": "pFedMe",
    "fedmac": "FedMac",
    "permfl": "PerMFL",
    "sfedhp": "sFedHP",
    "wireless": "over the air",
}
VERDICTS = {
    "pfedme": "it comes out on the data of its public code, in which devices share images",
    "fedmac": "Table 1 comes out with both of its orders; of the sparse models a part",
    "permfl": "linear models on images come out, with settings that are not printed; "
    "that its models are the best does not",
    "sfedhp": "about half comes out in one reading; that its global model is the best does not",
    "wireless": "latencies do not come out, and the text leaves them open; "
    "that half of the weights is saved does",
}
BEGIN = "<!-- python -m experiments.papers.summary --write -->"
END = "<!-- end -->"
VERDICT_HEAD = (
    "paper",
    "cells within a point",
    "of those decided",
    "orders of tables that hold",
    "claims of figures that hold",
    "in a word",
)


@dataclass(frozen=True)
class Tally:
    """How many claims were run whole, hold in the mean of the seeds, and hold in all of them."""

    run: int
    mean: int
    hold: int

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> Tally:
        """The counts of these claims, those left out that no whole run decides."""
        whole = [claim for claim in claims if claim.ours is not None and not claim.short]
        mean = sum(claim.ours is not None and claim.ours > 0 for claim in whole)
        return cls(len(whole), mean, sum(claim.holds for claim in whole))

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.run + other.run, self.mean + other.mean, self.hold + other.hold)


def tables_of(paper: str) -> list[tables.PaperTable]:
    """The tables of a paper, without those of its figures."""
    return [tables.read(name) for name in tables.names() if name.startswith(f"{paper}/table")]


def lines_of(paper: str, *, reading: bool = False) -> list[VerdictLine]:
    """The lines of a paper's tables, or those of one reading."""
    content = results.read(FOLDER / f"{paper}.json")
    lines = [line for table in tables_of(paper) for line in verdicts.lines(table, content)]
    return [line for line in lines if not reading or is_in_reading(line)]


def is_in_reading(line: VerdictLine) -> bool:
    """Whether a line is of the reading whose count stands first."""
    patterns = READING.get(line.row.paper, ("*",))
    return any(fnmatch.fnmatchcase(line.row.name, pattern) for pattern in patterns)


def claims_of(paper: str) -> dict[str, Tally]:
    """How many orders of a paper's "tables" hold, and how many claims of its "figures"."""
    content = results.read(FOLDER / f"{paper}.json")
    claims: dict[str, list[Claim]] = {"tables": [], "figures": []}
    for name in tables.names():
        if not name.startswith(f"{paper}/"):
            continue
        kind = "tables" if name.startswith(f"{paper}/table") else "figures"
        claims[kind] += [
            claim
            for claim in verdicts.claims(tables.read(name), content)
            if fnmatch.fnmatchcase(claim.setting, SETTINGS.get(name, "*"))
        ]
    return {kind: Tally.of(own) for kind, own in claims.items()}


def bars() -> dict[str, dict[str, int]]:
    """Every bar of the picture: how many cells of a paper have each verdict."""
    out = {}
    for paper, name in NAMES.items():
        counts = verdicts.counted(lines_of(paper))
        if paper in READING:
            own = verdicts.counted(lines_of(paper, reading=True))
            out[f"{name}, one reading"] = {verdict.value: own[verdict] for verdict in Verdict}
            name = f"{name}, best of five"
        out[name] = {verdict.value: counts[verdict] for verdict in Verdict}
    return out


def top() -> str:
    """What docs/reproduce.md begins with: two sentences, the picture, and a line per paper."""
    best, one = (
        [line for paper in PAPERS for line in verdicts.deciding(lines_of(paper, reading=reading))]
        for reading in (False, True)
    )
    near, first = (_near(lines) for lines in (best, one))
    decided = sum(line.is_decided for line in best)
    short = sum(line.verdict is Verdict.SHORT for line in best)
    missing = len(best) - decided - short
    tallies = {paper: claims_of(paper) for paper in PAPERS}
    orders, figures = (
        sum((tallies[paper][kind] for paper in PAPERS), Tally(0, 0, 0))
        for kind in ("tables", "figures")
    )
    rows = [_verdict(paper, tallies[paper]) for paper in NAMES]
    text = (
        f"**Of {len(best)} printed figures {first} come out within a point "
        f"({_percent(first, len(best))}) in one reading of sFedHP's text, and {near} "
        f"({_percent(near, len(best))}) in the best of five readings.** These {near} are "
        f"{_percent(near, decided)} of the {decided} that are decided; {short} ran short, and for "
        f"{missing} the data are not here. Of {orders.run} orders that the tables claim "
        f"{orders.hold} hold in all seeds, and of {figures.run} claims of the figures {figures.hold}; in the mean of the seeds "
        f"{orders.mean} and {figures.mean} do."
    )
    return "\n".join(
        (
            *textwrap.wrap(text, 120),
            "",
            "![Of every paper, the cells with each verdict and the claims that hold]"
            "(reproduce-counts.png)",
            "",
            *report.rows_of_markdown(VERDICT_HEAD, rows),
        )
    )


def _near(lines: Sequence[VerdictLine]) -> int:
    return sum(line.verdict is Verdict.POINT for line in lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _verdict(paper: str, claims: dict[str, Tally]) -> tuple[str, ...]:
    """A line under `VERDICT_HEAD`; the count of one reading stands first."""
    readings = (True, False) if paper in READING else (False,)
    decided = []
    for reading in readings:
        lines = verdicts.deciding(lines_of(paper, reading=reading))
        whole = sum(line.is_decided for line in lines)
        decided.append((_near(lines), whole, len(lines)))
    best = "; best of five readings " if len(readings) > 1 else ""
    return (
        f"[{NAMES[paper]}](reproduce-{paper}.md)",
        best.join(f"{near} of {cells}" for near, _, cells in decided),
        best.join(f"{near} of {whole}" for near, whole, _ in decided),
        *(f"{own.hold} of {own.run}" for own in claims.values()),
        VERDICTS[paper],
    )


def summary(paper: str) -> str:
    """One line per table of a paper: its printed cells, and how many have each verdict."""
    content = results.read(FOLDER / f"{paper}.json")
    rows = [
        report.lines_cells(table.path, verdicts.lines(table, content)) for table in tables_of(paper)
    ]
    return "\n".join(report.rows_of_markdown(report.SUMMARY_HEAD, rows))


def one_reading(paper: str) -> str:
    """The same in one reading of the text."""
    content = results.read(FOLDER / f"{paper}.json")
    rows = [
        report.lines_cells(table.path, filter(is_in_reading, verdicts.lines(table, content)))
        for table in tables_of(paper)
    ]
    return "\n".join(report.rows_of_markdown(READING_HEAD, rows))


def papers() -> str:
    """One line per paper; a cell that stands in two tables counts once."""
    return "\n".join(report.rows_of_markdown(PAPERS_HEAD, list(_paper_rows())))


def _paper_rows() -> Iterator[tuple[str, ...]]:
    for paper in PAPERS:
        if paper in READING:
            name = f"{paper}, one reading"
            yield report.lines_cells(name, lines_of(paper, reading=True))
        yield report.lines_cells(paper, lines_of(paper))


def counts() -> dict[Path, list[str]]:
    """The tables of counts on every page."""
    pages = {DOCS / f"reproduce-{paper}.md": [summary(paper)] for paper in PAPERS}
    for paper in READING:
        pages[DOCS / f"reproduce-{paper}.md"].append(one_reading(paper))
    return {DOCS / "reproduce.md": [papers(), f"{BEGIN}\n\n{top()}\n\n{END}"], **pages}


def replaced(text: str, part: str) -> str:
    """A page with this part in the place of the one between the same marks, or the same head.

    >>> replaced("one\\n\\n| a |\\n|---|\\n| 1 |\\n\\ntwo", "| a |\\n|---|\\n| 3 |")
    'one\\n\\n| a |\\n|---|\\n| 3 |\\n\\ntwo'
    """
    if part.startswith(BEGIN):
        return re.sub(f"{re.escape(BEGIN)}.*{END}", lambda _: part, text, flags=re.S)
    head = re.escape(part.partition("\n")[0])
    return re.sub(rf"^{head}\n(\|.*\n)*\|.*$", lambda _: part, text, flags=re.M)


def main() -> None:
    """Print the counts of every page, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the counts into the pages")
    write = parser.parse_args().write
    for page, parts in counts().items():
        for part in parts:
            print(f"{page.name}\n\n{part}\n")
            if write:
                page.write_text(replaced(page.read_text(), part))
    if write:
        for paper in PAPERS:
            reproduce.write_page(FOLDER / f"{paper}.json")


if __name__ == "__main__":
    main()
