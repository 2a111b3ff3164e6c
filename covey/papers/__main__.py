"""`python -m covey.papers PAPER/TABLE ...`: tables of the papers with torch, numpy and safetensors.

It runs the rows that are missing and saves each when it is done. Start it several times with the
same arguments to use a machine fully: each process takes the next row that no other has taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.errors import ConfigError, CoveyError
from covey.papers import report, tables
from covey.papers.measure import PROTOCOLS, Options, Protocol
from covey.papers.reproduce import reproduce, write_page
from covey.papers.results import Store, read_papers
from covey.papers.tables import Row


class Printer:
    """Prints a line for every row that was run."""

    def begin(self, row: Row, protocol: Protocol) -> None:
        """Nothing: a line is printed at the end."""

    def tick(self, done: float) -> None:
        """Nothing."""

    def stays(self, row: Row, protocol: Protocol, reason: str) -> None:
        """Say which result stays."""
        print(f"{row.paper} {row.key} {protocol}: {reason}", flush=True)

    def end(self, row: Row, protocol: Protocol, result: Mapping[str, Any] | None) -> None:
        """Print what was measured, or which data set is not here."""
        if result is not None and "missing" in result:
            fix = "name its folder by --data-dir or COVEY_DATA"
            reason = f"not run, {result['missing']} is not here; {fix}"
            print(f"{row.paper} {row.key} {protocol}: {reason}", flush=True)
        elif result is not None:
            print(row.paper, row.key, protocol, result, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing of the rows that the arguments name."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        _do(given)
    except CoveyError as error:
        parser.exit(2, f"error: {error}\n")
    except KeyboardInterrupt:
        text = f"the rows that are done are in {given.out}; the same command continues"
        parser.exit(130, f"\nstopped: {text}.\n")


def _do(given: argparse.Namespace) -> None:
    """List tables, merge files, or run rows."""
    word, *others = given.tables
    if word == tables.LIST:
        _list(given.out, others)
    elif word == "merge":
        _merge(given.out, [Path(name) for name in others])
    else:
        rows = tables.rows_of(tables.select(given.tables), given.rows)
        options = Options(
            given.seeds,
            given.rounds,
            given.score_every,
            given.device,
            given.data_dir,
            given.compute,
        )
        protocols = PROTOCOLS if given.protocol == "both" else (given.protocol,)
        reproduce(_share(rows, given.share), protocols, options, given.out, Printer())


def _list(folder: Path, names: Sequence[str]) -> None:
    """Print the tables of these names, or all, with what is known of them in a folder."""
    listed = tables.select(names or ["*"])
    results = read_papers(folder, (table.paper for table in listed))
    for table in listed:
        print(f"{table.path} {table.title}")
        print(f"  {report.counts_in_words(table, results[table.paper])}")
    for paper, counts in report.papers_in_words(listed, results):
        print(f"{paper}, every cell once\n  {counts}")
    print(report.whereabouts(folder, results))


def _share(rows: Sequence[Row], share: str) -> Sequence[Row]:
    """Every n-th row from the k-th, counted from 0, of "k/n"."""
    part, _, parts = share.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise ConfigError(f"--share {share}; give k/n with k from 0 to n - 1, such as 0/4.")
    return rows[int(part) :: int(parts)]


def _merge(folder: Path, files: Sequence[Path]) -> None:
    """Add the results of files to those of the same name in the folder."""
    if not files:
        raise ConfigError("merge needs files of results: merge DIR/PAPER.json ... --out DIR.")
    for file in files:
        with Store(folder, file.stem) as store:
            rows, left = store.merge(file)
            write_page(store.path)
        print(f"{folder / file.name}: {rows} rows; {left} of {file} were there, or are no better")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m covey.papers", description=__doc__)
    text = "also with *; or: list, to see which there are; or: merge FILE ..., to add results"
    parser.add_argument("tables", nargs="+", metavar="PAPER/TABLE", help=text)
    parser.add_argument("--rows", default="*", help="only rows whose SETTING/METHOD matches this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer rounds than the paper has")
    parser.add_argument("--score-every", type=int, help="default: 5")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compute", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--protocol", choices=(*PROTOCOLS, "both"), default="both")
    parser.add_argument("--data-dir", help="where the data sets are; default: COVEY_DATA")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="folder of results")
    parser.add_argument("--share", default="0/1", help="k/n: every n-th row from the k-th")
    return parser


if __name__ == "__main__":
    main()
