"""Edges of devices that learn alike: k-means of the directions of their first gradients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey import draws
from covey.data.edges import check_edges, grouped
from covey.data.partition import Numbers, Use, generator
from covey.data.shards import Shards, some
from covey.engine.task import Task
from covey.errors import DataError
from covey.tree import Tree

_COLUMNS = 1024  # of a sketch: angles between rows then err by about 1 / sqrt(1024)
_MEMORY = 2**28  # bytes of rows in training at a time
_STARTS, _LAPS = 4, 50  # of k-means

Floats = npt.NDArray[np.float64]


def similar(
    shards: Shards,
    model: nn.Module,
    edges: int,
    seed: int = 0,
) -> tuple[Shards, Tree]:
    """Edges of devices whose first updates point the same way: k-means of the directions of their
    loss gradients.

    The gradient is that of all of a device's training examples, at the initial model of the seed.
    Edges are in the order of their first device.

    >>> from covey.data import digits
    >>> similar(digits(devices=10, labels=1), nn.Linear(64, 10), 2)[1]
    Tree: 1 server, 2 edges, 10 devices
    """
    check_edges(edges, shards.devices)
    task = Task(model, shards, loss="squared_error" if shards.classes is None else "cross_entropy")
    return grouped(shards, _clusters(_directions(task, seed), edges, seed))


def _directions(task: Task, seed: int) -> Floats:
    """Each device's gradient at the common start as a row of length 1, sketched where it is wide:
    [devices, columns].
    """
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
    """The rows with columns added up, at random and with random signs, to 1024 of them: angles stay
    about the same.
    """
    width = rows.shape[1]
    if width <= _COLUMNS:
        return rows
    bits = draws.bits(draws.key(seed, "sketch"), torch.arange(width), 1)[:, 0]
    sign = (bits & 1) * 2 - 1
    column = (bits >> 1) & (_COLUMNS - 1)
    return rows.new_zeros(len(rows), _COLUMNS).scatter_add_(1, column.expand_as(rows), rows * sign)


def _clusters(
    rows: Floats,
    count: int,
    seed: int,
) -> Numbers:
    """The cluster of each row, by k-means on the sphere: the best of a few starts."""
    draw = generator(seed, Use.EDGES)
    tries = [_k_means(rows, _start(rows, count, draw)) for _ in range(_STARTS)]
    best = max(tries, key=lambda cluster: _tightness(rows, cluster))
    _, first, cluster = np.unique(best, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[cluster]  # numbered by their first row


def _start(
    rows: Floats,
    count: int,
    draw: np.random.Generator,
) -> Floats:
    """Rows to begin with, each drawn with a chance that grows with its squared distance from those
    before (k-means++).
    """
    chosen = [int(draw.integers(len(rows)))]
    far = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        far = np.minimum(far, np.maximum(1 - rows @ rows[chosen[-1]], 0))
        far[chosen] = 0
        chance = (
            far if far.any() else np.ones(len(rows))
        )  # fewer directions than clusters: any row will do
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
    """The nearest centre of each row; a centre that would have none gets the row that fits worst
    where it is.
    """
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


def _check_gradients(rows: Floats) -> None:
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist()
    if wrong:
        raise DataError(
            f"the first gradients of {len(wrong)} devices are not finite (devices {some(wrong)}); scale x, or choose edges "
            "in another way."
        )
