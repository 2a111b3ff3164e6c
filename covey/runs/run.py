"""A run is an iterator of rounds: the caller logs, stops, saves; nothing calls back.

for record in covey.run(experiment):
    print(record)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.engine import descend
from covey.errors import CheckpointError, ConfigError, CoveyError, ProgramError
from covey.links.meter import Key, Meter, Traffic
from covey.origin import FAULTS, told
from covey.runs import html, models
from covey.runs.build import RuntimeFactory, build, chosen
from covey.runs.experiment import Experiment, difference
from covey.runs.models import CHOSEN_ON, Chosen, Which, better, label
from covey.runs.newcomers import Newcomers, NewScores
from covey.runs.progress import ProgressLine
from covey.runs.saved import checkpoint, fingerprint
from covey.runs.saved.checkpoints import Checkpoints
from covey.runs.saved.journal import Journal
from covey.runs.saved.live_folder import disk_note, live_folder
from covey.runs.scores import record
from covey.runs.scores.figures import Observed, Sums, shares, sums_of, totals_plus
from covey.runs.scores.record import Round
from covey.runs.scores.sampling import with_errors
from covey.runs.scores.scoring import Model, Scorer
from covey.runs.seed import Seed
from covey.runs.state import SeedState, State
from covey.runs.stopping import StopCount
from covey.runtimes.facts import Played

__all__ = [
    "CHOSEN_ON",
    "Chosen",
    "Round",
    "Run",
    "Runs",
    "Seed",
    "State",
    "Which",
    "history",
    "run",
    "runs",
]


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a round, for each seed: of the models, of every device, and the traffic."""

    models: list[dict[str, Model]]
    sums: list[dict[str, Sums]]
    observed: list[Observed]
    traffic: Sequence[Mapping[Key, Traffic]]
    seconds: float


class Runs(Iterator[tuple[Round, ...]]):
    """Experiments that differ in seed and data alone, all in one go.

    The nodes of every seed are rows beside the others'. Each round gives one record per seed.
    `seeds` are the runs themselves, to save or to look at; their bits are those of runs of their
    own.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        *,
        resume: Sequence[str | os.PathLike[str] | None] | None = None,
        runtime: str | RuntimeFactory = "simulator",
        store: str | os.PathLike[str] | None = None,
        reading: bool = False,
    ) -> None:
        """`reading` goes to a checkpoint that may be the last, and leaves its rows in its files."""
        runtime = chosen(runtime)
        self.experiments = tuple(experiments)
        self.experiment = self.experiments[0]
        """The first of them, for what they have in common."""
        rows = [experiment.initial() for experiment in self.experiments]
        fingerprints = list(map(fingerprint.of, self.experiments, rows))
        if reason := difference(self.experiments, fingerprints):
            raise ConfigError(
                f"these experiments cannot run in one go: {reason}; run them one after the other."
            )
        folder = None
        if store is not None:
            name = runtime
            if not isinstance(name, str):
                name = type(name).__name__
            self._live = live_folder(self.experiment, name, Path(store))
            folder = self._live.path
        built = build(self.experiments, torch.stack(rows), runtime, fingerprints[0], folder)
        self.runtime = built.runtime
        self._sizes = self.runtime.sizes
        self.newcomers = built.newcomers
        self.held_out = built.held_out
        self.notes = built.notes
        count = len(self.experiments)
        self.state = State(self.runtime.start.clone(), 0, (SeedState(),) * count)
        self.needs: dict[str, set[str]] = {}
        """What devices recall to predict with each model."""
        self.checkpoints = Checkpoints(
            self.experiments, fingerprints, self.runtime, reading=reading
        )
        self._busy = threading.Lock()
        self._saving = 0.0
        self._growing: list[str] = []  # notes on a loss that has become large
        self._rehearse()
        if store is not None and self.runtime.disk is not None:
            note = disk_note(self.runtime.disk, self._live.path)
            if note is not None:
                self.notes.append(note)
        paths = [None if path is None else Path(path) for path in resume or ()]
        if any(path is not None for path in paths):
            self._go_on(paths)
        self._patience = self._new_patience()
        if reading:
            return
        if self.round >= self.experiment.rounds:
            already = f"{paths[0]} has run {self.round} already"
            raise ConfigError(
                f"rounds = {self.experiment.rounds}, but {already}; give more rounds."
            )
        if self.stopped is not None:
            fix = "to go on, give stop more patience, or leave it out"
            raise ConfigError(f"{paths[0]}: {self.stopped}; {fix}.")

    def _go_on(self, paths: Sequence[Path | None]) -> None:
        """Stand where checkpoints stand, one for each seed."""
        rounds = set()
        for copy, path in zip(range(len(self.experiments)), paths, strict=True):
            round = 0
            if path is not None:
                with self.runtime.ranks.together("resume"):
                    w = self.state.w[copy : copy + 1]
                    state = self.checkpoints.read(copy, path, w, self.notes)
                    self.state = self.state.with_seed(copy, state)
                round = state.round
            rounds.add(round)
        if len(rounds) > 1:
            raise ConfigError(
                f"the checkpoints stand at the rounds {sorted(rounds)}; "
                "only equal ones can go on in one go."
            )

    def __next__(self) -> tuple[Round, ...]:
        if self.done:
            self.checkpoints.writer.wait()
            raise StopIteration
        self.checkpoints.writer.check()
        with self.alone("run a round"):
            self.runtime.commit()  # what the round before kept
            state = self.state
            try:
                self._play()
            except BaseException:
                # A Ctrl-C too: a round has happened as a whole or, if the state is still the old
                # one, not at all.
                if self.state is state:
                    self.runtime.rollback()
                raise
            return tuple(seed.history.held[-1] for seed in self.state.seeds)

    @contextmanager
    def alone(self, doing: str) -> Iterator[None]:
        """One thread at a time: two in one run would mix their rounds."""
        if not self._busy.acquire(blocking=False):
            raise ProgramError(
                f"cannot {doing}: another thread is using this run; "
                "use a run from one thread at a time."
            )
        try:
            yield
        finally:
            self._busy.release()

    def save(self, copy: int, path: Path, *, wait: bool) -> None:
        """Write the checkpoint of one seed."""
        with self.alone("save"), self.runtime.ranks.together("save the run"):
            began = time.perf_counter()
            state = self.state.of_seed(copy)
            self.checkpoints.write(copy, path, state, self.stopping_rule, wait=wait)
            self._saving += time.perf_counter() - began

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """The runs themselves.

        They are made when asked for: nothing here points back, so a dropped run is freed at once.
        """
        return tuple(Seed(self, copy) for copy in range(len(self.experiments)))

    @property
    def round(self) -> int:
        """The round that comes next."""
        return self.state.round

    @property
    def done(self) -> bool:
        """Whether no round is left: all were run, or the run stopped early."""
        return self.round >= self.experiment.rounds or self.stopped is not None

    @property
    def stopped(self) -> str | None:
        """Why the run stopped early; None where it did not."""
        if self._patience is None or self.stopping_rule is None:
            return None
        if self.round >= self.experiment.rounds:
            return None
        return self._patience.reason(self.round)

    @property
    def stopping_rule(self) -> str | None:
        """The rule by which the run stops after the last round, in one line; None where none does.

        A run of more rounds would have stopped there too.
        """
        if self._patience is None or not self._patience.ended(self.state.seeds[0].history):
            return None
        return self._patience.stop.text

    @property
    def engine(self) -> dict[str, Any]:
        """How training is computed here.

        It changes speed but, except for the last bits, no result.
        """
        task = self.runtime.task
        out = {
            "path": task.path,
            "kernel": task.kernel,
            "parameters": task.space.width,
            "frozen": task.space.frozen_size,
            "compute": str(task.precision),
            "device": str(task.device),
            **self.runtime.report(),
            "sentence": descend.explanation(task),
            **descend.used(task),
        }
        if self.experiment.store_rows != "dense":
            out["store_rows"] = self.experiment.store_rows
        if self.experiment.store_rows == "float16":
            out["sentence"] += "; kept rows are rounded to float16"
        if self.experiment.algorithm.hessians:
            out["hessian"] = "exact, by autograd"
            if task.no_hessian is not None:
                out["hessian"] = f"differences of gradients: {task.no_hessian}"
        return out

    def scores(self, *parts: str) -> list[dict[str, Model]]:
        """Every seed's models on these parts of the data, as they stand after the last round."""
        with self.alone("score"):
            last = max(self.round - 1, 0)
            scored, _ = self._play_scores(self.state.w, last, parts)
            return scored

    def belonging(self, tier: str, name: str) -> list[tuple[str, str]]:
        """(tier, name) of all kept rows that a model consists of, and of those it is saved with."""
        runtime = self.runtime
        algorithm = self.experiment.algorithm
        space = runtime.task.space
        device = runtime.tree.tiers[-1]
        columns = []
        if name != models.GLOBAL:
            columns.append((tier, name))
        others = self.needs.get(name, set()) - {name}
        columns += [(device, other) for other in sorted(others)]
        if algorithm.splits and tier != device and space.shared < space.width:
            columns.append((device, models.PERSONAL))
        if name == models.lead(runtime):
            columns += models.unscored(runtime, algorithm)
        known = runtime.kept()
        return [column for column in dict.fromkeys(columns) if column in known]

    def _play(self) -> None:
        """One round: train, score, choose."""
        began = time.perf_counter()
        round = self.round
        trained = self._serve(self.state.w, round)
        w = trained.answer
        scored = self._score(w)
        records = self._records(trained, scored, began)
        seeds = []
        for copy, new in enumerate(records):
            seed = self.state.seeds[copy]
            last = seed.scored
            observed = None
            if scored is not None:
                last = {name: (round, parts) for name, parts in scored.sums[copy].items()}
                observed = scored.observed[copy]
            seeds.append(
                SeedState(
                    history=replace(seed.history, held=(*seed.history.held, new)),
                    chosen=self._choose(copy, w, scored),
                    scored=last,
                    meter=seed.meter.plus(new.traffic),
                    totals=totals_plus(seed.totals, trained.totals[copy], self._sizes),
                    observed=observed,
                )
            )
        if scored is not None and not self._growing and "validation" in self.experiment.parts:
            notes = [_growth_note(seed.history) for seed in seeds]
            self._growing = [note for note in notes if note]
            self.notes += self._growing[:1]
        self.state = State(w, round + 1, tuple(seeds))

    def _records(self, trained: Played, scored: Scored | None, began: float) -> list[Round]:
        """The record of this round for every seed; seconds are shared among them."""
        took = time.perf_counter() - began
        spent = dict(trained.spent)
        if scored is not None:
            spent["scores"] = scored.seconds
        spent["other"] = 0.0
        spent["other"] = took - sum(spent.values())
        if self._saving:
            spent["checkpoint"] = self._saving
        self._saving = 0.0
        share = 1 / len(self.experiments)
        shared = {name: share * seconds for name, seconds in spent.items()}
        out = []
        for copy in range(len(self.experiments)):
            traffic = trained.traffic[copy]
            figures: dict[str, Model] = {}
            if scored is not None:
                traffic = Meter(traffic).plus(scored.traffic[copy]).totals
                figures = scored.models[copy]
            new = Round(
                round=self.round,
                cohorts=trained.cohorts[copy],
                traffic=traffic,
                models=figures,
                seconds=share * took,
                spent=dict(shared),
                notes=trained.notes[copy],
                gradients=trained.gradients[copy],
            )
            if trained.environment is not None:
                new = replace(new, environment=trained.environment[copy])
            out.append(new)
        return out

    def _choose(
        self,
        copy: int,
        w: Tensor,
        scores: Scored | None,
    ) -> Mapping[str, Chosen]:
        """Hold the models of one seed that are better than ever before; all its choices then."""
        before = self.state.seeds[copy].chosen
        if scores is None:
            return before
        part = CHOSEN_ON[self.experiment.protocol]
        final = not self.experiment.regular(self.round)
        scored = scores.models[copy]
        row = w[copy : copy + 1].clone()
        out = dict(before)
        for tier, name in [("", models.GLOBAL), *models.kept(self.runtime)]:
            if name not in scored:
                continue
            quality = better(scored[name], part, before, name)
            if quality is None:
                continue
            held = label(name, final=final)
            self.runtime.hold(held, copy, self.belonging(tier, name))
            out[held] = Chosen(self.round, quality, row, scores.sums[copy][name])
        return out

    def _rehearse(self) -> None:
        """Run every program on no rows at all.

        A program that cannot work fails before the first round, and kept models get their names.
        """
        w = self.state.w
        answer: Any = self._serve(w[:0], 0).answer
        if not isinstance(answer, Tensor) or answer.shape[1:] != w.shape[1:]:
            got: Any = type(answer).__name__
            if isinstance(answer, Tensor):
                got = tuple(answer.shape)
            raise ConfigError(
                f"the server's program must return rows [n, {w.shape[1]}], but returned {got}."
            )
        names = models.names(self.runtime)
        if twice := {name for name in names if names.count(name) > 1}:
            raise ProgramError(
                f"the model name {twice.pop()!r} is kept on two tiers, or is the server's own; "
                "use different names."
            )
        self.runtime.commit()

    def _new_patience(self) -> StopCount | None:
        """The count of the early stop.

        An algorithm that is compared with others may lack the model that counts in theirs, so that
        is no error.
        """
        stop = self.experiment.early_stop()
        if stop is None:
            return None
        names = models.names(self.runtime)
        if stop.model and stop.model not in names:
            lacks = f"stop: this run has no model {stop.model!r} but {', '.join(names)}"
            self.notes.append(f"{lacks}; every model that trains counts.")
        return StopCount(stop, self.experiment)

    def _serve(self, w: Tensor, round: int) -> Played:
        """The server's program on these rows; errors in a user's algorithm name their line."""
        algorithm = self.experiment.algorithm
        try:
            return self.runtime.play(algorithm.server, w, round=round)
        except CoveyError:
            raise
        except FAULTS as error:
            kind = type(algorithm)
            if kind.__module__.startswith("covey."):
                raise
            when = "on no rows, before the first round"
            if len(w):
                when = f"in round {round + 1}"
            fault = f"the algorithm {kind.__qualname__} fails {when}"
            raise ProgramError(f"{fault}, with {told(error)}") from error

    def _score(self, w: Tensor) -> Scored | None:
        """Every seed's models on the parts that are due in this round; None where none is."""
        began = time.perf_counter()
        parts = self.experiment.due(self.round)
        if not parts:
            return None
        scores, played = self._play_scores(w, self.round, parts)
        self.needs = played.needs
        new = [NewScores() for _ in scores]
        if self.newcomers is not None:
            new = self._score_newcomers(self.newcomers, w, parts)
        tree = self.runtime.tree
        devices = tree.devices // tree.copies
        sums = []
        observed = []
        for copy, reports in enumerate(played.reports):
            sums.append(sums_of(reports, devices))
            if self.experiment.score_sample is not None:
                metrics = self.runtime.task.metrics
                scores[copy] = with_errors(scores[copy], reports, devices, metrics)
            sizes = {}
            for name, model in scores[copy].items():
                sizes[name] = tree.size(model.tier) // tree.copies
            observed.append(Observed(shares(reports, sizes), new[copy].sums))
            scores[copy].update(new[copy].models)
        return Scored(scores, sums, observed, played.traffic, time.perf_counter() - began)

    def _play_scores(
        self, w: Tensor, round: int, parts: tuple[str, ...]
    ) -> tuple[list[dict[str, Model]], Played]:
        """Every seed's scores of the models of a round, and what the scoring programs did."""
        task = self.runtime.task
        tree = self.runtime.tree
        scorer = Scorer(
            self.experiment.algorithm,
            models.kept(self.runtime),
            parts,
            tree.tiers[0],
            slots=tuple([(slot.name, slot.start, slot.stop) for slot in task.space.slots]),
            sample=self.experiment.score_sample,
            select=self.experiment.select,
            metrics=task.metrics,
            least=self.experiment.least,
        )
        played = self.runtime.play(scorer.server, w, round=round, lane="score")
        return [scorer.read(row, tree, task.asked) for row in played.answer.split(1)], played

    def _score_newcomers(
        self, newcomers: Newcomers, w: Tensor, parts: tuple[str, ...]
    ) -> list[NewScores]:
        """What newcomers of every seed make of its models."""
        # The rows that the tier above the devices sends; none where it sends the global model.
        name = self.experiment.algorithm.above()
        above = [w[:0]] * len(self.experiments)
        if name != models.GLOBAL and name in models.names(self.runtime):
            above = [seed.rows(name)[1] for seed in self.seeds]
        return newcomers.scores(w, above, self.round, parts)


def _growth_note(history: Sequence[Round]) -> str | None:
    """A note where a model's validation loss is ten times that of the first scored round."""
    first = next(record for record in history if record.models)
    last = history[-1]
    for name in sorted(last.models.keys() & first.models.keys()):
        before = first.models[name].scores["validation"].of("loss").held
        now = last.models[name].scores["validation"].of("loss").held
        if before and now and now > 10 * before:
            return (
                f"round {last.round + 1}: the validation loss of the {name} model is {now:.3g}, "
                f"but {before:.3g} in round {first.round + 1}; `covey advise` finds shorter steps."
            )
    return None


class Run(Seed, Iterator[Round]):
    """An experiment under way.

    Iterate over it; between rounds, `save` it or look at its `rows` and `module`s.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        resume: str | os.PathLike[str] | None = None,
        runtime: str | RuntimeFactory = "simulator",
        progress: bool = False,
        store: str | os.PathLike[str] | None = None,
        reading: bool = False,
    ) -> None:
        runs = Runs([experiment], resume=[resume], runtime=runtime, store=store, reading=reading)
        super().__init__(runs, 0)
        shown = progress and self.runtime.leads
        self._progress = ProgressLine(experiment.rounds) if shown else None

    def __next__(self) -> Round:
        if self._progress is None:
            return next(self._runs)[0]
        try:
            record = next(self._runs)[0]
        except BaseException:
            self._progress.end()
            raise
        self._progress.show(record, last=self.done)
        return record

    def progress(self) -> Iterator[Round]:
        """The rounds that are left, with a line that says how far the run is.

        The line is written on terminals and in notebooks alone.
        """
        line = ProgressLine(self.experiment.rounds)
        try:
            for record in self:
                if self.runtime.leads:
                    line.show(record, last=self.done)
                yield record
        finally:
            line.end()

    def __repr__(self) -> str:
        method = type(self.experiment.algorithm).__name__
        done = f"{self.round} of {self.experiment.rounds} rounds"
        if self.stopped is not None:
            done = f"stopped early after {done}"
        return f"<Run of {method} on {self.runtime.tree}, {done}: {', '.join(self.models())}>"

    def _repr_html_(self) -> str:
        """What is run and how far, with the last scores, in a notebook."""
        return html.of_run(self)


def run(
    experiment: Experiment,
    *,
    resume: str | os.PathLike[str] | None = None,
    runtime: str | RuntimeFactory = "auto",
    progress: bool = False,
    store: str | os.PathLike[str] | None = None,
) -> Run:
    """The rounds of an experiment, one record each.

    `resume` continues from a checkpoint, bit for bit. The runtime is "simulator", one process for
    all nodes, or "sharded" in processes that torchrun has started: each of them must then run,
    save and read the same, in the same order. `runtime="loopback"` plays every node as an
    object of its own, with encoded bytes in between: slower, and the same bits. `progress` writes
    how far the run is into one line, on terminals and in notebooks. `store` is a folder for the
    rows that nodes keep: they lie in files there, not in memory, and `save` links these files.
    """
    return Run(experiment, resume=resume, runtime=runtime, progress=progress, store=store)


def runs(
    experiments: Sequence[Experiment],
    *,
    runtime: str | RuntimeFactory = "auto",
    resume: Sequence[str | os.PathLike[str] | None] | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Runs:
    """Experiments that differ in seed and data alone, in one go.

    Each round gives a tuple of records, one per experiment.
    """
    return Runs(experiments, resume=resume, runtime=runtime, store=store)


def history(path: str | os.PathLike[str]) -> list[Round]:
    """The records of a saved run."""
    facts = checkpoint.read_facts(path)
    try:
        _, records = Journal.read(Path(path).absolute(), facts["history"])
        return [record.read(values) for values in records]
    except CheckpointError:
        raise
    except Exception as error:  # whatever a file that is not what it seems to be leads to
        raise CheckpointError(
            f"{path} is damaged: its history cannot be read ({error!r}){checkpoint.older(path)}."
        ) from error
