"""covey against the plain per-device loop on the same work, in one process: `make bench`.

The loop is what a careful author writes by hand: one module, one autograd pass per step, updates in
place, no DataLoader, no copies of the model. Its intra-op threads are tried at one and at all
cores; the faster one counts. `--measure` also times the machine itself, so that each work has its
fraction of what the processor could do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from benchmarks.works import WORKS, Work

Weights = list[Tensor]


class Loop:
    """The yardstick: device after device, step after step.

    One method per algorithm, one call per round.
    """

    def __init__(self, work: Work, shards: covey.data.Shards) -> None:
        self.work, self.shards, self.algorithm = work, shards, work.algorithm
        self.model = work.model()
        self.parameters = list(self.model.parameters())
        self.loss = nn.CrossEntropyLoss()
        self.w = self.weights()
        self.personal: dict[int, Weights] = {}
        self.gaussians: dict[int, Tensor] = {}
        width = sum(p.numel() for p in self.parameters)
        self.rho = torch.full((width,), -3.0)

    def weights(self) -> Weights:
        return [p.detach().clone() for p in self.parameters]

    def start(self, w: Weights) -> None:
        with torch.no_grad():
            for p, value in zip(self.parameters, w, strict=True):
                p.copy_(value)

    def batch(self, device: int) -> tuple[Tensor, Tensor]:
        held = self.shards.train.held(device)
        pick = held[torch.randint(len(held), (self.work.batch,))]
        return self.shards.x[pick], self.shards.y[pick]

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.loss(self.model(x), y), self.parameters)

    def asked(self) -> Iterator[int]:
        yield from torch.randperm(self.work.devices)[: self.work.trained].tolist()

    def mean(self, total: Weights, count: int) -> Weights:
        return [t / count for t in total]

    def fedavg(self) -> None:
        a: Any = self.algorithm
        total = [torch.zeros_like(w) for w in self.w]
        for device in self.asked():
            self.start(self.w)
            for _ in range(a.steps):
                gradients = self.gradients(*self.batch(device))
                with torch.no_grad():
                    for p, g in zip(self.parameters, gradients, strict=True):
                        p.sub_(a.lr * g)
            for t, p in zip(total, self.parameters, strict=True):
                t += p.detach()
        self.w = self.mean(total, self.work.trained)

    def pfedme(self) -> None:
        a: Any = self.algorithm
        total = [torch.zeros_like(w) for w in self.w]
        for device in self.asked():
            self.start(self.w)
            local = [w.clone() for w in self.w]
            for _ in range(a.local_rounds):
                x, y = self.batch(device)
                for _ in range(a.steps):
                    gradients = self.gradients(x, y)
                    with torch.no_grad():
                        for p, g, w in zip(self.parameters, gradients, local, strict=True):
                            p.sub_(a.personal_lr * (g + a.lam * (p - w)))
                with torch.no_grad():
                    for p, w in zip(self.parameters, local, strict=True):
                        w.sub_(a.lr * a.lam * (w - p))
            for t, w in zip(total, local, strict=True):
                t += w
        self.w = self.mean(total, self.work.trained)

    def fedmac(self) -> None:
        a: Any = self.algorithm
        total = [torch.zeros_like(w) for w in self.w]
        for device in self.asked():
            self.start(self.w)
            local = [w.clone() for w in self.w]
            for _ in range(a.local_rounds):
                x, y = self.batch(device)
                for _ in range(a.steps):
                    gradients = self.gradients(x, y)
                    with torch.no_grad():
                        for p, g, w in zip(self.parameters, gradients, local, strict=True):
                            p.sub_(
                                a.personal_lr * (g + a.gamma * torch.tanh(p / a.rho) - a.lam * w)
                            )
                with torch.no_grad():
                    for p, w in zip(self.parameters, local, strict=True):
                        w.sub_(a.lr * (a.lam * (w - p) + a.gamma_w * torch.tanh(w / a.rho)))
            for t, w in zip(total, local, strict=True):
                t += w
        self.w = self.mean(total, self.work.trained)

    def sfedhp(self) -> None:
        a: Any = self.algorithm
        size, total = self.work.devices // self.work.edges, [torch.zeros_like(w) for w in self.w]
        for edge in range(self.work.edges):
            w, phi = [v.clone() for v in self.w], self.w
            personal: dict[int, list[torch.Tensor]] = {}
            for _ in range(a.edge_rounds):
                theta = [torch.zeros_like(v) for v in w]
                for device in range(edge * size, edge * size + size):
                    self.start(personal.get(device, phi))
                    x, y = self.batch(device)
                    for _ in range(a.steps):
                        gradients = self.gradients(x, y)
                        with torch.no_grad():
                            for p, g, v in zip(self.parameters, gradients, phi, strict=True):
                                p.sub_(
                                    a.lr2
                                    * (g + a.lam1 * (p - v) + a.gamma1 * torch.tanh(p / a.rho))
                                )
                    personal[device] = self.weights()
                    for t, new in zip(theta, personal[device], strict=True):
                        t += new
                phi = [
                    (a.lam1 * t / size + a.lam2 * v) / (a.lam1 + a.lam2)
                    for t, v in zip(theta, w, strict=True)
                ]
                w = [
                    v - a.lr1 * (a.lam2 * (v - f) + a.gamma2 * torch.tanh(v / a.rho))
                    for v, f in zip(w, phi, strict=True)
                ]
            for t, v in zip(total, w, strict=True):
                t += v
        self.w = self.mean(total, self.work.edges)

    def permfl(self) -> None:
        a: Any = self.algorithm
        size, total = self.work.devices // self.work.edges, [torch.zeros_like(w) for w in self.w]
        for edge in range(self.work.edges):
            w = self.w
            for _ in range(a.edge_rounds):
                theta = [torch.zeros_like(v) for v in w]
                for device in range(edge * size, edge * size + size):
                    self.start(w)
                    for _ in range(a.steps):
                        gradients = self.gradients(*self.batch(device))
                        with torch.no_grad():
                            for p, g, v in zip(self.parameters, gradients, w, strict=True):
                                p.sub_(a.lr * (g + a.lam * (p - v)))
                    self.personal[device] = self.weights()
                    for t, p in zip(theta, self.parameters, strict=True):
                        t += p.detach()
                pairs = zip(w, theta, self.w, strict=True)
                w = [
                    v - a.edge_lr * (a.lam * (v - t / size) + a.gamma * (v - x))
                    for v, t, x in pairs
                ]
            for t, v in zip(total, w, strict=True):
                t += v
        mean = self.mean(total, self.work.edges)
        self.w = [x - a.beta * a.gamma * (x - m) for x, m in zip(self.w, mean, strict=True)]

    def pfedbayes(self) -> None:
        """Flat vectors for means and rhos, autograd for the network, Adam and KL by formula."""
        a: Any = self.algorithm
        tie = a.zeta / self.work.examples
        mu = nn.utils.parameters_to_vector(self.w)
        rho = self.rho
        total = torch.zeros(2, len(mu))
        for device in self.asked():
            q = self.gaussians.get(device)
            q = torch.stack([mu, rho]) if q is None else q.clone()
            local = torch.stack([mu, rho])
            adam, local_adam = Adam(q, a.personal_lr), Adam(local, a.lr)
            for _ in range(a.local_rounds):
                x, y = self.batch(device)
                for _ in range(a.steps):
                    noise = torch.randn(len(mu))
                    sigma = F.softplus(q[1])
                    nn.utils.vector_to_parameters(q[0] + sigma * noise, self.parameters)
                    g = nn.utils.parameters_to_vector(self.gradients(x, y))
                    s = F.softplus(local[1])
                    by_mu = g + tie * (q[0] - local[0]) / (s * s)
                    by_sigma = g * noise + tie * (sigma / (s * s) - 1 / sigma)
                    adam.step(torch.stack([by_mu, by_sigma * torch.sigmoid(q[1])]))
                sigma, s, gap = F.softplus(q[1]), F.softplus(local[1]), q[0] - local[0]
                by_s = 1 / s - (sigma * sigma + gap * gap) / (s * s * s)
                by_rho = by_s * torch.sigmoid(local[1])
                local_adam.step(tie * torch.stack([-gap / (s * s), by_rho]))
            self.gaussians[device] = q
            total += local
        mu, self.rho = total / self.work.trained
        nn.utils.vector_to_parameters(mu, self.parameters)
        self.w = self.weights()


class Adam:
    """Adam's steps on one tensor, in place."""

    def __init__(self, x: Tensor, lr: float) -> None:
        self.x, self.lr, self.taken = x, lr, 0
        self.mean, self.square = torch.zeros_like(x), torch.zeros_like(x)

    def step(self, g: Tensor) -> None:
        """One step along the gradient g."""
        self.taken += 1
        self.mean.lerp_(g, 0.1)
        self.square.mul_(0.999).addcmul_(g, g, value=0.001)
        size = (self.square / (1 - 0.999**self.taken)).sqrt_().add_(1e-8)
        self.x.addcdiv_(self.mean, size, value=-self.lr / (1 - 0.9**self.taken))


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The fastest of several calls, after one to warm up."""
    call()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def limits() -> tuple[float, float]:
    """What torch reaches here: GFLOP/s of products, many small or one large, and GB/s of a copy
    that fits in no cache.
    """
    a, b, c = torch.rand(64, 128, 512), torch.rand(64, 512, 128), torch.rand(2048, 2048)
    small = 2 * 64 * 128 * 128 * 512 / seconds(lambda: torch.bmm(a, b), 20)
    flops = max(small, 2 * 2048**3 / seconds(lambda: torch.mm(c, c), 10))
    source, target = torch.rand(2, 1 << 26)
    return flops / 1e9, 2 * 4 * (1 << 26) / seconds(lambda: target.copy_(source), 5) / 1e9


def measure(work: Work, repeats: int, reach: tuple[float, float]) -> dict[str, Any]:
    """Seconds per round of the loop and of covey, taking turns, so that a busy moment of the
    machine hits both.
    """
    shards, cores = work.data(), torch.get_num_threads()
    loops = {threads: getattr(Loop(work, shards), work.loop) for threads in sorted({1, cores})}
    run = covey.run(work.experiment(shards, 2 * repeats + 4))
    best = dict.fromkeys([*loops, 0], float("inf"))
    for _ in range(repeats):
        for threads, loop in loops.items():
            torch.set_num_threads(threads)
            best[threads] = min(best[threads], seconds(loop, 1))
        torch.set_num_threads(cores)
        best[0] = min(best[0], seconds(lambda: next(run), 1))
    ours, loop = best.pop(0), min(best.values())
    limit = max(work.flops() / reach[0] / 1e9, work.bytes() / reach[1] / 1e9)
    record = {
        "work": work.name,
        "loop": best,
        "covey": ours,
        "times": loop / ours,
        "limit": limit,
        "share": limit / ours,
    }
    return record | {"engine": run.engine}


def main() -> None:
    """Print one line per work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=list(WORKS), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    asked = parser.parse_args()
    if unknown := set(asked.works) - set(WORKS):
        parser.error(f"unknown work {unknown.pop()!r}; there are {', '.join(WORKS)}")
    reach = limits()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} cores, fp32: {reach[0]:.0f} GFLOP/s, {reach[1]:.1f} GB/s"
    )
    print(
        f"seconds per round, the fastest of {asked.repeats}; at torch's rate = max(FLOPs, bytes) at these"
    )
    records = []
    for name in asked.works:
        records.append(record := measure(WORKS[name], asked.repeats, reach))
        shown = ", ".join(f"{s:.3f} on {t}" for t, s in record["loop"].items())
        rest = f"at torch's rate {record['limit']:.4f} ({record['share']:.0%} of that)"
        print(
            f"{name:7} loop {shown} threads; covey {record['covey']:.4f}: {record['times']:.1f}x; {rest}",
            flush=True,
        )
    if asked.out:
        facts = {
            "torch": torch.__version__,
            "cores": torch.get_num_threads(),
            "gflops": reach[0],
            "gbytes": reach[1],
        }
        asked.out.write_text(json.dumps(facts | {"works": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
