"""A grid in its folder: which cells can run next, and what they came to.

Every method has trials, whose settings a search proposes. In a comparison the best of them then
runs on all seeds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from covey.advice.curvature import Curvature
from covey.fields import spelled
from covey.files import config as files
from covey.files import modules, named
from covey.grid import pool, search, store
from covey.grid.axes import Axis, Settings
from covey.grid.cells import Cell, play
from covey.grid.plan import Method
from covey.grid.pool import Answer, Job
from covey.grid.search import Search
from covey.grid.store import GridStore
from covey.grid.tune import Tuner
from covey.runs.saved.run_folder import Folder
from covey.runs.scores.headline import named as metric

Told = Callable[[int, int, str], None]
"""Receives how many cells have ended, of how many, and the last one in words."""


Came = TypeVar("Came")
"""What a grid came to."""


def run(
    folder: GridStore,
    processes: int,
    told: Told,
    collect: Callable[[Grid], Came],
    write: Callable[[Came, Folder], None],
) -> Came:
    """Run all cells that are left, and write what they came to."""

    def done(job: Job, answer: Answer) -> None:
        grid.add(job, answer)
        told(grid.finished, grid.total, in_words(job, answer))

    with store.locked(folder):
        folder.retry_failures()
        with store.understood(folder):
            grid = Grid(folder, processes)
            grid.jobs()
        told(grid.finished, grid.total, "")
        pool.run(play, grid.jobs, done, processes)
        with store.understood(folder):
            result = collect(grid)
        write(result, folder.folder)
    return result


def in_words(job: Job, answer: Answer) -> str:
    """A cell that has ended, for the line of progress."""
    if "score" in answer:
        by = metric(str(answer.get("metric", "")))
        score = float(answer["score"])
        return f"{job.name}: {by.with_unit(score if by.higher else -score)} on validation"
    if "error" in answer:
        return f"{job.name}: {'diverged' if answer.get('diverged') else 'failed'}"
    return f"{job.name}: done"


class Grid:
    """A comparison or a sweep in its folder, run by so many processes."""

    def __init__(self, store: GridStore, processes: int = 1) -> None:
        plan = store.plan
        if plan["beside"] is not None:
            modules.look_beside(Path(plan["beside"]) / "file")
        self.store = store
        self.compares = plan["kind"] == "compare"
        self.config = files.read(plan["config"])
        self._tunes = not self.compares or plan["trials"] > 1
        self.axes = [Axis(**values) for values in plan["axes"]]
        self.seeds = list(self.config.every_seed)
        self._processes = processes
        self.methods = [Method.read(values) for values in plan.get("methods", ())]
        if not self.compares:
            self.methods = [Method.of_file(self.config)]
        self._searches = {method.label: self._search(method) for method in self.methods}

    @property
    def total(self) -> int:
        """The number of cells, as far as it is known."""
        finals = len(self.methods) * len(self.seeds) if self.compares else 0
        return finals + sum(self.trials(method) for method in self.methods)

    @property
    def finished(self) -> int:
        return len(self.store.answers)

    def jobs(self) -> list[Job]:
        """What can run now: trials first, then the final runs of methods that are tuned."""
        seeds = self.seeds[:1] if self.compares else self.seeds
        jobs = []
        for method in self.methods if self._tunes else ():
            for number, settings in enumerate(self._proposed(method), 1):
                name = f"{method.trial}{number}"
                if name not in self.store.answers:
                    jobs.append(Job(name, self._cell(method, settings, "trial", seeds)))
        for method in self.methods if self.compares else ():
            jobs += self._final_jobs(method)
        return jobs

    def add(self, job: Job, answer: Answer) -> None:
        """Save the answer of a trial with its settings, or that of each seed of a final run."""
        cell: Cell = job.arguments
        if cell.purpose == "trial":
            self.store.add(job.name, {"settings": cell.settings, **answer})
            return
        label = job.name.partition("/")[0]
        for seed in cell.seeds:
            own = answer["seeds"][str(seed)] if "seeds" in answer else answer
            self.store.add(f"{label}/seed-{seed}", {"algorithm": cell.config["algorithm"], **own})

    def trials(self, method: Method) -> int:
        """The number of a method's trials, run or not; there are none where nothing is tuned."""
        if not self._tunes:
            return 0
        return self._searches[method.label].total(self.scores(method))

    def answers(self, method: Method) -> dict[int, Answer]:
        """The trials of a method that have ended, by number."""
        found = {
            int(name.removeprefix(method.trial)) - 1: answer
            for name, answer in self.store.answers.items()
            if name.startswith(method.trial)
        }
        return dict(sorted(found.items()))

    def scores(self, method: Method) -> dict[int, float]:
        """The scores of a method's trials; -inf for a failure."""
        answers = self.answers(method).items()
        return {number: float(answer.get("score", -math.inf)) for number, answer in answers}

    def chosen(self, method: Method) -> Settings | None:
        """The settings that were best on validation data.

        None before all trials have ended, and where all have failed.
        """
        if not self._tunes:
            return self._proposed(method)[0]
        scores = self.scores(method)
        if len(scores) < self.trials(method) or max(scores.values()) == -math.inf:
            return None
        best = max(scores, key=lambda number: scores[number])
        return self._proposed(method)[best]

    def finals(self, method: Method) -> dict[int, Answer]:
        """The answers of the seeds that have run with the chosen settings."""
        settings = self.chosen(method)
        if settings is None:
            return {}
        algorithm = self.table(method, settings)["algorithm"]
        out = {}
        for seed in self.seeds:
            answer = self.store.answers.get(f"{method.label}/seed-{seed}")
            if answer is not None and answer.get("algorithm") == algorithm:
                out[seed] = answer
        return out

    def table(self, method: Method, settings: Settings) -> dict[str, Any]:
        """The file of a method with these settings; those of a comparison are of its algorithm."""
        table: dict[str, Any] = copy.deepcopy(self.store.plan["config"])
        if self.compares:
            table["algorithm"] = {**method.algorithm, **settings}
            table |= {"rounds": method.rounds, "score_every": method.score_every, "compare": []}
            return table
        for key in sorted(settings, key=lambda key: not key.endswith(".name")):
            files.change(table, f"{key}={spelled(settings[key])}")
        return table

    def _proposed(self, method: Method) -> list[Settings]:
        return self._searches[method.label].proposed(self.scores(method), self._processes)

    def _final_jobs(self, method: Method) -> list[Job]:
        """The seeds that are left, side by side as far as no process stays idle."""
        settings = self.chosen(method)
        if settings is None:
            return []
        done = self.finals(method)
        left = [seed for seed in self.seeds if seed not in done]
        size = max(1, len(self.methods) * len(self.seeds) // self._processes)
        groups = [left[start : start + size] for start in range(0, len(left), size)]
        return [
            Job(f"{method.label}/final-{group[0]}", self._cell(method, settings, "final", group))
            for group in groups
        ]

    def _cell(
        self,
        method: Method,
        settings: Settings,
        purpose: Any,
        seeds: list[int],
    ) -> Cell:
        plan = self.store.plan
        table = self.table(method, settings)
        model = str(plan.get("model", ""))
        return Cell(purpose, table, seeds, settings, plan["beside"], method.budget, model)

    def _search(self, method: Method) -> Search:
        plan = self.store.plan
        trials = int(plan["trials"])
        if not self.compares:
            before = {number: answer["settings"] for number, answer in self.answers(method).items()}
            return search.named(plan["search"], self.axes, trials, self.config.seed, before)
        curvature = None
        if plan["curvature"] is not None:
            curvature = Curvature(**plan["curvature"])
        algorithm = named.make("algorithm", method.algorithm)
        own = [axis for axis in self.axes if hasattr(algorithm, axis.key)]
        return Tuner(algorithm, trials, curvature, own)
