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
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey.data.arrays.windows import ids as token_numbers
from covey.data.shards import Names, some
from covey.data.tables.encoding import Encoding, named_columns
from covey.data.tables.files import token_ids
from covey.data.tables.scaling import Scaling
from covey.data.tables.table_readers import texts_of
from covey.data.units import in_units
from covey.engine.measures.named_losses import BinaryCrossEntropy
from covey.engine.modules.layout import ParameterLayout
from covey.engine.task import Batch
from covey.errors import ConfigError, DataError, meant
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.runs.experiment import Experiment
from covey.runs.run import Round, Run, Which, history, private_part
from covey.runs.saved import checkpoint, snapshot
from covey.runs.saved.snapshot import PRIVATE, Snapshot
from covey.runs.scores.devices import DeviceScore, from_csv
from covey.runs.selection import select
from covey.runtimes.simulator import Simulator
from covey.tree import Topology

if TYPE_CHECKING:
    from covey.files.config import Config
    from covey.files.data_form import DataForm
    from covey.folder.export import Exported
    from covey.report.summary import Summary

Array = npt.NDArray[Any]

_ROOMS = ("covey.deployed.files.node_folder",)
"""The modules of rooms that open folders of their own; each has `opened(folder, trust=...)`."""
_FOLDERS: dict[Which, str] = {"chosen": "models", "last": "models/last"}
_CHUNK = 4096  # examples that go through a module at once
MOST_PERSONAL = ("personal", "edge", "global")
"""Which model is used where none is named: the first of these that the run has."""


def load(path: str | os.PathLike[str], *, seed: int | None = None, trust: bool = False) -> Loaded:
    """The run in a folder; of several seeds the first, or the one that is asked for.

    The folder of a deployed node's state has the models of that node alone. Code that a folder of
    another user or machine names, such as its model, runs only with `trust`; figures need none.
    """
    folder = Path(path)
    for room in _ROOMS:
        opened: Loaded | None = import_module(room).opened(folder, trust=trust)
        if opened is not None:
            return opened
    if not (folder / "config.toml").exists():
        raise ConfigError(
            f"{folder} is not a run folder: it has no config.toml; "
            "give the folder that `covey run` named."
        )
    return Loaded(folder, seed, trust=trust)


class Loaded:
    """One seed of a run in its folder. Nothing is read before it is needed, and nothing is changed.

    Where a method takes a model and none is named, it is the most personal one that the run has:
    "personal", else "edge", else "global". A device is given by its name or its number.
    """

    def __init__(self, folder: Path, seed: int | None, *, trust: bool = False) -> None:
        self.folder = folder
        self._trust = trust
        if seed is not None and seed not in self.seeds:
            first = self.seeds[0]
            last = self.seeds[-1]
            raise ConfigError(f"seed = {seed}: this run has the seeds {first} to {last}.")
        self.seed = self.seeds[0] if seed is None else seed
        self.place = folder
        if len(self.seeds) > 1:
            self.place = folder / f"seed-{self.seed}"
        self._snapshots: dict[tuple[str, Which], Snapshot] = {}

    def __repr__(self) -> str:
        rounds = f"after {len(self.history)} of {self.config.rounds} rounds"
        state = "finished" if self.finished else rounds
        return f"<{self.config.title} in {self.place}, {state}: {', '.join(self.models())}>"

    @cached_property
    def config(self) -> Config:
        """The resolved experiment file; no code that it names is run."""
        from covey.files.config import unchecked

        return unchecked(self.folder / "config.toml")

    @cached_property
    def _refusal(self) -> str | None:
        """Why code that the file names is not run here; None: it may."""
        from covey.folder import own_code

        return None if self._trust else own_code.refusal(self.folder)

    @cached_property
    def _runnable(self) -> Config:
        """The experiment file with what it names, if that may run here."""
        from covey.files.config import load as load_config

        if self._refusal is not None:
            raise ConfigError(self._refusal)
        return load_config(self.folder / "config.toml", [])

    @property
    def seeds(self) -> range:
        """The seeds of the whole run, of which this is one."""
        return range(self.config.seed, self.config.seed + self.config.seeds)

    @cached_property
    def experiment(self) -> Experiment:
        """What was run, data included."""
        return self._runnable.experiment(self.seed)

    @cached_property
    def history(self) -> list[Round]:
        """Every round's record up to the last checkpoint."""
        saved = self.place / "checkpoint.safetensors"
        return history(saved) if saved.exists() else []

    @property
    def finished(self) -> bool:
        """Whether no round is left: all were run, or the run stopped early."""
        return len(self.history) >= self.config.rounds or self.stopped_early

    @cached_property
    def stopped_early(self) -> bool:
        """Whether the run ended before its last round, by the rule of its `stop`."""
        saved = self.place / "checkpoint.safetensors"
        if self.config.stop is None or not saved.exists():
            return False
        facts = checkpoint.read(saved, tensors=False).facts
        return "stopped" in facts and len(self.history) < self.config.rounds

    @property
    def chosen(self) -> dict[str, int]:
        """The round that is reported for each model, counted from 1."""
        protocol = self.config.protocol
        return {
            name: select(self.history, name, protocol).chosen.round + 1 for name in self.models()
        }

    def models(self) -> list[str]:
        """The names of all scored models, "global" first.

        Models of held-out devices are left out.
        """
        scored = [record for record in self.history if record.models]
        if not scored:
            return []
        return [name for name in scored[-1].models if not name.startswith("new_")]

    def table(self) -> str:
        """What the command printed at the end, of this seed; of an unfinished run, up to here."""
        from covey.folder.show import text

        return text(summary([self]))

    def _others(self) -> dict[str, Loaded]:
        """The algorithms that ran beside this one, by method.

        An unfinished algorithm has the rounds that it has run.
        """
        from covey.files.config import as_file

        out = {}
        for table in self.config.compared():
            folder = self.folder / "compare" / as_file(table["name"])
            if (folder / "config.toml").exists():
                other = Loaded(folder, self.seed, trust=self._trust)
                if other.history:
                    out[other.config.method()] = other
        return out

    @property
    def _learner(self) -> Algorithm | None:
        """The algorithm; None where it is code that may not run here."""
        own = ":" in self.config.algorithm["name"]
        return None if own and self._refusal else (self._runnable if own else self.config).learner()

    def plot(self, path: str | os.PathLike[str] | None = None) -> Path:
        """The picture of the run, drawn anew; beside the run unless a path is given."""
        from covey.files import registry
        from covey.report.pictures.plot import draw

        self._need_scores()
        target = self.place / "plot.png" if path is None else Path(path)
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
        self._need_scores()
        if not self.finished:
            return self._run.devices()
        path = self.place / "devices.csv"
        if not path.exists():
            raise ConfigError(
                f"{path} does not exist; repeat the run: covey run {self.folder}/config.toml"
            )
        return from_csv(path.read_text(encoding="utf-8"))

    @cached_property
    def device_names(self) -> list[str]:
        """The names of the devices that trained, in order.

        Where the data has no names they are the devices' numbers.
        """
        return list(self._form.names.devices) or self._run.device_names

    @property
    def names(self) -> Names:
        """What the data calls its devices, edges, classes and features."""
        return self._form.names

    @property
    def classes(self) -> int | None:
        """How many classes a prediction chooses from; None where it is a number."""
        return self._form.classes

    @property
    def yes_no(self) -> bool:
        """Whether a prediction is a probability for each of several yes-or-no labels."""
        return self._form.yes_no and isinstance(self.experiment.loss, BinaryCrossEntropy)

    @property
    def class_names(self) -> list[str]:
        """The classes in the order of `probabilities`; their numbers where they have no names."""
        return list(self.names.classes) or [str(number) for number in range(self.classes or 0)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self._form.shape)

    @property
    def scaling(self) -> Scaling | None:
        """How measured values become a model's inputs; None where they are the inputs."""
        return self._form.scaling

    @property
    def target(self) -> Scaling | None:
        """How training scaled the numbers to predict; None where it did not."""
        return self._form.target

    @property
    def encoding(self) -> Encoding | None:
        """How the columns of a table with words or gaps become inputs; None for numbers alone."""
        return self._form.encoding

    @property
    def tree(self) -> Topology:
        """The tree of the nodes that trained."""
        return self._run.runtime.tree

    def snapshot(self, model: str | None = None, which: Which = "chosen") -> Snapshot:
        """A model's rows as they were in the reported round, or in the last."""
        name = self.most_personal(model)
        if (name, which) not in self._snapshots:
            # Files of an unfinished run, if there are any, are those of an earlier, shorter one.
            if self.finished:
                read = self._written(name, which)
            else:
                read = self._run.snapshot(name, which)
            self._snapshots[name, which] = read
        return self._snapshots[name, which]

    def _written(self, name: str, which: Which) -> Snapshot:
        """A model of a finished run: in its file or, if it has none, in the checkpoint's rows."""
        path = self.place / _FOLDERS[which] / f"{name}.safetensors"
        saved = self.place / "checkpoint.safetensors"
        if path.exists() or checkpoint.ROWS not in checkpoint.read(saved, tensors=False).facts:
            return snapshot.read(path, self._space)
        return self._saved_run.snapshot(name, which, mapped=True)

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
        row = self._row(read, number)
        devices: Sequence[int] = [number]
        if pooled is not None:
            devices = pooled
        elif device is None:
            devices = range(len(self.device_names))
        network = self._space.fill(row, read.statistics_of(devices, self._space))
        return network if scaled else self.in_units(network)

    def in_units(self, network: nn.Module) -> nn.Module:
        """A network of the run that takes and answers values in the units of the data."""
        form = self._form
        return in_units(network, form.scaling, form.encoding, form.target, form.names.features)

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
            if outputs.shape[1:].numel() == int(
                np.prod(shape)
            ):  # a module answers [n, 1] where targets are [n]
                outputs = outputs.reshape(len(outputs), *shape)
            if self.yes_no:
                outputs = torch.sigmoid(outputs)
            return np.asarray(outputs.numpy())
        best = outputs.argmax(-1).numpy()
        names = self.names.classes
        return np.asarray(names)[best] if names else np.asarray(best)

    @cached_property
    def _form(self) -> DataForm:
        from covey.files.data_form import DataForm

        return DataForm.read(self.place / "data.json")

    @cached_property
    def _space(self) -> ParameterLayout:
        """The layout of the run's rows, and the module around them.

        Rows hold what trains, so the frozen parameters must be those of the run.
        """
        space = self._run.runtime.task.space
        saved = self.place / "checkpoint.safetensors"
        if space.frozen and saved.exists():
            facts = checkpoint.read(saved, tensors=False).facts["experiment"]
            names = ("frozen", "model")
            wanted = self.experiment.fingerprint()
            checkpoint.same_experiment(
                saved,
                {name: facts[name] for name in names if name in facts},
                {name: wanted[name] for name in names},
            )
        return space

    @cached_property
    def _run(self) -> Run:
        """The run itself; at its last checkpoint if it is unfinished, else at its beginning."""
        saved = self.place / "checkpoint.safetensors"
        goes_on = saved.exists() and not self.finished
        return Run(self.experiment, resume=saved if goes_on else None)

    @cached_property
    def _saved_run(self) -> Run:
        """The finished run at its last round, with its rows where they lie."""
        return Run(self.experiment, resume=self.place / "checkpoint.safetensors", reading=True)

    @cached_property
    def _simulator(self) -> Simulator:
        """Tree, data and store of the run.

        The data must be the data that the run was trained on.
        """
        saved = self.place / "checkpoint.safetensors"
        facts = checkpoint.read(saved, tensors=False).facts
        checkpoint.same_experiment(saved, facts["experiment"], self.experiment.fingerprint())
        runtime = Run(self.experiment).runtime
        assert isinstance(runtime, Simulator)
        return runtime

    def most_personal(self, model: str | None = None) -> str:
        """The model of that name, or the most personal one."""
        self._need_scores()
        names = self.models()
        if model is None:
            return next(name for name in (*MOST_PERSONAL, names[0]) if name in names)
        if model not in names:
            hint = meant(model, names)
            raise ConfigError(
                f"there is no model {model!r} in {self.place}{hint}; there are {', '.join(names)}."
            )
        return model

    def _number(self, device: str | int | None, read: Snapshot) -> int:
        """The number of a device, by its name or its number.

        `device` may be None where all devices predict alike.
        """
        names = self.device_names
        if device is None:
            if self.alike(read.model) or len(names) == 1:
                return 0
            raise ConfigError(
                f"every device has a {read.model!r} of its own or of its edge; "
                f"name a device, as in device={names[0]!r}."
            )
        if isinstance(device, str):
            if device in names:
                return names.index(device)
            from covey.fields import nearest

            raise ConfigError(
                f"there is no device {device!r} in this run{nearest(device, names)};"
                f" it has {len(names)}: {some(names)}. For one that did not train, "
                "take the global model."
            )
        if not 0 <= device < len(names):
            raise ConfigError(f"device = {device}: this run has the devices 0 to {len(names) - 1}.")
        return int(device)

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
        return self._outputs(self._inputs(examples), device, model, which, pooled)

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
        if self._form.tokens is not None:
            dtype = torch.int64
        x = torch.zeros(1, *self.shape, dtype=dtype)
        return self._predicted(x, self._number(device, read), read) is not None

    @property
    def only_device(self) -> str | None:
        """The one device whose models these are; None: they are of all devices."""
        return None

    def alike(self, model: str | None = None) -> bool:
        """Whether a model is the same for all devices, so that none need be named."""
        read = self.snapshot(model)
        top = self._run.runtime.tree.tiers[0]
        return read.tier == top and PRIVATE not in read.beside and not self._own_way

    def _node(self, tier: str, device: int) -> int:
        """The node of a tier that a device stands under, or is."""
        tiers = self._run.runtime.tree.tiers
        if tier == tiers[0]:
            return 0
        if tier == tiers[-1]:
            return device
        tree = self._simulator.tree
        node = torch.tensor([device])
        for above in reversed(tiers[tiers.index(tier) : -1]):
            ends = torch.cumsum(tree.counts(above, torch.arange(tree.size(above))), 0)
            node = torch.searchsorted(ends, node, right=True)
        return int(node)

    def _row(self, read: Snapshot, device: int) -> Tensor:
        """The row that a device uses of a model, [P]."""
        node = self._node(read.tier, device)
        row = read.row(node, device)
        if row is None:
            raise ConfigError(f"device {device} has no {read.model!r} in {self.place}.")
        if self._lacks is not None and node not in read.ids.tolist():
            fix = f"load the models of {read.tier} {node} on its own machine"
            raise ConfigError(f"{self.place} lacks {self._lacks}; {fix}.")
        return row

    @cached_property
    def _lacks(self) -> str | None:
        """Whose rows the folder of a deployed run does not have, in words."""
        saved = self.place / "checkpoint.safetensors"
        if not saved.exists():
            return None
        text: str | None = checkpoint.read(saved, tensors=False).facts.get(checkpoint.LACKS)
        return text

    @property
    def _own_way(self) -> bool:
        """Whether the algorithm predicts otherwise than by a forward pass."""
        return type(self.experiment.algorithm).predictor is not Algorithm.predictor

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
        row = self._row(read, self._number(device, read))
        return "global" if row is read.fallback else read.model

    def _answers(
        self, examples: Any, device: str | int | None, model: str | None, which: Which
    ) -> Tensor:
        """The outputs for examples, each row of a frame by the device that its column names."""
        x = self._inputs(examples)
        column = str(self.config.data.get("device", "device"))
        header = examples if isinstance(examples, Mapping) else getattr(examples, "columns", ())
        if device is not None or column not in header or column in self.names.features:
            return self._outputs(x, device, model, which)
        names = texts_of(np.broadcast_to(np.asarray(examples[column]), len(x)))
        rows: dict[str | None, list[int]] = {}
        for row, owner in enumerate(self.owners(names, model)):
            rows.setdefault(owner, []).append(row)
        outputs = [self._outputs(x[own], owner, model, which) for owner, own in rows.items()]
        places = torch.cat([torch.tensor(own) for own in rows.values()])
        return torch.cat(outputs)[places.argsort()]

    def _outputs(
        self,
        x: Tensor,
        device: str | int | None,
        model: str | None,
        which: Which,
        pooled: Sequence[int] | None = None,
    ) -> Tensor:
        read = self.snapshot(model, which)
        if self._own_way:
            outputs = self._predicted(x, self._number(device, read), read)
            if outputs is not None:
                return outputs if self.target is None else self.target.undone(outputs)
        module = self.module(read.model, device, which, pooled=pooled, scaled=True).eval()
        with torch.no_grad():
            pieces = [module(piece) for piece in torch.split(x, _CHUNK)]
        outputs = torch.cat(pieces)
        return outputs if self.target is None else self.target.undone(outputs)

    def _predicted(self, x: Tensor, device: int, read: Snapshot) -> Tensor | None:
        """The outputs of an algorithm that predicts in its own way.

        None where the algorithm leaves prediction to the module.
        """
        simulator = self._simulator
        tier = simulator.tree.tiers[-1]
        ids = torch.tensor([device])
        for name, part in read.beside.items():
            own = part.of(device)
            if len(own):
                simulator.store.put(tier, name, ids, own, read.round)
        row = self._row(read, device)
        me = Nodes(simulator, tier, ids, round=read.round, path=0)
        with torch.no_grad():
            predict = self.experiment.algorithm.predictor(me, read.model, row[None])
            if predict is None:
                return None
            y = torch.zeros(len(x), dtype=torch.int64)
            batch = Batch((x, y), torch.arange(len(x))[None], ids=ids)
            return predict(batch, torch.tensor([0]))[0]

    def _inputs(self, examples: Any) -> Tensor:
        """Examples as the model takes them: columns in order, one shape, scaled."""
        if isinstance(examples, str):
            examples = [examples]
        if self._form.tokens is not None and _are_texts(examples):
            examples = self._encoded(examples)
        if self.encoding is not None and _has_columns(examples):
            examples = self.encoding.inputs(named_columns(examples, self.encoding))
        values = _array(examples, self.names.features)
        shape = self.shape
        if values.shape == shape:
            values = values[None]
        fits = values.ndim > 0 and values.size == len(values) * int(np.prod(shape))
        if not fits:
            raise DataError(
                f"examples of shape {values.shape[1:]}, but this run was trained on {shape}."
            )
        if not len(values):
            raise DataError("there are no examples to predict; give at least one.")
        return self._scaled(values.reshape(len(values), *shape))

    def _encoded(self, texts: Sequence[str]) -> Array:
        """The token ids of texts, [n, T]; a short one is filled up with id 0 at its end."""
        tokens = self.names.tokens
        length = self.shape[0]
        if not tokens:
            raise DataError("the tokens of this run have no characters; give token ids.")
        out = np.zeros((len(texts), length), dtype=np.int64)
        for row, text in enumerate(texts):
            if len(text) > length:
                raise DataError(
                    f"text {row} has {len(text)} characters, but this run was trained on "
                    f"{length}; give the last {length} of them."
                )
            out[row, : len(text)] = token_numbers(text, tokens)
        return out

    def _scaled(self, values: Array) -> Tensor:
        """Measured values [n, ...] as inputs, by the scaling of the training data."""
        if self._form.tokens is not None:
            return _token_ids(values, self._form.tokens)
        measured = torch.from_numpy(np.ascontiguousarray(values))
        scaling = self._form.scaling
        x = (measured if scaling is None else scaling(measured)).to(self.experiment.dtype)
        bad = (~torch.isfinite(x).flatten(1)).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            features = self.names.features
            if features:
                name = f"column {features[column]!r}"
            else:
                name = f"value {column}"
            raise DataError(
                f"{name} of example {row} is {values.reshape(len(values), -1)[row, column]}, "
                "which is no finite"
                " number of this run's type; remove or fill it first."
            )
        return x

    def _need_scores(self) -> None:
        if not self.models():
            raise ConfigError(
                f"{self.place} has no scored round in a checkpoint yet; "
                f"resume with: covey run --resume {self.folder}"
            )


def _are_texts(examples: Any) -> bool:
    """Whether examples are a list of texts."""
    if not isinstance(examples, list | tuple) or not examples:
        return False
    return all(isinstance(example, str) for example in examples)


def _has_columns(examples: Any) -> bool:
    """Whether examples are a DataFrame or a dict of columns."""
    return isinstance(examples, Mapping) or hasattr(examples, "columns")


def _token_ids(values: Array, tokens: int) -> Tensor:
    """Numbers as token ids, each one that the run knows."""
    x = token_ids(torch.from_numpy(np.ascontiguousarray(values)))
    if int(x.min()) < 0 or int(x.max()) >= tokens:
        raise DataError(
            f"the token ids are {int(x.min())} to {int(x.max())}, but this run knows "
            f"0 to {tokens - 1}."
        )
    return x


def _array(examples: Any, features: Sequence[str]) -> Array:
    """The numbers of an array, a tensor, or the named columns of a DataFrame or a dict.

    >>> _array({"wear": [1, 2], "heat": [3, 4]}, ["heat", "wear"])
    array([[3., 1.],
           [4., 2.]])
    """
    header = getattr(examples, "columns", None)
    if isinstance(examples, Mapping):
        header = examples
    if header is None or not features:
        return _numbers(examples, "the examples")
    _check_columns([str(column) for column in header], features)
    columns = [_numbers(examples[name], f"column {name!r} of the examples") for name in features]
    return np.stack([np.atleast_1d(column) for column in columns], axis=-1)


def _check_columns(header: Iterable[str], features: Sequence[str]) -> None:
    names = list(header)
    missing = [name for name in features if name not in names]
    if missing:
        lacking = f"the examples lack the column{'s' if len(missing) > 1 else ''} {some(missing)}"
        raise DataError(f"{lacking}; this run was trained on {', '.join(features)}.")


def _numbers(values: Any, name: str) -> Array:
    """Numbers in the type they are scaled in.

    Pixels stay bytes and float32 stays float32, as in training.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
        if array.dtype in (np.uint8, np.float32):
            return array
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} are not numbers: {error}.") from error


def summary(seeds: Sequence[Loaded]) -> Summary:
    """What the seeds of a run have come to, beside the algorithms that ran with them."""
    from covey.report.reported import beside
    from covey.report.summary import summarise

    first = seeds[0]
    for seed in seeds:
        seed._need_scores()
    histories = [seed.history for seed in seeds]
    private = private_part(first.place / "checkpoint.safetensors")
    # Of an unfinished run they are in the checkpoint, which needs the model.
    devices = [seed.devices() if seed.finished or not seed._refusal else [] for seed in seeds]
    out = summarise(histories, first.config.protocol, devices, first._learner, private)
    others: dict[str, tuple[list[list[Round]], list[list[DeviceScore]]]] = {}
    for seed in seeds:
        for method, other in seed._others().items():
            rounds, scores = others.setdefault(method, ([], []))
            rounds.append(other.history)
            scores.append(other.devices() if other.finished else [])
    return beside(out, devices, others)
