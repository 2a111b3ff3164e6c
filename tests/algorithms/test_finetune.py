"""FedAvg, then local steps: the global model is FedAvg's, a personal one the broadcast w after a
few steps of its own.
"""

import numpy as np

from covey.algorithms import FineTune
from tests.algorithms.quadratics import EXACT, Device, W, both, deviation, mean, some, start


@both
def test_two_rounds_by_hand_with_sampling(fs: list[Device], batch: int | None) -> None:
    run = start(
        FineTune(
            sample=3, steps=3, lr=0.1, tune_steps=2, tune_lr=0.05, batch=batch, weight="samples"
        ),
        fs,
        w=W,
    )
    w = W
    personal = {}
    for record in run:
        rows, asked = [], record.cohorts["device"]
        for i in asked:
            x = theta = w  # both start from the broadcast model
            for _ in range(3):
                x = x - 0.1 * fs[i].grad(x)
            for _ in range(2):
                theta = theta - 0.05 * fs[i].grad(theta)
            rows.append(x)
            personal[i] = theta  # who is not asked keeps the one it had
        w = mean(rows, [len(fs[i].y) for i in asked])
        assert deviation(run, w, personal=personal) <= EXACT


def test_tuned_to_the_end_it_is_local_training() -> None:
    devices = some(3, 2, mu=0.5, L=2.0, spread=3.0)
    optimum = np.linalg.solve(sum(f.H for f in devices), sum(f.H @ f.a for f in devices))
    algorithm = FineTune(steps=1, lr=0.8, tune_steps=60, tune_lr=0.8, batch=None)
    run = start(algorithm, devices, w=np.zeros(2), rounds=40)
    list(run)
    assert deviation(run, optimum, personal=[f.a for f in devices]) <= 1e-10
