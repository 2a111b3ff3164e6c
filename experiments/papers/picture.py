"""`python -m experiments.papers.picture`: the pictures of docs/reproduce.md.

reproduce-counts.png has a bar for each paper, and reproduce.png every printed cell beside ours.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from covey.papers import results, tables, verdicts
from covey.papers.verdicts import Verdict, VerdictLine
from experiments.papers import summary
from experiments.papers.summary import FOLDER

OUT = Path(__file__).parents[2] / "docs" / "reproduce.png"
COUNTS = OUT.with_name("reproduce-counts.png")
PAPERS = {"pfedme": "pFedMe", "fedmac": "FedMac", "permfl": "PerMFL", "sfedhp": "sFedHP"}
COLOURS = {
    Verdict.POINT: "#2a7f62",
    Verdict.DEVIATION: "#7fb069",
    Verdict.ORDERING: "#e0a030",
    Verdict.DIFFERS: "#b23a48",
    Verdict.SHORT: "#8d99ae",
}
SEGMENTS = {**COLOURS, Verdict.NO_DATA: "#d5dae2", Verdict.NOT_RUN: "#edf0f4"}
CLAIMS = {"in all seeds": "#2a7f62", "in the mean only": "#e0a030", "not": "#b23a48"}


def measured(paper: str) -> Iterator[VerdictLine]:
    """The lines of a paper that have a printed and a measured figure; each row once."""
    seen = set()
    content = results.read(FOLDER / f"{paper}.json")
    for name in tables.names():
        if not name.startswith(f"{paper}/table"):
            continue
        for line in verdicts.lines(tables.read(name), content):
            key = (line.row.key, line.model)
            if line.printed is not None and line.paper and key not in seen:
                seen.add(key)
                yield line


def draw() -> None:
    """One panel per paper: our figure less the printed one, over the printed one."""
    shown = {paper: list(measured(paper)) for paper in PAPERS}
    shown = {paper: lines for paper, lines in shown.items() if lines}
    figure = Figure(figsize=(3.2 * len(shown), 3.6), layout="constrained")
    panels: Any = figure.subplots(1, len(shown), sharey=True, squeeze=False)
    for panel, (paper, lines) in zip(panels[0], shown.items(), strict=True):
        panel.axhspan(-1, 1, color="#2a7f62", alpha=0.12, lw=0)
        panel.axhline(0, color="black", lw=0.8)
        for verdict, colour in COLOURS.items():
            own = [line for line in lines if line.verdict is verdict]
            x = [line.printed.value for line in own if line.printed is not None]
            y = [statistics.mean(line.paper) - value for line, value in zip(own, x, strict=True)]
            panel.scatter(x, y, s=18, color=colour, label=verdict.value, lw=0, alpha=0.85)
        panel.set_title(PAPERS[paper])
        panel.set_xlabel("printed accuracy, %")
        panel.set_yscale("symlog", linthresh=2)
        panel.set_yticks([-40, -10, -5, -2, -1, 0, 1, 2, 5, 10, 40])
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())
    panels[0][0].set_ylabel("ours less printed, points")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(OUT, dpi=130)


def counted() -> dict[str, dict[str, dict[str, int]]]:
    """What the bars show; the picture holds it, so that a test can read it."""
    claims = {}
    for paper, name in summary.NAMES.items():
        for kind, own in summary.claims_of(paper).items():
            parts = (own.hold, own.mean - own.hold, own.run - own.mean)
            claims[f"{name}, {kind}"] = dict(zip(CLAIMS, parts, strict=True))
    return {"cells": summary.bars(), "claims": claims}


def draw_counts(out: Path = COUNTS) -> None:
    """A bar for each paper: its printed cells by verdict, and its claims by how they hold."""
    counts = counted()
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    cells, claims = figure.subplots(1, 2, width_ratios=(3, 2))
    _bars(cells, counts["cells"], {verdict.value: fill for verdict, fill in SEGMENTS.items()})
    _bars(claims, counts["claims"], CLAIMS)
    cells.set_title("printed cells of the tables", fontsize=10)
    claims.set_title("claims that hold", fontsize=10)
    figure.savefig(out, dpi=130, metadata={"Description": json.dumps(counts)})


def _bars(panel: Any, bars: Mapping[str, Mapping[str, int]], colours: Mapping[str, str]) -> None:
    """Bars from the top, in percent, with the number in every part that has room for it."""
    for place, parts in enumerate(bars.values()):
        whole = sum(parts.values())
        left = 0.0
        for name, count in parts.items():
            width = 100 * count / whole
            panel.barh(place, width, left=left, color=colours[name], height=0.72, lw=0)
            if width > 3:
                dark = name in (Verdict.NO_DATA, Verdict.NOT_RUN)
                ink = "black" if dark else "white"
                middle = {"ha": "center", "va": "center"}
                panel.text(left + width / 2, place, str(count), color=ink, fontsize=8, **middle)
            left += width
    panel.set_yticks(range(len(bars)), [f"{name}" for name in bars], fontsize=8.5)
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.set_xlabel("percent; the numbers are counts", fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    used = [name for name in colours if any(parts.get(name) for parts in bars.values())]
    handles = [Patch(color=colours[name], label=name) for name in used]
    panel.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=3, frameon=False,
        fontsize=8,
    )  # fmt: skip


if __name__ == "__main__":
    draw_counts()
    draw()
