"""One run of several side by side: its models, its records, its checkpoint."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey.data import Shards
from covey.data.units import in_units
from covey.engine.calibration import Calibration
from covey.engine.metrics import is_figure
from covey.engine.task import Task
from covey.errors import CheckpointError, ConfigError, meant
from covey.kernel.store import PRESENT, Store
from covey.links.meter import Meter
from covey.links.node_bytes import NodeKey
from covey.runs import build, checkpoint, kept_rows, models, rank_parts, saving
from covey.runs.checkpoint import Checkpoint
from covey.runs.choice import FINAL, Chosen, Which, label_in
from covey.runs.devices import PARTS, DeviceScore, Sums, table
from covey.runs.experiment import Experiment
from covey.runs.journal import Journal
from covey.runs.kept_rows import RowsFolder
from covey.runs.observed import Observed
from covey.runs.record import Round
from covey.runs.saving import Saved
from covey.runs.scoring import Scorer
from covey.runs.snapshot import PRIVATE, Beside, Reader, Snapshot
from covey.runs.state import History, State
from covey.runs.totals import dense
from covey.runtimes.base import BaseRuntime

if TYPE_CHECKING:
    from covey.runs.run import Runs


@dataclass(frozen=True, eq=False)
class Version:
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
    """One run of several: its models, its records, its checkpoint."""

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
    def _state(self) -> State:
        """The state of all runs."""
        return self._runs._state

    @_state.setter
    def _state(self, state: State) -> None:
        self._runs._state = state

    @property
    def trained(self) -> Shards:
        """The data of the devices that train, in the order of the tree's."""
        return build.training_data(self.experiment, self._runs.held_out[self._copy])

    @property
    def w(self) -> Tensor:
        """The global rows, [1, P]."""
        return self._state.w[self._copy : self._copy + 1]

    @w.setter
    def w(self, rows: Tensor) -> None:
        self._state = self._state.with_row(self._copy, rows[0])

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
    def _last_round(self) -> int:
        """The round that was run last, counted from 0; 0 before the first."""
        return max(self.round - 1, 0)

    @property
    def history(self) -> tuple[Round, ...]:
        """The records so far, also of what was run before a resume."""
        history = self._state.histories[self._copy]
        return history.held if not history.before else history[:]

    def hold_records(self, first: int, read: Callable[[int], Round]) -> tuple[Round, ...]:
        """Hold the records from round `first` on, which are returned; `read` gives the others."""
        held = self._state.histories[self._copy][first:]
        one = self._state.of_seed(self._copy)
        one = replace(one, histories=(History(held, first, read),))
        self._state = self._state.with_seed(self._copy, one)
        return held

    @property
    def meter(self) -> Meter:
        """What this run has sent."""
        return self._state.meters[self._copy]

    @property
    def totals(self) -> dict[NodeKey, Tensor] | None:
        """Sums over all rounds for every node, by tier and name: "down" and "up" are bytes.

        None in a run that began before nodes were counted.
        """
        totals = self._state.totals[self._copy]
        if totals is None:
            return None
        return dense(totals)

    @property
    def chosen(self) -> dict[str, Chosen]:
        """The best round so far of each model, by the label under which its rows are held."""
        return self._state.chosen[self._copy]

    @property
    def scored(self) -> dict[str, tuple[int, Sums]]:
        """For each model, the round that was scored last and the sums of every device in it."""
        return self._state.scored[self._copy]

    @property
    def observed(self) -> Observed | None:
        """Other figures of nodes in the round that was run last; None where it was not scored."""
        return self._state.observed[self._copy]

    @property
    def newcomer_data(self) -> Shards | None:
        """The data of the devices that were held out of training; None where there are none."""
        out = self._runs.held_out[self._copy]
        if not out:
            return None
        return build.newcomers_data(self.experiment, out)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of nodes of each tier, from the top."""
        tree = self.runtime.tree
        return {tier: tree.size(tier) // tree.copies for tier in tree.tiers}

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
        return replace(snapshot, statistics=self._statistics(snapshot))

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
        label, round, w = self._version(lead, which)
        reader = None
        if model == models.GLOBAL:
            ids = torch.zeros(1, dtype=torch.int64)
            rows = w.clone()
        elif mapped:
            ids, rows, reader = self._mapped(tier, model, label)
        else:
            ids, rows = self._read(tier, model, label)
        nodes = self.runtime.nodes(tier, self._copy)
        fallback = None
        if rows.ndim == 3:
            rows = rows.flatten(0, 1)
            ids = torch.arange(len(rows))
        elif len(ids) != nodes.stop - nodes.start:
            fallback = w[0].clone()
        beside = {}
        if lead == model:
            beside = self._beside(tier, model, label, mapped=mapped)
        return Snapshot(model, tier, round, ids, rows, fallback, beside, reader=reader)

    def _statistics(self, snapshot: Snapshot) -> Beside:
        """The statistics of every device's norm layers under its row of a model."""
        task, first = self._task
        tree = self.runtime.tree
        nodes = torch.arange(self.sizes[snapshot.tier])
        begin, end = tree.span(snapshot.tier, nodes)
        owners = torch.repeat_interleave(nodes, end - begin).tolist()
        size = max(1, self.experiment.memory // task.row_bytes())
        parts = []
        for start in range(0, len(owners), size):
            devices = range(start, min(start + size, len(owners)))
            rows = [snapshot.row(owners[device], device) for device in devices]
            stacked = torch.stack([row for row in rows if row is not None])
            ids = torch.tensor(devices) + first
            parts.append(task.statistics(stacked.to(task.device), ids).cpu())
        return Beside(torch.arange(len(owners)), torch.cat(parts))

    @property
    def _task(self) -> tuple[Task, int]:
        """A task with the examples of all devices, and the number that the first one has there."""
        task = self.runtime.task
        if task.shards.partial:
            module = build.module_of(self.experiment)
            return build.task_of(self.experiment, module, self.trained), 0
        devices = self.runtime.nodes(self.runtime.tree.tiers[-1], self._copy)
        return task, devices.start

    def version(self, model: str, which: Which = "chosen") -> Version:
        """Which version of a scored model is reported, without its rows."""
        tier = self._tier_of(model)
        label, round, w = self._version(model, which)
        unscored = models.unscored(self.runtime, self.experiment.algorithm)
        beside = []
        for column in self._runs.belonging(tier, model):
            _, name = column
            if name != model and column not in unscored:
                beside.append(name)
        return Version(tier, label, round, w, tuple(beside))

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
        ids = snapshot.ids
        rows = snapshot.rows
        position = (ids == node).nonzero()
        if not len(position):
            raise ConfigError(f"node {node} keeps no {model!r} yet; these do: {ids.tolist()[:10]}.")
        row = rows[int(position[0, 0])]
        space = self.runtime.task.space
        statistics = None
        if snapshot.statistics is not None:
            first, stop = self.runtime.tree.span(snapshot.tier, torch.tensor([node]))
            statistics = snapshot.statistics_of(range(int(first), int(stop)), space)
        network = space.fill(row, statistics)
        data = self.experiment.data
        if scaled:
            return network
        return in_units(network, data.scaling, data.encoding, data.target, data.names.features)

    def devices(self, most: int | None = None) -> list[DeviceScore]:
        """How every device does with every model, in its chosen round and in the last scored.

        Where more than `most` devices were scored, they are some of them, evenly spaced.
        """
        last = self._state.scored[self._copy]
        best = self._state.chosen[self._copy]
        reported = {}
        for model in self.models():
            label = label_in(best, model)
            if label is not None:
                choice = best[label]
                reported[model] = (choice.round, choice.sums)
            elif model in last:
                reported[model] = last[model]
        return table(
            reported,
            last,
            self.device_names,
            self._edges(),
            classifies=self.runtime.task.classifies,
            examples=self._examples_by_part(),
            has_perplexity=self.runtime.task.has_perplexity,
            metrics=[metric.name for metric in self.runtime.task.metrics if is_figure(metric)],
            most=most,
        )

    def _examples_by_part(self) -> dict[str, list[int]] | None:
        """How many examples each device has of every part, where sums count positions."""
        if not self.trained.by_position:
            return None
        return {part: self.trained.part(part).counts().tolist() for part in PARTS}

    @property
    def device_names(self) -> list[str]:
        """What the data calls the devices that train, in order, or their numbers."""
        names = self.trained.names.devices
        if names:
            return list(names)
        return [str(k) for k in range(self.trained.devices)]

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
        kept = models.kept(runtime)
        scorer = Scorer(
            self.experiment.algorithm,
            kept,
            (part,),
            runtime.tree.tiers[0],
            bins=bins,
            least=self.experiment.least,
        )
        played = runtime.play(scorer.server, self._state.w, round=self._last_round, lane="score")
        return scorer.calibrations(played.answer[self._copy : self._copy + 1])

    def save(self, path: str | os.PathLike[str], *, wait: bool = True) -> None:
        """Write everything this run needs to go on as if it had never stopped.

        Its records go to a file beside. With `wait=False` a run on a GPU goes on while the files
        are written: they are complete after `wait`, after the next save, and after the last round.
        Until then the checkpoint before is the valid one.
        """
        with self._runs.alone("save"), self.runtime.together("save the run"):
            began = time.perf_counter()
            target = Path(path).absolute()
            state = self._state.of_seed(self._copy)
            if self.runtime.disk is not None:
                self._write_rows(target, state, self.runtime.disk)
            elif self.runtime.world > 1:
                self._write_part(target, state)
            else:
                columns = list(self.runtime.freeze(self._copy))
                self._begin_writing(target, Saved(state, columns), wait)
            self._runs._saving += time.perf_counter() - began

    def wait(self) -> None:
        """Wait until the last save is on the disk; an error that prevented it is raised here."""
        self._runs.writer.wait()

    def _begin_writing(self, target: Path, run: Saved, wait: bool) -> None:
        """Write a checkpoint now, or on a GPU while the run goes on."""
        rule = self._runs.stopping_rule
        writer = self._runs.writer
        if wait or not self._runs.writes_beside:
            writer.wait()
            self._write(target, run, rule)
        else:
            job = partial(self._write, target, run.in_main_memory(), rule)
            writer.begin(job, self.round)

    def _write(self, target: Path, run: Saved, stopped: str | None = None) -> None:
        """Write a checkpoint and the records beside it."""
        history = run.state.histories[0]
        contents = run.checkpoint(
            history=self._written(target, history).facts(),
            fingerprint=self._runs._fingerprints[self._copy],
            stopped=stopped,
        )
        if self.runtime.lacks is not None:
            contents.facts[checkpoint.LACKS] = self.runtime.lacks
        checkpoint.write(target, contents)
        rank_parts.clean(target, run.parts)

    def _write_part(self, target: Path, state: State) -> None:
        """Write the rows of this process; once all have, rank 0 writes the checkpoint."""
        columns = list(self.runtime.freeze(self._copy))
        part = rank_parts.write(
            target,
            saving.columns_alone(columns, state.round),
            rank=self.runtime.rank,
            world=self.runtime.world,
        )
        parts = self.runtime.gather_json("write the parts of a checkpoint", part)
        if self.runtime.leads:
            rank_parts.check_visible(target, parts)
            self._write(target, Saved(state, [], parts=parts), self._runs.stopping_rule)

    def _write_rows(self, target: Path, state: State, store: Store) -> None:
        """Write a checkpoint whose rows stay where they are."""
        self._runs.writer.wait()
        folders = self._runs._rows_folders
        if target not in folders:
            folders[target] = RowsFolder(target)
        folder = folders[target]
        nodes = {tier: self.runtime.nodes(tier, self._copy) for tier in self.runtime.tree.tiers}
        rows = folder.save(store, nodes, state.totals[0])
        # From here on the checkpoint counts: an error below may come after it was replaced.
        folder.saves.insert(0, store.saves)
        store.saved({save for other in folders.values() for save in other.saves})
        self._write(target, Saved(state, [], rows), self._runs.stopping_rule)
        del folder.saves[2:]
        folder.clean(rows)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Go on from a checkpoint; the round it stands at."""
        with self.runtime.together("resume"):
            return self._restore(path)

    def _restore(self, path: str | os.PathLike[str]) -> int:
        saved = checkpoint.read(path)
        try:
            wanted = self._runs._fingerprints[self._copy]
            data = self.experiment.data.name
            checkpoint.same_experiment(path, saved.facts["experiment"], wanted, data=data)
            self._load(saved, Path(path).absolute())
            if saved.facts["versions"] != checkpoint.versions():
                versions = f"{saved.facts['versions']}, this is {checkpoint.versions()}"
                self.notes.append(f"{path} was written by {versions}; the last bits may differ.")
        except CheckpointError:
            raise
        except Exception as error:  # whatever a file that is not what it seems to be leads to
            reason = f"{type(error).__name__}: {error}{checkpoint.older(path)}"
            raise CheckpointError(f"{path} is damaged: {reason}.") from error
        return self.round

    def _load(self, saved: Checkpoint, path: Path) -> None:
        """Stand where a checkpoint stood."""
        if checkpoint.LACKS in saved.facts:
            fix = "they are on the disks of their nodes: go on with the deployed tree"
            raise CheckpointError(f"{path} lacks {saved.facts[checkpoint.LACKS]}; {fix}.")
        journal, records = Journal.read(path, saved.facts["history"])
        run = saving.read(saved, records, like=self.w, sizes=self.sizes)
        state: State = run.state
        columns = list(run.columns)
        for part in rank_parts.read(path, saved.facts):
            columns += saving.read_columns(part, state.round, self.w)
        for column in columns:
            self.runtime.thaw(column, self._copy)
        if checkpoint.ROWS in saved.facts:
            state = self._load_rows(path, saved.facts, state)
        state, changed = self._going_on(state)
        journal.records -= changed
        self._runs._journals[self._copy][path] = journal
        self._state = self._state.with_seed(self._copy, state)

    def captured(self) -> Checkpoint:
        """Where this run stands, without its records and without what its nodes keep."""
        saved = Saved(self._state.of_seed(self._copy), [])
        wanted = self._runs._fingerprints[self._copy]
        captured = saved.checkpoint(history={}, fingerprint=wanted)
        needs = {model: sorted(names) for model, names in self._runs._needs.items()}
        captured.facts["needs"] = needs
        return captured

    def stand(self, captured: Checkpoint, records: Sequence[dict[str, Any]]) -> int:
        """Stand where a run stood that was captured; nodes keep what they keep.

        The captured run must be the same experiment; `records` are those of its rounds. Returns how
        many of them change because the run has more rounds now than it had.
        """
        wanted = self._runs._fingerprints[self._copy]
        checkpoint.same_experiment("the run", captured.facts["experiment"], wanted)
        run = saving.read(captured, records, like=self.w, sizes=self.sizes)
        state, changed = self._going_on(run.state)
        self._state = self._state.with_seed(self._copy, state)
        needs = captured.facts["needs"].items()
        self._runs._needs = {model: set(names) for model, names in needs}
        return changed

    def _going_on(self, state: State) -> tuple[State, int]:
        """(state, number of records that change) of a run that has rounds left, or that has none.

        What nodes hold because their last round was the last is released.
        """
        if state.round >= self.experiment.rounds:
            return state, 0
        for label in state.chosen[0]:
            if label.startswith(FINAL):
                self.runtime.release(label, self._copy)
        return saving.going_on(state, self.experiment)

    def append_to(self, path: str | os.PathLike[str]) -> None:
        """Save to a checkpoint that this run wrote before: its file of records only grows."""
        target = Path(path).absolute()
        facts = checkpoint.read(target, tensors=False).facts
        journal, written = Journal.read(target, facts["history"])
        same = 0
        for record, before in zip(self.history, written, strict=False):
            if json.loads(json.dumps(record.as_dict())) != before:
                break
            same += 1
        journal.records = same
        self._runs._journals[self._copy][target] = journal

    def _load_rows(self, path: Path, facts: dict[str, Any], state: State) -> State:
        """Take over rows that lie in files of their own, and the sums of nodes beside them."""
        store = self.runtime.disk
        if self._runs.reading:
            store = self._store
        live = None
        if store is not None:
            live = store.folder
        columns, totals = kept_rows.read(path, facts[checkpoint.ROWS], self.sizes, live)
        for column in columns:
            if store is None:
                self.runtime.thaw(column.frozen(), self._copy)
            else:
                column.attach(store, self.runtime.nodes(column.tier, self._copy))
        if "totals" in facts:
            state = replace(state, totals=(totals,))
        return state

    def _written(self, target: Path, history: Sequence[Round]) -> Journal:
        """The journal beside a checkpoint, with all records so far."""
        journals = self._runs._journals[self._copy]
        if target not in journals or not journals[target].whole:
            journals[target] = Journal.beside(target)
        journal = journals[target]
        missing = [record.as_dict() for record in history[journal.records :]]
        journal.append(missing, len(history))
        return journal

    def _columns(self) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor]]:
        """(tier, name, ids, rounds, rows) of everything this run's nodes keep."""
        for tier, name in sorted(self.runtime.kept()):
            yield (
                tier,
                name,
                *self.runtime.read(tier, name, PRESENT, self._copy),
            )

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

    def _version(self, model: str, which: Which) -> tuple[str, int, Tensor]:
        """(label, round, global row) of a model as it is now or was in its chosen round.

        It is as it is now where no round was chosen.
        """
        chosen = self._state.chosen[self._copy]
        label = label_in(chosen, model)
        if which == "chosen" and label is not None:
            return label, chosen[label].round, chosen[label].w
        return PRESENT, self._last_round, self.w

    def _read(self, tier: str, name: str, label: str) -> tuple[Tensor, Tensor]:
        """(ids, rows) of what this run's nodes keep under a name, in some version."""
        ids, _, rows = self.runtime.read(tier, name, label, self._copy)
        return ids, rows

    @property
    def _store(self) -> Store:
        """What the nodes of this process keep."""
        assert isinstance(self.runtime, BaseRuntime)
        return self.runtime.store

    def _mapped(self, tier: str, name: str, label: str) -> tuple[Tensor, Tensor, Reader]:
        """(ids, no rows, reader) of what this run's nodes keep under a name, in some version."""
        column = self._store.columns[tier, name]
        version = column.version(label)
        nodes = self.runtime.nodes(tier, self._copy)

        def reader(ids: Tensor) -> Tensor:
            return column.segments.read(version.slots(ids + nodes.start))

        return version.ids(nodes), column.template, reader

    def _mapped_beside(self, tier: str, name: str, label: str) -> tuple[str, Beside]:
        """The name under which a model has these other rows, and the rows where they lie."""
        ids, rows, reader = self._mapped(tier, name, label)
        if name != models.PERSONAL or not self.experiment.algorithm.splits:
            return name, Beside(ids, rows, reader=reader)
        shared = self.runtime.task.space.shared

        def private(ids: Tensor) -> Tensor:
            return reader(ids)[:, shared:]

        return PRIVATE, Beside(ids, rows[:, shared:], shared, private)

    def _beside(
        self, tier: str, model: str, label: str, *, mapped: bool = False
    ) -> dict[str, Beside]:
        """The other rows a model's predictions need."""
        algorithm = self.experiment.algorithm
        shared = self.runtime.task.space.shared
        unscored = models.unscored(self.runtime, algorithm)
        out = {}
        for column in self._runs.belonging(tier, model):
            _, name = column
            if name == model or column in unscored:
                continue
            if mapped:
                key, part = self._mapped_beside(*column, label)
                out[key] = part
                continue
            ids, rows = self._read(*column, label)
            if name == models.PERSONAL and algorithm.splits:
                out[PRIVATE] = Beside(ids, rows[:, shared:], shared)
            else:
                out[name] = Beside(ids, rows)
        return out

    def _edges(self) -> list[str | None]:
        """The name or number of the node above each device; None where that is the server."""
        tree = self.runtime.tree
        if tree.depth < 3:
            return [None] * self.trained.devices
        tier = tree.tiers[-2]
        size = tree.size(tier) // tree.copies
        counts = tree.counts(tier, torch.arange(size)).tolist()
        labels = list(self.trained.names.edges)
        if len(labels) != size:
            labels = [str(k) for k in range(size)]
        out: list[str | None] = []
        for label, count in zip(labels, counts, strict=True):
            out += [label] * count
        return out
