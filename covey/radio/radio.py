"""The radio of a run: its devices, the bands of its cells, and the policy that shares them.

A device's answer takes the time of its gradient steps (cycles per step and moving weight) and of
its upload: the bytes of its message over its share of the band. Sending down is free, as in Liu and
Ratnarajah (2023). A node that asks waits for the last answer; then its own answer crosses the wire
of its cell. Where a method has no edges, the base station of a cell passes its devices' messages
on, one after the other, once it has received all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.fields import Positive
from covey.fields import check as check_fields
from covey.kernel.work import Work
from covey.links.spec import wires
from covey.radio.channel import Channel
from covey.radio.clock import RadioClock
from covey.radio.device import Cells, Devices
from covey.radio.plan import MaxRatio, Scenario
from covey.radio.policies import Policy
from covey.runs.checks import check_no_receivers
from covey.runs.experiment import Experiment
from covey.tree import Tree


@dataclass(frozen=True, eq=False)
class Radio:
    """What a run's virtual clock computes with; the channel's draws are those of the run's seed.

    `policy` shares each cell's band among the devices asked. None is `optimal` for an algorithm
    that takes its ratios from a plan, and equal shares for others. A plan meets the `deadline`, in
    seconds. Answers after it are waited for (`late="wait"`) or dropped ("drop"). Where all answers
    to a node are late, it waits for the first. `mask` plans for the header and the mask of a
    message, which are sent, and which the paper does not count.

    >>> import covey
    >>> from covey.wireless import Cells, Channel, Devices, Noise, Radio
    >>> devices = Devices.of([0, 0], distance=[60.0, 90.0], cpu=1e9, cycles=20.0, power=0.1)
    >>> radio = Radio(devices, Cells.of(1e6), Channel(Noise(1e-14), fading="none"))
    >>> shards, model = covey.data.digits(devices=2), covey.models.linear(64, 10)
    >>> algorithm, tree = covey.algorithms.FedAvg(), covey.Tree.flat(2)
    >>> experiment = covey.Experiment(algorithm, shards, model, tree, rounds=1, radio=radio)
    >>> run = covey.run(experiment)
    >>> f"{1e3 * next(run).radio.seconds:.2f} ms"
    '4.23 ms'
    """

    name: ClassVar[str] = "radio"

    devices: Devices
    cells: Cells
    channel: Channel
    deadline: Positive | None = None
    policy: Policy | None = None
    late: Literal["wait", "drop"] = "wait"
    rho_max: MaxRatio = 0.95
    mask: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.late == "drop" and self.deadline is None:
            raise ConfigError("radio: late = 'drop' needs a deadline.")
        self.cells.check_holds(self.devices)

    def scenario(self, work: Work, *, seed: int) -> Scenario:
        """The scenario that a run of this seed plans by, where all its devices are asked."""
        deadline = self.planned_deadline()
        return Scenario(
            self.devices, self.cells, self.channel, work, deadline, self.rho_max, self.mask, seed
        )

    def planned_deadline(self) -> float:
        """The deadline, which every plan needs."""
        if self.deadline is None:
            raise ConfigError(
                "radio: a plan needs a deadline; give one, in a file such as deadline = '25 ms' "
                "in [radio]."
            )
        return self.deadline

    def check(self, experiment: Experiment) -> None:
        """Raise an error unless a run of the experiment can take its time from this radio."""
        check_no_receivers(experiment, "a radio plan counts on every device's work")
        self.fits(experiment.tree)
        algorithm = experiment.algorithm
        if experiment.optimiser().epochs is not None:
            raise ConfigError(
                "solver: epochs, but the plan of a radio counts the algorithm's steps; "
                "leave out epochs."
            )
        if self.late == "drop" and not algorithm.idle_trains:
            raise ConfigError(
                f"radio: late = 'drop', but {type(algorithm).__name__} counts on every answer; "
                "use 'wait'."
            )
        if experiment.idle == "train" and algorithm.planned:
            raise ConfigError(
                "idle = 'train', but a plan gives ratios to those who are asked alone; use 'skip'."
            )

    def environment(
        self,
        experiments: Sequence[Experiment],
        chosen: Sequence[Sequence[int]],
        tree: Tree,
        notes: list[str],
    ) -> RadioClock:
        """The virtual clock of a run; a note where a link does not suit its plan."""
        first = experiments[0]
        clock = RadioClock(
            self,
            first.work(),
            first.algorithm.planned,
            tree=tree,
            seeds=tuple(experiment.seed for experiment in experiments),
            chosen=chosen,
        )
        last = tree.links[-1]
        codec = wires(first.codec, tree.links)[last, "up"].codec
        if clock.policy.prunes and codec.name.startswith("dense"):
            notes.append(
                f"{last} sends dense rows up, pruned weights too, so devices that prune are late; "
                'use codec = "bitmap".'
            )
        return clock

    def fits(self, tree: Tree) -> None:
        """Raise an error unless the radio's devices are a tree's leaves and its cells the edges."""
        if len(self.devices) != tree.devices:
            raise ConfigError(
                f"radio: it has {len(self.devices)} devices, the tree {tree.devices}; "
                "they must be the same."
            )
        if tree.depth == 2:
            return
        counts = torch.tensor(tree.children[-1])
        if len(self.cells) != len(counts):
            raise ConfigError(
                f"radio: it has {len(self.cells)} cells for {len(counts)} edges; "
                "every edge is a cell."
            )
        edges = torch.repeat_interleave(torch.arange(len(counts)), counts)
        wrong = (self.devices.cell != edges).nonzero()[:, 0].tolist()
        if wrong:
            stands = (
                f"stands in cell {self.devices.cell[wrong[0]]} but under edge {edges[wrong[0]]}"
            )
            raise ConfigError(f"radio: device {wrong[0]} {stands}; a cell is its edge.")

    def __str__(self) -> str:
        """Everything that decides a run, for its fingerprint; columns by a hash."""
        digest = hashlib.sha256()
        for part in (self.devices, self.cells):
            for column in vars(part).values():
                if isinstance(column, Tensor):
                    digest.update(column.double().numpy().tobytes())
        names = ("channel", "deadline", "late", "rho_max", "mask")
        plain = {name: getattr(self, name) for name in names}
        policy = self.policy and self.policy.name
        return f"{plain} {policy} {digest.hexdigest()[:16]}"
