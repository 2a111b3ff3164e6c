"""Tables of results as text: rows of words for any printer, and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from covey.papers import verdicts
from covey.papers.results import Results
from covey.papers.tables import Table, names
from covey.papers.verdicts import Claim, Line, Verdict

PUBLISHED = Path("experiments/papers")  # below the root of a checkout
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
        _verdict(line),
        why(line),
    )


def _verdict(line: Line) -> str:
    """The verdict, marked where the settings were searched."""
    words = [line.verdict or ""]
    if line.searched:
        words.append("searched")
    return ", ".join(word for word in words if word)


def why(line: Line) -> str:
    """The reason for a difference, after the settings that were searched."""
    if not line.searched:
        return line.why
    chosen = ", ".join(f"{name} = {value:g}" for name, value in line.searched.items())
    return "; ".join(filter(None, (f"searched on validation: {chosen}", line.why)))


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
        _holds(claim, claim.printed, "a figure"),
        _holds(claim, claim.ours, "not run"),
    )


def summary_cells(table: Table, results: Results) -> tuple[str, ...]:
    """A table under `SUMMARY_HEAD`: how many of its printed cells have each verdict."""
    counts = verdicts.counted(verdicts.lines(table, results))
    cells = sum(counts.values())
    not_run = counts[Verdict.NO_DATA] + counts[Verdict.NOT_RUN]
    numbers = (cells, cells - not_run, *(counts[verdict] for verdict in Verdict))
    return (table.path, *map(str, numbers))


def counts_in_words(table: Table, results: Results) -> str:
    """The rows, printed cells and claimed orders of a table, and what is known of them."""
    parts = [f"{len(table.rows)} rows"]
    _, cells, run, *counts = summary_cells(table, results)
    claims = verdicts.claims(table, results)
    if cells != "0":
        parts.append(f"{cells} printed cells{_verdicts_in_words(run, counts, bool(results))}")
    if claims:
        margins = [claim.ours for claim in claims if claim.ours is not None]
        holding = sum(margin > 0 for margin in margins)
        known = f", {len(margins)} run, {holding} hold" if results else ""
        parts.append(f"{len(claims)} claimed orders{known}")
    return "; ".join(parts)


def _verdicts_in_words(run: str, counts: Sequence[str], known: bool) -> str:
    """How many cells have each verdict; nothing where there is no result of the paper."""
    if not known:
        return ""
    numbered = zip(counts, SUMMARY_HEAD[3:], strict=True)
    words = ", ".join(f"{count} {verdict}" for count, verdict in numbered if count != "0")
    return f", {run} run: {words}"


def whereabouts(folder: Path) -> str:
    """Which results are counted, and where the published ones are."""
    ours = f"The counts are of the results in {folder}."
    papers = {name.partition("/")[0] for name in names()}
    if not any((folder / f"{paper}.json").exists() for paper in papers):
        ours = f"There are no results in {folder} yet."
    if folder.resolve() == PUBLISHED.resolve():
        return ours
    if PUBLISHED.is_dir():
        return f"{ours} Those that covey publishes: covey reproduce list --out {PUBLISHED}"
    return f"{ours} Those that covey publishes are in experiments/papers of its source."


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


def _holds(claim: Claim, margin: float | None, otherwise: str) -> str:
    """Whether an order holds, and by how many points; other words where no figure is known."""
    if margin is None:
        return otherwise
    word = "holds" if margin > 0 else "does not hold"
    if claim.ordering.by == "equal":
        return f"{word} ({verdicts.POINTS - margin:.2f} apart)"
    return f"{word} ({margin:+.2f})"
