"""Bytes at the sparsity floors of sFedHP (20 %) and FedMac (50 %), measured and by formula: `python
-m experiments.bytes.run`.

Digits, two labels per device, 20 devices under 4 edges, 64-100-10; gamma = .001 as printed for
both. Bitmap links; what dense links would have carried is known from the same messages. Figures are
of the last 20 rounds, where the floor holds the sparsity; one line per link and direction.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import covey
from covey.algorithms import FedMac, SFedHP
from covey.links.meter import Meter, bitmap_bits, dense_bits, paper_bits

METHODS: dict[str, covey.Algorithm] = {
    "sFedHP, smooth l1": SFedHP(
        gamma1=0.001, gamma2=0.001, floor=0.2, lam1=5.0, lam2=5.0, lr1=0.05, lr2=0.05
    ),
    "sFedHP, soft threshold": SFedHP(
        gamma1=0.001, gamma2=0.001, floor=0.2, lam1=5.0, lam2=5.0, l1="prox", lr1=0.05, lr2=0.05
    ),
    "sFedHP, no l1": SFedHP(lam1=5.0, lam2=5.0, lr1=0.05, lr2=0.05),
    "FedMac, smooth l1": FedMac(gamma=0.001, floor=0.5, personal_lr=0.08),
    "FedMac, soft threshold": FedMac(gamma=0.001, floor=0.5, personal_lr=0.08, l1="prox"),
    "FedMac, no l1": FedMac(personal_lr=0.08),
}
WINDOW = 20


def main() -> None:
    """Two tables in Markdown: bytes per link, then accuracies and non-zeros of every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.rounds < WINDOW:
        parser.error(
            f"--rounds {options.rounds}: give {WINDOW} or more, the figures are of the last {WINDOW}."
        )
    columns = ["method", "link", "direction", "non-zeros", "MB a round, bitmap", "dense", "ratio"]
    columns += ["formula, both ways: dense", "printed", "consistent"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    endings = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        jobs = [(name, options.rounds, options.seed) for name in METHODS]
        windows = dict(zip(METHODS, pool.map(last_rounds, jobs), strict=True))
    for name, window in windows.items():
        meter = Meter()
        for record in window:
            for (link, direction, lane), traffic in record.traffic.items():
                meter.count(link, direction, lane, traffic)
        _bytes(name, meter)
        endings.append((name, window[-1]))
    print("\n| method | model | test accuracy | non-zeros | cut |\n|---|---|---|---|---|")
    for name, record in endings:
        for model, figures in record.models.items():
            accuracy = figures.scores["test"].accuracy or 0.0
            print(
                f"| {name} | {model} | {100 * accuracy:.2f} | {100 * figures.nonzeros:.1f} % | {figures.cut:.1e} |"
            )


def last_rounds(job: tuple[str, int, int]) -> list[covey.Round]:
    """The records of the last rounds of one method."""
    name, rounds, seed = job
    return list(covey.run(experiment(METHODS[name], rounds, seed)))[-WINDOW:]


def experiment(algorithm: covey.Algorithm, rounds: int, seed: int) -> covey.Experiment:
    """One method, bitmap on every link."""
    return covey.Experiment(
        algorithm=algorithm,
        data=covey.data.digits(devices=20, labels=2, seed=seed),
        model=covey.models.mlp(64, 100, 10),
        tree=covey.Tree.grouped([5, 5, 5, 5]),
        rounds=rounds,
        seed=seed,
        codec="bitmap",
        score_every=rounds,
        workers=1,
    )


def _bytes(name: str, meter: Meter) -> None:
    for link in sorted({link for link, _, lane in meter.totals if lane == "train"}):
        down, up = (meter.traffic(link=link, direction=direction) for direction in ("down", "up"))
        formulas = [
            dense_bits(down.values + up.values),
            paper_bits(down, up),
            bitmap_bits(down, up),
        ]
        for direction, traffic in (("down", down), ("up", up)):
            cells = [
                f"{100 * traffic.nonzeros / traffic.values:.1f} %",
                _mb(traffic.bytes),
                _mb(traffic.dense),
            ]
            cells += [f"{traffic.bytes / traffic.dense:.3f}"]
            cells += [_mb(bits / 8) for bits in formulas] if direction == "down" else ["", "", ""]
            print(f"| {name} | {link} | {direction} | " + " | ".join(cells) + " |")


def _mb(count: float) -> str:
    return f"{count / WINDOW / 1e6:.3f}"


if __name__ == "__main__":
    main()
