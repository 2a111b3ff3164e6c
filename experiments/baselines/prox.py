"""FedProx at FedAvg's own step size: last test loss by mu. `COVEY_DATA=FOLDER python -m
experiments.baselines.prox`.

In run.py both choose among six settings; FedProx spends half of its on mu and has fewer step sizes
to choose from.
"""

from __future__ import annotations

import statistics

import covey
from covey.algorithms import FedAvg, FedProx
from experiments.baselines.methods import BATCH, GRADIENTS
from experiments.baselines.run import SEEDS, SETS, shards

RATES = {"digits": 0.6, "fashion": 0.1, "synthetic": 0.1}  # that FedAvg chose


def loss(name: str, mu: float, seed: int) -> float:
    """The global model's test loss after the last round; mu = 0 is FedAvg."""
    sizes, _, rounds = SETS[name]
    plain = FedAvg(lr=RATES[name], steps=GRADIENTS, batch=BATCH)
    algorithm = FedProx(mu=mu, lr=plain.lr, steps=plain.steps, batch=plain.batch) if mu else plain
    data = shards(name, seed)
    model, tree = covey.models.mlp(*sizes), covey.Tree.flat(data.devices)
    run = covey.run(
        covey.Experiment(algorithm, data, model, tree, rounds=rounds, seed=seed, score_every=rounds)
    )
    found: float | None = list(run)[-1].models["global"].scores["test"].loss
    assert found is not None
    return found


def main() -> None:
    """A table in Markdown."""
    print("| set | mu | mean | seeds |\n|---|---|---|---|", flush=True)
    for name in RATES:
        for mu in (0.0, 0.001, 0.003, 0.01, 0.03):
            losses = [loss(name, mu, seed) for seed in SEEDS]
            print(
                f"| {name} | {mu:g} | {statistics.mean(losses):.4f} | {', '.join(f'{one:.4f}' for one in losses)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
