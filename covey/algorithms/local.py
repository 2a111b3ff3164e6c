"""Local training: every device learns alone; the baseline of personal models."""

from dataclasses import dataclass
from typing import ClassVar

from covey.engine.descend import descend
from covey.fields import Count, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.types import Rows


@dataclass(frozen=True)
class Local(Algorithm):
    """Each round, `steps` mini-batch steps of size `lr` from the device's own last model.

    Nothing is sent.
    """

    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20

    sends: ClassVar[str] = "nothing"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    learns_global: ClassVar[bool] = False

    def server(self, me: Nodes, w: Rows) -> Rows:
        me.ask(self.device)
        return w

    def device(self, me: Nodes) -> None:
        theta = me.recall("personal", default=me.initial())
        gradient = me.grad(self.batch)
        theta = descend(theta, gradient, steps=self.steps, lr=self.lr)
        me.keep("personal", theta)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        self.device(me)
        return me.kept["personal"]
