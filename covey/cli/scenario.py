"""A radio scenario as a TOML file: numbers with their units, distributions, tables; every mistake named with its place.

A column of `[devices]` is a number, a list with one for each device, a distribution such as { uniform = ["50 m", "300 m"] }, or a
column of the same name in the CSV file `table`. A distribution is drawn in the unit it is written in: dBm stays even in dBm.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from covey import draws
from covey.cli.config import _apply, _check
from covey.errors import ConfigError
from covey.wireless import Cells, Channel, Devices, LogDistance, Noise, Scenario, Spread, Urban, Work
from covey.wireless.units import quantity, to_si

_STRICT = ConfigDict(extra="forbid", strict=True)


class CellsFile(BaseModel):
    """One value for all cells, or a list with one for each."""

    model_config = _STRICT
    count: int | None = Field(default=None, ge=1)
    bandwidth: str | list[str] = "20 MHz"
    wire_rate: str | list[str] = "1 Gbit/s"
    wire_delay: str | list[str] = "1 ms"


class DevicesFile(BaseModel):
    """`count`: how many in all, dealt evenly to the cells, or how many each cell has."""

    model_config = _STRICT
    count: int | list[int] | None = None
    table: str | None = None
    distance: Any = {"disc": ["20 m", "250 m"]}
    cpu: Any = "3 GHz"
    cycles: Any = 20
    power: Any = "28 dBm"
    capacitance: Any = 1e-28
    weight: Any = 1


class ChannelFile(BaseModel):
    """The first three serve log_distance, the next four the urban cells."""

    model_config = _STRICT
    path_loss: Literal["log_distance", "urban_macro", "urban_micro"] = "log_distance"
    reference_loss: str = "30 dB"
    exponent: float = 3.5
    near: str = "1 m"
    carrier: str = "3.5 GHz"
    sight: Literal["chance", "yes", "no"] = "chance"
    edge_height: str | None = None
    device_height: str = "1.5 m"
    shadowing: str = "0 dB"
    fading: Literal["none", "rayleigh", "rician"] = "rayleigh"
    rice_factor: str = "6 dB"
    noise: str = "-110 dBm"

    def build(self) -> Channel:
        heard = quantity(self.noise, "channel.noise", "power", "power per hertz")
        loss = LogDistance(_one(self, "reference_loss", "decibels"), self.exponent, _one(self, "near", "length"))
        return Channel(
            Noise(heard.si, heard.kind == "power per hertz"),
            loss if self.path_loss == "log_distance" else self._urban(),
            _one(self, "shadowing", "decibels"),
            self.fading,
            _one(self, "rice_factor", "decibels"),
        )

    def _urban(self) -> Urban:
        return Urban(
            "macro" if self.path_loss == "urban_macro" else "micro",
            _one(self, "carrier", "frequency"),
            self.sight,
            None if self.edge_height is None else _one(self, "edge_height", "length"),
            _one(self, "device_height", "length"),
        )


class ModelFile(BaseModel):
    """Sizes are columns like those of devices."""

    model_config = _STRICT
    shared: Any = 120_000
    personal: Any = 30_000
    bits: int = Field(default=32, ge=1)
    steps: int = Field(default=5, ge=1)
    personal_steps: int = Field(default=3, ge=0)
    probe_steps: int = Field(default=1, ge=0)


class ScenarioFile(BaseModel):
    """The whole file."""

    model_config = _STRICT
    name: str = "plan"
    policy: Literal["optimal", "equal", "fair", "personal_only", "personal_fastest", "pruning_only", "fixed"] = "optimal"
    ratio: float = Field(default=0.5, ge=0, le=1)  # of the policy fixed
    deadline: str = "25 ms"
    rho_max: float = Field(default=0.95, gt=0, le=1)
    mask: bool = False
    rounds: int = Field(default=1, ge=1)
    seed: int = 0
    cells: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    channel: dict[str, Any] = {}
    model: dict[str, Any] = {}


@dataclass(frozen=True, eq=False)
class Described:
    """A file and the scenario in it."""

    file: ScenarioFile
    scenario: Scenario


def load(path: Path, changes: Sequence[str] = ()) -> Described:
    """The scenario in a file, with changes such as "deadline=15 ms" applied, wholly checked."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; examples/plan/scenario.toml is one to start from.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error
    for change in changes:
        _apply(table, change)
    file = _check(ScenarioFile, table, "")
    return Described(file, _scenario(file, path.parent))


def _scenario(file: ScenarioFile, folder: Path) -> Scenario:
    given, model = _check(DevicesFile, file.devices, "devices."), _check(ModelFile, file.model, "model.")
    cells = _cells(_check(CellsFile, file.cells, "cells."))
    rows = _table(folder / given.table) if given.table else {}
    n, cell = _places(given, rows, len(cells))
    kinds = {"distance": "length", "cpu": "frequency", "cycles": "", "power": "power", "capacitance": "", "weight": ""}
    values = {key: rows.get(key, getattr(given, key)) for key in kinds}
    columns = {key: _column(values[key], f"devices.{key}", kind, n, file.seed) for key, kind in kinds.items()}
    sizes = {key: _column(rows.get(key, getattr(model, key)), f"model.{key}", "", n, file.seed) for key in ("shared", "personal")}
    steps = {"steps": model.steps, "personal_steps": model.personal_steps, "probe_steps": model.probe_steps}
    return Scenario(
        devices=Devices(cell=cell, names=tuple(map(str, rows.get("name", ()))), **columns),
        cells=cells,
        channel=_check(ChannelFile, file.channel, "channel.").build(),
        work=Work(sizes["shared"].round(), sizes["personal"].round(), model.bits, **steps),
        deadline=quantity(file.deadline, "deadline", "time").si,
        rho_max=file.rho_max,
        mask=file.mask,
        seed=file.seed,
    )


def _cells(file: CellsFile) -> Cells:
    values: dict[str, Any] = {}
    for key, kind in (("bandwidth", "frequency"), ("wire_rate", "rate"), ("wire_delay", "time")):
        given = getattr(file, key)
        each = [quantity(one, f"cells.{key}", kind).si for one in (given if isinstance(given, list) else [given])]
        values[key] = each if isinstance(given, list) else each[0]
    return Cells.of(values["bandwidth"], wire_rate=values["wire_rate"], wire_delay=values["wire_delay"], count=file.count)


def _places(file: DevicesFile, rows: Mapping[str, list[Any]], cells: int) -> tuple[int, Tensor]:
    """How many devices there are, and each one's cell."""
    if rows:
        n = len(next(iter(rows.values())))
        cell = rows.get("cell", [0] * n)
        if not all(str(one).strip().isdigit() for one in cell):
            raise ConfigError(f"devices.table: the column cell has {cell[:3]}; it must be whole numbers from 0.")
        return n, torch.tensor([int(one) for one in cell])
    count = file.count if file.count is not None else 10
    counts = count if isinstance(count, list) else [count // cells + (at < count % cells) for at in range(cells)]
    if len(counts) != cells or min(counts) < 0 or sum(counts) < 1:
        raise ConfigError(f"devices.count = {count}: give how many there are in all, or a number for each of {cells} cells.")
    return sum(counts), torch.arange(cells).repeat_interleave(torch.tensor(counts))


def _table(path: Path) -> dict[str, list[Any]]:
    try:
        with open(path, newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"devices.table: cannot read {path}: {error}.") from error
    known = {*DevicesFile.model_fields, "name", "cell", "shared", "personal"} - {"count", "table"}
    if not lines or (unknown := set(lines[0]) - known) or any(None in line.values() for line in lines):
        what = "it has no rows" if not lines else f"unknown columns {sorted(map(str, unknown))}" if unknown else "a row is short"
        raise ConfigError(f"devices.table {path}: {what}; known columns are {', '.join(sorted(known))}.")
    return {key: [line[key] for line in lines] for key in lines[0]}


def _column(value: Any, name: str, kind: str, n: int, seed: int) -> Tensor:
    """A column in SI units, float64 [n]."""
    if isinstance(value, dict):
        if len(value) != 1 or not isinstance(ends := next(iter(value.values())), list):
            raise ConfigError(f'{name} = {value} must have one kind and its values, such as {{ uniform = ["1", "2"] }}.')
        numbers, units = zip(*(_number(one, name, kind) for one in ends), strict=True) if ends else ((), ())
        if len(set(units)) > 1:
            raise ConfigError(f"{name} = {value} has the units {', '.join(units)}; write all values in one.")
        drawn = Spread(next(iter(value)), tuple(numbers)).draw(draws.key(seed, name), torch.arange(n))
        return torch.tensor([to_si(one, units[0]) for one in drawn.tolist()], dtype=torch.float64) if units[0] else drawn
    each = [_si(one, name, kind) for one in (value if isinstance(value, list) else [value])]
    if len(each) not in (1, n) or (isinstance(value, list) and len(each) != n):
        raise ConfigError(f"{name} has {len(each)} values for {n} devices; give one for each, or one.")
    return torch.tensor(each, dtype=torch.float64).expand(n).clone()


def _number(value: Any, name: str, kind: str) -> tuple[float, str]:
    """A number and its unit; "" where it has none."""
    if kind:
        found = quantity(value, name, kind)
        return found.number, found.unit
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value), ""
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} = {value!r} must be a number.") from error


def _si(value: Any, name: str, kind: str) -> float:
    number, unit = _number(value, name, kind)
    return to_si(number, unit) if unit else number


def _one(file: ChannelFile, key: str, kind: str) -> float:
    return quantity(getattr(file, key), f"channel.{key}", kind).si
