"""A run folder, finished or not, opened again: its figures, its models, and predictions for what any device measures next.

run = covey.load("runs/pumps-1")
run.table()                                    # what the command printed
run.module("personal", "pump-03")              # the nn.Module of one device
run.predict(readings, device="pump-03")        # an array or a DataFrame in the units of the training data
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from covey import snapshot
from covey.algorithm import Algorithm
from covey.data.shards import Names
from covey.devices import DeviceScore, from_csv
from covey.errors import ConfigError, DataError
from covey.experiment import Experiment
from covey.nodes import Nodes
from covey.run import Round, Run, Which, history
from covey.select import select
from covey.snapshot import Snapshot
from covey.space import Space
from covey.task import Batch

if TYPE_CHECKING:
    from covey.cli.config import Config
    from covey.cli.described import Described

_FOLDERS: dict[Which, str] = {"chosen": "models", "last": "models/last"}


def load(path: str | os.PathLike[str], *, seed: int | None = None) -> Loaded:
    """The run in a folder; of several seeds the first, or the one that is asked for."""
    folder = Path(path)
    if not (folder / "config.toml").exists():
        raise ConfigError(f"{folder} is not a run folder: it has no config.toml; give the folder that `covey run` named.")
    return Loaded(folder, seed)


class Loaded:
    """One seed of a run in its folder. Nothing is read before it is needed, and nothing is changed."""

    def __init__(self, folder: Path, seed: int | None) -> None:
        self.folder = folder
        first, count = self.config.seed, self.config.seeds
        self.seed = first if seed is None else seed
        if not first <= self.seed < first + count:
            raise ConfigError(f"seed = {seed}: this run has the seeds {first} to {first + count - 1}.")
        self.place = folder if count == 1 else folder / f"seed-{self.seed}"
        self._snapshots: dict[tuple[str, Which], Snapshot] = {}

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"after {len(self.history)} of {self.config.rounds} rounds"
        return f"<{self.config.title} in {self.place}, {state}: {', '.join(self.models())}>"

    @cached_property
    def config(self) -> Config:
        """The resolved experiment file."""
        from covey.cli.config import load as load_config

        return load_config(self.folder / "config.toml", [])

    @cached_property
    def experiment(self) -> Experiment:
        """What was run, data included."""
        return self.config.experiment(self.seed)

    @cached_property
    def history(self) -> list[Round]:
        """Every round's record, as far as a checkpoint holds them."""
        saved = self.place / "checkpoint.safetensors"
        return history(saved) if saved.exists() else []

    @property
    def finished(self) -> bool:
        """Whether all rounds were run."""
        return len(self.history) >= self.config.rounds

    @property
    def chosen(self) -> dict[str, int]:
        """The round that is reported for each model, counted from 1."""
        names = self.models()
        return {name: select(self.history, name, self.config.protocol).chosen.round + 1 for name in names}

    def models(self) -> list[str]:
        """The names of all models that were scored, "global" first."""
        scored = [record for record in self.history if record.models]
        return [name for name in scored[-1].models if not name.startswith("new_")] if scored else []

    def table(self) -> str:
        """What the command printed at the end."""
        from covey.cli.show import text
        from covey.report.compare import yardsticks
        from covey.report.summary import summarise

        self._need_history()
        devices = [self.devices()] if (self.place / "devices.csv").exists() else []
        summary = summarise([self.history], self.config.protocol, devices)
        others = yardsticks(self._others(), self.config.protocol)
        return text(replace(summary, yardsticks=others))

    def _others(self) -> dict[str, list[list[Round]]]:
        """The rounds of the algorithms that ran beside this one, by method, as far as they were run."""
        out = {}
        for name, config in self.config.yardsticks().items():
            place = self.folder / "compare" / name
            if (place / "config.toml").exists() and (rounds := Loaded(place, self.seed).history):
                out[config.method()] = [rounds]
        return out

    def plot(self, path: str | os.PathLike[str] | None = None) -> Path:
        """The picture of the run, drawn anew; beside the run unless a path is given."""
        from covey.report.plot import draw

        self._need_history()
        target = self.place / "plot.png" if path is None else Path(path)
        draw([self.history], target, title=self.config.title)
        return target

    def devices(self) -> list[DeviceScore]:
        """How every device does with every model, in the round chosen for the model and in the last one scored."""
        path = self.place / "devices.csv"
        if not path.exists():
            raise ConfigError(f"{path} is written when a run ends; finish it first: covey run --resume {self.folder}")
        return from_csv(path.read_text())

    @cached_property
    def device_names(self) -> list[str]:
        """What the data calls the devices that trained, in order; their numbers where it does not say."""
        count = self._run.trained.devices if not self._form.names.devices else 0
        return list(self._form.names.devices) or [str(k) for k in range(count)]

    def snapshot(self, model: str = "personal", which: Which = "chosen") -> Snapshot:
        """A model's rows as they were in the reported round, or in the last."""
        if (model, which) not in self._snapshots:
            path = self.place / _FOLDERS[which] / f"{model}.safetensors"
            if path.exists():
                read = snapshot.read(path, self._space)
            elif self.finished or model not in self.models():
                raise ConfigError(f"there is no model {model!r} in {self.place}; there are {', '.join(self.models())}.")
            else:
                read = self._run.snapshot(model, which)
            self._snapshots[model, which] = read
        return self._snapshots[model, which]

    def module(self, model: str = "personal", device: str | int = 0, which: Which = "chosen") -> nn.Module:
        """The module that a device uses: its own, its edge's or the global one, with its private layers if it has any."""
        number = self._number(device)
        read = self.snapshot(model, which)
        row = read.row(self._node(read.tier, number), number)
        if row is None:
            raise ConfigError(f"device {device!r} has no {model!r} in {self.place}.")
        return self._space.fill(row)

    def probabilities(
        self, examples: Any, *, device: str | int = 0, model: str = "personal", which: Which = "chosen"
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of every class for each example, [n, classes]."""
        if self._form.classes is None:
            raise ConfigError("this run predicts numbers, not classes; use predict.")
        outputs = self._outputs(examples, device, model, which)
        return np.asarray(torch.softmax(outputs.double(), dim=-1).numpy())

    def predict(
        self, examples: Any, *, device: str | int = 0, model: str = "personal", which: Which = "chosen"
    ) -> np.ndarray[Any, Any]:
        """What a device's model says of new examples: names of classes (numbers where they have none), or values.

        `examples` are in the units of the training data: an array [n, ...], or a DataFrame with the columns of the
        features, in any order.
        """
        outputs = self._outputs(examples, device, model, which)
        if self._form.classes is None:
            return np.asarray(outputs.numpy())
        best = outputs.argmax(-1).numpy()
        names = self._form.names.classes
        return np.asarray(names)[best] if names else np.asarray(best)

    @cached_property
    def _form(self) -> Described:
        from covey.cli.described import Described

        return Described.read(self.place / "data.json")

    @property
    def names(self) -> Names:
        """What the data calls its devices, edges, classes and features."""
        return self._form.names

    @cached_property
    def _space(self) -> Space:
        return Space(self.experiment.model, private=self.experiment.private)

    @cached_property
    def _run(self) -> Run:
        """The run itself, at its last checkpoint if it can go on."""
        saved = self.place / "checkpoint.safetensors"
        return Run(self.experiment, resume=saved if saved.exists() and not self.finished else None)

    def _number(self, device: str | int) -> int:
        """A device by its name, or its number."""
        if isinstance(device, str):
            if device in self.device_names:
                return self.device_names.index(device)
            near = ", ".join(self.device_names[:5])
            raise ConfigError(f"there is no device {device!r} in this run; the first are {near}.")
        if not 0 <= device < len(self.device_names):
            raise ConfigError(f"device = {device}: this run has the devices 0 to {len(self.device_names) - 1}.")
        return device

    def _node(self, tier: str, device: int) -> int:
        """The node of a tier that a device stands under, or is."""
        tree = self._run.simulator.tree
        node = torch.tensor([device])
        for above in reversed(tree.tiers[tree.tiers.index(tier) : -1]):
            ends = torch.cumsum(tree.counts(above, torch.arange(tree.size(above))), 0)
            node = torch.searchsorted(ends, node, right=True)
        return int(node)

    def _outputs(self, examples: Any, device: str | int, model: str, which: Which) -> Tensor:
        x = self._inputs(examples)
        number = self._number(device)
        own_way = type(self.experiment.algorithm).predictor is not Algorithm.predictor
        if own_way:
            outputs = self._predicted(x, number, self.snapshot(model, which))
            if outputs is not None:
                return outputs
        with torch.no_grad():
            out: Tensor = self.module(model, device, which).eval()(x)
        return out

    def _predicted(self, x: Tensor, device: int, read: Snapshot) -> Tensor | None:
        """The outputs of an algorithm that predicts in its own way; None where it leaves that to the module."""
        simulator = Run(self.experiment).simulator
        tier = simulator.tree.tiers[-1]
        ids = torch.tensor([device])
        for name, part in read.beside.items():
            if bool((part.ids == device).any()):
                simulator.store.put(tier, name, ids, part.rows[part.ids == device], read.round)
        row = read.row(self._node(read.tier, device), device)
        assert row is not None
        me = Nodes(simulator, tier, ids, round=read.round, path=0)
        with torch.no_grad():
            predict = self.experiment.algorithm.predictor(me, read.model, row[None])
            if predict is None:
                return None
            y = torch.zeros(len(x), dtype=torch.int64)
            batch = Batch((x, y), torch.arange(len(x))[None])
            return predict(batch, torch.tensor([0]))[0]

    def _inputs(self, examples: Any) -> Tensor:
        """Examples as the model takes them: columns in order, one shape, scaled."""
        values = _array(examples, self._form.names.features)
        shape = tuple(self._form.shape)
        if values.ndim == 1 and len(shape) == 1 and len(values) == shape[0]:
            values = values[None]
        if values.size != len(values) * int(np.prod(shape)):
            raise DataError(f"examples of shape {values.shape[1:]}, but this run was trained on {shape}.")
        given = torch.from_numpy(np.ascontiguousarray(values.reshape(len(values), *shape)))
        scaling = self._form.scaling
        x = (given if scaling is None else scaling(given)).to(self.experiment.dtype)
        if not bool(torch.isfinite(x).all()):
            raise DataError("some of the examples are not finite numbers; remove or fill them first.")
        return x

    def _need_history(self) -> None:
        if not self.history:
            raise ConfigError(f"{self.place} has no finished round yet; go on with: covey run --resume {self.folder}")


def _array(examples: Any, features: Sequence[str]) -> np.ndarray[Any, Any]:
    """Numbers of an array, a tensor, or the named columns of a DataFrame."""
    if hasattr(examples, "columns") and features:
        have = [str(column) for column in examples.columns]
        missing = [name for name in features if name not in have]
        if missing:
            raise DataError(f"the examples lack the columns {', '.join(missing)}; this run was trained on {', '.join(features)}.")
        examples = examples[list(features)]
    if isinstance(examples, Tensor):
        examples = examples.detach().cpu().numpy()
    try:
        array = np.asarray(examples)
        return array if array.dtype == np.uint8 else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"the examples are not numbers: {error}.") from error
