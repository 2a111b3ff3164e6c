"""What the user should know of how a loss fits the targets, the model and the step size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from covey.data import Shards
from covey.engine.named_losses import BinaryCrossEntropy, CrossEntropy, Focal, Huber
from covey.runs.experiment import Experiment
from covey.runs.record import Round

_FAR_BELOW = 0.1
"""A `delta` of Huber's loss below this share of the targets' standard deviation is noted."""
_ENTROPIES = (CrossEntropy, Focal)
_MANY = 4
"""Yes-or-no labels per example from which a default step size is noted."""


def growth_note(history: Sequence[Round]) -> str | None:
    """A note where a model's validation loss is ten times that of the first scored round."""
    first = next(record for record in history if record.models)
    last = history[-1]
    for name in sorted(last.models.keys() & first.models.keys()):
        before = first.models[name].scores["validation"].loss
        now = last.models[name].scores["validation"].loss
        if before and now and now > 10 * before:
            return (
                f"round {last.round + 1}: the validation loss of the {name} model is {now:.3g}, "
                f"but {before:.3g} in round {first.round + 1}; `covey advise` finds shorter steps."
            )
    return None


def loss_notes(experiment: Experiment, data: Shards) -> list[str]:
    """Notes on a loss, a model, batches or training data that leave little to learn from."""
    loss = experiment.loss
    notes = _batch_notes(experiment, data.train.counts())
    if isinstance(loss, Huber):
        notes += _huber_notes(loss.delta, data)
    if isinstance(loss, BinaryCrossEntropy) and data.y.ndim == 2:
        notes += _label_notes(experiment, data.y.shape[1])
    last = type(list(experiment.model.modules())[-1])
    if last in (nn.Softmax, nn.LogSoftmax) and (
        loss == "cross_entropy" or type(loss) in _ENTROPIES
    ):
        notes.append(
            f"the model ends in {last.__name__}, but the loss takes logits and applies a softmax "
            "itself; leave that layer out."
        )
    labels = data.y[data.train.index]
    if data.classes is not None and not data.partial and bool((labels == labels[:1]).all()):
        notes.append(
            "all training examples have the same class, so there is nothing to learn; look at the "
            "label column with `covey data show`."
        )
    return notes


def _batch_notes(experiment: Experiment, counts: Tensor) -> list[str]:
    """A note where batches drawn with replacement hold most examples twice or more."""
    algorithm = experiment.algorithm
    batch = getattr(algorithm, "batch", None)
    if not isinstance(batch, int):
        return []
    small = int(((counts > 0) & (2 * counts < batch)).sum())
    walks = experiment.batches != "uniform" or experiment.optimiser().epochs
    if not small or walks or algorithm.needs_examples:  # whose batches repeat no example
        return []
    return [
        f"batch = {batch} is more than twice the training examples of {small} of {len(counts)} "
        "devices: it is drawn with replacement, so theirs repeat examples. A smaller batch is "
        'faster, and batch = "none" takes every example once.'
    ]


def _huber_notes(delta: float, data: Shards) -> list[str]:
    """A note where nearly all errors are beyond `delta`, where gradients have one size."""
    targets = data.y[data.train.index].double()
    if len(targets) < 2:
        return []
    deviation = float(targets.std(0, correction=0).max())
    if delta >= _FAR_BELOW * deviation:
        return []
    return [
        f"loss huber: delta = {delta:g}, but the standard deviation of the targets is "
        f"{deviation:.3g}. A gradient is at most delta however large the error, so learning is "
        f"slow; set delta to about {deviation:.2g}, or scale the targets."
    ]


def _label_notes(experiment: Experiment, labels: int) -> list[str]:
    """A note where the step size is the algorithm's default and there are many labels."""
    step = _default_step(experiment)
    if labels < _MANY or step is None:
        return []
    name = type(experiment.algorithm).__name__
    return [
        f"loss bce is the mean over {labels} labels, so a step moves the output of a label "
        f"{labels} times less than with one label. lr = {step:g} is the default of {name}; "
        f"try lr = {labels * step:.2g}, or ask `covey advise`."
    ]


def _default_step(experiment: Experiment) -> float | None:
    """The step size `lr` of the algorithm where it is the default; else None."""
    algorithm = experiment.algorithm
    default = getattr(type(algorithm), "lr", None)  # a dataclass keeps defaults on the class
    if not isinstance(default, float) or experiment.solver != "sgd":
        return None
    if getattr(algorithm, "lr", None) != default:
        return None
    return default
