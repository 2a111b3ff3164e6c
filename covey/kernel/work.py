"""What a device does for one answer, in numbers of weights and steps; a radio plan reckons by it.

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


@dataclass(frozen=True, eq=False)
class Work:
    """A device's round: personal steps, probe steps to rank weights, steps on the weights kept, and
    their upload.
    """

    shared: Size  # N_u, weights that are pruned, trained and sent
    personal: Size = 0.0  # N_v, weights that stay on the device
    bits: float = 32  # q, of a weight
    steps: int = 1  # tau_u
    personal_steps: int = 1  # tau_v
    probe_steps: int = 1  # tau_hat_u
    numbers: int = 0  # sent beside the weights, each a message of its own, such as how many examples a device has
    extra: float | None = (
        None  # bits of all else that is sent; None: a bitmap's header and mask, and the numbers in float32
    )

    def __post_init__(self) -> None:
        if (
            not (torch.as_tensor(self.shared) >= 1).all()
            or not (torch.as_tensor(self.personal) >= 0).all()
        ):
            raise ConfigError(
                f"Work: shared = {self.shared} must be 1 or more and personal = {self.personal} 0 or more."
            )
        for name, least in (
            ("bits", 1),
            ("steps", 1),
            ("personal_steps", 0),
            ("probe_steps", 0),
            ("numbers", 0),
        ):
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
        """The same, with the bits that a codec takes for pruned rows of `size` bytes a value, of
        one width for all devices.

        They are the least with which no message is longer than `extra` and `bits` for every weight
        in it. Nothing changes where lengths depend on values, or where pruned weights are sent as
        well.
        """
        width = int(self.shared)
        lengths = codec.lengths(torch.arange(width + 1), width=width, size=size, masked=True)
        if lengths is None or int(lengths[-1] - lengths[0]) * 8 < width:
            return replace(self, bits=8 * size)
        bits = 8.0 * float(lengths[-1] - lengths[0]) / width
        extra = float((8.0 * lengths - bits * torch.arange(width + 1, dtype=torch.float64)).max())
        return replace(self, bits=bits, extra=extra + self.numbers * 8 * (header.SIZE + size))

    def constant_cycles(self, cycles: Tensor) -> Tensor:
        """CPU cycles that no pruning saves, [n]: the first two terms of (12); `cycles` is what each
        device takes per weight.
        """
        return cycles * (self.personal_steps * self.personal + self.probe_steps * self.shared)

    def shared_cycles(self, cycles: Tensor) -> Tensor:
        """CPU cycles of training the whole shared part, [n]."""
        return cycles * self.steps * self.shared
