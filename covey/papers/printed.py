"""The figures that the papers print, from printed.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from covey.papers.tables import Row

FILE = Path(__file__).parent / "printed.toml"
_FACTS = ("note", "uncertain", "given")


@dataclass(frozen=True)
class PrintedCell:
    """A printed figure. `uncertain`: the text that it was read from does not show its column.

    `given`: it is an input of the method, and no result.
    """

    value: float
    sd: float | None = None
    uncertain: bool = False
    given: bool = False

    def __str__(self) -> str:
        text = f"{self.value:.2f}"
        if self.sd is not None:
            text += f" ± {self.sd:.2f}"
        if self.uncertain:
            text += " (?)"
        if self.given:
            text += " (an input)"
        return text


@dataclass(frozen=True)
class Group:
    """Cells that were printed together, by name."""

    cells: Mapping[str, PrintedCell] = field(default_factory=dict)
    note: str = ""

    @staticmethod
    def read(values: Mapping[str, Any]) -> Group:
        """A group from its table."""
        cells = {}
        for name, figures in values.items():
            if name not in _FACTS:
                marks = (name in values.get(mark, ()) for mark in ("uncertain", "given"))
                value, sd = (*figures, None)[:2]
                cells[name] = PrintedCell(value, sd, *marks)
        return Group(cells, values.get("note", ""))


@cache
def groups() -> Mapping[str, Mapping[str, Group]]:
    """All groups, by paper and name.

    >>> print(groups()["pfedme"]["mnist mlr"].cells["pFedMe PM"])
    95.62 ± 0.04
    """
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        paper: {name: Group.read(values) for name, values in by_name.items()}
        for paper, by_name in content.items()
    }


def cell(row: Row, model: str) -> PrintedCell | None:
    """The printed figure of a model of a row; None where the paper has none."""
    group = groups().get(row.paper, {}).get(row.printed, Group())
    return group.cells.get(row.cells.get(model, ""))
