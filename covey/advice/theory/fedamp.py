"""FedAMP: a round where models are alike, which is where their tie is largest."""

from collections.abc import Iterator

from covey.algorithms.fedamp import FedAMP
from covey.kernel.advice import Levers, Loss, RoundFactor, Statement, Step, Tie
from covey.kernel.conditions import inner_step, prox_round


def advice(a: FedAMP, loss: Loss) -> Iterator[Statement]:
    least = a.lam / a.alpha
    yield from inner_step(a.lr, least, loss, steps=a.steps, names=("lr", "lam/alpha"))
    tie = max(least, a.lam * ((loss.devices or 1) - 1) / a.sigma)
    lr = a.lr / (1 + a.lr * (tie - least))
    yield RoundFactor(prox_round(lr, tie, a.steps))


def levers(a: FedAMP, L: float) -> Levers:
    step = Step("lr", a.lam / a.alpha, "lam/alpha")
    return Levers((step,), penalties=(Tie("lam", scale=a.alpha),))
