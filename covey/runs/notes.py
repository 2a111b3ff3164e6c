"""What the user should know of a run before its first round."""

from __future__ import annotations

import math

from torch import nn

from covey.data import Shards
from covey.engine.measures.named_losses import BinaryCrossEntropy, CrossEntropy, Focal, Huber
from covey.engine.modules.layout import ParameterLayout
from covey.engine.task import Task
from covey.runs.experiment import Experiment

_FAR_BELOW = 0.1
"""A `delta` of Huber's loss below this share of the targets' standard deviation is noted."""
_ENTROPIES = (CrossEntropy, Focal)
_MANY = 4
"""Yes-or-no labels per example from which a default step size is noted."""


def loss_notes(experiment: Experiment, data: Shards) -> list[str]:
    """Notes on a loss, a model, batches or training data that leave little to learn from."""
    loss = experiment.loss
    algorithm = experiment.algorithm
    notes = []
    counts = data.train.counts()
    batch = getattr(algorithm, "batch", None)
    walks = experiment.batches != "uniform" or experiment.optimiser().epochs
    if isinstance(batch, int) and not walks and not algorithm.needs_examples:
        small = int(((counts > 0) & (2 * counts < batch)).sum())
        if small:  # batches drawn with replacement hold most examples twice or more
            notes.append(
                f"batch = {batch} is more than twice the training examples of {small} of "
                f"{len(counts)} devices: it is drawn with replacement, so theirs repeat examples. "
                'A smaller batch is faster, and batch = "none" takes every example once.'
            )
    targets = data.y[data.train.index]
    if isinstance(loss, Huber) and len(targets) > 1:
        deviation = float(targets.double().std(0, correction=0).max())
        if loss.delta < _FAR_BELOW * deviation:  # nearly all gradients have one size
            notes.append(
                f"loss huber: delta = {loss.delta:g}, but the standard deviation of the targets is "
                f"{deviation:.3g}. A gradient is at most delta however large the error, so "
                f"learning is slow; set delta to about {deviation:.2g}, or scale the targets."
            )
    if isinstance(loss, BinaryCrossEntropy) and data.y.ndim == 2:
        labels = data.y.shape[1]
        step = getattr(type(algorithm), "lr", None)  # a dataclass keeps defaults on the class
        default = getattr(algorithm, "lr", None) == step and experiment.solver == "sgd"
        if labels >= _MANY and isinstance(step, float) and default:
            notes.append(
                f"loss bce is the mean over {labels} labels, so a step moves the output of a label "
                f"{labels} times less than with one label. lr = {step:g} is the default of "
                f"{type(algorithm).__name__}; try lr = {labels * step:.2g}, or ask `covey advise`."
            )
    last = type(list(experiment.model.modules())[-1])
    if last in (nn.Softmax, nn.LogSoftmax) and (
        loss == "cross_entropy" or type(loss) in _ENTROPIES
    ):
        notes.append(
            f"the model ends in {last.__name__}, but the loss takes logits and applies a softmax "
            "itself; leave that layer out."
        )
    if data.classes is not None and not data.partial and bool((targets == targets[:1]).all()):
        notes.append(
            "all training examples have the same class, so there is nothing to learn; look at the "
            "label column with `covey data show`."
        )
    return notes


def training_notes(experiment: Experiment, task: Task) -> list[str]:
    """What the user should know of how training is computed."""
    notes = []
    frozen = task.space.frozen_size
    if task.space.frozen:
        start = "the rest starts from the seed"
        if experiment.start == "module":
            start = "the rest starts from them too"
        notes.append(
            f"{frozen} of {frozen + task.space.width} parameters are frozen: they keep the "
            f"module's values and are not sent; {start}."
        )
    if task.precision.reason is not None:
        notes.append(f'compute = "{experiment.compute}" computes in {task.precision}.')
    if experiment.algorithm.hessians and task.no_hessian is not None:
        name = type(experiment.algorithm).__name__
        notes.append(
            f"{name} takes differences of gradients for Hessian products: "
            f"autograd cannot differentiate this model twice ({task.no_hessian})."
        )
    return notes


def score_notes(experiment: Experiment, devices: int) -> list[str]:
    """What the user should know of which devices are scored, and of a stop that has no room."""
    notes = []
    sample = experiment.score_sample
    if sample is not None and sample > devices:
        notes.append(
            f"score_sample = {sample}, but {devices} devices train: all of them are scored."
        )
    stop = experiment.early_stop()
    if stop is None:
        return notes
    before = experiment.rounds - 1
    scored = before // experiment.score_every
    every = experiment.score_train_every
    if every is not None:
        scored += before // every - before // math.lcm(every, experiment.score_every)
    too_few = f"stop cannot act in {experiment.rounds} rounds"
    if stop.min_rounds > before:
        notes.append(f"{too_few}: min_rounds = {stop.min_rounds}.")
    elif scored <= stop.patience:
        needed = f"patience = {stop.patience} needs {stop.patience + 1} scored rounds"
        notes.append(f"{too_few}: {needed} before the last, and there are {scored}.")
    return notes


def private_note(experiment: Experiment, space: ParameterLayout) -> str:
    """Which layers stay on the devices."""
    name = type(experiment.algorithm).__name__
    private = [slot.name for slot in space.slots if slot.start >= space.shared]
    if not private:
        return f"{name} shares all layers: no layer is private."
    layers = list(dict.fromkeys(each.rpartition(".")[0] or each for each in private))
    shown = ", ".join(layers)
    if len(layers) > 5:
        shown = f"{', '.join(layers[:4])} and {len(layers) - 4} more"
    subject = f"layer {shown} stays"
    if len(layers) > 1:
        subject = f"layers {shown} stay"
    patterns = ", ".join(f'"{pattern}"' for pattern in experiment.private)
    if len(experiment.private) != 1:
        patterns = f"[{patterns}]"
    return f'{name}: {subject} on each device (private = {patterns}); private = "" shares all.'
