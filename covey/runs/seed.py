"""One run of several side by side: its models, its records, its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey.data import Shards
from covey.data.units import in_units
from covey.engine.measures.calibration import Calibration
from covey.errors import ConfigError, meant
from covey.kernel.store.store import PRESENT
from covey.links.meter import Meter, NodeKey
from covey.runs import models, parts
from covey.runs.experiment import Experiment
from covey.runs.models import Chosen, Which, label_in
from covey.runs.saved.checkpoint import Checkpoint
from covey.runs.saved.snapshot import PRIVATE, Beside, Snapshot
from covey.runs.scores.devices import DeviceScore, table
from covey.runs.scores.figures import PARTS, Observed, Sums
from covey.runs.scores.record import Round
from covey.runs.scores.scoring import Scorer
from covey.runs.state import History, SeedState, State
from covey.runtimes.base import BaseRuntime

if TYPE_CHECKING:
    from covey.runs.run import Runs


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Where the rows of a model lie: held under a label since a round, or "present".

    `w` is the global row of that round, [1, P]; `beside` are the names of the other rows of devices
    that predictions need.
    """

    tier: str
    label: str
    round: int
    w: Tensor
    beside: tuple[str, ...]


class Seed:
    """One run of several, a view of them: its models, its records, its checkpoint."""

    def __init__(self, runs: Runs, copy: int) -> None:
        self._runs = runs
        self._copy = copy
        self.runtime = runs.runtime
        self.notes = runs.notes

    @property
    def experiment(self) -> Experiment:
        """What is run here."""
        return self._runs.experiments[self._copy]

    @property
    def _state(self) -> SeedState:
        """Where this run stands, but for its global row."""
        return self._runs.state.seeds[self._copy]

    @property
    def trained(self) -> Shards:
        """The data of the devices that train, in the order of the tree's."""
        return parts.training_data(self.experiment, self._runs.held_out[self._copy])

    @property
    def w(self) -> Tensor:
        """The global rows, [1, P]."""
        return self._runs.state.w[self._copy : self._copy + 1]

    @w.setter
    def w(self, rows: Tensor) -> None:
        self._stand_at(replace(self._runs.state.of_seed(self._copy), w=rows))

    def _stand_at(self, state: State) -> None:
        """Stand where a run of one seed stands."""
        self._runs.state = self._runs.state.with_seed(self._copy, state)

    @property
    def round(self) -> int:
        """The round that comes next."""
        return self._runs.round

    @property
    def done(self) -> bool:
        """Whether no round is left: all were run, or the run stopped early."""
        return self._runs.done

    @property
    def stopped(self) -> str | None:
        """Why the run stopped early; None where it did not."""
        return self._runs.stopped

    @property
    def history(self) -> tuple[Round, ...]:
        """The records so far, also of what was run before a resume."""
        history = self._state.history
        return history.held if not history.before else history[:]

    def hold_records(self, first: int, read: Callable[[int], Round]) -> tuple[Round, ...]:
        """Hold the records from round `first` on, which are returned; `read` gives the others."""
        held = self._state.history[first:]
        seed = replace(self._state, history=History(held, first, read))
        self._stand_at(replace(self._runs.state.of_seed(self._copy), seeds=(seed,)))
        return held

    @property
    def meter(self) -> Meter:
        """What this run has sent."""
        return self._state.meter

    @property
    def totals(self) -> dict[NodeKey, Tensor]:
        """Sums over all rounds for every node, by tier and name: "down" and "up" are bytes."""
        return {key: total.dense() for key, total in self._state.totals.items()}

    @property
    def chosen(self) -> Mapping[str, Chosen]:
        """The best round so far of each model, by the label under which its rows are held."""
        return self._state.chosen

    @property
    def scored(self) -> Mapping[str, tuple[int, Sums]]:
        """For each model, the round that was scored last and the sums of every device in it."""
        return self._state.scored

    @property
    def observed(self) -> Observed | None:
        """Other figures of nodes in the round that was run last; None where it was not scored."""
        return self._state.observed

    @property
    def newcomer_data(self) -> Shards | None:
        """The data of the devices that were held out of training; None where there are none."""
        out = self._runs.held_out[self._copy]
        if not out:
            return None
        return parts.newcomers_data(self.experiment, out)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of nodes of each tier, from the top."""
        return self.runtime.sizes

    @property
    def engine(self) -> dict[str, Any]:
        """How training is computed here.

        It changes speed but, except for the last bits, no result.
        """
        return self._runs.engine

    def models(self, *, scored: bool = True) -> list[str]:
        """The names of all kept models, "global" first.

        With `scored=False` also what is kept for new devices alone.
        """
        out = models.names(self.runtime)
        if not scored:
            unscored = models.unscored(self.runtime, self.experiment.algorithm)
            out += [name for _, name in unscored]
        return out

    def rows(self, model: str = "global", which: Which = "last") -> tuple[Tensor, Tensor]:
        """(ids, rows) of a kept model, as it is now or as it was in the round chosen for it.

        The global one has the id 0. Several models of one node are numbered in order.
        """
        snapshot = self._parameters(model, which)
        return snapshot.ids, snapshot.rows

    def snapshot(
        self, model: str = "global", which: Which = "last", *, mapped: bool = False
    ) -> Snapshot:
        """A kept model with everything its predictions need.

        As it is now or as it was in the round chosen for it. With `mapped` the rows of nodes are
        read one by one, when they are asked for.
        """
        snapshot = self._parameters(model, which, mapped=mapped)
        if not self.runtime.task.space.norms or model not in self.models():
            return snapshot
        if not bool(self.trained.present.all()):
            return snapshot  # data that stay with their devices: each has its own statistics
        tree = self.runtime.tree
        task = self.runtime.task
        first = self.runtime.nodes(tree.tiers[-1], self._copy).start
        if task.shards.partial:  # then one with the examples of all devices
            module = parts.module_of(self.experiment)
            task = parts.task_of(self.experiment, module, self.trained)
            first = 0
        nodes = torch.arange(self.sizes[snapshot.tier])
        begin, end = tree.span(snapshot.tier, nodes)
        owners = torch.repeat_interleave(nodes, end - begin).tolist()
        size = max(1, self.experiment.memory // task.row_bytes())
        statistics = []
        for start in range(0, len(owners), size):
            devices = range(start, min(start + size, len(owners)))
            rows = [snapshot.row(owners[device], device) for device in devices]
            stacked = torch.stack([row for row in rows if row is not None])
            ids = torch.tensor(devices) + first
            statistics.append(task.statistics(stacked.to(task.device), ids).cpu())
        return replace(
            snapshot, statistics=Beside(torch.arange(len(owners)), torch.cat(statistics))
        )

    def stored_bytes(self, model: str) -> int:
        """The bytes of the rows of a model and beside it that lie in files; 0 without files."""
        disk = self.runtime.disk
        if disk is None:
            return 0
        total = 0
        for tier, name in self._runs.belonging(self._tier_of(model), model):
            column = disk.columns[tier, name]
            holders = column.present.ids(self.runtime.nodes(tier, self._copy))
            total += len(holders) * column.segments.row_bytes
        return total

    def _parameters(self, model: str, which: Which, *, mapped: bool = False) -> Snapshot:
        """A snapshot without statistics."""
        tier = self._tier_of(model)
        lead = model
        if model not in self.models():
            lead = models.lead(self.runtime)
        held = self.version(lead, which)
        if model == models.GLOBAL:
            kept = Beside(torch.zeros(1, dtype=torch.int64), held.w.clone())
        else:
            kept = self._read(tier, model, held.label, mapped=mapped)
        ids = kept.ids
        rows = kept.rows
        fallback = None
        if rows.ndim == 3:
            rows = rows.flatten(0, 1)
            ids = torch.arange(len(rows))
        elif len(ids) != self.sizes[tier]:
            fallback = held.w[0].clone()
        beside = {}
        for name in held.beside if lead == model else ():
            other = self._read(self.runtime.tree.tiers[-1], name, held.label, mapped=mapped)
            if name == models.PERSONAL and self.experiment.algorithm.splits:
                beside[PRIVATE] = other.columns_from(self.runtime.task.space.shared)
            else:
                beside[name] = other
        return Snapshot(model, tier, held.round, ids, rows, fallback, beside, reader=kept.reader)

    def version(self, model: str, which: Which = "chosen") -> HeldRows:
        """Which version of a scored model is meant, without its rows.

        It is the model as it is now, too, where no round was chosen for it.
        """
        tier = self._tier_of(model)
        unscored = models.unscored(self.runtime, self.experiment.algorithm)
        columns = self._runs.belonging(tier, model)
        beside = [column[1] for column in columns if column not in [(tier, model), *unscored]]
        label = label_in(self.chosen, model)
        if which == "chosen" and label is not None:
            best = self.chosen[label]
            return HeldRows(tier, label, best.round, best.w, tuple(beside))
        return HeldRows(tier, PRESENT, max(self.round - 1, 0), self.w, tuple(beside))

    def module(
        self,
        model: str = "global",
        node: int = 0,
        which: Which = "last",
        *,
        scaled: bool = False,
    ) -> nn.Module:
        """A module with the parameters that a node keeps under this name.

        As they are now or were in the round chosen for the model. It takes examples in the units of
        the data, and so are the numbers that it predicts; with `scaled`, it is the bare network,
        whose inputs are scaled already. BatchNorm layers have the statistics of the device or, at
        other nodes, of the examples of all devices under the node.
        """
        snapshot = self.snapshot(model, which)
        position = (snapshot.ids == node).nonzero()
        if not len(position):
            those = snapshot.ids.tolist()[:10]
            raise ConfigError(f"node {node} keeps no {model!r} yet; these do: {those}.")
        row = snapshot.rows[int(position[0, 0])]
        space = self.runtime.task.space
        statistics = None
        if snapshot.statistics is not None:
            first, stop = self.runtime.tree.span(snapshot.tier, torch.tensor([node]))
            statistics = snapshot.statistics_of(range(int(first), int(stop)), space)
        network = space.fill(row, statistics)
        if scaled:
            return network
        data = self.experiment.data
        return in_units(network, data.scaling, data.encoding, data.target, data.names.features)

    def devices(self, most: int | None = None) -> list[DeviceScore]:
        """How every device does with every model, in its chosen round and in the last scored.

        Where more than `most` devices were scored, they are some of them, evenly spaced.
        """
        last = self.scored
        reported = {}
        for model in self.models():
            label = label_in(self.chosen, model)
            if label is not None:
                choice = self.chosen[label]
                reported[model] = (choice.round, choice.sums)
            elif model in last:
                reported[model] = last[model]
        tree = self.runtime.tree
        edges: list[str | None] = [None] * self.trained.devices  # below the server itself
        if tree.depth > 2:
            size = self.sizes[tree.tiers[-2]]
            counts = tree.counts(tree.tiers[-2], torch.arange(size)).tolist()
            labels: Sequence[str] = self.trained.names.edges
            if len(labels) != size:
                labels = list(map(str, range(size)))
            edges = [label for k, label in enumerate(labels) for _ in range(counts[k])]
        examples = None  # of every part, where sums count positions
        if self.trained.by_position:
            examples = {part: self.trained.part(part).counts().tolist() for part in PARTS}
        return table(
            reported,
            last,
            self.device_names,
            edges,
            self.runtime.task.metrics,
            examples=examples,
            most=most,
        )

    @property
    def device_names(self) -> list[str]:
        """What the data calls the devices that train, in order, or their numbers."""
        return list(self.trained.names.devices or map(str, range(self.trained.devices)))

    def calibration(self, part: str = "test", bins: int = 15) -> dict[str, Calibration]:
        """How well each model's probabilities are calibrated on a part of the data.

        Over the devices that hold the model.
        """
        runtime = self.runtime
        if not runtime.task.classifies:
            raise ConfigError(
                "calibration is about the probabilities of classes, but these targets are numbers."
            )
        if part not in PARTS or bins < 1:
            rule = "give train, validation or test, and 1 or more"
            raise ConfigError(f"calibration on part = {part!r} with bins = {bins}: {rule}.")
        scorer = Scorer(
            self.experiment.algorithm,
            models.kept(runtime),
            (part,),
            runtime.tree.tiers[0],
            bins=bins,
            least=self.experiment.least,
        )
        last = max(self.round - 1, 0)
        played = runtime.play(scorer.server, self._runs.state.w, round=last, lane="score")
        return scorer.calibrations(played.answer[self._copy : self._copy + 1])

    def save(self, path: str | os.PathLike[str], *, wait: bool = True) -> None:
        """Write everything this run needs to go on as if it had never stopped.

        Its records go to a file beside. With `wait=False` a run on a GPU goes on while the files
        are written: they are complete after `wait`, after the next save, and after the last round.
        Until then the checkpoint before is the valid one.
        """
        self._runs.save(self._copy, Path(path).absolute(), wait=wait)

    def wait(self) -> None:
        """Wait until the last save is on the disk; an error that prevented it is raised here."""
        self._runs.checkpoints.writer.wait()

    def captured(self) -> Checkpoint:
        """Where this run stands, without its records and without what its nodes keep."""
        runs = self._runs
        captured = runs.checkpoints.captured(self._copy, runs.state.of_seed(self._copy))
        captured.facts["needs"] = {model: sorted(names) for model, names in runs.needs.items()}
        return captured

    def stand(self, captured: Checkpoint, records: Sequence[dict[str, Any]]) -> int:
        """Stand where a run stood that was captured; nodes keep what they keep.

        The captured run must be the same experiment; `records` are those of its rounds. Returns how
        many of them change because the run has more rounds now than it had.
        """
        checkpoints = self._runs.checkpoints
        state, changed = checkpoints.stand(self._copy, captured, records, self.w)
        self._stand_at(state)
        needs = captured.facts["needs"].items()
        self._runs.needs = {model: set(names) for model, names in needs}
        return changed

    def append_to(self, path: str | os.PathLike[str]) -> None:
        """Save to a checkpoint that this run wrote before: its file of records only grows."""
        self._runs.checkpoints.append_to(self._copy, Path(path).absolute(), self.history)

    def columns(self) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor]]:
        """(tier, name, ids, rounds, rows) of everything this run's nodes keep."""
        for tier, name in sorted(self.runtime.kept()):
            yield tier, name, *self.runtime.read(tier, name, PRESENT, self._copy)

    def _tier_of(self, model: str) -> str:
        """The tier that keeps a model."""
        tiers = self.runtime.tree.tiers
        if model == models.GLOBAL:
            return tiers[0]
        by_name = {name: tier for tier, name in self.runtime.kept() if tier in tiers}
        if model not in by_name:
            names = self.models()
            hint = meant(model, names)
            raise ConfigError(
                f"there is no model {model!r} in this run{hint}; there are {', '.join(names)}."
            )
        return by_name[model]

    def _read(self, tier: str, name: str, label: str, *, mapped: bool) -> Beside:
        """What this run's nodes keep under a name, in some version; `mapped`: where it lies."""
        if not mapped:
            ids, _, rows = self.runtime.read(tier, name, label, self._copy)
            return Beside(ids, rows)
        assert isinstance(self.runtime, BaseRuntime)
        column = self.runtime.store.columns[tier, name]
        version = column.version(label)
        nodes = self.runtime.nodes(tier, self._copy)

        def reader(ids: Tensor) -> Tensor:
            return column.segments.read(version.slots(ids + nodes.start))

        return Beside(version.ids(nodes), column.template, reader=reader)
