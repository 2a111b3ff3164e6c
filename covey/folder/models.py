"""Where the models of a loaded folder lie: in the folder of a run, or on the disk of one node."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from covey.data.shards import some
from covey.errors import ConfigError
from covey.fields import nearest
from covey.files import config as files
from covey.files.config import Config
from covey.folder import own_code
from covey.runs.experiment import Experiment
from covey.runs.run import Round, Run, Which, history
from covey.runs.saved import checkpoint, snapshot, status
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.snapshot import PRIVATE, Snapshot
from covey.runs.scores.devices import DeviceScore, from_csv
from covey.runs.scores.record import scored_rounds
from covey.runs.selection import select
from covey.runtimes.simulator import Simulator


class Models(Protocol):
    """The models that a folder has, with what is needed to use them.

    A seed of a run has them all, and the disk of a deployed node its own.
    """

    file: ExperimentFile
    place: RunFolder
    """The folder of the seed or of the node."""
    seed: int

    @property
    def chosen(self) -> dict[str, int]:
        """The scored models, "global" first, and the round that is reported for each, from 1."""

    @property
    def experiment(self) -> Experiment:
        """What was run, data included."""

    @property
    def run(self) -> Run:
        """The run itself: its tree, its parameters."""

    @property
    def simulator(self) -> Simulator:
        """Tree, data and store of the run, for algorithms that predict in their own way."""

    @property
    def only_device(self) -> str | None:
        """The one device whose models these are; None: they are of all devices."""

    @property
    def history(self) -> list[Round]:
        """Every round's record up to the last checkpoint."""

    @property
    def finished(self) -> bool:
        """Whether no round is left: all were run, or the run stopped early."""

    def devices(self) -> list[DeviceScore]:
        """Every device's score with every model, in its chosen round and the last scored one."""

    def snapshot(self, name: str, which: Which) -> Snapshot:
        """A model's rows as they were in the reported round, or in the last."""

    def shared(self, read: Snapshot) -> bool:
        """Whether the rows of a model are the same for all devices, so that none need be named."""

    def number(self, device: str | int | None, names: list[str]) -> int:
        """The number of a device, by its name or its number; None is the only one."""

    def row(self, read: Snapshot, device: int) -> Tensor:
        """The row that a device uses of a model, [P]."""


class ExperimentFile:
    """The experiment file of a folder, and what it names, if that may run here."""

    def __init__(self, folder: RunFolder, *, trust: bool) -> None:
        self.folder = folder
        self.trust = trust
        self.config = files.unchecked(folder.config)
        """The resolved file; no code that it names is run."""

    @cached_property
    def refusal(self) -> str | None:
        """Why code that the file names is not run here; None: it may."""
        return None if self.trust else own_code.refusal(self.folder.path)

    @cached_property
    def runnable(self) -> Config:
        """The file with what it names, or an error where that may not run."""
        if self.refusal is not None:
            raise ConfigError(self.refusal)
        return files.load(self.folder.config, [])


class RunModels:
    """The models in the folder of a run; those of an unfinished one are in its checkpoint.

    The records of a run that has ended suffice for its figures, whatever code wrote its checkpoint.
    """

    only_device: str | None = None

    def __init__(self, folder: RunFolder, seed: int | None, *, trust: bool) -> None:
        self.file = ExperimentFile(folder, trust=trust)
        config = self.file.config
        places = folder.of_seeds(config.every_seed)
        self.seed = config.seed if seed is None else seed
        if self.seed not in places:
            last = config.every_seed[-1]
            raise ConfigError(f"seed = {seed}: this run has the seeds {config.seed} to {last}.")
        self.place = places[self.seed]

    def __str__(self) -> str:
        rounds = f"after {len(self.history)} of {self.file.config.rounds} rounds"
        state = "finished" if self.finished else rounds
        return f"{self.file.config.title} in {self.place.path}, {state}"

    @cached_property
    def experiment(self) -> Experiment:
        return self.file.runnable.experiment(self.seed)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return self.place.saved_facts()

    @cached_property
    def _ended(self) -> bool:
        """Whether the last command had no round left."""
        return status.written(self.file.folder.path).state == "finished"

    @cached_property
    def history(self) -> list[Round]:
        config = self.file.config
        records = self.place.growing_records().read() if self._ended else []
        lacking = len(records) < config.rounds and (config.stop is None or not records)
        if lacking and self._facts:  # of a run under way, or of a file that was cut
            records = history(self.place.checkpoint)
        return records

    @cached_property
    def finished(self) -> bool:
        config = self.file.config
        if len(self.history) >= config.rounds:
            return True
        return config.stop is not None and (self._ended or "stopped" in self._facts)

    @cached_property
    def chosen(self) -> dict[str, int]:
        """Models of held-out devices are left out."""
        scored = scored_rounds(self.history)
        names = (
            [name for name in scored[-1].models if not name.startswith("new_")] if scored else []
        )
        protocol = self.file.config.protocol
        return {name: select(self.history, name, protocol).chosen.round + 1 for name in names}

    def devices(self) -> list[DeviceScore]:
        if not self.finished:
            return self.run.devices()
        if not self.place.devices.exists():
            again = f"covey run {self.file.folder.config}"
            raise ConfigError(f"{self.place.devices} does not exist; repeat the run: {again}")
        return from_csv(self.place.devices.read_text(encoding="utf-8"))

    @cached_property
    def run(self) -> Run:
        """At its last checkpoint if it is unfinished, else at its beginning."""
        goes_on = self._facts and not self.finished
        return Run(self.experiment, resume=self.place.checkpoint if goes_on else None)

    @cached_property
    def simulator(self) -> Simulator:
        """The data must be the data that the run was trained on."""
        wanted = self.experiment.fingerprint()
        checkpoint.same_experiment(self.place.checkpoint, self._facts["experiment"], wanted)
        runtime = Run(self.experiment).runtime
        assert isinstance(runtime, Simulator)
        return runtime

    def snapshot(self, name: str, which: Which) -> Snapshot:
        """Of a finished run, that in its file or, if it has none, in the checkpoint's rows."""
        # Files of an unfinished run, if there are any, are those of an earlier, shorter one.
        if not self.finished:
            return self.run.snapshot(name, which)
        path = self.place.model(name, which)
        if not path.exists() and checkpoint.ROWS in self._facts:
            return self._at_its_end.snapshot(name, which, mapped=True)
        space = self.run.runtime.task.space
        if space.frozen:  # rows hold what trains: the rest must be that of the run
            saved = self._facts["experiment"]
            wanted = self.experiment.fingerprint()
            checkpoint.same_experiment(
                self.place.checkpoint,
                {name: saved[name] for name in ("frozen", "model") if name in saved},
                {name: wanted[name] for name in ("frozen", "model")},
            )
        return snapshot.read(path, space)

    @cached_property
    def _at_its_end(self) -> Run:
        """The finished run at its last round, with its rows where they lie."""
        return Run(self.experiment, resume=self.place.checkpoint, reading=True)

    def shared(self, read: Snapshot) -> bool:
        return read.tier == self.run.runtime.tree.tiers[0] and PRIVATE not in read.beside

    def number(self, device: str | int | None, names: list[str]) -> int:
        if isinstance(device, str):
            if device in names:
                return names.index(device)
            raise ConfigError(
                f"there is no device {device!r} in this run{nearest(device, names)};"
                f" it has {len(names)}: {some(names)}. For one that did not train, "
                "take the global model."
            )
        number = int(device or 0)
        if not 0 <= number < len(names):
            raise ConfigError(f"device = {device}: this run has the devices 0 to {len(names) - 1}.")
        return number

    def row(self, read: Snapshot, device: int) -> Tensor:
        node = self._node(read.tier, device)
        row = read.row(node, device)
        if row is None:
            raise ConfigError(f"device {device} has no {read.model!r} in {self.place.path}.")
        lacks = self._facts.get(checkpoint.LACKS)  # whose rows the folder of a deployed run has not
        if lacks is not None and node not in read.ids.tolist():
            fix = f"load the models of {read.tier} {node} on its own machine"
            raise ConfigError(f"{self.place.path} lacks {lacks}; {fix}.")
        return row

    def _node(self, tier: str, device: int) -> int:
        """The node of a tier that a device stands under, or is."""
        tiers = self.run.runtime.tree.tiers
        if tier == tiers[0]:
            return 0
        if tier == tiers[-1]:
            return device
        tree = self.simulator.tree
        node = torch.tensor([device])
        for above in reversed(tiers[tiers.index(tier) : -1]):
            ends = torch.cumsum(tree.counts(above, torch.arange(tree.size(above))), 0)
            node = torch.searchsorted(ends, node, right=True)
        return int(node)
