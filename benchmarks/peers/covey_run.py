"""covey through its ordinary API, bytes metered; no round that is timed is scored."""

from __future__ import annotations

import covey
from benchmarks.peers.common import Watch, arguments, load, start, write
from covey.algorithms import FedAvg


def main() -> None:
    work, rounds, out = arguments()
    x, y = load(work)
    sample = None if work.asked == work.devices else work.asked
    experiment = covey.Experiment(
        algorithm=FedAvg(sample=sample, steps=work.steps, lr=work.lr, batch=work.batch),
        data=covey.data.own_parts(train=list(zip(x, y, strict=True))),
        model=start(work),
        tree=covey.Tree.flat(work.devices),
        rounds=rounds + 1,  # the last round is scored, and not run
        score_every=rounds + 1,
        start="module",
    )
    run = covey.run(experiment)
    watch = Watch()
    for _ in range(rounds):
        next(run)
        watch.lap(lambda: run.module().state_dict())
    write(out, work, watch, "covey")


if __name__ == "__main__":
    main()
