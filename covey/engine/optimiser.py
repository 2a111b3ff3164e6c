"""The optimiser of descents on data, which an experiment names with `solver`.

"sgd" alone is a plain step, and the fast solvers of `solver.py` take it. Momentum, clipping and
Adam's steps are taken one by one in torch. Momentum and moments begin anew with every descent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from covey.engine import rowwise
from covey.engine.methods import settle
from covey.engine.objective import Gradient, Objective
from covey.errors import ConfigError, shown
from covey.types import Rows

NAMES = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "linear", "step")
_ONLY = {
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "beta1": ("adam", "adamw"),
    "beta2": ("adam", "adamw"),
    "eps": ("adam", "adamw"),
}
"""Settings that not every optimiser has, and those that have them."""
_BELOW_ONE = ("momentum", "beta1", "beta2")

Solver = str | Mapping[str, Any]
"""An optimiser as an experiment has it: its name, or a table with its settings."""


@dataclass(frozen=True)
class Optimiser:
    """How a device steps along the gradients of its data; the step size is the algorithm's.

    `clip` bounds the norm of each row's gradient of the loss, before an algorithm's own terms are
    added. `decay` adds decay * x to the gradient, as torch.optim's weight_decay does; with "adamw"
    it moves x by -lr * decay * x besides Adam's step. `schedule` multiplies the step size by a
    factor that depends on the round. `epochs` replaces the number of steps of an algorithm: a
    device of n examples takes ceil(epochs n / batch), over its examples in a random order.
    """

    name: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    clip: float | None = None
    schedule: str = "constant"
    epochs: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    rounds: int = 1
    """The rounds of the run, over which the schedule goes; 1 without a schedule."""

    @property
    def refusal(self) -> str | None:
        """Why the fast solvers, which take plain steps, do not fit; None where they do."""
        if self.name != "sgd":
            return f"the solver is {self.name}"
        if self.momentum:
            return "the solver has momentum"
        if self.clip is not None:
            return "the solver clips gradients"
        return None

    def factor(self, round: int) -> float:
        """What the step size of a round is multiplied by.

        >>> [round(Optimiser(schedule="cosine", rounds=4).factor(t), 3) for t in range(4)]
        [1.0, 0.854, 0.5, 0.146]
        >>> [Optimiser(schedule="step", rounds=4).factor(t) for t in range(4)]
        [1.0, 1.0, 0.1, 0.01]
        """
        share = min(round, self.rounds - 1) / self.rounds
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * share)) / 2
        if self.schedule == "linear":
            return 1 - share
        if self.schedule == "step":
            return _stair(share)
        return 1.0

    def adapted(self, terms: Objective, round: int) -> Objective:
        """The terms with the round's step size, and with the decay that is a term of the loss."""
        lr = terms.lr
        decay = terms.decay
        if self.schedule != "constant":
            lr = lr * self.factor(int(round))  # a captured program notes that
        if self.name != "adamw":
            decay = decay + self.decay
        return replace(terms, lr=lr, decay=decay)

    def descend(self, start: Rows, gradient: Gradient, terms: Objective) -> Rows:
        """The rows after the steps of terms that are `adapted` already."""
        x = start.clone()
        moments = _Moments(self, x)
        active = None
        for step in range(terms.longest):
            total = terms.gradient(x, self.clipped(gradient(x)))
            direction = moments.direction(total, step + 1)
            if self.name == "adamw" and self.decay:
                direction = direction + terms.restrict(self.decay * x)
            moved = terms.shrink(x - terms.lr * direction, terms.lr)
            active = terms.active(step, total, active)
            x, done = settle(x, moved, active)
            if done:
                break
        return x

    def clipped(self, gradient: Rows) -> Rows:
        """The gradient, each row of at most the norm `clip`.

        >>> Optimiser(clip=1.0).clipped(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.5]]
        """
        if self.clip is None:
            return gradient
        size = rowwise.norm(gradient)
        return gradient * (self.clip / size.clamp(min=self.clip))


class _Moments:
    """The momentum or Adam's moments of one descent."""

    def __init__(self, optimiser: Optimiser, x: Rows) -> None:
        self._optimiser = optimiser
        self._mean = torch.zeros_like(x)
        self._square = torch.zeros_like(x)

    def direction(self, total: Rows, taken: int) -> Rows:
        """The direction of step number `taken`, counted from 1."""
        if self._optimiser.name == "sgd":
            return self._sgd(total)
        return self._adam(total, taken)

    def _sgd(self, total: Rows) -> Rows:
        momentum = self._optimiser.momentum
        if not momentum:
            return total
        self._mean = momentum * self._mean + total
        if self._optimiser.nesterov:
            return total + momentum * self._mean
        return self._mean

    def _adam(self, total: Rows, taken: int) -> Rows:
        beta1 = self._optimiser.beta1
        beta2 = self._optimiser.beta2
        self._mean = beta1 * self._mean + (1 - beta1) * total
        self._square = beta2 * self._square + (1 - beta2) * total * total
        size = (self._square / (1 - beta2**taken)).sqrt() + self._optimiser.eps
        return self._mean / (1 - beta1**taken) / size


PLAIN = Optimiser()


def optimiser(spec: Solver, rounds: int = 1) -> Optimiser:
    """The optimiser that an experiment of so many rounds names; an error where it names none.

    >>> optimiser({"name": "sgd", "momentum": 0.9}).refusal
    'the solver has momentum'
    """
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping):
        example = '{"name": "sgd", "momentum": 0.9}'
        raise ConfigError(f"solver = {shown(spec)}: give a name, or a table such as {example}.")
    given = dict(spec)
    name = given.pop("name", "sgd")
    if not isinstance(name, str) or name not in NAMES:
        raise ConfigError(f"solver = {shown(name)}: choose one of {', '.join(NAMES)}.")
    for key, value in given.items():
        _check(name, key, value)
    made = Optimiser(name, **given)
    if made.nesterov and not made.momentum:
        raise ConfigError("solver: nesterov = true needs momentum; set momentum = 0.9, say.")
    if made.schedule != "constant":
        made = replace(made, rounds=rounds)
    return made


def _check(name: str, key: str, value: Any) -> None:
    """An error for a setting that this optimiser does not have, or a value out of its range."""
    known = [field.name for field in fields(Optimiser) if field.name not in ("name", "rounds")]
    if key not in known:
        raise ConfigError(f"solver has no setting {key!r}; it has {', '.join(known)}.")
    if name not in _ONLY.get(key, NAMES):
        others = " and ".join(_ONLY[key])
        fix = f"it is one of {others}; leave it out"
        raise ConfigError(f"solver {name} has no setting {key!r}: {fix}.")
    if key == "schedule":
        if value not in SCHEDULES:
            listed = ", ".join(SCHEDULES)
            raise ConfigError(f"solver: schedule = {shown(value)}; choose one of {listed}.")
    elif key == "nesterov":
        if not isinstance(value, bool):
            raise ConfigError(f"solver: nesterov = {shown(value)}; give true or false.")
    elif key not in ("clip", "epochs") or value is not None:
        _check_number(key, value)


def _check_number(key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    rule = "a number from 0 to 1e30"
    allowed = number and 0 <= value <= 1e30
    if key in _BELOW_ONE:
        rule = "a number from 0 to 0.9999"
        allowed = number and 0 <= value <= 0.9999
    if key in ("clip", "eps"):
        rule = "a number above 0"
        allowed = number and 0 < value <= 1e30
    if key == "epochs":
        rule = "a number above 0, at most 10000"
        allowed = number and 0 < value <= 10_000
    if not allowed:
        raise ConfigError(f"solver: {key} = {shown(value)}; give {rule}.")


def _stair(share: float) -> float:
    """1, from half of the rounds on 0.1, and 0.01 in the last quarter."""
    if share >= 0.75:
        return 0.01
    if share >= 0.5:
        return 0.1
    return 1.0
