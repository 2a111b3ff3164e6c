"""Solvers of a user's own: a function, or a class with state, that turns gradients into steps.

The engine does the rest: step sizes and schedules, clipping, epochs, masks, the rows that have
finished, and state that a device keeps from round to round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from covey.errors import ConfigError, shown
from covey.origin import FAULTS, told
from covey.types import Rows

State = dict[str, Rows]
"""The state of n rows: tensors by name, with one row [n, ...] per row each."""


@runtime_checkable
class StepRule(Protocol):
    """A solver with state; all tensors have one row per device, and rows must not mix."""

    def begin(self, x: Rows) -> Mapping[str, Rows]:
        """The state before the first step from x [n, P]."""
        ...

    def direction(
        self, x: Rows, gradient: Rows, state: Mapping[str, Rows]
    ) -> tuple[Rows, Mapping[str, Rows]]:
        """The direction [n, P] of the step x - lr * direction, and the state after it."""
        ...


Direction = Callable[[Rows, Rows], Rows]
"""A solver without state: the direction of a step, from x and the gradient."""


@dataclass(frozen=True)
class OwnRule:
    """A solver of a user's own, whose answers are checked."""

    rule: StepRule | Direction
    settings: tuple[tuple[str, Any], ...] = ()
    """What its class was called with."""

    @property
    def name(self) -> str:
        """How errors and records call it."""
        return str(getattr(self.rule, "__name__", type(self.rule).__name__))

    def begin(self, x: Rows) -> State:
        """The state before the first step; empty for a function."""
        if not isinstance(self.rule, StepRule):
            return {}
        return self._checked(self.rule.begin(x), x, "begin")

    def direction(
        self,
        x: Rows,
        gradient: Rows,
        state: Mapping[str, Rows],
    ) -> tuple[Rows, State]:
        """The direction of a step, and the state after it."""
        if not isinstance(self.rule, StepRule):
            return self._checked_rows(self.rule(x, gradient), x), {}
        answer = self.rule.direction(x, gradient, dict(state))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ConfigError(
                f"solver {self.name}: `direction` returned {shown(type(answer).__name__)}; "
                "return a tuple of the direction and the state."
            )
        rows, after = answer
        after = self._checked(after, x, "direction")
        if after.keys() != state.keys():
            have = ", ".join(sorted(after)) or "nothing"
            want = ", ".join(sorted(state)) or "nothing"
            fault = f"`direction` returned the state of {have}, but `begin` that of {want}"
            raise ConfigError(f"solver {self.name}: {fault}; return the same names.")
        return self._checked_rows(rows, x), after

    def _checked_rows(self, rows: Any, x: Rows) -> Rows:
        if isinstance(rows, Tensor) and rows.shape == x.shape and rows.dtype == x.dtype:
            return rows
        form = f"the shape and type of x, {tuple(x.shape)} and {x.dtype}"
        raise ConfigError(
            f"solver {self.name}: the direction is {_form(rows)}; give a tensor with {form}."
        )

    def _checked(self, state: Any, x: Rows, method: str) -> State:
        if not isinstance(state, Mapping):
            raise ConfigError(
                f"solver {self.name}: the state of `{method}` is {_form(state)}; "
                "give a dict of tensors, {} for none."
            )
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != len(x):
                raise ConfigError(
                    f"solver {self.name}: the state {name!r} of `{method}` is {_form(value)}; "
                    f"give a tensor with one row per row of x, here {len(x)}."
                )
        return dict(state)


def own_rule(thing: Any, settings: Mapping[str, Any]) -> OwnRule:
    """The solver of a function, a class or an object; a class is called with the settings."""
    name = getattr(thing, "__name__", type(thing).__name__)
    kind = thing if inspect.isclass(thing) else type(thing)
    if issubclass(kind, torch.optim.Optimizer):
        fix = 'name "sgd", "adam" or "adamw", or write the step as a function (x, gradient)'
        raise ConfigError(f"solver {name} of torch steps one model, not rows of devices; {fix}.")
    made = thing
    if inspect.isclass(thing):
        try:
            made = thing(**settings)
        except FAULTS as error:
            values = ", ".join(f"{key}={value!r}" for key, value in settings.items())
            raise ConfigError(f"solver: {name}({values}) fails with {told(error)}") from error
    elif settings:
        keys = ", ".join(settings)
        fix = "name a class, which is called with them"
        raise ConfigError(f"solver {name} takes no settings, but got {keys}; {fix}.")
    if not isinstance(made, StepRule) and (inspect.isclass(thing) or not callable(made)):
        wanted = "the methods begin(x) and direction(x, gradient, state)"
        raise ConfigError(f"solver {name}: give it {wanted}, or give a function (x, gradient).")
    rule = OwnRule(made, tuple(sorted(settings.items())))
    _check_rows_apart(rule)
    return rule


def _check_rows_apart(rule: OwnRule) -> None:
    """An error where the step of a device depends on the devices beside it.

    A solver that fails on these rows, for instance because it knows the model's width, is left to
    the dry run before the first round.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    gradients = torch.randn(2, 3, 5, generator=draw, dtype=torch.float64)
    before = torch.cat([x[None], gradients])
    try:
        together = _two_steps(rule, x, gradients)
        in_place = not torch.equal(before, torch.cat([x[None], gradients]))
        alone = [_two_steps(rule, x[k : k + 1], gradients[:, k : k + 1]) for k in range(3)]
    except FAULTS:
        return
    if in_place:
        fix = "return new tensors, as in gradient.sign() instead of gradient.sign_()"
        raise ConfigError(f"solver {rule.name} changes x or the gradient in place; {fix}.")
    if not torch.allclose(together, torch.cat(alone), equal_nan=True):
        raise ConfigError(
            f"solver {rule.name} mixes rows, but every row is another device; compute norms and "
            "sums row by row, as in gradient.norm(dim=1, keepdim=True)."
        )


def _two_steps(rule: OwnRule, x: Rows, gradients: Tensor) -> Rows:
    state = rule.begin(x)
    for gradient in gradients:
        direction, state = rule.direction(x, gradient, state)
        x = x - 0.1 * direction
    return x


def _form(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    return f"a {type(value).__name__}"
