"""From an experiment to one node of its deployed tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from covey.data import Shards
from covey.deployed.node.asks import ChildAsks
from covey.deployed.node.checked_facts import Subtree, subtrees
from covey.deployed.node.disk import Disk
from covey.deployed.node.epoch import Standing
from covey.deployed.node.node import Node
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.transport import MAX_MESSAGE, Patience, Seat, Transport
from covey.engine.modules.layout import ParameterLayout
from covey.errors import ConfigError
from covey.runs.experiment import Experiment
from covey.runs.newcomers import held_out
from covey.runs.parts import Parts
from covey.runtimes.alone.place import Membership, members
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
class TreeMember(Membership):
    """What a node is told when it joins a deployed tree."""

    subtrees: Mapping[Seat, Subtree] = field(default_factory=dict)
    """The ids of every child and of the nodes below it."""


def tree_members(tree: Tree, shards: Shards) -> dict[str, list[TreeMember]]:
    """What every node of a tree is told, by tier, from the examples of all devices."""
    out: dict[str, list[TreeMember]] = {}
    for tier, of_tier in members(tree, shards).items():
        below = tree.below(tier)
        parts = [] if below is None else subtrees(tree, below)
        out[tier] = []
        for member in of_tier:
            first = member.place.first_child
            own = {seat: parts[seat] for seat in range(first, first + member.place.children)}
            out[tier].append(TreeMember(**vars(member), subtrees=own))
    return out


def node_of(
    parts: Parts,
    facts: TreeMember,
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
    spec = parts.spec(facts.own(parts.data), facts.population)
    return Node(
        spec,
        member=facts,
        database=disk,
        standing=Standing(facts.place, disk, identity, jump),
        asks=ChildAsks(facts.place, disk, transport, patience, facts.subtrees),
        norm_bounds=norm_bounds or {},
        drops_diverged=drops_diverged,
        shares_rows=shares_rows,
    )


def check(experiments: Sequence[Experiment]) -> None:
    """Refuse what a deployed tree cannot run."""
    first = experiments[0]
    reason = None
    if len(experiments) > 1:
        reason = "it runs one seed at a time; run the seeds one after the other"
    elif first.environment is not None:
        name = first.environment.name
        reason = f"a {name} has a virtual clock, which only the simulator has; leave it out"
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
