"""From an experiment to one node of its deployed tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from covey.data import Shards
from covey.deployed.certificates import Identity
from covey.deployed.checked_facts import Subtree, subtrees
from covey.deployed.disk import Disk
from covey.deployed.frames import MAX_MESSAGE
from covey.deployed.node import Node
from covey.deployed.transport import Patience, Seat, Transport
from covey.engine.layout import ParameterLayout
from covey.engine.population import Population
from covey.errors import ConfigError
from covey.runs.build import Parts, task_of
from covey.runs.experiment import Experiment
from covey.runs.newcomers import held_out
from covey.runs.scoring import Scorer
from covey.runtimes.loopback import examples_under
from covey.runtimes.place import Place, TrainingPlace
from covey.runtimes.training_tree import TrainingTree, training_tree
from covey.tree import Tree

MAX_VALUE = min(MAX_MESSAGE, 10**9)
"""Bytes of one message, and of one value on a disk: the default limit of sqlite."""
_BESIDE = 2**24
"""Bytes of facts beside the models of a value."""
_MODELS = 3
"""Models in one value at least: the server writes where its run stands, with the best versions.

It checks the same again with the models that nodes keep, which it knows from its rehearsal.
"""


@dataclass(frozen=True, eq=False)
class Told:
    """What a node is told when it joins: its place, and facts of the whole population."""

    place: Place
    training_place: Place | None
    """The place among those who train; None: all do."""
    under: int
    """How many training examples all devices under this node hold."""
    population: Population
    subtrees: Mapping[Seat, Subtree] = field(default_factory=dict)
    """The ids of every child and of the nodes below it."""


def told(tree: Tree, shards: Shards) -> dict[str, list[Told]]:
    """What every node of a tree is told, by tier, from the examples of all devices."""
    population = Population.of(shards).local()
    examples = {tier: examples_under(tree, tier, shards) for tier in tree.tiers}
    training = training_tree(tree, examples)
    out: dict[str, list[Told]] = {}
    for tier in tree.tiers:
        under = examples[tier].tolist()
        below = tree.below(tier)
        parts: list[Subtree] = []
        if below is not None:
            parts = subtrees(tree, below)
        out[tier] = []
        for number in range(tree.size(tier)):
            place = Place.of(tree, tier, number)
            among = None
            if isinstance(training, TrainingTree):
                among = TrainingPlace.within(training, place)
            seats = range(place.first_child, place.first_child + place.children)
            own = {seat: parts[seat] for seat in seats}
            out[tier].append(Told(place, among, under[number], population, own))
    return out


def node_of(
    parts: Parts,
    facts: Told,
    disk: Disk,
    *,
    transport: Transport | None = None,
    patience: Patience | None = None,
    norm_bounds: Mapping[Seat, float] | None = None,
    drops_diverged: bool = False,
    shares_rows: bool = True,
    identity: Identity | None = None,
    jump: int = 0,
) -> Node:
    """One node, with only its own examples and its disk.

    `norm_bounds` are those of children in training. With `drops_diverged` a device below that says
    that its training diverged does not end the round, if there is a quorum. Nodes of one process
    share the frozen parameters of the module, and nothing else.
    """
    experiment = parts.experiment
    if patience is not None and not experiment.algorithm.idle_trains:
        name = type(experiment.algorithm).__name__
        raise ConfigError(f"a quorum, but {name} counts on every answer; wait for all.")
    place = facts.place
    own = Shards.none(parts.data)
    if place.below(place.tier) is None:
        own = parts.data.only([place.number])
    task = task_of(experiment, parts.module, own, facts.population)
    scorer = partial(Scorer.made, experiment.algorithm, experiment.least)
    return Node(
        experiment.algorithm,
        place,
        task,
        parts.links,
        parts.start,
        (experiment.seed,),
        experiment.idle,
        experiment.batches,
        rates=experiment.rates(),
        place=place,
        training_place=facts.training_place,
        under=facts.under,
        makers={Scorer.__name__: scorer},
        database=disk,
        transport=transport,
        patience=patience,
        subtrees=facts.subtrees,
        norm_bounds=norm_bounds or {},
        drops_diverged=drops_diverged,
        shares_rows=shares_rows,
        identity=identity,
        jump=jump,
    )


def check(experiments: Sequence[Experiment]) -> None:
    """Refuse what a deployed tree cannot run."""
    first = experiments[0]
    reason = None
    if len(experiments) > 1:
        reason = "it runs one seed at a time; run the seeds one after the other"
    elif first.radio is not None:
        reason = "a radio has a virtual clock, which only the simulator has; leave out the radio"
    elif held_out(first):
        reason = "every device has a seat and trains; leave out holdout_devices"
    elif torch.device(first.device).type != "cpu":
        reason = 'its nodes exchange bytes in main memory; use device = "cpu"'
    if reason is not None:
        raise ConfigError(f"a deployed tree: {reason}.")
    width = ParameterLayout(first.model, private=first.private).width
    check_size(width * first.dtype.itemsize, _MODELS)


def check_size(model: int, count: int) -> None:
    """Refuse models of so many bytes where one message or value would hold too many of them."""
    most = (MAX_VALUE - _BESIDE) // count
    if model <= most:
        return
    fix = "use a smaller model, or freeze a part of it (adapters)"
    raise ConfigError(
        f"a deployed tree: a model of {model / 1e6:.0f} MB is above {most / 1e6:.0f} MB: {count} "
        f"of them lie in one message or value on a disk, which has {MAX_VALUE / 1e6:.0f} MB; {fix}."
    )
