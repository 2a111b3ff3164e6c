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
from covey.engine.solvers import smooth_l1
from covey.engine.task import PartScore
from covey.errors import DivergedError
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import exact
from covey.links.spec import wires
from covey.runs.experiment import Experiment
from covey.runs.parts import task_of
from covey.runs.scores.figures import NodeFigures, Sums
from covey.runs.scores.scoring import Model, report, score_of
from covey.runtimes.simulator import Simulator
from covey.runtimes.spec import NodeSpec
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
        self.task = task_of(first, module, Shards.stack(shards))
        self.ids = torch.arange(self.each * len(shards))
        self._learns = self.task.examples.counts("train", self.ids) > 0
        """Which newcomers have examples to adapt to, [n] bool; the others keep what they get."""
        seeds: list[int] = []
        for experiment in experiments:
            numbers = range(self.each)
            seeds += [draws.key(experiment.seed, "newcomer", number) for number in numbers]
        start = torch.stack([experiment.initial() for experiment in experiments])
        self.tree = Tree.flat(1).times(len(self.ids))
        spec = NodeSpec(
            first.algorithm,
            self.tree,
            self.task,
            wires("dense", self.tree.links),
            start.repeat_interleave(self.each, 0),
            tuple(seeds),
            batches=first.batches,
            workers=first.workers,
            memory=first.memory,
            capture=False,
        )
        self._simulator = Simulator(spec)

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
            losses = []
            with torch.no_grad():
                for row in rows:
                    tally = self.task.evaluate(row.expand(len(ids), -1), "train", ids)
                    losses.append(tally.loss / tally.count.clamp(min=1))
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

    def models(
        self, w: Rows, above: Sequence[Rows], round: int, best: Tensor | None = None
    ) -> dict[str, Rows]:
        """The row of each newcomer by model, [n, P]: global, edge where there are edges, personal.

        `above` holds the rows that the tier above the devices keeps, if any, and `best` the one
        that each newcomer starts from. By default that is the one that fits it, or the global model
        where it has no training examples.
        """
        start = w.repeat_interleave(self.each, 0)
        out = {"global": start}
        if all(len(rows) for rows in above):
            chosen = self.fitting(above) if best is None else best
            starts = []
            for number, rows in enumerate(above):
                position = chosen[self._own(number)]
                starts.append(rows[position.to(rows.device)])
            fits = torch.cat(starts)
            if best is None:
                learns = self._learns[:, None].to(start.device)
                fits = torch.where(learns, fits, start)
            start = fits
            out["edge"] = start
        out["personal"] = self.adapted(start, round)
        return out

    def scores(
        self, w: Rows, above: Sequence[Rows], round: int, parts: tuple[str, ...]
    ) -> list[NewScores]:
        """The models by name and their scores on the newcomers, for each experiment.

        `above` is as in `models`.
        """
        models = self.models(w, above, round)
        out = [NewScores() for _ in above]
        with torch.no_grad():
            for model, rows in models.items():
                tallies = self.tallies(model, rows, parts, round)
                name = f"new_{model}"
                for number, scores in enumerate(out):
                    own = self._own(number)
                    scores.models[name] = self._model(rows, tallies, own)
                    scores.sums[name] = {}
                    for part, tally in tallies.items():
                        holds = torch.ones_like(tally.sums[:, :1])
                        sums = report(tally, self.task.metrics, holds)[own].cpu()
                        scores.sums[name][part] = NodeFigures.of_all(sums)
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
        predict = self.algorithm.predictor(me, model, rows) or me.task.predictor(rows, me.ids)
        tallies = {}
        for part in parts:
            score = me.task.evaluate(rows, part, me.ids, predict=predict, metrics=True)
            few = me.task.examples.few(part, me.device_ids, self.least)
            tallies[part] = score.without(few > 0)
        return tallies


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
