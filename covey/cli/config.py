"""An experiment as a TOML file: strict, every mistake named with its place, its value, the rule and a fix.

TOML has no null: a value that may be None is written "none" (batch = "none" takes all of a device's data at every step).
A model, an algorithm or data may be the user's own, named package.module:Class; its parameters are then the keys of the table.
Inputs, outputs, classes and shape of a model come from the data where the file does not give them. Paths are relative to the file
that names them, in a change on the command line to the current folder. `compare` lists other algorithms to run beside this one.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from covey import draws
from covey.cli import glossary, modules, registry, scenario
from covey.cli.registry import FACTS
from covey.cli.strict import STRICT, apply, check, check_plain, nearest, parsed, spell
from covey.data import Shards, edges
from covey.engine.generator import Seeded
from covey.engine.similar import similar
from covey.errors import ConfigError
from covey.kernel.algorithm import Algorithm
from covey.runs.experiment import Experiment
from covey.tree import Tree

_SECTIONS = {"algorithm": "algorithms", "data": "data", "model": "models"}
DEMO = resources.files("covey.cli").joinpath("demo.toml")
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class TreeConfig(BaseModel):
    """`edges`: how many, or how many devices each has. `children`: child counts of every node, tier by tier, for deeper trees.

    `form` says who stands under which edge: consecutive devices, random ones, those whose first updates are similar, by the label
    sets of PerMFL's Table 2 (worst, average), or as the data says, which is the default where it does.
    """

    model_config = STRICT
    edges: int | list[int] | None = None
    form: Literal["consecutive", "random", "similar", "worst", "average", "data"] | None = None
    children: list[list[int]] | None = None
    tiers: list[str] | None = None

    def build(self, shards: Shards, model: torch.nn.Module, seed: int) -> tuple[Shards, Tree]:
        """The tree, and the data with its devices in the tree's order."""
        self._check(shards)
        if self.children is not None:
            return shards, Tree(tuple(map(tuple, self.children)), tuple(self.tiers or ()))
        form = self.form or ("data" if self.edges is None and shards.edges else "consecutive")
        if form == "data":
            return shards, Tree.grouped(shards.edges)
        if form in ("worst", "average"):
            return edges.by_label(shards, edges.WORST if form == "worst" else edges.AVERAGE)
        if self.edges is None:
            return shards, Tree.flat(shards.devices)
        if isinstance(self.edges, list):
            return shards, Tree.grouped(self.edges)
        if not 1 <= self.edges <= shards.devices:
            raise ConfigError(f"tree.edges = {self.edges} for {shards.devices} devices: give 1 to {shards.devices}.")
        if form == "similar":
            return similar(shards, model, self.edges, seed)
        return edges.random(shards, self.edges, seed) if form == "random" else edges.consecutive(shards, self.edges)

    def _check(self, shards: Shards) -> None:
        if self.edges is not None and self.children is not None:
            raise ConfigError("tree.edges and tree.children are both given; keep one of them.")
        if self.tiers is not None and self.children is None:
            raise ConfigError("tree.tiers names the tiers of tree.children; give those too, or leave out tree.tiers.")
        if self.form in ("random", "similar") and not isinstance(self.edges, int):
            raise ConfigError(
                f"tree.form = {spell(self.form)} needs their number, as in tree.edges = 4, not {spell(self.edges)}."
            )
        if self.form in ("worst", "average", "data") and self.edges is not None:
            raise ConfigError(f"tree.form = {spell(self.form)} decides the edges; leave out tree.edges = {spell(self.edges)}.")
        if self.form == "data" and not shards.edges:
            raise ConfigError(f'tree.form = "data", but {shards.name} does not say who stands under which edge; give tree.edges.')
        if self.form is not None and self.children is not None:
            raise ConfigError(f"tree.form = {spell(self.form)} is for tree.edges; leave it out, or tree.children.")


def _check_edges(tree: Mapping[str, Any]) -> None:
    """Refuse a word for `edges`: it is a number, and the word belongs to `form`."""
    edges = tree.get("edges")
    if not isinstance(edges, str) or edges == "none":
        return
    forms = typing.get_args(typing.get_args(TreeConfig.model_fields["form"].annotation)[0])
    rule = "edges is how many there are, or how many devices each has"
    if edges not in forms:
        raise ConfigError(
            f"tree.edges = {spell(edges)}: {rule}, as in tree.edges = 4 or [5, 5]; who stands under which "
            f"edge is tree.form{nearest(edges, forms)}, one of {', '.join(forms)}."
        )
    form = f"tree.form = {spell(edges)}"
    if edges in ("consecutive", "random", "similar"):
        form += " together with their number, as in tree.edges = 4"
    raise ConfigError(f"tree.edges = {spell(edges)}: {rule}; who stands under which edge is {form}.")


class Config(BaseModel):
    """The plain part of a file; the tables [algorithm], [data] and [model] follow what they name."""

    model_config = STRICT
    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    rounds: int = Field(60, ge=1)
    seed: int = 0
    seeds: int = Field(1, ge=1)
    loss: Literal["auto", "cross_entropy", "squared_error", "mse"] = "auto"
    l2: float = Field(0.0, ge=0, allow_inf_nan=False)
    private: str | list[str] = "auto"
    idle: Literal["skip", "train"] = "skip"
    codec: str | dict[str, Any] = "dense"
    batches: Literal["uniform", "cyclic"] = "uniform"
    protocol: Literal["honest", "paper"] = "honest"
    start: Literal["seed", "module"] = "seed"
    score_every: int = Field(1, ge=1)
    score_train_every: int | None = Field(None, ge=1)
    parts: list[Literal["train", "validation", "test"]] = ["validation", "test"]
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)
    memory: int = Field(2**31, ge=1)
    capture: bool = True
    holdout_devices: int | list[int] = 0
    checkpoint_every: int = Field(10, ge=1)
    compare: list[str | dict[str, Any]] = []
    algorithm: dict[str, Any] = {}
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    tree: TreeConfig = TreeConfig()
    radio: dict[str, Any] | None = None

    def experiment(self, seed: int) -> Experiment:
        """The experiment of one seed: its own initial weights, partition and draws."""
        shards = self._shards(seed)
        self._need_parts(shards)
        model = _model(self.model, shards, seed)
        shards, tree = self.tree.build(shards, model, seed)
        out = self.holdout_devices
        return Experiment(
            algorithm=_make("algorithm", self.algorithm),
            data=shards,
            model=model,
            tree=tree,
            rounds=self.rounds,
            idle=self.idle,
            codec=self.codec,
            protocol=self.protocol,
            score_every=self.score_every,
            score_train_every=self.score_train_every,
            parts=tuple(self.parts),
            capture=self.capture,
            holdout_devices=out if isinstance(out, int) else tuple(out),
            radio=None if self.radio is None else scenario.radio(self.radio, tree),
            **self._training(seed),
        )

    def _shards(self, seed: int) -> Shards:
        """The data; with a loss for numbers, labels that are whole numbers are numbers, not classes."""
        if self.loss not in ("squared_error", "mse"):
            shards: Shards = _make("data", self.data, seed=seed)
            return shards
        table = dict(self.data)
        takes = inspect.signature(_maker("data", str(table.get("name")))).parameters
        if "regression" in takes and table.get("classes", "none") == "none":
            table["regression"] = True
        made: Shards = _make("data", table, seed=seed)
        return made.numbers()

    def yardsticks(self) -> dict[str, Config]:
        """The other algorithms to run beside this one, by name: each a file that differs in [algorithm] alone."""
        out = {}
        for table in self._compared():
            name = _as_file(str(table["name"]))
            change = {"name": f"{self.title}-{name}", "algorithm": table, "compare": []}
            out[name] = self.model_copy(update=change)
        return out

    def method(self) -> str:
        """What the algorithm calls itself, as in "FineTune"."""
        return _maker("algorithm", self.algorithm["name"]).__name__

    def _compared(self) -> list[dict[str, Any]]:
        """The tables of `compare`; a name alone is an algorithm at its defaults."""
        return [{"name": item} if isinstance(item, str) else item for item in self.compare]

    def like(self, shards: Shards, seed: int) -> Experiment:
        """The same learning on the data of one new device."""
        algorithm, model = _make("algorithm", self.algorithm), _model(self.model, shards, seed)
        return Experiment(algorithm, shards, model, Tree.flat(1), rounds=1, **self._training(seed))

    def learner(self) -> Algorithm:
        """The algorithm, without the data it runs on."""
        return typing.cast(Algorithm, _make("algorithm", self.algorithm))

    def _training(self, seed: int) -> dict[str, Any]:
        """What decides how a device learns from its data."""
        plain = ("loss", "l2", "batches", "start", "device", "workers", "memory")
        settings = {name: getattr(self, name) for name in plain}
        private = self.private if isinstance(self.private, str) else tuple(self.private)
        return {"seed": seed, "private": private, "dtype": _DTYPES[self.dtype], **settings}

    def _need_parts(self, shards: Shards) -> None:
        """The summary takes the round from validation data and the figures from test data; paper runs use test alone."""
        for part in ("test",) if self.protocol == "paper" else ("validation", "test"):
            if part not in self.parts:
                raise ConfigError(f"parts = {spell(self.parts)} lacks {spell(part)}, which the summary is made from; add it.")
            if not shards.part(part).counts().sum():
                raise ConfigError(f"no device has {part} examples, which the summary is made from; change data.split.")

    @property
    def title(self) -> str:
        """The experiment's name, or its algorithm's, as a file may be called."""
        return self.name or _as_file(str(self.algorithm["name"]))

    def resolved(self) -> dict[str, Any]:
        """Every value that decides a run, defaults filled in, as TOML can hold it."""
        out = self.model_dump()
        for section in _SECTIONS:
            values = _values(section, getattr(self, section)).model_dump()
            known = {key: value for key, value in values.items() if value is not None or not _from_data(section, key)}
            out[section] = {"name": getattr(self, section)["name"], **known}
        out["compare"] = [_resolved(table) for table in self._compared()]
        out["tree"] = {key: value for key, value in out["tree"].items() if value is not None}
        if self.radio is None:
            del out["radio"]
        else:
            out["radio"] = scenario.radio_file(self.radio).model_dump(exclude_none=True)
        return typing.cast(dict[str, Any], _without_null(out))

    def text(self) -> str:
        """The resolved file."""
        return tomli_w.dumps(self.resolved())


def load(path: Path | None, changes: Sequence[str] = (), notes: list[str] | None = None) -> Config:
    """The experiment in a file (None: the demo), with changes such as "algorithm.lam1=15" applied, wholly checked.

    `notes` is given what the user should know of it.
    """
    table = _read(path)
    if path is not None:
        modules.look_beside(path)
        _place(table, path.parent)
    said = [] if notes is None else notes
    names_first = sorted(changes, key=lambda change: ".name=" not in change.replace(" ", ""))
    for change in names_first:
        apply(table, change, lambda section, old, name: _taken_over(section, old, name, changes, said))
    check_plain(table)
    _place(table, Path.cwd())  # what the changes name
    if isinstance(tree := table.get("tree"), dict):
        _check_edges(tree)
        table["tree"] = check(TreeConfig, tree, "tree.").model_dump(exclude_none=True)
    config = check(Config, table, "")
    for section in _SECTIONS:
        _values(section, getattr(config, section))
    _check_compare(config)
    if config.radio is not None:
        scenario.radio_file(config.radio)
    return config


def _taken_over(section: str, old: dict[str, Any], name: Any, changes: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """The fields of an algorithm that another one has too, with the same meaning; a note says which are dropped."""
    if section != "algorithm" or not isinstance(name, str):
        return {}
    fields = {key: value for key, value in old.items() if key != "name"}
    kept = {key: value for key, value in fields.items() if _same_field(str(old["name"]), name, key, value)}
    given = {change.partition("=")[0].strip() for change in changes}
    dropped = [key for key in fields if key not in kept and f"{section}.{key}" not in given]
    if dropped:
        listed = ", ".join(f"{key} = {spell(fields[key])}" for key in dropped)
        stays = f"; kept {', '.join(kept)}" if kept else ""
        notes.append(f"algorithm.name = {name}: dropped {listed}, which mean something to {old['name']} alone{stays}")
    return kept


def _same_field(old: str, new: str, key: str, value: Any) -> bool:
    """Whether two algorithms have this field, by the same meaning, and the new one's may have this value."""
    try:
        makers = [_maker("algorithm", name) for name in (old, new)]
        schemas = [_schema(make, "algorithm") for make in makers]
    except (ConfigError, AssertionError):  # a name that is wrong is refused later, by name
        return False
    if any(key not in schema.model_fields for schema in schemas):
        return False
    meanings = {glossary.meaning(name, key, make) for name, make in zip((old, new), makers, strict=True)}
    if len(meanings - {""}) > 1:
        return False
    annotation: Any = schemas[1].model_fields[key].annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(strict=True))
    try:
        adapter.validate_json(json.dumps(None if value == "none" else value))
    except ValueError:
        return False
    return True


def _check_compare(config: Config) -> None:
    """An error unless every table of `compare` is an algorithm's, each by another name."""
    names = []
    for table in config._compared():
        _values("algorithm", table, place="compare")
        names.append(table["name"])
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"compare names {name!r} {names.count(name)} times; keep one, or start a run for each.")


def _resolved(table: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's table with its defaults, as TOML can hold it."""
    values = _values("algorithm", table).model_dump()
    return typing.cast(dict[str, Any], _without_null({"name": table["name"], **values}))


def _as_file(name: str) -> str:
    """A name of which a file may be called: acme.nets:Method is acme.nets-Method."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)


SECTIONS = {kind: section for section, kind in _SECTIONS.items()}
"""The table of a file in which something of this kind stands."""


def defaults(kind: str, name: str) -> dict[str, Any]:
    """Everything a file may say of a named thing, with the defaults; what has none is "..."."""
    section = SECTIONS.get(kind, kind)
    if not modules.is_own(section, name) and registry.find(kind, name) is None:
        known = registry.names(kind)
        meant, listed = nearest(name, known), ", ".join(known)
        raise ConfigError(f"{name!r} is not among the {kind}{meant}; one of {listed}.")
    fields = _schema(_maker(section, name), section).model_fields if kind in SECTIONS else {}
    values = {key: "..." if field.is_required() else field.get_default() for key, field in fields.items()}
    return typing.cast(dict[str, Any], _without_null({"name": name, **values}))


def explain(kind: str, name: str) -> dict[str, str]:
    """What each field of a named thing may be and means, where that is known; one line each."""
    section = SECTIONS.get(kind, kind)
    if kind not in SECTIONS:
        return {}
    make = _maker(section, name)
    hints = _hints(make)
    out = {}
    for key in _schema(make, section).model_fields:
        kind_of = glossary.kind_of(hints.get(key))
        meaning = glossary.meaning(name, key, make) if kind == "algorithms" else ""
        out[key] = ": ".join(part for part in (kind_of, meaning) if part)
    return out


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return tomllib.loads(DEMO.read_text())
    try:
        return parsed(path.read_text(), path)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; `covey run` without a file runs the demo.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _place(table: dict[str, Any], folder: Path) -> None:
    """Paths in a file are relative to the file; as whole paths they mean the same wherever the resolved file lies."""
    data = table.get("data")
    for key in ("path", "data_dir"):
        if isinstance(data, dict) and isinstance(data.get(key), str) and data[key] != "none":
            data[key] = str((folder / Path(data[key]).expanduser()).resolve())
    devices = table["radio"].get("devices") if isinstance(table.get("radio"), dict) else None
    if isinstance(devices, dict) and isinstance(devices.get("table"), str) and devices["table"] != "none":
        devices["table"] = str((folder / Path(devices["table"]).expanduser()).resolve())


def _model(table: Mapping[str, Any], shards: Shards, seed: int) -> Any:
    """The model; parameters that no seed resets later, as a user's own may be, are drawn from the seed here."""
    with Seeded(draws.key(seed, "module"), f"model.name = {table.get('name')!r}"):
        return _make("model", table, **{name: fact(shards) for name, fact in FACTS.items()})


def _make(section: str, table: Mapping[str, Any], **given: Any) -> Any:
    values, name = _values(section, table), table["name"]
    make = _maker(section, name)
    known = inspect.signature(make).parameters
    arguments = {key: value for key, value in given.items() if key in known}
    for key, value in values:
        if value is not None or key not in given:
            arguments[key] = _alike(value, given.get(key, known[key].default))
    if name not in registry.REGISTRY[_SECTIONS[section]]:
        return modules.make(section, name, make, arguments)
    try:
        return make(**arguments)
    except (RuntimeError, MemoryError, OverflowError) as error:  # of sizes beyond all memory
        raise ConfigError(f"[{section}] {name} cannot be made of these values: {error}.") from error


def _alike(value: Any, other: Any) -> Any:
    """A list of TOML as the tuple that stands there by default."""
    return tuple(value) if isinstance(value, list) and isinstance(other, tuple) else value


def _values(section: str, table: Mapping[str, Any], place: str | None = None) -> BaseModel:
    """The fields of a named thing, checked; `name` says which, `place` where it stands unless in its own section."""
    place = place or section
    known = registry.names(_SECTIONS[section])
    name = table.get("name")
    if not isinstance(name, str) or not (name in known or modules.is_own(section, name)):
        own = f", or {modules.FORM} of your own" if section == "algorithm" else ""
        listed = f"one of {', '.join(known)}{own}"
        if name is None:
            raise ConfigError(f"[{place}] needs a name: {listed}.")
        meant = nearest(str(name), known)
        raise ConfigError(f"{place}.name = {name!r} is unknown{meant}; {listed}.")
    schema = _schema(_maker(section, name), section)
    return check(schema, {k: v for k, v in table.items() if k != "name"}, f"{place}.")


def _maker(section: str, name: str) -> Callable[..., Any]:
    if modules.is_own(section, name):
        return modules.find(section, name)
    entry = registry.find(_SECTIONS[section], name)
    assert entry is not None  # the name was checked
    return entry.make


@cache
def _schema(make: Callable[..., Any], section: str) -> type[BaseModel]:
    """What a file may give a class or function."""
    hints = _hints(make)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        default = None if _from_data(section, name) else ... if parameter.default is parameter.empty else parameter.default
        if parameter.kind in _BY_NAME and isinstance(default, _PLAIN) and not _taken(section, name):
            hint = hints.get(name, Any)
            fields[name] = (hint | None if default is None else hint, default)
    return create_model(make.__name__, __config__=STRICT, **fields)


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PLAIN = (types.EllipsisType, types.NoneType, bool, int, float, str, list, tuple)  # what TOML can hold, or nothing


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters; none where a user's own are names that only a type checker knows."""
    try:
        return typing.get_type_hints(make.__init__ if inspect.isclass(make) else make)
    except (NameError, AttributeError):
        return {}


def _from_data(section: str, name: str) -> bool:
    return section == "model" and name in FACTS


def _taken(section: str, name: str) -> bool:
    """Whether a key of this name would mean something else, or is none."""
    return name == "name" or name.startswith("_") or (section, name) == ("data", "seed")


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):  # a table in a list, such as a level of `nested`, leaves out what is None
        return [{k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else item for item in value]
    return "none" if value is None else value
