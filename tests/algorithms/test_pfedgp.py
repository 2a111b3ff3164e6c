"""pFedGP: steps of the common network on the predictive log-loss of every device's own Gaussian
process.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Nodes, draws
from covey.algorithms import PFedGP
from covey.engine.task import Batch, Task
from covey.errors import ConfigError
from covey.maths.gp import TERMS, polya_gamma
from tests import peek

SCALE, LENGTH, BATCH, DRAWS, STEPS = 3.0, 1.5, 6, 3, 2
LR, DECAY = 0.6, 0.01
_SPOTS, _SHARES = np.polynomial.hermite_e.hermegauss(60)


def shards(devices: int = 3) -> covey.data.Shards:
    """Two of three labels on each device, by the sign of a sum."""
    g = torch.Generator().manual_seed(2)
    pairs = []
    for device in range(devices):
        x = torch.randn(24, 2, generator=g).double()
        low, high = sorted({device % 3, (device + 1) % 3})
        pairs.append((x, torch.where(x.sum(1) > 0, high, low)))
    return covey.data.own(pairs, classes=3)


def experiment(algorithm: PFedGP, **changes: Any) -> covey.Experiment:
    settings = {
        "data": shards(), "model": nn.Sequential(nn.Linear(2, 3)), "tree": covey.Tree.flat(3), "rounds": 2,
        **changes,
    }  # fmt: skip
    return covey.Experiment(algorithm, dtype=torch.float64, workers=1, **settings)


ALGORITHM = PFedGP(
    lr=LR, weight_decay=DECAY, batch=BATCH, scale=SCALE, length=LENGTH, gibbs_steps=STEPS, draws=DRAWS,
    support=10,
)  # fmt: skip


def kernel(x: Tensor, z: Tensor) -> Tensor:
    return SCALE * torch.exp(-(x[:, None] - z[None]).square().sum(-1) / (2 * LENGTH**2))


class Draws:
    """What device i draws in a round for its one fork, in order."""

    def __init__(self, device: int, round: int, stream: str) -> None:
        self._device, self._round, self._stream, self._k = torch.tensor([device]), round, stream, 0

    def __call__(self, draw: Any, width: int) -> Tensor:
        key = draws.key(0, self._round, 0, "device", self._stream, self._k)
        self._k += 1
        out: Tensor = draw(key, self._device, width)[0]
        return out


def chance_up(
    known: Tensor, up: Tensor, asked: Tensor, drawn: Draws, count: int, turns: int
) -> Tensor:
    """E sigmoid(f) at every asked place, with the textbook's inverses: K (K + 1/omega)^-1, one draw
    after the other.
    """
    N = len(known)
    K = kernel(known, known) + 1e-6 * SCALE * torch.eye(N).double()
    across, kappa = kernel(known, asked), torch.where(up, 0.5, -0.5).double()
    root = torch.linalg.cholesky(K.detach())

    def normals() -> Tensor:
        # one stream serves normal and uniform numbers, each call a k of its own
        return drawn(draws.normal, count * N).view(count, N)

    def omegas(f: Tensor) -> Tensor:
        return polya_gamma(f, drawn(draws.uniform, count * N * TERMS).view(count, N, TERMS))

    omega = omegas(normals() @ root.T)
    for _ in range(turns):
        prior, noise = normals() @ root.T, normals()
        f = []
        for d in range(count):
            gain = K.detach() @ torch.linalg.inv(K.detach() + torch.diag(1 / omega[d]))
            f.append(prior[d] + gain @ (kappa / omega[d] - prior[d] - noise[d] / omega[d].sqrt()))
        omega = omegas(torch.stack(f))
    total = torch.zeros(len(asked)).double()
    for d in range(count):
        gain = across.T @ torch.linalg.inv(K + torch.diag(1 / omega[d]))
        mean, variance = gain @ (kappa / omega[d]), SCALE - (gain * across.T).sum(1)
        for spot, share in zip(_SPOTS, _SHARES, strict=True):
            total = total + share / math.sqrt(2 * math.pi) / count * torch.sigmoid(
                mean + variance.sqrt() * spot
            )
    return total


def test_two_rounds_by_hand() -> None:
    run = covey.run(experiment(ALGORITHM))
    task: Task = run.runtime.task
    w = run.w[0].clone()
    for record in run:
        answers = []
        for i in range(3):
            key = draws.key(0, record.round, 0, "device", "batch", 0)
            ids = torch.tensor([i])
            [batch] = task.examples.shuffled(key, ids, BATCH, range(1), epochs=1, local=ids)
            x, y = batch.x[0], batch.y[0]
            theta = w.clone().requires_grad_()
            features = x @ theta[:6].view(2, 3) + theta[6:]
            up = y == min(run.experiment.data.labels()[i].nonzero()[0])
            own = Draws(i, record.round, "train 1.0")
            chance = chance_up(features[::2], up[::2], features[1::2], own, DRAWS, STEPS)
            loss = -torch.where(up[1::2], chance, 1 - chance).log().mean()
            (g,) = torch.autograd.grad(loss, theta)
            answers.append((1 - LR * DECAY) * w - LR * g)
        w = torch.stack(answers).mean(0)
        assert (run.w[0] - w).abs().max() < 1e-4  # both add up sigmoid at some places of a Gaussian
        assert (run.rows("personal")[1] - torch.stack(answers)).abs().max() < 1e-4
        w = run.w[0].clone()
    assert (run.w - run.runtime.start).abs().max() > 0.03


def test_no_example_is_in_both_halves_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    loss = PFedGP.loss

    def noted(self: PFedGP, me: Nodes, batch: Batch, features: Tensor) -> Tensor:
        batches.append(batch)
        return loss(self, me, batch, features)

    monkeypatch.setattr(PFedGP, "loss", noted)
    data = covey.data.own_parts(
        train=[(torch.randn(n, 2).double(), torch.arange(n) % 2) for n in (4, 9, 40)], classes=2
    )
    algorithm = replace(ALGORITHM, batch=16, steps=3)
    for _ in covey.run(experiment(algorithm, data=data, parts=("train",))):
        pass
    batches = [batch for batch in batches if len(batch.examples)]  # without the rehearsal's
    assert len(batches) == 2 * 3
    for batch in batches:
        assert batch.weight is not None
        for examples, weight, size in zip(batch.examples, batch.weight, (4, 9, 16), strict=True):
            drawn = examples[weight > 0].tolist()
            assert len(drawn) == len(set(drawn)) == size
            assert int(weight[1::2].sum()) == size // 2  # what is predicted from the others


def test_a_model_is_scored_by_the_devices_own_gaussian_processes() -> None:
    run = covey.run(experiment(ALGORITHM, parts=("test",)))
    record = list(run)[-1]
    data, total, right, count = run.experiment.data, 0.0, 0, 0
    for i in range(3):
        every = data.train.held(i)
        known = every[torch.arange(10) * len(every) // 10]
        examples = data.test.held(i)
        module = run.module()
        low = int(min(data.labels()[i].nonzero()[0]))
        with torch.no_grad():
            features, asked = module(data.x[known]), module(data.x[examples])
            up = data.y[known] == low
            chance = chance_up(
                features, up, asked, Draws(i, 1, "global 1.0"), ALGORITHM.predict_draws, STEPS
            )
        truth = data.y[examples] == low
        total -= float(torch.where(truth, chance, 1 - chance).log().sum())
        right += int(((chance > 0.5) == truth).sum())
        count += len(examples)
    score = record.models["global"].scores["test"]
    assert score.accuracy == pytest.approx(right / count)
    assert score.loss == pytest.approx(total / count, abs=1e-4)
    assert run.calibration()["global"].log_loss == pytest.approx(score.loss)


def test_chances_of_all_classes_sum_to_one_and_unseen_ones_have_almost_none() -> None:
    run = covey.run(experiment(ALGORITHM))
    next(run)
    me = covey.Nodes(peek.services(run), "device", torch.arange(3), round=0, path=0)
    with torch.no_grad():
        predict = ALGORITHM.predictor(me, "global", run.w.expand(3, -1))
        assert predict is not None
        batch = me.examples(7)
        chances = predict(batch, torch.arange(3)).exp()
        last = covey.Nodes(
            peek.services(run), "device", torch.tensor([2]), round=0, path=0
        ).examples(7)
        some = predict(last, torch.tensor([2])).exp()
    assert torch.allclose(chances.sum(2), torch.ones(3, 7).double(), atol=1e-9)
    assert float(chances[~me.labels[:, None].expand(3, 7, 3)].max()) < 1e-6
    assert torch.allclose(some[0], chances[2], atol=1e-12)


def test_few_examples_are_classified_at_once() -> None:
    """Even before the network has learned much, a Gaussian process on some features tells two
    digits apart.
    """
    data = covey.data.digits(devices=10, labels=2)
    algorithm = PFedGP(steps=1, support=40, gibbs_steps=3, draws=5, predict_draws=5)
    model, tree = covey.models.mlp(64, 20, 12), covey.Tree.flat(10)
    run = covey.run(covey.Experiment(algorithm, data, model, tree, rounds=3, score_every=3))
    record = list(run)[-1]
    assert (record.accuracy("global") or 0) > 0.85
    assert record.models["personal"].holders == 10


def test_it_needs_classes() -> None:
    pairs = [(torch.randn(8, 2), torch.randn(8))] * 2
    with pytest.raises(ConfigError, match="give integer labels"):
        covey.run(
            covey.Experiment(
                PFedGP(),
                covey.data.own(pairs),
                covey.models.linear(2, 1),
                covey.Tree.flat(2),
                loss="squared_error",
                rounds=1,
            )
        )


def test_a_device_takes_the_memory_of_its_matrices_into_account() -> None:
    large, small = (PFedGP(support=support).memory() for support in (2000, 20))
    assert large > 8 * 30 * 2000 * 2000  # one float64 matrix per draw
    run = covey.run(experiment(ALGORITHM, memory=3 * ALGORITHM.memory()))
    whole = covey.run(experiment(ALGORITHM))
    assert list(run)[-1].models == list(whole)[-1].models
    assert small < large


def test_a_gradient_beyond_the_clip_is_scaled_to_it() -> None:
    rows = {}
    for clip in (1e9, 1e-3):
        algorithm = PFedGP(
            lr=LR, weight_decay=0.0, batch=BATCH, clip=clip, gibbs_steps=1, draws=2, support=5,
            predict_draws=2,
        )  # fmt: skip
        run = covey.run(experiment(algorithm, rounds=1))
        list(run)
        rows[clip] = run.rows("personal")[1] - run.runtime.start
    size = rows[1e9].norm(dim=1, keepdim=True)
    assert bool((size > LR * 1e-3).all())
    assert torch.allclose(rows[1e-3], rows[1e9] / size * LR * 1e-3, atol=1e-12)
