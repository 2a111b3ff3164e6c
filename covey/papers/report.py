"""Tables of results as text: rows of words for any printer, and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from covey.papers import verdicts
from covey.papers.results import Results
from covey.papers.tables import Table
from covey.papers.verdicts import Claim, Line, Verdict

HEAD = (
    "row",
    "model",
    "paper",
    "best on test",
    "chosen on validation",
    "seconds",
    "verdict",
    "why",
)
CLAIM_HEAD = ("claim", "setting", "in the paper", "here")
SUMMARY_HEAD = ("table", "cells", "run", *(verdict.value for verdict in Verdict))


def cells(line: Line) -> tuple[str, ...]:
    """A line under `HEAD`."""
    return (
        line.row.name,
        line.model,
        str(line.printed or ""),
        spread(line.paper),
        spread(line.honest),
        f"{line.seconds:.0f}" if line.seconds else "",
        line.verdict or "",
        line.why,
    )


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation of the seeds.

    >>> spread([95.0, 96.0]), spread([95.0]), spread([])
    ('95.50 ± 0.71', '95.00', '-')
    """
    if not values:
        return "-"
    text = f"{statistics.mean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    return text


def claim_cells(claim: Claim) -> tuple[str, ...]:
    """A claim under `CLAIM_HEAD`."""
    return (
        claim.ordering.claim,
        claim.setting,
        _holds(claim.printed, "a figure"),
        _holds(claim.ours, "not run"),
    )


def summary_cells(table: Table, results: Results) -> tuple[str, ...]:
    """A table under `SUMMARY_HEAD`: how many of its printed cells have each verdict."""
    counts = verdicts.counted(verdicts.lines(table, results))
    cells = sum(counts.values())
    not_run = counts[Verdict.NO_DATA] + counts[Verdict.NOT_RUN]
    numbers = (cells, cells - not_run, *(counts[verdict] for verdict in Verdict))
    return (table.path, *map(str, numbers))


def markdown(tables: Sequence[Table], results: Results) -> str:
    """All tables of a paper that have a result, as one page."""
    blocks = []
    for table in tables:
        shown = verdicts.lines(table, results)
        if any(line.paper or line.honest or line.why for line in shown):
            blocks.append("\n".join(_blocks(table, shown, results)))
    return "\n".join(blocks)


def _blocks(table: Table, shown: Sequence[Line], results: Results) -> Iterator[str]:
    yield f"## {table.title}\n"
    yield f"`covey reproduce {table.path}`\n"
    yield from (f"- {choice}." for choice in table.unprinted)
    yield ""
    yield from rows_of_markdown(HEAD, [cells(line) for line in shown])
    claims = [claim_cells(claim) for claim in verdicts.claims(table, results)]
    if claims:
        yield ""
        yield from rows_of_markdown(CLAIM_HEAD, claims)
    yield ""


def rows_of_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _holds(margin: float | None, otherwise: str) -> str:
    """Whether an order holds, and by how many points; other words where no figure is known."""
    if margin is None:
        return otherwise
    word = "holds" if margin > 0 else "does not hold"
    return f"{word} ({margin:+.2f})"
