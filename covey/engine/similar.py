"""Edges of devices with similar gradients: k-means of the directions of their first gradients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey import draws
from covey.data.partitions.edges import check_edges, grouped
from covey.data.partitions.partition import Numbers, Use, generator
from covey.data.shards import Shards, some
from covey.engine.task import Task
from covey.errors import DataError
from covey.tree import Tree

_COLUMNS = 1024  # of a sketch: angles between rows then err by about 1 / sqrt(1024)
_MEMORY = 2**28  # bytes of rows in training at a time
_STARTS = 4  # of k-means
_LAPS = 50  # of one start

Floats = npt.NDArray[np.float64]


def similar(
    shards: Shards,
    model: nn.Module,
    edges: int,
    seed: int = 0,
) -> tuple[Shards, Tree]:
    """Edges of devices whose first updates have similar directions.

    The devices are clustered by k-means of the directions of their loss gradients. A gradient is
    that of all of a device's training examples, at the initial model of the seed. Edges are
    in the order of their first device.

    >>> from covey.data import digits
    >>> similar(digits(devices=10, labels=1), nn.Linear(64, 10), 2)[1]
    Tree: 1 server, 2 edges, 10 devices
    """
    check_edges(edges, shards.devices)
    task = Task(model, shards, loss="auto")
    # Each device's gradient at the common start as a row of length 1, [devices, columns]. Wide
    # gradients are sketched.
    start = task.space.initial(seed).to(task.dtype)
    chunk = max(1, _MEMORY // task.row_bytes())
    devices = torch.arange(task.shards.devices)
    pieces = []
    for ids in torch.split(devices, chunk):
        rows_at_start = start.repeat(len(ids), 1)
        gradient = task.full_gradient(rows_at_start, ids)
        pieces.append(_sketched(gradient.double(), seed))
    rows = torch.cat(pieces).numpy()
    finite = np.isfinite(rows).all(axis=1)
    wrong = np.flatnonzero(~finite).tolist()
    if wrong:
        raise DataError(
            f"the first gradients of {len(wrong)} devices are not finite "
            f"(devices {some(wrong)}); scale x, or choose edges in another way."
        )
    directions = _unit(rows)
    return grouped(shards, _clusters(directions, edges, seed))


def _sketched(rows: Tensor, seed: int) -> Tensor:
    """The rows with columns added up, at random and with random signs, to 1024 of them.

    Angles stay about the same.
    """
    width = rows.shape[1]
    if width <= _COLUMNS:
        return rows
    key = draws.key(seed, "sketch")
    bits = draws.bits(key, torch.arange(width), 1)[:, 0]
    sign = (bits & 1) * 2 - 1
    column = (bits >> 1) & (_COLUMNS - 1)
    sketch = rows.new_zeros(len(rows), _COLUMNS)
    return sketch.scatter_add_(1, column.expand_as(rows), rows * sign)


def _clusters(rows: Floats, count: int, seed: int) -> Numbers:
    """The cluster of each row, by k-means on the sphere: the best of a few starts."""
    draw = generator(seed, Use.EDGES)
    attempts = []
    for _ in range(_STARTS):
        cluster = _assigned(rows, _start(rows, count, draw))
        for _ in range(_LAPS):
            before = cluster
            cluster = _assigned(rows, _centres(rows, cluster))
            if np.array_equal(before, cluster):
                break
        attempts.append(cluster)
    cosines = [float((rows * _centres(rows, cluster)[cluster]).sum()) for cluster in attempts]
    best = attempts[cosines.index(max(cosines))]  # its rows are nearest to their centres
    _, first_row, cluster = np.unique(best, return_index=True, return_inverse=True)
    in_order = np.argsort(first_row)  # clusters are numbered by their first row
    number = np.argsort(in_order)
    return number[cluster]


def _start(rows: Floats, count: int, draw: np.random.Generator) -> Floats:
    """The first centres by k-means++.

    The probability of a row is proportional to its squared distance from the centres before it.
    """
    chosen = [int(draw.integers(len(rows)))]
    distance = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        last_centre = rows[chosen[-1]]
        from_last = np.maximum(1 - rows @ last_centre, 0)
        distance = np.minimum(distance, from_last)
        distance[chosen] = 0
        weight = distance
        if not distance.any():  # fewer directions than clusters: any row will do
            weight = np.ones(len(rows))
        probability = weight / weight.sum()
        row = draw.choice(len(rows), p=probability)
        chosen.append(int(row))
    return rows[chosen]


def _assigned(rows: Floats, centres: Floats) -> Numbers:
    """The nearest centre of each row.

    A centre that no row is nearest to gets the row farthest from its own centre.
    """
    cosine = rows @ centres.T
    cluster: Numbers = cosine.argmax(axis=1)
    fit = cosine.max(axis=1)
    sizes = np.bincount(cluster, minlength=len(centres))
    for empty in np.flatnonzero(sizes == 0):
        sizes = np.bincount(cluster, minlength=len(centres))
        alone = sizes[cluster] == 1
        row = np.where(alone, np.inf, fit).argmin()
        cluster[row] = empty
        fit[row] = np.inf
    return cluster


def _centres(rows: Floats, cluster: Numbers) -> Floats:
    numbers = np.arange(int(cluster.max()) + 1)
    member = numbers[:, None] == cluster
    return _unit(member.astype(np.float64) @ rows)


def _unit(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)
