"""Tables of results as text: rows of words for any printer, and Markdown."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from covey import draws
from covey.papers import printed, verdicts
from covey.papers.results import Results
from covey.papers.tables import PaperTable, Row
from covey.papers.verdicts import Claim, Verdict, VerdictLine

PUBLISHED = Path("experiments/papers")  # below the root of a checkout
HEAD = (
    "row",
    "model",
    "paper",
    "best on test",
    "pooled sd apart",
    "error ratio",
    "chosen on validation",
    "seconds",
    "verdict",
    "why",
)
_OLDER_DRAWS = (
    "draws = 1: run before draws = 2 (docs/decisions/0002-draws-by-address.md); at seed 0, ask a "
    "of round t then drew what ask t of round a did"
)
CLAIM_HEAD = ("claim", "setting", "in the paper", "here")
SUMMARY_HEAD = (
    "table",
    "cells",
    "run",
    *(verdict.value for verdict in Verdict),
    "within 2 pooled sd",
    "error alike",
)


def cells(line: VerdictLine) -> tuple[str, ...]:
    """A line under `HEAD`; the seconds with the device where it is known.

    The verdict is marked where the settings were searched, or older draws were used.
    """
    verdict = [line.verdict] if line.verdict else []
    marks = ["searched"] if line.searched else []
    if line.draws != draws.VERSION:
        marks.append(f"draws = {line.draws}")
    seconds = f"{line.seconds:.0f}" if line.seconds else ""
    if line.seconds and line.devices:
        seconds += f" ({', '.join(line.devices)})"
    return (
        line.row.name,
        line.model,
        str(line.printed or ""),
        spread(line.paper),
        "" if line.deviations is None else f"{line.deviations:.1f}",
        "" if line.error_ratio is None else f"{line.error_ratio:.2f}",
        spread(line.honest),
        seconds,
        ", ".join([*verdict, *marks]),
        why(line),
    )


def why(line: VerdictLine) -> str:
    """The reason for a difference, after the settings that were searched."""
    chosen = ", ".join(f"{name} = {value:g}" for name, value in line.searched.items())
    return "; ".join(filter(None, (chosen and f"searched on validation: {chosen}", line.why)))


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation of the seeds.

    >>> spread([95.0, 96.0]), spread([95.0]), spread([])
    ('95.50 ± 0.71', '95.00', '-')
    """
    if not values:
        return "-"
    sd = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{sd}"


def claim_cells(claim: Claim) -> tuple[str, ...]:
    """A claim under `CLAIM_HEAD`."""
    ours = _holds(claim, claim.ours, "not run")
    if claim.ours is not None and claim.ours > 0 and not claim.holds:
        ours = ours.replace("holds", "holds in the mean only")
    if claim.ours is not None and claim.short:
        ours += ", short"
    return (
        claim.ordering.claim,
        claim.setting,
        _holds(claim, claim.printed, "a figure"),
        ours,
    )


def lines_cells(name: str, lines: Iterable[VerdictLine]) -> tuple[str, ...]:
    """Lines under `SUMMARY_HEAD`; a cell that stands in two tables of a paper counts once."""
    decide = verdicts.deciding(lines)
    counts = Counter(line.verdict for line in decide)
    cells = sum(counts.values())
    not_run = counts[Verdict.NO_DATA] + counts[Verdict.NOT_RUN]
    whole = [line for line in decide if line.is_decided]
    apart = [line.deviations for line in whole if line.deviations is not None]
    near = sum(value <= verdicts.DEVIATIONS for value in apart)
    alike = sum(1 / verdicts.ERROR <= (line.error_ratio or 0) <= verdicts.ERROR for line in whole)
    numbers = (cells, cells - not_run, *(counts[verdict] for verdict in Verdict), near, alike)
    return (name, *map(str, numbers))


def counts_in_words(table: PaperTable, results: Results) -> str:
    """The rows, printed cells and claimed orders of a table, and what is known of them."""
    return "; ".join([f"{len(table.rows)} rows", *_counts([table], results)])


def papers_in_words(
    listed: Sequence[PaperTable], by_paper: Mapping[str, Results]
) -> Iterator[tuple[str, str]]:
    """Every paper of which several tables are listed, and the counts of its cells and claims."""
    for paper in dict.fromkeys(table.paper for table in listed):
        own = [table for table in listed if table.paper == paper]
        if len(own) > 1:
            yield paper, "; ".join(_counts(own, by_paper[paper]))


def _counts(tables: Sequence[PaperTable], results: Results) -> Iterator[str]:
    """The printed cells of tables with their verdicts, and the claimed orders that hold.

    Nothing where there are none, and no verdicts where the paper has no result.
    """
    lines = [line for table in tables for line in verdicts.lines(table, results)]
    _, cells, run, *counts = lines_cells("", lines)
    if cells != "0":
        text = f"{cells} printed cells"
        if results:
            numbered = zip(counts, Verdict, strict=False)  # what stands behind overlaps with them
            words = ", ".join(f"{count} {verdict}" for count, verdict in numbered if count != "0")
            text += f", {run} run: {words}"
        yield text
    claims = [claim for table in tables for claim in verdicts.claims(table, results)]
    if claims:
        text = f"{len(claims)} claimed orders"
        if results:
            known = [claim for claim in claims if claim.ours is not None]
            whole = [claim for claim in known if not claim.short]
            text += f", {len(whole)} run, {sum(claim.holds for claim in whole)} hold"
            if len(known) > len(whole):
                text += f", {len(known) - len(whole)} short"
        yield text


def whereabouts(folder: Path, by_paper: Mapping[str, Results]) -> str:
    """Which results are counted, and where the published ones are."""
    ours = f"The counts are of the results in {folder}."
    if not any(by_paper.values()):
        ours = f"There are no results of {', '.join(by_paper)} in {folder} yet."
    if folder.resolve() == PUBLISHED.resolve():
        return ours
    if PUBLISHED.is_dir():
        return f"{ours} Those that covey publishes: covey reproduce list --out {PUBLISHED}"
    return f"{ours} Those that covey publishes are in experiments/papers of its source."


def markdown(tables: Sequence[PaperTable], results: Results) -> str:
    """All tables of a paper that have a result, as one page."""
    blocks = []
    for table in tables:
        shown = verdicts.lines(table, results)
        if any(line.paper or line.honest or line.why for line in shown):
            blocks.append("\n".join(_blocks(table, shown, results)))
    return "\n".join(blocks)


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader should know of the printed figures of these rows."""
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.printed and row.cells:
            note = printed.groups()[row.paper][row.printed].note
            groups.setdefault(note, {})[row.printed] = None
    groups.pop("", None)
    return [f"of the print, {', '.join(names)}: {note}" for note, names in groups.items()]


def _blocks(table: PaperTable, shown: Sequence[VerdictLine], results: Results) -> Iterator[str]:
    yield f"## {table.title}\n"
    yield f"`covey reproduce {table.path}`\n"
    yield from (f"- {choice}." for choice in table.unprinted)
    yield from (f"- {note}." for note in notes(table.rows))
    if any(line.draws != draws.VERSION for line in shown):
        yield f"- {_OLDER_DRAWS}."
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
    if math.isinf(margin):
        return f"{word} (a row diverged)"
    if claim.ordering.about is not None:
        return f"{word} ({verdicts.ABOUT * claim.ordering.about - margin:.2f} off)"
    if claim.ordering.by == "equal":
        return f"{word} ({verdicts.POINTS - margin:.2f} apart)"
    return f"{word} ({margin:+.2f})"
