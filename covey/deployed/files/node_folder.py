"""The folder of one node's state, opened again: the models on a device's own disk.

    device = covey.load("/var/lib/covey/device17/device17")
    device.predict(readings)                   # with its own model of the chosen round

It holds the node's disk and, for those who use its models, some files of a run folder
(covey/runs/saved/run_folder.py): `config`, `data`, `own_data`, `node`, and in `models` those that
the node uses, each of the round chosen for it. The models are written when the run ends, and when
the server is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from covey.atomic import refused
from covey.data import Shards
from covey.deployed.files.device_data import own_examples
from covey.deployed.node.own_models import DISK
from covey.deployed.plan.process import Process
from covey.errors import CheckpointError, ConfigError
from covey.files.config import Config
from covey.files.data_form import DataForm
from covey.folder.models import ExperimentFile
from covey.folder.own_code import write_config
from covey.runs.experiment import Experiment
from covey.runs.run import Round, Run, Which
from covey.runs.saved import snapshot
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.snapshot import Snapshot
from covey.runs.scores.devices import DeviceScore
from covey.runtimes.simulator import Simulator


def make_folders(process: Process) -> None:
    """Make the folders of a process's nodes, which other users cannot read."""
    state = Path(process.state)
    for seat in process.seats:
        path = state / seat
        with refused(path):
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.mkdir(exist_ok=True, mode=0o700)


def write_forms(
    config: Config,
    process: Process,
    data: Shards,
    modules: Mapping[str, str],
) -> None:
    """Write what the models of a process's nodes are used with, before they are there.

    `modules` are the texts of modules of the user's own, by path.
    """
    state = Path(process.state)
    for seat in process.seats:
        folder = RunFolder(state / seat)
        folder.sweep()  # of a process that was killed
        write_form(folder.path, config, data, modules)
        if seat in process.data:
            file = str(Path(process.data[seat]).absolute())
            folder.write_json(folder.own_data, {"file": file})


def write_form(
    path: Path,
    config: Config,
    data: Shards,
    modules: Mapping[str, str] | None = None,
) -> None:
    """Write what the models of one node are used with."""
    with refused(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = RunFolder(path)
    write_config(folder, config, modules)
    folder.write_json(folder.data, DataForm.of(data).as_dict())


class NodeModels:
    """The models of one node on its own disk. Rounds and scores are in the server's folder.

    No device has to be named: predictions are those of this node's models.
    """

    finished = True  # models are read from their files

    def __init__(self, folder: RunFolder, *, trust: bool) -> None:
        self.file = ExperimentFile(folder, trust=trust)
        self.place = folder
        self.seed = self.file.config.seed
        facts = folder.read_json(folder.node) or {}
        try:
            self.tier = str(facts["tier"])
            self.number_in_tier = int(facts["number"])
            self.chosen = {name: int(round) + 1 for name, round in facts["models"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"cannot read {folder.node}: {error!r}.") from error

    def __str__(self) -> str:
        return f"{self.name} of {self.file.config.title} in {self.place.path}"

    @cached_property
    def name(self) -> str:
        """What the data calls this node, or its tier and number."""
        names = DataForm.read(self.place.data).names
        own = {"edge": names.edges, "device": names.devices}.get(self.tier, ())
        if self.number_in_tier < len(own):
            return own[self.number_in_tier]
        return f"{self.tier} {self.number_in_tier}"

    @cached_property
    def experiment(self) -> Experiment:
        """What was run, with the examples of this device where they stay with it."""
        described = self.file.runnable.experiment(self.seed)
        if self.file.runnable.learner().needs_examples is None:
            return described
        facts = self.place.read_json(self.place.own_data)
        if facts is None:
            return described
        if not isinstance(facts.get("file"), str):
            raise CheckpointError(f"cannot read {self.place.own_data}: it names no file.")
        file = Path(facts["file"])
        own = own_examples(self.file.config, file, described.data, self.number_in_tier)
        return replace(described, data=own)

    @cached_property
    def history(self) -> list[Round]:
        self._refuse("the rounds of the run")

    def devices(self) -> list[DeviceScore]:
        self._refuse("the scores of devices")

    def _refuse(self, what: str) -> NoReturn:
        rule = "a node has its own models alone"
        raise ConfigError(f"{self.place.path} has not {what}: {rule}; look in the server's folder.")

    @cached_property
    def run(self) -> Run:
        return Run(self.experiment)

    @cached_property
    def simulator(self) -> Simulator:
        assert isinstance(self.run.runtime, Simulator)
        return self.run.runtime

    @cached_property
    def only_device(self) -> str | None:
        """What the data calls this device, or its number; None for an edge and the server."""
        if self.tier != self.run.runtime.tree.tiers[-1]:
            return None
        names = DataForm.read(self.place.data).names.devices or self.run.device_names
        return names[self.number_in_tier]

    def shared(self, read: Snapshot) -> bool:
        """Whether no device need be named, as at an edge and the server."""
        return self.only_device is None

    def snapshot(self, name: str, which: Which) -> Snapshot:
        """A model with this node's entry alone, as it was in the chosen round."""
        if which != "chosen":
            raise ConfigError(
                f"a node's own disk has models of chosen rounds alone, not {which!r}."
            )
        return snapshot.read(self.place.model(name), self.run.runtime.task.space)

    def number(self, device: str | int | None, names: list[str]) -> int:
        """The number of this node; another node's name is refused."""
        number = self.number_in_tier
        seat = self.place.path.absolute().name
        own = {self.name, seat, f"{self.tier}{number}", number, self.only_device, None}
        if device not in own:
            raise ConfigError(
                f"{self.place.path} has the models of {self.name} alone, not {device!r}."
            )
        return number

    def row(self, read: Snapshot, device: int) -> Tensor:
        """The row of the one node that a file is of, or the global row in its place."""
        node = int(read.ids[0]) if len(read.ids) else device
        row = read.row(node, device)
        if row is None:
            raise ConfigError(
                f"{self.place.path} has no row of {read.model!r}; run the tree again."
            )
        return row


def opened(folder: Path, *, trust: bool = False) -> NodeModels | None:
    """A node's folder; None where it is none, an error where its models are not written yet."""
    if RunFolder(folder).node.exists():
        return NodeModels(RunFolder(folder), trust=trust)
    if (folder / DISK).exists():
        when = "they are written when the run ends, or its server is stopped"
        raise ConfigError(f"{folder} is a node's state without models yet; {when}.")
    for path in sorted(folder.glob(f"*/{DISK}")):
        fix = f"give the folder of a node in it: {path.parent}"
        raise ConfigError(f"{folder} has the state of a process; {fix}.")
    return None
