"""FedAMP: the server sends each device a mean of all models in which those like its own weigh most (Huang et al., 2021).

The paper's w_i, u_i, xi_ij, A, sigma, alpha_k, lambda are `theta`, `u`, `weights`, 1 - exp(-x/sigma), `sigma`, `alpha`, `lam`.
It descends sum_i f_i + lam/2 sum_{i<j} A(|w_i - w_j|^2) by turns: a step of size alpha on A at the server, then one of each f_i.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from covey import attention
from covey.algorithm import Algorithm, require
from covey.descend import descend
from covey.nodes import Nodes
from covey.replies import Rows
from covey.tree import Sample


@dataclass(frozen=True)
class FedAMP(Algorithm):
    """u_i = sum_j xi_ij w_j with xi_ij = alpha A'(|w_i - w_j|^2); from u_i, `steps` on f_i + lam/(2 alpha) |w_i - u_i|^2.

    Where alpha would make a self weight xi_ii negative, the server takes the largest step that does not. It holds the last model
    of every device, the initial one of who has not sent any; the global model, which nobody uses, is their mean.
    """

    lam: float = 1.0
    alpha: float = 1.0
    sigma: float = 10.0
    sample: Sample = None
    steps: int = 20
    lr: float = 0.02
    batch: int | None = 20

    sends: ClassVar[str] = "its personal model; the server holds everybody's"

    def __post_init__(self) -> None:
        require(self, lam=(0, 1e9), alpha=(1e-9, 1e30), sigma=None, steps=(1, 1e9), lr=None, batch=(1, 1e9))

    def server(self, me: Nodes, w: Rows) -> Rows:
        models: Tensor = me.recall("_models", default=w[:, None].repeat(1, me.fan, 1))
        u = attention.mixed(self.weights(models), models)
        rows, asker, child = me.ask(self.device, each=(u.flatten(0, 1),), sample=self.sample).gather()
        models[asker, child] = rows
        return me.keep("_models", models).mean(1)

    def weights(self, models: Tensor) -> Tensor:
        """xi, [n, N, N]: rows that sum to 1, none of them negative."""
        slope = attention.only_others(attention.exp(-attention.squared_distances(models) / self.sigma) / self.sigma)  # A'
        most = slope.sum(2, keepdim=True).amax(1, keepdim=True)
        return attention.with_itself(slope / most.clamp(min=1 / self.alpha))

    def device(self, me: Nodes, u: Rows) -> Rows:
        theta = descend(u, me.grad(self.batch), prox=(self.lam / self.alpha, u), steps=self.steps, lr=self.lr)
        return me.keep("personal", theta)
