"""Which edge each device belongs to.

Devices are ordered so that those of one edge are consecutive; the tree follows that order. Every
function returns the shards in that order, with `edges` and the edges' names set, and the tree. No
device is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from covey.data.partitions.partition import Numbers, Use, generator
from covey.data.shards import Shards, numbered, some
from covey.errors import DataError
from covey.tree import Tree

# PerMFL's Table 2: the labels of each of two edges, that have nothing in common, or some labels.
WORST = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
AVERAGE = ((0, 1, 2, 3, 4, 5, 6), (5, 6, 7, 8, 9, 0, 1))


def consecutive(shards: Shards, edges: int) -> tuple[Shards, Tree]:
    """The devices as they are, in near equal runs.

    >>> from covey.data import digits
    >>> consecutive(digits(devices=10), 4)[0].edges
    (3, 3, 2, 2)
    """
    check_edges(edges, shards.devices)
    return grouped(shards, _even(np.arange(shards.devices), edges))


def random(shards: Shards, edges: int, seed: int = 0) -> tuple[Shards, Tree]:
    """Edges of near equal size, drawn at random.

    >>> from covey.data import digits
    >>> random(digits(devices=10), 4)[1]
    Tree: 1 server, 4 edges, 10 devices
    """
    check_edges(edges, shards.devices)
    order = generator(seed, Use.EDGES).permutation(shards.devices)
    return grouped(shards, _even(order, edges))


def given(shards: Shards, names: Sequence[str]) -> tuple[Shards, Tree]:
    """Edges by name, one name per device; edges are in the order in which their names first appear.

    >>> from covey.data import digits
    >>> ready, tree = given(digits(devices=3), ["north", "south", "north"])
    >>> ready.names.edges, ready.edges
    (('north', 'south'), (2, 1))
    """
    if len(names) != shards.devices:
        raise DataError(
            f"there are {len(names)} edge names ({some(names)}) for {shards.devices} devices; "
            "give one per device."
        )
    edges, edge = numbered(map(str, names))
    return grouped(shards, edge, edges)


def by_label(shards: Shards, sets: Sequence[Sequence[int]]) -> tuple[Shards, Tree]:
    """Each device under the edge whose labels most of its training examples have.

    In a tie, the edge with the fewest devices so far gets the device.

    >>> from covey.data import digits
    >>> by_label(digits(), WORST)[0].edges
    (8, 12)
    """
    if shards.classes is None:
        raise DataError(
            "by_label needs labels, but this data has numbers to predict; "
            "choose edges in another way."
        )
    wrong = [label for owned in sets for label in owned if not 0 <= label < shards.classes]
    if wrong or not sets or not all(map(len, sets)):
        raise DataError(
            f"sets={sets}; give each edge at least one label, from 0 to {shards.classes - 1}, "
            "as in edges.WORST for ten classes."
        )
    held = shards.labels()
    columns = [sorted(set(owned)) for owned in sets]
    fits = np.stack([held[:, own].sum(axis=1) for own in columns], axis=1)
    edge = np.zeros(shards.devices, dtype=np.int64)
    sizes = np.zeros(len(sets), dtype=np.int64)
    for device, fit in enumerate(fits):
        edge[device] = np.lexsort((sizes, -fit))[0]
        sizes[edge[device]] += 1
    if not sizes.all():
        empty = int(np.argmin(sizes))
        raise DataError(
            f"no device has most of its examples among the labels {some(sets[empty])} of edge "
            f"{empty} (the edges would have "
            f"{some(sizes.tolist())} devices); "
            "give other label sets, or a partition with fewer labels per device."
        )
    return grouped(shards, edge)


def grouped(shards: Shards, edge: Numbers, names: tuple[str, ...] = ()) -> tuple[Shards, Tree]:
    """Devices in the order of their edges' numbers, and of their own under one edge."""
    order = np.argsort(edge, kind="stable").tolist()
    sizes = tuple(np.bincount(edge).tolist())
    ready = shards.chosen(order)
    named = replace(ready.names, edges=names)
    return replace(ready, edges=sizes, names=named), Tree.grouped(sizes)


def _even(order: Numbers, edges: int) -> Numbers:
    """The edge of each device, when devices in this order are cut into near equal runs."""
    edge = np.empty_like(order)
    for number, run in enumerate(np.array_split(order, edges)):
        edge[run] = number
    return edge


def check_edges(edges: int, devices: int) -> None:
    if not 1 <= edges <= devices:
        raise DataError(
            f"edges={edges} for {devices} devices; "
            f"give 1 to {devices}, so that every edge has a device."
        )


def __getattr__(name: str) -> Any:
    """`similar`, which needs gradients and so lies in the engine, is found here too."""
    if name == "similar":
        return import_module("covey.engine.similar").similar
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
