"""An experiment as a TOML file.

It is strict: every mistake is named with its place, its value, the rule and a fix. TOML has no
null: a value that may be None is written "none" (batch = "none" takes all of a device's data at
every step). A model, an algorithm or data may be the user's own, named package.module:Class; its
parameters are then the keys of the table. Inputs, outputs, classes and shape of a model come from
the data where the file does not give them. Paths are relative to the file that names them, in a
change on the command line to the current folder. `compare` lists other algorithms to run beside
this one.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from covey import fields, rooms
from covey.data import Shards
from covey.engine.augment import augmentations
from covey.engine.measures.losses import check_loss_name
from covey.engine.measures.metrics import check_metric_names
from covey.engine.solvers.optimiser import optimiser
from covey.errors import ConfigError
from covey.fields import Count, Match, Option, plain
from covey.files import assemble, modules, named, tree_config
from covey.files.named import defaults, explain
from covey.files.registry import KINDS, SECTIONS
from covey.files.tree_config import TreeConfig
from covey.files.validate import apply, check_plain, parsed
from covey.kernel.algorithm import Algorithm
from covey.kernel.rates import rates
from covey.runs.experiment import Experiment
from covey.runs.settings import ExperimentSettings
from covey.runs.stopping import early_stop

__all__ = ["DEMO", "SECTIONS", "Config", "TreeConfig", "defaults", "explain", "load"]

_TABLES = ("stop",)
"""Tables that a resolved file leaves out where there is none."""
_PATHS = ("store", "data.path", "data.data_dir", "model.weights")
"""Keys of a file whose values are paths; a user's own model may mean else by its weights."""
_NOT_A_KEY = {"in_files": False}
DEMO = resources.files("covey.files").joinpath("demo.toml")


@dataclass(frozen=True, eq=False, kw_only=True)
class Config(ExperimentSettings):
    """The options of a file, wholly read but for the tables that follow what they name."""

    name: Annotated[str, Match(r"[A-Za-z0-9_.-]*", "text of A-Za-z0-9_.-")] = ""  # of the run
    rounds: Count = 60  # of training
    seeds: Count = 1  # how many runs, with the seeds from `seed` on
    store: str | None = None  # the folder of what nodes keep; "none": main memory
    checkpoint_every: Count = 10  # rounds between two checkpoints
    compare: list[str | dict[str, Any]] = field(default_factory=list)  # algorithms to run beside
    algorithm: dict[str, Any] = field(default_factory=dict)  # its name and fields
    data: dict[str, Any] = field(default_factory=dict)  # its name and arguments
    model: dict[str, Any] = field(default_factory=dict)  # its name, arguments and options
    tree: TreeConfig = field(default_factory=TreeConfig)  # who stands under whom
    sections: dict[str, dict[str, Any]] = field(default_factory=dict, metadata=_NOT_A_KEY)
    """The tables of rooms, as they stand in the file."""
    given: frozenset[str] = field(default=frozenset(), metadata=_NOT_A_KEY)

    def __getattr__(self, name: str) -> dict[str, Any] | None:
        """The table of a room by its name, such as `config.deploy`; None where there is none."""
        if name not in rooms.sections():
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return self.sections.get(name)

    def with_section(self, name: str, table: dict[str, Any]) -> Config:
        """The same with another table of a room."""
        return replace(self, sections={**self.sections, name: table})

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """The tables that describe the environment of the run."""
        known = rooms.sections()
        return {name: table for name, table in self.sections.items() if known[name].environment}

    @property
    def every_seed(self) -> range:
        """The seeds of its runs."""
        return range(self.seed, self.seed + self.seeds)

    def experiment(self, seed: int) -> Experiment:
        """The experiment of one seed: its own initial weights, partition and draws."""
        return assemble.Experiments().of(self, seed)

    def like(self, shards: Shards, seed: int) -> Experiment:
        """The same learning on the data of one new device."""
        return assemble.newcomer(self, shards, seed)

    def learner(self) -> Algorithm:
        """The algorithm, without the data it runs on."""
        return typing.cast(Algorithm, named.make("algorithm", self.algorithm))

    def method(self) -> str:
        """What the algorithm calls itself, as in "FineTune"."""
        name = self.algorithm["name"]
        if modules.is_own("algorithm", name):
            return str(name.partition(":")[2])
        return named.maker("algorithm", name).__name__

    def yardsticks(self) -> dict[str, Config]:
        """The other algorithms to run beside this one, by name.

        Each is a file that differs in [algorithm] alone.
        """
        out = {}
        for table in self.compared():
            name = as_file(str(table["name"]))
            known = named.resolved("algorithm", table)
            schedules = {rate: value for rate, value in self.schedules.items() if rate in known}
            out[name] = replace(
                self,
                name=f"{self.title}-{name}",
                algorithm=table,
                schedules=schedules,
                compare=[],
            )
        return out

    def compared(self) -> list[dict[str, Any]]:
        """The tables of `compare`; a name alone is an algorithm at its defaults."""
        return [{"name": item} if isinstance(item, str) else item for item in self.compare]

    @property
    def title(self) -> str:
        """The experiment's name, or its algorithm's, as a file may be called."""
        return self.name or as_file(str(self.algorithm["name"]))

    def schedule(self) -> str | None:
        """The setting of a schedule, which goes over all rounds; None where rates are constant."""
        solver = self.solver
        if isinstance(solver, dict) and solver.get("schedule", "constant") != "constant":
            return f"solver.schedule = {solver['schedule']!r}"
        for name, schedule in self.schedules.items():
            if schedule != "constant":
                return f"schedules.{name} = {schedule!r}"
        return None

    def resolved(self) -> dict[str, Any]:
        """Every value that decides a run, defaults filled in, as TOML can hold it."""
        out = plain(self)
        for section in KINDS:
            out[section] = named.resolved(section, getattr(self, section))
        out["compare"] = [
            named.without_null(named.resolved("algorithm", table)) for table in self.compared()
        ]
        out["tree"] = {key: value for key, value in out["tree"].items() if value is not None}
        out = {key: value for key, value in out.items() if value is not None or key not in _TABLES}
        for name, own in self.sections.items():
            out[name] = _without_none(plain(settings_of(name, own)))
        return typing.cast(dict[str, Any], named.without_null(out))

    def text(self) -> str:
        """The resolved file."""
        return tomli_w.dumps(self.resolved())


def load(
    path: Path | None,
    changes: Sequence[str] = (),
    notes: list[str] | None = None,
    *,
    fix: str = "give the path of an experiment file",
) -> Config:
    """The experiment in a file (None: the demo), wholly checked.

    `changes` such as "algorithm.lam1=15" are applied first. `notes` is given what the user should
    know of it. `fix` says what to do where there is no such file.
    """
    table = _read(path, fix)
    if path is not None:
        modules.look_beside(path)
        _resolve_paths(table, path.parent)
    _apply(table, changes, [] if notes is None else notes)
    _resolve_paths(table, Path.cwd())  # what the changes name
    return read(table)


def read(table: dict[str, Any]) -> Config:
    """The experiment of a table such as a file holds, wholly checked; its paths are absolute."""
    config = _fields(table)
    for section in KINDS:
        named.checked(section, getattr(config, section))
    rates(config.schedules, config.learner(), config.rounds)
    for other in config.compared():
        named.checked("algorithm", other, prefix="compare")
    for name, times in Counter(other["name"] for other in config.compared()).items():
        if times > 1:
            raise ConfigError(
                f"compare names {name!r} {times} times; keep one, or start a run for each."
            )
    own = assemble.own_functions(config)
    augmentations(own["augment"])
    check_loss_name(own["loss"])
    check_metric_names(own["metrics"], config.select)
    optimiser(own["solver"])
    stop = early_stop(config.stop)
    if stop is not None:
        try:
            check_metric_names(own["metrics"], stop.metric)
        except ConfigError as error:
            raise ConfigError(f"stop: metric = {stop.metric!r}; {error}") from error
    for name, own in config.sections.items():
        settings_of(name, own)
    return config


def settings_of(name: str, table: dict[str, Any]) -> Any:
    """The options in a table of a room, checked by their class."""
    return rooms.load(rooms.sections()[name].settings).read(table)


def unchecked(path: Path) -> Config:
    """The experiment in a run folder's file, as it stands there: no module that it names is run."""
    config = _fields(_read(path, "give a run folder"))
    for table in (config.algorithm, config.data, config.model, *config.compared()):
        if not isinstance(table.get("name"), str):
            raise ConfigError(f"{path} is not that of a run: a table has no name.")
    return config


def _fields(table: dict[str, Any]) -> Config:
    """The fields of a file by their types alone."""
    check_plain(table)
    tree = table.get("tree")
    if isinstance(tree, dict):
        table = {**table, "tree": tree_config.read(tree)}
    sections = dict.fromkeys(rooms.sections(), Option(dict[str, Any] | None, None))
    values = fields.values(fields.options(Config) | sections, table, "")
    given = {name: values.pop(name) for name in sections}
    own = {name: section for name, section in given.items() if section is not None}
    return Config(**values, sections=own, given=frozenset(table))


def change(table: dict[str, Any], text: str) -> None:
    """Make one change such as "algorithm.lam1=15" in a table such as a file holds."""
    _apply(table, [text], [])
    _resolve_paths(table, Path.cwd())


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """A table of a room without what is not there."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def _read(path: Path | None, fix: str) -> dict[str, Any]:
    if path is None:
        return tomllib.loads(DEMO.read_text(encoding="utf-8"))
    try:
        return parsed(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; {fix}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _apply(table: dict[str, Any], changes: Sequence[str], notes: list[str]) -> None:
    """Apply the changes, names before fields: another algorithm takes over what fields it can."""
    fields_of = partial(named.taken_over, changes=changes, notes=notes)
    for change in sorted(changes, key=lambda change: ".name=" not in change.replace(" ", "")):
        apply(table, change, fields_of)


def _resolve_paths(table: dict[str, Any], folder: Path) -> None:
    """Make paths that are relative to the folder of the file whole.

    They then mean the same wherever the resolved file lies.
    """
    rooms_paths = [f"{each.name}.{key}" for each in rooms.sections().values() for key in each.paths]
    for key in (*_PATHS, *rooms_paths):
        *parents, last = key.split(".")
        inside: Any = table
        for parent in parents:
            inside = inside.get(parent) if isinstance(inside, dict) else None
        path = inside.get(last) if isinstance(inside, dict) else None
        own = key == "model.weights" and not str(path).endswith(".safetensors")
        if isinstance(path, str) and path != "none" and not own:
            inside[last] = str((folder / expanded(path, key)).resolve())


def expanded(text: str, key: str) -> Path:
    """A path with the home folder for its ~; an error where there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        reason = "this machine has no such user; give the whole path"
        raise ConfigError(f'{key} = "{text}": {reason}.') from error


def as_file(name: str) -> str:
    """A name of which a file may be called: acme.nets:Method is acme.nets-Method."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)
