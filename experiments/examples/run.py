"""Whether every example's personal models are worth their rounds: beside them Local, with as many
gradients.

    python -m experiments.examples.run [FILE.toml ...]

Seeds 0 to 2, each model in the round chosen on validation data. Local has three step sizes, of
which validation data chooses one; it takes as many steps in all as a device of the example does on
average.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import covey
from covey.algorithms import Local
from covey.files.config import Config, load
from covey.runs.experiment import Experiment
from covey.runs.selection import select

ROOT = Path(__file__).parents[2]
SEEDS = range(3)
STEP_SIZES = (0.02, 0.1, 0.3)


def examples() -> list[Path]:
    """Every experiment file that is shipped, the demo too; plan/ has scenarios, which train
    nothing.
    """
    found = set((ROOT / "examples").rglob("*.toml")) - set(
        (ROOT / "examples" / "plan").rglob("*.toml")
    )
    found.remove(ROOT / "examples" / "fashion.toml")  # whose data are not in the repository
    found.remove(ROOT / "examples" / "speech.toml")  # experiments/sequences has its methods
    return [*sorted(found), ROOT / "covey" / "files" / "demo.toml"]


@dataclass(frozen=True)
class Verdict:
    """Test accuracies of an example's models in percent, by name, and Local's."""

    models: dict[str, float]
    local: float

    @property
    def personal(self) -> float:
        """The model that is closest to a device."""
        return next(
            self.models[name] for name in ("personal", "edge", "global") if name in self.models
        )


def judge(
    config: Config, seeds: range = SEEDS, step_sizes: Sequence[float] = STEP_SIZES
) -> Verdict:
    """An example beside Local, means over seeds."""
    models: dict[str, list[float]] = {}
    local = []
    for seed in seeds:
        experiment = config.experiment(seed)
        history = list(covey.run(experiment))
        scored = [record for record in history if record.models]
        for name in scored[-1].models:
            models.setdefault(name, []).append(_chosen(history, name)[1])
        local.append(_local(experiment, history, step_sizes))
    return Verdict({name: fmean(values) for name, values in models.items()}, fmean(local))


def _chosen(history: list[covey.Round], name: str) -> tuple[float, float]:
    """Validation quality and test accuracy in percent of the reported round."""
    model = select(history, name).chosen.models[name]
    return model.quality("validation"), 100 * (model.scores["test"].accuracy_fallback or 0.0)


def _local(
    experiment: Experiment, history: list[covey.Round], step_sizes: Sequence[float]
) -> float:
    """Local's test accuracy in percent, with the gradients of the example, at the step size that
    validation chooses.
    """
    gradients = sum(record.gradients for record in history)
    devices = experiment.data.devices
    steps = max(1, round(gradients / len(history) / devices))
    outcomes = []
    for lr in step_sizes:
        alone = Experiment(
            algorithm=Local(steps=steps, lr=lr, batch=20),
            data=experiment.data,
            model=experiment.model,
            tree=covey.Tree.flat(devices),
            rounds=len(history),
            seed=experiment.seed,
            l2=experiment.l2,
            score_every=experiment.score_every,
            holdout_devices=experiment.holdout_devices,
        )
        outcomes.append(_chosen(list(covey.run(alone)), "personal"))
    return max(outcomes)[1]


def main() -> None:
    """A line for every file."""
    files = [Path(word) for word in sys.argv[1:]] or examples()
    for path in files:
        verdict = judge(load(path))
        figures = "  ".join(f"{name} {value:.1f}" for name, value in verdict.models.items())
        print(f"{path.name:20} Local {verdict.local:.1f}  {figures}", flush=True)


if __name__ == "__main__":
    main()
