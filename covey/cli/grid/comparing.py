"""A comparison in its folder: its trials, its final runs, and which of them can run next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from covey.advice.curvature import Curvature
from covey.cli import config as files
from covey.cli import named
from covey.cli.grid.axes import Axis
from covey.cli.grid.cells import Budget, Cell
from covey.cli.grid.method import Method
from covey.cli.grid.pool import Answer, Job
from covey.cli.grid.store import Store
from covey.cli.grid.tune import Settings, Tuner, explored
from covey.kernel.algorithm import Algorithm


class Comparison:
    """A comparison in its folder: which cells can run next, and what they came to."""

    def __init__(self, store: Store, processes: int = 1) -> None:
        plan = store.plan
        self.store = store
        self.config = files.read(plan["config"])
        self.trials = int(plan["trials"])
        self.budget = Budget(**plan["budget"])
        self.model = str(plan.get("model", ""))
        self.methods = [Method.read(values) for values in plan["methods"]]
        self.seeds = list(range(self.config.seed, self.config.seed + self.config.seeds))
        self._processes = processes
        axes = [read_axis(values) for values in plan["axes"]]
        curvature = None
        if plan["curvature"] is not None:
            curvature = Curvature(**plan["curvature"])
        self._tuners = {each.label: _tuner(each, curvature, axes) for each in self.methods}

    @property
    def total(self) -> int:
        """The number of cells, as far as it is known."""
        trials = sum(len(self.trial_names(method)) for method in self.methods)
        return trials + len(self.methods) * len(self.seeds)

    @property
    def finished(self) -> int:
        return len(self.store.answers)

    def jobs(self) -> list[Job]:
        """What can run now: trials first, then the final runs of methods that are tuned."""
        jobs: list[Job] = []
        for method in self.methods:
            jobs += self._trial_jobs(method)
        for method in self.methods:
            jobs += self._final_jobs(method)
        return jobs

    def add(self, job: Job, answer: Answer) -> None:
        """Save the answer of a job: of a final one, each seed by itself."""
        if job.arguments["purpose"] == "trial":
            self.store.add(job.name, answer)
            return
        label = job.name.partition("/")[0]
        for seed in job.arguments["seeds"]:
            own = answer
            if "seeds" in answer:
                own = answer["seeds"][str(seed)]
            algorithm = job.arguments["config"]["algorithm"]
            self.store.add(f"{label}/seed-{seed}", {"algorithm": algorithm, **own})

    def trial_names(self, method: Method) -> list[str]:
        """The names of a method's trials, run or not; there are none where nothing is tuned."""
        count = self.trials
        if count == 1:
            return []
        scores = self.scores(method)
        settings = self._tuners[method.label].trials(count, scores)
        waiting = len(scores) < explored(count) and len(settings) == explored(count)
        if not waiting:
            count = len(settings)
        return [f"{method.label}/trial-{number + 1}" for number in range(count)]

    def scores(self, method: Method) -> list[float]:
        """The scores of the first trials, up to the first unknown one; -inf for a failure."""
        out = []
        for number in range(self.trials):
            answer = self.store.answers.get(f"{method.label}/trial-{number + 1}")
            if answer is None:
                break
            out.append(float(answer.get("score", -math.inf)))
        return out

    def chosen(self, method: Method) -> Settings | None:
        """The settings that were best on validation data.

        None before all trials have ended, and where all have failed.
        """
        tuner = self._tuners[method.label]
        if self.trials == 1:
            return tuner.settings(None)
        scores = self.scores(method)
        if len(scores) < len(self.trial_names(method)):
            return None
        settings = tuner.trials(self.trials, scores)
        best = max(range(len(scores)), key=lambda number: scores[number])
        if scores[best] == -math.inf:
            return None
        return settings[best]

    def finals(self, method: Method) -> dict[int, Answer]:
        """The answers of the seeds that have run with the chosen settings."""
        settings = self.chosen(method)
        if settings is None:
            return {}
        algorithm = {**method.algorithm, **settings}
        out = {}
        for seed in self.seeds:
            answer = self.store.answers.get(f"{method.label}/seed-{seed}")
            if answer is not None and answer.get("algorithm") == algorithm:
                out[seed] = answer
        return out

    def _trial_jobs(self, method: Method) -> list[Job]:
        if self.trials == 1:
            return []
        settings = self._tuners[method.label].trials(self.trials, self.scores(method))
        jobs = []
        for number, values in enumerate(settings):
            name = f"{method.label}/trial-{number + 1}"
            if name not in self.store.answers:
                cell = self._cell(method, values, "trial", self.seeds[:1])
                jobs.append(Job(name, cell.as_dict()))
        return jobs

    def _final_jobs(self, method: Method) -> list[Job]:
        """The seeds that are left, side by side as far as no process stays idle."""
        settings = self.chosen(method)
        if settings is None:
            return []
        done = self.finals(method)
        left = [seed for seed in self.seeds if seed not in done]
        size = max(1, len(self.methods) * len(self.seeds) // self._processes)
        jobs = []
        for start in range(0, len(left), size):
            group = left[start : start + size]
            cell = self._cell(method, settings, "final", group)
            jobs.append(Job(f"{method.label}/final-{group[0]}", cell.as_dict()))
        return jobs

    def _cell(self, method: Method, settings: Settings, purpose: Any, seeds: list[int]) -> Cell:
        table = {
            **self.store.plan["config"],
            "algorithm": {**method.algorithm, **settings},
            "rounds": method.rounds,
            "score_every": method.score_every,
            "compare": [],
        }
        beside = self.store.plan["beside"]
        return Cell(purpose, table, seeds, beside, method.budget, self.model)


def _tuner(method: Method, curvature: Curvature | None, axes: Sequence[Axis]) -> Tuner:
    algorithm: Algorithm = named.make("algorithm", method.algorithm)
    own = [each for each in axes if hasattr(algorithm, each.key)]
    return Tuner(algorithm, curvature, tuple(own))


def read_axis(values: dict[str, Any]) -> Axis:
    """An axis from what `asdict` gave, perhaps by way of JSON."""
    return Axis(**{**values, "values": tuple(values["values"])})
