"""Random problems."""

import numpy as np
import torch

from covey.wireless import Problem


def problem(
    seed: int,
    *,
    devices: int = 8,
    groups: int = 1,
    density: bool = False,
    mask: bool = False,
    rho_max: float = 0.95,
) -> Problem:
    """Devices with budgets, training and sending times over orders of magnitude."""
    draw = np.random.default_rng(seed)
    n = devices * groups

    def spread(low: float, high: float) -> torch.Tensor:
        return torch.tensor(low * (high / low) ** draw.random(n), dtype=torch.float64)

    send = spread(1e-3, 0.3)
    return Problem(
        budget=spread(2e-3, 0.1),
        compute=spread(1e-3, 0.1),
        send=send,
        mask=send * spread(0.003, 0.03) if mask else torch.zeros(n, dtype=torch.float64),
        weight=torch.ones(n, dtype=torch.float64),
        snr=spread(1e-2, 1e6) if density else None,
        group=torch.arange(n) % groups,
        groups=groups,
        rho_max=rho_max,
    )
