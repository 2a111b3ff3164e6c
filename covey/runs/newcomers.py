"""Devices that took no part in training: which model above serves them best, and the personal one
their own data makes of it.

A newcomer gets the global model, or of the models of the tier above it the one with the least loss
on its own training examples, and runs the algorithm's own `adapt` on it. Its validation and test
examples are for scores alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covey import draws
from covey.data import Shards
from covey.engine import smooth_l1
from covey.engine.task import PartScore, Task
from covey.errors import DivergedError
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import exact
from covey.links.spec import wires
from covey.runs.experiment import Experiment
from covey.runs.scoring import Model, score_of
from covey.runtimes.simulator import Simulator
from covey.tree import Tree
from covey.types import Rows

TIER = "new device"


class Newcomers:
    """The newcomers of one experiment, or of several that run side by side, each a tree of its own:
    what it gets, and itself.
    """

    def __init__(self, experiments: Sequence[Experiment], shards: Sequence[Shards]) -> None:
        first = experiments[0]
        self.algorithm, self.each = first.algorithm, shards[0].devices
        self.task = Task(
            first.model, Shards.stack(shards), loss=first.loss, l2=first.l2, private=first.private, dtype=first.dtype,
            device=first.device,
        )  # fmt: skip
        self.ids = torch.arange(self.each * len(shards))
        seeds = tuple(
            draws.key(e.seed, "newcomer", at) for e in experiments for at in range(self.each)
        )
        start = torch.stack([e.initial() for e in experiments]).repeat_interleave(self.each, 0)
        workers = (
            (first.workers or torch.get_num_threads()) if self.task.device.type == "cpu" else 1
        )
        self.tree = Tree.flat(1).times(len(self.ids))
        links = wires("dense", self.tree.links)
        self._simulator = Simulator(
            first.algorithm,
            self.tree,
            self.task,
            links,
            start,
            seeds,
            batches=first.batches,
            workers=workers,
            memory=first.memory,
            capture=False,
        )

    def fitting(self, candidates: Sequence[Rows]) -> Tensor:
        """For each newcomer, which row of its experiment's candidates has the least loss on its
        training examples, [n].
        """
        losses = []
        for at, rows in enumerate(candidates):
            mine = self.ids[at * self.each : (at + 1) * self.each]
            losses.append(torch.stack([self._loss(row, mine) for row in rows], dim=1).argmin(dim=1))
        return torch.cat(losses)

    def adapted(self, rows: Rows, round: int) -> Rows:
        """Each newcomer's personal model from the one it was given, [n, P]; what it keeps on the
        way is forgotten.
        """
        self._simulator.forget()
        try:
            played = self._simulator.play(
                _Visit(self.algorithm).server, rows, round=round, lane="score"
            )
        except DivergedError as error:
            raise DivergedError(f"adapting to new devices, {error}") from error
        answer: Rows = played.answer
        return answer

    def scores(
        self,
        w: Rows,
        above: Sequence[Rows],
        round: int,
        parts: tuple[str, ...],
    ) -> list[dict[str, Model]]:
        """How the models serve the newcomers of each experiment; `above` holds what the tier above
        them keeps, if anything.
        """
        given = w.repeat_interleave(self.each, 0)
        models = {"new_global": given}
        if all(len(rows) for rows in above):
            best = self.fitting(above)
            starts = torch.arange(len(above)).repeat_interleave(self.each)
            given = torch.stack([above[int(e)][int(k)] for e, k in zip(starts, best, strict=True)])
            models["new_edge"] = given
        models["new_personal"] = self.adapted(given, round)
        out: list[dict[str, Model]] = [{} for _ in above]
        with torch.no_grad():
            for name, rows in models.items():
                tallies = self.tallies(name.removeprefix("new_"), rows, parts, round)
                zero = self.algorithm.zero("device", "personal")
                shares = smooth_l1.nonzeros(rows, zero)
                for at, found in enumerate(out):
                    mine = slice(at * self.each, (at + 1) * self.each)
                    scores = {
                        part: score_of(tally, mine, self.task.classifies)
                        for part, tally in tallies.items()
                    }
                    found[name] = Model(
                        TIER, self.each, 0.0, float(shares[mine].mean()), zero or 0.0, scores
                    )
        return out

    def tallies(
        self,
        name: str,
        rows: Rows,
        parts: Sequence[str],
        round: int,
    ) -> dict[str, PartScore]:
        """What each newcomer's row, the "global", the "edge" or the "personal" one, does on its own
        data, by part.
        """
        model = self.algorithm.above() if name == "edge" else name
        me = Nodes(self._simulator, self.tree.tiers[-1], self.ids, round=round, path=0)
        predict = self.algorithm.predictor(me, model, rows)
        return {part: me.evaluate(rows, part, predict=predict) for part in parts}

    def _loss(self, row: Tensor, ids: Tensor) -> Tensor:
        with torch.no_grad():
            tally = self.task.evaluate(row.expand(len(ids), -1), "train", ids)
        return tally.loss / tally.count


class _Visit:
    """The program of whoever hands a newcomer its first model."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def server(self, me: Nodes, rows: Rows) -> Rows:
        return me.ask(self.algorithm.adapt, exact(rows)).mean()


def held_out(experiment: Experiment) -> tuple[int, ...]:
    """The devices an experiment keeps from training: those it names or, where it gives a number,
    drawn evenly from all edges.
    """
    wanted, tree = experiment.holdout_devices, experiment.tree
    if not isinstance(wanted, int):
        return tuple(sorted(wanted))
    tier = tree.tiers[-2]
    sizes = tree.counts(tier, torch.arange(tree.size(tier)))
    ends = torch.cumsum(sizes, 0)
    # So many of the first edges that their share is met at every edge: the same numbers whatever
    # the seed.
    upto = (ends * wanted + tree.devices // 2) // tree.devices
    picks = torch.diff(upto, prepend=torch.zeros(1, dtype=torch.int64))
    key = draws.key(experiment.seed, "holdout")
    position, number = draws.choose(key, torch.arange(len(sizes)), sizes=sizes, picks=picks)
    return tuple(sorted(((ends - sizes)[position] + number).tolist()))
