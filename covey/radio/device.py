"""Devices and cells as columns: what devices compute and send with; bands and wires of cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from covey import draws
from covey.errors import ConfigError, meant


@dataclass(frozen=True)
class Spread:
    """A distribution that a column is drawn from.

    uniform, log_uniform (low, high); normal (mean, deviation); choice (any number of values); disc
    (inner and outer radius: the distance from the centre of a point drawn evenly over the ring).

    >>> Spread("choice", (1.0, 2.0)).draw(0, torch.arange(4)).unique().tolist()
    [1.0, 2.0]
    """

    kind: Literal["uniform", "log_uniform", "normal", "choice", "disc"]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(
                f"a spread of kind {self.kind!r}{meant(self.kind, _KINDS)}; "
                f"one of {', '.join(_KINDS)}."
            )
        shown = f"{self.kind} = {list(self.values)}"
        if len(self.values) != 2 and self.kind != "choice":
            raise ConfigError(f"{shown} must have two values: {_KINDS[self.kind]}.")
        ordered = self.kind in ("uniform", "log_uniform", "disc")
        if not self.values or (ordered and self.values[0] > self.values[1]):
            raise ConfigError(f"{shown}: give {_KINDS[self.kind]}, the smaller first.")
        if not all(abs(value) <= _LARGEST for value in self.values):  # which NaN is not
            raise ConfigError(f"{shown} must be finite numbers, of size {_LARGEST:g} at most.")
        if self.kind == "log_uniform" and self.values[0] <= 0:
            raise ConfigError(f"{shown} must be above 0; use uniform for levels in dBm.")

    def draw(self, address: int, ids: Tensor) -> Tensor:
        """One value for each id, float64 [n]."""
        if self.kind == "normal":
            mean, deviation = self.values
            return mean + deviation * draws.normal(address, ids, 1)[:, 0]
        u = draws.uniform(address, ids, 1)[:, 0]
        if self.kind == "choice":
            values = torch.tensor(self.values, dtype=torch.float64)
            return values[(u * len(values)).long()]
        low, high = self.values
        if self.kind == "log_uniform":
            return low * (high / low) ** u
        if self.kind == "disc":
            return torch.sqrt(low**2 + (high**2 - low**2) * u)
        return low + (high - low) * u


_LARGEST = 1e100  # its square is still finite
_KINDS = {
    "uniform": "low and high",
    "log_uniform": "low and high",
    "normal": "mean and deviation",
    "choice": "one value or more",
    "disc": "inner and outer radius",
}

Column = float | Sequence[float] | Tensor | Spread
"""One number for all devices, one for each, or a distribution."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Every device of every cell; all columns float64 [n], `cell` int64 [n].

    >>> cycles = Spread("uniform", (15, 40))
    >>> Devices.of([0, 0, 1], distance=[50, 80, 20], cpu=3e9, cycles=cycles, power=0.6)
    Devices: 3 in 2 cells
    """

    cell: Tensor
    distance: Tensor  # m, from the edge
    cpu: Tensor  # f, Hz
    cycles: Tensor  # C, to update one weight once
    power: Tensor  # p, W, while sending
    capacitance: Tensor  # effective: joules per cycle are capacitance f^2
    weight: Tensor  # of its ratio in the sum that is minimised
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            if column.shape != self.cell.shape:
                raise ConfigError(
                    f"{name} has {len(column)} values for {len(self.cell)} devices; "
                    "give one for each, or one."
                )
            fine = torch.isfinite(column) & (column > 0)
            wrong = (~fine).nonzero()[:, 0].tolist()
            if wrong:
                raise ConfigError(
                    f"{name} of {self.name(wrong[0])} is {column[wrong[0]]:g}; "
                    "it must be above 0 and finite."
                )

    @classmethod
    def of(
        cls,
        cell: Sequence[int] | Tensor,
        *,
        distance: Column,
        cpu: Column,
        cycles: Column,
        power: Column,
        capacitance: Column = 1e-28,
        weight: Column = 1.0,
        names: Sequence[str] = (),
        seed: int = 0,
    ) -> Devices:
        """Devices from numbers, lists and distributions."""
        cells = torch.as_tensor(cell, dtype=torch.int64)
        given = (distance, cpu, cycles, power, capacitance, weight)
        columns = {
            name: column(value, len(cells), name, seed)
            for name, value in zip(_COLUMNS, given, strict=True)
        }
        return cls(cell=cells, names=tuple(names), **columns)

    def take(self, chosen: Tensor) -> Devices:
        """The chosen devices, in this order."""
        names: tuple[str, ...] = ()
        if self.names:
            names = tuple(self.names[device] for device in chosen.tolist())
        columns = {name: getattr(self, name)[chosen] for name in ("cell", *_COLUMNS)}
        return replace(self, names=names, **columns)

    @classmethod
    def stack(cls, parts: Sequence[Devices], *, cells: int) -> Devices:
        """Populations beside each other, without names, each with `cells` cells of its own."""
        numbered = [part.cell + number * cells for number, part in enumerate(parts)]
        columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS}
        return cls(cell=torch.cat(numbered), names=(), **columns)

    def __len__(self) -> int:
        return len(self.cell)

    def __repr__(self) -> str:
        return f"Devices: {len(self)} in {len(set(self.cell.tolist()))} cells"

    def name(self, device: int) -> str:
        """The name of a device in messages."""
        return self.names[device] if self.names else f"device {device}"


_COLUMNS = ("distance", "cpu", "cycles", "power", "capacitance", "weight")


def column(value: Column, n: int, name: str, seed: int) -> Tensor:
    """A column as float64 [n]; a distribution is drawn from the address of its name."""
    if isinstance(value, Spread):
        return value.draw(draws.key(seed, name), torch.arange(n))
    return _expanded(torch.as_tensor(value, dtype=torch.float64), n)


def _expanded(values: Tensor, n: int) -> Tensor:
    """One number n times over; a list of numbers as it is."""
    if values.ndim == 0:
        return values.expand(n).clone()
    return values


@dataclass(frozen=True, eq=False)
class Cells:
    """Every edge: the band its devices share, and the wire to the server."""

    bandwidth: Tensor  # B, Hz, [cells]
    wire_rate: Tensor  # bit/s
    wire_delay: Tensor  # s

    def __post_init__(self) -> None:
        for name in ("bandwidth", "wire_rate", "wire_delay"):
            values = getattr(self, name)
            if values.shape != self.bandwidth.shape:
                raise ConfigError(
                    f"{name} has {len(values)} values for {len(self.bandwidth)} cells; "
                    "give one for each, or one."
                )
            if name == "wire_delay" and not (values >= 0).all():
                raise ConfigError(f"{name} = {values.tolist()} must be 0 or more.")
            if name != "wire_delay" and not (values > 0).all():
                raise ConfigError(f"{name} = {values.tolist()} must be above 0.")

    @classmethod
    def of(
        cls,
        bandwidth: float | Sequence[float],
        *,
        wire_rate: float | Sequence[float] = math.inf,
        wire_delay: float | Sequence[float] = 0.0,
        count: int | None = None,
    ) -> Cells:
        """Cells from numbers and lists; one number serves all `count` of them."""
        given = (bandwidth, wire_rate, wire_delay)
        columns = [torch.as_tensor(value, dtype=torch.float64) for value in given]
        n = count or max(values.numel() for values in columns)
        return cls(*(_expanded(values, n) for values in columns))

    def check_holds(self, devices: Devices) -> None:
        """Raise an error unless every device stands in one of these cells."""
        cell = devices.cell
        wrong = cell[(cell < 0) | (cell >= len(self))].tolist()
        if wrong:
            raise ConfigError(
                f"radio: a device stands in cell {wrong[0]}, "
                f"but there are {len(self)} cells, counted from 0."
            )

    def times(self, copies: int) -> Cells:
        """The same cells several times over."""
        return self.take(torch.arange(len(self)).repeat(copies))

    def take(self, chosen: Tensor) -> Cells:
        """The chosen cells, in this order."""
        return Cells(self.bandwidth[chosen], self.wire_rate[chosen], self.wire_delay[chosen])

    def __len__(self) -> int:
        return len(self.bandwidth)
