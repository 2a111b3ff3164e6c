"""A run is an iterator of rounds: the caller logs, stops, saves; nothing calls back.

for record in covey.run(experiment):
    print(record)
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from covey.data import Shards
from covey.engine.calibration import Calibration
from covey.engine.layout import Space
from covey.engine.sentence import sentence, solvers
from covey.engine.task import Task
from covey.errors import CheckpointError, ConfigError, CoveyError, ProgramError
from covey.kernel.store import PRESENT, Entry, Frozen
from covey.links.meter import Meter, Traffic
from covey.links.spec import wires
from covey.origin import FAULTS, told
from covey.runs import checkpoint
from covey.runs.checkpoint import Checkpoint
from covey.runs.devices import PARTS, DeviceScore, Sums, fits, table
from covey.runs.experiment import Experiment, unlike
from covey.runs.journal import Journal
from covey.runs.newcomers import Newcomers, held_out
from covey.runs.scoring import Model, Score, Scorer
from covey.runs.snapshot import PRIVATE, Beside, Snapshot
from covey.runtimes.notes import Note
from covey.runtimes.simulator import Simulator
from covey.wireless.air import Air, Aired

CHOSEN_ON = {"honest": "validation", "paper": "test"}
"""The part of the data on which each protocol chooses the round it reports."""
Which = Literal["last", "chosen"]
"""A model as it is now, or as it was in the round that its scores chose."""

_GRAIN = 200_000  # values of rows below which a second thread waits for Python's lock more than it computes


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    round: int  # counted from 0; what is printed counts from 1
    cohorts: dict[str, list[int]]  # who was asked, by tier
    traffic: dict[tuple[str, str, str], Traffic]  # by link, direction ("down", "up") and lane ("train", "score")
    models: dict[str, Model]  # every kept model by name, "global" first; empty in a round that is not scored
    seconds: float  # with several seeds side by side, this one's share
    spent: dict[str, float] = field(
        default_factory=dict, compare=False
    )  # of these: training, links, cohorts, scores, other; the checkpoint before
    notes: dict[str, dict[str, Note]] = field(default_factory=dict)  # what programs noted of those asked, by tier and name
    radio: Aired | None = None  # the round on the virtual clock, where the experiment has a radio
    gradients: int = 0  # evaluated by all devices on their data, idle ones that train too

    def bytes(self, link: str | None = None, direction: str | None = None) -> int:
        """What training sent in this round, in bytes."""
        return Meter(self.traffic).bytes(link=link, direction=direction)

    def accuracy(self, model: str = "global", part: str = "test") -> float | None:
        """The accuracy of a model, all examples alike; None where it was not scored."""
        found = self.models.get(model)
        return found.scores[part].accuracy if found and part in found.scores else None

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        return dict(self._plain)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """Made once: every checkpoint holds all records so far."""
        traffic = {"/".join(key): asdict(value) for key, value in self.traffic.items()}
        return {**asdict(replace(self, traffic={})), "traffic": traffic}

    def __str__(self) -> str:
        scores = []
        for name, model in self.models.items():
            score = model.scores.get("test") or next(iter(model.scores.values()))
            figure = f"loss {score.loss}"
            if score.accuracy is not None:
                figure = f"{score.accuracy:.4f}"
            elif score.rmse is not None:
                figure = f"rmse {score.rmse:.4g}"
            scores.append(f"{name} {figure}")
        air = "" if self.radio is None else f"  air {self.radio.seconds:.3g} s {self.radio.joules:.3g} J"
        return f"round {self.round + 1:4d}  {'  '.join(scores)}  {self.bytes() / 1e6:.3f} MB  {self.seconds:.2f} s{air}"


@dataclass(frozen=True, eq=False)
class Chosen:
    """The round in which a model was best so far, the global row of that round, [1, P], and how every device did."""

    round: int
    quality: float
    w: Tensor
    sums: Sums


@dataclass(frozen=True, eq=False)
class State:
    """Where the runs stand between two rounds; one assignment moves them from one to the next."""

    w: Tensor  # [seeds, P]
    round: int
    histories: tuple[tuple[Round, ...], ...]
    chosen: tuple[dict[str, Chosen], ...]  # of each seed, by the label under which the runtime holds the rows
    scored: tuple[dict[str, tuple[int, Sums]], ...]  # of each seed and model, the last scored round and how every device did


class Runs(Iterator[tuple[Round, ...]]):
    """Experiments that differ in seed and data alone, all in one go: every seed's nodes are rows beside the others'.

    Each round gives one record per seed. `seeds` are the runs themselves, to save or to look at; their bits are those of runs
    of their own.
    """

    def __init__(self, experiments: Sequence[Experiment], *, resume: Sequence[Path | None] | None = None) -> None:
        self.experiments = tuple(experiments)
        if reason := unlike(self.experiments):
            raise ConfigError(f"these experiments cannot run in one go: {reason}; run them one after the other.")
        self.notes: list[str] = []
        self.held_out = [held_out(experiment) for experiment in self.experiments]
        self.newcomers = self._newcomers()
        self.simulator = self._build()
        empty: tuple[dict[str, Chosen], ...] = tuple({} for _ in self.experiments)
        unscored: tuple[dict[str, tuple[int, Sums]], ...] = tuple({} for _ in self.experiments)
        self._state = State(self.simulator.start.clone(), 0, ((),) * len(self.experiments), empty, unscored)
        self._needs: dict[str, set[str]] = {}  # what devices recall to predict with each model
        self._journals: list[dict[Path, Journal]] = [{} for _ in self.experiments]
        self._busy = threading.Lock()
        self._fingerprints = [experiment.fingerprint() for experiment in self.experiments]
        self._saving = 0.0
        self._rehearse()
        paths = list(resume or ())
        if any(path is not None for path in paths):
            self._restore(paths)
        if self.round >= self.experiment.rounds:
            raise ConfigError(
                f"rounds = {self.experiment.rounds}, but {paths[0]} has run {self.round} already; give more rounds."
            )

    def __next__(self) -> tuple[Round, ...]:
        if self.round >= self.experiment.rounds:
            raise StopIteration
        with self.alone("run a round"):
            state = self._state
            meters = [meter.copy() for meter in self.simulator.meters]
            holds = self.simulator.store.holds()
            self.simulator.store.commit()  # what the round before kept
            try:
                self._play(meters)
            except (
                BaseException
            ):  # a Ctrl-C too: a round has happened as a whole or, if the state is still the old one, not at all
                if self._state is state:
                    self.simulator.store.restore_holds(holds)
                    self._undo(meters)
                raise
            return tuple(history[-1] for history in self._state.histories)

    @contextmanager
    def alone(self, doing: str) -> Iterator[None]:
        """One thread at a time: two in one run would mix their rounds."""
        if not self._busy.acquire(blocking=False):
            raise ProgramError(f"cannot {doing}: another thread is using this run; use a run from one thread at a time.")
        try:
            yield
        finally:
            self._busy.release()

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """The runs themselves; made when asked for, so that nothing here points back and a dropped run is freed at once."""
        return tuple(Seed(self, at) for at in range(len(self.experiments)))

    @property
    def experiment(self) -> Experiment:
        """The first of them, for what they have in common."""
        return self.experiments[0]

    @property
    def round(self) -> int:
        """The round that comes next."""
        return self._state.round

    @property
    def engine(self) -> dict[str, Any]:
        """How training is computed here: what changes speed but, except for the last bits, no result."""
        task, graphs = self.simulator.task, self.simulator.graphs
        out = {"path": task.path, "kernel": task.kernel, "parameters": task.space.width, "device": str(task.device)}
        out |= {"workers": self.simulator.workers, "seeds": len(self.experiments)}
        out |= {"sentence": sentence(task), **solvers(task)}
        if self.experiment.algorithm.hessians:
            out["hessian"] = "exact, by autograd"
            if task.no_hessian is not None:
                out["hessian"] = f"differences of gradients: {task.no_hessian}"
        return out if graphs is None else out | {"graph": graphs.report()}

    def _play(self, meters: list[Meter]) -> None:
        began, round, tree = time.perf_counter(), self.round, self.simulator.tree
        self.simulator.cohorts.clear()
        self.simulator.notes.clear()
        self.simulator.clock.start()
        w = self._serve(self._state.w, round)
        models, sums = self._score(w)
        notes, gradients = self.simulator.notes.read(tree), self.simulator.gradients.tolist()
        radio = self.simulator.air.read(self.simulator.elapsed) if self.simulator.air is not None else None
        asked = {tier: np.unique(torch.cat(ids).numpy()) for tier, ids in self.simulator.cohorts.items()}
        spent = self.simulator.clock.take() | ({"checkpoint": self._saving} if self._saving else {})
        self._saving = 0.0
        share = 1 / len(self.experiments)
        seconds, spent = share * (time.perf_counter() - began), {name: share * took for name, took in spent.items()}
        histories = []
        for at, history in enumerate(self._state.histories):
            cohorts = {}
            for tier, ids in asked.items():
                size = tree.size(tier) // tree.copies
                cohorts[tier] = (ids[ids // size == at] - at * size).tolist()
            traffic = self.simulator.meters[at].since(meters[at])
            facts = (spent, notes[at], None if radio is None else radio[at], int(gradients[at]))
            histories.append((*history, Round(round, cohorts, traffic, models[at], seconds, *facts)))
        scored = self._state.scored
        if any(sums):
            scored = tuple({name: (round, parts) for name, parts in found.items()} for found in sums)
        self._state = State(w, round + 1, tuple(histories), self._choose(models, sums, w), scored)

    def _choose(self, models: list[dict[str, Model]], sums: list[dict[str, Sums]], w: Tensor) -> tuple[dict[str, Chosen], ...]:
        """Hold the rows of every model that is better than ever before; what is chosen for each seed then."""
        part = CHOSEN_ON[self.experiment.protocol]
        out = []
        for copy, (scored, before) in enumerate(zip(models, self._state.chosen, strict=True)):
            chosen = dict(before)
            row = w[copy : copy + 1].clone()
            for tier, name in [("", "global"), *_models(self.simulator)]:
                if name not in scored or part not in scored[name].scores:
                    continue
                quality = scored[name].quality(part)
                best = chosen.get(_label(name))
                if quality <= (best.quality if best is not None else -math.inf):
                    continue
                label = _label(name, final=not self.experiment.regular(self.round))
                self.simulator.hold(label, copy, self.belonging(tier, name))
                chosen[label] = Chosen(self.round, quality, row, sums[copy][name])
            out.append(chosen)
        return tuple(out)

    def belonging(self, tier: str, name: str) -> list[tuple[str, str]]:
        """(tier, name) of all kept rows that a model consists of, and of those it is saved with."""
        columns = [] if name == "global" else [(tier, name)]
        device = self.simulator.tree.tiers[-1]
        columns += [(device, other) for other in sorted(self._needs.get(name, ())) if other != name]
        space = self.simulator.task.space
        if self.experiment.algorithm.splits and tier != device and space.shared < space.width:
            columns.append((device, "personal"))
        if name == self.lead:
            columns += self._unscored()
        return [column for column in dict.fromkeys(columns) if column in self.simulator.store.columns]

    @property
    def lead(self) -> str:
        """The model whose choice decides for what is saved but never scored."""
        return "personal" if "personal" in _names(self.simulator) else "global"

    def _unscored(self) -> list[tuple[str, str]]:
        """What the tier above devices keeps for new devices, where that is no scored model."""
        above = self.experiment.algorithm.above()
        return [key for key in self.simulator.store.columns if key[1] == above and above not in _names(self.simulator)]

    def _build(self) -> Simulator:
        e, copies = self.experiment, len(self.experiments)
        tree, note = e.algorithm.fit(e.tree.without(self.held_out[0]))
        self.notes += [note] if note else []
        shards = Shards.stack([_part_of(x, out, new=False) for x, out in zip(self.experiments, self.held_out, strict=True)])
        task = Task(e.model, shards, loss=e.loss, l2=e.l2, private=e.private, dtype=e.dtype, device=e.device)
        if e.algorithm.splits:
            self.notes.insert(0, _private_note(e, task.space))  # the first that a run says
        if e.algorithm.hessians and task.no_hessian is not None:
            name = type(e.algorithm).__name__
            self.notes.append(
                f"{name} takes differences of gradients for Hessian products: "
                f"autograd cannot differentiate this model twice ({task.no_hessian})."
            )
        workers = (e.workers or torch.get_num_threads()) if task.device.type == "cpu" else 1  # a GPU is one queue
        grain = 1 if e.workers else _GRAIN
        start, seeds = torch.stack([x.initial() for x in self.experiments]), tuple(x.seed for x in self.experiments)
        tree, links = tree.times(copies), wires(e.codec, tree.links)
        over = self._air(seeds)
        if over is not None and over.policy.prunes and links[tree.links[-1], "up"].codec.name.startswith("dense"):
            self.notes.append(
                f'{tree.links[-1]} sends dense rows up, pruned weights too, so devices that prune are late; use codec = "bitmap".'
            )
        return Simulator(
            e.algorithm, tree, task, links, start, seeds, e.idle, e.batches, workers, e.memory, grain, e.capture, over
        )

    def _air(self, seeds: tuple[int, ...]) -> Air | None:
        """The virtual clock, where the experiment has a radio."""
        e = self.experiment
        if e.radio is None and e.algorithm.planned:  # an experiment may do without where nothing is planned, as for a newcomer
            name = type(e.algorithm).__name__
            raise ConfigError(f'{name} prunes as a radio plan says (ratio = "plan"); give a radio, or a number.')
        if e.radio is None:
            return None
        chosen = [[d for d in range(e.tree.devices) if d not in set(out)] for out in self.held_out]
        return Air(e.radio, e.work(), e.algorithm.planned, seeds=seeds, chosen=chosen)

    def _newcomers(self) -> Newcomers | None:
        if not self.held_out[0]:
            return None
        for experiment, out in zip(self.experiments, self.held_out, strict=True):
            which = f" of seed {experiment.seed}" if len(self.experiments) > 1 else ""
            self.notes.append(f"held out from training{which}: devices {', '.join(map(str, out))}; the others are numbered anew.")
        found = [_part_of(x, out, new=True) for x, out in zip(self.experiments, self.held_out, strict=True)]
        return Newcomers(self.experiments, found)

    def _rehearse(self) -> None:
        """Every program on no rows at all: what cannot work fails before the first round, and kept models get their names."""
        w = self._state.w
        answer = self._serve(w[:0], 0)
        if not isinstance(answer, Tensor) or answer.shape[1:] != w.shape[1:]:
            got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise ConfigError(f"the server's program must return rows [n, {w.shape[1]}], but returned {got}.")
        names = _names(self.simulator)
        if twice := {name for name in names if names.count(name) > 1}:
            raise ProgramError(
                f"the model name {twice.pop()!r} is kept on two tiers, or is the server's own; use different names."
            )
        self.simulator.store.commit()

    def _serve(self, w: Tensor, round: int) -> Any:
        """The server's program on these rows; errors in a user's algorithm are said with their line."""
        algorithm = self.experiment.algorithm
        try:
            return self.simulator.play(algorithm.server, w, round=round)
        except CoveyError:
            raise
        except FAULTS as error:
            kind = type(algorithm)
            if kind.__module__.startswith("covey."):
                raise
            when = f"in round {round + 1}" if len(w) else "on no rows, before the first round"
            what = f"the algorithm {kind.__qualname__} fails {when}"
            raise ProgramError(f"{what}, with {told(error)}") from error

    def _undo(self, before: list[Meter]) -> None:
        self.simulator.store.rollback()
        for meter, good in zip(self.simulator.meters, before, strict=True):
            meter.totals = good.totals

    def _score(self, w: Tensor) -> tuple[list[dict[str, Model]], list[dict[str, Sums]]]:
        """Every seed's models on the parts that are due in this round, and how every device did; nothing where none is."""
        tree, task, parts = self.simulator.tree, self.simulator.task, self.experiment.due(self.round)
        if not parts:
            return [{} for _ in self.experiments], [{} for _ in self.experiments]
        slots = tuple((slot.name, slot.start, slot.stop) for slot in task.space.slots)
        scorer = Scorer(
            self.experiment.algorithm,
            _models(self.simulator),
            parts,
            tree.tiers[0],
            classifies=task.classifies,
            targets=task.targets,
            slots=slots,
        )
        with self.simulator.scoring():
            sums = self.simulator.play(scorer.server, w, round=self.round)
            self._needs = scorer.needs
            models = [scorer.read(row, tree) for row in sums.split(1)]
            spans = [self.simulator.nodes(tree.tiers[-1], copy) for copy in range(len(models))]
            devices = [scorer.ledger.read(span) for span in spans]
            if self.newcomers is None:
                return models, devices
            new = self.newcomers.scores(w, [self._above(at, w) for at in range(len(models))], self.round, parts)
            return [mine | theirs for mine, theirs in zip(models, new, strict=True)], devices

    def _above(self, at: int, w: Tensor) -> Tensor:
        """What the tier above the devices keeps of the models it sends them, [m, P]; nothing where that is the global one."""
        name = self.experiment.algorithm.above()
        return w[:0] if name == "global" or name not in _names(self.simulator) else self.seeds[at].rows(name)[1]

    def _restore(self, paths: Sequence[Path | None]) -> None:
        rounds = {seed.restore(path) if path is not None else 0 for seed, path in zip(self.seeds, paths, strict=True)}
        if len(rounds) > 1:
            raise ConfigError(f"the checkpoints stand at the rounds {sorted(rounds)}; only equal ones can go on in one go.")


class Seed:
    """One run of several: its models, its records, its checkpoint."""

    def __init__(self, runs: Runs, at: int) -> None:
        self._runs, self._at = runs, at
        self.simulator, self.notes = runs.simulator, runs.notes

    @property
    def experiment(self) -> Experiment:
        """What is run here."""
        return self._runs.experiments[self._at]

    @property
    def trained(self) -> Shards:
        """The data of the devices that train, in the order of the tree's."""
        return _part_of(self.experiment, self._runs.held_out[self._at], new=False)

    @property
    def w(self) -> Tensor:
        """The global rows, [1, P]."""
        return self._runs._state.w[self._at : self._at + 1]

    @w.setter
    def w(self, rows: Tensor) -> None:
        every = self._runs._state.w.clone()
        every[self._at] = rows[0]
        self._runs._state = replace(self._runs._state, w=every)

    @property
    def round(self) -> int:
        """The round that comes next."""
        return self._runs.round

    @property
    def history(self) -> tuple[Round, ...]:
        """The records so far, also of what was run before a resume."""
        return self._runs._state.histories[self._at]

    @property
    def meter(self) -> Meter:
        """What this run has sent."""
        return self.simulator.meters[self._at]

    @property
    def engine(self) -> dict[str, Any]:
        """How training is computed here: what changes speed but, except for the last bits, no result."""
        return self._runs.engine

    def rows(self, model: str = "global", which: Which = "last") -> tuple[Tensor, Tensor]:
        """(ids, rows) of a kept model, as it is now or as it was in the round chosen for it.

        The global one has the id 0. Several models of one node are numbered in order.
        """
        snapshot = self.snapshot(model, which)
        return snapshot.ids, snapshot.rows

    def snapshot(self, model: str = "global", which: Which = "last") -> Snapshot:
        """A kept model with everything its predictions need, as it is now or as it was in the round chosen for it."""
        tiers = self.simulator.tree.tiers
        keys = {name: tier for tier, name in self.simulator.store.columns if tier in tiers}
        if model != "global" and model not in keys:
            raise ConfigError(f"there is no model {model!r} in this run; there are {', '.join(self.models())}.")
        tier = tiers[0] if model == "global" else keys[model]
        lead = model if model in self.models() else self._runs.lead
        label, round, w = self._version(lead, which)
        if model == "global":
            ids, rows = torch.zeros(1, dtype=torch.int64), w.clone()
        else:
            ids, rows = self._read(tier, model, label)
        nodes = self.simulator.nodes(tier, self._at)
        fallback = None if len(ids) == nodes.stop - nodes.start else w[0].clone()
        if rows.ndim == 3:
            ids, rows = torch.arange(rows.shape[:2].numel()), rows.flatten(0, 1)
            fallback = None
        beside = {} if lead != model else self._beside(tier, model, label)
        return Snapshot(model, tier, round, ids, rows, fallback, beside)

    def _version(self, model: str, which: Which) -> tuple[str, int, Tensor]:
        """(label, round, global row) of a model as it is now or was in its chosen round; now where none was chosen."""
        chosen = self._runs._state.chosen[self._at]
        for label in (_label(model, final=True), _label(model)):
            if which == "chosen" and label in chosen:
                return label, chosen[label].round, chosen[label].w
        return PRESENT, max(self.round - 1, 0), self.w

    def _read(self, tier: str, name: str, label: str) -> tuple[Tensor, Tensor]:
        """(ids, rows) of what this run's nodes keep under a name, in some version."""
        nodes = self.simulator.nodes(tier, self._at)
        ids, _, rows = self.simulator.store.columns[tier, name].read(label, nodes)
        return ids - nodes.start, rows

    def _beside(self, tier: str, model: str, label: str) -> dict[str, Beside]:
        """The other rows a model's predictions need."""
        shared = self.simulator.task.space.shared
        out = {}
        for at, name in self._runs.belonging(tier, model):
            if name == model or (at, name) in self._runs._unscored():
                continue
            ids, rows = self._read(at, name, label)
            private = name == "personal" and self.experiment.algorithm.splits
            out[PRIVATE if private else name] = Beside(ids, rows[:, shared:], shared) if private else Beside(ids, rows)
        return out

    def models(self, *, scored: bool = True) -> list[str]:
        """The names of all kept models, "global" first; with `scored=False` also what is kept for new devices alone."""
        extra = [] if scored else [name for _, name in self._runs._unscored()]
        return _names(self.simulator) + extra

    def module(self, model: str = "global", node: int = 0, which: Which = "last") -> nn.Module:
        """A module with the parameters that a node keeps under this name, now or in the round chosen for the model."""
        ids, rows = self.rows(model, which)
        where = (ids == node).nonzero()
        if not len(where):
            raise ConfigError(f"node {node} keeps no {model!r} yet; these do: {ids.tolist()[:10]}.")
        return self.simulator.task.space.fill(rows[int(where[0, 0])])

    def devices(self) -> list[DeviceScore]:
        """How every device does with every model, in the round chosen for the model and in the last one scored."""
        state, task = self._runs._state, self.simulator.task
        last = state.scored[self._at]
        chosen = {}
        best = state.chosen[self._at]
        for model in self.models():
            label = next((x for x in (_label(model, final=True), _label(model)) if x in best), None)
            if label is not None:
                chosen[model] = (best[label].round, best[label].sums)
            elif model in last:
                chosen[model] = last[model]
        return table(chosen, last, self.device_names, self._edges(), classifies=task.classifies)

    @property
    def device_names(self) -> list[str]:
        """What the data calls the devices that train, in order; their numbers where it does not say."""
        names = self.trained.names.devices
        return list(names) or [str(k) for k in range(self.trained.devices)]

    def _edges(self) -> list[str | None]:
        """The name or number of the node above each device; None where that is the server."""
        tree = self.simulator.tree
        if tree.depth < 3:
            return [None] * self.trained.devices
        tier = tree.tiers[-2]
        size = tree.size(tier) // tree.copies
        counts = tree.counts(tier, torch.arange(size)).tolist()
        names = self.trained.names.edges
        labels = list(names) if len(names) == size else [str(k) for k in range(size)]
        return [label for label, count in zip(labels, counts, strict=True) for _ in range(count)]

    def calibration(self, part: str = "test", bins: int = 15) -> dict[str, Calibration]:
        """Whether each model means the chances it gives, over the devices that hold it and their examples of this part."""
        simulator, algorithm = self.simulator, self.experiment.algorithm
        if not simulator.task.classifies:
            raise ConfigError("calibration is about the chances of classes, but these targets are numbers.")
        if part not in ("train", "validation", "test") or bins < 1:
            raise ConfigError(
                f"calibration on part = {part!r} with bins = {bins}: give train, validation or test, and 1 or more."
            )
        scorer = Scorer(algorithm, _models(simulator), (part,), simulator.tree.tiers[0], bins=bins)
        totals = [meter.copy().totals for meter in simulator.meters]
        with simulator.scoring():
            sums = simulator.play(scorer.server, self._runs._state.w, round=max(self.round - 1, 0))
        for meter, good in zip(simulator.meters, totals, strict=True):
            meter.totals = good  # a look is no part of the run
        return scorer.calibrations(sums[self._at : self._at + 1])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything this run needs to go on as if it had never stopped; its records go to a file beside."""
        with self._runs.alone("save"):
            began = time.perf_counter()
            target = Path(path).absolute()
            tensors = {"server": self.w}
            columns = []
            for at, column in enumerate(self.simulator.store.freeze(self._nodes())):
                columns.append([column.tier, column.name, list(column.entries)])
                tensors[f"{at}.rows"] = column.rows
                for k, entry in enumerate(column.entries.values()):
                    tensors |= {f"{at}.{k}.{part}": value for part, value in vars(entry).items()}
            chosen = self._runs._state.chosen[self._at]
            tensors |= {f"chosen.{item.round}": item.w for item in chosen.values()}
            for label, item in chosen.items():
                tensors |= {f"devices.{label}.{part}": sums for part, sums in item.sums.items()}
            last = self._runs._state.scored[self._at]
            for model, (_, parts) in last.items():
                tensors |= {f"devices.{_LAST}{model}.{part}": sums.clone() for part, sums in parts.items()}
            facts = {
                "round": self.round,
                "columns": columns,
                "chosen": [[label, item.round, item.quality] for label, item in chosen.items()],
                "scored": [[model, round] for model, (round, _) in last.items()],
                "meter": self.meter.state(),
                "history": self._written(target).facts(),
                "experiment": self._runs._fingerprints[self._at],
                "versions": checkpoint.versions(),
            }
            checkpoint.write(target, Checkpoint(tensors, facts))
            self._runs._saving += time.perf_counter() - began

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Go on from a checkpoint; the round it stands at."""
        saved = checkpoint.read(path)
        try:
            wanted = self._runs._fingerprints[self._at]
            data = self.experiment.data.name
            checkpoint.same_experiment(path, saved.facts["experiment"], wanted, data=data)
            self._load(saved, Path(path).absolute())
            if saved.facts["versions"] != checkpoint.versions():
                here, there = checkpoint.versions(), saved.facts["versions"]
                self.notes.append(f"{path} was written by {there}, this is {here}; the last bits may differ.")
        except CheckpointError:
            raise
        except Exception as error:  # whatever a file that is not what it seems to be leads to
            raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}{checkpoint.older(path)}.") from error
        return self.round

    def _written(self, target: Path) -> Journal:
        """The journal beside a checkpoint, with all records so far."""
        journals = self._runs._journals[self._at]
        if target not in journals or not journals[target].whole:
            journals[target] = Journal.beside(target)
        journal = journals[target]
        journal.append([record.as_dict() for record in self.history[journal.records :]], len(self.history))
        return journal

    def _nodes(self) -> dict[str, slice]:
        """The ids of this run's nodes, by tier."""
        return {tier: self.simulator.nodes(tier, self._at) for tier in self.simulator.tree.tiers}

    def _columns(self) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor]]:
        """(tier, name, ids, rounds, rows) of everything this run's nodes keep."""
        for (tier, name), column in sorted(self.simulator.store.columns.items()):
            nodes = self.simulator.nodes(tier, self._at)
            ids, rounds, rows = column.read(PRESENT, nodes)
            yield tier, name, ids - nodes.start, rounds, rows

    def _load(self, saved: Checkpoint, path: Path) -> None:
        runs, task, facts = self._runs, self.simulator.task, saved.facts
        w = saved.tensors["server"]
        if type(facts["round"]) is not int or facts["round"] < 0:
            raise ValueError(f"it stands at round {facts['round']!r}")
        _check_row(w, self.w)
        journal, records = Journal.read(path, facts["history"])
        if len(records) != facts["round"]:
            raise ValueError(f"{len(records)} records of {facts['round']} rounds")
        history = [_record(record) for record in records]
        frozen = [_frozen(saved, at, facts["round"]) for at in range(len(facts["columns"]))]
        chosen = {}
        for label, round, quality in facts["chosen"]:
            row = saved.tensors[f"chosen.{round}"]
            _check_row(row, self.w)
            if not (0 <= int(round) < facts["round"] and math.isfinite(quality)):
                raise ValueError(f"{label} was chosen in round {int(round) + 1} with {quality!r}")
            chosen[str(label)] = Chosen(int(round), float(quality), row.to(task.device), self._sums(saved, label))
        for column in frozen:
            rows = column.rows.to(task.device) if column.rows.is_floating_point() else column.rows
            self.simulator.store.thaw(replace(column, rows=rows), self._nodes()[column.tier])
        self.meter.totals = Meter.from_state(facts["meter"]).totals
        scored = {}
        for model, round in facts.get("scored", []):
            if not 0 <= int(round) < facts["round"]:
                raise ValueError(f"{model} was scored in round {round!r}")
            scored[str(model)] = (int(round), self._sums(saved, f"{_LAST}{model}"))
        if facts["round"] < self.experiment.rounds:
            journal.records -= self._go_on(history, chosen)
            scored = {model: item for model, item in scored.items() if history[item[0]].models}
        all_w, histories, choices = runs._state.w.clone(), list(runs._state.histories), list(runs._state.chosen)
        all_w[self._at] = w[0].to(task.device)
        histories[self._at] = tuple(history)
        choices[self._at] = chosen
        scores = list(runs._state.scored)
        scores[self._at] = scored
        runs._journals[self._at][path] = journal
        runs._state = State(all_w, facts["round"], tuple(histories), tuple(choices), tuple(scores))

    def _sums(self, saved: Checkpoint, label: str) -> Sums:
        """How every device did, from a checkpoint."""
        out = {}
        for part in PARTS:
            sums = saved.tensors.get(f"devices.{label}.{part}")
            if sums is None:
                continue
            if not fits(sums, self.trained.devices):
                raise ValueError(f"{label}: scores of devices {tuple(sums.shape)} {sums.dtype}")
            out[part] = sums
        return out

    def _go_on(self, history: list[Round], chosen: dict[str, Chosen]) -> int:
        """Forget what the last record and the choices owe to having been the last; how many records change."""
        for label in [label for label in chosen if label.startswith(_FINAL)]:
            del chosen[label]
            self.simulator.release(label, self._at)
        if not history:
            return 0
        parts = self.experiment.due(history[-1].round)
        kept = {
            name: replace(model, scores={part: score for part, score in model.scores.items() if part in parts})
            for name, model in history[-1].models.items()
            if parts
        }
        if kept == history[-1].models:
            return 0
        history[-1] = replace(history[-1], models=kept)
        return 1


class Run(Seed, Iterator[Round]):
    """An experiment under way. Iterate over it; between rounds, `save` it or look at its `rows` and `module`s."""

    def __init__(self, experiment: Experiment, *, resume: str | os.PathLike[str] | None = None) -> None:
        super().__init__(Runs([experiment], resume=[None if resume is None else Path(resume)]), 0)

    def __next__(self) -> Round:
        return next(self._runs)[0]


def run(experiment: Experiment, *, resume: str | os.PathLike[str] | None = None) -> Run:
    """The rounds of an experiment, one record each; `resume` continues from a checkpoint, bit for bit."""
    return Run(experiment, resume=resume)


def runs(experiments: Sequence[Experiment], *, resume: Sequence[str | os.PathLike[str] | None] | None = None) -> Runs:
    """Experiments that differ in seed and data alone, in one go: a tuple of records per round, one per experiment."""
    return Runs(experiments, resume=None if resume is None else [None if path is None else Path(path) for path in resume])


def history(path: str | os.PathLike[str]) -> list[Round]:
    """The records of a saved run."""
    facts = checkpoint.read(path, tensors=False).facts
    try:
        return [_record(record) for record in Journal.read(Path(path).absolute(), facts["history"])[1]]
    except CheckpointError:
        raise
    except Exception as error:  # whatever a file that is not what it seems to be leads to
        raise CheckpointError(f"{path} is damaged: its history cannot be read ({error!r}){checkpoint.older(path)}.") from error


def private_part(path: str | os.PathLike[str]) -> str:
    """What devices of a saved run keep to themselves: "head", "private layers", or nothing."""
    patterns = checkpoint.read(path, tensors=False).facts["experiment"].get("private", "()")
    return {"()": "", "('head',)": "head"}.get(patterns, "private layers")


def _private_note(experiment: Experiment, space: Space) -> str:
    """Which layers stay on the devices."""
    name = type(experiment.algorithm).__name__
    private = [slot.name for slot in space.slots if slot.start >= space.shared]
    if not private:
        return f"{name} shares all layers: no layer is private."
    layers = list(dict.fromkeys(parameter.rpartition(".")[0] or parameter for parameter in private))
    more = f" and {len(layers) - 4} more" if len(layers) > 5 else ""
    shown = ", ".join(layers[:4] if more else layers)
    patterns = ", ".join(f'"{pattern}"' for pattern in experiment.private)
    which = patterns if len(experiment.private) == 1 else f"[{patterns}]"
    plural = "s" if len(layers) > 1 else ""
    stay = "stay" if plural else "stays"
    return f'{name}: layer{plural} {shown}{more} {stay} on each device (private = {which}); private = "" shares all.'


def _part_of(experiment: Experiment, out: Sequence[int], *, new: bool) -> Shards:
    """The data of the devices that train, or of the new ones."""
    data = experiment.data.paper() if experiment.protocol == "paper" else experiment.data
    return data.chosen([d for d in range(data.devices) if (d in set(out)) == new]) if out else data


_CHOSEN, _FINAL, _LAST = "chosen ", "final ", "last "


def _label(model: str, *, final: bool = False) -> str:
    """Under which name the rows of a model's best round are held; `final`, of a round that is scored only for being the last."""
    return f"{_FINAL if final else _CHOSEN}{model}"


def _check_row(row: Tensor, like: Tensor) -> None:
    if row.shape != like.shape or row.dtype != like.dtype or not bool(torch.isfinite(row).all()):
        raise ValueError(f"a global row {tuple(row.shape)} {row.dtype}, not {tuple(like.shape)} {like.dtype}, all finite")


def _frozen(saved: Checkpoint, at: int, round: int) -> Frozen:
    """One column of a checkpoint."""
    tier, name, labels = saved.facts["columns"][at]
    if not isinstance(name, str) or not isinstance(labels, list) or len(set(labels)) != len(labels):
        raise ValueError(f"column {at} is {saved.facts['columns'][at]!r:.80}")
    entries = {}
    for k, label in enumerate(labels):
        entries[str(label)] = Entry(*(saved.tensors[f"{at}.{k}.{part}"] for part in ("ids", "rounds", "places")))
        if bool((entries[str(label)].rounds >= round).any()):
            raise ValueError(f"{tier} {name}: a row kept after round {round}")
    return Frozen(tier, name, saved.tensors[f"{at}.rows"], entries)


def _names(simulator: Simulator) -> list[str]:
    return ["global", *(name for _, name in _models(simulator))]


def _models(simulator: Simulator) -> tuple[tuple[str, str], ...]:
    """(tier, name) of everything kept that is a whole model, the upper tiers' first."""
    width, order = simulator.task.space.width, simulator.tree.tiers.index
    whole = [
        (tier, name)
        for (tier, name), column in simulator.store.columns.items()
        if column.rows.shape[1:] == (width,) and column.rows.is_floating_point() and not name.startswith("_")
    ]
    return tuple(sorted(whole, key=lambda item: (order(item[0]), item[1])))


def _record(facts: dict[str, Any]) -> Round:
    """A record from what `Round.as_dict` gave."""
    models = {
        name: Model(**{**model, "scores": {part: Score(**score) for part, score in model["scores"].items()}})
        for name, model in facts["models"].items()
    }
    traffic = {}
    for key, value in facts["traffic"].items():
        link, direction, lane = key.split("/")
        traffic[link, direction, lane] = Traffic(**value)
    notes = {  # records of earlier versions have none
        tier: {name: Note(**note) for name, note in found.items()} for tier, found in facts.get("notes", {}).items()
    }
    radio = None if facts.get("radio") is None else Aired(**facts["radio"])
    rest = (facts["seconds"], facts["spent"], notes, radio, facts.get("gradients", 0))
    return Round(facts["round"], facts["cohorts"], traffic, models, *rest)
