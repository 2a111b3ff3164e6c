"""The optimiser of descents on data, which an experiment names with `solver`.

"sgd" alone is a plain step, and the fast solvers of `descend.py` take it. Momentum, clipping,
Adam's steps and those of a user's own solver are taken one by one in torch. Momentum and moments
begin anew with every descent, or are kept by the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from covey.engine.modules import rowwise
from covey.engine.solvers.methods import settle
from covey.engine.solvers.objective import DataLoss, Gradient, Objective
from covey.engine.solvers.step_rule import OwnRule, State, StepRule, own_rule
from covey.errors import ConfigError, shown
from covey.fields import NonNegative, Positive, Range, named_kind, options, read
from covey.types import Rows

Schedule = Literal["constant", "cosine", "linear", "step"]
"""The factor of a step size by round."""
SCHEDULES: tuple[str, ...] = get_args(Schedule)
Solver = str | Mapping[str, Any] | Callable[..., Any] | StepRule
"""An optimiser as an experiment has it: its name, or a table with its settings.

A solver of a user's own is a function, a class or an object (step_rule.py), also as the name.
"""


BelowOne = Annotated[float, Range(0, 0.9999)]
"""A number from 0 to below 1."""


@dataclass(frozen=True, kw_only=True)
class SolverSettings:
    """The settings of every solver, also of a user's own; the step size is the algorithm's."""

    decay: NonNegative = 0.0  # decay * x is added to the gradient, as torch.optim's weight_decay
    # does; with adamw it moves x by -lr * decay * x besides Adam's step
    clip: Positive | None = None  # bound of the norm of each row's gradient of the loss, before an
    # algorithm's own terms are added
    schedule: Schedule = "constant"  # factor of the step size by round
    epochs: Annotated[float, Range(0, 10_000, above=True)] | None = None  # in place of a number of
    # steps: a device of n examples takes ceil(epochs n / batch), in a random order
    state: Literal["reset", "kept"] = "reset"  # whether momentum and moments begin anew with every
    # descent, or are kept by the device


@dataclass(frozen=True, kw_only=True)
class SgdSettings(SolverSettings):
    """The settings of sgd."""

    momentum: BelowOne = 0.0  # share of the direction before that a step keeps
    nesterov: bool = False  # whether momentum is Nesterov's


@dataclass(frozen=True, kw_only=True)
class AdamSettings(SolverSettings):
    """The settings of adam and adamw."""

    beta1: BelowOne = 0.9  # share of the mean gradient before
    beta2: BelowOne = 0.999  # share of the mean square before
    eps: Positive = 1e-8  # what is added to the root of the mean square


NAMED: dict[str, type[SolverSettings]] = {
    "sgd": SgdSettings,
    "adam": AdamSettings,
    "adamw": AdamSettings,
}
"""The solvers by name, each with its settings."""


@dataclass(frozen=True)
class Optimiser(SgdSettings, AdamSettings):
    """How a device steps along the gradients of its data."""

    name: str = "sgd"
    rounds: int = 1
    """The rounds of the run, over which the schedule goes; 1 without a schedule."""
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

    def adapted(self, terms: Objective, round: int) -> Objective:
        """The terms with the round's step size, and with the decay that is a term of the loss."""
        lr = terms.lr
        decay = terms.decay
        if self.schedule != "constant":
            lr = lr * factor(self.schedule, int(round), self.rounds)  # a captured program notes it
        if self.name != "adamw":
            decay = decay + self.decay
        return replace(terms, lr=lr, decay=decay)

    def descend(self, start: Rows, gradient: Gradient, terms: Objective) -> Rows:
        """The rows after the steps of terms that are `adapted` already."""
        kept = gradient if self.state == "kept" and isinstance(gradient, DataLoss) else None
        rule = self.rule(by_row=kept is not None)
        x = start.clone()
        state = rule.begin(x)
        if kept is not None:
            state = {key: kept.recall(_stored(key, terms), zeros) for key, zeros in state.items()}
        active = None
        for step in range(terms.longest):
            total = terms.gradient(x, self.clipped(gradient(x)))
            direction, after = rule.direction(x, total, state)
            if kept is not None or self.own is not None:  # either may move other entries
                direction = terms.restrict(direction)
            if self.name == "adamw" and self.decay:
                direction = direction + terms.restrict(self.decay * x)
            moved = terms.shrink(x - terms.lr * direction, terms.lr)
            active = terms.active(step, total, active)
            if kept is not None and active is not None:
                after = {key: _where(active, value, state[key]) for key, value in after.items()}
            state = after
            x, done = settle(x, moved, active)
            if done:
                break
        if kept is not None:
            for key, value in state.items():
                kept.keep(_stored(key, terms), value)
        return x

    def rule(self, *, by_row: bool) -> StepRule | OwnRule:
        """What turns gradients into directions of steps; Adam may count its steps `by_row`."""
        if self.own is not None:
            return self.own
        if self.name == "sgd":
            return SgdRule(self.momentum, nesterov=self.nesterov)
        return AdamRule(self.beta1, self.beta2, self.eps, by_row=by_row)

    def clipped(self, gradient: Rows) -> Rows:
        """The gradient, each row of at most the norm `clip`.

        >>> Optimiser(clip=1.0).clipped(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.5]]
        """
        if self.clip is None:
            return gradient
        size = rowwise.norm(gradient)
        return gradient * (self.clip / size.clamp(min=self.clip))


@dataclass(frozen=True)
class SgdRule:
    """The rule of sgd: steps along the gradient, or along a decaying sum of gradients."""

    momentum: float
    nesterov: bool

    def begin(self, x: Rows) -> State:
        """Zeros; without momentum nothing is held."""
        return {"mean": torch.zeros_like(x)} if self.momentum else {}

    def direction(
        self,
        x: Rows,
        gradient: Rows,
        state: Mapping[str, Rows],
    ) -> tuple[Rows, State]:
        """The direction of a step along the gradient of all terms, and the state after it."""
        if not self.momentum:
            return gradient, {}
        mean = self.momentum * state["mean"] + gradient
        direction = mean
        if self.nesterov:
            direction = gradient + self.momentum * mean
        return direction, {"mean": mean}


@dataclass
class AdamRule:
    """The rule of Adam, of one descent.

    It counts its steps: of the descent alone, or `by_row` as a part of the state.
    """

    beta1: float
    beta2: float
    eps: float
    by_row: bool
    taken: int = 0

    def begin(self, x: Rows) -> State:
        """Zeros."""
        state = {"mean": torch.zeros_like(x), "square": torch.zeros_like(x)}
        if self.by_row:
            state["taken"] = torch.zeros(len(x), 1, dtype=torch.float64, device=x.device)
        return state

    def direction(
        self,
        x: Rows,
        gradient: Rows,
        state: Mapping[str, Rows],
    ) -> tuple[Rows, State]:
        """The direction of a step along the gradient of all terms, and the state after it."""
        after = {
            "mean": self.beta1 * state["mean"] + (1 - self.beta1) * gradient,
            "square": self.beta2 * state["square"] + (1 - self.beta2) * gradient * gradient,
        }
        corrections: list[Any]
        if self.by_row:
            after["taken"] = state["taken"] + 1
            corrections = [(1 - b ** after["taken"]).to(gradient) for b in (self.beta1, self.beta2)]
        else:
            self.taken += 1
            corrections = [1 - beta**self.taken for beta in (self.beta1, self.beta2)]
        size = (after["square"] / corrections[1]).sqrt() + self.eps
        return after["mean"] / corrections[0] / size, after


def _stored(name: str, terms: Objective) -> str:
    """The name of a kept state; there is one for each part of the columns that is descended."""
    if terms.part is None:
        return name
    return f"{name}_{terms.part.start}_{terms.part.stop}"


def _where(active: Tensor, value: Tensor, before: Tensor) -> Tensor:
    """The state of the rows that took a step, and that of before of the others."""
    rows = active.view(-1, *[1] * (value.ndim - 1))
    return torch.where(rows, value, before)


PLAIN = Optimiser()


def factor(schedule: str, round: int, rounds: int) -> float:
    """The factor of a round, counted from 0, of a run of so many rounds; above 0 in all of them.

    >>> [factor("linear", round, 4) for round in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [factor("step", round, 4) for round in range(4)]
    [1.0, 1.0, 0.1, 0.01]
    >>> [float(f"{factor('cosine', round, 4):.3f}") for round in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    share = min(round, rounds - 1) / rounds
    if schedule == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    if schedule == "linear":
        return 1 - share
    if schedule == "step" and share >= 0.75:
        return 0.01
    if schedule == "step" and share >= 0.5:
        return 0.1
    return 1.0


def optimiser(spec: Solver, rounds: int = 1) -> Optimiser:
    """The optimiser that an experiment of so many rounds names; an error where it names none.

    >>> optimiser({"name": "sgd", "momentum": 0.9}).refusal
    'the solver has momentum'
    """
    if isinstance(spec, Optimiser):
        return replace(spec, rounds=rounds if spec.schedule != "constant" else 1)
    if isinstance(spec, str) or callable(spec) or isinstance(spec, StepRule):
        spec = {"name": spec}
    if not isinstance(spec, Mapping):
        example = '{"name": "sgd", "momentum": 0.9}'
        raise ConfigError(f"solver = {shown(spec)}: give a name, or a table such as {example}.")
    given = dict(spec)
    name = given.pop("name", "sgd")
    if callable(name) or isinstance(name, StepRule):
        # What is no setting of the engine's is one of the solver's class.
        engine = options(SolverSettings)
        rule = own_rule(name, {key: value for key, value in given.items() if key not in engine})
        given = {key: value for key, value in given.items() if key in engine}
        settings = read(SolverSettings, given, "solver.")
        made = Optimiser(rule.name, own=rule, **asdict(settings))
    else:
        settings = read(named_kind(NAMED, name, "solver"), given, "solver.")
        made = Optimiser(name, **asdict(settings))
    if made.nesterov and not made.momentum:
        raise ConfigError("solver.nesterov = true needs momentum; set momentum = 0.9, say.")
    stateless = made.name == "sgd" and not made.momentum
    if made.own is not None:
        stateless = not isinstance(made.own.rule, StepRule)
    if made.state == "kept" and stateless:
        fix = "set momentum or another solver, or leave out state"
        raise ConfigError(f'solver: state = "kept", but {made.name} has no state; {fix}.')
    if made.schedule != "constant":
        made = replace(made, rounds=rounds)
    return made
