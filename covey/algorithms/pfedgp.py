"""pFedGP: a shared feature network, and Gaussian processes per device (Achituve et al., 2021).

The features are the module's outputs; there may be more of them than classes. A device orders the
classes it has by label and halves them until each is alone. Where it has both halves, a Gaussian
process on the features of their examples says which one. Its kernel is
`scale` exp(-|x - z|^2 / (2 `length`^2)). Only the network is learned and sent. The public code's
inner steps, Gibbs steps and draws in training and prediction are `steps`, `gibbs_steps`, `draws`,
`predict_draws`.

The public code differs in four points:
- It splits classes by 2-means of their features.
- It takes exp E log sigmoid(f) for E sigmoid(f). Here probabilities are expectations.
- It uses all of a device's examples. Here up to `batch` different ones are drawn for a step and up
  to `support` for a prediction.
- It has momentum. Here the optimiser starts anew in every round, and there is one step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from covey.engine.descend import descend
from covey.engine.task import Batch, Predict
from covey.fields import (
    LARGEST_COUNT,
    Count,
    NonNegative,
    Positive,
    Range,
)
from covey.kernel.advice import Advice, Levers, Loss, Statement
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.maths import gp
from covey.tree import Sample
from covey.types import Rows

_UNSEEN = 1e-6  # the probability of all classes together that a device has never seen


@dataclass(frozen=True)
class PFedGP(Algorithm):
    """`steps` steps on the log loss of one half of a batch, predicted from the other half.

    No example is in both halves. A device with fewer examples than `batch` takes all it has.
    w is the mean network. A model predicts with a device's own Gaussian processes on up to
    `support` of its training examples. Scores of "global" are of the common network with each
    device's own classifier (the paper's figure), those of "personal" of the device's network.
    """

    sample: Sample = None
    steps: Count = 1  # gradient steps of the network of features in one round
    lr: Positive = 0.05
    weight_decay: NonNegative = 0.001
    clip: Positive = 50.0  # largest norm of a gradient
    batch: Annotated[int, Range(2, LARGEST_COUNT, whole=True)] = 64  # training examples per step;
    # half of them predict the other half
    support: Count = 200  # training examples used for a prediction, at most
    scale: Positive = 8.0  # scale of the kernel
    length: Positive = 1.0  # length scale of the kernel
    gibbs_steps: Count = 5  # Gibbs steps of each draw
    draws: Count = 20  # draws in training
    predict_draws: Count = 30  # draws in prediction
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its network of features; the classifier never leaves it"
    plain_steps: ClassVar[str | None] = "it steps along the gradient of a loss of its own"
    needs_examples: ClassVar[str | None] = "a device's classifier consists of its examples"
    eager: ClassVar[str | None] = "CUDA cannot capture Cholesky factors and triangular solves"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        def gradient(x: Rows) -> Rows:
            batch = me.distinct(self.batch)
            loss = partial(self.loss, me, batch)
            g = me.gradient(x, batch, loss)
            norm: Tensor = g.norm(dim=1, keepdim=True)
            excess = (norm / self.clip).clamp(min=1)
            return g / excess

        w = descend(w, gradient, decay=self.weight_decay, steps=self.steps, lr=self.lr)
        me.keep("personal", w)
        return w, me.weight(self.weight)

    def loss(self, me: Nodes, batch: Batch, features: Tensor) -> Tensor:
        """The log loss of every other label, predicted from those between, [n]."""
        known = slice(0, None, 2)  # every other one: a short batch has two halves too
        asked = slice(1, None, 2)
        weight = batch.weight
        if weight is None:
            weight = torch.ones_like(features[:, :, 0])
        fitted = self.classifier(
            me,
            features[:, known],
            batch.y[:, known],
            weight[:, known],
            draws=self.draws,
            stream="train",
        )
        labels = batch.y[:, asked, None]
        weight = weight[:, asked]
        logs = fitted.log_chances(features[:, asked])
        logs = logs.gather(2, labels)[:, :, 0]
        count = weight.sum(1).clamp(min=1)
        return -(weight * logs).sum(1) / count

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        support = me.examples(self.support)
        has_label = me.labels
        fitted = self.classifier(
            me,
            me.outputs(rows, support),
            support.y,
            support.weight,
            draws=self.predict_draws,
            stream=model,
        )

        def predict(batch: Batch, which: Tensor) -> Tensor:
            features = me.outputs(rows[which], batch)
            probability = fitted.log_chances(features, which).exp()
            probability = has_label[which][:, None] * probability
            unseen = _UNSEEN / has_label.shape[1]
            return torch.log((1 - _UNSEEN) * probability + unseen)

        return predict

    def memory(self) -> int:
        half = (self.batch + 1) // 2
        train = 8 * self.draws * half**2  # matrices that a gradient goes back through
        columns = 3 * self.support + 512  # 512: one block of examples
        predict = self.predict_draws * self.support * columns
        return 8 * max(train, predict)

    def classifier(
        self,
        me: Nodes,
        features: Tensor,
        y: Tensor,
        weight: Tensor | None,
        *,
        draws: int,
        stream: str,
    ) -> gp.Classifier:
        """The device's own classifier on the features of these examples."""
        kernel = gp.CovarianceKernel(self.scale, self.length)
        return gp.classifier(
            kernel,
            features,
            y,
            weight=weight,
            has=me.labels,
            most=me.most_labels,
            steps=self.gibbs_steps,
            draws=draws,
            source=me,
            stream=stream,
        )

    def advice(self, loss: Loss) -> Iterator[Statement]:
        text = (
            f"lr = {self.lr:g}: the loss is a Gaussian process's, "
            f"its gradients are clipped at {self.clip:g}; no condition is known."
        )
        numbers = {"lr": self.lr, "clip": self.clip}
        yield Advice("note", "inner step", text, numbers)

    def levers(self, L: float) -> Levers:
        return Levers(without="its loss is a Gaussian process's, and its gradients are clipped")
