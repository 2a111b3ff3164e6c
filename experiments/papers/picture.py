"""`python -m experiments.papers.picture`: docs/reproduce.png, every printed cell beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from covey.papers import results, tables, verdicts
from covey.papers.verdicts import Line, Verdict
from experiments.papers.summary import FOLDER

OUT = Path(__file__).parents[2] / "docs" / "reproduce.png"
PAPERS = {"pfedme": "pFedMe", "fedmac": "FedMac", "permfl": "PerMFL", "sfedhp": "sFedHP"}
COLOURS = {
    Verdict.POINT: "#2a7f62",
    Verdict.DEVIATION: "#7fb069",
    Verdict.ORDERING: "#e0a030",
    Verdict.DIFFERS: "#b23a48",
    Verdict.SHORT: "#8d99ae",
}


def measured(paper: str) -> Iterator[Line]:
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


if __name__ == "__main__":
    draw()
