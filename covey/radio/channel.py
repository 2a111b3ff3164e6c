"""A radio channel: path loss, shadowing, block fading, and noise.

Shadowing and line of sight are fixed per device; fading is drawn anew in every round. All of them
are draws by address, so that a device's channel in a round does not depend on which other devices
or rounds are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from covey import draws
from covey.errors import ConfigError, is_number
from covey.fields import NonNegative, Positive, check

_LIGHT = 299_792_458.0  # m/s
_EFFECTIVE_HEIGHT = 1.0  # m: 38.901 takes it off both antennas before the breakpoint


class PathLoss(Protocol):
    """Mean loss in dB over distances [n] in metres.

    `uniform` [n] in [0, 1) decides which devices are in line of sight.
    """

    def loss(self, distance: Tensor, uniform: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LogDistance:
    """PL = reference + 10 exponent log10(d / near).

    3GPP's older urban macro cell at 2 GHz, 128.1 + 37.6 log10(d in km), is reference 128.1,
    exponent 3.76, near 1000.

    >>> distance = torch.tensor([1.0, 10.0])
    >>> LogDistance(reference=30, exponent=3.5).loss(distance, torch.zeros(2)).tolist()
    [30.0, 65.0]
    """

    reference: float = 30.0  # dB at `near`
    exponent: Positive = 3.5
    near: Positive = 1.0  # m

    def __post_init__(self) -> None:
        check(self)

    def loss(self, distance: Tensor, uniform: Tensor) -> Tensor:
        return self.reference + 10 * self.exponent * torch.log10(distance / self.near)


@dataclass(frozen=True)
class Urban:
    """The urban macro and micro cells of 3GPP TR 38.901 (tables 7.4.1-1 and 7.4.2-1).

    Devices are at up to 13 m. `sight` "chance" draws line of sight with the standard's probability;
    "yes" and "no" decide it.
    """

    kind: Literal["macro", "micro"] = "macro"
    carrier: float = 3.5e9  # Hz
    sight: Literal["chance", "yes", "no"] = "chance"
    edge_height: float | None = None  # m; 25 for a macro cell, 10 for a micro cell
    device_height: float = 1.5  # m

    def __post_init__(self) -> None:
        if not 0.5e9 <= self.carrier <= 100e9:
            value = f"carrier = {self.carrier:g} Hz"
            raise ConfigError(f"Urban: {value}; the model holds from 0.5 to 100 GHz.")
        if not 1.5 <= self.device_height <= 13:
            value = f"device_height = {self.device_height:g} m"
            raise ConfigError(f"Urban: {value}; the model holds from 1.5 to 13 m.")

    @property
    def _is_macro(self) -> bool:
        return self.kind == "macro"

    @property
    def _height(self) -> float:
        """The height of the edge's antenna."""
        default = 25.0 if self._is_macro else 10.0
        return self.edge_height or default

    def loss(self, distance: Tensor, uniform: Tensor) -> Tensor:
        flat = distance.clamp(min=10.0)  # where the tables start
        climb = torch.full_like(flat, self._height - self.device_height)
        line = torch.hypot(flat, climb)
        clear = self._clear(flat, line)
        blocked = torch.maximum(clear, self._blocked(line))
        probability = {
            "yes": torch.ones_like(uniform),
            "no": torch.zeros_like(uniform),
            "chance": self.sight_probability(distance),
        }
        in_sight = uniform < probability[self.sight]
        return torch.where(in_sight, clear, blocked)

    def sight_probability(self, distance: Tensor) -> Tensor:
        """The probability of line of sight, 1 up to 18 m."""
        fall = 63.0 if self._is_macro else 36.0
        near = (18 / distance.clamp(min=1e-9)).clamp(max=1.0)
        return near + torch.exp(-distance / fall) * (1 - near)

    def _clear(self, flat: Tensor, line: Tensor) -> Tensor:
        """The loss in line of sight, with another slope beyond the breakpoint."""
        start, slope, bend = (28.0, 22.0, 9.0) if self._is_macro else (32.4, 21.0, 9.5)
        carrier = 20 * math.log10(self.carrier / 1e9)
        height = self._height
        heights = (height - _EFFECTIVE_HEIGHT) * (self.device_height - _EFFECTIVE_HEIGHT)
        breakpoint = 4 * heights * self.carrier / _LIGHT
        near = start + slope * torch.log10(line) + carrier
        bent = bend * math.log10(breakpoint**2 + (height - self.device_height) ** 2)
        beyond = start + 40 * torch.log10(line) + carrier - bent
        return torch.where(flat <= breakpoint, near, beyond)

    def _blocked(self, line: Tensor) -> Tensor:
        """The loss without line of sight."""
        carrier = math.log10(self.carrier / 1e9)
        above = self.device_height - 1.5
        if self._is_macro:
            return 13.54 + 39.08 * torch.log10(line) + 20 * carrier - 0.6 * above
        return 22.4 + 35.3 * torch.log10(line) + 21.3 * carrier - 0.3 * above


@dataclass(frozen=True)
class Noise:
    """Noise of a fixed power in watts for any band (the paper's), or of a power per hertz."""

    watts: Positive
    per_hertz: bool = False

    def __post_init__(self) -> None:
        if is_number(self.watts) and self.watts <= 0:
            rule = "must be above 0; in a file, write noise in dBm or dBm/Hz"
            raise ConfigError(f"Noise: watts = {self.watts} {rule}.")
        check(self)

    def over(self, band: Tensor) -> Tensor:
        """The noise power over a band in hertz."""
        if self.per_hertz:
            return self.watts * band
        return torch.full_like(band, self.watts)


@dataclass(frozen=True)
class Channel:
    """From a device's distance to its channel gain in a round."""

    noise: Noise
    path_loss: PathLoss = LogDistance()
    shadowing: NonNegative = 0.0  # dB, the standard deviation
    fading: Literal["none", "rayleigh", "rician"] = "rayleigh"
    rice_factor: float = 6.0  # dB: the power of the direct path over that of all others

    def __post_init__(self) -> None:
        check(self)

    def gain(self, distance: Tensor, ids: Tensor, *, rounds: range, seed: int) -> Tensor:
        """The power gain h of every device in every round, [rounds, n]."""
        sight = draws.key(seed, "sight")
        uniform = draws.uniform(sight, ids, 1)[:, 0]
        shadowing = draws.key(seed, "shadowing")
        normal = draws.normal(shadowing, ids, 1)[:, 0]
        loss = self.path_loss.loss(distance, uniform) + self.shadowing * normal
        mean = 10 ** (-loss / 10)
        fading = [self.fade(ids, round=number, seed=seed) for number in rounds]
        return mean * torch.stack(fading)

    def fade(self, ids: Tensor, *, round: int, seed: int) -> Tensor:
        """The fading power of one round, [n], of mean 1."""
        if self.fading == "none":
            return torch.ones(len(ids), dtype=torch.float64)
        factor = 0.0
        if self.fading == "rician":
            factor = 10 ** (self.rice_factor / 10)
        address = draws.key(seed, round, "fading")
        real, imaginary = draws.normal(address, ids, 2).unbind(1)
        power = (math.sqrt(2 * factor) + real) ** 2 + imaginary**2
        return power / (2 * (1 + factor))
