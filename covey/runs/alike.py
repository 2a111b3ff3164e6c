"""Whether experiments can run side by side: they may differ in seed and data alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.trial import sites
from covey.engine.population import block_size
from covey.fields import options
from covey.origin import FAULTS
from covey.runs.checks import PARTS
from covey.runs.settings import ExperimentSettings

if TYPE_CHECKING:
    from covey.runs.experiment import Experiment

_MAY_DIFFER = {"seed", "data", "initial"}


def difference(
    experiments: Sequence[Experiment],
    fingerprints: Sequence[dict[str, str]] | None = None,
) -> str | None:
    """The difference that keeps experiments from running side by side; None if there is none.

    `fingerprints` are theirs, where they are known already.
    """
    if not experiments:
        return "there is none"
    if len(experiments) == 1:
        return None
    if any(experiment.stop is not None for experiment in experiments):
        return "`stop` ends each of them in a round of its own"
    if fingerprints is None:
        fingerprints = [experiment.fingerprint() for experiment in experiments]
    first = fingerprints[0]
    for other, facts in zip(experiments[1:], fingerprints[1:], strict=True):
        for name in (first | facts).keys() - _MAY_DIFFER:
            if first.get(name) != facts.get(name):
                return f"they differ in {name}"
        reason = _setting_that_differs(experiments[0], other)
        if reason is not None:
            return reason
    return None


def _setting_that_differs(first: Experiment, other: Experiment) -> str | None:
    """A difference besides the facts of the fingerprints, which decide the bits."""
    same = [name for name, option in options(ExperimentSettings).items() if not option.decides_bits]
    for name in ["rounds", *same]:
        if name != "capture" and getattr(first, name) != getattr(other, name):
            return f"they differ in {name}"
    same_shape = first.data.x.shape[1:] == other.data.x.shape[1:]
    same_ids = first.data.tokens == other.data.tokens
    if first.data.classes != other.data.classes or not same_shape or not same_ids:
        return "their data differ in shape or classes"
    if callable(first.loss) and first.loss != other.loss:
        return "their losses are two functions, which may differ"
    if not _same_outputs(first, other):
        return "their models differ in what they compute"
    # The largest devices go through the models in blocks, whose sizes must be the same.
    data = first.protocol_data()
    other_data = other.protocol_data()
    for part in PARTS:
        size = block_size(data.part(part))
        other_size = block_size(other_data.part(part))
        if size != other_size:
            sizes = f"{size} and {other_size}"
            return (
                f"their largest {part} parts differ so much ({sizes}) "
                "that the last bits would differ"
            )
    if not torch.equal(data.receivers, other_data.receivers):
        return "their devices without training examples differ"
    return None


def _same_outputs(first: Experiment, other: Experiment) -> bool:
    """Whether two models give the same on the same weights.

    A module may hold settings that its text does not show.
    """
    if first.model is other.model:
        return True
    model = copy.deepcopy(first.model)
    other_model = copy.deepcopy(other.model)
    like = next(model.parameters())
    x = first.data.x[:2].to(like.device)
    if first.data.tokens is None:
        x = x.to(like)
    weights: dict[str, torch.Tensor] = dict(model.named_parameters())
    try:
        if sites(ParameterLayout(model), x) != sites(ParameterLayout(other_model), x):
            return False
        with torch.no_grad():
            expected = model.eval()(x)
            outputs = torch.func.functional_call(other_model.eval(), weights, (x,))
            return torch.equal(expected, outputs)
    except FAULTS:
        return True  # a model that cannot run at all is refused by the task, with a better message
