"""`python -m experiments.papers.differences`: writes differences.md, from results that are here.

It shows what four details are worth that the texts do not mention: the decay of pFedMe's public
code, the model that this code scores as the personal one, printed settings at which a method
diverges, and personal steps on test batches.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.papers import printed, report, results, tables
from covey.papers.results import Results
from covey.papers.tables import Row
from experiments.papers import adaptation, figure_files, settings
from experiments.papers.summary import FOLDER

OUT = FOLDER / "differences.md"
PAPERS = ("pfedme", "fedmac", "permfl", "sfedhp")
DECAY_HEAD = ("row", "model", "printed", "decay .001", "no decay", "decay is worth")
MODELS_HEAD = ("row", "rounds", "seeds", "printed", "w_i", "theta", "theta less w_i")
DIVERGED_HEAD = ("row", "ends in round", "seeds", "model", "printed", "best round before")
_ROUND = re.compile(r"round (\d+): .*\(seed ([\d, ]+)\)")


def measured(paper: str) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """Every row of a paper with its result, best round on test, unless it has other settings."""
    content = results.read(FOLDER / f"{paper}.json")
    own = [tables.read(name) for name in tables.names() if name.startswith(f"{paper}/")]
    for table in own:
        for row in table.rows:
            entry = content.get(row.key, {})
            shown_elsewhere = row.table != table.name
            if shown_elsewhere or entry.get("settings") != row.digest() or "paper" not in entry:
                continue
            yield row, entry["paper"]


def decay(changed: Results) -> Iterator[Sequence[str]]:
    """pFedMe with the decay of its public code, and without."""
    with_decay = {f"pfedme/{row.key}": result for row, result in measured("pfedme")}
    for change, row in settings.changed():
        entry = changed.get(row.key, {})
        if change.name != settings.NO_DECAY or entry.get("settings") != row.digest():
            continue
        for model, values in entry["paper"]["models"].items():
            before = with_decay[row.table]["models"][model]
            worth = statistics.mean(before) - statistics.mean(values)
            yield (
                row.table,
                model,
                str(printed.cell(row, model) or ""),
                report.spread(before),
                report.spread(values),
                f"{worth:+.2f}",
            )


def personal_models() -> Iterator[Sequence[str]]:
    """w_i, which the public code of pFedMe scores, and theta, which the paper means."""
    for paper in PAPERS:
        for row, result in measured(paper):
            models = result.get("models", {})
            if row.algorithm["name"] != "pfedme" or "local" not in models:
                continue
            gap = statistics.mean(models["personal"]) - statistics.mean(models["local"])
            yield (
                f"{paper}/{row.key}",
                f"{result['rounds']} of {row.rounds}",
                str(result["seeds"]),
                str(printed.cell(row, "personal") or ""),
                report.spread(models["local"]),
                report.spread(models["personal"]),
                f"{gap:+.2f}",
            )


def diverged() -> Iterator[Sequence[str]]:
    """Rows at printed settings that end with numbers that are not finite."""
    for paper in PAPERS:
        for row, result in measured(paper):
            found = _ROUND.search(result.get("diverged", ""))
            if found is None:
                continue
            number, seeds = found.groups()
            for model in row.cells:
                yield (
                    f"{paper}/{row.key}",
                    number,
                    seeds,
                    model,
                    str(printed.cell(row, model) or ""),
                    report.spread(result["models"].get(model, ())),
                )


def page() -> str:
    """All four tables as Markdown."""
    adapted = figure_files.read(adaptation.OUT)
    changed = results.read(settings.FOLDER / f"{settings.NAME}.json")
    tables_by_title = {
        "The decay of pFedMe's public code": (DECAY_HEAD, decay(changed)),
        "Personal steps on test batches": (adaptation.HEAD, adaptation.lines(adapted)),
        "Printed settings at which a method diverges": (DIVERGED_HEAD, diverged()),
        "w_i and theta of every row of pFedMe": (MODELS_HEAD, personal_models()),
    }
    blocks = []
    for title, (head, lines) in tables_by_title.items():
        table = "\n".join(report.rows_of_markdown(head, list(lines)))
        blocks.append(f"## {title}\n\n{table}\n")
    return "\n".join(blocks)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    OUT.write_text(page(), encoding="utf-8")
    print(f"{Path(OUT).name} is written")
