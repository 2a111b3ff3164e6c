"""How calibrated pFedGP is by the number of a device's own examples that its classifier predicts
from.

`COVEY_DATA=FOLDER python -m experiments.baselines.supports`: one seed of calibration.py, trained
for 300 rounds; then the same networks are looked at with 50 to 400 examples. The last takes eight
minutes on a busy core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import covey
from covey.algorithms import PFedGP
from experiments.baselines.calibration import DEVICES, METHODS, shards

LOOKS = ((50, 10), (100, 10), (100, 30), (200, 10), (400, 10))


def main() -> None:
    """A table in Markdown, line by line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    algorithm = METHODS["pFedGP"].make(0.1)
    assert isinstance(algorithm, PFedGP)
    plain = {"rounds": asked.rounds, "seed": asked.seed, "score_every": asked.rounds}
    model, tree = covey.models.mlp(784, 100, 10), covey.Tree.flat(DEVICES)
    run = covey.run(covey.Experiment(algorithm, shards(asked.seed), model, tree, **plain))
    list(run)
    print(
        "| examples, draws | accuracy | mean confidence | ECE | Brier | log-loss |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for support, draws in LOOKS:
        look = replace(algorithm, support=support, predict_draws=draws)
        object.__setattr__(
            run.experiment, "algorithm", look
        )  # a look at the same networks, no other run
        found = run.calibration()["global"]
        figures = [f"{100 * value:.1f}" for value in (found.accuracy, found.confidence, found.ece)]
        print(
            f"| {support}, {draws} | {' | '.join(figures)} | {found.brier:.3f} | {found.log_loss:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
