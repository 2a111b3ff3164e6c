"""The tables of a finished run, in Markdown: `python -m experiments.baselines.table OUT.json`."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.baselines.methods import METHODS
from experiments.baselines.run import SEEDS, SETS, best_point, key, main_model
from experiments.pool import Found

_TITLES = {
    "synthetic": "Synthetic(.5, .5), 100 devices",
    "fashion": "Fashion-MNIST, 20 devices of 2 labels",
    "digits": "Digits, 20 devices of 2 labels",
}
_HEAD = (
    "| method | global | personal | worst tenth | test loss: global | personal "
    "| training loss | kB | gradients | s | setting |"
)


def main() -> None:
    """Print a table for every set, then which methods end below the yardsticks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    answers: Found = json.loads(parser.parse_args().json.read_text())
    for name in SETS:
        lines = [line for method in METHODS if (line := row(answers, name, method))]
        if lines:
            print(f"### {_TITLES[name]}\n\n{_HEAD}\n" + "|---" * _HEAD.count("| ") + "|")
            print("\n".join(lines) + "\n")
    print(verdict(answers))


def reported(answers: Found, name: str, method: str) -> list[dict[str, Any]]:
    """The answers of the reported seeds that there are and that ended well."""
    best = best_point(answers, name, method)
    found = (
        []
        if best is None
        else [answers.get(key(name, method, best, seed), {"error": ""}) for seed in SEEDS]
    )
    return [answer for answer in found if "error" not in answer]


def row(answers: Found, name: str, method: str) -> str | None:
    """A method's line; None where nothing was run."""
    tried = [
        answers.get(key(name, method, point, 0)) for point in range(len(METHODS[method].points))
    ]
    if not any(tried):
        return None
    seeds = reported(answers, name, method)
    failed = sum(answer is not None and "error" in answer for answer in tried)
    if not seeds:
        return f"| {method} | no result: {failed} of {len(tried)} settings failed |" + " |" * (
            _HEAD.count("| ") - 2
        )
    judged, own = main_model(seeds[0]), "personal" if "personal" in seeds[0]["models"] else "edge"
    setting = ", ".join(f"{what} {value:g}" for what, value in seeds[0]["setting"].items())
    setting += f" ({failed} of {len(tried)} failed)" if failed else ""
    mark = f" ({len(seeds)} of {len(SEEDS)} seeds)" if len(seeds) < len(SEEDS) else ""
    cells = [
        method + mark,
        "-" if method == "local" else _spread(seeds, "global", "test", 100),
        _spread(seeds, own, "test", 100)
        + (" (edge)" if own == "edge" and own in seeds[0]["models"] else ""),
        _spread(seeds, judged, "worst", 100),
        "-" if method == "local" else _spread(seeds, "global", "last_loss"),
        _spread(seeds, own, "last_loss"),
        _spread(seeds, judged, "train_loss"),
        f"{_mean([seed['bytes'] / 1000 for seed in seeds]):.1f}",
        f"{_mean([seed['gradients'] for seed in seeds]):.0f}",
        f"{_mean([seed['seconds'] for seed in seeds]):.0f}",
        setting,
    ]
    return "| " + " | ".join(cells) + " |"


def verdict(answers: Found) -> str:
    """For each method, the sets on which the test loss of one of its models ends below that of
    local or FedAvg.
    """
    lines = [
        "| method | below local's test loss on | below FedAvg's | below local's training loss on | below FedAvg's |",
        "|---" * 5 + "|",
    ]
    yardsticks = (("local", "personal"), ("fedavg", "global"))
    for method in METHODS:
        cells = []
        for figure in ("last_loss", "train_loss"):
            for other, model in yardsticks:
                won = [
                    name for name in SETS if _below(answers, name, method, (other, model, figure))
                ]
                cells.append(", ".join(won) or "none")
        lines.append("| " + " | ".join([method, *cells]) + " |")
    return "\n".join(lines)


def _below(answers: Found, name: str, method: str, yardstick: tuple[str, str, str]) -> bool:
    other, model, figure = yardstick
    mine, theirs = reported(answers, name, method), reported(answers, name, other)
    if not mine or not theirs or method == other:
        return False
    means = [
        _losses(mine, own, figure)
        for own in mine[0]["models"]
        if method != "local" or own == "personal"
    ]
    return min(means) < _losses(theirs, model, figure)


def _losses(seeds: Sequence[dict[str, Any]], model: str, figure: str) -> float:
    values = [seed["models"][model][figure] for seed in seeds]
    return float("inf") if None in values else statistics.mean(values)


def _mean(values: Sequence[float]) -> float:
    return statistics.mean(values)


def _spread(seeds: Sequence[dict[str, Any]], model: str, figure: str, scale: float = 1.0) -> str:
    values = [seed["models"].get(model, {}).get(figure) for seed in seeds]
    numbers = [scale * value for value in values if value is not None]
    if not numbers:
        return "-"
    digits = 1 if scale == 100 else 3
    return f"{_mean(numbers):.{digits}f}" + (
        f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    )


if __name__ == "__main__":
    main()
