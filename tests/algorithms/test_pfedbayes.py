"""pFedBayes: the evidence bound of a Gaussian over models, with the divergence from the local one;
Adam on both.
"""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

import covey
from covey import draws
from covey.algorithms import PFedBayes
from tests import peek
from tests.algorithms.gaussians import divergence, divergence_gradients
from tests.algorithms.quadratics import EXACT, SMALL, Device, W, kept, start

G = torch.Generator().manual_seed(4)


def gaussians(n: int = 3, width: int = 4) -> list[Tensor]:
    return [torch.randn(n, width, generator=G).double() - (k % 2) for k in range(4)]


def test_the_divergence_is_its_monte_carlo_estimate() -> None:
    mu, rho, m, local_rho = gaussians()
    q, p = Normal(mu, softplus(rho)), Normal(m, softplus(local_rho))
    x = mu + softplus(rho) * torch.randn(100_000, *mu.shape, generator=G).double()
    each = (q.log_prob(x) - p.log_prob(x)).sum(-1)
    error = each.std(0) / len(x) ** 0.5
    found = divergence(mu, rho, m, local_rho)
    assert bool(((found[:, 0] - each.mean(0)).abs() < 4 * error).all())
    assert torch.allclose(found, kl_divergence(q, p).sum(1, keepdim=True), atol=1e-12)
    assert torch.allclose(divergence(mu, rho, mu, rho), torch.zeros(3, 1).double(), atol=1e-14)


def test_the_gradients_of_the_divergence_are_those_of_autograd() -> None:
    arguments = [x.requires_grad_() for x in gaussians()]
    expected = torch.autograd.grad(divergence(*arguments).sum(), arguments)
    for found, wanted in zip(
        divergence_gradients(*(x.detach() for x in arguments)), expected, strict=True
    ):
        assert torch.allclose(found, wanted, atol=1e-11)
    mu, rho, *_ = (x.detach().float() for x in arguments)
    for found in divergence_gradients(mu, rho, mu, rho):
        assert not found.any()  # no rounding error, of which Adam would make a whole step


def loss(f: Device, x: Tensor) -> Tensor:
    return (torch.from_numpy(f.X) @ x - torch.from_numpy(f.y)).square().mean() / 2


def optimiser(method: str, parameters: list[Tensor], lr: float) -> torch.optim.Optimizer:
    return (
        torch.optim.Adam(parameters, lr=lr)
        if method == "adam"
        else torch.optim.SGD(parameters, lr=lr)
    )


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("method", ["adam", "gradient"])
def test_two_rounds_by_hand(method: Literal["adam", "gradient"], restart: bool) -> None:
    """torch's optimisers on the evidence bound itself; the noise is drawn where the algorithm draws
    it.
    """
    zeta, R, K, beta = 0.7, 3, 2, 0.8
    algorithm = PFedBayes(zeta=zeta, local_rounds=R, steps=K, lr=0.05, personal_lr=0.1, beta=beta, batch=None, rho=-1.0,
                          method=method, restart=restart)  # fmt: skip
    run = start(algorithm, SMALL, w=W)
    world: tuple[Tensor, ...] = torch.from_numpy(W), torch.full((2,), -1.0).double()
    personal: dict[int, tuple[Tensor, Tensor]] = {}
    for record in run:
        answers: list[list[Tensor]] = []
        for i, f in enumerate(SMALL):
            begin = world if restart else personal.get(i, world)
            mu, rho = (x.clone().requires_grad_() for x in begin)
            m, local_rho = (x.clone().requires_grad_() for x in world)
            mine = optimiser(method, [mu, rho], 0.1)
            theirs = optimiser(method, [m, local_rho], 0.05)
            k = 0
            for _ in range(R):
                for _ in range(K):
                    key = draws.key(0, record.round, 0, "device", "epsilon", k)
                    noise = draws.normal(key, torch.tensor([i]), 2)[0]
                    tie = kl_divergence(
                        Normal(mu, softplus(rho)), Normal(m.detach(), softplus(local_rho).detach())
                    )
                    mine.zero_grad()
                    (loss(f, mu + softplus(rho) * noise) + zeta / len(f.y) * tie.sum()).backward()
                    mine.step()
                    k += 1
                tie = kl_divergence(
                    Normal(mu.detach(), softplus(rho).detach()), Normal(m, softplus(local_rho))
                )
                theirs.zero_grad()
                (zeta / len(f.y) * tie.sum()).backward()
                theirs.step()
            personal[i] = mu.detach(), rho.detach()
            answers.append([m.detach(), local_rho.detach()])
        world = tuple(
            (1 - beta) * x + beta * torch.stack(own).mean(0)
            for x, own in zip(world, zip(*answers, strict=True), strict=True)
        )
        assert (run.w[0] - world[0]).abs().max() < 1e3 * EXACT
        columns = {name: rows for _, name, _, _, rows in peek.dump(run)}
        assert (columns["_rho"][0] - world[1]).abs().max() < 1e3 * EXACT
        for i, (mu, rho) in personal.items():
            assert (columns["personal"][i] - mu).abs().max() < 1e3 * EXACT
            assert (columns["_personal_rho"][i] - rho).abs().max() < 1e3 * EXACT
    assert max(abs(x - W).max() for x in kept(run, "personal").values()) > 0.05


def world(algorithm: PFedBayes, **changes: Any) -> covey.Run:
    data, model = covey.data.digits(devices=4), covey.models.mlp(64, 5, 10)
    return covey.run(
        covey.Experiment(algorithm, data, model, covey.Tree.flat(4), rounds=2, **changes)
    )


def test_twice_the_bytes_of_a_model_go_each_way() -> None:
    run = world(PFedBayes(local_rounds=1, steps=1))
    record = next(run)
    row = 4 * run.runtime.task.space.width
    assert (
        8 * row <= record.bytes(direction="up") == record.bytes(direction="down") < 8 * row + 1000
    )


def test_draws_average_the_chances_of_drawn_models() -> None:
    algorithm = PFedBayes(local_rounds=2, steps=2, draws=3, rho=-1.0, personal_lr=0.02)
    run = world(algorithm, parts=("test",), score_every=2)
    record = list(run)[-1]
    mus = run.rows("personal")[1]
    columns = {name: rows for _, name, _, _, rows in peek.dump(run)}
    data, right, total, count = run.experiment.data, 0, 0.0, 0
    for device in range(4):
        chances: Any = 0
        examples = data.test.held(device)
        for k in range(3):
            key = draws.key(0, 1, 0, "device", "personal predicts", k)
            noise = draws.normal(key, torch.tensor([device]), mus.shape[1]).float()[0]
            module = run.runtime.task.space.fill(
                mus[device] + softplus(columns["_personal_rho"][device]) * noise
            )
            chances = chances + torch.softmax(module(data.x[examples]).detach(), dim=1) / 3
        right += int((chances.argmax(1) == data.y[examples]).sum())
        total -= float(chances.gather(1, data.y[examples][:, None]).log().sum())
        count += len(examples)
    score = record.models["personal"].scores["test"]
    assert score.accuracy == pytest.approx(right / count)
    assert score.loss == pytest.approx(total / count, rel=1e-5)
    algorithm = PFedBayes(local_rounds=2, steps=2, rho=-1.0, personal_lr=0.02)
    *_, plain = world(algorithm, parts=("test",), score_every=2)
    assert plain.models["global"].scores == record.models["global"].scores
    assert plain.models["personal"].scores["test"].loss != score.loss
