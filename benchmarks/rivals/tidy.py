"""The tidy loop: device after device, one module, `autograd.grad`, multi-tensor updates in place."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rivals import crew
from benchmarks.rivals.spec import Array, Spec, told


def module_of(spec: Spec) -> nn.Sequential:
    """The model of a work."""
    if not spec.hidden:
        return nn.Sequential(nn.Linear(spec.inputs, 10))
    return nn.Sequential(nn.Linear(spec.inputs, spec.hidden), nn.ReLU(), nn.Linear(spec.hidden, 10))


def views(flat: Tensor, spec: Spec) -> list[Tensor]:
    """The parameters inside one vector."""
    sizes = [int(np.prod(shape)) for shape in spec.shapes]
    parts = flat.split(sizes)
    return [part.view(shape) for part, shape in zip(parts, spec.shapes, strict=True)]


class Tidy:
    """The loop."""

    def __init__(self, spec: Spec, threads: int) -> None:
        torch.set_num_threads(threads)
        self.spec = spec
        x, y = spec.data()
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(y)
        self.module = module_of(spec)
        self.parameters: list[Tensor] = list(self.module.parameters())

    def pack(self, weights: list[Array]) -> Array:
        """One vector, in torch's order."""
        return np.concatenate([w.reshape(-1) for w in weights]).astype(np.float32)

    def unpack(self, w: Array) -> list[Array]:
        """The parameters inside it."""
        return [view.numpy().copy() for view in views(torch.from_numpy(w), self.spec)]

    @torch.no_grad()
    def total(self, w: Array, ids: Array, picks: Array) -> Array:
        """Train the devices one after the other."""
        start = views(torch.from_numpy(w), self.spec)
        sums = torch.zeros(self.spec.width)
        total = views(sums, self.spec)
        for device, pick in zip(ids.tolist(), torch.from_numpy(picks), strict=True):
            torch._foreach_copy_(self.parameters, start)
            if self.spec.lam is None:
                answer = self._fedavg(device, pick)
            else:
                answer = self._pfedme(device, pick, self.spec.lam)
            torch._foreach_add_(total, answer)
        return sums.numpy()

    def _fedavg(self, device: int, picks: Tensor) -> list[Tensor]:
        parameters = [p.detach() for p in self.parameters]
        for pick in picks:
            gradients = self._gradients(self.x[device][pick], self.y[device][pick])
            torch._foreach_add_(parameters, gradients, alpha=-self.spec.lr)
        return parameters

    def _pfedme(self, device: int, picks: Tensor, lam: float) -> list[Tensor]:
        step = self.spec.personal_lr
        parameters = [p.detach() for p in self.parameters]
        local = [p.clone() for p in parameters]
        for pick in picks:
            x = self.x[device][pick]
            y = self.y[device][pick]
            for _ in range(self.spec.inner):
                gradients = self._gradients(x, y)
                torch._foreach_lerp_(parameters, local, step * lam)
                torch._foreach_add_(parameters, gradients, alpha=-step)
            torch._foreach_lerp_(local, parameters, self.spec.lr * lam)
        return local

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            loss = F.cross_entropy(self.module(x), y)
            return torch.autograd.grad(loss, self.parameters)


if __name__ == "__main__":
    from benchmarks.rivals.tidy import Tidy as Loop  # so that processes can import it by name

    crew.run(Loop, told(), threads=int(sys.argv[2]), processes=int(sys.argv[3]))
