"""What the nodes of a run are made of, whichever runtime plays them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.engine.task import Batches, Task
from covey.kernel.algorithm import Algorithm
from covey.kernel.environment import Environment
from covey.kernel.nodes import Idle
from covey.kernel.rates import CONSTANT, Rates
from covey.links.spec import LinkSpecs
from covey.tree import Topology
from covey.types import Rows

MEMORY = 2**31
"""Bytes of the rows in a chunk, where an experiment says nothing else."""
Make = Callable[[Mapping[str, Any]], Any]
"""Makes the owner of programs from its parameters."""


@dataclass(frozen=True, eq=False)
class NodeSpec:
    """What nodes of any runtime are made of.

        Simulator(spec)                               # all nodes, in one process
        Sharded(spec, ranks=ranks, shares=shares)     # those of one process of several
        Station(spec, member=member)                  # one node that shares nothing
        Node(spec, member=member, database=disk, ...) # one node of a deployed tree

    `task` has the examples of these nodes alone.
    """

    algorithm: Algorithm
    tree: Topology
    task: Task
    wires: LinkSpecs
    """What every link does, by direction."""
    start: Rows
    """The initial rows, [seeds, P]."""
    seeds: tuple[int, ...] = (0,)
    idle: Idle = "skip"
    batches: Batches = "uniform"
    rates: Rates = CONSTANT
    training: Topology | None = None
    """The tree of those who train; None: it follows from the examples."""
    environment: Environment = field(default_factory=Environment)
    makers: Mapping[str, Make] = field(default_factory=dict)
    """Makes the owners of programs that are not the algorithm's, by the name of their class."""
    workers: int | None = None
    """Threads that compute; None: as many as torch has, and fewer for small models."""
    memory: int = MEMORY
    """Bytes of the rows in a chunk that is computed at once."""
    capture: bool = True
    """Whether programs may become CUDA graphs."""
