"""What a module must not do, because no row, no address and no batch decides it.

Outputs are to be a function of the parameters and of one example. Training passes are tried in
training mode and scoring passes in eval mode, with nothing dropped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from covey.engine.generator import NoDraws
from covey.engine.intercept import Recorder
from covey.engine.layout import ParameterLayout, aligned, sharing_copy
from covey.engine.norm import BatchNorm, NormLayer
from covey.engine.passing import Pass
from covey.errors import ModelError
from covey.origin import FAULTS

_CLOSE = {torch.float64: 1e-7}
_OTHERWISE_CLOSE = 1e-2
"""Largest difference by rounding, relative to the largest output, in other types."""
_STATE = (
    "two passes of the same examples differ: the model keeps something from one pass to the "
    "next{what}. No row holds it, so devices would share it; compute it from the inputs and the "
    "parameters in every pass."
)
_EXAMPLES = (
    "in {mode} mode the model's outputs for an example depend on the other examples of its batch: "
    "batches are filled up, and scores go through the model in blocks; treat every example alone, "
    "or normalize by nn.BatchNorm1d to 3d."
)
_ELSEWHERE = (
    "the model reads a parameter from somewhere else than its attributes, as from a list or a "
    "dict: devices could not have their own; hold parameters in nn.ParameterList, nn.ParameterDict "
    "or attributes."
)


def check(space: ParameterLayout, x: Tensor) -> None:
    """An error if outputs depend on more than the parameters and one example.

    `x` are two examples or one.
    """
    with torch.no_grad(), NoDraws(), _no_other_draws():
        trial = _Trial(space)
        _check_norm_modes(trial.module, space.norms)
        scored = trial.outputs(x, training=False)
        trained = trial.outputs(x, training=True)
        trial.check_again(x, trained, training=True)
        trial.check_again(x, scored, training=False)
        trial.check_others(x, trained, training=True)
        trial.check_others(x, scored, training=False)
        trial.check_parameters(x)


class _Trial:
    """A copy of a module that runs with parameters near its own."""

    def __init__(self, space: ParameterLayout) -> None:
        self.space = space
        self.module = sharing_copy(space.module)
        self.before = {name: value.clone() for name, value in space.module.named_buffers()}
        row = space.row(space.module)
        pattern = torch.cos(1.7 * torch.arange(len(row), dtype=row.dtype))
        self.row = row + 0.01 * pattern
        placed = self.row.to(next(space.module.parameters()).device)
        self.values = {}
        for slot in space.slots:
            self.values[slot.name] = slot.oriented(aligned(slot.view(placed[None])[0]))

    def outputs(self, x: Tensor, *, training: bool) -> Tensor:
        """The outputs, where norm layers have constant statistics."""
        return self._outputs(self.module, x, self.values, training=training)

    def _outputs(
        self, module: nn.Module, x: Tensor, values: dict[str, Tensor], *, training: bool
    ) -> Tensor:
        module.train(training)
        for norm_layer in self.space.norms:
            module.get_submodule(norm_layer.name).eval()
        with Recorder(Pass([]), module):
            out: Tensor = torch.func.functional_call(module, values, (x.clone(),))
        return out

    def check_again(self, x: Tensor, outputs: Tensor, *, training: bool) -> None:
        """Refuse a module that gives other outputs than before."""
        again = self.outputs(x, training=training)
        if not _close(outputs, again, exact=True):
            raise ModelError(self._state())

    def check_others(self, x: Tensor, outputs: Tensor, *, training: bool) -> None:
        """Refuse a module whose outputs change with another example in the batch."""
        more = self.outputs(torch.cat([x, x[:1]]), training=training)
        if not _close(outputs, more[: len(x)]):
            mode = "training" if training else "eval"
            raise ModelError(_EXAMPLES.format(mode=mode))

    def check_parameters(self, x: Tensor) -> None:
        """Refuse a module that does not see the parameters it is given."""
        outputs = self.outputs(x, training=False)
        filled = self._outputs(self.space.fill(self.row), x, {}, training=False)
        if not _close(outputs, filled):
            raise ModelError(_ELSEWHERE)
        if self._is_independent(x):
            raise ModelError(_ELSEWHERE)

    def _is_independent(self, x: Tensor) -> bool:
        """Whether outputs have gradients, but by none of the parameters."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.values.items()}
        try:
            with torch.enable_grad():
                outputs = self._outputs(self.module, x, leaves, training=False)
            if not outputs.requires_grad:
                return False
            ones = torch.ones_like(outputs)
            gradients = torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)
        except FAULTS:
            return False  # the trial of the backward pass says why
        return all(gradient is None for gradient in gradients)

    def _state(self) -> str:
        """What to say of a module whose passes differ."""
        for name, value in self.module.named_buffers():
            if not torch.equal(value, self.before[name]):
                return _STATE.format(what=f", in its buffer {name!r}")
        return _STATE.format(what="")


def _check_norm_modes(module: nn.Module, norms: tuple[NormLayer, ...]) -> None:
    """Refuse BatchNorm layers that the module itself keeps in eval mode."""
    module.train()
    for norm_layer in norms:
        layer = module.get_submodule(norm_layer.name)
        if isinstance(layer, BatchNorm) and not layer.training:
            raise ModelError(
                f"layer {norm_layer.name!r} ({type(layer).__name__}) stays in eval mode when the "
                "model trains; norm = 'frozen' keeps the running statistics as they are."
            )


def _close(one: Tensor, other: Tensor, *, exact: bool = False) -> bool:
    """Whether outputs are equal; but for rounding, unless they must be equal on a CPU."""
    if one.shape != other.shape:
        return False
    if exact and one.device.type == "cpu":
        return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    if not one.numel() or not bool(torch.isfinite(one).all()):
        return True
    bound = _CLOSE.get(one.dtype, _OTHERWISE_CLOSE) * one.abs().max()
    return bool((one - other).abs().max() <= bound)


@contextmanager
def _no_other_draws() -> Iterator[None]:
    """Refuse draws by Python's or numpy's generators."""
    of_python = random.getstate()
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    try:
        yield
    finally:
        _check_states(of_python, of_numpy)


def _check_states(of_python: object, of_numpy: object) -> None:
    if random.getstate() != of_python:
        raise ModelError(_draws("the module random"))
    if not _same_state(of_numpy, np.random.get_state(legacy=False)):  # noqa: NPY002
        raise ModelError(_draws("numpy.random"))


def _same_state(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same_state(one[key], other[key]) for key in one)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def _draws(by: str) -> str:
    return (
        f"the model's forward draws by {by}, which no address decides; only dropout may draw, as "
        "nn.Dropout or F.dropout."
    )
