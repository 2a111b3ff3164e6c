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
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, Field

from covey.cli import assemble, deploy_config, modules, named, scenario, tree_config
from covey.cli.named import SECTIONS, defaults, explain
from covey.cli.takeover import taken_over
from covey.cli.tree_config import TreeConfig
from covey.cli.validate import STRICT, apply, check, check_plain, parsed
from covey.data import Shards
from covey.engine.augment import augmentations
from covey.engine.losses import check_loss_name
from covey.engine.metrics import check_metric_names
from covey.engine.optimiser import optimiser
from covey.errors import ConfigError
from covey.kernel.algorithm import Algorithm
from covey.kernel.rates import rates
from covey.kernel.segments import RowForm
from covey.runs.experiment import Experiment
from covey.runs.stopping import early_stop

__all__ = ["DEMO", "SECTIONS", "Config", "TreeConfig", "defaults", "explain", "load"]

DEMO = resources.files("covey.cli").joinpath("demo.toml")


class Config(BaseModel):
    """The plain part of a file.

    The tables [algorithm], [data] and [model] follow what they name.
    """

    model_config = STRICT
    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    rounds: int = Field(60, ge=1)
    seed: int = 0
    seeds: int = Field(1, ge=1)
    loss: str | dict[str, Any] = "auto"
    l2: float = Field(0.0, ge=0, allow_inf_nan=False)
    private: str | list[str] = "auto"
    idle: Literal["skip", "train"] = "skip"
    codec: str | dict[str, Any] = "dense"
    batches: Literal["uniform", "cyclic"] = "uniform"
    protocol: Literal["honest", "paper"] = "honest"
    start: Literal["seed", "module"] = "seed"
    augment: str | list[str | dict[str, Any]] = []
    norm: Literal["device", "frozen", "group"] = "device"
    solver: str | dict[str, Any] = "sgd"
    schedules: dict[str, str] = {}
    score_every: int = Field(1, ge=1)
    score_train_every: int | None = Field(None, ge=1)
    score_sample: int | None = Field(None, ge=1)
    least: int = Field(1, ge=1)
    metrics: list[str] = []
    select: str = ""
    stop: dict[str, Any] | None = None
    parts: list[Literal["train", "validation", "test"]] = ["validation", "test"]
    dtype: Literal["float32", "float64"] = "float32"
    compute: Literal["fp32", "bf16"] = "fp32"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)
    memory: int = Field(2**31, ge=1)
    store: str | None = None
    store_rows: RowForm = "dense"
    capture: bool = True
    holdout_devices: int | list[int] = 0
    checkpoint_every: int = Field(10, ge=1)
    compare: list[str | dict[str, Any]] = []
    algorithm: dict[str, Any] = {}
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    tree: TreeConfig = TreeConfig()
    radio: dict[str, Any] | None = None
    deploy: dict[str, Any] | None = None

    def experiment(self, seed: int) -> Experiment:
        """The experiment of one seed: its own initial weights, partition and draws."""
        return assemble.experiment(self, seed, assemble.World.of(self, seed))

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
            change = {
                "name": f"{self.title}-{name}",
                "algorithm": table,
                "schedules": self._schedules_of(table),
                "compare": [],
            }
            out[name] = self.model_copy(update=change)
        return out

    def _schedules_of(self, table: dict[str, Any]) -> dict[str, str]:
        """The schedules of rates that another algorithm has too."""
        known = named.resolved("algorithm", table)
        return {name: value for name, value in self.schedules.items() if name in known}

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
        for field, schedule in self.schedules.items():
            if schedule != "constant":
                return f"schedules.{field} = {schedule!r}"
        return None

    def resolved(self) -> dict[str, Any]:
        """Every value that decides a run, defaults filled in, as TOML can hold it."""
        out = self.model_dump()
        for section in named.KINDS:
            out[section] = named.resolved(section, getattr(self, section))
        out["compare"] = [
            named.without_null(named.resolved("algorithm", table)) for table in self.compared()
        ]
        out["tree"] = {key: value for key, value in out["tree"].items() if value is not None}
        stop = early_stop(self.stop)
        if stop is None:
            del out["stop"]
        else:
            out["stop"] = stop.as_dict()
        if self.radio is None:
            del out["radio"]
        else:
            out["radio"] = scenario.radio_file(self.radio).model_dump(exclude_none=True)
        if self.deploy is None:
            del out["deploy"]
        else:
            out["deploy"] = deploy_config.read(self.deploy).model_dump()
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
    for section in named.KINDS:
        named.checked(section, getattr(config, section))
    rates(config.schedules, config.learner(), config.rounds)
    _check_compare(config)
    augmentations(assemble.augment(config.augment))
    check_loss_name(assemble.loss(config.loss))
    check_metric_names(assemble.metrics(config.metrics), config.select)
    optimiser(assemble.solver(config.solver))
    _check_stop(config)
    if config.radio is not None:
        scenario.radio_file(config.radio)
    if config.deploy is not None:
        deploy_config.read(config.deploy)
    return config


def plain(path: Path) -> Config:
    """The experiment in a run folder's file, as it stands there: no module that it names is run."""
    config = _fields(_read(path, "give a run folder"))
    for table in (config.algorithm, config.data, config.model, *config.compared()):
        if not isinstance(table.get("name"), str):
            raise ConfigError(f"{path} is not that of a run: a table has no name.")
    return config


def _fields(table: dict[str, Any]) -> Config:
    """The fields of a file by their types alone."""
    check_plain(table)
    table = dict(table)
    tree = table.get("tree")
    if isinstance(tree, dict):
        table["tree"] = tree_config.read(tree)
    return check(Config, table, "")


def change(table: dict[str, Any], text: str) -> None:
    """Make one change such as "algorithm.lam1=15" in a table such as a file holds."""
    _apply(table, [text], [])
    _resolve_paths(table, Path.cwd())


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

    def fields_of(section: str, old: dict[str, Any], name: Any) -> dict[str, Any]:
        return taken_over(section, old, name, changes, notes)

    for change in sorted(changes, key=lambda change: ".name=" not in change.replace(" ", "")):
        apply(table, change, fields_of)


def _check_compare(config: Config) -> None:
    """An error unless every table of `compare` is an algorithm's, each by another name."""
    names = []
    for table in config.compared():
        named.checked("algorithm", table, prefix="compare")
        names.append(table["name"])
    for name in names:
        times = names.count(name)
        if times > 1:
            raise ConfigError(
                f"compare names {name!r} {times} times; keep one, or start a run for each."
            )


def _check_stop(config: Config) -> None:
    """An error for a rule of `stop` that means nothing, or whose metric does not exist."""
    stop = early_stop(config.stop)
    if stop is None:
        return
    try:
        check_metric_names(assemble.metrics(config.metrics), stop.metric)
    except ConfigError as error:
        raise ConfigError(f"stop: metric = {stop.metric!r}; {error}") from error


def _resolve_paths(table: dict[str, Any], folder: Path) -> None:
    """Make paths that are relative to the folder of the file whole.

    They then mean the same wherever the resolved file lies.
    """
    _resolve_path(table, "store", folder)
    data = table.get("data")
    if isinstance(data, dict):
        for key in ("path", "data_dir"):
            _resolve_path(data, key, folder, "data.")
    model = table.get("model")
    if isinstance(model, dict) and str(model.get("weights")).endswith(".safetensors"):
        _resolve_path(model, "weights", folder, "model.")
    radio = table.get("radio")
    if isinstance(radio, dict) and isinstance(radio.get("devices"), dict):
        _resolve_path(radio["devices"], "table", folder, "radio.devices.")


def _resolve_path(table: dict[str, Any], key: str, folder: Path, prefix: str = "") -> None:
    """Make the path under a key whole; `prefix` is the table's place in the file."""
    path = table.get(key)
    if isinstance(path, str) and path != "none":
        table[key] = str((folder / expanded(path, f"{prefix}{key}")).resolve())


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
