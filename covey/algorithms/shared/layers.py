"""Layers that all nodes share, averaged at every tier, beside layers that stay on the device."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


class SharedLayers(Algorithm):
    """A device's model is [u, v]; u is averaged at every tier, and v never leaves the device."""

    sample: Sample
    device_sample: Sample
    edge_rounds: int
    weight: Weight

    sends: ClassVar[str] = "its shared layers after the local steps, never the private ones"
    splits: ClassVar[bool] = True
    any_depth: ClassVar[bool] = True

    def above(self) -> str:
        return "edge"

    def server(self, me: Nodes, w: Rows) -> Rows:
        u = w[:, me.shared]
        v = w[:, me.private]
        replies, samples = me.ask(self.below, u, sample=self.sample)
        u = replies.mean(weight=samples)
        return torch.cat([u, v], dim=1)

    def below(self, me: Nodes, u: Rows) -> Weighted:
        if me.leaf:
            return self.device(me, u)
        return self.edge(me, u)

    def edge(self, me: Nodes, u: Rows) -> Weighted:
        for _ in range(self.edge_rounds):
            replies, samples = me.ask(self.below, u, sample=self.device_sample)
            u = replies.mean(weight=samples)
        v = me.initial()[:, me.private]
        x = torch.cat([u, v], dim=1)
        me.keep(me.tier, x)
        return u, me.weight(self.weight)

    @abstractmethod
    def device(self, me: Nodes, u: Rows) -> Weighted:
        """The device's u after its steps on [u, v]."""
