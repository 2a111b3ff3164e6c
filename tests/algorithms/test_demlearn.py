"""DemLearn: Ward's groups of the devices' models, means from below, (1 - alpha) member + alpha
group from above.
"""

from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey import Run
from covey.algorithms import DemLearn
from covey.algorithms.demlearn import average, size
from covey.errors import ConfigError
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    both,
    deviation,
    kept,
    mean,
    some,
    start,
)

Group = list[Any]


def dendrogram(thetas: list[Vector]) -> Any:
    """Ward by hand: again and again the two clusters whose union adds the least to the squared
    distances from the means.
    """
    clusters: list[tuple[Any, list[int]]] = [(i, [i]) for i in range(len(thetas))]
    while len(clusters) > 1:
        costs = {}
        for a in range(len(clusters)):
            for b in range(a):
                one, other = ([thetas[i] for i in clusters[k][1]] for k in (a, b))
                share = len(one) * len(other) / (len(one) + len(other))
                costs[a, b] = share * np.square(mean(one) - mean(other)).sum()
        a, b = min(costs, key=lambda pair: costs[pair])
        joined = ([clusters[a][0], clusters[b][0]], clusters[a][1] + clusters[b][1])
        clusters = [cluster for k, cluster in enumerate(clusters) if k not in (a, b)] + [joined]
    return clusters[0][0]


def leaves(node: Any) -> Group:
    return [node] if isinstance(node, int) else [leaf for child in node for leaf in leaves(child)]


def top(node: Any, levels: int) -> Any:
    return (
        node
        if isinstance(node, int)
        else leaves(node)
        if levels == 1
        else [top(child, levels - 1) for child in node]
    )


def by_hand(
    thetas: list[Vector], levels: int, alpha: float, factor: float
) -> tuple[Vector, dict[int, Vector]]:
    """The root's model, and the model of the group each device is directly in."""

    def up(node: Any) -> Vector:
        if isinstance(node, int):
            return thetas[node]
        return factor * mean([up(child) for child in node], [len(leaves(child)) for child in node])

    def down(node: Any, model: Vector) -> None:
        for child in node:
            if isinstance(child, int):
                parents[child] = model
            else:
                down(child, (1 - alpha) * up(child) + alpha * model)

    parents: dict[int, Vector] = {}
    root = top(dendrogram(thetas), levels)
    down(root, up(root))
    return up(root), parents


def begun(algorithm: DemLearn, fs: list[Device], w: Vector = W, rounds: int = 2) -> Run:
    run = start(algorithm, fs, w=w, rounds=rounds)
    run.runtime.start = run.w.clone()
    return run


@pytest.mark.parametrize(
    ("levels", "amplify"), [(1, 1.0), (2, 1.0), (3, 1.0), (3, 1.15), (9, 1.15)]
)
@both
def test_two_rounds_by_hand(
    fs: list[Device], batch: int | None, levels: int, amplify: float
) -> None:
    algorithm = DemLearn(
        levels=levels, alpha=0.6, mu=0.3, steps=2, lr=0.1, batch=batch, amplify=amplify, amplify_rounds=1,
    )  # fmt: skip
    run, personal, parents = begun(algorithm, fs), [W] * 4, dict.fromkeys(range(4), W)
    for record in run:
        local = []
        for i, f in enumerate(fs):
            theta = personal[i]
            for _ in range(2):
                theta = theta - 0.1 * (f.grad(theta) + 0.3 * (theta - parents[i]))
            local.append(theta)
        root, parents = by_hand(local, levels, 0.6, amplify if record.round == 0 else 1.0)
        personal = [0.4 * theta + 0.6 * parents[i] for i, theta in enumerate(local)]
        assert deviation(run, root, local=local, personal=personal) <= EXACT
        # one row each way for every device
        assert record.bytes(direction="up") == record.bytes(direction="down")


def test_more_devices_are_grouped_as_ward_does_by_hand() -> None:
    fs = some(11, 3, mu=0.5, L=2.0, spread=2.0)
    algorithm = DemLearn(levels=4, alpha=0.7, mu=0.0, steps=3, lr=0.2, batch=None)
    run = begun(algorithm, fs, w=np.zeros(3), rounds=1)
    next(run)
    thetas = list(kept(run, "local").values())
    root, parents = by_hand(thetas, 4, 0.7, 1.0)
    own = [0.3 * theta + 0.7 * parents[i] for i, theta in enumerate(thetas)]
    assert deviation(run, root, personal=own) <= EXACT
    assert len({tuple(np.round(model, 9)) for model in parents.values()}) > 4


def test_a_mean_weighs_devices_alike_and_amplification_compounds() -> None:
    theta = torch.tensor([[1.0], [2.0], [6.0], [9.0]])
    group = [0, [1, [2, 3]]]
    assert size(group) == 4
    assert average(group, theta, 1.0).item() == pytest.approx(4.5)
    # 2 (1 + 3 m) / 4 with m = 2 (2 + 2 n) / 3 and n = 2 (6 + 9) / 2
    n = 15.0
    m = 2 * (2 + 2 * n) / 3
    assert average(group, theta, 2.0).item() == pytest.approx(2 * (1 + 3 * m) / 4)


def test_the_linkage_matters() -> None:
    """Ward halves a chain of points; the mean distance leaves its last one alone."""
    theta = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [9.5]])
    ward, other = (
        DemLearn(levels=2, linkage=linkage).groups(theta) for linkage in ("ward", "average")
    )
    assert sorted(map(sorted, ward)) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert other[0] == 8
    assert sorted(other[1]) == list(range(8))


def test_one_device_and_rows_that_are_not_finite_have_groups() -> None:
    assert DemLearn().groups(torch.ones(1, 3)) == [0]
    assert size(DemLearn().groups(torch.tensor([[1.0], [float("inf")], [float("nan")]]))) == 3
    shards = covey.data.own([(torch.randn(9, 2), torch.arange(9) % 2)], classes=2)
    run = covey.run(
        covey.Experiment(
            DemLearn(steps=1), shards, covey.models.linear(2, 2), covey.Tree.flat(1), rounds=2
        )
    )
    assert len(list(run)) == 2


def test_without_scipy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.algorithms.demlearn.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs scipy.*pip install .\.\[demlearn\]"):
        DemLearn()
    assert DemLearn(levels=1).levels == 1


def test_the_same_groups_pull_devices_together() -> None:
    far, near = (
        begun(DemLearn(alpha=alpha, steps=2, batch=None), SMALL, rounds=4) for alpha in (0.0, 0.9)
    )
    list(far), list(near)
    spread = [float(run.rows("personal")[1].var(0).sum()) for run in (far, near)]
    assert spread[1] < 0.2 * spread[0]
