"""Local training: theta_i <- theta_i - lr grad f_i(theta_i), `steps` times a round, alone."""

import numpy as np

from covey.algorithms import Local
from tests.algorithms.quadratics import EXACT, Device, W, both, deviation, row, some, start


@both
def test_two_rounds_by_hand(fs: list[Device], batch: int | None) -> None:
    run = start(Local(steps=3, lr=0.1, batch=batch), fs, w=W)
    initial = run.runtime.start[0].numpy()
    thetas = [initial] * 4
    for _ in range(2 * 3):  # the second round goes on from the first one's model
        thetas = [theta - 0.1 * f.grad(theta) for f, theta in zip(fs, thetas, strict=True)]
    records = list(run)
    assert deviation(run, W, personal=thetas) <= EXACT
    assert [record.bytes() for record in records] == [0, 0]


def test_every_device_reaches_its_own_minimum() -> None:
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    run = start(Local(steps=50, lr=0.8, batch=None), devices, w=np.zeros(3), rounds=2)
    list(run)
    assert deviation(run, row(run), personal=[f.a for f in devices]) <= 1e-10
