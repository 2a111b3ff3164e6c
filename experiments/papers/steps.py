"""FedAvg with fewer steps per round in sFedHP's settings: does it have the printed figure then?

`python -m experiments.papers.steps SETTING ... [--steps 1 2 5] [--device cuda] [--data-dir DIR]`
runs FedAvg in settings of sFedHP's Tables II to V, over all 800 rounds, with all else as in the
tables. The paper does not print how many steps FedAvg takes in a round; the tables have 20.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from covey.papers import measure, report, tables
from covey.papers.measure import Options
from covey.papers.printed import cell
from covey.papers.tables import Row

OUT = Path(__file__).parent / "steps.json"
TABLES = ("sfedhp/table2", "sfedhp/table3", "sfedhp/table4", "sfedhp/table5")


def rows(method: str) -> dict[str, Row]:
    """The rows of a method in all tables, by setting."""
    listed = [row for name in TABLES for row in tables.read(name).rows]
    return {row.setting: row for row in listed if row.method == method}


def main() -> None:
    """Run every setting with every number of steps; write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="+", choices=list(rows("fedavg")), metavar="SETTING")
    parser.add_argument("--method", choices=("fedavg", "hierfavg"), default="fedavg")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 2, 5])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    options = Options(asked.seeds, None, 20, asked.device, asked.data_dir)
    for setting in asked.settings:
        row = rows(asked.method)[setting]
        for steps in asked.steps:
            key = f"{setting}/{asked.method}, {steps} steps"
            figures = _read(asked.out)
            if key in figures:
                continue
            changed = replace(row, algorithm={**row.algorithm, "steps": steps})
            result = measure.measure(changed, "paper", options)
            figures[key] = result
            _write(asked.out, figures)
            ours = report.spread(result["models"]["global"])
            print(f"{key}: {ours}, printed {cell(row, 'global')}", flush=True)


def _read(path: Path) -> dict[str, object]:
    """The figures that are there."""
    if not path.exists():
        return {}
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write(path: Path, figures: dict[str, object]) -> None:
    """Replace the file in one step."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    main()
