"""Devices and cells as columns: what each can compute and send, where it stands, and the band and
wire of its edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from covey import draws
from covey.errors import ConfigError


@dataclass(frozen=True)
class Spread:
    """A distribution that a column is drawn from.

    uniform, log_uniform (low, high); normal (mean, deviation); choice (any number of values); disc
    (inner and outer radius: the distance from the centre of a place drawn evenly over the ring).

    >>> Spread("choice", (1.0, 2.0)).draw(0, torch.arange(4)).unique().tolist()
    [1.0, 2.0]
    """

    kind: Literal["uniform", "log_uniform", "normal", "choice", "disc"]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(f"a spread of kind {self.kind!r}; one of {', '.join(_KINDS)}.")
        if len(self.values) != 2 and self.kind != "choice":
            raise ConfigError(
                f"{self.kind} = {list(self.values)} must have two values: {_KINDS[self.kind]}."
            )
        if not self.values or (
            self.kind in ("uniform", "log_uniform", "disc") and self.values[0] > self.values[1]
        ):
            raise ConfigError(
                f"{self.kind} = {list(self.values)}: give {_KINDS[self.kind]}, the smaller first."
            )
        if not all(abs(value) <= _LARGEST for value in self.values):  # which NaN is not
            rule = f"must be finite numbers, of size {_LARGEST:g} at most"
            raise ConfigError(f"{self.kind} = {list(self.values)} {rule}.")
        if self.kind == "log_uniform" and self.values[0] <= 0:
            raise ConfigError(
                f"log_uniform = {list(self.values)} must be above 0; use uniform for levels in dBm."
            )

    def draw(self, address: int, ids: Tensor) -> Tensor:
        """One value for each id, float64 [n]."""
        if self.kind == "normal":
            return self.values[0] + self.values[1] * draws.normal(address, ids, 1)[:, 0]
        u = draws.uniform(address, ids, 1)[:, 0]
        if self.kind == "choice":
            return torch.tensor(self.values, dtype=torch.float64)[(u * len(self.values)).long()]
        low, high = self.values
        if self.kind == "log_uniform":
            return low * (high / low) ** u
        return (
            torch.sqrt(low**2 + (high**2 - low**2) * u)
            if self.kind == "disc"
            else low + (high - low) * u
        )


_LARGEST = 1e100  # its square is a number still
_KINDS = {
    "uniform": "low and high", "log_uniform": "low and high", "normal": "mean and deviation", "choice": "one value or more",
    "disc": "inner and outer radius",
}  # fmt: skip

Column = float | Sequence[float] | Tensor | Spread
"""One number for all devices, one for each, or a distribution."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Every device of every cell; all columns float64 [n], `cell` int64 [n].

    >>> Devices.of([0, 0, 1], distance=[50, 80, 20], cpu=3e9, cycles=Spread("uniform", (15, 40)), power=0.6)
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
                    f"{name} has {len(column)} values for {len(self.cell)} devices; give one for each, or one."
                )
            wrong = ~(torch.isfinite(column) & (column > 0))
            if wrong.any():
                at = int(wrong.nonzero()[0])
                raise ConfigError(
                    f"{name} of {self.name(at)} is {column[at]:g}; it must be above 0 and finite."
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
        given = {
            "distance": distance,
            "cpu": cpu,
            "cycles": cycles,
            "power": power,
            "capacitance": capacitance,
            "weight": weight,
        }
        columns = {name: column(value, len(cells), name, seed) for name, value in given.items()}
        return cls(cell=cells, names=tuple(names), **columns)

    def take(self, chosen: Tensor) -> Devices:
        """Some of the devices, in this order."""
        names = tuple(self.names[at] for at in chosen.tolist()) if self.names else ()
        return replace(
            self, names=names, **{name: getattr(self, name)[chosen] for name in ("cell", *_COLUMNS)}
        )

    @classmethod
    def stack(cls, parts: Sequence[Devices], *, cells: int) -> Devices:
        """Populations beside each other, each with `cells` cells of its own; without their names."""
        cell = torch.cat([part.cell + at * cells for at, part in enumerate(parts)])
        columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS}
        return cls(cell=cell, names=(), **columns)

    def __len__(self) -> int:
        return len(self.cell)

    def __repr__(self) -> str:
        return f"Devices: {len(self)} in {len(set(self.cell.tolist()))} cells"

    def name(self, at: int) -> str:
        """What a message calls a device."""
        return self.names[at] if self.names else f"device {at}"


_COLUMNS = ("distance", "cpu", "cycles", "power", "capacitance", "weight")


def column(value: Column, n: int, name: str, seed: int) -> Tensor:
    """A column as float64 [n]; a distribution is drawn from the address of its name."""
    if isinstance(value, Spread):
        return value.draw(draws.key(seed, name), torch.arange(n))
    given = torch.as_tensor(value, dtype=torch.float64)
    return given.expand(n).clone() if given.ndim == 0 else given


@dataclass(frozen=True, eq=False)
class Cells:
    """Every edge: the band its devices share, and the wire to the server."""

    bandwidth: Tensor  # B, Hz, [cells]
    wire_rate: Tensor  # bit/s
    wire_delay: Tensor  # s

    def __post_init__(self) -> None:
        for name, low in (("bandwidth", True), ("wire_rate", True), ("wire_delay", False)):
            values = getattr(self, name)
            if values.shape != self.bandwidth.shape:
                raise ConfigError(
                    f"{name} has {len(values)} values for {len(self.bandwidth)} cells; give one for each, or one."
                )
            if not (values > 0 if low else values >= 0).all():
                raise ConfigError(
                    f"{name} = {values.tolist()} must be {'above 0' if low else '0 or more'}."
                )

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
        given = [
            torch.as_tensor(value, dtype=torch.float64)
            for value in (bandwidth, wire_rate, wire_delay)
        ]
        n = count or max([len(value) for value in given if value.ndim], default=1)
        return cls(*(value.expand(n).clone() if value.ndim == 0 else value for value in given))

    def times(self, copies: int) -> Cells:
        """The same cells several times over."""
        return self.take(torch.arange(len(self)).repeat(copies))

    def take(self, chosen: Tensor) -> Cells:
        """Some of the cells, in this order."""
        return Cells(self.bandwidth[chosen], self.wire_rate[chosen], self.wire_delay[chosen])

    def __len__(self) -> int:
        return len(self.bandwidth)
