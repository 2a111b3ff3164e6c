"""A radio scenario as a TOML file: numbers with units, distributions, tables.

Every error names the place of the mistake. A column of `[devices]` is a number, a list with one for
each device, a distribution such as { uniform = ["50 m", "300 m"] }, or a column of the same name in
the CSV file `table`. A distribution is drawn in the unit it is written in: dBm stays even in dBm.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from covey import draws
from covey.cli.validate import STRICT, apply, check, check_plain, parsed
from covey.errors import ConfigError, shown
from covey.tree import Tree
from covey.wireless import (
    POLICIES,
    Cells,
    Channel,
    Devices,
    LogDistance,
    Noise,
    Radio,
    Scenario,
    Spread,
    Urban,
    Work,
)
from covey.wireless.units import quantity, to_si

_MOST_DEVICES = 10_000_000  # of a scenario, whose columns take a gigabyte then
_MOST_STEPS = 1_000_000_000
_SMALLEST = 1e-60
_LARGEST = 1e30  # of a plain number, such as a capacitance
_MOST_WEIGHTS = 1e15  # whose bits an int64 counts


class BandsFile(BaseModel):
    """One value for all cells, or a list with one for each."""

    model_config = STRICT
    bandwidth: str | list[str] = "20 MHz"
    wire_rate: str | list[str] = "1 Gbit/s"
    wire_delay: str | list[str] = "1 ms"


class CellsFile(BandsFile):
    """The cells of a scenario; those of a run are the edges of its tree."""

    count: int | None = Field(default=None, ge=1, le=_MOST_DEVICES)


class ColumnsFile(BaseModel):
    """What every device has."""

    model_config = STRICT
    table: str | None = None
    distance: Any = {"disc": ["20 m", "250 m"]}
    cpu: Any = "3 GHz"
    cycles: Any = 20
    power: Any = "28 dBm"
    capacitance: Any = 1e-28
    weight: Any = 1


class DevicesFile(ColumnsFile):
    """`count`: how many in all, dealt evenly to the cells, or how many each cell has."""

    count: int | list[int] | None = None


class ChannelFile(BaseModel):
    """The first three serve log_distance, the next four the urban cells."""

    model_config = STRICT
    path_loss: Literal["log_distance", "urban_macro", "urban_micro"] = "log_distance"
    reference_loss: str = "30 dB"
    exponent: float = Field(default=3.5, gt=0, le=100)
    near: str = "1 m"
    carrier: str = "3.5 GHz"
    sight: Literal["chance", "yes", "no"] = "chance"
    edge_height: str | None = None
    device_height: str = "1.5 m"
    shadowing: str = "0 dB"
    fading: Literal["none", "rayleigh", "rician"] = "rayleigh"
    rice_factor: str = "6 dB"
    noise: str = "-110 dBm"

    def build(self, prefix: str) -> Channel:
        """The channel; `place` is where this table stands in the file."""

        def one(key: str, kind: str) -> float:
            return quantity(getattr(self, key), f"{prefix}{key}", kind).si

        heard = quantity(self.noise, f"{prefix}noise", "power", "power per hertz")
        urban = Urban(
            "macro" if self.path_loss == "urban_macro" else "micro",
            one("carrier", "frequency"),
            self.sight,
            None if self.edge_height is None else one("edge_height", "length"),
            one("device_height", "length"),
        )
        plain = LogDistance(
            one("reference_loss", "decibels"),
            self.exponent,
            one("near", "length"),
        )
        loss = plain if self.path_loss == "log_distance" else urban
        noise = Noise(heard.si, heard.kind == "power per hertz")
        return Channel(
            noise,
            loss,
            one("shadowing", "decibels"),
            self.fading,
            one("rice_factor", "decibels"),
        )


class ModelFile(BaseModel):
    """Sizes are columns like those of devices."""

    model_config = STRICT
    shared: Any = 120_000
    personal: Any = 30_000
    bits: int = Field(default=32, ge=1, le=1024)
    steps: int = Field(default=5, ge=1, le=_MOST_STEPS)
    personal_steps: int = Field(default=3, ge=0, le=_MOST_STEPS)
    probe_steps: int = Field(default=1, ge=0, le=_MOST_STEPS)


class RadioFile(BaseModel):
    """The table [radio] of an experiment: the settings of a run's virtual clock.

    The tree says which device is in which cell.
    """

    model_config = STRICT
    policy: (
        Literal[
            "optimal",
            "equal",
            "fair",
            "personal_only",
            "personal_fastest",
            "pruning_only",
        ]
        | None
    ) = None
    deadline: str | None = None
    late: Literal["wait", "drop"] = "wait"
    rho_max: float = Field(default=0.95, gt=0, le=1)
    mask: bool = True
    seed: int = 0  # of what [radio.devices] draws; the channel's draws are those of the run's seed
    cells: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    channel: dict[str, Any] = {}


class ScenarioFile(BaseModel):
    """The whole file."""

    model_config = STRICT
    name: str = Field(default="plan", pattern=r"^[^/\\]{1,100}$")
    policy: Literal[
        "optimal",
        "equal",
        "fair",
        "personal_only",
        "personal_fastest",
        "pruning_only",
        "fixed",
    ] = "optimal"
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
class ScenarioForm:
    """A file and the scenario in it."""

    file: ScenarioFile
    scenario: Scenario


def load(path: Path, changes: Sequence[str] = ()) -> ScenarioForm:
    """The scenario in a file, with changes such as "deadline=15 ms" applied, wholly checked."""
    try:
        table = parsed(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}; examples/plan/scenario.toml is one to start from."
        ) from error
    for change in changes:
        apply(table, change)
    check_plain(table)
    file = check(ScenarioFile, table, "")
    return ScenarioForm(file, _scenario(file, path.parent))


def radio_file(table: Mapping[str, Any]) -> RadioFile:
    """The table [radio], wholly checked but for the numbers in it, and with all defaults."""
    file = check(RadioFile, table, "radio.")
    parts: dict[str, type[BaseModel]] = {
        "cells": BandsFile,
        "devices": ColumnsFile,
        "channel": ChannelFile,
    }
    fields = {
        key: check(kind, getattr(file, key), f"radio.{key}.").model_dump(exclude_none=True)
        for key, kind in parts.items()
    }
    return file.model_copy(update=fields)


def radio(table: Mapping[str, Any], tree: Tree) -> Radio:
    """The radio of an experiment on this tree: whoever has devices under it is a cell."""
    file = radio_file(table)
    counts = tree.children[-1]
    columns = check(ColumnsFile, file.devices, "radio.devices.")
    rows = {}
    if columns.table:
        rows = _table(Path(columns.table), tuple(KINDS), "radio.devices.table")
    cell = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    deadline = None
    if file.deadline is not None:
        deadline = quantity(file.deadline, "radio.deadline", "time").si
    policy = None
    if file.policy is not None:
        policy = POLICIES[file.policy]
    return Radio(
        devices=Devices(
            cell=cell,
            names=(),
            **_columns(columns, rows, len(cell), file.seed, "radio.devices."),
        ),
        cells=_cells(
            check(BandsFile, file.cells, "radio.cells."),
            len(counts),
            "radio.cells.",
        ),
        channel=check(ChannelFile, file.channel, "radio.channel.").build("radio.channel."),
        deadline=deadline,
        policy=policy,
        late=file.late,
        rho_max=file.rho_max,
        mask=file.mask,
    )


KINDS = {
    "distance": "length",
    "cpu": "frequency",
    "cycles": "",
    "power": "power",
    "capacitance": "",
    "weight": "",
}
"""The columns of devices, and what each is a quantity of."""


def _columns(
    file: ColumnsFile,
    rows: Mapping[str, list[Any]],
    n: int,
    seed: int,
    prefix: str,
) -> dict[str, Tensor]:
    values = {key: rows.get(key, getattr(file, key)) for key in KINDS}
    return {
        key: _column(values[key], f"{prefix}{key}", kind, n, seed) for key, kind in KINDS.items()
    }


def _scenario(file: ScenarioFile, folder: Path) -> Scenario:
    devices_file = check(DevicesFile, file.devices, "devices.")
    model = check(ModelFile, file.model, "model.")
    named = check(CellsFile, file.cells, "cells.")
    cells = _cells(named, named.count, "cells.")
    rows = {}
    if devices_file.table:
        rows = _table(
            folder / devices_file.table,
            (*KINDS, "name", "cell", "shared", "personal"),
            "devices.table",
        )
    n, cell = _places(devices_file, rows, len(cells))
    columns = _columns(devices_file, rows, n, file.seed, "devices.")
    sizes = {
        key: _column(rows.get(key, getattr(model, key)), f"model.{key}", "", n, file.seed)
        for key in ("shared", "personal")
    }
    for key, size in sizes.items():
        if not bool(((size >= 0) & (size <= _MOST_WEIGHTS)).all()):
            rule = f"must be numbers of weights, 0 to {_MOST_WEIGHTS:g}"
            raise ConfigError(f"model.{key} = {shown(getattr(model, key))} {rule}.")
    steps = {
        "steps": model.steps,
        "personal_steps": model.personal_steps,
        "probe_steps": model.probe_steps,
    }
    return Scenario(
        devices=Devices(cell=cell, names=tuple(map(str, rows.get("name", ()))), **columns),
        cells=cells,
        channel=check(ChannelFile, file.channel, "channel.").build("channel."),
        work=Work(
            sizes["shared"].round(),
            sizes["personal"].round(),
            model.bits,
            **steps,
        ),
        deadline=quantity(file.deadline, "deadline", "time").si,
        rho_max=file.rho_max,
        mask=file.mask,
        seed=file.seed,
    )


def _cells(file: BandsFile, count: int | None, prefix: str) -> Cells:
    values: dict[str, Any] = {}
    for key, kind in (
        ("bandwidth", "frequency"),
        ("wire_rate", "rate"),
        ("wire_delay", "time"),
    ):
        setting = getattr(file, key)
        each = [
            quantity(item, f"{prefix}{key}", kind).si
            for item in (setting if isinstance(setting, list) else [setting])
        ]
        if not each:
            raise ConfigError(f"{prefix}{key} = [] is empty; give one value for each cell, or one.")
        if isinstance(setting, list) and count not in (None, len(each)):
            raise ConfigError(
                f"{prefix}{key} has {len(each)} values for {count} cells; "
                "give one for each cell, or one."
            )
        values[key] = each if isinstance(setting, list) else each[0]
    return Cells.of(
        values["bandwidth"],
        wire_rate=values["wire_rate"],
        wire_delay=values["wire_delay"],
        count=count,
    )


def _places(file: DevicesFile, rows: Mapping[str, list[Any]], cells: int) -> tuple[int, Tensor]:
    """How many devices there are, and each one's cell."""
    if rows:
        cell = _listed_cells(rows)
        return len(cell), cell
    count = file.count if file.count is not None else 10
    if isinstance(count, list):
        counts = count
    else:
        counts = [count // cells + (index < count % cells) for index in range(cells)]
    if len(counts) != cells or min(counts) < 0 or not 1 <= sum(counts) <= _MOST_DEVICES:
        raise ConfigError(
            f"devices.count = {count}: give how many there are in all, "
            f"or a number for each of {cells} cells."
        )
    return sum(counts), torch.arange(cells).repeat_interleave(torch.tensor(counts))


def _listed_cells(rows: Mapping[str, list[Any]]) -> Tensor:
    """Each device's cell, by the table's column; 0 where it has none."""
    n = len(next(iter(rows.values())))
    cell = rows.get("cell", [0] * n)
    wrong = [text for text in map(str, cell) if not _is_cell(text)]
    if wrong:
        rule = "cells are integers from 0"
        raise ConfigError(f"devices.table: the column cell has {shown(wrong[0])}; {rule}.")
    return torch.tensor([int(text) for text in cell])


def _is_cell(text: str) -> bool:
    """Whether a text is a whole number that a cell may have; "²" is a digit, but no decimal."""
    return text.strip().isdecimal() and len(text.strip()) <= 9


def _table(path: Path, allowed: Sequence[str], key: str) -> dict[str, list[Any]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [cells for cells in reader if cells]
    except (
        OSError,
        ValueError,
        csv.Error,
    ) as error:  # also bytes that are no text
        raise ConfigError(f"{key}: cannot read {shown(str(path))}: {error}.") from error
    if trouble := _trouble(header, rows, allowed):
        listed = ", ".join(sorted(allowed))
        raise ConfigError(f"{key} {path}: {trouble}; known columns are {listed}.")
    return {name: [cells[column] for cells in rows] for column, name in enumerate(header)}


def _trouble(header: list[str], rows: list[list[str]], allowed: Sequence[str]) -> str:
    """What is wrong with a table; "" if nothing is."""
    if not rows:
        return "it has no rows"
    if unknown := sorted(set(header) - set(allowed)):
        return f"unknown columns {shown(unknown)}"
    if len(set(header)) < len(header):
        return f"a column is named twice among {shown(header)}"
    for number, cells in enumerate(rows, 1):
        if len(cells) != len(header):
            return f"row {number} has {len(cells)} cells where the header has {len(header)}"
    return ""


def _column(value: Any, name: str, kind: str, n: int, seed: int) -> Tensor:
    """A column in SI units, float64 [n]."""
    if isinstance(value, dict):
        return _drawn_column(value, name, kind, n, seed)
    if not isinstance(value, list):
        return torch.full((n,), _si(value, name, kind), dtype=torch.float64)
    values = [_si(item, name, kind) for item in value]
    if len(values) != n:
        raise ConfigError(
            f"{name} has {len(values)} values for {n} devices; give one for each, or one."
        )
    return torch.tensor(values, dtype=torch.float64)


def _drawn_column(value: dict[Any, Any], name: str, kind: str, n: int, seed: int) -> Tensor:
    """A column drawn from a distribution, float64 [n]."""
    if len(value) != 1 or not isinstance(next(iter(value.values())), list):
        raise ConfigError(
            f"{name} = {value} must have one kind and its values, "
            'such as { uniform = ["1", "2"] }.'
        )
    ((distribution, ends),) = value.items()
    pairs = [_number(item, name, kind) for item in ends]
    numbers = tuple(number for number, _ in pairs)
    units = list(dict.fromkeys(unit for _, unit in pairs))
    if len(units) > 1:
        raise ConfigError(
            f"{name} = {value} has the units {', '.join(units)}; write all values in one."
        )
    drawn = Spread(distribution, numbers).draw(draws.key(seed, name), torch.arange(n))
    if units[0]:
        drawn = torch.tensor(
            [to_si(item, units[0]) for item in drawn.tolist()],
            dtype=torch.float64,
        )
    if not drawn.isfinite().all():
        raise ConfigError(f"{name} = {shown(value)} draws values out of range; give smaller ones.")
    return drawn


def _number(value: Any, name: str, kind: str) -> tuple[float, str]:
    """A number and its unit; "" where it has none."""
    if kind:
        parsed = quantity(value, name, kind)
        return parsed.number, parsed.unit
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
        if not (number == 0 or _SMALLEST <= abs(number) <= _LARGEST):  # which NaN is not
            raise ValueError
        return number, ""
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{name} = {shown(value)} must be a finite number, of size {_LARGEST:g} at most."
        ) from error


def _si(value: Any, name: str, kind: str) -> float:
    number, unit = _number(value, name, kind)
    return to_si(number, unit) if unit else number
