"""From a file to experiments.

The data, the model and the tree of a seed are made once, for all algorithms that run on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from covey import rooms
from covey.data import Shards
from covey.errors import ConfigError, DivergedError
from covey.fields import options, spelled
from covey.files import modules, named, pretrained
from covey.runs.experiment import Experiment, difference
from covey.runs.settings import ExperimentSettings
from covey.runtimes.ranks.ranks import ALONE, Ranks
from covey.tree import Tree

if TYPE_CHECKING:
    from covey.files.config import Config

_OF_A_RUN = ("protocol", "schedules", "holdout_devices", "stop")
"""Options that the data of a new device, or its one round, cannot be asked for."""
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
    def of(config: Config, seed: int, shards: Shards | None = None) -> World:
        """Load the data unless it is given, partition it, and make the model and tree for it."""
        if shards is None:
            shards = _shards(config, seed)
        _need_parts(config, shards)
        model = named.make_model(config.model, shards, seed)
        pretrained.check_start(model, config.model, config.start)
        shards, tree = config.tree.build(shards, model, seed)
        return World(shards, model, tree)


@dataclass(eq=False)
class Experiments:
    """The experiments of a file and of the algorithms compared with it.

    They differ in [algorithm] alone. The world of a seed is made when it is first asked for, and
    only then. `runtime` is the name of what runs them, and `ranks` are the processes that do.
    """

    runtime: str = "simulator"
    ranks: Ranks = ALONE
    _worlds: dict[int, World] = field(default_factory=dict, init=False)

    def of(self, config: Config, seed: int) -> Experiment:
        """The experiment of one seed."""
        if seed not in self._worlds:
            self._worlds[seed] = World.of(config, seed)
        return experiment(config, seed, self._worlds[seed])


def experiment(config: Config, seed: int, world: World) -> Experiment:
    """The experiment of a file for one seed."""
    given = settings(config, seed)
    for name, table in config.environments.items():
        given[name] = rooms.load(rooms.sections()[name].settings).read(table).spec(world.tree)
    return Experiment(config.learner(), world.data, world.model, world.tree, config.rounds, **given)


def side_by_side(
    seeds: Sequence[int], experiments: Sequence[Experiment], runtime: str
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
    return [list(seeds[start : start + size]) for start in range(0, len(seeds), size)]


def play_groups(
    groups: Sequence[list[int]], play: Callable[[list[int]], None]
) -> dict[int, DivergedError]:
    """Play groups of seeds; the errors of those that diverge.

    Where one of several diverges, each runs again by itself: the others need not stop for it.
    """
    diverged = {}
    waiting = list(groups)
    while waiting:
        group = waiting.pop(0)
        try:
            play(group)
        except DivergedError as error:
            if len(group) == 1:
                diverged[group[0]] = error
            else:
                waiting = [[seed] for seed in group] + waiting
    return diverged


def newcomer(config: Config, shards: Shards, seed: int) -> Experiment:
    """The same learning on the data of new devices."""
    model = named.make_model(config.model, shards, seed)
    given = settings(config, seed)
    for name in _OF_A_RUN:
        del given[name]
    tree = Tree.flat(shards.devices)
    return Experiment(config.learner(), shards, model, tree, rounds=1, **given)


def settings(config: Config, seed: int) -> dict[str, Any]:
    """The options of an experiment, with what is of the user's own in the place of its name."""
    out = {name: getattr(config, name) for name in options(ExperimentSettings)}
    return out | {"seed": seed} | own_functions(config)


def loss_name(given: Any) -> Any:
    """The name in a file's loss, or in its solver."""
    return given if isinstance(given, str) else given.get("name")


def own_functions(config: Config) -> dict[str, Any]:
    """The options that may name functions, with these in the place of names such as mine:Lion."""
    loss = _function("loss", config.loss)
    if isinstance(loss, dict) and callable(loss.get("name")):
        if len(loss) > 1:
            name = loss_name(config.loss)
            raise ConfigError(f"loss {name} takes no settings; put them into the function.")
        loss = loss["name"]
    items: Any = [config.augment] if isinstance(config.augment, str) else config.augment
    tables = [{"name": item} if isinstance(item, str) else item for item in items]
    return {
        "loss": loss,
        "solver": _function("solver", config.solver),
        "augment": [_function("augment", table) for table in tables],
        "metrics": tuple(
            _function("metric", name, f"metrics = [{name!r}]") for name in config.metrics
        ),
    }


def _function(section: str, given: Any, setting: str = "") -> Any:
    """What a file names, or the table with its name, with a function of the user's own found."""
    name = loss_name(given)
    if not isinstance(name, str) or ":" not in name:
        return given
    found = modules.find(section, name, setting=setting or f"{section} = {name!r}")
    return found if isinstance(given, str) else {**given, "name": found}


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
            why = f"lacks {spelled(part)}, which the summary is made from; add it"
            raise ConfigError(f"parts = {spelled(config.parts)} {why}.")
        if shards.part(part).counts().max() < config.least:
            why = "which the summary is made from; change data.split"
            if config.least > 1:
                part = f"least = {config.least} {part}"
                why += ", or least"
            raise ConfigError(f"no device has {part} examples, {why}.")
