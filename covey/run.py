"""A run is an iterator of rounds: the caller logs, stops, saves; nothing calls back.

for record in covey.run(experiment):
    print(record)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey import checkpoint
from covey.checkpoint import Checkpoint
from covey.codecs import Codec, codec
from covey.errors import CheckpointError, ConfigError, ProgramError
from covey.experiment import Experiment
from covey.meter import Meter, Traffic
from covey.runtimes.simulator import Simulator
from covey.score import Model, Score, Scorer
from covey.task import Task
from covey.tree import Tree

_GRAIN = 200_000  # values of rows below which a second thread waits for Python's lock more than it computes


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    round: int  # counted from 0; what is printed counts from 1
    cohorts: dict[str, list[int]]  # who was asked, by tier
    traffic: dict[tuple[str, str, str], Traffic]  # by link, direction ("down", "up") and lane ("train", "score")
    models: dict[str, Model]  # every kept model by name, "global" first; empty in a round that is not scored
    seconds: float

    def bytes(self, link: str | None = None, direction: str | None = None) -> int:
        """What training sent in this round, in bytes."""
        return Meter(self.traffic).bytes(link=link, direction=direction)

    def accuracy(self, model: str = "global", part: str = "test") -> float | None:
        """The accuracy of a model, all examples alike; None where it was not scored."""
        found = self.models.get(model)
        return found.scores[part].accuracy if found and part in found.scores else None

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        traffic = {"/".join(key): asdict(value) for key, value in self.traffic.items()}
        return {**asdict(self), "traffic": traffic}

    def __str__(self) -> str:
        scores = []
        for name, model in self.models.items():
            score = model.scores.get("test") or next(iter(model.scores.values()))
            figure = f"{score.accuracy:.4f}" if score.accuracy is not None else f"loss {score.loss}"
            scores.append(f"{name} {figure}")
        return f"round {self.round + 1:4d}  {'  '.join(scores)}  {self.bytes() / 1e6:.3f} MB  {self.seconds:.2f} s"


@dataclass(frozen=True, eq=False)
class State:
    """Where a run stands between two rounds; one assignment moves it from one to the next."""

    w: Tensor
    round: int
    history: tuple[Round, ...]


class Run(Iterator[Round]):
    """An experiment under way. Iterate over it; between rounds, `save` it or look at its `rows` and `module`s."""

    def __init__(self, experiment: Experiment, *, resume: str | os.PathLike[str] | None = None) -> None:
        self.experiment = experiment
        self.notes: list[str] = []
        self.simulator = self._build()
        self._state = State(self.simulator.initial()[None].clone(), 0, ())
        self._fingerprint = experiment.fingerprint()
        self._rehearse()
        if resume is not None:
            self._restore(resume)
        if self.round >= experiment.rounds:
            raise ConfigError(f"rounds = {experiment.rounds}, but {resume} has run {self.round} already; give more rounds.")

    def __next__(self) -> Round:
        if self.round >= self.experiment.rounds:
            raise StopIteration
        state, meter = self._state, self.simulator.meter.copy()
        self.simulator.store.commit()  # what the round before kept
        try:
            self._play(meter)
        except BaseException:  # a Ctrl-C too: the round has happened as a whole or, if the state is still the old one, not at all
            if self._state is state:
                self._undo(meter)
            raise
        return self._state.history[-1]

    def _play(self, meter: Meter) -> None:
        began, round = time.perf_counter(), self.round
        self.simulator.cohorts.clear()
        w = self.simulator.play(self.experiment.algorithm.server, self.w, round=round)
        models = self._score(w) if self._due() else {}
        cohorts = {tier: np.unique(torch.cat(ids).numpy()).tolist() for tier, ids in self.simulator.cohorts.items()}
        record = Round(round, cohorts, self.simulator.meter.since(meter), models, time.perf_counter() - began)
        self._state = State(w, round + 1, (*self._state.history, record))

    @property
    def w(self) -> Tensor:
        """The global rows, [1, P]."""
        return self._state.w

    @w.setter
    def w(self, rows: Tensor) -> None:
        self._state = replace(self._state, w=rows)

    @property
    def round(self) -> int:
        """The round that comes next."""
        return self._state.round

    @property
    def history(self) -> tuple[Round, ...]:
        """The records so far, also of what was run before a resume."""
        return self._state.history

    def rows(self, model: str = "global") -> tuple[Tensor, Tensor]:
        """(ids, rows) of a kept model; the global one has the id 0."""
        if model == "global":
            return torch.zeros(1, dtype=torch.int64), self.w.clone()
        for tier, name, ids, _, rows in self.simulator.store.dump():
            if name == model and tier in self.simulator.tree.tiers:
                return ids, rows
        raise ConfigError(f"there is no model {model!r} in this run; there are {', '.join(self.models())}.")

    def models(self) -> list[str]:
        """The names of all kept models, "global" first."""
        return ["global", *(name for _, name in _models(self.simulator))]

    def module(self, model: str = "global", node: int = 0) -> nn.Module:
        """A module with the parameters that a node keeps under this name."""
        ids, rows = self.rows(model)
        where = (ids == node).nonzero()
        if not len(where):
            raise ConfigError(f"node {node} keeps no {model!r} yet; these do: {ids.tolist()[:10]}.")
        return self.simulator.task.space.fill(rows[int(where[0, 0])])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything this run needs to go on as if it had never stopped."""
        tensors, columns = {"server": self.w}, []
        for at, (tier, name, ids, rounds, rows) in enumerate(self.simulator.store.dump()):
            columns.append([tier, name])
            tensors |= {f"{at}.ids": ids, f"{at}.rounds": rounds, f"{at}.rows": rows}
        facts = {
            "round": self.round,
            "columns": columns,
            "meter": self.simulator.meter.state(),
            "history": [record.as_dict() for record in self.history],
            "experiment": self._fingerprint,
            "versions": checkpoint.versions(),
        }
        checkpoint.write(path, Checkpoint(tensors, facts))

    def _build(self) -> Simulator:
        e = self.experiment
        tree, note = e.algorithm.fit(e.tree)
        self.notes += [note] if note else []
        shards = e.data.paper() if e.protocol == "paper" else e.data
        task = Task(e.model, shards, loss=e.loss, l2=e.l2, private=e.private, dtype=e.dtype, device=e.device)
        workers = e.workers or (torch.get_num_threads() if task.device.type == "cpu" else 1)
        grain = 1 if e.workers else _GRAIN
        start, links = e.initial(task.space), _codecs(e, tree)
        return Simulator(e.algorithm, tree, task, links, e.seed, e.idle, e.batches, workers, e.memory, grain, start)

    def _rehearse(self) -> None:
        """Every program on no rows at all: what cannot work fails before the first round, and kept models get their names."""
        answer = self.simulator.play(self.experiment.algorithm.server, self.w[:0], round=0)
        if not isinstance(answer, Tensor) or answer.shape[1:] != self.w.shape[1:]:
            got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise ConfigError(f"the server's program must return rows [n, {self.w.shape[1]}], but returned {got}.")
        names = self.models()
        if twice := {name for name in names if names.count(name) > 1}:
            raise ProgramError(
                f"the model name {twice.pop()!r} is kept on two tiers, or is the server's own; use different names."
            )
        self.simulator.store.commit()

    def _undo(self, before: Meter) -> None:
        self.simulator.store.rollback()
        self.simulator.meter.totals = before.totals

    def _due(self) -> bool:
        return (self.round + 1) % self.experiment.score_every == 0 or self.round + 1 == self.experiment.rounds

    def _score(self, w: Tensor) -> dict[str, Model]:
        tree, task = self.simulator.tree, self.simulator.task
        scorer = Scorer(self.experiment.algorithm, _models(self.simulator), self.experiment.parts, tree.tiers[0], task.classifies)
        with self.simulator.scoring():
            return scorer.read(self.simulator.play(scorer.server, w, round=self.round), tree)

    def _restore(self, path: str | os.PathLike[str]) -> None:
        saved = checkpoint.read(path)
        try:
            checkpoint.same_experiment(path, saved.facts["experiment"], self._fingerprint)
            self._load(saved)
            if saved.facts["versions"] != checkpoint.versions():
                here, there = checkpoint.versions(), saved.facts["versions"]
                self.notes.append(f"{path} was written by {there}, this is {here}; the last bits may differ.")
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, ProgramError) as error:
            raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}; use an older one.") from error

    def _load(self, saved: Checkpoint) -> None:
        task, facts = self.simulator.task, saved.facts
        w = saved.tensors["server"]
        if w.shape != self.w.shape or w.dtype != self.w.dtype or type(facts["round"]) is not int or facts["round"] < 0:
            raise ValueError(f"server rows {tuple(w.shape)} {w.dtype} after round {facts['round']!r}")
        for at, (tier, name) in enumerate(facts["columns"]):
            ids, rounds, rows = (saved.tensors[f"{at}.{part}"] for part in ("ids", "rounds", "rows"))
            self.simulator.store.load(tier, name, ids, rounds, rows.to(task.device) if rows.is_floating_point() else rows)
        self.simulator.meter.totals = Meter.from_state(facts["meter"]).totals
        history = [_record(record) for record in facts["history"]]
        if history and facts["round"] % self.experiment.score_every and facts["round"] < self.experiment.rounds:
            history[-1] = replace(history[-1], models={})  # it was scored for being the last, which it is no more
        self._state = State(w.to(task.device), facts["round"], tuple(history))


def run(experiment: Experiment, *, resume: str | os.PathLike[str] | None = None) -> Run:
    """The rounds of an experiment, one record each; `resume` continues from a checkpoint, bit for bit."""
    return Run(experiment, resume=resume)


def history(path: str | os.PathLike[str]) -> list[Round]:
    """The records of a saved run."""
    facts = checkpoint.read(path, tensors=False).facts
    try:
        return [_record(record) for record in facts["history"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: its history cannot be read ({error!r}); use an older one.") from error


def _codecs(experiment: Experiment, tree: Tree) -> dict[str, Codec]:
    links = ["-".join(ends) for ends in zip(tree.tiers, tree.tiers[1:], strict=False)]
    if isinstance(experiment.codec, str):
        return dict.fromkeys(links, codec(experiment.codec))
    if unknown := set(experiment.codec) - set(links):
        raise ConfigError(f"codec names the link {unknown.pop()!r}, but the links are {', '.join(links)}.")
    return {link: codec(experiment.codec.get(link, "dense")) for link in links}


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
    return Round(facts["round"], facts["cohorts"], traffic, models, facts["seconds"])
