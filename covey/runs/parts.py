"""What a run is made of: its examples, its module, its tasks, and the specs of its nodes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from covey.data import Shards
from covey.data.shards import some
from covey.engine.modules.layout import placed
from covey.engine.population import Population
from covey.engine.task import Task
from covey.errors import ConfigError
from covey.links.spec import LinkSpecs
from covey.runs.experiment import Experiment
from covey.runs.scores.scoring import Scorer
from covey.runtimes.spec import NodeSpec
from covey.tree import Tree
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Parts:
    """What a runtime for one experiment is made of.

    `start` are the initial rows, [1, P]; `data` are the examples of the devices that train.
    """

    experiment: Experiment
    module: nn.Module
    start: Rows
    tree: Tree
    data: Shards
    links: LinkSpecs

    def spec(self, data: Shards, population: Population | None = None) -> NodeSpec:
        """What nodes are made of that hold these examples; `population` is what all hold."""
        experiment = self.experiment
        task = task_of(experiment, self.module, data, population)
        scorer = partial(Scorer.made, experiment.algorithm, experiment.least, task.metrics)
        return NodeSpec(
            algorithm=experiment.algorithm,
            tree=self.tree,
            task=task,
            wires=self.links,
            start=self.start,
            seeds=(experiment.seed,),
            idle=experiment.idle,
            batches=experiment.batches,
            rates=experiment.rates(),
            makers={Scorer.__name__: scorer},
            workers=experiment.workers,
            memory=experiment.memory,
            capture=experiment.capture,
        )


def training_data(experiment: Experiment, out: Sequence[int]) -> Shards:
    """The data of the devices that train: all but those held out."""
    data = experiment.protocol_data()
    if not out:
        return data
    return data.chosen(others(data.devices, out))


def others(devices: int, out: Sequence[int]) -> list[int]:
    """The devices that are not held out."""
    left_out = set(out)
    return [device for device in range(devices) if device not in left_out]


def newcomers_data(experiment: Experiment, out: Sequence[int]) -> Shards:
    """The data of the devices held out, of which one or more has training examples."""
    data = experiment.protocol_data()
    chosen = sorted(out)
    if not bool(data.train.counts()[chosen].any()):
        raise ConfigError(
            f"holdout_devices: none of the devices {some(chosen)} has training examples to adapt "
            "to; hold out others."
        )
    return data.chosen(chosen)


def module_of(experiment: Experiment) -> nn.Module:
    """The module of a run, whose frozen parameters all tasks share.

    They are copied once: what happens to the experiment's module later does not reach the run.
    """
    module = copy.deepcopy(experiment.model)
    return placed(module, torch.device(experiment.device), experiment.dtype)


def task_of(
    experiment: Experiment,
    module: nn.Module,
    data: Shards,
    population: Population | None = None,
) -> Task:
    """What every device learns, on the examples in these shards."""
    return Task(
        module,
        data,
        loss=experiment.loss,
        l2=experiment.l2,
        private=experiment.private,
        dtype=experiment.dtype,
        device=experiment.device,
        compute=experiment.compute,
        population=population,
        augment=experiment.augmentations(),
        metrics=experiment.metrics,
        optimiser=experiment.optimiser(),
    )
