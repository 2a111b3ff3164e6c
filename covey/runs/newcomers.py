"""Devices that took no part in training: the model above that fits them best, personalized.

A newcomer gets the global model, or of the models of the tier above it the one with the least loss
on its own training examples, and runs the algorithm's own `adapt` on it. Its validation and test
examples are for scores alone. A newcomer without training examples keeps the global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from covey import draws
from covey.data import Shards
from covey.engine import smooth_l1
from covey.engine.task import PartScore, Task
from covey.errors import DivergedError
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import exact
from covey.links.spec import wires
from covey.runs.devices import Sums
from covey.runs.experiment import Experiment
from covey.runs.figures import NodeFigures
from covey.runs.scoring import Model, score_of, sums_by_device
from covey.runtimes.simulator import Simulator
from covey.tree import Tree
from covey.types import Rows

TIER = "new device"


@dataclass(eq=False)
class NewScores:
    """The newcomers of one experiment: the models by name, and the sums of every newcomer."""

    models: dict[str, Model] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)


class Newcomers:
    """The newcomers of one experiment, or of several that run side by side.

    Each newcomer is a tree of its own: the server that hands it a model, and itself. `module` is
    the run's own copy of the experiment's, where there is one.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        shards: Sequence[Shards],
        *,
        module: nn.Module | None = None,
    ) -> None:
        first = experiments[0]
        if module is None:
            module = first.model
        self.algorithm = first.algorithm
        self.rates = first.rates()
        self.select = first.select
        self.least = first.least
        self.each = shards[0].devices
        self.task = Task(
            module,
            Shards.stack(shards),
            loss=first.loss,
            l2=first.l2,
            private=first.private,
            dtype=first.dtype,
            device=first.device,
            compute=first.compute,
            augment=first.augmentations(),
            metrics=first.metrics,
            optimiser=first.optimiser(),
        )
        self.ids = torch.arange(self.each * len(shards))
        self._learns = self.task.counts("train", self.ids) > 0
        """Which newcomers have examples to adapt to, [n] bool; the others keep what they get."""
        seeds: list[int] = []
        for experiment in experiments:
            numbers = range(self.each)
            seeds += [draws.key(experiment.seed, "newcomer", number) for number in numbers]
        start = torch.stack([experiment.initial() for experiment in experiments])
        workers = 1
        if self.task.device.type == "cpu":
            workers = first.workers or torch.get_num_threads()
        self.tree = Tree.flat(1).times(len(self.ids))
        links = wires("dense", self.tree.links)
        self._simulator = Simulator(
            first.algorithm,
            self.tree,
            self.task,
            links,
            start.repeat_interleave(self.each, 0),
            tuple(seeds),
            batches=first.batches,
            workers=workers,
            memory=first.memory,
            capture=False,
        )

    def _own(self, experiment: int) -> slice:
        """The newcomers of one experiment."""
        start = experiment * self.each
        return slice(start, start + self.each)

    def fitting(self, candidates: Sequence[Rows]) -> Tensor:
        """For each newcomer, the candidate with the min loss on its training examples, [n].

        The candidates are rows of the newcomer's own experiment.
        """
        best = []
        for number, rows in enumerate(candidates):
            ids = self.ids[self._own(number)]
            losses = [self._loss(row, ids) for row in rows]
            table = torch.stack(losses, dim=1)
            best.append(table.argmin(dim=1))
        return torch.cat(best)

    def adapted(self, rows: Rows, round: int) -> Rows:
        """Each newcomer's personal model from the one that it starts from, [n, P].

        Rows that it keeps on the way are forgotten.
        """
        self._simulator.forget()
        visit = _Visit(self.rates.of(self.algorithm, round), self._learns)
        try:
            played = self._simulator.play(visit.server, rows, round=round, lane="score")
        except DivergedError as error:
            raise DivergedError(f"adapting to new devices, {error}") from error
        answer: Rows = played.answer
        return answer

    def scores(
        self, w: Rows, above: Sequence[Rows], round: int, parts: tuple[str, ...]
    ) -> list[NewScores]:
        """The models by name and their scores on the newcomers, for each experiment.

        `above` holds the rows that the tier above the devices keeps, if any.
        """
        start = w.repeat_interleave(self.each, 0)
        models = {"new_global": start}
        if all(len(rows) for rows in above):
            best = self.fitting(above)
            starts = []
            for number, rows in enumerate(above):
                position = best[self._own(number)]
                starts.append(rows[position.to(rows.device)])
            learns = self._learns[:, None].to(start.device)
            start = torch.where(learns, torch.cat(starts), start)
            models["new_edge"] = start
        models["new_personal"] = self.adapted(start, round)
        out = [NewScores() for _ in above]
        with torch.no_grad():
            for name, rows in models.items():
                tallies = self.tallies(name.removeprefix("new_"), rows, parts, round)
                for number, scores in enumerate(out):
                    own = self._own(number)
                    scores.models[name] = self._model(rows, tallies, own)
                    scores.sums[name] = self._sums(tallies, own)
        return out

    def _sums(self, tallies: dict[str, PartScore], own: slice) -> Sums:
        """The sums of the newcomers of one experiment, by part."""
        out = {}
        for part, tally in tallies.items():
            sums = sums_by_device(tally, self.task)[own].cpu()
            out[part] = NodeFigures.of_all(sums)
        return out

    def _model(self, rows: Rows, tallies: dict[str, PartScore], own: slice) -> Model:
        """One model of the newcomers of one experiment."""
        zero = self.algorithm.zero("device", "personal")
        shares = smooth_l1.nonzeros(rows, zero)
        scores = {}
        for part, tally in tallies.items():
            scores[part] = score_of(tally, own, self.task)
        return Model(
            tier=TIER,
            holders=self.each,
            age=0.0,
            nonzeros=float(shares[own].mean()),
            cut=zero or 0.0,
            scores=scores,
            select=self.select,
        )

    def tallies(
        self, name: str, rows: Rows, parts: Sequence[str], round: int
    ) -> dict[str, PartScore]:
        """The score of each newcomer's row on its own data, by part.

        `name` is "global", "edge" or "personal".
        """
        model = name
        if name == "edge":
            model = self.algorithm.above()
        tier = self.tree.tiers[-1]
        me = Nodes(self._simulator, tier, self.ids, round=round, path=0)
        predict = self.algorithm.predictor(me, model, rows) or me.predictor(rows)
        scores = {part: me.evaluate(rows, part, predict=predict) for part in parts}
        return {part: score.without(me.few(part, self.least) > 0) for part, score in scores.items()}

    def _loss(self, row: Tensor, ids: Tensor) -> Tensor:
        rows = row.expand(len(ids), -1)
        with torch.no_grad():
            tally = self.task.evaluate(rows, "train", ids)
        return tally.loss / tally.count.clamp(min=1)


class _Visit:
    """The program of whoever hands a newcomer its first model.

    A newcomer that has nothing to learn from is not asked, and its model stays as it is.
    """

    def __init__(self, algorithm: Algorithm, learns: Tensor) -> None:
        self.algorithm = algorithm
        self.learns = learns

    def server(self, me: Nodes, rows: Rows) -> Rows:
        if bool(self.learns.all()):
            replies = me.ask(self.algorithm.adapt, exact(rows))
            return replies.mean()
        replies = me.ask(self.algorithm.adapt, exact(rows), sample=self.learns)
        return replies.mean(default=rows)


def held_out(experiment: Experiment) -> tuple[int, ...]:
    """The devices that an experiment keeps from training.

    They are those it names or, where it gives a number, drawn evenly from all edges.
    """
    wanted = experiment.holdout_devices
    tree = experiment.tree
    if not isinstance(wanted, int):
        return tuple(sorted(wanted))
    tier = tree.tiers[-2]
    edges = torch.arange(tree.size(tier))
    sizes = tree.counts(tier, edges)
    ends = torch.cumsum(sizes, 0)
    # The first edges together give their share at every edge: the same numbers whatever the seed.
    up_to = (ends * wanted + tree.devices // 2) // tree.devices
    zero = torch.zeros(1, dtype=torch.int64)
    picks = torch.diff(up_to, prepend=zero)
    key = draws.key(experiment.seed, "holdout")
    edge, number = draws.choose(key, edges, sizes=sizes, picks=picks)
    first = ends - sizes
    devices = first[edge] + number
    return tuple(sorted(devices.tolist()))
