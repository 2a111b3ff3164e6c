"""Which unprinted setting explains a printed figure: rows of the tables with one thing changed.

`python -m experiments.papers.settings [--rows GLOB] [--changes GLOB] [--data-dir DIR]` runs what is
missing of `CHANGES` and writes settings.json; with `--out DIR` it runs them again. `--show` prints
what is there as Markdown. Several processes share the work, as with `covey reproduce`. Every
result has the accuracy after each scored round, so that fewer rounds can be read from it.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from covey import Algorithm
from covey.errors import ConfigError
from covey.papers import report, tables
from covey.papers.measure import Options
from covey.papers.printed import cell
from covey.papers.results import Results, ResultStore, read
from covey.papers.tables import Row
from experiments.papers import curves
from experiments.papers.variants import (
    PulledPerMFL,
    QuietPFedBayes,
    ShrinkingAL2GD,
    UncutFedMac,
)

FOLDER = curves.FOLDER
NAME = "settings"
NO_DECAY = "no decay"
HEAD = ("row", "changed", "model", "paper", "best on test", "after 100 rounds")


@dataclass(frozen=True)
class Change:
    """Rows of PAPER/TABLE whose names match, with other fields of algorithm, data or model.

    A field of the data that is None is left out.
    """

    name: str
    table: str
    rows: str
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    score_every: int = 20
    rounds: int | None = None  # None: as many as the row
    seeds: int = 3
    kind: type[Algorithm] | None = None  # another algorithm with the fields of the row's


_SFEDHP = ("sfedhp/table2", "sfedhp/table4", "sfedhp/table3", "sfedhp/table5")
_CODE = {"lam": 5.0, "lr": 0.01, "personal_lr": 0.005, "beta": 0.99, "weight_decay": 0.001}
_FIGURE3 = {"lam": 1.5, "gamma": 3.0, "beta": 0.3}
_DEFAULTS = {"lam": 5.0, "gamma": 5.0, "beta": 0.99}
_DEMLEARN = {"lr": 0.05, "amplify": 1.15}
_PFEDBAYES = {"lr": 0.001, "personal_lr": 0.001, "zeta": 10.0}
_POPULATIONS = 10


def _of_sfedhp() -> Iterator[Change]:
    """Step, devices per round, and pixels of flat methods."""
    for table in _SFEDHP:
        yield Change("lr = .005", table, "*-two-labels/fedavg", {"lr": 0.005})
        yield Change("10 of 20 devices", table, "*-half/fedavg", {"sample": 10})
        yield Change("5 of 20 devices", table, "*-half/fedavg", {"sample": 5})
        yield Change("10 of 20 devices", table, "*-half/pfedme-20", {"sample": 10})
        yield Change("5 of 20 devices", table, "*-half/pfedme-20", {"sample": 5})
        yield Change("5 of 20 devices", table, "*-two-labels/fedavg", {"sample": 5})
        yield Change("lr = .005", table, "*-half/fedavg", {"lr": 0.005})
        yield Change("pixels in [0, 1]", table, "*-half/fedavg", data={"normalise": "unit"})
        yield Change("5 steps a round", table, "*-half/fedavg", {"steps": 5})
        yield Change("2 steps a round", table, "*-half/fedavg", {"steps": 2})
        yield Change("100 steps a round", table, "*-half/fedavg", {"steps": 100}, seeds=1)  # R K
        yield Change("1 edge round", table, "*-half/hierfavg", {"edge_rounds": 1})
        yield Change("R = 5", table, "*-half/hierfavg", {"edge_rounds": 5})
        yield Change("R = 5", table, "*-half/pfedme-20", {"local_rounds": 5})
        yield Change("R = 1", table, "*-half/pfedme-20", {"local_rounds": 1})
        yield Change("R = 5", table, "*-half/sfedhp-20", {"edge_rounds": 5})
        fewer = "*-half/pfedme-[125]*"  # 30 diverges
        yield Change("100 rounds", table, fewer, score_every=5, rounds=100)
    for table in ("sfedhp/table3", "sfedhp/table4"):
        for mu in (0.1, 1.0):
            yield Change(f"mu = {mu:g}", table, "*-five-steps/fedprox", {"mu": mu})
    for table, setting in zip(_SFEDHP, (1, 1, 2, 2), strict=True):
        data = {"partition": f"sfedhp{setting}_shared"}
        for method in ("fedavg", "hierfavg", "pfedme-20", "sfedhp-20", "fedprox"):
            yield Change("the same images", table, f"*-half/{method}", data=data)


def _of_permfl() -> Iterator[Change]:
    """Settings of Figure 3, devices per round, and defaults of the public code."""
    table = "permfl/table1"
    half = "[mf]*nist/linear/half/"
    yield Change("settings of Figure 3", table, "[mf]*nist/linear/permfl", _FIGURE3)
    yield Change("settings of Figure 3", table, f"{half}permfl", _FIGURE3)
    for method in ("fedavg", "ditto", "pfedme", "perfedavg"):
        yield Change("10 of 40 devices", table, half + method, {"sample": 10})
    defaults = {"sample": 10, **_CODE}
    yield Change("the code's defaults", table, f"{half}pfedme", defaults)
    yield Change("the code's defaults", table, "synthetic/*/pfedme", defaults)
    yield Change("beta = .1", table, f"{half}perfedavg", {"lr": 0.1})
    yield Change("beta = .99", table, f"{half}perfedavg", {"lr": 0.99})
    yield Change("beta = .99", table, "synthetic/*/perfedavg", {"lr": 0.99})
    for method in ("fedavg", "ditto", "pfedme", "perfedavg"):
        yield Change("10 of 40 devices", table, f"synthetic/*/{method}", {"sample": 10})
    yield Change("alpha = .03", table, "synthetic/*/fedavg", {"lr": 0.03})
    yield Change("alpha = .1", table, "synthetic/*/fedavg", {"lr": 0.1})
    yield Change("settings of Figure 3", table, "synthetic/*/permfl", _FIGURE3)
    larger = {**_FIGURE3, "lr": 0.1}
    yield Change("Figure 3, alpha = .1", table, "synthetic/*/permfl", larger)
    yield Change("Figure 3, alpha = .1", table, f"{half}permfl", larger)
    yield Change("eta_p = .1", table, "synthetic/*/pfedme", {"personal_lr": 0.1})
    for lam in (60.0, 100.0):  # 30 is the largest that Theorem 2 allows at eta = .03
        fields = {**_FIGURE3, "lam": lam}
        yield Change(f"Figure 3, lambda = {lam:g}", table, "synthetic/linear/permfl", fields)
    yield from _of_other_codes(table)
    yield from _of_weights(table)
    yield from _of_variants(table)
    yield from _of_populations(table)


def _of_weights(table: str) -> Iterator[Change]:
    """Devices weigh by their examples, as in the flat methods of the public code."""
    half = "[mf]*nist/linear/half/"
    weighted = {"weight": "samples"}
    sampled = {"sample": 10, **weighted}
    for method in ("fedavg", "pfedme", "perfedavg"):
        for rows in ("synthetic/*/", half):
            name = "weights by examples"
            yield Change(name, table, rows + method, weighted, score_every=5)
            name = "10 of 40 devices, by examples"
            yield Change(name, table, rows + method, sampled, score_every=5)
    code = {**sampled, **_CODE}
    for rows in ("synthetic/*/", half):
        name = "the code's defaults, by examples"
        yield Change(name, table, f"{rows}pfedme", code, score_every=5)
    for lam in (0.5, 1.5):  # of Table 2, and of Figure 3
        name = f"the code's defaults, by examples, lambda = {lam:g}, 200 rounds"
        fields = {**code, "lam": lam}
        yield Change(name, table, f"{half}pfedme", fields, score_every=5, rounds=200)
    name = "10 of 40 devices, by examples, 100 rounds"
    yield Change(name, table, "fmnist/linear/half/fedavg", sampled, score_every=5, rounds=100)
    name = f"62 outputs, {name}"
    rows = "mnist/linear/half/fedavg"
    outputs = {"outputs": 62}
    yield Change(name, table, rows, sampled, model=outputs, score_every=5, rounds=100)


def _of_variants(table: str) -> Iterator[Change]:
    """Methods as the public code runs them (variants.py)."""
    linear = ("synthetic/linear/", "mnist/linear/half/", "fmnist/linear/half/")
    for rows in (*linear, "synthetic/dnn/"):
        for name, fields in (("Table 2", {}), ("Figure 3", _FIGURE3), ("the code", _DEFAULTS)):
            name = f"devices pulled by 20, settings of {name}"
            pulled = {"pull": 20.0, **fields}
            yield Change(name, table, f"{rows}permfl", pulled, kind=PulledPerMFL)
        for p in (0.1, 0.5, 0.7, 0.8, 0.9):
            name = f"AL2GD of the code, both probabilities {p:g}"
            shrinking = {"p": p, "edge_p": p, "lr": 0.03, "steps": 20}
            yield Change(
                name,
                table,
                f"{rows}al2gd",
                shrinking,
                score_every=1,
                rounds=100,
                kind=ShrinkingAL2GD,
            )
    for rows in linear:
        name = "pFedBayes of the code"
        quiet = {"noise": 0.001, "lr": 0.01, "personal_lr": 0.005}
        yield Change(
            name, table, f"{rows}pfedbayes", quiet, score_every=5, rounds=100, kind=QuietPFedBayes
        )


def _of_other_codes(table: str) -> Iterator[Change]:
    """AL2GD without its means, as in PerMFL's code; what other codes say of the other two."""
    for rows in ("synthetic/linear/", "synthetic/dnn/", "[mf]*nist/linear/"):
        yield Change("no means", table, f"{rows}al2gd", {"lam": 0.0, "gamma": 0.0})
        larger = "step .05, means x 1.15, 100 rounds"
        yield Change(larger, table, f"{rows}demlearn", _DEMLEARN, rounds=100)
        yield Change("steps .001, zeta = 10", table, f"{rows}pfedbayes", _PFEDBAYES)
    name = "steps .001, zeta = 10, 100 rounds"
    rows = "[mf]*nist/linear/half/pfedbayes"
    yield Change(name, table, rows, _PFEDBAYES, score_every=5, rounds=100)


def _of_populations(table: str) -> Iterator[Change]:
    """Every seed draws its own population of the same generator."""
    name = f"{_POPULATIONS} populations"
    own = {"seed": None}
    for rows in ("synthetic/linear/", "synthetic/dnn/"):
        for method in ("fedavg", "centralised", "permfl"):
            fields = _FIGURE3 if method == "permfl" else {}
            yield Change(name, table, rows + method, fields, own, seeds=_POPULATIONS)


def _of_pfedme() -> Iterator[Change]:
    """Without the decay that the public optimizer adds to the inner steps."""
    for rows in ("synthetic/*/pfedme", "legacy2020/mlr/pfedme"):
        yield Change(NO_DECAY, "pfedme/table1", rows, {"weight_decay": 0.0}, score_every=5)


def _of_fedmac() -> Iterator[Change]:
    """Figure 6 with gamma_w switched off, as covey's default has it, and without covey's cut."""
    table, rows = "fedmac/sparse", "figure-6/gamma-w-1e-6"
    off = {"gamma_w_until": 100}
    yield Change("gamma_w off from round 100", table, rows, off, score_every=5)
    yield Change("no cut", table, rows, score_every=5, kind=UncutFedMac)


CHANGES: tuple[Change, ...] = (*_of_sfedhp(), *_of_permfl(), *_of_pfedme(), *_of_fedmac())


@lru_cache
def _rows(table: str) -> Sequence[Row]:
    return tables.read(table).rows


def changed(rows: str = "*", changes: str = "*") -> Iterator[tuple[Change, Row]]:
    """Every row that is run, named by its paper, its table, its setting and what is changed.

    `rows` is a pattern of PAPER/TABLE/ROW, and `changes` one of the changes' names.
    """
    for change in CHANGES:
        if not fnmatch.fnmatchcase(change.name, changes):
            continue
        for row in _rows(change.table):
            if row.search or not fnmatch.fnmatchcase(row.name, change.rows):
                continue
            named = replace(
                row,
                table=f"{change.table}/{row.name}",
                setting=change.name,
                algorithm={**row.algorithm, **change.algorithm},
                data=_without_none({**row.data, **change.data}),
                model={**row.model, **change.model},
                rounds=change.rounds or row.rounds,
                score_every=change.score_every,
            )
            if fnmatch.fnmatchcase(named.table, rows):
                yield change, named


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def lines(results: Results, rows: str = "*", changes: str = "*") -> Iterator[Sequence[str]]:
    """A line under `HEAD` for every model with a printed cell; of a row without cells for all."""
    for change, row in changed(rows, changes):
        entry = results.get(row.key, {})
        if entry.get("settings") != row.digest():
            continue
        result = entry["paper"]
        for model in row.cells or result["models"]:
            values = result["models"].get(model, ())
            early = [
                value
                for number, value in result.get("curve", {}).get(model, {}).items()
                if int(number) <= 100
            ]
            best = f"{max(early):.2f}" if early else "-"
            where = f"{row.paper} {row.table.partition('/')[2].partition('/')[2]}"
            paper = str(cell(row, model) or "")
            yield where, change.name, model, paper, report.spread(values), best


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, or show what is there."""
    parser = curves.arguments(__doc__)
    parser.add_argument("--changes", default="*", help="only changes whose name matches this")
    asked = parser.parse_args(arguments)
    if asked.show:
        stored = read(asked.out / f"{NAME}.json")
        print(curves.show(HEAD, lines(stored, asked.rows, asked.changes)))
        return
    with curves.errors_in_words(parser):
        run(list(changed(asked.rows, asked.changes)), asked)


def run(wanted: Sequence[tuple[Change, Row]], asked: argparse.Namespace) -> None:
    """Run what is missing; rows that match nothing are an error."""
    if not wanted:
        text = f"no row matches --rows {asked.rows!r} and --changes {asked.changes!r}"
        raise ConfigError(f"{text}; a row is PAPER/TABLE/SETTING/METHOD, --show lists changes.")
    with ResultStore(asked.out, NAME) as store:
        for change, row in wanted:
            options = Options(change.seeds, device=asked.device, data_dir=asked.data_dir)
            curves.run(store, row, options, change.kind)


if __name__ == "__main__":
    main()
