"""An experiment: everything that decides a run, as one plain frozen description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from covey.data import Shards
from covey.engine.augment import Augmentation, augmentations
from covey.engine.modules.layout import ParameterLayout
from covey.engine.solvers.optimiser import Optimiser, optimiser
from covey.errors import ConfigError, shown
from covey.fields import Count
from covey.kernel.algorithm import Algorithm
from covey.kernel.environment import Environment
from covey.kernel.rates import Rates, rates
from covey.kernel.work import Work
from covey.links.spec import wires
from covey.runs import checks
from covey.runs.alike import difference
from covey.runs.saved import fingerprint
from covey.runs.saved.fingerprint import describe
from covey.runs.settings import ExperimentSettings
from covey.runs.stopping import EarlyStop, early_stop
from covey.tree import Tree

__all__ = ["Experiment", "ExperimentSettings", "describe", "difference"]


@runtime_checkable
class EnvironmentSpec(Protocol):
    """What an experiment says of the environment of its runs, such as a radio."""

    @property
    def name(self) -> str:
        """Its table in a file, and its key in records."""
        ...

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError unless it suits the experiment."""
        ...

    def environment(
        self,
        experiments: Sequence[Experiment],
        chosen: Sequence[Sequence[int]],
        tree: Tree,
        notes: list[str],
    ) -> Environment:
        """The environment of a run of experiments side by side, on the `tree` of all of them.

        `chosen` are the training devices of each. What the user should know goes into `notes`.
        """
        ...


@dataclass(frozen=True, eq=False)
class Experiment(ExperimentSettings):
    """What to run; `covey.run(experiment)` runs it. All options have defaults (docs/reference.md).

    `frozen`, patterns as `private` has, names layers that do not train. They and parameters
    without `requires_grad` keep the module's values with either start; no row and no message holds
    them. With a `radio` (`covey.wireless.Radio`) every round has seconds and joules, and an
    algorithm may prune as its plan says.
    """

    algorithm: Algorithm
    data: Shards
    model: nn.Module
    tree: Tree
    rounds: Count
    radio: EnvironmentSpec | None = field(default=None, kw_only=True)
    frozen: str | tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.radio is not None and not isinstance(self.radio, EnvironmentSpec):
            raise ConfigError(f"radio = {shown(self.radio)}: give a covey.wireless.Radio.")
        checks.check(self)

    @property
    def environment(self) -> EnvironmentSpec | None:
        """What surrounds the devices of a run; None: nothing that takes time or loses answers."""
        return self.radio

    def fingerprint(self) -> dict[str, str]:
        """What decides the bits of a round, each as text or a hash.

        Two experiments that agree can share a checkpoint.
        """
        return fingerprint.of(self)

    def initial(self) -> torch.Tensor:
        """The row everybody starts from, [P], in the type of the run."""
        space = ParameterLayout(self.model, private=self.private)
        if self.start == "seed":
            return space.initial(self.seed).to(self.dtype)
        return space.row(self.model).to(self.dtype)

    def augmentations(self) -> tuple[Augmentation, ...]:
        """What is done to training batches, in order."""
        return augmentations(self.augment)

    def optimiser(self) -> Optimiser:
        """The optimiser of steps on data."""
        return optimiser(self.solver, self.rounds)

    def rates(self) -> Rates:
        """The schedules of the algorithm's own rates."""
        return rates(self.schedules, self.algorithm, self.rounds)

    def early_stop(self) -> EarlyStop | None:
        """When the run ends before its last round; None where it never does."""
        return early_stop(self.stop)

    def work(self) -> Work | None:
        """The work of a device for one answer, from which a plan computes times.

        None where the algorithm does not say.
        """
        space = ParameterLayout(self.model, private=self.private)
        if not space.shared:
            return None
        work = self.algorithm.work(space.shared, space.width - space.shared)
        if work is None:
            return None
        tree, _ = self.algorithm.fit(self.tree)
        links = wires(self.codec, tree.links)
        last = links[tree.links[-1], "up"]
        return work.sent_by(last.codec, torch.finfo(self.dtype).bits // 8)

    def protocol_data(self) -> Shards:
        """The data as the protocol has it: "paper" trains on the validation part too."""
        if self.protocol == "paper":
            return self.data.paper()
        return self.data

    def regular(self, round: int) -> bool:
        """Whether this round is scored even if it is not the last."""
        if (round + 1) % self.score_every == 0:
            return True
        every = self.score_train_every
        return every is not None and (round + 1) % every == 0

    def due(self, round: int) -> tuple[str, ...]:
        """The parts of the data to score on in this round, counted from 0."""
        last = round + 1 == self.rounds
        every = self.score_train_every
        if every is not None and (last or (round + 1) % every == 0):
            return tuple(dict.fromkeys([*self.parts, "train"]))
        return self.parts if last or self.regular(round) else ()
