"""The work of a device for one answer, in weights and steps; a plan computes with it.

The letters are those of Liu and Ratnarajah, 2023, (12) to (15).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.codecs import Codec, header
from covey.errors import ConfigError

Size = float | Tensor
"""A number of weights: the same for all devices, or one for each, [n]."""

_SMALLEST = {"bits": 1, "steps": 1, "personal_steps": 0, "probe_steps": 0, "numbers": 0}


@dataclass(frozen=True, eq=False)
class Work:
    """A device's round: personal steps, probe steps, steps on the weights kept, their upload.

    Probe steps rank the weights before some of them are pruned. `numbers` are sent beside the
    weights, each as a message of its own, such as the number of examples of a device. `extra` are
    the bits of everything else that is sent; None stands for a bitmap's header and mask, and the
    numbers in float32.
    """

    shared: Size  # N_u, weights that are pruned, trained and sent
    personal: Size = 0.0  # N_v, weights that stay on the device
    bits: float = 32  # q, of a weight
    steps: int = 1  # tau_u
    personal_steps: int = 1  # tau_v
    probe_steps: int = 1  # tau_hat_u
    numbers: int = 0
    extra: float | None = None

    def __post_init__(self) -> None:
        shared = torch.as_tensor(self.shared)
        personal = torch.as_tensor(self.personal)
        if not (shared >= 1).all() or not (personal >= 0).all():
            rule = f"{self.shared} must be 1 or more and personal = {self.personal} 0 or more"
            raise ConfigError(f"Work: shared = {rule}.")
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if value < smallest:
                raise ConfigError(f"Work: {name} = {value} must be {smallest} or more.")

    def whole(self) -> Work:
        """The same model with no personal part: all of it is pruned and sent."""
        everything = self.shared + self.personal
        return replace(self, shared=everything, personal=0.0, extra=None)

    def unprobed(self) -> Work:
        """Without the steps that rank weights, which nobody needs who prunes nothing."""
        return replace(self, probe_steps=0)

    @property
    def number_bits(self) -> int:
        """The bits of the numbers beside the weights, in float32."""
        return self.numbers * 8 * (header.SIZE + 4)

    def sent_by(self, codec: Codec, size: int) -> Work:
        """The same, with the bits that a codec takes for pruned rows of `size` bytes a value.

        The rows are of one width for all devices. `bits` and `extra` are the smallest with which
        no message is longer than `extra` plus `bits` for every weight in it. Nothing changes where
        lengths depend on values, or where pruned weights are sent as well.
        """
        width = int(self.shared)
        counts = torch.arange(width + 1)
        lengths = codec.lengths(counts, width=width, size=size, masked=True)
        if lengths is None:
            return replace(self, bits=8 * size)
        growth = lengths[-1] - lengths[0]
        if int(growth) * 8 < width:
            return replace(self, bits=8 * size)
        bits = 8.0 * float(growth) / width
        beyond = 8.0 * lengths - bits * counts.double()
        number_bits = self.numbers * 8 * (header.SIZE + size)
        return replace(self, bits=bits, extra=float(beyond.max()) + number_bits)

    def constant_cycles(self, cycles: Tensor) -> Tensor:
        """CPU cycles that no pruning saves, [n]: the first two terms of (12).

        `cycles` are those of each device per weight.
        """
        personal = self.personal_steps * self.personal
        probe = self.probe_steps * self.shared
        return cycles * (personal + probe)

    def shared_cycles(self, cycles: Tensor) -> Tensor:
        """CPU cycles of training the whole shared part, [n]."""
        return cycles * self.steps * self.shared
