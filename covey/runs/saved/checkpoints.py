"""The checkpoints of runs side by side: written, read, and gone on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from covey.errors import CheckpointError
from covey.kernel.store.store import Store
from covey.runs.experiment import Experiment
from covey.runs.models import FINAL
from covey.runs.saved import checkpoint, kept_rows, rank_parts, saving
from covey.runs.saved.checkpoint import Checkpoint
from covey.runs.saved.journal import Journal
from covey.runs.saved.kept_rows import RowsFolder
from covey.runs.saved.saving import Saved
from covey.runs.scores.record import Round
from covey.runs.state import State
from covey.runtimes.base import BaseRuntime
from covey.runtimes.contract import Runtime


class Writer:
    """A thread that writes checkpoints while the next rounds run.

    One is written at a time, in the order in which they were begun. An error is raised by whoever
    waits next: the run before its next round, the next save, or `wait`. At the end of the process
    it is waited for.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []
        self._round = 0
        self._owner = os.getpid()

    def begin(self, job: Callable[[], None], round: int) -> None:
        """Begin to write a checkpoint of a round, once those of earlier rounds are written."""
        if round != self._round:
            self.wait()
        self._round = round
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "covey-checkpoint")
        self._pending.append(self._pool.submit(job))

    def wait(self) -> None:
        """Wait until all checkpoints are on the disk; raise the error that prevented it."""
        if self._owner != os.getpid():  # threads do not survive a fork
            self._owner = os.getpid()
            self._pool = None
            self._pending = []
        while self._pending:
            self._pending.pop(0).result()

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, without waiting for one."""
        if self._pending and self._pending[0].done():
            self._pending.pop(0).result()


class Checkpoints:
    """Writes and reads the checkpoints of experiments that one runtime plays side by side.

    A run has a number among them, `copy`. A state that is given or returned is that of one run.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        fingerprints: Sequence[dict[str, str]],
        runtime: Runtime,
        *,
        reading: bool,
    ) -> None:
        """`reading` goes to checkpoints that may be the last, and leaves their rows in files."""
        self.writer = Writer()
        self.writes_beside = runtime.task.device.type == "cuda"
        """Whether checkpoints may be written while rounds run; on a CPU that takes its cores."""
        self._experiments = experiments
        self._fingerprints = fingerprints
        self._runtime = runtime
        self._reading = reading
        self._journals: list[dict[Path, Journal]] = [{} for _ in experiments]
        self._rows_folders: dict[Path, RowsFolder] = {}

    # Writing

    def write(
        self, copy: int, path: Path, state: State, stopped: str | None, *, wait: bool
    ) -> None:
        """Write where a run stands; `stopped` is the rule that ended it early, where one did."""
        runtime = self._runtime
        if runtime.disk is not None:
            self._write_rows(copy, path, state, stopped, runtime.disk)
        elif runtime.ranks.world > 1:
            self._write_part(copy, path, state, stopped)
        else:
            run = Saved(state, list(runtime.freeze(copy)))
            if wait or not self.writes_beside:
                self.writer.wait()
                self._write(copy, path, run, stopped)
            else:
                job = partial(self._write, copy, path, run.in_main_memory(), stopped)
                self.writer.begin(job, state.round)

    def _write(self, copy: int, path: Path, run: Saved, stopped: str | None) -> None:
        """Write a checkpoint and the records beside it."""
        history = run.state.seeds[0].history
        journals = self._journals[copy]
        if path not in journals or not journals[path].whole:
            journals[path] = Journal.beside(path)
        journal = journals[path]
        missing = [record.as_dict() for record in history[journal.records :]]
        journal.append(missing, len(history))
        contents = run.checkpoint(
            history=journal.facts(),
            fingerprint=self._fingerprints[copy],
            stopped=stopped,
        )
        if self._runtime.lacks is not None:
            contents.facts[checkpoint.LACKS] = self._runtime.lacks
        checkpoint.write(path, contents)
        rank_parts.clean(path, run.parts)

    def _write_part(self, copy: int, path: Path, state: State, stopped: str | None) -> None:
        """Write the rows of this process; once all have, rank 0 writes the checkpoint."""
        runtime = self._runtime
        columns = saving.columns_alone(list(runtime.freeze(copy)), state.round)
        part = rank_parts.write(path, columns, rank=runtime.ranks.rank, world=runtime.ranks.world)
        parts = runtime.ranks.gather_json("write the parts of a checkpoint", part)
        if runtime.leads:
            rank_parts.check_visible(path, parts)
            self._write(copy, path, Saved(state, [], parts=parts), stopped)

    def _write_rows(
        self, copy: int, path: Path, state: State, stopped: str | None, store: Store
    ) -> None:
        """Write a checkpoint whose rows stay where they are."""
        self.writer.wait()
        folders = self._rows_folders
        if path not in folders:
            folders[path] = RowsFolder(path)
        folder = folders[path]
        nodes = {tier: self._runtime.nodes(tier, copy) for tier in self._runtime.tree.tiers}
        rows = folder.save(store, nodes, state.seeds[0].totals)
        # From here on the checkpoint counts: an error below may come after it was replaced.
        folder.saves.insert(0, store.saves)
        store.saved({save for other in folders.values() for save in other.saves})
        self._write(copy, path, Saved(state, [], rows), stopped)
        del folder.saves[2:]
        folder.clean(rows)

    def append_to(self, copy: int, path: Path, history: Sequence[Round]) -> None:
        """Write to a checkpoint that this run wrote before: its file of records only grows."""
        facts = checkpoint.read_facts(path)
        journal, written = Journal.read(path, facts["history"])
        same = 0
        for record, before in zip(history, written, strict=False):
            if json.loads(json.dumps(record.as_dict())) != before:
                break
            same += 1
        journal.records = same
        self._journals[copy][path] = journal

    # Reading

    def read(
        self,
        copy: int,
        path: Path,
        w: Tensor,
        notes: list[str],
    ) -> State:
        """Where a run stands that goes on from a checkpoint; nodes keep what they kept there.

        `w` is a global row of the run, [1, P]. `notes` get what the user should know.
        """
        saved = checkpoint.read(path)
        try:
            wanted = self._fingerprints[copy]
            data = self._experiments[copy].data.name
            checkpoint.same_experiment(path, saved.facts["experiment"], wanted, data=data)
            state = self._load(copy, saved, path.absolute(), w)
            if saved.facts["versions"] != checkpoint.versions():
                versions = f"{saved.facts['versions']}, this is {checkpoint.versions()}"
                notes.append(f"{path} was written by {versions}; the last bits may differ.")
        except CheckpointError:
            raise
        except Exception as error:  # whatever a file that is not what it seems to be leads to
            reason = f"{type(error).__name__}: {error}{checkpoint.older(path)}"
            raise CheckpointError(f"{path} is damaged: {reason}.") from error
        return state

    def _load(self, copy: int, saved: Checkpoint, path: Path, w: Tensor) -> State:
        if checkpoint.LACKS in saved.facts:
            fix = "they are on the disks of their nodes: go on with the deployed tree"
            raise CheckpointError(f"{path} lacks {saved.facts[checkpoint.LACKS]}; {fix}.")
        journal, records = Journal.read(path, saved.facts["history"])
        run = saving.read(saved, records, like=w, sizes=self._runtime.sizes)
        state = run.state
        columns = list(run.columns)
        for part in rank_parts.read(path, saved.facts):
            columns += saving.read_columns(part, state.round, w)
        for column in columns:
            self._runtime.thaw(column, copy)
        if checkpoint.ROWS in saved.facts:
            state = self._load_rows(copy, path, saved.facts[checkpoint.ROWS], state)
        state, changed = self._going_on(copy, state)
        journal.records -= changed
        self._journals[copy][path] = journal
        return state

    def _load_rows(
        self,
        copy: int,
        path: Path,
        facts: Mapping[str, Any],
        state: State,
    ) -> State:
        """Take over rows that lie in files of their own, and the sums of nodes beside them."""
        runtime = self._runtime
        store = runtime.disk
        if self._reading:
            assert isinstance(runtime, BaseRuntime)
            store = runtime.store
        live = None
        if store is not None:
            live = store.folder
        columns, totals = kept_rows.read(path, facts, runtime.sizes, live)
        for column in columns:
            if store is None:
                runtime.thaw(column.frozen(), copy)
            else:
                column.attach(store, runtime.nodes(column.tier, copy))
        return replace(state, seeds=(replace(state.seeds[0], totals=totals),))

    def captured(self, copy: int, state: State) -> Checkpoint:
        """Where a run stands, without its records and without what its nodes keep."""
        return Saved(state, []).checkpoint(history={}, fingerprint=self._fingerprints[copy])

    def stand(
        self, copy: int, captured: Checkpoint, records: Sequence[dict[str, Any]], w: Tensor
    ) -> tuple[State, int]:
        """(state, number of records that change) of a run that stands where one was captured."""
        wanted = self._fingerprints[copy]
        checkpoint.same_experiment("the run", captured.facts["experiment"], wanted)
        run = saving.read(captured, records, like=w, sizes=self._runtime.sizes)
        return self._going_on(copy, run.state)

    def _going_on(self, copy: int, state: State) -> tuple[State, int]:
        """(state, number of records that change) of a run that has rounds left, or that has none.

        What nodes hold because their last round was the last is released.
        """
        experiment = self._experiments[copy]
        if state.round >= experiment.rounds:
            return state, 0
        for label in state.seeds[0].chosen:
            if label.startswith(FINAL):
                self._runtime.release(label, copy)
        return saving.going_on(state, experiment)
