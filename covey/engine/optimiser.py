"""The optimiser of descents on data, which an experiment names with `solver`.

"sgd" alone is a plain step, and the fast solvers of `solver.py` take it. Momentum, clipping,
Adam's steps and those of a user's own solver are taken one by one in torch. Momentum and moments
begin anew with every descent, or are kept by the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from covey.engine import rowwise
from covey.engine.methods import settle
from covey.engine.objective import DataLoss, Gradient, Objective
from covey.engine.schedule import SCHEDULES, factor
from covey.engine.step_rule import OwnRule, State, StepRule, own_rule
from covey.errors import ConfigError, meant, shown
from covey.types import Rows

NAMES = ("sgd", "adam", "adamw")
_ONLY = {
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "beta1": ("adam", "adamw"),
    "beta2": ("adam", "adamw"),
    "eps": ("adam", "adamw"),
}
"""Settings that not every optimiser has, and those that have them."""
_BELOW_ONE = ("momentum", "beta1", "beta2")
_CHOICES = {"schedule": SCHEDULES, "state": ("reset", "kept")}
_FOR_OWN = ("decay", "clip", "schedule", "epochs", "state")
"""Settings that a user's own solver has from the engine; its others are its class's."""

Solver = str | Mapping[str, Any] | Any
"""An optimiser as an experiment has it: its name, or a table with its settings.

A solver of a user's own is a function, a class or an object (step_rule.py), also as the name.
"""


@dataclass(frozen=True)
class Optimiser:
    """How a device steps along the gradients of its data; the step size is the algorithm's.

    `clip` bounds the norm of each row's gradient of the loss, before an algorithm's own terms are
    added. `decay` adds decay * x to the gradient, as torch.optim's weight_decay does; with "adamw"
    it moves x by -lr * decay * x besides Adam's step. `schedule` multiplies the step size by a
    factor that depends on the round. `epochs` replaces the number of steps of an algorithm: a
    device of n examples takes ceil(epochs n / batch), over its examples in a random order. `state`
    says whether momentum and moments begin anew with every descent, or are kept by the device.
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
    state: str = "reset"
    own: OwnRule | None = None
    """A solver of the user's own, which has the directions of the steps."""

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
        return factor(self.schedule, round, self.rounds)

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
        steps = self._steps(x, gradient, terms)
        active = None
        for step in range(terms.longest):
            total = terms.gradient(x, self.clipped(gradient(x)))
            direction = steps.direction(x, total)
            if self.name == "adamw" and self.decay:
                direction = direction + terms.restrict(self.decay * x)
            moved = terms.shrink(x - terms.lr * direction, terms.lr)
            active = terms.active(step, total, active)
            steps.settle(active)
            x, done = settle(x, moved, active)
            if done:
                break
        steps.end()
        return x

    def _steps(self, x: Rows, gradient: Gradient, terms: Objective) -> _Steps:
        """The directions of a descent from x, with the state that the device has kept."""
        kept = self.state == "kept" and isinstance(gradient, DataLoss)
        rule: OwnRule | _Moments = _Moments(self, by_row=kept)
        if self.own is not None:
            rule = self.own
        if kept:
            assert isinstance(gradient, DataLoss)
            return _KeptSteps(rule, x, terms, gradient)
        if self.own is not None:
            return _RestrictedSteps(rule, x, terms)
        return _Steps(rule, x)

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
    """The momentum or Adam's moments, as a rule of steps with state.

    Adam counts its steps: of the descent alone, or `by_row` as a part of the state.
    """

    def __init__(self, optimiser: Optimiser, *, by_row: bool) -> None:
        self._optimiser = optimiser
        self._by_row = by_row
        self._taken = 0

    def begin(self, x: Rows) -> State:
        """Zeros; what a solver does not use takes no memory."""
        if self._optimiser.name == "sgd":
            if not self._optimiser.momentum:
                return {}
            return {"mean": torch.zeros_like(x)}
        state = {"mean": torch.zeros_like(x), "square": torch.zeros_like(x)}
        if self._by_row:
            state["taken"] = torch.zeros(len(x), 1, dtype=torch.float64, device=x.device)
        return state

    def direction(self, x: Rows, total: Rows, state: State) -> tuple[Rows, State]:
        """The direction of a step along the gradient of all terms, and the state after it."""
        if self._optimiser.name == "sgd":
            return self._sgd(total, state)
        return self._adam(total, state)

    def _sgd(self, total: Rows, state: State) -> tuple[Rows, State]:
        momentum = self._optimiser.momentum
        if not momentum:
            return total, state
        mean = momentum * state["mean"] + total
        direction = mean
        if self._optimiser.nesterov:
            direction = total + momentum * mean
        return direction, {"mean": mean}

    def _adam(self, total: Rows, state: State) -> tuple[Rows, State]:
        beta1 = self._optimiser.beta1
        beta2 = self._optimiser.beta2
        after = {
            "mean": beta1 * state["mean"] + (1 - beta1) * total,
            "square": beta2 * state["square"] + (1 - beta2) * total * total,
        }
        mean_correction: float | Tensor
        square_correction: float | Tensor
        if self._by_row:
            taken = state["taken"] + 1
            after["taken"] = taken
            mean_correction = (1 - beta1**taken).to(total)
            square_correction = (1 - beta2**taken).to(total)
        else:
            self._taken += 1
            mean_correction = 1 - beta1**self._taken
            square_correction = 1 - beta2**self._taken
        size = (after["square"] / square_correction).sqrt() + self._optimiser.eps
        return after["mean"] / mean_correction / size, after


class _Steps:
    """The directions of one descent, whose state begins anew."""

    def __init__(self, rule: OwnRule | _Moments, x: Rows) -> None:
        self._rule = rule
        self._state = rule.begin(x)

    def direction(self, x: Rows, total: Rows) -> Rows:
        """The direction of the next step from x along the gradient of all terms."""
        direction, self._state = self._rule.direction(x, total, self._state)
        return direction

    def settle(self, active: Tensor | None) -> None:
        """Called after a step with the rows that took it; the others take no step any more."""

    def end(self) -> None:
        """Called after the descent."""


class _RestrictedSteps(_Steps):
    """As above, along the entries that move alone: a rule or an old state may move others."""

    def __init__(self, rule: OwnRule | _Moments, x: Rows, terms: Objective) -> None:
        super().__init__(rule, x)
        self._terms = terms

    def direction(self, x: Rows, total: Rows) -> Rows:
        """The direction of the next step, 0 for entries that do not move."""
        return self._terms.restrict(super().direction(x, total))


class _KeptSteps(_RestrictedSteps):
    """As above, with the state that each row's device has kept since its last descent."""

    def __init__(self, rule: OwnRule | _Moments, x: Rows, terms: Objective, loss: DataLoss) -> None:
        super().__init__(rule, x, terms)
        self._loss = loss
        self._before: State = {}
        for name, value in self._state.items():
            self._state[name] = loss.recall(self._name(name), value)

    def direction(self, x: Rows, total: Rows) -> Rows:
        """The direction of the next step, 0 for entries that do not move."""
        self._before = self._state
        return super().direction(x, total)

    def settle(self, active: Tensor | None) -> None:
        """Rows that took no step have their state of before."""
        if active is None:
            return
        for name, value in self._state.items():
            rows = active.view(-1, *[1] * (value.ndim - 1))
            self._state[name] = torch.where(rows, value, self._before[name])

    def end(self) -> None:
        """Let the devices keep their state."""
        for name, value in self._state.items():
            self._loss.keep(self._name(name), value)

    def _name(self, name: str) -> str:
        """A state for each part of the columns that a program descends."""
        part = self._terms.part
        if part is None:
            return name
        return f"{name}_{part.start}_{part.stop}"


PLAIN = Optimiser()


def optimiser(spec: Solver, rounds: int = 1) -> Optimiser:
    """The optimiser that an experiment of so many rounds names; an error where it names none.

    >>> optimiser({"name": "sgd", "momentum": 0.9}).refusal
    'the solver has momentum'
    """
    if isinstance(spec, str) or callable(spec) or isinstance(spec, StepRule):
        spec = {"name": spec}
    if not isinstance(spec, Mapping):
        example = '{"name": "sgd", "momentum": 0.9}'
        raise ConfigError(f"solver = {shown(spec)}: give a name, or a table such as {example}.")
    given = dict(spec)
    name = given.pop("name", "sgd")
    if callable(name) or isinstance(name, StepRule):
        made = _own(name, given)
    else:
        made = _named(name, given)
    _check_state(made)
    if made.schedule != "constant":
        made = replace(made, rounds=rounds)
    return made


def _named(name: Any, given: dict[str, Any]) -> Optimiser:
    """The optimiser of a name and its settings."""
    if not isinstance(name, str) or name not in NAMES:
        fix = f"choose one of {', '.join(NAMES)}, or give a function or class of your own"
        raise ConfigError(f"solver = {shown(name)}{meant(name, NAMES)}: {fix}.")
    for key, value in given.items():
        _check(name, key, value)
    made = Optimiser(name, **given)
    if made.nesterov and not made.momentum:
        raise ConfigError("solver: nesterov = true needs momentum; set momentum = 0.9, say.")
    return made


def _own(thing: Any, given: dict[str, Any]) -> Optimiser:
    """The optimiser of a user's own solver; what is no setting of the engine's is its class's."""
    ours = {key: value for key, value in given.items() if key in _FOR_OWN}
    theirs = {key: value for key, value in given.items() if key not in _FOR_OWN}
    rule = own_rule(thing, theirs)
    for key, value in ours.items():
        _check(rule.name, key, value)
    return Optimiser(rule.name, own=rule, **ours)


def _check_state(made: Optimiser) -> None:
    """An error where there is no state to keep."""
    if made.state == "reset":
        return
    stateless = made.name == "sgd" and not made.momentum
    if made.own is not None:
        stateless = not isinstance(made.own.rule, StepRule)
    if stateless:
        fix = "set momentum or another solver, or leave out state"
        raise ConfigError(f'solver: state = "kept", but {made.name} has no state; {fix}.')


def _check(name: str, key: str, value: Any) -> None:
    """An error for a setting that this optimiser does not have, or a value out of its range."""
    hidden = ("name", "rounds", "own")
    known = [field.name for field in fields(Optimiser) if field.name not in hidden]
    if key not in known:
        hint = meant(key, known)
        raise ConfigError(f"solver has no setting {key!r}{hint}; it has {', '.join(known)}.")
    if key in _ONLY and name not in _ONLY[key]:
        others = " and ".join(_ONLY[key])
        fix = f"it is one of {others}; leave it out"
        raise ConfigError(f"solver {name} has no setting {key!r}: {fix}.")
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            listed = ", ".join(_CHOICES[key])
            hint = meant(value, _CHOICES[key])
            raise ConfigError(f"solver: {key} = {shown(value)}{hint}; choose one of {listed}.")
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
