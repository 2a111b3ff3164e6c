"""The yardstick: FedAvg as a plain loop, device after device, step after step, in one process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.peers.common import Watch, Work, arguments, descend, draw, load, start, write


@torch.no_grad()
def copy(source: list[Tensor], target: list[nn.Parameter]) -> None:
    for w, p in zip(source, target, strict=True):
        p.copy_(w)


def round_of(
    work: Work, module: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator
) -> None:
    """Train the asked devices one after the other; the module is the global model before and after."""
    parameters = list(module.parameters())
    w = [p.detach().clone() for p in parameters]
    total = [torch.zeros_like(p) for p in w]
    for device in torch.randperm(work.devices, generator=generator)[: work.asked].tolist():
        copy(w, parameters)
        descend(work, module, *draw(work, x[device], y[device], generator))
        for t, p in zip(total, parameters, strict=True):
            t.add_(p.detach(), alpha=1 / work.asked)
    copy(total, parameters)


def main() -> None:
    work, rounds, out = arguments()
    (x, y), module, generator = load(work), start(work), torch.Generator().manual_seed(1)
    watch = Watch()
    for _ in range(rounds):
        round_of(work, module, x, y, generator)
        watch.lap(module.state_dict)
    write(out, work, watch)


if __name__ == "__main__":
    main()
