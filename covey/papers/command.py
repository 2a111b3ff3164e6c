"""`covey reproduce`: tables of the papers, run again and compared with what was printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from covey.cli.options import AsJson
from covey.engine.solvers.precision import Compute
from covey.errors import ConfigError
from covey.folder.show import print_wide
from covey.folder.signals import Interrupted, stoppable
from covey.folder.terminal import Console
from covey.papers import report, tables, verdicts
from covey.papers import reproduce as papers
from covey.papers.measure import PROTOCOLS, Options, Protocol
from covey.papers.results import Results, ResultStore, read_papers, valid
from covey.papers.tables import PaperTable, Row
from covey.papers.verdicts import VerdictLine

OUT = Path("runs/papers")


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[list] PAPER/TABLE ...",
            help="The tables, also with *; list shows which there are, merge adds files to --out.",
        ),
    ],
    rows: Annotated[
        str, typer.Option(metavar="GLOB", help="Only rows whose SETTING/METHOD matches.")
    ] = "*",
    seeds: Annotated[int, typer.Option(help="Each with its own weights, partition, draws.")] = 3,
    rounds: Annotated[
        int | None, typer.Option(help="Fewer rounds than the paper; the verdict is then: short.")
    ] = None,
    score_every: Annotated[
        int | None, typer.Option(help="Score the models every so many rounds. Default: 5.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
    compute: Annotated[
        Compute, typer.Option(help="The type of products in training; the table says if bf16.")
    ] = "fp32",
    protocol: Annotated[
        Literal["paper", "honest", "both"],
        typer.Option(help="paper: best round on test; honest: chosen on validation."),
    ] = "both",
    data_dir: Annotated[
        str | None, typer.Option(help="Where the data sets are. Default: COVEY_DATA.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the results.")] = OUT,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing; print the results that are there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The seeds of a row run side by side. A row is saved when it is done, and a
    row that is there is not run again: after a Ctrl-C, the same command
    continues. The same command in a second terminal takes the rows that the
    first has not begun.

    Where a paper prints no settings, a row may have a grid of them. The row
    then runs at the best point on validation data, and is marked "searched".
    "draws = 1" marks a row that would draw other batches and cohorts today.

    A result is never replaced by a lesser one: more rounds count first, then
    more seeds, then fp32.

    The verdict on a printed cell is the first of these that applies:

      data not found, not run: there is no figure

      short: fewer rounds than the paper, fewer than three seeds, or cut by
      one that diverged

      within 1 point: of the mean of the seeds

      within 2 printed sd: further away, but within twice the printed
      standard deviation

      ordering holds: further away; the paper claims at least one order of
      this cell, and every such order that its own figures keep was run whole
      in this setting, and holds

      not reproduced: none of these

    A cell that several settings or models stand for counts once: by the whole
    run whose figure is nearest to the printed one. Beside the verdict stand
    its distance in pooled standard deviations and the ratio of error rates.

    A claim holds where it does in every seed, and by more than the seeds
    differ. "About X" holds within a quarter of X.

    Examples:

      covey reproduce list

      covey reproduce pfedme/table1 --rows 'synthetic*'

      covey reproduce 'sfedhp/*' --device cuda --data-dir ~/data

      covey reproduce fedmac/table1 --rows mnist/fedmac --rounds 50 --seeds 1

      covey reproduce merge other/pfedme.json --out runs/papers
    """
    if names[0] == "merge":
        if not names[1:]:
            raise ConfigError("merge needs files of results: merge DIR/PAPER.json ... --out DIR.")
        for file in map(Path, names[1:]):
            with ResultStore(out, file.stem) as store:
                there, left = store.merge(file)
                papers.write_page(store.path)
            said = f"{left} of {file} were there, or are no better"
            print(f"{out / file.name}: {there} rows; {said}")
        return
    if names[0] == tables.LIST:
        _list(tables.select(names[1:] or ["*"]), out, as_json)
        return
    selected = tables.select(names)
    chosen = tables.rows_of(selected, rows)
    options = Options(seeds, rounds, score_every, device, data_dir, compute)
    protocols: Sequence[Protocol] = PROTOCOLS if protocol == "both" else (protocol,)
    if not show:
        _run(chosen, protocols, options, out)
    results = read_papers(out, (table.paper for table in selected))
    lines = [verdicts.lines(table, results[table.paper], rows) for table in selected]
    if as_json:
        print(json.dumps([line.as_dict() for own in lines for line in own]))
    else:
        asked = {row.name for row in chosen}
        for table, own in zip(selected, lines, strict=True):
            if any(row.name in asked for row in table.rows):
                _print(table, own, results[table.paper])
        if not any(results.values()):
            Console().print(report.whereabouts(out, results))
    _say_what_is_missing(chosen, results)


def _run(
    rows: Sequence[Row],
    protocols: Sequence[Protocol],
    options: Options,
    out: Path,
) -> None:
    """Run the rows with a bar; a Ctrl-C leaves those that are done."""
    console = Console(stderr=True, soft_wrap=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:.1f} of {task.total} rows"),
        TimeRemainingColumn(),
    )
    try:
        with (
            stoppable(console),
            Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task("rows", total=len(rows) * len(protocols))
            papers.reproduce(rows, protocols, options, out, Bar(console, bar, task))
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"the rows that are done are in {out}; the same command continues."
        ) from error


class Bar:
    """One bar for all rows; without a terminal, a line per row."""

    def __init__(self, console: Console, bar: Progress, task: TaskID) -> None:
        self._console = console
        self._bar = bar
        self._task = task
        self._done = 0

    def begin(self, row: Row, protocol: Protocol) -> None:
        """Name the row."""
        self._bar.update(self._task, description=f"{row.key} ({protocol})")

    def tick(self, done: float) -> None:
        """Move on by a part of a row."""
        self._bar.update(self._task, completed=self._done + done)

    def stays(self, row: Row, protocol: Protocol, reason: str) -> None:
        """Say which result stays."""
        self._console.print(f"{row.key} ({protocol}): {reason}", soft_wrap=True)

    def end(
        self,
        row: Row,
        protocol: Protocol,
        result: Mapping[str, Any] | None,
    ) -> None:
        """Move on to the next row."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        if result is None or self._console.is_terminal:
            return
        ended = f"{result['seconds']:.0f} s"
        if "missing" in result:
            ended = f"not run, {result['missing']} is not here"
        self._console.print(f"{row.key} ({protocol}): {ended}", soft_wrap=True)


def _list(listed: Sequence[PaperTable], out: Path, as_json: bool) -> None:
    """Tables, and how many of their printed cells have each verdict in a folder of results."""
    results = read_papers(out, (table.paper for table in listed))
    if as_json:
        rows = [
            report.lines_cells(table.path, verdicts.lines(table, results[table.paper]))
            for table in listed
        ]
        entries = [dict(zip(report.SUMMARY_HEAD, row, strict=True)) for row in rows]
        print(json.dumps(entries))
        return
    console = Console()
    for table in listed:
        console.print(f"[bold]{table.path}[/] {escape(table.title)}", markup=True)
        console.print(f"  {report.counts_in_words(table, results[table.paper])}")
    for paper, counts in report.papers_in_words(listed, results):
        console.print(f"[bold]{paper}[/], every cell once", markup=True)
        console.print(f"  {counts}")
    console.print(report.whereabouts(out, results))


def _print(table: PaperTable, shown: Sequence[VerdictLine], results: Results) -> None:
    console = Console()
    console.print(f"[bold]{escape(table.title)}[/]", markup=True)
    if not shown:
        console.print("these rows have no printed cell, and no figure yet")
        return
    grid = RichTable(box=None, pad_edge=False)
    for name in report.HEAD[:-1]:
        grid.add_column(name, no_wrap=True)
    for line in shown:
        grid.add_row(*report.cells(line)[:-1])
    print_wide(console, grid)
    own = list({line.row.key: line.row for line in shown}.values())
    settings = {row.setting for row in own}
    for claim in verdicts.claims(table, results):
        known = claim.ours is not None or not claim.ordering.chain
        if known and settings & set(claim.setting.split(", ")):
            text, setting, printed, ours = report.claim_cells(claim)
            console.print(f"{text}, {setting}: {ours} here; {printed} in the paper")
    rows_by_reason: dict[str, dict[str, None]] = {}
    for line in shown:
        rows_by_reason.setdefault(report.why(line), {})[line.row.name] = None
    rows_by_reason.pop("", None)
    for reason, rows in rows_by_reason.items():
        console.print(f"why: {reason} ({', '.join(rows)})")
    for choice in table.unprinted:
        console.print(f"not printed in the paper: {choice}")
    for note in report.notes(own):
        console.print(note)


def _say_what_is_missing(rows: Sequence[Row], results: Mapping[str, Results]) -> None:
    """Name the data sets that rows were not run for, and how to get them."""
    stored = [valid(results[row.paper], row) for row in rows]
    measured = [entry.get(protocol, {}) for entry in stored for protocol in PROTOCOLS]
    missing = dict.fromkeys(result["missing"] for result in measured if "missing" in result)
    if missing:
        Console(stderr=True).print(
            f"not here: {', '.join(missing)}; covey data says how to get data sets; "
            "name their folder by --data-dir or COVEY_DATA."
        )
