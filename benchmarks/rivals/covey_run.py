"""covey through its ordinary API, with its defaults: bytes metered, no round scored."""

from __future__ import annotations

import sys
from typing import Any

import torch

import covey
from benchmarks.rivals.spec import Array, Spec, serve, told
from benchmarks.rivals.tidy import module_of
from covey.algorithms import FedAvg, PFedMe


def experiment_of(spec: Spec) -> covey.Experiment:
    """The work as an experiment."""
    x, y = (torch.from_numpy(array) for array in spec.data())
    module = module_of(spec)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), spec.first(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    sample = None
    if spec.asked < spec.devices:
        sample = spec.asked
    algorithm: covey.Algorithm = FedAvg(
        sample=sample, steps=spec.draws, lr=spec.lr, batch=spec.batch
    )
    if spec.lam is not None:
        algorithm = PFedMe(
            lam=spec.lam,
            lr=spec.lr,
            personal_lr=spec.personal_lr,
            local_rounds=spec.draws,
            steps=spec.inner,
            batch=spec.batch,
            sample=sample,
        )
    more: dict[str, Any] = {}
    if spec.check:
        more["batches"] = "cyclic"
    return covey.Experiment(
        algorithm=algorithm,
        data=covey.data.own_parts(train=list(zip(x, y, strict=True))),
        model=module,
        tree=covey.Tree.flat(spec.devices),
        rounds=spec.rounds + 1,  # the last round is scored, and not run
        score_every=spec.rounds + 1,
        start="module",
        **more,
    )


def main() -> None:
    """Serve the driver."""
    spec = told()
    torch.set_num_threads(int(sys.argv[2]))
    run = covey.run(experiment_of(spec))

    def round_() -> float:
        next(run)
        return 0.0

    def weights() -> list[Array]:
        return [p.detach().numpy() for p in run.module().parameters()]

    serve(spec, round_, weights)


if __name__ == "__main__":
    main()
