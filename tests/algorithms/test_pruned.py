"""Partial pruning and personalization (Liu and Ratnarajah, 2023) against its Algorithm 1, and (15)
where nobody kept a weight.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import Pruned
from covey.runs.run import Round
from tests.algorithms.quadratics import EXACT, Device, Vector, deviation, some, split, start

S, D = 4, 6  # four shared parameters and two private ones
W = np.array([0.7, -0.4, 1.1, 0.2, -0.9, 0.5])
WHOLE = some(4, D, mu=0.4, L=1.5, spread=2.0)
COPIES = [Device(np.tile(f.X[-1], (k, 1)), np.full(k, f.y[-1])) for k, f in enumerate(WHOLE, 2)]
both = pytest.mark.parametrize(("fs", "batch"), [(WHOLE, None), (COPIES, 2)], ids=["full", "batch"])
SETTINGS: dict[str, Any] = {
    "steps": 3, "probe_steps": 2, "personal_steps": 2, "lr": 0.2, "personal_lr": 0.1,
}  # fmt: skip
Kept = tuple[Vector, Vector]
"""A model and the mask of its shared part."""


def device(f: Device, u: Vector, v: Vector, ratio: float, *, together: bool = False) -> Kept:
    x = np.concatenate([u, v])
    for _ in range(0 if together else 2):
        x[S:] -= 0.1 * f.grad(x)[S:]  # (8)
    probe = x.copy()
    for _ in range(2):
        probe[:S] -= 0.2 * f.grad(probe)[:S]
    order = np.argsort(-np.abs(probe - x)[:S], kind="stable")  # (6), in descending order
    mask = np.ones(S)
    mask[order[S - int(ratio * S + 0.5) :]] = 0
    x[:S] = u * mask  # (9)
    step = np.concatenate([0.2 * mask, np.full(D - S, 0.1 if together else 0.0)])
    for _ in range(3):
        x = x - step * f.grad(x)  # (10)
    return x, mask


def merge(
    rows: Sequence[Vector],
    masks: Sequence[Vector],
    u: Vector,
    weights: Sequence[float] | None = None,
) -> Vector:
    """(15), with the last value of what nobody kept."""
    out = u.copy()
    for j in range(len(u)):
        kept = [k for k, mask in enumerate(masks) if mask[j]]
        if kept:
            out[j] = np.average(
                [rows[k][j] for k in kept],
                weights=None if weights is None else [weights[k] for k in kept],
            )
    return out


def check_notes(record: Round, u: Vector, masks: Sequence[Vector], ratios: Sequence[float]) -> None:
    errors = [
        np.sum((u * (1 - m)) ** 2) / rho if rho else 0.0
        for m, rho in zip(masks, ratios, strict=True)
    ]
    cover = np.sum(masks, axis=0)
    mine, above = record.notes["device"], record.notes["server"]
    assert mine["kept"].mean == pytest.approx(np.mean(masks), abs=1e-15)
    shares = np.mean(masks, axis=1)
    assert (mine["kept"].least, mine["kept"].most) == (shares.min(), shares.max())
    assert mine["error"].mean == pytest.approx(np.mean(errors), rel=1e-12)
    assert mine["error"].most == pytest.approx(np.max(errors), rel=1e-12)
    assert above["cover"].mean == cover.min()
    assert above["uncovered"].mean == np.mean(cover == 0)
    assert (mine["kept"].count, above["cover"].count) == (len(masks), 1)


@pytest.mark.parametrize(
    "ratio", [0.5, [0.5, 0.25, 0.75, 1.0], 0.75], ids=["half", "lists", "three quarters"]
)
@pytest.mark.parametrize("together", [False, True], ids=["alternate", "together"])
@both
def test_two_rounds_by_hand(
    fs: list[Device], batch: int | None, together: bool, ratio: float | list[float]
) -> None:
    algorithm = Pruned(ratio, "together" if together else "alternate", **SETTINGS, batch=batch)
    run, u, x = split(algorithm, fs, w=W, shared=S), W[:S], [W] * 4
    ratios = ratio if isinstance(ratio, list) else [ratio] * 4
    for record in run:
        done = [
            device(f, u, mine[S:], rho, together=together)
            for f, mine, rho in zip(fs, x, ratios, strict=True)
        ]
        check_notes(record, u, [mask for _, mask in done], ratios)
        x, u = (
            [mine for mine, _ in done],
            merge([mine for mine, _ in done], [mask for _, mask in done], u),
        )
        assert deviation(run, np.concatenate([u, W[S:]]), personal=x) <= EXACT


def test_masks_differ_and_some_weights_are_kept_by_nobody() -> None:
    """Else the test above would say little."""
    record = next(split(Pruned(0.75, **SETTINGS, batch=None), WHOLE, w=W, shared=S))
    assert record.notes["server"]["uncovered"].mean > 0
    assert record.notes["device"]["kept"].mean == 0.25
    done = [device(f, W[:S], W[S:], 0.5)[1] for f in WHOLE]
    assert len({tuple(mask) for mask in done}) > 1


@pytest.mark.parametrize("weight", ["uniform", "samples"])
@pytest.mark.parametrize("private", [True, False], ids=["partial", "pruning alone"])
def test_two_rounds_by_hand_on_uneven_edges(weight: Any, private: bool) -> None:
    """An edge averages its devices per weight, twice a round, and the server the edges that had a
    weight at all.
    """
    fs = [Device(np.tile(f.X, (k, 1)), np.tile(f.y, k)) for k, f in enumerate(WHOLE, 1)]
    shared = S if private else D
    ratios, groups, counts = [0.5, 0.75, 0.5, 0.75], ([0], [1, 2, 3]), [len(f.y) for f in fs]
    algorithm = Pruned(ratios, **SETTINGS, batch=None, weight=weight, edge_rounds=2)
    tree = Tree.grouped([1, 3])
    run = split(algorithm, fs, tree, w=W, shared=S) if private else start(algorithm, fs, tree, w=W)
    u, x = W[:shared], [W] * 4
    for record in run:
        edges, covered, covers = [], [], []
        for group in groups:
            here, any_kept = u, np.zeros(shared)
            for _ in range(2):
                done = {i: step(fs[i], here, x[i][shared:], ratios[i], private) for i in group}
                masks = [mask for _, mask in done.values()]
                x = [done[i][0] if i in done else x[i] for i in range(4)]
                weights = [counts[i] for i in group] if weight == "samples" else None
                here = merge([row for row, _ in done.values()], masks, here, weights)
                any_kept = np.maximum(any_kept, np.max(masks, axis=0))
                covers.append(np.sum(masks, axis=0).min())
            edges.append(here)
            covered.append(any_kept)
        u = merge(edges, covered, u, [counts[0], sum(counts[1:])] if weight == "samples" else None)
        assert deviation(run, np.concatenate([u, W[shared:]]), personal=x) <= EXACT
        note = record.notes["edge"]["cover"]
        figures = (np.mean(covers), min(covers), max(covers), 4)
        assert (note.mean, note.least, note.most, note.count) == figures
        assert record.notes["server"]["uncovered"].mean == np.mean(np.sum(covered, axis=0) == 0)


def step(f: Device, u: Vector, v: Vector, ratio: float, private: bool) -> Kept:
    return device(f, u, v, ratio) if private else all_shared(f, u, ratio)


def all_shared(f: Device, u: Vector, ratio: float) -> Kept:
    """Pruning alone, as the paper's reference 14 has it: no part is private."""
    probe = u.copy()
    for _ in range(2):
        probe = probe - 0.2 * f.grad(probe)
    mask = np.ones(D)
    mask[np.argsort(-np.abs(probe - u), kind="stable")[D - int(ratio * D + 0.5) :]] = 0
    x = u * mask
    for _ in range(3):
        x = x - 0.2 * mask * f.grad(x)
    return x, mask


def test_pruned_weights_are_zero_in_the_personal_model_and_do_not_move() -> None:
    run = split(Pruned(0.5, **SETTINGS, batch=None), WHOLE, w=W, shared=S, rounds=1)
    (record,) = run
    rows = run.rows("personal")[1][:, :S]
    assert (rows == 0).sum(dim=1).tolist() == [2, 2, 2, 2]
    assert record.models["personal"].nonzeros == 4 / 6


@pytest.mark.parametrize(("codec", "values"), [("bitmap", 2), ("dense", 4)])
def test_only_the_shared_part_travels_and_a_bitmap_carries_what_is_kept(
    codec: str, values: int
) -> None:
    """Of 6 doubles 4 are sent down; up go a header, one byte of mask and the 2 that were kept, or
    all in the dense codec.
    """
    record = next(split(Pruned(0.5, **SETTINGS, batch=None), WHOLE, w=W, shared=S, codec=codec))
    assert record.bytes(direction="up") == 4 * (6 + 1 + 8 * values)
    assert record.bytes(direction="down") == 4 * (6 + 8 * S)
