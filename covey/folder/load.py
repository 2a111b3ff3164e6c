"""A run folder opened again: its figures, its models, and predictions of new examples.

The run may be unfinished. `readings` is an array or a DataFrame in the units of the training data.

    run = covey.load("runs/own-data-permfl-1")
    run.table()                                # what the command printed
    run.module("personal", "pump-03")          # the nn.Module of one device
    run.predict(readings, device="pump-03")
    run.export("pump.onnx", "pump-03", to="onnx")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey.data.shards import Names
from covey.data.tables.table_readers import texts_of
from covey.engine.measures.named_losses import BinaryCrossEntropy
from covey.engine.task import Batch
from covey.errors import ConfigError, meant
from covey.folder.inputs import Array, inputs, with_units
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.runs.experiment import Experiment
from covey.runs.run import Round, Which
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.snapshot import Snapshot
from covey.runs.scores.devices import DeviceScore
from covey.tree import Topology

if TYPE_CHECKING:
    from covey.files.config import Config
    from covey.files.data_form import DataForm
    from covey.folder.export import Exported
    from covey.folder.models import Models
    from covey.report.summary import Summary

_ROOMS = ("covey.deployed.files.node_folder",)
"""The modules of rooms that open folders of their own; each has `opened(folder, trust=...)`."""
_CHUNK = 4096  # examples that go through a module at once
MOST_PERSONAL = ("personal", "edge", "global")
"""Which model is used where none is named: the first of these that the run has."""


def load(path: str | os.PathLike[str], *, seed: int | None = None, trust: bool = False) -> Loaded:
    """The run in a folder; of several seeds the first, or the one that is asked for.

    The folder of a deployed node's state has the models of that node alone. Code that a folder of
    another user or machine names, such as its model, runs only with `trust`; figures need none.
    """
    from covey.folder.models import RunModels

    folder = Path(path)
    for room in _ROOMS:
        models: Models | None = import_module(room).opened(folder, trust=trust)
        if models is not None:
            return Loaded(models)
    return Loaded(RunModels(RunFolder.found(folder), seed, trust=trust))


class Loaded:
    """One seed of a run in its folder. Nothing is read before it is needed, and nothing is changed.

    Where a method takes a model and none is named, it is the most personal one that the run has:
    "personal", else "edge", else "global". A device is given by its name or its number.
    """

    def __init__(self, source: Models) -> None:
        self.source = source
        """Where the models lie."""
        self.config: Config = source.file.config
        """The resolved experiment file; no code that it names is run."""
        self.seed = source.seed
        self.seeds = self.config.every_seed
        """The seeds of the whole run, of which this is one."""
        self.folder = source.file.folder.path
        self.place = source.place.path
        """The folder of the seed."""
        self._snapshots: dict[tuple[str, Which], Snapshot] = {}

    def __repr__(self) -> str:
        return f"<{self.source}: {', '.join(self.models())}>"

    @property
    def experiment(self) -> Experiment:
        """What was run, data included."""
        return self.source.experiment

    @property
    def history(self) -> list[Round]:
        """Every round's record up to the last checkpoint."""
        return self.source.history

    @property
    def finished(self) -> bool:
        """Whether no round is left: all were run, or the run stopped early."""
        return self.source.finished

    @property
    def stopped_early(self) -> bool:
        """Whether the run ended before its last round, by the rule of its `stop`."""
        return self.finished and len(self.history) < self.config.rounds

    @property
    def chosen(self) -> dict[str, int]:
        """The round that is reported for each model, counted from 1."""
        return self.source.chosen

    def models(self) -> list[str]:
        """The names of all scored models, "global" first.

        Models of held-out devices are left out.
        """
        return list(self.source.chosen)

    def table(self) -> str:
        """What the command printed at the end, of this seed; of an unfinished run, up to here."""
        from covey.folder.show import text

        return text(summary([self]))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Path:
        """The picture of the run, drawn anew; beside the run unless a path is given."""
        from covey.files import registry
        from covey.report.pictures.plot import draw

        self.most_personal()  # or an error: no round was scored
        target = self.source.place.plot if path is None else Path(path)
        draw(
            [self.history],
            target,
            title=registry.method(self.config.algorithm["name"]),
            devices=[self.devices()],
            protocol=self.config.protocol,
        )
        return target

    def devices(self) -> list[DeviceScore]:
        """Every device's score with every model.

        The scores are those of the model's chosen round and of the last scored round.
        """
        self.most_personal()  # or an error: no round was scored
        return self.source.devices()

    @cached_property
    def form(self) -> DataForm:
        """The form of the data: names, shape and type of examples, scaling."""
        from covey.files.data_form import DataForm

        return DataForm.read(self.source.place.data)

    @cached_property
    def device_names(self) -> list[str]:
        """The names of the devices that trained, in order.

        Where the data has no names they are the devices' numbers.
        """
        return list(self.form.names.devices) or self.source.run.device_names

    @property
    def names(self) -> Names:
        """What the data calls its devices, edges, classes and features."""
        return self.form.names

    @property
    def classes(self) -> int | None:
        """How many classes a prediction chooses from; None where it is a number."""
        return self.form.classes

    @property
    def class_names(self) -> list[str]:
        """The classes in the order of `probabilities`; their numbers where they have no names."""
        return list(self.names.classes) or [str(number) for number in range(self.classes or 0)]

    @property
    def yes_no(self) -> bool:
        """Whether a prediction is a probability for each of several yes-or-no labels."""
        return self.form.yes_no and isinstance(self.experiment.loss, BinaryCrossEntropy)

    @property
    def tree(self) -> Topology:
        """The tree of the nodes that trained."""
        return self.source.run.runtime.tree

    def most_personal(self, model: str | None = None) -> str:
        """The model of that name, or the most personal one."""
        names = self.models()
        if not names:
            raise ConfigError(
                f"{self.place} has no scored round in a checkpoint yet; "
                f"resume with: covey run --resume {self.folder}"
            )
        if model is None:
            return next(name for name in (*MOST_PERSONAL, names[0]) if name in names)
        if model not in names:
            hint = meant(model, names)
            raise ConfigError(
                f"there is no model {model!r} in {self.place}{hint}; there are {', '.join(names)}."
            )
        return model

    def snapshot(self, model: str | None = None, which: Which = "chosen") -> Snapshot:
        """A model's rows as they were in the reported round, or in the last."""
        name = self.most_personal(model)
        if (name, which) not in self._snapshots:
            self._snapshots[name, which] = self.source.snapshot(name, which)
        return self._snapshots[name, which]

    def module(
        self,
        model: str | None = None,
        device: str | int | None = None,
        which: Which = "chosen",
        *,
        pooled: Sequence[int] | None = None,
        scaled: bool = False,
    ) -> nn.Module:
        """The module that a device uses, with the device's private layers.

        It is the device's own model, its edge's or the global one. It takes examples in the units
        of the data, and so are the numbers that it predicts; with `scaled`, it is the bare network,
        whose inputs are scaled already. BatchNorm layers have the device's own statistics. Without
        a device they are those of all devices together, or of `pooled`, numbers of devices.
        """
        read = self.snapshot(model, which)
        number = self._number(device, read)
        row = self.source.row(read, number)
        devices: Sequence[int] = [number]
        if pooled is not None:
            devices = pooled
        elif device is None:
            devices = range(len(self.device_names))
        space = self.source.run.runtime.task.space
        network = space.fill(row, read.statistics_of(devices, space))
        return network if scaled else with_units(network, self.form)

    def probabilities(
        self,
        examples: Any,
        *,
        device: str | int | None = None,
        model: str | None = None,
        which: Which = "chosen",
    ) -> npt.NDArray[np.float64]:
        """The probability of every class for each example, [n, classes].

        Of a run with labels per position, [n, positions, classes].
        """
        if self.classes is None:
            raise ConfigError(
                "this run predicts numbers, which have no probabilities; use predict."
            )
        outputs = self._answers(examples, device, model, which)
        return np.asarray(torch.softmax(outputs.double(), dim=-1).numpy())

    def predict(
        self,
        examples: Any,
        *,
        device: str | int | None = None,
        model: str | None = None,
        which: Which = "chosen",
    ) -> Array:
        """The predictions of a device's model for new examples.

        They are names of classes (numbers where the classes have none), or values. Of several
        yes-or-no labels they are the probabilities of yes, [n, labels]. `examples` are in the units
        of the training data: an array [n, ...], one example, or a DataFrame (or a dict of columns)
        with the columns of the features, in any order. Of a run on characters they may be a text or
        a list of texts. Without `device`, a column of devices, called as in the training data, says
        whose model predicts each row.
        """
        outputs = self._answers(examples, device, model, which)
        if self.classes is None:
            shape = tuple(self.experiment.data.y.shape[1:])
            if outputs.shape[1:].numel() == int(np.prod(shape)):
                # A module answers [n, 1] where targets are [n].
                outputs = outputs.reshape(len(outputs), *shape)
            if self.yes_no:
                outputs = torch.sigmoid(outputs)
            return np.asarray(outputs.numpy())
        best = outputs.argmax(-1).numpy()
        names = self.names.classes
        return np.asarray(names)[best] if names else np.asarray(best)

    def outputs(
        self,
        examples: Any,
        *,
        device: str | int | None = None,
        model: str | None = None,
        which: Which = "chosen",
        pooled: Sequence[int] | None = None,
    ) -> Tensor:
        """What a device's model answers to examples in the units of the data: logits, or values.

        `pooled` are devices as `module` has them.
        """
        x = inputs(examples, self.form, self.experiment.dtype)
        return self._outputs(x, device, self.snapshot(model, which), which, pooled)

    def export(
        self,
        path: str | os.PathLike[str],
        node: str,
        *,
        to: str = "safetensors",
        model: str | None = None,
    ) -> Exported:
        """Write a node's model into a file for use without covey, as `covey export` does.

        `node` is a name, or a number as in "d17", "e3", "server".
        """
        from covey.folder import export, nodes

        chosen = nodes.find(self, node)
        return export.export(self, chosen, export.format_of(to), model, Path(path))

    def predicts_otherwise(self, device: str | int, model: str) -> bool:
        """Whether the algorithm predicts with a model otherwise than by a forward pass."""
        if not self._own_way:
            return False
        read = self.snapshot(model)
        dtype = self.experiment.dtype
        if self.form.tokens is not None:
            dtype = torch.int64
        x = torch.zeros(1, *self.form.shape, dtype=dtype)
        return self._predicted(x, self._number(device, read), read) is not None

    def alike(self, model: str | None = None) -> bool:
        """Whether a model is the same for all devices, so that none need be named."""
        return self.source.shared(self.snapshot(model)) and not self._own_way

    def owners(self, devices: Sequence[str], model: str | None = None) -> list[str | None]:
        """Whose model predicts the row of each of these devices; None where all have the same.

        Of a model that all devices share, whose statistics its BatchNorm layers have. None where it
        has no such layers, or the device did not train.
        """
        if not self.alike(model):
            return list(devices)
        known = set(self.device_names if self.snapshot(model).statistics is not None else [])
        return [name if name in known else None for name in devices]

    def answering(self, device: str | int | None, model: str | None = None) -> str:
        """The name of the model that predicts for a device: "global" where it has no other."""
        read = self.snapshot(model)
        row = self.source.row(read, self._number(device, read))
        return "global" if row is read.fallback else read.model

    @property
    def _own_way(self) -> bool:
        """Whether the algorithm predicts otherwise than by a forward pass."""
        return type(self.experiment.algorithm).predictor is not Algorithm.predictor

    def _number(self, device: str | int | None, read: Snapshot) -> int:
        """The number of a device; it need not be named where all predict alike."""
        names = self.device_names
        one = len(names) == 1 or self.source.only_device is not None
        if device is None and not one and not self.alike(read.model):
            raise ConfigError(
                f"every device has a {read.model!r} of its own or of its edge; "
                f"name a device, as in device={names[0]!r}."
            )
        return self.source.number(device, names)

    def _answers(
        self, examples: Any, device: str | int | None, model: str | None, which: Which
    ) -> Tensor:
        """The outputs for examples, each row of a frame by the device that its column names."""
        x = inputs(examples, self.form, self.experiment.dtype)
        read = self.snapshot(model, which)
        column = str(self.config.data.get("device", "device"))
        header = examples if isinstance(examples, Mapping) else getattr(examples, "columns", ())
        if device is not None or column not in header or column in self.names.features:
            return self._outputs(x, device, read, which)
        names = texts_of(np.broadcast_to(np.asarray(examples[column]), len(x)))
        rows: dict[str | None, list[int]] = {}
        for row, owner in enumerate(self.owners(names, model)):
            rows.setdefault(owner, []).append(row)
        outputs = [self._outputs(x[own], owner, read, which) for owner, own in rows.items()]
        places = torch.cat([torch.tensor(own) for own in rows.values()])
        return torch.cat(outputs)[places.argsort()]

    def _outputs(
        self,
        x: Tensor,
        device: str | int | None,
        read: Snapshot,
        which: Which,
        pooled: Sequence[int] | None = None,
    ) -> Tensor:
        """What a device's model answers to inputs, in the units of the data."""
        outputs = None
        if self._own_way:
            outputs = self._predicted(x, self._number(device, read), read)
        if outputs is None:
            module = self.module(read.model, device, which, pooled=pooled, scaled=True).eval()
            with torch.no_grad():
                outputs = torch.cat([module(piece) for piece in torch.split(x, _CHUNK)])
        return outputs if self.form.target is None else self.form.target.undone(outputs)

    def _predicted(self, x: Tensor, device: int, read: Snapshot) -> Tensor | None:
        """The outputs of an algorithm that predicts in its own way.

        None where the algorithm leaves prediction to the module.
        """
        simulator = self.source.simulator
        tier = simulator.tree.tiers[-1]
        ids = torch.tensor([device])
        for name, part in read.beside.items():
            own = part.of(device)
            if len(own):
                simulator.store.put(tier, name, ids, own, read.round)
        row = self.source.row(read, device)
        me = Nodes(simulator, tier, ids, round=read.round, path=0)
        with torch.no_grad():
            predict = self.experiment.algorithm.predictor(me, read.model, row[None])
            if predict is None:
                return None
            y = torch.zeros(len(x), dtype=torch.int64)
            batch = Batch((x, y), torch.arange(len(x))[None], ids=ids)
            return predict(batch, torch.tensor([0]))[0]


def summary(seeds: Sequence[Loaded]) -> Summary:
    """What the seeds of a run have come to, beside the algorithms that ran with them."""
    from covey.files.config import as_file
    from covey.folder.models import RunModels
    from covey.report.summary import summarise

    first = seeds[0]
    for seed in seeds:
        seed.most_personal()  # or an error: no round was scored
    histories = [seed.history for seed in seeds]
    place = first.source.place
    described = place.read_json(place.described)
    # Of an unfinished run they are in the checkpoint, which needs the model.
    devices = [
        seed.devices() if seed.finished or seed.source.file.refusal is None else []
        for seed in seeds
    ]
    others: dict[str, tuple[list[list[Round]], list[list[DeviceScore]]]] = {}
    for seed in seeds:
        file = seed.source.file
        for table in seed.config.compared():
            folder = file.folder.beside(as_file(table["name"]))
            if not folder.config.exists():
                continue
            other = Loaded(RunModels(folder, seed.seed, trust=file.trust))
            if other.history:  # an unfinished one has the rounds that it has run
                rounds, scores = others.setdefault(other.config.method(), ([], []))
                rounds.append(other.history)
                scores.append(other.devices() if other.finished else [])
    return summarise(histories, first.config.protocol, devices, described, others)
