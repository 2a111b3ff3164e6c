"""covey against the plain per-device loop on the same work, both on all cores, in one process: `make bench`.

W1 is pFedMe's MNIST run: 20 devices, 784-100-10, R = 20 local rounds of K = 5 steps on one batch of 20. W2 is FedAvg on the same
devices, 20 steps. The loop is what a careful author writes by hand: one module, one autograd pass per step, updates in place,
no DataLoader, no copies of the model. Its intra-op threads are tried at one and at all cores; the faster one counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import covey
from covey.algorithms import FedAvg, PFedMe
from covey.data import own

DEVICES, EXAMPLES, BATCH = 20, 200, 20


def data() -> covey.data.Shards:
    """Random images; speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(DEVICES, EXAMPLES, 784, generator=generator)
    y = torch.randint(10, (DEVICES, EXAMPLES), generator=generator)
    return own([(x[d], y[d]) for d in range(DEVICES)])


class Loop:
    """The yardstick: device after device, step after step."""

    def __init__(self, shards: covey.data.Shards) -> None:
        self.model = covey.models.mlp(784, 100, 10)
        self.parameters = list(self.model.parameters())
        self.loss = nn.CrossEntropyLoss()
        self.shards = shards
        self.w = [p.detach().clone() for p in self.parameters]

    def batch(self, device: int) -> tuple[Tensor, Tensor]:
        held = self.shards.train.held(device)
        pick = held[torch.randint(len(held), (BATCH,))]
        return self.shards.x[pick], self.shards.y[pick]

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.loss(self.model(x), y), self.parameters)

    def start(self) -> None:
        with torch.no_grad():
            for p, w in zip(self.parameters, self.w, strict=True):
                p.copy_(w)

    def pfedme(self, lam: float = 15.0, lr: float = 0.005, personal_lr: float = 0.09) -> None:
        total = [torch.zeros_like(w) for w in self.w]
        for device in range(DEVICES):
            self.start()
            local = [w.clone() for w in self.w]
            for _ in range(20):
                x, y = self.batch(device)
                for _ in range(5):
                    gradients = self.gradients(x, y)
                    with torch.no_grad():
                        for p, g, w in zip(self.parameters, gradients, local, strict=True):
                            p.sub_(personal_lr * (g + lam * (p - w)))
                with torch.no_grad():
                    for p, w in zip(self.parameters, local, strict=True):
                        w.sub_(lr * lam * (w - p))
            for t, w in zip(total, local, strict=True):
                t += w / DEVICES
        self.w = total

    def fedavg(self, lr: float = 0.02) -> None:
        total = [torch.zeros_like(w) for w in self.w]
        for device in range(DEVICES):
            self.start()
            for _ in range(20):
                x, y = self.batch(device)
                gradients = self.gradients(x, y)
                with torch.no_grad():
                    for p, g in zip(self.parameters, gradients, strict=True):
                        p.sub_(lr * g)
            for t, p in zip(total, self.parameters, strict=True):
                t += p.detach() / DEVICES
        self.w = total


def covey_rounds(algorithm: covey.Algorithm, shards: covey.data.Shards, rounds: int) -> Callable[[], object]:
    """One round per call, through the ordinary API; metering on, scores only at the end."""
    experiment = covey.Experiment(
        algorithm=algorithm,
        data=shards,
        model=covey.models.mlp(784, 100, 10),
        tree=covey.Tree.flat(DEVICES),
        rounds=rounds,
        score_every=rounds,
    )
    run = covey.run(experiment)
    return lambda: next(run)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The fastest of several calls, after one to warm up."""
    call()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    """Print one line per work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    shards, cores = data(), torch.get_num_threads()
    print(f"torch {torch.__version__}, {cores} cores, fp32; seconds per round, the fastest of {repeats}")
    works: list[tuple[str, covey.Algorithm, str]] = [("W1 pFedMe", PFedMe(), "pfedme"), ("W2 FedAvg", FedAvg(), "fedavg")]
    for name, algorithm, method in works:
        loops = {}
        for threads in sorted({1, cores}):
            torch.set_num_threads(threads)
            loops[threads] = seconds(getattr(Loop(shards), method), repeats)
        torch.set_num_threads(cores)
        ours = seconds(covey_rounds(algorithm, shards, repeats + 2), repeats)
        loop = min(loops.values())
        shown = ", ".join(f"{s:.3f} on {t} threads" for t, s in loops.items())
        print(f"{name}: loop {shown}; covey {ours:.3f}; ratio {ours / loop:.3f} ({loop / ours:.1f}x)")


if __name__ == "__main__":
    main()
