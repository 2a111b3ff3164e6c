"""A radio scenario as a TOML file: numbers with units, distributions, tables.

Every error names the place of the mistake. A column of `[devices]` is a number, a list with one for
each device, a distribution such as { uniform = ["50 m", "300 m"] }, or a column of the same name in
the CSV file `table`. A distribution is drawn in the unit it is written in: dBm stays even in dBm.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from covey import draws
from covey.errors import ConfigError, DataError, reading, shown
from covey.fields import Count, Match, Range, Seed, Share, Whole, read
from covey.files.validate import apply, check_plain, parsed
from covey.kernel.work import Work
from covey.radio.channel import Channel, LogDistance, Noise, Urban
from covey.radio.device import Cells, Devices, Spread
from covey.radio.plan import MaxRatio, Scenario
from covey.radio.policies import POLICIES
from covey.radio.radio import Radio
from covey.radio.units import Quantity, quantity, to_si
from covey.tree import Tree

_MOST_DEVICES = 10_000_000  # of a scenario, whose columns take a gigabyte then
_SMALLEST = 1e-60
_LARGEST = 1e30  # of a plain number, such as a capacitance
_MOST_WEIGHTS = 1e15  # whose bits an int64 counts


PolicyName = Literal[
    "optimal", "equal", "fair", "personal_only", "personal_fastest", "pruning_only"
]
PathLossName = Literal["log_distance", "urban_macro", "urban_micro"]
Title = Annotated[str, Match(r"[^/\\]{1,100}", "text of 1 to 100 characters without / and \\")]


@dataclass(frozen=True)
class BandSettings:
    """One value for all cells, or a list with one for each."""

    bandwidth: str | list[str] = "20 MHz"  # shared by the devices of a cell
    wire_rate: str | list[str] = "1 Gbit/s"  # of the wire between cell and server
    wire_delay: str | list[str] = "1 ms"  # of the same wire, each way


@dataclass(frozen=True)
class CellSettings(BandSettings):
    """The cells of a scenario; those of a run are the edges of its tree."""

    count: Annotated[int, Range(1, _MOST_DEVICES, whole=True)] | None = None  # how many


@dataclass(frozen=True)
class ColumnSettings:
    """What every device has."""

    table: str | None = None  # a CSV file whose columns replace those below
    distance: Any = field(default_factory=lambda: {"disc": ["20 m", "250 m"]})  # to the cell
    cpu: Any = "3 GHz"  # the processor's frequency
    cycles: Any = 20  # of the processor, to update one weight once
    power: Any = "28 dBm"  # of what it sends
    capacitance: Any = 1e-28  # a cycle at frequency f takes capacitance * f^2 joules
    weight: Any = 1  # of its pruning ratio in the sum that a plan minimises


@dataclass(frozen=True)
class DeviceSettings(ColumnSettings):
    """`count`: how many in all, dealt evenly to the cells, or how many each cell has."""

    count: int | list[int] | None = None


@dataclass(frozen=True)
class ChannelSettings:
    """The first three serve log_distance, the next four the urban cells."""

    path_loss: PathLossName = "log_distance"  # how signals weaken with distance
    reference_loss: str = "30 dB"  # at `near`
    exponent: Annotated[float, Range(0, 100, above=True)] = 3.5  # of the distance
    near: str = "1 m"  # the distance of reference_loss
    carrier: str = "3.5 GHz"  # its frequency
    sight: Literal["chance", "yes", "no"] = "chance"  # whether devices see the antenna
    edge_height: str | None = None  # of the antenna; none: 25 m macro, 10 m micro
    device_height: str = "1.5 m"  # of devices
    shadowing: str = "0 dB"  # standard deviation of a device's own constant loss
    fading: Literal["none", "rayleigh", "rician"] = "rayleigh"  # drawn anew in every round
    rice_factor: str = "6 dB"  # power of the direct path over all others, with rician
    noise: str = "-110 dBm"  # in the whole band, or per hertz as in "-174 dBm/Hz"

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


@dataclass(frozen=True)
class WorkSettings:
    """Sizes are columns like those of devices."""

    shared: Any = 120_000
    personal: Any = 30_000
    bits: Annotated[int, Range(1, 1024, whole=True)] = 32
    steps: Count = 5
    personal_steps: Whole = 3
    probe_steps: Whole = 1


@dataclass(frozen=True)
class RadioSettings:
    """The table [radio] of an experiment: the settings of a run's virtual clock.

    The tree says which device is in which cell.
    """

    policy: PolicyName | None = None  # how a band is shared; none: optimal for
    # algorithms that take their ratios from a plan, else equal
    deadline: str | None = None  # of a round
    late: Literal["wait", "drop"] = "wait"  # what happens to answers behind the deadline
    rho_max: MaxRatio = 0.95  # the largest pruning ratio
    mask: bool = True  # whether plans count a message's header and mask
    seed: Seed = 0  # of what [radio.devices] draws; the channel's draws are those of the run's seed
    cells: BandSettings = field(default_factory=BandSettings)  # bands and wires
    devices: ColumnSettings = field(default_factory=ColumnSettings)  # where they are, what they can
    channel: ChannelSettings = field(default_factory=ChannelSettings)  # loss, fading and noise

    @staticmethod
    def read(table: Mapping[str, Any]) -> RadioSettings:
        """The table [radio], wholly checked but for the numbers in it."""
        return read(RadioSettings, table, "radio.")

    def spec(self, tree: Tree) -> Radio:
        """The radio of an experiment on this tree: whoever has devices under it is a cell."""
        counts = tree.children[-1]
        cell = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        rows = {}
        if self.devices.table:
            rows = _table(Path(self.devices.table), tuple(KINDS), "radio.devices.table")
        columns = _columns(self.devices, rows, len(cell), self.seed, "radio.devices.")
        deadline = None
        if self.deadline is not None:
            deadline = quantity(self.deadline, "radio.deadline", "time").si
        return Radio(
            devices=Devices(cell=cell, names=(), **columns),
            cells=_cells(self.cells, len(counts), "radio.cells."),
            channel=self.channel.build("radio.channel."),
            deadline=deadline,
            policy=None if self.policy is None else POLICIES[self.policy],
            late=self.late,
            rho_max=self.rho_max,
            mask=self.mask,
        )


@dataclass(frozen=True)
class ScenarioSettings:
    """The whole file."""

    name: Title = "plan"
    policy: PolicyName | Literal["fixed"] = "optimal"
    ratio: Share = 0.5  # of the policy fixed
    deadline: str = "25 ms"
    rho_max: MaxRatio = 0.95
    mask: bool = False
    rounds: Count = 1
    seed: Seed = 0
    cells: CellSettings = field(default_factory=CellSettings)
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    channel: ChannelSettings = field(default_factory=ChannelSettings)
    model: WorkSettings = field(default_factory=WorkSettings)

    def scenario(self, folder: Path) -> Scenario:
        """The scenario; the path of a table is relative to the folder of the file."""
        model = self.model
        cells = _cells(self.cells, self.cells.count, "cells.")
        rows = {}
        if self.devices.table:
            allowed = (*KINDS, "name", "cell", "shared", "personal")
            rows = _table(folder / self.devices.table, allowed, "devices.table")
        n, cell = _places(self.devices, rows, len(cells))
        names = tuple(map(str, rows.get("name", ())))
        columns = _columns(self.devices, rows, n, self.seed, "devices.")
        sizes = {}
        for key in ("shared", "personal"):
            given = rows.get(key, getattr(model, key))
            sizes[key] = _column(given, f"model.{key}", "", n, self.seed)
            fine = (sizes[key] >= 0) & (sizes[key] <= _MOST_WEIGHTS)
            if not bool(fine.all()):
                rule = f"must be numbers of weights, 0 to {_MOST_WEIGHTS:g}"
                raise ConfigError(f"model.{key} = {shown(getattr(model, key))} {rule}.")
        return Scenario(
            devices=Devices(cell=cell, names=names, **columns),
            cells=cells,
            channel=self.channel.build("channel."),
            work=Work(
                sizes["shared"].round(),
                sizes["personal"].round(),
                model.bits,
                steps=model.steps,
                personal_steps=model.personal_steps,
                probe_steps=model.probe_steps,
            ),
            deadline=quantity(self.deadline, "deadline", "time").si,
            rho_max=self.rho_max,
            mask=self.mask,
            seed=self.seed,
        )


@dataclass(frozen=True, eq=False)
class ScenarioForm:
    """A file and the scenario in it."""

    file: ScenarioSettings
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
    file = read(ScenarioSettings, table, "")
    return ScenarioForm(file, file.scenario(path.parent))


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
    file: ColumnSettings,
    rows: Mapping[str, list[Any]],
    n: int,
    seed: int,
    prefix: str,
) -> dict[str, Tensor]:
    values = {key: rows.get(key, getattr(file, key)) for key in KINDS}
    return {
        key: _column(values[key], f"{prefix}{key}", kind, n, seed) for key, kind in KINDS.items()
    }


def _cells(file: BandSettings, count: int | None, prefix: str) -> Cells:
    values: dict[str, Any] = {}
    for key, kind in (("bandwidth", "frequency"), ("wire_rate", "rate"), ("wire_delay", "time")):
        setting = getattr(file, key)
        if not isinstance(setting, list):
            values[key] = quantity(setting, f"{prefix}{key}", kind).si
            continue
        if not setting:
            raise ConfigError(f"{prefix}{key} = [] is empty; give one value for each cell, or one.")
        values[key] = [quantity(item, f"{prefix}{key}", kind).si for item in setting]
        if count not in (None, len(setting)):
            raise ConfigError(
                f"{prefix}{key} has {len(setting)} values for {count} cells; "
                "give one for each cell, or one."
            )
    return Cells.of(
        values["bandwidth"],
        wire_rate=values["wire_rate"],
        wire_delay=values["wire_delay"],
        count=count,
    )


def _places(file: DeviceSettings, rows: Mapping[str, list[Any]], cells: int) -> tuple[int, Tensor]:
    """How many devices there are, and each one's cell: by the table, if it has them, or dealt."""
    if rows:
        n = len(next(iter(rows.values())))
        places = rows.get("cell", [0] * n)
        texts = [str(cell).strip() for cell in places]
        # "²" is a digit, but no decimal.
        wrong = [text for text in texts if not text.isdecimal() or len(text) > 9]
        if wrong:
            rule = "cells are integers from 0"
            raise ConfigError(f"devices.table: the column cell has {shown(wrong[0])}; {rule}.")
        return n, torch.tensor([int(text) for text in texts])
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


def _table(path: Path, allowed: Sequence[str], key: str) -> dict[str, list[Any]]:
    name = f"{key} {shown(str(path))}"
    with reading(name, "save it as CSV in UTF-8"):
        if not path.exists():
            raise DataError(f"{name}: there is no such file; give a table as CSV, or leave it out.")
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [cells for cells in reader if cells]
    widths = {len(cells) for cells in rows}
    trouble = ""
    if not rows:
        trouble = "it has no rows"
    elif unknown := sorted(set(header) - set(allowed)):
        trouble = f"unknown columns {shown(unknown)}"
    elif len(set(header)) < len(header):
        trouble = f"a column is named twice among {shown(header)}"
    elif widths != {len(header)}:
        odd = [number for number, cells in enumerate(rows) if len(cells) != len(header)]
        cells = f"{len(rows[odd[0]])} cells where the header has {len(header)}"
        trouble = f"row {odd[0] + 1} has {cells}"
    if trouble:
        listed = ", ".join(sorted(allowed))
        raise ConfigError(f"{key} {path}: {trouble}; known columns are {listed}.")
    return {name: [cells[column] for cells in rows] for column, name in enumerate(header)}


def _column(value: Any, name: str, kind: str, n: int, seed: int) -> Tensor:
    """A column in SI units, float64 [n]."""
    if isinstance(value, dict):
        return _drawn_column(value, name, kind, n, seed)
    items = value if isinstance(value, list) else [value]
    values = [_number(item, name, kind) for item in items]
    column = torch.tensor([to_si(*pair) for pair in values], dtype=torch.float64)
    if not isinstance(value, list):
        return column.repeat(n)
    if len(values) != n:
        raise ConfigError(
            f"{name} has {len(values)} values for {n} devices; give one for each, or one."
        )
    return column


def _drawn_column(
    value: dict[Any, Any],
    name: str,
    kind: str,
    n: int,
    seed: int,
) -> Tensor:
    """A column drawn from a distribution, float64 [n]."""
    ends = next(iter(value.values()), None)
    if len(value) != 1 or not isinstance(ends, list):
        raise ConfigError(
            f"{name} = {value} must have one kind and its values, "
            'such as { uniform = ["1", "2"] }.'
        )
    (distribution,) = value
    pairs = [_number(item, name, kind) for item in ends]
    units = list(dict.fromkeys(unit for _, unit in pairs))
    if len(units) > 1:
        raise ConfigError(
            f"{name} = {value} has the units {', '.join(units)}; write all values in one."
        )
    spread = Spread(distribution, tuple(number for number, _ in pairs))
    drawn = spread.draw(draws.key(seed, name), torch.arange(n))
    si = [to_si(item, units[0]) for item in drawn.tolist()]
    drawn = torch.tensor(si, dtype=torch.float64)
    if not drawn.isfinite().all():
        raise ConfigError(f"{name} = {shown(value)} draws values out of range; give smaller ones.")
    return drawn


def _number(value: Any, name: str, kind: str) -> Quantity:
    """A number with its unit; "" where it has none."""
    if kind:
        return quantity(value, name, kind)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
        if not (number == 0 or _SMALLEST <= abs(number) <= _LARGEST):  # which NaN is not
            raise ValueError
        return Quantity(number, "")
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{name} = {shown(value)} must be a finite number, of size {_LARGEST:g} at most."
        ) from error
