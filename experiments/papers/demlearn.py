"""DemLearn's generalization: every device's model on the test examples of all devices.

`python -m experiments.papers.demlearn [--rows GLOB] [--data-dir DIR] [--seeds 3]` writes
demlearn.json, and `--show` prints it as Markdown. PerMFL's public code reads two columns from what
DemLearn's code wrote, C-SPE and C-GEN: the accuracy of the devices' models on their own test
examples, and on those of all. DemLearn's own global model is neither. Here all three are taken in
PerMFL's rows, with the settings of the row, and with those of DemLearn's public code.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import covey
from covey.errors import ConfigError
from covey.papers import report, tables
from covey.papers.measure import Options, make_experiment
from covey.papers.printed import cell
from covey.papers.tables import Row
from covey.runs.seed import Seed
from experiments.papers import curves, figure_files

OUT = Path(__file__).parent / "demlearn.json"
SETTINGS = (
    "mnist/linear",
    "mnist/linear/half",
    "fmnist/linear",
    "fmnist/linear/half",
    "synthetic/linear",
    "synthetic/dnn",
)
CODE = {"lr": 0.05, "amplify": 1.15}
ROUNDS = 100  # of DemLearn's public code
SCORE_EVERY = 10
MODELS = ("local", "personal")  # before groups mix, and after
HEAD = ("row", "settings", "printed GM", "printed PM", "global", "C-GEN", "C-SPE")


def rows() -> Iterator[tuple[str, Row]]:
    """Every row with the name of its settings."""
    for row in tables.read("permfl/table1").rows:
        if row.method == "demlearn" and row.setting in SETTINGS:
            short = replace(row, rounds=ROUNDS, score_every=SCORE_EVERY)
            yield "the row's", short
            yield "DemLearn's code", replace(short, algorithm={**row.algorithm, **CODE})


def generalization(one: Seed, model: str) -> float:
    """The mean over the devices of a model's accuracy on the test examples of all, in percent."""
    shards = one.trained
    x = shards.x[shards.test.index]
    y = shards.y[shards.test.index]
    scores = []
    for device in range(shards.devices):
        with torch.no_grad():
            predicted = one.module(model, device)(x).argmax(1)
        scores.append(float((predicted == y).double().mean()))
    return 100 * statistics.mean(scores)


def measure(row: Row, options: Options) -> dict[str, list[float]]:
    """The best scored round of every figure in percent, by seed."""
    experiments = [make_experiment(row, "paper", options, seed) for seed in range(options.seeds)]
    together = covey.runs(experiments)
    by_name: dict[str, list[list[float]]] = {}
    for records in together:
        if not records[0].models:  # not scored
            continue
        figures: dict[str, list[float]] = {}
        for model in ("global", *MODELS):
            own = [100 * (record.accuracy(model) or 0.0) for record in records]
            figures[f"{model}, own"] = own
        for model in MODELS:
            figures[f"{model}, all"] = [generalization(one, model) for one in together.seeds]
        for name, values in figures.items():
            by_name.setdefault(name, []).append(values)
    return {
        name: [round(max(values), 4) for values in zip(*by_round, strict=True)]
        for name, by_round in by_name.items()
    }


def lines(figures: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """A line under `HEAD` for every row that was run; local models before personal ones."""
    for name, row in rows():
        result = figures.get(f"{row.setting}, {name}")
        if result is None:
            continue
        general = [report.spread(result["figures"][f"{model}, all"]) for model in MODELS]
        special = [report.spread(result["figures"][f"{model}, own"]) for model in MODELS]
        yield (
            row.setting,
            name,
            str(cell(row, "global")),
            str(cell(row, "personal")),
            report.spread(result["figures"]["global, own"]),
            "; ".join(general),
            "; ".join(special),
        )


def run(figures: dict[str, Any], pattern: str, options: Options, out: Path) -> None:
    """Run what is missing; write the figures after each row."""
    for name, row in rows():
        key = f"{row.setting}, {name}"
        if not fnmatch.fnmatchcase(row.setting, pattern) or _is_there(figures, key, row, options):
            continue
        figures[key] = {"rounds": options.rounds_of(row), "figures": measure(row, options)}
        figure_files.write(out, figures)
        print(key, figures[key], flush=True)


def _is_there(figures: Mapping[str, Any], key: str, row: Row, options: Options) -> bool:
    """Whether a row was run with as many rounds and seeds."""
    if key not in figures:
        return False
    result = figures[key]
    seeds = len(result["figures"]["global, own"])
    return bool(result["rounds"] >= options.rounds_of(row) and seeds >= options.seeds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, or show what is there."""
    parser = figure_files.arguments(__doc__, OUT)
    asked = parser.parse_args(arguments)
    figures = figure_files.read(asked.out)
    if asked.show:
        print(curves.show(HEAD, lines(figures)))
        return
    with curves.errors_in_words(parser):
        if not fnmatch.filter(SETTINGS, asked.rows):
            raise ConfigError(f"no row matches {asked.rows!r}; one of {', '.join(SETTINGS)}.")
        options = Options(asked.seeds, asked.rounds, data_dir=asked.data_dir)
        run(figures, asked.rows, options, asked.out)


if __name__ == "__main__":
    main()
