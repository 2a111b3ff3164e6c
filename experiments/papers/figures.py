"""`python -m experiments.papers.figures`: the claims of the papers' figures, as pictures in docs.

They are docs/figures-PAPER.png. A claim about an order has a panel with the figure of every row
that it names, in the claimed order, a dot per seed; a row that diverged at once has none. Claims
with a printed gap share a panel: the gap in print and here.
"""

from __future__ import annotations

import fnmatch
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from covey.papers import quantities, report, results, tables, verdicts
from covey.papers.results import Results
from covey.papers.tables import PaperTable, Row
from covey.papers.verdicts import Claim
from experiments.papers.summary import FOLDER, SETTINGS

OUT = Path(__file__).parents[2] / "docs"
TABLES: Mapping[str, Sequence[str]] = {
    "pfedme": ("figures", "gaps"),
    "fedmac": ("figures", "sparse"),
    "permfl": ("figure2", "figures", "figure4"),
    "sfedhp": ("figures",),
}
HOLDS = "#2a7f62"
MEAN = "#e0a030"
FAILS = "#b23a48"
PRINTED = "#8d99ae"
COLUMNS = 4


def colour(claim: Claim) -> str:
    """Green where an order holds, amber where it does in the mean of the seeds alone, else red."""
    if claim.holds:
        return HOLDS
    return MEAN if claim.ours is not None and claim.ours > 0 else FAILS


def draw_order(panel: Any, table: PaperTable, claim: Claim, content: Results) -> None:
    """The figures of the rows that a claim names; those on the right are claimed to be above."""
    rows = {row.method: row for row in table.rows if row.setting == claim.setting}
    names = [name for group in reversed(claim.ordering.chain) for name in group]
    for place, name in enumerate(names):
        values = figures(rows, name, claim, content)
        panel.scatter([place] * len(values), values, s=16, color=colour(claim), lw=0, zorder=3)
        if values:
            mean = statistics.mean(values)
            panel.plot([place - 0.25, place + 0.25], [mean, mean], color="black", lw=1)
    panel.set_xticks(range(len(names)), [_label(name, names) for name in names], fontsize=7)
    panel.set_xlim(-0.6, len(names) - 0.4)
    panel.set_ylabel(_quantity(names[0], claim), fontsize=7)
    panel.tick_params(axis="y", labelsize=7)
    panel.set_title(_title(claim), fontsize=7.5, color=colour(claim))


def figures(rows: Mapping[str, Row], name: str, claim: Claim, content: Results) -> list[float]:
    """One figure per seed of METHOD:MODEL."""
    method, _, model = name.partition(":")
    result = content[rows[method].key]["paper"]
    values: list[float] = result[claim.ordering.of].get(model, [])
    return values


def _quantity(name: str, claim: Claim) -> str:
    """What METHOD:MODEL has: an accuracy, or what its row measures beside that."""
    quantity = quantities.name_of(name)
    if quantity is not None:
        return quantity
    if claim.ordering.of == "area":
        return "mean over all rounds, %"
    return "best round, %"


def _label(name: str, names: Sequence[str]) -> str:
    """The method, and the model too where the claim compares models."""
    method, _, model = name.partition(":")
    method = _broken(method)
    models = {other.partition(":")[2] for other in names}
    if len(models) > 1:
        return f"{method}\n{model}"
    return method


def _broken(name: str, width: int = 10) -> str:
    """A name in lines, broken after hyphens where it is long, but not within a number.

    >>> _broken("gamma-w-1e-6"), _broken("lambda-25")
    ('gamma-w-\\n1e-6', 'lambda-25')
    """
    lines = [""]
    for piece in re.split(r"(?<=\w-)(?<!\de-)", name):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _title(claim: Claim) -> str:
    *_, ours = report.claim_cells(claim)
    return "\n".join([*textwrap.wrap(claim.ordering.claim, 40), ours])


def draw_gaps(panel: Any, setting: str, claims: Sequence[Claim]) -> None:
    """Printed gaps and ours, in points."""
    for place, claim in enumerate(reversed(claims)):
        panel.barh(place + 0.2, claim.printed, height=0.36, color=PRINTED, lw=0)
        panel.barh(place - 0.2, claim.ours, height=0.36, color=colour(claim), lw=0)
    names = [_gap_name(claim.ordering.claim) for claim in reversed(claims)]
    panel.set_yticks(range(len(claims)), names, fontsize=7)
    panel.axvline(0, color="black", lw=0.8)
    panel.tick_params(axis="x", labelsize=7)
    panel.set_xlabel("points: in print (grey), here", fontsize=7)
    text = f"{_subject(claims[0])} is above: {setting}"
    panel.set_title("\n".join(textwrap.wrap(text, 40)), fontsize=7.5)


def _subject(claim: Claim) -> str:
    """What is claimed to be above, without the name of the figure."""
    before = claim.ordering.claim.partition(" is above ")[0]
    return before.rpartition(": ")[2]


def _gap_name(claim: str) -> str:
    other = claim.partition(" is above ")[2]
    return "\n".join(textwrap.wrap(other, 18))


def draw(paper: str) -> Path:
    """All claims of one paper's figures that were run."""
    content = results.read(FOLDER / f"{paper}.json")
    orders: list[tuple[PaperTable, Claim]] = []
    gaps: dict[tuple[str, str], list[Claim]] = {}
    for name in TABLES[paper]:
        table = tables.read(f"{paper}/{name}")
        drawn = SETTINGS.get(table.path, "*")
        for claim in verdicts.claims(table, content):
            if claim.ours is None or not fnmatch.fnmatchcase(claim.setting, drawn):
                continue
            if claim.ordering.printed is None:
                orders.append((table, claim))
            else:
                gaps.setdefault((claim.setting, _subject(claim)), []).append(claim)
    count = len(orders) + len(gaps)
    lines = -(-count // COLUMNS)
    figure = Figure(figsize=(3.2 * min(count, COLUMNS), 2.7 * lines), layout="constrained")
    grid: Any = figure.subplots(lines, min(count, COLUMNS), squeeze=False)
    panels = list(grid.flatten())
    for panel, (table, claim) in zip(panels, orders, strict=False):
        draw_order(panel, table, claim, content)
    for panel, ((setting, _), claims) in zip(panels[len(orders) :], gaps.items(), strict=False):
        draw_gaps(panel, setting, claims)
    for panel in panels[count:]:
        panel.set_axis_off()
    out = OUT / f"figures-{paper}.png"
    figure.savefig(out, dpi=120)
    return out


def main() -> None:
    """Draw the pictures of all papers."""
    for paper in TABLES:
        print(draw(paper))


if __name__ == "__main__":
    main()
