"""pFedGP: one network of features for all, and every device's own tree of Gaussian processes on
them (Achituve et al., 2021).

The features are the module's outputs; there may be more of them than classes. A device orders the
classes it has by label and halves them until each is alone; where it has both halves, a Gaussian
process on the features of their examples says which one, with the kernel `scale` exp(-|x - z|^2 /
(2 `length`^2)). Only the network is learned and sent. The public code's inner steps, Gibbs steps
and draws in training and prediction are `steps`, `gibbs_steps`, `draws`, `predict_draws`. That code
splits classes by 2-means of their features, takes exp E log sigmoid(f) for E sigmoid(f), and all of
a device's examples; here the chances are expectations, and `batch` examples are drawn for a step
and up to `support` taken for a prediction. Its momentum is left out: the optimiser starts anew in
every round, and there is one step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from covey.engine.descend import descend
from covey.engine.task import Batch, Predict
from covey.kernel.advice import Advice, Levers, Loss, Statement
from covey.kernel.algorithm import Algorithm
from covey.kernel.fields import LARGEST_COUNT, Count, NonNegative, Positive, Range
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Exact
from covey.maths import gp
from covey.tree import Sample
from covey.types import Rows

_ELSE = 1e-6  # the chance of classes that a device has never seen, all of them together


@dataclass(frozen=True)
class PFedGP(Algorithm):
    """`steps` steps on the log-loss of one half of a batch, predicted from the other half; w is the
    mean network.

    A model predicts with a device's own Gaussian processes on up to `support` of its training
    examples: scores of "global" are of the common network with everybody's own classifier (the
    paper's figure), of "personal" of the device's network.
    """

    sample: Sample = None
    steps: Count = 1  # gradient steps of the network of features in one round
    lr: Positive = 0.05
    weight_decay: NonNegative = 0.001
    clip: Positive = 50.0  # largest norm of a gradient
    batch: Annotated[int, Range(2, LARGEST_COUNT, whole=True)] = 64  # training examples per step;
    # half of them predict the other half
    support: Count = 200  # training examples that a prediction rests on, at most
    scale: Positive = 8.0  # scale of the kernel
    length: Positive = 1.0  # length scale of the kernel
    gibbs_steps: Count = 5  # Gibbs steps of each draw
    draws: Count = 20  # draws in training
    predict_draws: Count = 30  # draws in prediction
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its network of features; the classifier never leaves it"
    eager: ClassVar[str | None] = "CUDA cannot capture Cholesky factors and triangular solves"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> tuple[Rows, Exact | None]:
        def gradient(x: Rows) -> Rows:
            batch = me.grad(self.batch).batch(0)
            g = me.gradient(x, batch, lambda features: self.loss(me, features, batch))
            size: Tensor = g.norm(dim=1, keepdim=True)
            return g / (size / self.clip).clamp(min=1)

        w = descend(w, gradient, decay=self.weight_decay, steps=self.steps, lr=self.lr)
        return me.keep("personal", w), me.weight(self.weight)

    def loss(self, me: Nodes, features: Tensor, batch: Batch) -> Tensor:
        """Minus the mean logarithm of the chance that the second half's labels have, given the
        first half, [n].
        """
        half, weight = (
            self.batch // 2,
            torch.ones_like(features[:, :, 0]) if batch.weight is None else batch.weight,
        )
        known = self.classifier(
            me,
            features[:, :half],
            batch.y[:, :half],
            weight[:, :half],
            draws=self.draws,
            stream="train",
        )
        logs = known.log_chances(features[:, half:]).gather(2, batch.y[:, half:, None])[:, :, 0]
        return -(weight[:, half:] * logs).sum(1) / weight[:, half:].sum(1).clamp(min=1)

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        batch, has = me.examples(self.support), me.labels
        known = self.classifier(
            me,
            me.outputs(rows, batch),
            batch.y,
            batch.weight,
            draws=self.predict_draws,
            stream=model,
        )

        def predict(batch: Batch, which: Tensor) -> Tensor:
            chances = (
                has[which][:, None] * known.log_chances(me.outputs(rows[which], batch), which).exp()
            )
            return torch.log((1 - _ELSE) * chances + _ELSE / has.shape[1])

        return predict

    def memory(self) -> int:
        train, predict = (
            8 * self.draws * (self.batch // 2) ** 2,
            self.predict_draws * self.support * (3 * self.support + 512),
        )
        return 8 * max(
            train, predict
        )  # matrices that a gradient goes back through, and those of one block of examples

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
        yield Advice("note", "inner step", text, {"lr": self.lr, "clip": self.clip})

    def levers(self, L: float) -> Levers:
        return Levers(without="its loss is a Gaussian process's, and its gradients are clipped")
