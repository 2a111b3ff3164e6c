"""A radio channel: path loss, shadowing, block fading, and the noise it is heard against.

Shadowing and line of sight belong to a device and last; fading is new in every round. All of them
are draws by address, so a device's channel in a round does not depend on which other devices or
rounds are looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from covey import draws
from covey.errors import ConfigError

_LIGHT = 299_792_458.0  # m/s
_EFFECTIVE_HEIGHT = 1.0  # m: 38.901 takes it off both antennas before the breakpoint


class PathLoss(Protocol):
    """Mean loss in dB over distances [n] in metres; `chance` [n] in [0, 1) decides who is in line
    of sight.
    """

    def loss(self, distance: Tensor, chance: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LogDistance:
    """PL = reference + 10 exponent log10(d / near).

    3GPP's older urban macro cell at 2 GHz, 128.1 + 37.6 log10(d in km), is reference 128.1,
    exponent 3.76, near 1000.

    >>> LogDistance(reference=30, exponent=3.5).loss(torch.tensor([1.0, 10.0]), torch.zeros(2)).tolist()
    [30.0, 65.0]
    """

    reference: float = 30.0  # dB at `near`
    exponent: float = 3.5
    near: float = 1.0  # m

    def __post_init__(self) -> None:
        if not (
            0 < self.exponent < math.inf
            and 0 < self.near < math.inf
            and math.isfinite(self.reference)
        ):
            facts = f"reference = {self.reference}, exponent = {self.exponent}, near = {self.near}"
            raise ConfigError(f"LogDistance: {facts} must be finite, the last two above 0.")

    def loss(self, distance: Tensor, chance: Tensor) -> Tensor:
        return self.reference + 10 * self.exponent * torch.log10(distance / self.near)


@dataclass(frozen=True)
class Urban:
    """The urban macro and micro cells of 3GPP TR 38.901 (tables 7.4.1-1 and 7.4.2-1), devices at up
    to 13 m.

    `sight` "chance" draws line of sight with the standard's probability; "yes" and "no" decide it.
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
                f"Urban: device_height = {self.device_height:g} m; the model holds from 1.5 to 13 m."
            )

    def loss(self, distance: Tensor, chance: Tensor) -> Tensor:
        height = self.edge_height or (25.0 if self.kind == "macro" else 10.0)
        flat = distance.clamp(min=10.0)  # where the tables start
        line = torch.hypot(flat, torch.full_like(flat, height - self.device_height))
        clear = self._clear(flat, line, height)
        blocked = torch.maximum(clear, self._blocked(line))
        seen = {
            "yes": torch.ones_like(chance),
            "no": torch.zeros_like(chance),
            "chance": self.sight_probability(distance),
        }
        return torch.where(chance < seen[self.sight], clear, blocked)

    def sight_probability(self, distance: Tensor) -> Tensor:
        """The probability of line of sight, 1 up to 18 m."""
        fall = 63.0 if self.kind == "macro" else 36.0
        near = (18 / distance.clamp(min=1e-9)).clamp(max=1.0)
        return near + torch.exp(-distance / fall) * (1 - near)

    def _clear(self, flat: Tensor, line: Tensor, height: float) -> Tensor:
        start, slope, bend = (28.0, 22.0, 9.0) if self.kind == "macro" else (32.4, 21.0, 9.5)
        carrier = 20 * math.log10(self.carrier / 1e9)
        heights = (height - _EFFECTIVE_HEIGHT) * (self.device_height - _EFFECTIVE_HEIGHT)
        breakpoint = 4 * heights * self.carrier / _LIGHT
        near = start + slope * torch.log10(line) + carrier
        bent = bend * math.log10(breakpoint**2 + (height - self.device_height) ** 2)
        return torch.where(
            flat <= breakpoint, near, start + 40 * torch.log10(line) + carrier - bent
        )

    def _blocked(self, line: Tensor) -> Tensor:
        carrier, above = math.log10(self.carrier / 1e9), self.device_height - 1.5
        if self.kind == "macro":
            return 13.54 + 39.08 * torch.log10(line) + 20 * carrier - 0.6 * above
        return 22.4 + 35.3 * torch.log10(line) + 21.3 * carrier - 0.3 * above


@dataclass(frozen=True)
class Noise:
    """Noise of a fixed power, in watts, whatever band a device has (the paper's), or of a power per
    hertz of its band.
    """

    watts: float
    per_hertz: bool = False

    def __post_init__(self) -> None:
        if not (self.watts > 0 and math.isfinite(self.watts)):
            raise ConfigError(
                f"Noise: watts = {self.watts} must be above 0; in a file, write noise in dBm or dBm/Hz."
            )

    def over(self, band: Tensor) -> Tensor:
        """Its power over a band in hertz."""
        return self.watts * band if self.per_hertz else torch.full_like(band, self.watts)


@dataclass(frozen=True)
class Channel:
    """From a device's distance to its channel gain in a round."""

    noise: Noise
    path_loss: PathLoss = LogDistance()
    shadowing: float = 0.0  # dB, the standard deviation
    fading: Literal["none", "rayleigh", "rician"] = "rayleigh"
    rice_factor: float = 6.0  # dB: the power of the direct path over that of all others

    def __post_init__(self) -> None:
        if self.shadowing < 0:
            raise ConfigError(f"Channel: shadowing = {self.shadowing:g} dB must be 0 or more.")
        if self.fading not in ("none", "rayleigh", "rician"):
            raise ConfigError(
                f"Channel: fading = {self.fading!r} must be 'none', 'rayleigh' or 'rician'."
            )

    def gain(self, distance: Tensor, ids: Tensor, *, rounds: range, seed: int) -> Tensor:
        """The power gain h of every device in every round, [rounds, n]."""
        chance = draws.uniform(draws.key(seed, "sight"), ids, 1)[:, 0]
        shadow = self.shadowing * draws.normal(draws.key(seed, "shadowing"), ids, 1)[:, 0]
        mean = 10 ** (-(self.path_loss.loss(distance, chance) + shadow) / 10)
        return mean * torch.stack([self.fade(ids, round=g, seed=seed) for g in rounds])

    def fade(self, ids: Tensor, *, round: int, seed: int) -> Tensor:
        """The fading power of one round, [n], of mean 1."""
        if self.fading == "none":
            return torch.ones(len(ids), dtype=torch.float64)
        factor = 10 ** (self.rice_factor / 10) if self.fading == "rician" else 0.0
        real, imaginary = draws.normal(draws.key(seed, round, "fading"), ids, 2).unbind(1)
        return ((math.sqrt(2 * factor) + real) ** 2 + imaginary**2) / (2 * (1 + factor))
