"""An experiment: everything that decides a run, as one plain frozen description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from covey.data import Shards
from covey.engine.augment import Augment, Augmentation, augmentations
from covey.engine.layout import ParameterLayout
from covey.engine.metrics import MetricSpec
from covey.engine.norm import Norm
from covey.engine.optimiser import Optimiser, Solver, optimiser
from covey.engine.task import Batches, Loss
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Idle
from covey.kernel.rates import Rates, rates
from covey.kernel.segments import RowForm
from covey.links.spec import Spec, wires
from covey.runs import checks, fingerprint
from covey.runs.alike import difference
from covey.runs.fingerprint import describe
from covey.runs.stopping import EarlyStop, Stop, early_stop
from covey.tree import Tree
from covey.wireless import Radio, Work

__all__ = ["Experiment", "describe", "difference"]


@dataclass(frozen=True, eq=False)
class Experiment:
    """What to run. Only the first five have no default; `covey.run(experiment)` runs it.

    Learning. `loss="auto"` is cross_entropy for classes and squared_error for numbers; whole-number
    labels are numbers where squared_error, also called mse, is named. `idle` says what devices that
    are not asked do: nothing, or train as the papers have it. `private`, a pattern or several, says
    what training does not send where an algorithm splits models: "conv*" for a kind of layer,
    "head" for the last, or names of layers or parameters; "" for none; "auto" for the last layer
    (Pruned: the convolutions, if there are any), which the run's notes name. `start="seed"`
    initialises every layer anew from the seed, "module" starts from the values the module came
    with, for instance a pretrained one. `frozen`, patterns as `private` has, names layers that do
    not train. They and parameters without `requires_grad` keep the module's values with either
    start; no row and no message holds them. `augment` changes training batches at random: "crop",
    "flip" and "noise", a table with options, or a function (covey/engine/augment.py). `norm` says
    how BatchNorm layers get their statistics: "device" from the device's own examples, "frozen"
    from the module, "group" puts GroupNorm in their place (covey/engine/norm.py). `solver` is the
    optimiser of the devices' steps on data: "sgd", "adam", "adamw", or a table with momentum,
    decay, clip or schedule, or one of the user's own (covey/engine/optimiser.py). `schedules` are
    those of the algorithm's own rates, such as {"server_lr": "cosine"} (covey/kernel/rates.py).

    Links. `codec` is one name for all links, or one per link such as {"server-edge": "bitmap",
    "edge-device": {"down": "dense", "up": {"name": "int8", "update": True}}} (covey/links/spec.py).
    With a `radio` every round has seconds and joules, and an algorithm may prune as its plan says
    (covey/wireless/radio.py).

    Scores. Every `score_every` rounds, and in the last, every kept model is scored on `parts` of
    the data, and every `score_train_every` rounds on the training part too, which takes longer.
    With `score_sample` only so many devices are scored, drawn anew in each of these rounds, and
    every score has a standard error (covey/runs/sampling.py). A device with fewer than `least`
    examples of a part sends no sums of their targets: it counts in the accuracy alone, and there
    together with others (covey/runs/scoring.py). `metrics` are computed beside
    accuracy and loss, by name or by a function (covey/engine/metrics.py). `select` names the metric
    whose best round on validation is reported; "" is accuracy or else the loss. `stop`, for
    instance {"patience": 5}, ends the run after so many scored rounds in which no model got better
    on validation data (covey/runs/stopping.py). `protocol="paper"` trains on the validation part
    too and reports the round that was best on test.
    `holdout_devices`, a number or a list of devices, take no part in training: when models are
    scored, so is what each of them makes of the models it finds (covey/runs/newcomers.py).

    Speed. `workers` (None: as many as torch has threads, fewer for small models) and `memory`
    (bytes for rows in training; by default a GPU takes more) never change a result. Nor does
    `capture`, which on a GPU turns a round or the devices' program into a CUDA graph where it can.

    Rows. `store_rows="float16"` rounds the numbers that nodes keep from round to round, which
    halves their memory and their files, and changes results. "bitmap" leaves out zeros, for sparse
    models, and changes none (docs/scale.md).
    """

    algorithm: Algorithm
    data: Shards
    model: nn.Module
    tree: Tree
    rounds: int
    loss: Loss = "auto"
    l2: float = 0.0
    private: str | tuple[str, ...] = "auto"
    seed: int = 0
    idle: Idle = "skip"
    codec: Spec = "dense"
    batches: Batches = "uniform"
    protocol: Literal["honest", "paper"] = "honest"
    start: Literal["seed", "module"] = "seed"
    norm: Norm = "device"
    score_every: int = 1
    score_train_every: int | None = None
    parts: tuple[str, ...] = ("validation", "test")
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    workers: int | None = None
    memory: int = 2**31
    capture: bool = True
    holdout_devices: int | tuple[int, ...] = 0
    radio: Radio | None = None
    score_sample: int | None = None
    least: int = 1
    frozen: str | tuple[str, ...] = ()
    compute: Literal["fp32", "bf16"] = "fp32"
    augment: Augment | list[Augment] | tuple[Augment, ...] = ()
    metrics: tuple[MetricSpec, ...] = ()
    select: str = ""
    solver: Solver = "sgd"
    stop: Stop = None
    schedules: Mapping[str, str] = field(default_factory=dict)
    store_rows: RowForm = "dense"

    def __post_init__(self) -> None:
        checks.check(self)

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
        """The work of a device for one answer, from which a radio plan computes times.

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
        number = round + 1
        if number % self.score_every == 0:
            return True
        every = self.score_train_every
        return every is not None and number % every == 0

    def due(self, round: int) -> tuple[str, ...]:
        """The parts of the data to score on in this round, counted from 0."""
        number = round + 1
        last = number == self.rounds
        every = self.score_train_every
        if every is not None and (last or number % every == 0):
            if "train" in self.parts:
                return self.parts
            return (*self.parts, "train")
        if last or number % self.score_every == 0:
            return self.parts
        return ()
