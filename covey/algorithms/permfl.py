"""PerMFL: a model per tier, held near the one above by a squared distance (Banerjee et al., 2024).

The paper's x, w_i, theta_ij, T, K, L, lambda, gamma, alpha, eta, beta are `x`, `w`, `theta`,
rounds, `edge_rounds`, `steps`, `lam`, `gamma`, `lr`, `edge_lr`, `beta`; its team is an edge.
Defaults are for newcomers; the paper's settings are in covey/papers/permfl.toml.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from covey.engine.descend import descend
from covey.kernel.advice import (
    HALFWAY,
    Advice,
    Levers,
    Loss,
    Proposal,
    RoundFactor,
    Statement,
    Step,
    Upper,
    Vector,
    far,
    per_cent,
)
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import (
    at_most,
    at_most_of,
    descended,
    exceeds,
    inner_step,
    largest,
    power,
    same_for_all,
    smallest,
    theorem,
)
from covey.kernel.fields import Count, CountPerNode, Positive, PositivePerNode
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Replies
from covey.tree import Sample
from covey.types import Rows

_NU = 1e-3  # how far inner loops are to shrink their starting error; the paper leaves nu open


@dataclass(frozen=True)
class PerMFL(Algorithm):
    """theta descends f + lam/2 |theta - w|^2, w envelopes of that + gamma/2 |w - x|^2, x theirs.

    `lr` (alpha) and `steps` (L) may be lists with one entry per device, `edge_lr` (eta) and
    `edge_rounds` (K) with one per edge. `sample` edges take part in a round and `device_sample`
    devices in each edge round. With `stale="include"` the server averages the last model of every
    edge, as the authors' code does, not only of the edges asked.
    """

    lam: Positive = 1.5  # pull of a device towards its edge (lambda)
    gamma: Positive = 1.5  # pull of an edge towards the server
    beta: Positive = 0.6  # step of the server towards the mean of the edges
    lr: PositivePerNode = 0.03  # step size of the devices, one for all or one per device (alpha)
    edge_lr: PositivePerNode = 0.3  # step size of the edges, one for all or one per edge (eta)
    edge_rounds: CountPerNode = 10  # rounds between an edge and its devices in one round,
    # one for all or one per edge
    steps: CountPerNode = 20  # gradient steps of a device in each edge round,
    # one for all or one per device
    sample: Sample = None
    device_sample: Sample = None
    batch: Count | None = 20
    stale: Literal["exclude", "include"] = "exclude"  # whether the server also averages the last
    # models of edges that were not asked

    sends: ClassVar[str] = "its personal model, to its edge only"

    def server(self, me: Nodes, x: Rows) -> Rows:
        edges = me.ask(self.edge, x, sample=self.sample)
        mean = self.mean_of_edges(me, x, edges)
        return x - self.beta * self.gamma * (x - mean)  # (13)

    def edge(self, me: Nodes, x: Rows) -> Rows:
        w = x
        eta = me.own(self.edge_lr)
        for _, going in me.rounds(self.edge_rounds):
            devices = me.ask(self.device, w, sample=self.device_sample, where=going)
            theta = devices.mean(default=w)
            gradient = self.lam * (w - theta) + self.gamma * (w - x)
            w = torch.where(going, w - eta * gradient, w)  # (9)
        return me.keep("edge", w)

    def device(self, me: Nodes, w: Rows) -> Rows:
        alpha = me.own(self.lr)
        steps = me.own(self.steps)
        gradient = me.grad(self.batch)
        theta = descend(w, gradient, prox=(self.lam, w), steps=steps, lr=alpha)  # (4)
        return me.keep("personal", theta)

    def mean_of_edges(self, me: Nodes, x: Rows, edges: Replies) -> Rows:
        """The mean of the edges asked or, with `stale`, of what each edge sent last, at first x."""
        if self.stale == "exclude":
            return edges.mean()
        initial = x[:, None].repeat(1, me.max_children, 1)
        last = me.recall("_edges", default=initial)
        last = edges.gather().into(last)
        me.keep("_edges", last)
        return last.mean(1)

    def above(self) -> str:
        return "edge"

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """Of lists, limits by the largest entries and numbers of rounds by the smallest."""
        lr = largest(self.lr)
        eta = largest(self.edge_lr)
        steps = int(largest(self.steps))
        yield from inner_step(lr, self.lam, loss, steps=steps)
        yield from self._edge_step(eta)
        yield from self._server_step()
        alike = same_for_all(self.lr, self.edge_lr, self.steps, self.edge_rounds)
        yield RoundFactor(self._excess, certain=alike)
        yield self._theorem_1(loss, lr, eta)
        yield self._theorem_2(loss, lr, eta)
        yield from self._loops(loss)
        yield from self._nonconvex_loops(loss)

    def _edge_step(self, eta: float) -> Iterator[Advice]:
        lam = self.lam
        gamma = self.gamma
        tied = eta * gamma
        both = eta * (lam + gamma)
        numbers = {"edge_lr*gamma": tied, "edge_lr*(lam+gamma)": both}
        if tied >= 2 and largest(self.edge_rounds) > 1:
            text = (
                f"edge_lr*gamma = {eta:g}*{gamma:g} = {tied:g} is 2 or more: every edge round "
                f"multiplies the distance of w_i to its minimiser by {1 - tied:g} or worse; "
                f"use edge_lr < {1 / (lam + gamma):.3g}."
            )
            yield Advice("warning", "edge step", text, numbers)
        elif both >= 1:
            losses = "for every convex loss"
            if both >= 2:
                losses = f"only where lam L/(lam+L) < 2/edge_lr - gamma = {2 / eta - gamma:.3g}"
            product = f"edge_lr*(lam+gamma) = {both:g}"
            rule = "below 1 is sufficient, not necessary"
            text = f"{product}; {rule}: the step is stable {losses}."
            yield Advice("warning", "edge step", text, numbers)

    def _server_step(self) -> Iterator[Advice]:
        """x <- (1 - beta gamma) x + beta gamma mean w_i(x), and w_i(x) follows x."""
        beta = self.beta
        gamma = self.gamma
        lam = self.lam
        product = beta * gamma
        if product <= 1:
            return
        worst = product * lam / (lam + gamma)
        largest_L = self._largest_stable_curvature()
        verdict = f"here L < {largest_L:.3g}; beta <= {1 / gamma:.3g} makes it safe for every loss."
        if largest_L == math.inf:
            bound = f"beta gamma lam/(lam+gamma) = {worst:.3g} is at most 2"
            verdict = f"which every convex loss meets, as {bound}."
        text = (
            f"beta*gamma = {beta:g}*{gamma:g} = {product:g}, so x is multiplied by "
            f"1 - beta*gamma = {1 - product:g}, "
            "which the mean of w_i makes up for as it follows x. "
            "At most 1 is sufficient, not necessary: with inner loops run to the end it converges "
            f"while beta gamma s/(gamma+s) < 2, s = lam L/(lam+L), {verdict}"
        )
        numbers = {
            "beta*gamma": product,
            "server factor": 1 - product,
            "beta*gamma*lam/(lam+gamma)": worst,
            "largest L": largest_L,
        }
        yield Advice("warning", "server step", text, numbers)

    def _largest_stable_curvature(self) -> float:
        """The L of devices' losses up to which the server's step is stable, inf for any L."""
        product = self.beta * self.gamma
        if product <= 2:
            return math.inf
        envelope = 2 * self.gamma / (product - 2)  # where product s/(gamma + s) is 2
        if envelope >= self.lam:
            return math.inf
        return envelope * self.lam / (self.lam - envelope)

    def _excess(self, h: Vector) -> Vector:
        w = np.zeros_like(h)  # the distance from x, which does not move
        eta = largest(self.edge_lr)
        count = int(largest(self.steps))
        steps = power(largest(self.lr), self.lam, h, count)
        for _ in range(int(largest(self.edge_rounds))):
            minimiser = (self.lam * w - h) / (h + self.lam)
            theta = descended(w, steps, minimiser)
            gradient = self.lam * (w - theta) + self.gamma * w
            w = w - eta * gradient
        return self.beta * self.gamma * w

    def _theorem_1(self, loss: Loss, lr: float, eta: float) -> Advice:
        """With the rate of (59), the algorithm's own; the printed (1 - beta)^T renames beta."""
        max_lr = None
        if loss.L is not None:
            max_lr = 1 / (loss.L + self.lam)
        max_beta = 1 / (2 * self.gamma)
        conditions = [
            at_most("beta", self.beta, max_beta),
            at_most("edge_lr", eta, 0.5 / (self.lam + self.gamma)),
            at_most_of(f"lr = {lr:g}", lr, "1/(L+lam)", max_lr),
        ]
        numbers = {"largest beta": max_beta}
        end = "needs mu > 0"
        if loss.mu:
            strong = self._strong(loss.mu)
            rate = 1 - self.beta * strong / 2
            numbers |= {"mu_F": strong, "rate": rate}
            end = f"rate 1 - beta mu_F/2 = {rate:.4g} a round, mu_F = {strong:.3g}"
        return theorem("Theorem 1 of PerMFL", conditions, numbers, end)

    def _strong(self, mu: float) -> float:
        """mu_F, the strong convexity of the envelope that the server descends."""
        inverse = 1 / mu + 1 / self.lam + 1 / self.gamma
        return 1 / inverse

    def _theorem_2(self, loss: Loss, lr: float, eta: float) -> Advice:
        lam = self.lam
        gamma = self.gamma
        double_L = None
        if loss.L is not None:
            double_L = 2 * loss.L
        max_beta = 1 / (4 * gamma)
        wide = f"gamma = {gamma:g} > 2 lam = {2 * lam:g}"
        conditions = [
            at_most("beta", self.beta, max_beta),
            at_most("edge_lr", eta, 1 / (lam + gamma)),
            at_most("lr", lr, 1 / lam),
            (wide, gamma > 2 * lam),
            exceeds(f"lam = {lam:g}", lam, "2 L", double_L),
        ]
        numbers = {"largest beta": max_beta}
        end = "its bound (16) is false as printed, and holds with twice its right side"
        return theorem("Theorem 2 of PerMFL (nonconvex)", conditions, numbers, end)

    def _loops(self, loss: Loss) -> Iterator[Advice]:
        """The K and L of (58) and (61), starting errors taken as equal: only their ratios enter."""
        lam = self.lam
        mu = loss.mu or 0.0
        envelope = lam * mu / (lam + mu)
        edge = smallest(self.edge_lr) * (envelope + self.gamma) / 2
        device = smallest(self.lr) * (mu + lam)
        if edge >= 1 or device >= 1:
            return
        edge_rate = math.log1p(-edge)
        K = math.ceil(math.log(_NU) / edge_rate)
        slope = edge_rate / math.log1p(-device)
        L = math.ceil(slope * K)
        numbers = {"K": K, "L": L, "L per K": slope}
        text = (
            f"to shrink starting errors by nu = {_NU:g} (our choice; mu = {mu:g}), (56) asks for "
            f"edge_rounds K >= {K} (now {smallest(self.edge_rounds):g}) and (58) for steps "
            f"L >= {slope:.3g} K = {L} (now {smallest(self.steps):g})"
        )
        if mu:
            rate = min(self.beta * self._strong(mu) / 2, 0.999)
            per_round = math.log1p(-rate) / edge_rate
            numbers["K per T"] = per_round
            asked = f"(61) asks for K >= {per_round:.3g} T, up to a constant"
            text += f"; for Theorem 1's rate over T rounds {asked}"
        yield Advice("note", "K and L of PerMFL (convex)", f"{text}.", numbers)

    def _nonconvex_loops(self, loss: Loss) -> Iterator[Advice]:
        """The K and L of (85) and (88)."""
        lam = self.lam
        gamma = self.gamma
        L = loss.L
        if L is None or not gamma > lam > L:
            return
        ends = (smallest(self.lr), largest(self.lr))
        decrease = min(lr * (1 - lr * (L + lam) / 2) for lr in ends)
        if decrease <= 0:
            return
        device_gap = (lam - L) ** 2
        edge_gap = (gamma - lam) ** 2
        per_k = lam**2 * largest(self.edge_lr) / (2 * decrease * device_gap)
        per_t = 2 * self.beta * gamma**2 / (smallest(self.edge_lr) * edge_gap)
        text = (
            f"over T rounds (88) asks for K >= {per_t:.3g} T and (85) for L >= {per_k:.3g} K, "
            "gaps of all levels taken as equal."
        )
        numbers = {"K per T": per_t, "L per K": per_k}
        yield Advice("note", "K and L of PerMFL (nonconvex)", text, numbers)

    def levers(self, L: float) -> Levers:
        both = self.lam + self.gamma
        moves = "an edge moves edge_lr*(lam + gamma)"
        edge = Upper("edge_lr", HALFWAY / both, both, moves, "its minimum")
        penalties: tuple[Proposal, ...] = ()
        if isinstance(self.edge_lr, int | float) and far(self.lam, self.gamma):
            share = f"lam/(lam + gamma) = {per_cent(self.lam / both)}"
            why = f"an edge goes {share} of the way to its devices; lam = gamma: halfway"
            equal = Proposal({"lam": self.gamma}, {"lam": why})
            penalties = (equal,)
        device = Step("lr", self.lam, "lam")
        return Levers((device,), (edge,), penalties)
