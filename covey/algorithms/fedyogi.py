"""FedYogi: FedAvg whose server takes Yogi's steps (Reddi et al., 2021, Algorithm 2).

It is FedAdam (fedadam.py, with the paper's letters) but for v, which moves by the sign of v -
Delta^2: where gradients become small, it does not forget the large ones at once.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey.algorithms.fedadam import FedAdam
from covey.types import Rows


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """v <- v - (1 - beta2) Delta^2 sign(v - Delta^2), w <- w + server_lr m / (sqrt(v) + tau).

    Delta is the mean change of the devices' models, and m <- beta1 m + (1 - beta1) Delta.
    """

    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)

    def mean_square(self, before: Rows, new: Rows) -> Rows:
        return before - (1 - self.beta2) * new * torch.sign(before - new)
