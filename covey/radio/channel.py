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
            raise ConfigError(
                f"Urban: carrier = {self.carrier:g} Hz; the model holds from 0.5 to 100 GHz."
            )
        if not 1.5 <= self.device_height <= 13:
            raise ConfigError(
                f"Urban: device_height = {self.device_height:g} m; "
                "the model holds from 1.5 to 13 m."
            )

    def loss(self, distance: Tensor, uniform: Tensor) -> Tensor:
        macro = self.kind == "macro"
        height = self.edge_height or (25.0 if macro else 10.0)  # of the edge's antenna
        flat = distance.clamp(min=10.0)  # where the tables start
        climb = torch.full_like(flat, height - self.device_height)
        fall = torch.log10(torch.hypot(flat, climb))
        carrier = math.log10(self.carrier / 1e9)
        # In line of sight the slope changes at the breakpoint.
        start, slope, bend = (28.0, 22.0, 9.0) if macro else (32.4, 21.0, 9.5)
        heights = (height - _EFFECTIVE_HEIGHT) * (self.device_height - _EFFECTIVE_HEIGHT)
        breakpoint = 4 * heights * self.carrier / _LIGHT
        bent = bend * math.log10(breakpoint**2 + (height - self.device_height) ** 2)
        near = start + slope * fall + 20 * carrier
        beyond = start + 40 * fall + 20 * carrier - bent
        clear = torch.where(flat <= breakpoint, near, beyond)
        above = self.device_height - 1.5
        blocked = 22.4 + 35.3 * fall + 21.3 * carrier - 0.3 * above
        if macro:
            blocked = 13.54 + 39.08 * fall + 20 * carrier - 0.6 * above
        in_sight = uniform < self.sight_probability(distance)
        if self.sight != "chance":
            in_sight = torch.full_like(in_sight, self.sight == "yes")
        return torch.where(in_sight, clear, torch.maximum(clear, blocked))

    def sight_probability(self, distance: Tensor) -> Tensor:
        """The probability of line of sight, 1 up to 18 m."""
        fall = 63.0 if self.kind == "macro" else 36.0
        near = (18 / distance.clamp(min=1e-9)).clamp(max=1.0)
        return near + torch.exp(-distance / fall) * (1 - near)


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
        uniform = draws.uniform(draws.key(seed, "sight"), ids, 1)[:, 0]
        normal = draws.normal(draws.key(seed, "shadowing"), ids, 1)[:, 0]
        loss = self.path_loss.loss(distance, uniform) + self.shadowing * normal
        fading = [self.fade(ids, round=number, seed=seed) for number in rounds]
        return 10 ** (-loss / 10) * torch.stack(fading)

    def fade(self, ids: Tensor, *, round: int, seed: int) -> Tensor:
        """The fading power of one round, [n], of mean 1."""
        if self.fading == "none":
            return torch.ones(len(ids), dtype=torch.float64)
        factor = 10 ** (self.rice_factor / 10) if self.fading == "rician" else 0.0
        address = draws.key(seed, round, "fading")
        real, imaginary = draws.normal(address, ids, 2).unbind(1)
        power = (math.sqrt(2 * factor) + real) ** 2 + imaginary**2
        return power / (2 * (1 + factor))
