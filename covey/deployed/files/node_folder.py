"""The folder of one node's state, opened again: the models on a device's own disk.

    device = covey.load("/var/lib/covey/device17/device17")
    device.predict(readings)                   # with its own model of the chosen round

It holds the node's disk and, for those who use its models:

    config.toml                 the resolved experiment
    own_data.json               the device's own file, where it has one
    data.json                   the form of the data (classes, names, scaling)
    models/NAME.safetensors     the models that the node uses, each of the round chosen for it
    node.json                   which node this is, and these rounds

The models are written when the run ends, and when the server is stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from covey.data import Shards
from covey.deployed.files.device_data import own_examples
from covey.deployed.node.own_models import DISK
from covey.deployed.plan.process import Process
from covey.errors import CheckpointError, ConfigError
from covey.files.config import Config
from covey.files.data_form import DataForm
from covey.folder.load import Loaded
from covey.folder.own_code import write_config
from covey.runs.experiment import Experiment
from covey.runs.run import Round, Run, Which
from covey.runs.saved import snapshot
from covey.runs.saved.run_folder import RunFolder, refused
from covey.runs.saved.snapshot import Snapshot
from covey.runtimes.simulator import Simulator


def make_folders(process: Process) -> None:
    """Make the folders of a process's nodes, which other users cannot read."""
    state = Path(process.state)
    for seat in process.seats:
        path = state / seat
        with refused(path):
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.mkdir(exist_ok=True, mode=0o700)


def write_forms(config: Config, process: Process, data: Shards, modules: Mapping[str, str]) -> None:
    """Write what the models of a process's nodes are used with, before they are there.

    `modules` are the texts of modules of the user's own, by path.
    """
    state = Path(process.state)
    for seat in process.seats:
        write_form(state / seat, config, data, modules)
        if seat in process.data:
            file = str(Path(process.data[seat]).absolute())
            folder = RunFolder(state / seat)
            folder.write_json(folder.own_data, {"file": file})


def write_form(
    path: Path, config: Config, data: Shards, modules: Mapping[str, str] | None = None
) -> None:
    """Write what the models of one node are used with."""
    with refused(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = RunFolder(path)
    write_config(folder, config, modules)
    folder.write_json(folder.data, DataForm.of(data).as_dict())


class LoadedNode(Loaded):
    """The models of one node on its own disk. Rounds and scores are in the server's folder.

    No device has to be named: predictions are those of this node's models.
    """

    def __init__(self, folder: Path, *, trust: bool = False) -> None:
        super().__init__(folder, None, trust=trust)
        path = RunFolder(folder).node
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            self.tier = str(facts["tier"])
            self.number = int(facts["number"])
            self._rounds = {str(name): int(round) for name, round in facts["models"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"cannot read {path}: {error!r}.") from error

    @cached_property
    def experiment(self) -> Experiment:
        """What was run, with the examples of this device where they stay with it."""
        described = self._runnable.experiment(self.seed)
        path = self._files.own_data
        if not path.exists() or self._runnable.learner().needs_examples is None:
            return described
        try:
            file = Path(json.loads(path.read_text(encoding="utf-8"))["file"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"cannot read {path}: {error!r}.") from error
        own = own_examples(self.config, file, described.data, self.number)
        return replace(described, data=own)

    def __repr__(self) -> str:
        return f"<{self.name} of {self.config.title} in {self.place}: {', '.join(self.models())}>"

    @property
    def name(self) -> str:
        """What the data calls this node, or its tier and number."""
        names: dict[str, tuple[str, ...]] = {"edge": self.names.edges, "device": self.names.devices}
        own = names.get(self.tier, ())
        if self.number < len(own):
            return own[self.number]
        return f"{self.tier} {self.number}"

    @property
    def chosen(self) -> dict[str, int]:
        """The round of each model, counted from 1."""
        return {name: round + 1 for name, round in self._rounds.items()}

    def models(self) -> list[str]:
        """The names of the models that this node uses, "global" first."""
        return list(self._rounds)

    @property
    def finished(self) -> bool:
        """Models are read from their files."""
        return True

    @cached_property
    def stopped_early(self) -> bool:
        """Only the server's folder tells."""
        return False

    @cached_property
    def history(self) -> list[Round]:
        """A node has no records."""
        self._refuse("the rounds of the run")

    def devices(self) -> NoReturn:
        """A node has no scores."""
        self._refuse("the scores of devices")

    def _refuse(self, what: str) -> NoReturn:
        rule = "a node has its own models alone"
        raise ConfigError(f"{self.place} has not {what}: {rule}; look in the server's folder.")

    def snapshot(self, model: str | None = None, which: Which = "chosen") -> Snapshot:
        """A model with this node's entry alone, as it was in the chosen round."""
        if which != "chosen":
            raise ConfigError(
                f"a node's own disk has models of chosen rounds alone, not {which!r}."
            )
        name = self.most_personal(model)
        if (name, which) not in self._snapshots:
            self._snapshots[name, which] = snapshot.read(self._files.model(name), self._space)
        return self._snapshots[name, which]

    @property
    def only_device(self) -> str | None:
        """What the data calls this device, or its number; None for an edge and the server."""
        if self.tier != self.tree.tiers[-1]:
            return None
        return self.device_names[self.number]

    def alike(self, model: str | None = None) -> bool:
        """Whether no device need be named, as at an edge and the server."""
        return self.only_device is None

    def _need_scores(self) -> None:
        """Models are there without scores."""

    def _number(self, device: str | int | None, read: Snapshot) -> int:
        """The number of the device; another node's name is refused."""
        seat = self.place.absolute().name
        own = {self.name, seat, f"{self.tier}{self.number}", self.number, self.only_device, None}
        if device not in own:
            raise ConfigError(f"{self.place} has the models of {self.name} alone, not {device!r}.")
        return self.number

    def _row(self, read: Snapshot, device: int) -> Tensor:
        """The row of the one node that a file is of, or the global row in its place."""
        node = device
        if len(read.ids):
            node = int(read.ids[0])
        row = read.row(node, device)
        if row is None:
            raise ConfigError(f"{self.place} has no row of {read.model!r}; run the tree again.")
        return row

    @cached_property
    def _run(self) -> Run:
        return Run(self.experiment)

    @cached_property
    def _simulator(self) -> Simulator:
        runtime = self._run.runtime
        assert isinstance(runtime, Simulator)
        return runtime


def opened(folder: Path, *, trust: bool = False) -> LoadedNode | None:
    """A node's folder; None where it is none, an error where its models are not written yet."""
    if RunFolder(folder).node.exists():
        return LoadedNode(folder, trust=trust)
    reason = _refusal(folder)
    if reason is not None:
        raise ConfigError(reason)
    return None


def _refusal(folder: Path) -> str | None:
    """Why a folder of a deployed node cannot be loaded; None where it is none of a node."""
    if (folder / DISK).exists():
        when = "the run ends, or its server is stopped"
        return f"{folder} is a node's state without models yet; they are written when {when}."
    seats = sorted(str(path.parent) for path in folder.glob(f"*/{DISK}"))
    if seats:
        return f"{folder} has the state of a process; give the folder of a node in it: {seats[0]}."
    return None
