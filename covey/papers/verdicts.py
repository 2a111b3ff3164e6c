"""What our figures say of the printed ones: a verdict per cell, and claims about their order."""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from covey import draws
from covey.papers import printed, quantities, tables
from covey.papers.printed import PrintedCell
from covey.papers.results import Entry, Results, valid
from covey.papers.tables import Ordering, PaperTable, Row

POINTS = 1.0  # a figure that is this near is reproduced
DEVIATIONS = 2.0  # or so many printed standard deviations
SEEDS = 3  # fewer are "short"
ABOUT = 0.25  # "about X" holds within this share of X
ERROR = 1.25  # error rates are alike where none is more than so many times the other


class Verdict(StrEnum):
    """What can be said of a printed cell; `covey reproduce --help` has the rules in words."""

    POINT = "within 1 point"
    DEVIATION = "within 2 printed sd"
    ORDERING = "ordering holds"
    DIFFERS = "not reproduced"
    SHORT = "short"
    NO_DATA = "data not found"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class VerdictLine:
    """One model of one row beside the printed figure; "paper" is best on test."""

    row: Row
    model: str
    printed: PrintedCell | None
    paper: tuple[float, ...]
    honest: tuple[float, ...]
    seconds: float  # of both results, and of the search
    verdict: Verdict | None  # None where the paper prints nothing
    why: str
    searched: Mapping[str, Any] = field(default_factory=dict)  # what a search has chosen
    devices: tuple[str, ...] = ()  # on which the seconds were taken, as far as that is known
    draws: int = draws.VERSION  # the oldest rule of draws (covey/draws.py) of a result

    @property
    def distance(self) -> float:
        """How far the figure is from the printed one; infinite where one of them is missing."""
        if self.printed is None or not self.paper:
            return math.inf
        return abs(statistics.mean(self.paper) - self.printed.value)

    @property
    def is_decided(self) -> bool:
        """Whether its run is whole, so that the verdict is about the figure."""
        return self.verdict not in (None, Verdict.SHORT, Verdict.NO_DATA, Verdict.NOT_RUN)

    @property
    def deviations(self) -> float | None:
        """The distance in pooled standard deviations, of our seeds and of the print if it has one.

        None where our seeds have none, or where neither differs from 0.
        """
        if self.printed is None or len(self.paper) < 2:
            return None
        deviations = [statistics.stdev(self.paper)]
        if self.printed.sd is not None:
            deviations.append(self.printed.sd)
        pooled = math.sqrt(statistics.mean(sd**2 for sd in deviations))
        return self.distance / pooled if pooled else None

    @property
    def error_ratio(self) -> float | None:
        """Our error rate by the printed one; None where these are not accuracies in percent."""
        if self.printed is None or not self.paper or quantities.name_of(self.model):
            return None
        return (100 - statistics.mean(self.paper)) / (100 - self.printed.value)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        cell = self.printed
        return {
            "row": self.row.key,
            "model": self.model,
            "printed": None if cell is None else [cell.value, cell.sd],
            "best_on_test": list(self.paper),
            "pooled_sd_apart": self.deviations,
            "error_ratio": self.error_ratio,
            "chosen_on_validation": list(self.honest),
            "seconds": self.seconds,
            "devices": list(self.devices),
            "draws": self.draws,
            "verdict": self.verdict,
            "searched": dict(self.searched),
            "why": self.why,
        }


@dataclass(frozen=True)
class Claim:
    """How a claimed order fares in one setting: by how many points it holds, negative if not.

    Equal figures hold by what their distance is below a point, and "about X" by what it is below
    `ABOUT` of X. None where a figure is missing. `by_seed` has the margin of every seed alone.
    `cells` are the figures that decide in print, as TABLE/SETTING/METHOD:MODEL. A claim is `short`
    where a row of it has fewer rounds than the paper, or fewer than three seeds that went on.
    """

    ordering: Ordering
    setting: str
    printed: float | None
    ours: float | None
    cells: frozenset[str] = frozenset()
    short: bool = False
    has_rows: bool = True  # False where a row of it is not in the setting
    by_seed: tuple[float, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it holds in every seed, and by more than the seeds' standard deviation."""
        if self.ours is None or not self.by_seed or min(self.by_seed) <= 0:
            return False
        finite = [margin for margin in self.by_seed if math.isfinite(margin)]
        return self.ours > (statistics.stdev(finite) if len(finite) > 1 else 0)

    @property
    def contradicted(self) -> bool:
        """Whether the printed figures are not in the claimed order."""
        return self.printed is not None and self.printed <= 0


Figure = Callable[[Row, str], float | None]
"""The figure of a model of a row, printed or ours."""


def lines(table: PaperTable, results: Results, pattern: str = "*") -> list[VerdictLine]:
    """Every model of every row, and every printed cell that was not run.

    Of rows whose SETTING/METHOD matches the pattern.
    """
    checked = list(_all_claims(table, results))
    for name in dict.fromkeys(row.table for row in table.rows if row.table != table.name):
        checked += _all_claims(tables.read(f"{table.paper}/{name}"), results)
    return [
        _line(table, row, model, valid(results, row), checked)
        for row in table.rows
        if fnmatch.fnmatchcase(row.name, pattern)
        for model in _models(row, valid(results, row))
    ]


def claims(table: PaperTable, results: Results) -> list[Claim]:
    """Every ordering of a table in every setting that it is claimed for and that has its rows.

    An ordering that needs rows that no table has is there once, and is not run.
    """
    return [claim for claim in _all_claims(table, results) if claim.has_rows]


def _all_claims(table: PaperTable, results: Results) -> Iterator[Claim]:
    """The claims of a table, also in settings that lack rows of them."""
    by_name = {row.name: row for row in table.rows}
    settings: dict[str, dict[str, Row]] = {}
    groups: dict[str, dict[str, Row]] = {}
    for row in table.rows:
        settings.setdefault(row.setting, {})[row.method] = row
        groups.setdefault(row.printed, {})[row.method] = row
    groups.pop("", None)
    for ordering in table.orderings:
        if not ordering.chain:
            yield Claim(ordering, ordering.settings, ordering.printed, None)
            continue
        if ordering.names_rows:
            rows_named = [name.partition(":")[0] for name in ordering.names]
            named = [name.rpartition("/")[0] for name in rows_named]
            yield _claim(ordering, ", ".join(dict.fromkeys(named)), by_name, {}, results)
            continue
        for setting, rows in settings.items():
            if any(fnmatch.fnmatchcase(setting, word) for word in ordering.settings.split()):
                group = next(iter(rows.values())).printed
                yield _claim(ordering, setting, rows, groups.get(group, {}), results)


def _claim(
    ordering: Ordering,
    setting: str,
    rows: Mapping[str, Row],
    group: Mapping[str, Row],
    results: Results,
) -> Claim:
    """An ordering over rows by their names; `group` are rows of the same printed figures.

    A setting may lack a method whose figure is printed.
    """

    def ours(row: Row, model: str, seed: int | None = None) -> float | None:
        result = _on_test(results, row)
        values: Sequence[float] = result.get(ordering.of, {}).get(model, ())
        if values and seed is not None:
            return values[seed] if len(values) == result["seeds"] else None
        if values:
            return statistics.mean(values)
        if result.get("diverged"):
            return quantities.without_a_score(model)
        return None

    in_print = {**group, **rows}
    claimed = ordering.printed
    if claimed is None:
        claimed = _margin(ordering, in_print, _printed)
    if claimed is None and ordering.about is not None:
        claimed = ABOUT * ordering.about
    named = [name.partition(":") for name in ordering.names]
    own = [rows[method] for method, _, _ in named if method in rows]
    every = [_on_test(results, row) for row in own]
    run = [result for result in every if result.get("models")]
    margin = None
    margins: list[float | None] = []
    # A row with fewer rounds or seeds, or of another type of products, beside others decides
    # nothing.
    sizes = {(each["rounds"], each["seeds"], each.get("compute")) for each in run}
    if len(sizes) <= 1:
        margin = _margin(ordering, rows, ours)
        seeds = max((result.get("seeds", 0) for result in every), default=0)
        margins = [_margin(ordering, rows, partial(ours, seed=seed)) for seed in range(seeds)]
    by_seed = tuple(known for known in margins if known is not None)
    deciding = [name.partition(":") for name in _deciding(ordering, in_print)]
    return Claim(
        ordering,
        setting,
        claimed,
        margin,
        frozenset(f"{rows[method].key}:{model}" for method, _, model in deciding if method in rows),
        short=any(map(_is_short, own, every)),
        has_rows=len(own) == len(named),
        by_seed=by_seed if len(by_seed) == len(margins) else (),
    )


def _is_short(row: Row, result: Entry) -> bool:
    """Whether a row was run with fewer rounds than the paper has, or with few seeds, or was cut."""
    few = result.get("rounds", 0) < row.rounds or result["seeds"] < SEEDS
    return _is_cut(result) or (bool(result.get("models")) and few)


def _is_cut(result: Entry) -> bool:
    """Whether seeds that diverged have ended others, which ran beside them."""
    diverged = re.search(r"\(seed ([\d, ]+)\)", result.get("diverged", ""))
    return diverged is not None and len(diverged[1].split(",")) < result["seeds"]


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
    return figure(rows[method], model) if method in rows else None


def counted(listed: Iterable[VerdictLine]) -> Counter[Verdict]:
    """How many printed cells have each verdict."""
    return Counter(line.verdict for line in deciding(listed) if line.verdict is not None)


def deciding(listed: Iterable[VerdictLine]) -> list[VerdictLine]:
    """The line of every printed cell that decides on it.

    A cell that was run in several settings, or that two models stand for, counts once. The whole
    run whose figure is nearest to the printed one decides, not the best verdict. Where no run is
    whole, a short one counts before none.
    """
    order: list[Verdict | None] = list(Verdict)
    worst = order.index(Verdict.DIFFERS)

    def rank(line: VerdictLine) -> tuple[int, float]:
        """Whole runs by their distance, then the verdicts of all others."""
        return max(order.index(line.verdict), worst), line.distance

    by_cell: dict[tuple[str, str, str], VerdictLine] = {}
    for line in listed:
        if line.verdict is not None:
            cell = (line.row.paper, line.row.printed, line.row.cells[line.model])
            by_cell[cell] = min(line, by_cell.get(cell, line), key=rank)
    return list(by_cell.values())


def compare(ours: Sequence[float], cell: PrintedCell) -> Verdict:
    """Whether the mean of our seeds is near a printed figure.

    >>> compare([95.0, 95.4], PrintedCell(95.62, 0.04)).value
    'within 1 point'
    """
    distance = abs(statistics.mean(ours) - cell.value)
    if distance <= POINTS:
        return Verdict.POINT
    if cell.sd is not None and distance <= DEVIATIONS * cell.sd:
        return Verdict.DEVIATION
    return Verdict.DIFFERS


def _line(
    table: PaperTable, row: Row, model: str, entry: Entry, checked: Sequence[Claim]
) -> VerdictLine:
    cell = printed.cell(row, model)
    verdict = None
    why = _divergence(entry.get("paper", {}))
    if cell is not None and not cell.given:
        verdict, why = _verdict(table, row, model, cell, entry, checked)
    parts = [entry[name] for name in ("paper", "honest", "search") if name in entry]
    return VerdictLine(
        row,
        model,
        printed=cell,
        paper=_figures(entry, "paper", model),
        honest=_figures(entry, "honest", model),
        seconds=sum(part["seconds"] for part in parts),
        verdict=verdict,
        why=why,
        searched=entry.get("search", {}).get("chosen", {}),
        devices=tuple(dict.fromkeys(part["device"] for part in parts if "device" in part)),
        draws=min([part["draws"] for part in parts if "draws" in part], default=draws.VERSION),
    )


def _verdict(
    table: PaperTable,
    row: Row,
    model: str,
    cell: PrintedCell,
    entry: Entry,
    checked: Sequence[Claim],
) -> tuple[Verdict, str]:
    """The verdict on a printed cell, and the reason for it."""
    result = entry.get("paper", {})
    if result.get("missing"):
        command = f"covey reproduce {row.paper}/{row.table} --rows '{row.name}' --data-dir DIR"
        return Verdict.NO_DATA, f"{result['missing']} is not here; run {command}"
    ours = _figures(entry, "paper", model)
    diverged = _divergence(result)
    if _is_cut(result):
        return Verdict.SHORT, f"a seed that diverged has ended the others: {diverged}"
    if not ours:
        return (Verdict.DIFFERS, diverged) if diverged else (Verdict.NOT_RUN, "")
    if result["rounds"] < row.rounds or len(ours) < SEEDS:
        of_seeds = f"{len(ours)} of {SEEDS}" if len(ours) <= SEEDS else len(ours)
        lacks = f"{result['rounds']} of {row.rounds} rounds, {of_seeds} seeds"
        if "compute" in result:
            lacks += f", products in {result['compute']}"
        return Verdict.SHORT, "; ".join(filter(None, (lacks, diverged)))
    verdict = compare(ours, cell)
    if verdict is not Verdict.DIFFERS:
        return verdict, diverged
    name = f"{row.key}:{model}"
    naming = [claim for claim in checked if name in claim.cells and not claim.contradicted]
    if naming and all(claim.holds and not claim.short for claim in naming):
        verdict = Verdict.ORDERING
    return verdict, diverged or table.reason(row)


def _divergence(result: Entry) -> str:
    """In which round a run diverged and why, and what its figures are then; "" where it did not."""
    if "diverged" not in result:
        return ""
    best = "the best round before counts" if result.get("models") else "no round before was scored"
    return f"diverged in {result['diverged']}; {best}"


def _margin(ordering: Ordering, rows: Mapping[str, Row], figure: Figure) -> float | None:
    """By how many points an order holds.

    None where a figure is missing, unless the others are out of order already. It is not finite
    where all of a group diverged.
    """
    chain = [[_figure(name, rows, figure) for name in group] for group in ordering.chain]
    missing = any(value is None for group in chain for value in group)
    known = [[value for value in group if value is not None] for group in chain]
    groups = [group for group in known if group]
    if missing and (ordering.by == "best" or ordering.about or len(groups) < 2):
        return None
    margin = _least_gap(ordering, groups)
    if math.isnan(margin) or (missing and margin > 0):
        return None
    return margin


def _least_gap(ordering: Ordering, groups: Sequence[Sequence[float]]) -> float:
    """The smallest distance between neighbouring groups, or what equal figures lack to a point.

    Of "about X", what a figure, its gap to the next or the share that this saves lacks to the rule.
    """
    if ordering.about is not None:
        figure = min(groups[0])
        if ordering.by == "saves":
            figure = 100 * (1 - max(groups[1]) / figure)
        elif len(groups) > 1:
            figure -= max(groups[1])
        return ABOUT * ordering.about - abs(figure - ordering.about)
    if ordering.by == "equal":
        values = list(itertools.chain(*groups))
        return POINTS - (max(values) - min(values))
    least = max if ordering.by == "best" else min
    gaps = [
        least(higher) - max(lower) - ordering.over for higher, lower in itertools.pairwise(groups)
    ]
    return math.nan if any(map(math.isnan, gaps)) else min(gaps)


def _printed(row: Row, model: str) -> float | None:
    cell = printed.cell(row, model)
    return None if cell is None else cell.value


def _on_test(results: Results, row: Row) -> Entry:
    """The result of a row by its best rounds on test; empty where there is none."""
    entry: Entry = valid(results, row).get("paper", {})
    return entry


def _figures(entry: Entry, protocol: str, model: str) -> tuple[float, ...]:
    """One figure per seed, in percent."""
    by_model = entry.get(protocol, {}).get("models", {})
    return tuple(by_model.get(model, ()))


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
