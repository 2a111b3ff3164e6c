"""Tables and verdicts in Markdown from what `run.py` wrote: `python -m experiments.pruned.table
OUT.json`.

Accuracies are of the personal models on test data, in per cent: in the round that validation data
chose for each seed, and in the last. "shared" is the averaged shared part with each device's own
layers. Means over seeds, and their standard deviation.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.pool import Found
from experiments.pruned.run import late, rates
from experiments.pruned.settings import DEADLINE, DEADLINES, DRAWN, RATIOS, SCHEMES, SETS

Seed = dict[str, list[Any]]


def seeds(found: Found, part: str, data: str, scheme: str) -> list[Seed]:
    """Every seed's columns; nothing where the job is missing or failed."""
    one = found.get(f"{part}/{data}/{scheme}")
    return [] if one is None or "error" in one else next(iter(one["schemes"].values()))


def threshold(found: Found, deadline: float) -> list[Seed]:
    """The proposed scheme at a deadline; 25 ms is that of the other comparison."""
    if deadline == DEADLINE:
        return seeds(found, "schemes", "fashion_mnist", "proposed")
    return seeds(found, "thresholds", "fashion_mnist", f"{1e3 * deadline:g} ms")


def last(seed: Seed, name: str = "personal_test") -> float:
    return float(next(value for value in reversed(seed[name]) if value is not None))


def chosen(seed: Seed, name: str = "personal_test") -> float:
    """A figure in the round with the best validation accuracy."""
    scored = [at for at, value in enumerate(seed["personal_validation"]) if value is not None]
    return float(seed[name][max(scored, key=lambda at: seed["personal_validation"][at])])


def average(seed: Seed, name: str) -> float:
    values = [value for value in seed.get(name, []) if value is not None]
    return statistics.fmean(values) if values else float("nan")


def reach(seed: Seed, target: float) -> tuple[int, float, float, float] | None:
    """The first round whose validation accuracy passes a target; seconds, joules and bytes until
    then.
    """
    for at, value in enumerate(seed["personal_validation"]):
        if value is not None and value >= target:
            seconds, joules, sent = (
                sum(seed[name][: at + 1]) for name in ("seconds", "joules", "bytes")
            )
            return at + 1, seconds, joules, sent
    return None


def common(groups: Sequence[Sequence[Seed]]) -> float:
    """The highest half point that every seed of every setting reaches on validation data."""
    best = min(
        max(v for v in seed["personal_validation"] if v is not None)
        for group in groups
        for seed in group
    )
    return int(best * 200) / 200


def cell(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    scaled = [scale * value for value in values]
    if not scaled:
        return "-"
    spread = f" ± {statistics.stdev(scaled):.{digits}f}" if len(scaled) > 1 else ""
    return f"{statistics.fmean(scaled):.{digits}f}{spread}"


def line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")


def head(*names: str) -> None:
    line(*names)
    print("|" + "---|" * len(names))


def mean(group: Sequence[Seed], figure: Callable[[Seed], float]) -> float:
    return statistics.fmean(figure(seed) for seed in group)


def grid(found: Found) -> None:
    print("### Learning rates, seed 0, validation accuracy over the last quarter of the rounds\n")
    head("data", "rate, ratio", "accuracy", "its best round")
    for key, one in found.items():
        if key.startswith("grid/") and "error" not in one:
            _, data, name = key.split("/")
            values = next(iter(one["schemes"].values()))[0]["personal_validation"]
            line(
                data,
                name,
                f"{100 * late(one):.2f}",
                f"{100 * max(v for v in values if v is not None):.2f}",
            )
    taken = [
        f"{lr:g} for {data}{', pruning only' if alone else ''}"
        for (data, alone), lr in rates(found).items()
    ]
    print(f"\nTaken: {'; '.join(taken)}.")


def ratios(found: Found) -> None:
    print("\n### Fixed ratios (Figure 2)\n")
    head(
        "data",
        "ratio",
        "accuracy",
        "last",
        "loss, last",
        "shared, last",
        "kappa*",
        "uncovered",
        "Assumption 2",
    )
    said: list[str] = []
    for data in SETS:
        groups = [(ratio, seeds(found, "ratios", data, f"{ratio:g}")) for ratio in RATIOS]
        groups = [(ratio, group) for ratio, group in groups if group]
        for ratio, group in groups:
            line(
                data, f"{ratio:g}", cell([chosen(s) for s in group], 100), cell([last(s) for s in group], 100),
                cell([last(s, "personal_test_loss") for s in group], 1, 3), cell([last(s, "global_test") for s in group], 100),
                f"{min(min(s['cover']) for s in group):g}", f"{mean(group, lambda s: average(s, 'uncovered')):.3f}",
                cell([average(s, "error") for s in group], 1, 2),
            )  # fmt: skip
        for name, figure, sign in _FALLS:
            values = [mean(group, figure) for _, group in groups]
            steps = [sign * (b - a) >= 0 for a, b in pairwise(values)]
            if steps:
                said.append(
                    f"{data}: {name} in {sum(steps)} of {len(steps)} steps ({values[0]:.4f} to {values[-1]:.4f})."
                )
    print("\nWith the ratio:\n- " + "\n- ".join(said))


_FALLS: tuple[tuple[str, Callable[[Seed], float], float], ...] = (
    ("accuracy falls", chosen, -1.0),
    ("last accuracy falls", last, -1.0),
    ("last loss rises", lambda seed: last(seed, "personal_test_loss"), 1.0),
)


def orders(found: Found) -> None:
    print("\n### One part after the other, or both together (Figure 3)\n")
    head("data", "ratio", "order", "accuracy", "last", "shared, last")
    said: list[str] = []
    for data in SETS:
        for ratio in ("0", "0.5"):
            names = [("alternate", seeds(found, "ratios", data, ratio))]
            names += [
                (t, seeds(found, "orders", data, f"{t}, {ratio}"))
                for t in ("together", "together, twice the steps")
            ]
            for name, group in names:
                figures = [
                    [chosen(s) for s in group],
                    [last(s) for s in group],
                    [last(s, "global_test") for s in group],
                ]
                line(data, ratio, name, *(cell(f, 100) for f in figures))
            if all(group for _, group in names):
                gaps = [
                    [100 * (chosen(a) - chosen(b)) for a, b in zip(names[0][1], g, strict=True)]
                    for _, g in names[1:]
                ]
                said.append(
                    f"{data}, {ratio}: alternate less together {cell(gaps[0])}, with twice the steps {cell(gaps[1])}."
                )
    print("\nPoints:\n- " + "\n- ".join(said))


def schemes(found: Found) -> None:
    print("\n### Schemes (Figure 4, Table I)\n")
    names = [
        "data",
        "scheme",
        "accuracy",
        "last",
        "worst tenth",
        "loss, last",
        "shared, last",
        "ratio",
        "ms a round",
    ]
    head(
        *names,
        "ms by formula",
        "late a round",
        "left out",
        "MB sent",
        "MB by formula",
        "J a round",
        "uncovered",
    )
    for data in reversed(SETS):
        for name in [*SCHEMES, "proposed, 2 edges", "personalization only, 2 edges"]:
            if group := seeds(found, "schemes", data, name):
                air = [
                    cell([average(s, key) for s in group], scale, digits)
                    for key, scale, digits in _CLOCK
                ]
                sent = [
                    cell([sum(s[key]) for s in group], 1e-6, 1)
                    for key in ("bytes", "formula_bytes")
                ]
                line(
                    data, name, cell([chosen(s) for s in group], 100), cell([last(s) for s in group], 100),
                    cell([last(s, "personal_test_worst") for s in group], 100, 0),
                    cell([last(s, "personal_test_loss") for s in group], 1, 3),
                    cell([last(s, "global_test") for s in group], 100),
                    f"{1 - mean(group, lambda s: average(s, 'kept')):.3f}" if "kept" in group[0] else "0",
                    *air, *sent, cell([average(s, "joules") for s in group], 1, 3),
                    f"{mean(group, lambda s: average(s, 'uncovered')):.3f}" if "kept" in group[0] else "0",
                )  # fmt: skip
    for data in reversed(SETS):
        verdicts(found, data)


_CLOCK = (("seconds", 1e3, 2), ("formula_seconds", 1e3, 2), ("late", 1, 1), ("left_out", 1, 2))


def verdicts(found: Found, data: str) -> None:
    """The paper's four claims on one data set."""
    group = {name: seeds(found, "schemes", data, name) for name in SCHEMES}
    if not all(group[name] for name in SCHEMES):
        return
    mine, alone, fastest = (
        group[n] for n in ("proposed", "personalization only", "personalization only, fastest")
    )
    ms = {name: mean(g, lambda s: average(s, "seconds")) for name, g in group.items()}
    target = common([mine, alone])
    to = {
        name: [reach(s, target) for s in g]
        for name, g in (("mine", mine), ("alone", alone), ("fastest", fastest))
    }
    seconds = {name: statistics.fmean(r[1] for r in rs if r) for name, rs in to.items()}
    gap = [100 * (chosen(a) - chosen(b)) for a, b in zip(mine, alone, strict=True)]
    print(f"\n{data}:")
    print(
        f"- half the latency at equal accuracy: a round takes {1e3 * ms['proposed']:.1f} ms against",
        end=" ",
    )
    print(
        f"{1e3 * ms['personalization only']:.1f} (fastest {1e3 * ms['personalization only, fastest']:.1f});",
        end=" ",
    )
    print(
        f"accuracy {cell(gap)} points apart; to {100 * target:g} % on validation {seconds['mine']:.2f} s against",
        end=" ",
    )
    print(f"{seconds['alone']:.2f} (fastest {seconds['fastest']:.2f}).")
    other = group["pruning only"]
    for title, figure in (("personal", chosen), ("shared", lambda s: last(s, "global_test"))):
        gains = [100 * (chosen(a) - figure(b)) for a, b in zip(mine, other, strict=True)]
        print(f"- 10 points over pruning only: {cell(gains)} over its {title} model.")
    for name in ("bytes", "formula_bytes"):
        parts = [sum(a[name]) / sum(b[name]) for a, b in zip(mine, alone, strict=True)]
        print(
            f"- half the communication: {cell(parts, 100, 1)} % of personalization only's, {name}."
        )
    for name in ("equal (a)", "equal (b)", "fair"):
        points = cell(
            [100 * (chosen(a) - chosen(b)) for a, b in zip(mine, group[name], strict=True)]
        )
        print(f"- {name}: {1e3 * ms[name]:.1f} ms a round; proposed {points} points above.")


def thresholds(found: Found) -> None:
    print("\n### Deadlines (Figure 5)\n")
    groups = [(t, group) for t in sorted((*DEADLINES, DEADLINE)) if (group := threshold(found, t))]
    if not groups:
        return
    targets = (common([g for _, g in groups]) - 0.02, common([g for _, g in groups]))
    head(
        "ms",
        "ratio",
        "accuracy",
        "last",
        "loss, last",
        *(f"rounds to {100 * t:g} %" for t in targets),
        "seconds to it",
    )
    for t, group in groups:
        to = [[reach(s, target) for s in group] for target in targets]
        line(
            f"{1e3 * t:g}", f"{1 - mean(group, lambda s: average(s, 'kept')):.3f}", cell([chosen(s) for s in group], 100),
            cell([last(s) for s in group], 100), cell([last(s, "personal_test_loss") for s in group], 1, 3),
            *(cell([r[0] for r in rs if r], 1, 1) for rs in to), cell([r[1] for r in to[1] if r], 1, 2),
        )  # fmt: skip
    for name, figure in (("accuracy", chosen), ("last accuracy", last)):
        values = [mean(group, figure) for _, group in groups]
        print(
            f"\n{name} rises in {sum(b >= a for a, b in pairwise(values))} of {len(values) - 1} steps of the deadline.",
            end="",
        )
    print()


def fading(found: Found) -> None:
    print("\n### Seconds and joules to an accuracy over a fading channel\n")
    head(
        "data",
        "policy",
        "seeds",
        "target",
        "rounds",
        "seconds",
        "joules",
        "MB",
        "accuracy",
        "worst tenth",
    )
    for data in reversed(SETS):
        groups = {
            name: seeds(found, "fading", data, name) for name in ("proposed", "fair", "equal (a)")
        }
        if not all(groups.values()):
            continue
        highest = common(list(groups.values()))
        for target in (highest - 0.05, highest):
            for name, group in groups.items():
                to = [r for s in group if (r := reach(s, target))]
                line(
                    data, name.replace("proposed", "optimal"), f"{len(to)} of {len(group)}", f"{100 * target:g} %",
                    *(cell([r[at] for r in to], scale, digits) for at, scale, digits in _COSTS),
                    cell([chosen(s) for s in group], 100), cell([last(s, "personal_test_worst") for s in group], 100, 0),
                )  # fmt: skip


_COSTS = (
    (0, 1, 1),
    (1, 1, 2),
    (2, 1, 2),
    (3, 1e-6, 1),
)  # rounds, seconds, joules, MB: scale and digits


def draws(found: Found) -> None:
    print("\n### Orderings over random draws\n")
    all_found = [
        one["schemes"]
        for key, one in found.items()
        if key.startswith("draws/") and "error" not in one
    ]
    if not all_found:
        return
    rounds = len(all_found[0]["proposed"][0]["personal_test"])
    for title, at in (("the last round", rounds - 1), ("half of the rounds", rounds // 2 - 1)):
        value = {n: [one[n][0]["personal_test"][at] for one in all_found] for n in DRAWN}
        value["pruning only, shared"] = [
            one["pruning only"][0]["global_test"][at] for one in all_found
        ]
        mine = value.pop("proposed")
        head(
            f"after {title}, {len(mine)} draws",
            "proposed >= it",
            "within 1 point",
            "10 points above",
            "points above: 10, 50, 90 %",
        )
        for name, values in value.items():
            gaps = sorted(a - b for a, b in zip(mine, values, strict=True))
            share = [statistics.fmean(test) for test in (
                [g >= 0 for g in gaps], [abs(g) <= 0.01 for g in gaps], [g >= 0.1 for g in gaps])]  # fmt: skip
            tenths = [
                f"{100 * gaps[min(int(q * len(gaps)), len(gaps) - 1)]:.2f}" for q in (0.1, 0.5, 0.9)
            ]
            line(name, *(f"{100 * s:.0f} %" for s in share), ", ".join(tenths))
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    found = json.loads(parser.parse_args().json.read_text())
    for part in (grid, schemes, thresholds, ratios, orders, fading, draws):
        part(found)
    failed = {key: one["error"] for key, one in found.items() if "error" in one}
    print(f"\n{len(found) - len(failed)} jobs done; failed: {failed or 'none'}")


if __name__ == "__main__":
    main()
