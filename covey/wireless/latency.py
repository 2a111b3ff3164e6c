"""How long a round takes a device and what it costs in joules: (12) to (18) of Liu and Ratnarajah, 2023.

The paper's N_u, N_v, q, tau_u, tau_v, tau_hat_u, rho, C, f, p are `shared`, `personal`, `bits`, `steps`, `personal_steps`,
`probe_steps`, `ratio`, and the devices' `cycles`, `cpu`, `power`. Sending down and adding up are free, as there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.codecs import CODECS, Codec, header
from covey.errors import ConfigError
from covey.wireless.channel import Noise
from covey.wireless.device import Cells, Devices

Size = float | Tensor
"""A number of weights: the same for all devices, or one for each, [n]."""


@dataclass(frozen=True, eq=False)
class Work:
    """A device's round: personal steps, probe steps to rank weights, steps on the weights kept, and their upload."""

    shared: Size  # N_u, weights that are pruned, trained and sent
    personal: Size = 0.0  # N_v, weights that stay on the device
    bits: float = 32  # q, of a weight
    steps: int = 1  # tau_u
    personal_steps: int = 1  # tau_v
    probe_steps: int = 1  # tau_hat_u
    numbers: int = 0  # sent beside the weights, each a message of its own, such as how many examples a device has
    extra: float | None = None  # bits of all else that is sent; None: a bitmap's header and mask, and the numbers in float32

    def __post_init__(self) -> None:
        if not (torch.as_tensor(self.shared) >= 1).all() or not (torch.as_tensor(self.personal) >= 0).all():
            raise ConfigError(f"Work: shared = {self.shared} must be 1 or more and personal = {self.personal} 0 or more.")
        for name, least in (("bits", 1), ("steps", 1), ("personal_steps", 0), ("probe_steps", 0), ("numbers", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"Work: {name} = {getattr(self, name)} must be {least} or more.")

    def whole(self) -> Work:
        """The same model with no personal part: all of it is pruned and sent."""
        return replace(self, shared=self.shared + self.personal, personal=0.0, extra=None)

    def unprobed(self) -> Work:
        """Without the steps that rank weights, which nobody needs who prunes nothing."""
        return replace(self, probe_steps=0)

    @property
    def number_bits(self) -> int:
        """What the numbers beside the weights take."""
        return self.numbers * 8 * (header.SIZE + 4)

    def sent_by(self, codec: Codec, size: int) -> Work:
        """The same, with the bits that a codec takes for pruned rows of `size` bytes a value, of one width for all devices.

        They are the least with which no message is longer than `extra` and `bits` for every weight in it. Nothing changes where
        lengths depend on values, or where pruned weights are sent as well.
        """
        width = int(self.shared)
        lengths = codec.lengths(torch.arange(width + 1), width=width, size=size, masked=True)
        if lengths is None or int(lengths[-1] - lengths[0]) * 8 < width:
            return replace(self, bits=8 * size)
        bits = 8.0 * float(lengths[-1] - lengths[0]) / width
        extra = float((8.0 * lengths - bits * torch.arange(width + 1, dtype=torch.float64)).max())
        return replace(self, bits=bits, extra=extra + self.numbers * 8 * (header.SIZE + size))

    def constant_cycles(self, devices: Devices) -> Tensor:
        """CPU cycles that no pruning saves, [n]: the first two terms of (12)."""
        return devices.cycles * (self.personal_steps * self.personal + self.probe_steps * self.shared)

    def shared_cycles(self, devices: Devices) -> Tensor:
        """CPU cycles of training the whole shared part, [n]."""
        return devices.cycles * self.steps * self.shared


def rate(band: Tensor, gain: Tensor, power: Tensor, noise: Noise) -> Tensor:
    """(13): what a device sends over a band, in bit/s; 0 over none."""
    heard = noise.over(band)
    return band * torch.log2(1 + torch.where(heard > 0, gain * power / heard, 0.0))


@dataclass(frozen=True, eq=False)
class Timing:
    """Seconds and joules of every device in every round, [rounds, n]; 0 for those that are not asked."""

    compute: Tensor  # (12)
    upload: Tensor  # (14)
    compute_joules: Tensor
    upload_joules: Tensor

    @property
    def latency(self) -> Tensor:
        """(16), (17)."""
        return self.compute + self.upload

    @property
    def joules(self) -> Tensor:
        return self.compute_joules + self.upload_joules


def timing(work: Work, devices: Devices, *, kept: Tensor, rate: Tensor, bits: Tensor, asked: Tensor) -> Timing:
    """What a round takes at these parts kept and rates; `bits` is what is sent: `formula_bits`, `encoded_bits` or measured."""
    cycles = asked * (work.constant_cycles(devices) + kept * work.shared_cycles(devices))
    upload = torch.where(asked & (bits > 0), bits / rate, 0.0)
    return Timing(cycles / devices.cpu, upload, devices.capacitance * devices.cpu**2 * cycles, devices.power * upload)


def formula_bits(work: Work, kept: Tensor) -> Tensor:
    """q (1 - rho) N_u, the paper's: neither the mask nor a header is counted."""
    return work.bits * kept * work.shared


def encoded_bits(work: Work, kept: Tensor, codec: str = "bitmap") -> Tensor:
    """The bits of the message a codec really makes of the kept weights and their mask, in float32; or as the work itself says."""
    if work.extra is not None:
        count = whole_weights(kept, work.shared)
        return torch.where(count > 0, work.extra + work.bits * count, 0.0)
    width = torch.as_tensor(work.shared, dtype=torch.float64).expand(kept.shape)
    count = whole_weights(kept, width).long()
    out = torch.zeros(kept.shape, dtype=torch.float64)
    for size in sorted(set(width.reshape(-1).tolist())):
        here = width == size
        lengths = CODECS[codec].lengths(count[here], width=int(size), size=4, masked=True)
        if lengths is None:
            raise ConfigError(f"codec {codec!r}: its lengths depend on the values; give the bits measured.")
        out[here] = 8 * lengths.double() + work.number_bits
    return torch.where(count > 0, out, 0.0)


def whole_weights(kept: Tensor, width: Tensor | float) -> Tensor:
    """How many weights a part is, and not one too many for the deadline it was reckoned for."""
    return torch.floor(kept * width * (1 + 1e-9))


def mask_bits(work: Work) -> Tensor:
    """What is sent beyond the weights: a header, a bit for each weight that may be kept, padded, and the numbers beside them."""
    if work.extra is not None:
        return torch.tensor(work.extra, dtype=torch.float64)
    return 8 * (header.SIZE + torch.ceil(torch.as_tensor(work.shared, dtype=torch.float64) / 8)) + work.number_bits


def wire_seconds(cells: Cells, work: Work) -> Tensor:
    """What an edge's own message to the server takes, [cells]: its whole shared part."""
    widest = torch.as_tensor(work.shared, dtype=torch.float64).max()
    return cells.wire_delay + work.bits * widest / cells.wire_rate
