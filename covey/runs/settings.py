"""The options of an experiment, stated once for Python, files, fingerprints and the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch

from covey.engine.augment import Augment
from covey.engine.measures.metrics import MetricSpec
from covey.engine.modules.norm import Norm
from covey.engine.solvers.optimiser import Solver
from covey.engine.solvers.precision import Compute
from covey.engine.task import Batches, Loss
from covey.fields import Count, Named, NoBits, NonNegative, Range, Seed
from covey.kernel.nodes import Idle
from covey.kernel.store.segments import RowForm
from covey.links.spec import Spec
from covey.runs.stopping import Stop

_TYPES = (("float32", torch.float32), ("float64", torch.float64))
DType = Annotated[torch.dtype, Named(_TYPES)]
"""The type of rows; a file gives it by name."""
Part = Literal["train", "validation", "test"]
"""A part of the data."""
Workers = Annotated[int, Range(1, 4096, whole=True)]
Bytes = Annotated[int, Range(1, 2**63 - 1, whole=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class ExperimentSettings:
    """The options of an experiment, in Python and in a file alike.

    Those with `NoBits` change no bit of a round: two experiments that differ in them can share a
    checkpoint.
    """

    loss: Loss = "auto"  # cross_entropy for classes and squared_error for numbers; or a name, a
    # table with its settings, or a function; labels are numbers where squared_error, also called
    # mse, is named
    l2: NonNegative = 0.0  # weight of half the squared norm of the model in every loss
    seed: Seed = 0  # of the weights, the partition and all draws
    private: str | tuple[str, ...] = "auto"  # what training does not send where an algorithm splits
    # models: "conv*" for a kind of layer, "head" for the last, or names of layers or parameters; ""
    # for none; "auto" for the last layer (Pruned: the convolutions, if there are any)
    idle: Idle = "skip"  # what devices do that are not asked: nothing, or train as papers have it
    codec: Spec = "dense"  # one name for all links, or a codec per link and direction
    # (covey/links/spec.py)
    batches: Batches = "uniform"  # how examples are drawn
    protocol: Literal["honest", "paper"] = "honest"  # "paper" trains on the validation part too and
    # reports the round that was best on test
    start: Literal["seed", "module"] = "seed"  # every layer is initialised anew from the seed, or
    # starts from the values the module came with, for instance a pretrained one
    augment: Augment | list[Augment] | tuple[Augment, ...] = ()  # random changes of training
    # batches: names, tables with options, or functions (covey/engine/augment.py)
    norm: Norm = "device"  # where BatchNorm layers get their statistics: from the device's own
    # examples or frozen from the module; with "group", GroupNorm is in their place
    solver: Solver = "sgd"  # the optimiser of steps on data: a name, a table with momentum, decay,
    # clip or schedule, or one of the user's own (covey/engine/solvers/optimiser.py)
    schedules: Mapping[str, str] = field(default_factory=dict)  # those of the algorithm's own
    # rates, such as {"server_lr": "cosine"}
    dtype: DType = torch.float32  # type of the rows
    compute: Compute = "fp32"  # type of matrix products
    store_rows: RowForm = "dense"  # how nodes keep rows: "float16" rounds them, which halves memory
    # and files; "bitmap" leaves out zeros and changes no result
    holdout_devices: int | tuple[int, ...] = 0  # devices, by number or listed, that do not train:
    # what they make of the models is scored
    metrics: tuple[MetricSpec, ...] = ()  # computed beside accuracy and loss, by name or a function
    select: str = ""  # the metric whose best round on validation is reported; "": accuracy, or loss
    stop: NoBits[Stop] = None  # ends the run where no model gets better on validation data
    score_every: NoBits[Count] = 1  # rounds between scores of every kept model
    score_train_every: NoBits[Count | None] = None  # rounds between scores on the training part
    score_sample: NoBits[Count | None] = None  # devices that are scored, drawn anew every time;
    # every score has a standard error then
    least: Count = 1  # a device with fewer examples of a part sends no sums of their targets: it
    # counts in the accuracy alone, and there together with others (covey/runs/scores/scoring.py)
    parts: NoBits[tuple[Part, ...]] = ("validation", "test")  # of the data, to score on
    device: NoBits[str] = "cpu"  # where torch computes
    workers: NoBits[Workers | None] = None  # threads; "none": as many as torch has, fewer for small
    # models
    memory: NoBits[Bytes] = 2**31  # bytes for rows in training; by default a GPU takes more
    capture: NoBits[bool] = True  # whether a GPU turns rounds into CUDA graphs where it can
