"""pFedBayes: the bounds of its steps where they are plain ones."""

import math
from collections.abc import Iterator

from covey.algorithms.pfedbayes import PFedBayes
from covey.kernel.advice import Advice, Levers, Loss, Statement


def advice(a: PFedBayes, loss: Loss) -> Iterator[Statement]:
    if a.method == "gradient":
        yield plain_steps(a, loss)
        return
    text = (
        f"personal_lr = {a.personal_lr:g}: Adam's steps are about that large whatever "
        "the curvature, so there is no condition."
    )
    yield Advice("note", "inner step", text, {"personal_lr": a.personal_lr})


def plain_steps(a: PFedBayes, loss: Loss) -> Advice:
    """Plain steps of mean and rho on E f + zeta/n KL(q | local), whose curvatures add up.

    Along a mean f has L and the KL 1/s^2; along rho, where q is the local distribution, they
    have g (g + s (1 - g)) L and 2 g^2/s^2, with g = sigmoid(rho) and s = softplus(rho). The
    local distribution steps on the KL alone.
    """
    s = max(math.log1p(math.exp(a.rho)), 1e-150)
    g = 1 / (1 + math.exp(-a.rho))
    along_rho = g * (g + s * (1 - g))
    curve = max(1.0, along_rho) * (loss.L or 0.0)
    tie = a.zeta * max(1.0, 2 * g * g) / s**2
    room = 2 / a.personal_lr - curve
    numbers = {"s": s, "zeta/s^2": tie}
    text = (
        "personal_lr*(L + zeta/(n s^2)) and lr*zeta/(n s^2) must be below 2, where n is "
        "a device's number of training examples and "
        f"s = softplus(rho) = {s:.3g} at the start (less s, more n)"
    )
    if room <= 0:
        alone = f"L = {loss.L:g} alone is too much for personal_lr = {a.personal_lr:g}"
        return Advice("warning", "inner step", f"{text}; {alone}{loss.guess}; lower it.", numbers)
    min_n = max(tie / room, tie * a.lr / 2)
    numbers["least n"] = min_n
    text = f"{text}: zeta = {a.zeta:g} takes n > {min_n:.3g}"
    if loss.L is not None:
        text = f"{text} with L = {loss.L:g}"
    if loss.examples is not None and loss.examples <= min_n:
        text = f"{text}, but a device has {loss.examples}; lower personal_lr, lr or zeta."
        return Advice("warning", "inner step", text, numbers)
    return Advice("note", "inner step", f"{text}.", numbers)


def levers(a: PFedBayes, L: float) -> Levers:
    return Levers(without="its steps are Adam's, whose size does not depend on the curvature")
