"""Seconds and joules of a device's round: (12) to (18) of Liu and Ratnarajah, 2023.

The paper's N_u, N_v, q, tau_u, tau_v, tau_hat_u, rho, C, f, p are `shared`, `personal`, `bits`,
`steps`, `personal_steps`, `probe_steps`, `ratio`, and the devices' `cycles`, `cpu`, `power`.
Sending down and aggregation are free, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.codecs import CODECS, header
from covey.errors import ConfigError
from covey.kernel.work import Work
from covey.radio.channel import Noise


def rate(band: Tensor, gain: Tensor, power: Tensor, noise: Noise) -> Tensor:
    """(13): the rate of a device over a band, in bit/s; 0 where it has no band."""
    noise_power = noise.over(band)
    snr = torch.where(noise_power > 0, gain * power / noise_power, 0.0)
    return band * torch.log2(1 + snr)


@dataclass(frozen=True, eq=False)
class Timing:
    """Seconds and joules of every device in every round, [rounds, n]; 0 for devices not asked."""

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


def formula_bits(work: Work, kept: Tensor) -> Tensor:
    """q (1 - rho) N_u, the paper's: neither the mask nor a header is counted."""
    return work.bits * kept * work.shared


def encoded_bits(work: Work, kept: Tensor, codec: str = "bitmap") -> Tensor:
    """The bits of a codec's message of the kept weights and their mask, in float32.

    Where `work` states the bits beyond the weights, those count instead.
    """
    if work.extra is not None:
        count = whole_weights(kept, work.shared)
        return torch.where(count > 0, work.extra + work.bits * count, 0.0)
    width = torch.as_tensor(work.shared, dtype=torch.float64).expand(kept.shape)
    count = whole_weights(kept, width).long()
    out = torch.zeros(kept.shape, dtype=torch.float64)
    for size in torch.unique(width).tolist():
        rows = width == size
        code = CODECS[codec]
        lengths = code.lengths(count[rows], width=int(size), size=4, masked=True)
        if lengths is None:
            raise ConfigError(
                f"codec {codec!r}: its lengths depend on the values; give the bits measured."
            )
        out[rows] = 8 * lengths.double() + work.number_bits
    return torch.where(count > 0, out, 0.0)


def whole_weights(kept: Tensor, width: Tensor | float) -> Tensor:
    """The number of weights kept, rounded down so that the deadline is still met."""
    return torch.floor(kept * width * (1 + 1e-9))


def mask_bits(work: Work) -> Tensor:
    """The bits sent beyond the weights.

    They are a header, one bit for each weight that may be kept, padded, and the numbers beside.
    """
    if work.extra is not None:
        return torch.tensor(work.extra, dtype=torch.float64)
    width = torch.as_tensor(work.shared, dtype=torch.float64)
    mask_bytes = torch.ceil(width / 8)
    return 8 * (header.SIZE + mask_bytes) + work.number_bits
