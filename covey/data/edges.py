"""Who stands under which edge: devices put in an order in which each edge's are consecutive, and the tree over them.

Every function returns the shards in that order, with `edges` and the edges' names set, and the tree. No device is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey import draws
from covey.data.partition import Numbers, Use, generator
from covey.data.shards import Shards, some
from covey.errors import DataError
from covey.tree import Tree

if TYPE_CHECKING:
    from covey.task import Task

# PerMFL's Table 2: the labels of each of two edges, that have nothing in common, or some labels.
WORST = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
AVERAGE = ((0, 1, 2, 3, 4, 5, 6), (5, 6, 7, 8, 9, 0, 1))

_COLUMNS = 1024  # of a sketch: angles between rows then err by about 1 / sqrt(1024)
_MEMORY = 2**28  # bytes of rows in training at a time
_STARTS, _LAPS = 4, 50  # of k-means

Floats = npt.NDArray[np.float64]


def consecutive(shards: Shards, edges: int) -> tuple[Shards, Tree]:
    """The devices as they are, in near equal runs.

    >>> from covey.data import digits
    >>> consecutive(digits(devices=10), 4)[0].edges
    (3, 3, 2, 2)
    """
    _check_edges(edges, shards.devices)
    return _grouped(shards, _even(np.arange(shards.devices), edges))


def random(shards: Shards, edges: int, seed: int = 0) -> tuple[Shards, Tree]:
    """Edges of near equal size, drawn at random.

    >>> from covey.data import digits
    >>> random(digits(devices=10), 4)[1]
    Tree: 1 server, 4 edges, 10 devices
    """
    _check_edges(edges, shards.devices)
    return _grouped(shards, _even(generator(seed, Use.EDGES).permutation(shards.devices), edges))


def given(shards: Shards, names: Sequence[str]) -> tuple[Shards, Tree]:
    """Edges by name, one name per device; edges are in the order in which their names first appear.

    >>> from covey.data import digits
    >>> ready, tree = given(digits(devices=3), ["north", "south", "north"])
    >>> ready.names.edges, ready.edges
    (('north', 'south'), (2, 1))
    """
    if len(names) != shards.devices:
        raise DataError(f"there are {len(names)} edge names ({some(names)}) for {shards.devices} devices; give one per device.")
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    return _grouped(shards, np.array([number[name] for name in names]), tuple(map(str, number)))


def by_label(shards: Shards, sets: Sequence[Sequence[int]]) -> tuple[Shards, Tree]:
    """Each device under the edge whose labels most of its training examples have; if equal, under the smaller edge so far.

    >>> from covey.data import digits
    >>> by_label(digits(), WORST)[0].edges
    (8, 12)
    """
    _check_sets(shards, sets)
    held = shards.labels()
    edge, sizes = np.zeros(shards.devices, dtype=np.int64), np.zeros(len(sets), dtype=np.int64)
    for device, fit in enumerate(np.stack([held[:, sorted(set(owned))].sum(axis=1) for owned in sets], axis=1)):
        edge[device] = np.lexsort((sizes, -fit))[0]
        sizes[edge[device]] += 1
    if not sizes.all():
        empty = int(np.argmin(sizes))
        raise DataError(
            f"no device has most of its examples among the labels {some(sets[empty])} of edge {empty} (the edges would have "
            f"{some(sizes.tolist())} devices); give other label sets, or a partition with fewer labels per device."
        )
    return _grouped(shards, edge)


def similar(shards: Shards, model: nn.Module, edges: int, seed: int = 0) -> tuple[Shards, Tree]:
    """Edges of devices whose first updates point the same way: k-means of the directions of their loss gradients.

    The gradient is that of all of a device's training examples, at the initial model of the seed. Edges are in the order
    of their first device.

    >>> from covey.data import digits
    >>> similar(digits(devices=10, labels=1), nn.Linear(64, 10), 2)[1]
    Tree: 1 server, 2 edges, 10 devices
    """
    from covey.task import Task  # here, because a task is built on data

    _check_edges(edges, shards.devices)
    task = Task(model, shards, loss="squared_error" if shards.classes is None else "cross_entropy")
    return _grouped(shards, _clusters(_directions(task, seed), edges, seed))


def _grouped(shards: Shards, edge: Numbers, names: tuple[str, ...] = ()) -> tuple[Shards, Tree]:
    """Devices in the order of their edges' numbers, and of their own under one edge."""
    order = np.argsort(edge, kind="stable").tolist()
    sizes = tuple(np.bincount(edge).tolist())
    ready = shards.chosen(order)
    return replace(ready, edges=sizes, names=replace(ready.names, edges=names)), Tree.grouped(sizes)


def _even(order: Numbers, edges: int) -> Numbers:
    """The edge of each device, when devices in this order are cut into near equal runs."""
    edge = np.empty_like(order)
    for number, run in enumerate(np.array_split(order, edges)):
        edge[run] = number
    return edge


def _directions(task: Task, seed: int) -> Floats:
    """Each device's gradient at the common start as a row of length 1, sketched where it is wide: [devices, columns]."""
    start = task.space.initial(seed).to(task.dtype)
    chunk = max(1, _MEMORY // task.row_bytes())
    pieces = [
        _sketched(task.full_gradient(start.repeat(len(ids), 1), ids).double(), seed)
        for ids in torch.split(torch.arange(task.shards.devices), chunk)
    ]
    rows = torch.cat(pieces).numpy()
    _check_gradients(rows)
    return _unit(rows)


def _sketched(rows: Tensor, seed: int) -> Tensor:
    """The rows with columns added up, at random and with random signs, to 1024 of them: angles stay about the same."""
    width = rows.shape[1]
    if width <= _COLUMNS:
        return rows
    bits = draws.bits(draws.key(seed, "sketch"), torch.arange(width), 1)[:, 0]
    sign = (bits & 1) * 2 - 1
    column = (bits >> 1) & (_COLUMNS - 1)
    return rows.new_zeros(len(rows), _COLUMNS).scatter_add_(1, column.expand_as(rows), rows * sign)


def _clusters(rows: Floats, count: int, seed: int) -> Numbers:
    """The cluster of each row, by k-means on the sphere: the best of a few starts."""
    draw = generator(seed, Use.EDGES)
    tries = [_k_means(rows, _start(rows, count, draw)) for _ in range(_STARTS)]
    best = max(tries, key=lambda cluster: _tightness(rows, cluster))
    _, first, cluster = np.unique(best, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[cluster]  # numbered by their first row


def _start(rows: Floats, count: int, draw: np.random.Generator) -> Floats:
    """Rows to begin with, each drawn with a chance that grows with its squared distance from those before (k-means++)."""
    chosen = [int(draw.integers(len(rows)))]
    far = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        far = np.minimum(far, np.maximum(1 - rows @ rows[chosen[-1]], 0))
        far[chosen] = 0
        chance = far if far.any() else np.ones(len(rows))  # fewer directions than clusters: any row will do
        chosen.append(int(draw.choice(len(rows), p=chance / chance.sum())))
    return rows[chosen]


def _k_means(rows: Floats, centres: Floats) -> Numbers:
    cluster = _assigned(rows, centres)
    for _ in range(_LAPS):
        before, cluster = cluster, _assigned(rows, _centres(rows, cluster))
        if np.array_equal(before, cluster):
            break
    return cluster


def _assigned(rows: Floats, centres: Floats) -> Numbers:
    """The nearest centre of each row; a centre that would have none gets the row that fits worst where it is."""
    near = rows @ centres.T
    cluster: Numbers = near.argmax(axis=1)
    fit = near.max(axis=1)
    for empty in np.flatnonzero(np.bincount(cluster, minlength=len(centres)) == 0):
        alone = np.bincount(cluster, minlength=len(centres))[cluster] == 1
        row = np.where(alone, np.inf, fit).argmin()
        cluster[row], fit[row] = empty, np.inf
    return cluster


def _centres(rows: Floats, cluster: Numbers) -> Floats:
    member = np.arange(int(cluster.max()) + 1)[:, None] == cluster
    return _unit(member.astype(np.float64) @ rows)


def _tightness(rows: Floats, cluster: Numbers) -> float:
    return float((rows * _centres(rows, cluster)[cluster]).sum())


def _unit(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def _check_edges(edges: int, devices: int) -> None:
    if not 1 <= edges <= devices:
        raise DataError(f"edges={edges} for {devices} devices; give 1 to {devices}, so that every edge has a device.")


def _check_sets(shards: Shards, sets: Sequence[Sequence[int]]) -> None:
    if shards.classes is None:
        raise DataError("by_label needs labels, but this data has numbers to predict; choose edges in another way.")
    wrong = [label for owned in sets for label in owned if not 0 <= label < shards.classes]
    if wrong or not sets or not all(map(len, sets)):
        raise DataError(
            f"sets={sets}; give each edge at least one label, from 0 to {shards.classes - 1}, as in edges.WORST for ten classes."
        )


def _check_gradients(rows: Floats) -> None:
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist()
    if wrong:
        raise DataError(
            f"the first gradients of {len(wrong)} devices are not finite (devices {some(wrong)}); scale x, or choose edges "
            "in another way."
        )
