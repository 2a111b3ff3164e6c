"""What our figures say of the printed ones: a verdict per cell, and claims about their order."""

from __future__ import annotations

import fnmatch
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from covey.papers import printed
from covey.papers.printed import Cell
from covey.papers.results import Entry, Results, valid
from covey.papers.tables import Ordering, Row, Table

POINTS = 1.0  # a figure that is this near is reproduced
DEVIATIONS = 2.0  # or so many printed standard deviations
SEEDS = 3  # fewer are "short"


class Verdict(StrEnum):
    """What can be said of a printed cell."""

    POINT = "within 1 point"
    DEVIATION = "within 2 printed sd"
    ORDERING = "ordering holds"
    DIFFERS = "not reproduced"
    SHORT = "short"
    NO_DATA = "data not found"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Line:
    """One model of one row beside the printed figure; "paper" is best on test."""

    row: Row
    model: str
    printed: Cell | None
    paper: tuple[float, ...]
    honest: tuple[float, ...]
    seconds: float
    verdict: Verdict | None  # None where the paper prints nothing
    why: str
    searched: Mapping[str, Any] = field(default_factory=dict)  # what a search has chosen


@dataclass(frozen=True)
class Claim:
    """How a claimed order fares in one setting: by how many points it holds, negative if not.

    Equal figures hold by what their distance is below a point.
    None where a figure is missing. `cells` are METHOD:MODEL of the figures that decide in print.
    """

    ordering: Ordering
    setting: str
    printed: float | None
    ours: float | None
    cells: frozenset[str] = frozenset()


Figure = Callable[[Row, str], float | None]
"""The figure of a model of a row, printed or ours."""


def lines(table: Table, results: Results) -> list[Line]:
    """Every model of every row, and every printed cell that was not run."""
    checked = claims(table, results)
    return [
        _line(table, row, model, valid(results, row), checked)
        for row in table.rows
        for model in _models(row, valid(results, row))
    ]


def claims(table: Table, results: Results) -> list[Claim]:
    """Every ordering of a table in every setting that it is claimed for."""
    by_setting: dict[str, dict[str, Row]] = {}
    for row in table.rows:
        by_setting.setdefault(row.setting, {})[row.method] = row

    return [
        _claim(ordering, setting, rows, results)
        for ordering in table.orderings
        for setting, rows in by_setting.items()
        if fnmatch.fnmatchcase(setting, ordering.settings)
    ]


def _claim(ordering: Ordering, setting: str, rows: Mapping[str, Row], results: Results) -> Claim:
    def ours(row: Row, model: str) -> float | None:
        values = _figures(valid(results, row), "paper", model, of=ordering.of)
        return statistics.mean(values) if values else None

    claimed = ordering.printed
    if claimed is None:
        claimed = _margin(ordering, rows, _printed)
    margin = None
    if _alike(ordering, rows, results):
        margin = _margin(ordering, rows, ours)
    cells = frozenset(_deciding(ordering, rows))
    return Claim(ordering, setting, claimed, margin, cells)


def _alike(ordering: Ordering, rows: Mapping[str, Row], results: Results) -> bool:
    """Whether the rows of an order that were run have equally many rounds and seeds.

    Their products must be computed in the same type, too.

    A short row beside a whole one decides nothing.
    """
    methods = {name.partition(":")[0] for group in ordering.chain for name in group}
    sizes = set()
    for method in methods & set(rows):
        result = valid(results, rows[method]).get("paper", {})
        if result.get("models"):
            sizes.add((result["rounds"], result["seeds"], result.get("compute")))
    return len(sizes) <= 1


def _deciding(ordering: Ordering, rows: Mapping[str, Row]) -> Iterator[str]:
    """The cells of an order whose printed figures decide it: all, or the best of each group."""
    for group in ordering.chain:
        if ordering.by != "best":
            yield from group
            continue
        figures = {name: _figure(name, rows, _printed) for name in group}
        known = {name: value for name, value in figures.items() if value is not None}
        if known:
            yield max(known, key=known.__getitem__)


def _figure(name: str, rows: Mapping[str, Row], figure: Figure) -> float | None:
    """The figure of METHOD:MODEL."""
    method, _, model = name.partition(":")
    if method not in rows:
        return None
    return figure(rows[method], model)


def counted(listed: Iterable[Line]) -> Counter[Verdict]:
    """How many printed cells have each verdict.

    A cell that was run in several settings, or that two models stand for, counts once, by the best
    verdict.
    """
    order = list(Verdict)
    best: dict[tuple[str, str], Verdict] = {}
    for line in listed:
        if line.verdict is None:
            continue
        cell = (line.row.printed, line.row.cells[line.model])
        best[cell] = min(line.verdict, best.get(cell, line.verdict), key=order.index)
    return Counter(best.values())


def compare(ours: Sequence[float], cell: Cell) -> Verdict:
    """Whether the mean of our seeds is near a printed figure.

    >>> compare([95.0, 95.4], Cell(95.62, 0.04)).value
    'within 1 point'
    """
    distance = abs(statistics.mean(ours) - cell.value)
    if distance <= POINTS:
        return Verdict.POINT
    if cell.sd is not None and distance <= DEVIATIONS * cell.sd:
        return Verdict.DEVIATION
    return Verdict.DIFFERS


def _line(table: Table, row: Row, model: str, entry: Entry, checked: Sequence[Claim]) -> Line:
    cell = printed.cell(row, model)
    verdict = None
    why = entry.get("paper", {}).get("diverged", "")
    if cell is not None:
        verdict, why = _verdict(table, row, model, cell, entry, checked)
    parts = [entry[protocol]["seconds"] for protocol in ("paper", "honest") if protocol in entry]
    return Line(
        row,
        model,
        cell,
        _figures(entry, "paper", model),
        _figures(entry, "honest", model),
        sum(parts),
        verdict,
        why,
        entry.get("search", {}).get("chosen", {}),
    )


def _verdict(
    table: Table, row: Row, model: str, cell: Cell, entry: Entry, checked: Sequence[Claim]
) -> tuple[Verdict, str]:
    """The verdict on a printed cell, and the reason for it."""
    result = entry.get("paper", {})
    if result.get("missing"):
        command = f"covey reproduce {row.paper}/{row.table} --rows '{row.name}' --data-dir DIR"
        return Verdict.NO_DATA, f"{result['missing']} is not here; run {command}"
    ours = _figures(entry, "paper", model)
    if not ours:
        if result.get("diverged"):
            return Verdict.DIFFERS, "it diverged before the first score"
        return Verdict.NOT_RUN, ""
    if result["rounds"] < row.rounds or len(ours) < SEEDS:
        return Verdict.SHORT, _shortness(result, row, len(ours))
    verdict = compare(ours, cell)
    reason = table.reason(row)
    if result.get("diverged"):
        reason = f"it diverges, {result['diverged']}; the best round before counts"
    if verdict is not Verdict.DIFFERS:
        return verdict, ""
    if _in_order(row, model, checked):
        verdict = Verdict.ORDERING
    return verdict, reason


def _shortness(result: Entry, row: Row, seeds: int) -> str:
    """What a result lacks of a whole one."""
    text = f"{result['rounds']} of {row.rounds} rounds, {seeds} of 3 seeds"
    if "compute" in result:
        text += f", products in {result['compute']}"
    return text


def _in_order(row: Row, model: str, checked: Sequence[Claim]) -> bool:
    """Whether all orders hold here that name a cell, hold in print, and were run."""
    name = f"{row.method}:{model}"
    naming = [
        claim
        for claim in checked
        if claim.setting == row.setting
        and name in claim.cells
        and claim.printed is not None
        and claim.printed > 0
    ]
    margins = [claim.ours for claim in naming if claim.ours is not None]
    return bool(margins) and min(margins) > 0


def _margin(ordering: Ordering, rows: Mapping[str, Row], figure: Figure) -> float | None:
    """By how many points an order holds; None where a figure is missing."""
    groups = []
    for group in ordering.chain:
        values = []
        for name in group:
            value = _figure(name, rows, figure)
            if value is None:
                return None
            values.append(value)
        groups.append(values)
    if ordering.by == "equal":
        values = list(itertools.chain(*groups))
        return POINTS - (max(values) - min(values))
    gaps = []
    for higher, lower in itertools.pairwise(groups):
        least = max(higher) if ordering.by == "best" else min(higher)
        gaps.append(least - max(lower))
    return min(gaps)


def _printed(row: Row, model: str) -> float | None:
    cell = printed.cell(row, model)
    return None if cell is None else cell.value


def _figures(entry: Entry, protocol: str, model: str, *, of: str = "models") -> tuple[float, ...]:
    """One figure per seed, in percent."""
    return tuple(entry.get(protocol, {}).get(of, {}).get(model, ()))


def _models(row: Row, entry: Entry) -> list[str]:
    """The models of a row: those with a printed cell, and those that were measured."""
    measured = [
        model
        for protocol in ("paper", "honest")
        for model in entry.get(protocol, {}).get("models", {})
        if not (model == "global" and row.algorithm["name"] == "local")
    ]
    with_cell = [model for model in row.cells if printed.cell(row, model) is not None]
    return list(dict.fromkeys([*with_cell, *measured]))
