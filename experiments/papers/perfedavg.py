"""Per-FedAvg as the public code of pFedMe trained it in 2020, beside the method as published.

`python -m experiments.papers.perfedavg [--device cuda] [--data-dir DIR] [--rounds N] [--seeds 3]`
runs the two MNIST settings of pFedMe's Table 1 in which images are shared. A step of the published
method computes its gradient at x - alpha g(x) and moves x by it. The public code did not restore x
between the two: x itself moves by alpha g, then by beta g. Its personal model takes both steps from
w, on test batches; here on training batches.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import covey
from covey import Algorithm, Nodes, Rows
from covey.fields import Count, Positive
from covey.kernel.nodes import Weight
from covey.kernel.replies import Weighted
from covey.papers import report, tables
from covey.papers.measure import Options, make_experiment
from covey.papers.tables import Row
from covey.runs.selection import select
from covey.tree import Sample

OUT = Path(__file__).parent / "perfedavg.json"
SETTINGS = ("legacy2020/mlr", "legacy2020/dnn")


@dataclass(frozen=True)
class TwoSteps(Algorithm):
    """Each of `steps` moves x by alpha g(x), then by lr g(x); w becomes the mean."""

    alpha: Positive = 0.02
    lr: Positive = 0.001
    steps: Count = 20
    sample: Sample = None
    batch: Count | None = 20
    weight: Weight = "samples"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        inner = me.grad(self.batch, "inner")
        outer = me.grad(self.batch)
        x = w
        for step in range(self.steps):
            x = x - self.alpha * inner(x)
            x = x - self.lr * outer(x)
            if step == 0:
                me.keep("personal", x)
        return x, me.weight(self.weight)


def measure(row: Row, options: Options) -> dict[str, list[float]]:
    """Test accuracy of the best round on test in percent, by model and seed."""
    names = ("alpha", "lr", "steps", "sample", "batch")
    algorithm = TwoSteps(**{name: row.algorithm[name] for name in names})
    experiments = [
        replace(make_experiment(row, "paper", options, seed), algorithm=algorithm, idle="train")
        for seed in range(options.seeds)
    ]
    together = covey.runs(experiments)
    for _ in together:
        pass
    out = {}
    for model in ("global", "personal"):
        chosen = [select(seed.history, model, "paper").chosen for seed in together.seeds]
        accuracies = [record.accuracy(model) or 0.0 for record in chosen]
        out[model] = [round(100 * accuracy, 4) for accuracy in accuracies]
    return out


def main() -> None:
    """Run both settings; write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    options = Options(asked.seeds, asked.rounds, device=asked.device, data_dir=asked.data_dir)
    figures = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for row in tables.read("pfedme/table1").rows:
        if row.method != "perfedavg" or row.setting not in SETTINGS or row.setting in figures:
            continue
        models = measure(row, options)
        figures[row.setting] = {"rounds": options.rounds_of(row), "models": models}
        part = asked.out.with_suffix(".part")
        part.write_text(json.dumps(figures, indent=1) + "\n")
        os.replace(part, asked.out)
        print(row.setting, {name: report.spread(values) for name, values in models.items()})


if __name__ == "__main__":
    main()
