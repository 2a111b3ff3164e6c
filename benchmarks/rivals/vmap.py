"""All devices at once with `torch.func`: `vmap(grad(loss))` on stacked parameters, in place."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from benchmarks.rivals import crew
from benchmarks.rivals.spec import Array, Spec, told
from benchmarks.rivals.tidy import Tidy, views

Stacked = dict[str, Tensor]


class Vmapped(Tidy):
    """The same data and layout as the loop's."""

    def __init__(self, spec: Spec, threads: int) -> None:
        super().__init__(spec, threads)
        names = [name for name, _ in self.module.named_parameters()]

        def loss(weights: Stacked, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.module, weights, (x,)), y)

        self.names = names
        self.gradient = vmap(grad(loss))

    @torch.no_grad()
    def total(self, w: Array, ids: Array, picks: Array) -> Array:
        """Train the devices together."""
        start = views(torch.from_numpy(w), self.spec)
        theta = {}
        for name, value in zip(self.names, start, strict=True):
            theta[name] = value.expand(len(ids), *value.shape).clone()
        device = torch.from_numpy(ids)[:, None]
        by_draw = torch.from_numpy(picks).transpose(0, 1)
        if self.spec.lam is None:
            answer = self._all_fedavg(theta, device, by_draw)
        else:
            answer = self._all_pfedme(theta, device, by_draw, self.spec.lam)
        return torch.cat([answer[name].sum(0).flatten() for name in self.names]).numpy()

    def _all_fedavg(self, theta: Stacked, device: Tensor, by_draw: Tensor) -> Stacked:
        for pick in by_draw:
            gradients = self.gradient(theta, self.x[device, pick], self.y[device, pick])
            for name, value in theta.items():
                value.sub_(gradients[name], alpha=self.spec.lr)
        return theta

    def _all_pfedme(self, theta: Stacked, device: Tensor, by_draw: Tensor, lam: float) -> Stacked:
        step = self.spec.personal_lr
        local = {name: value.clone() for name, value in theta.items()}
        for pick in by_draw:
            x = self.x[device, pick]
            y = self.y[device, pick]
            for _ in range(self.spec.inner):
                gradients = self.gradient(theta, x, y)
                for name, value in theta.items():
                    value.lerp_(local[name], step * lam).sub_(gradients[name], alpha=step)
            for name, value in local.items():
                value.lerp_(theta[name], self.spec.lr * lam)
        return local


if __name__ == "__main__":
    crew.run(Vmapped, told(), threads=int(sys.argv[2]), processes=int(sys.argv[3]))
