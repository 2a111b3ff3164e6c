"""From a file to experiments.

The data, the model and the tree of a seed are made once, for all algorithms that run on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from covey.cli import modules, named, pretrained, scenario
from covey.cli.validate import spell
from covey.data import Shards
from covey.errors import ConfigError
from covey.runs.experiment import Experiment, difference
from covey.runtimes.ranks import ALONE, Ranks
from covey.tree import Tree

if TYPE_CHECKING:
    from covey.cli.config import Config

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_TRAINING = (
    "loss",
    "l2",
    "batches",
    "start",
    "norm",
    "solver",
    "compute",
    "device",
    "workers",
    "memory",
    "store_rows",
)
_NUMBERS = ("squared_error", "mse", "huber")
_ROWS = 8
"""The max number of rows that a device holds: kept rows, a second copy of them for a round that
fails, and working rows.
"""


@dataclass(frozen=True, eq=False)
class World:
    """The data, the model and the tree of one seed: what the algorithms of one file share."""

    data: Shards
    model: nn.Module
    tree: Tree

    @staticmethod
    def of(config: Config, seed: int) -> World:
        """Load the data, partition it, and make the model and the tree for it."""
        shards = _shards(config, seed)
        _need_parts(config, shards)
        model = named.make_model(config.model, shards, seed)
        pretrained.check_start(model, config.model, config.start)
        shards, tree = config.tree.build(shards, model, seed)
        return World(shards, model, tree)


class Experiments:
    """The experiments of a file and of the algorithms compared with it.

    They differ in [algorithm] alone. The world of a seed is made when it is first asked for, and
    only then. `runtime` is the name of what runs them, and `ranks` are the processes that do.
    """

    def __init__(self, runtime: str = "simulator", ranks: Ranks = ALONE) -> None:
        self.runtime = runtime
        self.ranks = ranks
        self._worlds: dict[int, World] = {}

    def of(self, config: Config, seed: int) -> Experiment:
        """The experiment of one seed."""
        if seed not in self._worlds:
            self._worlds[seed] = World.of(config, seed)
        return experiment(config, seed, self._worlds[seed])


def side_by_side(
    seeds: list[int], experiments: Sequence[Experiment], runtime: str
) -> list[list[int]]:
    """The seeds in groups that run side by side.

    A group is as large as memory allows, or one seed if the seeds differ too much, or in another
    runtime than the simulator.
    """
    first = experiments[0]
    parameters = [p.numel() for p in first.model.parameters() if p.requires_grad]
    row = sum(parameters) * torch.finfo(first.dtype).bits // 8
    size = 1
    if runtime == "simulator" and len(experiments) > 1 and difference(experiments) is None:
        size = max(1, first.memory // (_ROWS * row * first.tree.devices))
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def experiment(config: Config, seed: int, world: World) -> Experiment:
    """The experiment of a file for one seed."""
    holdout = config.holdout_devices
    radio = None
    if config.radio is not None:
        radio = scenario.radio(config.radio, world.tree)
    return Experiment(
        algorithm=config.learner(),
        data=world.data,
        model=world.model,
        tree=world.tree,
        rounds=config.rounds,
        idle=config.idle,
        codec=config.codec,
        protocol=config.protocol,
        score_every=config.score_every,
        score_train_every=config.score_train_every,
        score_sample=config.score_sample,
        least=config.least,
        metrics=metrics(config.metrics),
        select=config.select,
        stop=config.stop,
        parts=tuple(config.parts),
        capture=config.capture,
        holdout_devices=holdout if isinstance(holdout, int) else tuple(holdout),
        radio=radio,
        schedules=config.schedules,
        **_training(config, seed),
    )


def newcomer(config: Config, shards: Shards, seed: int) -> Experiment:
    """The same learning on the data of new devices."""
    algorithm = config.learner()
    model = named.make_model(config.model, shards, seed)
    return Experiment(
        algorithm,
        shards,
        model,
        Tree.flat(shards.devices),
        rounds=1,
        metrics=metrics(config.metrics),
        select=config.select,
        **_training(config, seed),
    )


def _training(config: Config, seed: int) -> dict[str, Any]:
    """What decides how a device learns from its data."""
    private = config.private if isinstance(config.private, str) else tuple(config.private)
    out = {name: getattr(config, name) for name in _TRAINING}
    return out | {
        "seed": seed,
        "loss": loss(config.loss),
        "solver": solver(config.solver),
        "private": private,
        "dtype": _DTYPES[config.dtype],
        "augment": augment(config.augment),
    }


def loss_name(given: str | dict[str, Any]) -> Any:
    """The name in a file's loss."""
    if isinstance(given, str):
        return given
    return given.get("name")


def loss(given: str | dict[str, Any]) -> Any:
    """What a file asks for, with the function in the place of a name such as module:function."""
    name = loss_name(given)
    if not isinstance(name, str) or ":" not in name:
        return given
    if not isinstance(given, str) and len(given) > 1:
        raise ConfigError(f"loss {name} takes no settings; put them into the function.")
    return modules.find("loss", name, setting=f"loss = {name!r}")


def solver(given: str | dict[str, Any]) -> Any:
    """What a file asks for, with the class or function in the place of a name such as mine:Lion."""
    name = loss_name(given)
    if not isinstance(name, str) or ":" not in name:
        return given
    own = modules.find("solver", name, setting=f"solver = {name!r}")
    if isinstance(given, str):
        return own
    return {**given, "name": own}


def augment(items: str | Sequence[str | dict[str, Any]]) -> list[Any]:
    """What a file asks for, with functions in the place of names such as module:function."""
    if isinstance(items, str):
        items = [items]
    out: list[Any] = []
    for item in items:
        table: dict[str, Any] = {"name": item} if isinstance(item, str) else dict(item)
        name = table.get("name")
        if isinstance(name, str) and ":" in name:
            table["name"] = modules.find("augment", name, setting=f"augment = {name!r}")
        out.append(table)
    return out


def metrics(names: Sequence[str]) -> tuple[Any, ...]:
    """What a file asks for, with functions in the place of names such as module:function."""
    out: list[Any] = []
    for name in names:
        if ":" in name:
            out.append(modules.find("metric", name, setting=f"metrics = [{name!r}]"))
        else:
            out.append(name)
    return tuple(out)


def _shards(config: Config, seed: int) -> Shards:
    """The data; with a loss for numbers, labels that are whole numbers are numbers, not classes."""
    table = dict(config.data)
    numbers = loss_name(config.loss) in _NUMBERS
    one_yes_or_no = loss_name(config.loss) == "bce" and not isinstance(table.get("label"), list)
    parameters = inspect.signature(named.maker("data", str(table.get("name")))).parameters
    said = "regression" not in parameters or table.get("classes", "none") != "none"
    if (numbers or one_yes_or_no) and not said:
        table["regression"] = True
    shards: Shards = named.make("data", table, seed=seed)
    return shards.numbers() if numbers else shards


def _need_parts(config: Config, shards: Shards) -> None:
    """An error if a part is missing that the summary is made from.

    It takes the round from validation data and the figures from test data. Paper runs use test
    alone.
    """
    needed = ["test"]
    if config.protocol != "paper":
        needed.insert(0, "validation")
    for part in needed:
        if part not in config.parts:
            why = f"lacks {spell(part)}, which the summary is made from; add it"
            raise ConfigError(f"parts = {spell(config.parts)} {why}.")
        if shards.part(part).counts().max() < config.least:
            why = "which the summary is made from; change data.split"
            if config.least > 1:
                part = f"least = {config.least} {part}"
                why += ", or least"
            raise ConfigError(f"no device has {part} examples, {why}.")
