"""Sparse sFedHP beside FedAvg on real digits, through the Python API: a table and a picture (compare.png).

20 devices under 4 edges, each device with two of the ten digits. FedAvg learns one model; sFedHP one for every device, one for
every edge and a global one, with most weights zero, so that its messages are short.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import covey
from covey.algorithms import FedAvg, SFedHP
from covey.select import select

TREE = covey.Tree.grouped([5, 5, 5, 5])
SPARSE = SFedHP(lam1=2.0, lam2=2.0, lr1=0.4, lr2=0.1, gamma1=0.003, gamma2=0.003, floor=0.2, gamma2_until=15, edge_rounds=10)


def train(algorithm: covey.Algorithm, codec: str) -> list[covey.Round]:
    """The records of one method; everything but the method and the codec is the same."""
    experiment = covey.Experiment(
        algorithm=algorithm,
        data=covey.data.digits(devices=20, labels=2),
        model=covey.models.mlp(64, 100, 10),
        tree=TREE,
        rounds=60,
        codec=codec,
        score_every=3,
    )
    run = covey.run(experiment)
    for note in run.notes:
        print(f"note: {note}")
    history = []
    for record in run:
        history.append(record)
        if record.models:
            print(f"\r{type(algorithm).__name__}: {record}", end="", flush=True)
    print()
    return history


def table(name: str, history: list[covey.Round], dense: list[covey.Round]) -> None:
    """Every model of a method in the round its validation accuracy chooses."""
    saved = sum(record.bytes() for record in history[-10:]) / sum(record.bytes() for record in dense[-10:])
    for model in history[-1].models:
        chosen = select(history, model).chosen
        figures = chosen.models[model]
        accuracy = figures.scores["test"].accuracy or 0.0
        cells = f"{name:8} {model:12} {figures.tier:7} {100 * accuracy:6.1f} %   {100 * figures.nonzeros:6.1f} %"
        print(f"{cells}   {saved:6.2f}" if model == "global" else cells)


def picture(histories: dict[str, list[covey.Round]], path: Path) -> None:
    """Test accuracy of every model by round, and bytes by round."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name in ("FedAvg", "sFedHP"):
        history = histories[name]
        scored = [record for record in history if record.models]
        for model, style in zip(scored[-1].models, ("-", "--", ":", "-."), strict=False):
            if model == "edge_global":  # lies on "edge"
                continue
            accuracy = [100 * (record.accuracy(model) or 0.0) for record in scored]
            colour = "tab:orange" if name == "FedAvg" else "tab:blue"
            left.plot([record.round + 1 for record in scored], accuracy, style, color=colour, label=f"{name}, {model}")
    for codec, colour in (("dense", "tab:grey"), ("bitmap", "tab:blue")):
        history = histories["sFedHP" if codec == "bitmap" else "sFedHP, dense links"]
        megabytes = [record.bytes() / 1e6 for record in history]
        right.plot(range(1, len(history) + 1), megabytes, color=colour, label=f"sFedHP, {codec} links")
    left.set(xlabel="round", ylabel="test accuracy (%)", title="one model for all, or one for every tier")
    right.set(xlabel="round", ylabel="MB per round, measured", title="what the links carried", ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run, print, draw."""
    histories = {
        "FedAvg": train(FedAvg(lr=0.1), "dense"),
        "sFedHP": train(SPARSE, "bitmap"),
        "sFedHP, dense links": train(SPARSE, "dense"),
    }
    print(f"\n{TREE}; the round of each figure was chosen on validation data")
    print(f"{'method':8} {'model':12} {'kept by':7} {'test acc.':>8}   {'non-zeros':>8}   bytes / dense")
    table("FedAvg", histories["FedAvg"], histories["FedAvg"])
    table("sFedHP", histories["sFedHP"], histories["sFedHP, dense links"])
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "compare.png")
    picture(histories, path)
    print(f"\npicture: {path}")


if __name__ == "__main__":
    main()
