"""Every figure of a record against a loop over devices, when only some of them were ever asked."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import covey
from covey import Algorithm, Experiment, Nodes, Tree
from covey.algorithms import FedAlt
from covey.data import Shards, own_parts
from covey.errors import ProgramError
from covey.models import linear, mlp
from covey.runs.run import Run

TREE = Tree.grouped([3, 8, 4])
CUT = 0.05


def shards(regression: bool = False) -> Shards:
    g = torch.Generator().manual_seed(0)

    def part(counts: list[int]) -> list[tuple[Tensor, Tensor]]:
        made = []
        for n in counts:
            x = torch.randn(n, 2, generator=g, dtype=torch.float64)
            made.append(
                (x, x.sum(1, keepdim=True) if regression else torch.randint(3, (n,), generator=g))
            )
        return made

    ragged = [1 + 7 * d % 11 for d in range(15)]
    nothing_there = [0 if d in (4, 13) else n for d, n in enumerate(ragged)]
    return own_parts(
        train=part(ragged),
        validation=part(nothing_there),
        test=part(ragged[::-1]),
        classes=None if regression else 3,
    )


@dataclass(frozen=True)
class Keeper(Algorithm):
    """Edges and devices keep a model that differs from node to node and from round to round."""

    sample: int = 2
    device_sample: float = 0.5

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return w + 0.1 * me.ask(self.edge, w, sample=self.sample).mean()

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        theta = me.ask(self.device, w, sample=self.device_sample).mean()
        return me.keep("edge", 0.5 * (w + theta) + 0.1 * me.normal("edge", w.shape[1]))

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        me.keep("_secret", w)
        me.keep("narrow", w[:, :2])
        return me.keep(
            "personal", w + me.normal("noise", w.shape[1]) * (me.uniform("coin", w.shape[1]) < 0.7)
        )

    def cut(self, tier: str, round: int = 0) -> float | None:
        return CUT if tier == "device" else None


def started(regression: bool = False, **more: object) -> Run:
    data = shards(regression)
    model = linear(2, 1 if regression else 3)
    given: dict[str, Any] = {
        "rounds": 2,
        "loss": "squared_error" if regression else "cross_entropy",
        "dtype": torch.float64,
        **more,
    }
    return covey.run(Experiment(Keeper(), data, model, TREE, **given))


def edge_of(device: int) -> int:
    return 0 if device < 3 else 1 if device < 11 else 2


def naive(run: Run, model: str, part: str, regression: bool) -> dict[str, float | None]:
    ids, rows = run.rows(model)
    by_node = dict(zip(ids.tolist(), rows, strict=True))
    data = shards(regression)
    right = loss = count = 0.0
    accuracies: list[float] = []
    all_right = all_count = holders = 0
    for d in range(15):
        node = {"global": 0, "edge": edge_of(d), "personal": d}[model]
        held = data.part(part).held(d)
        x, y = data.x[held], data.y[held]
        with torch.no_grad():
            outputs = run.runtime.task.space.fill(by_node.get(node, run.w[0]))(x)
        hits = 0 if regression else int((outputs.argmax(1) == y).sum())
        all_right, all_count = all_right + hits, all_count + len(x)
        if len(x):  # the mean and the worst tenth are over all devices, as `accuracy_fallback`
            accuracies.append(hits / len(x))
        if node in by_node and len(x):
            holders += 1
            right, count = right + hits, count + len(x)
            loss += (
                float(0.5 * (outputs - y).square().sum())
                if regression
                else float(F.cross_entropy(outputs, y, reduction="sum"))
            )
    worst = sorted(accuracies)
    wanted = max(len(worst) / 10, 1.0)
    total, left = 0.0, wanted
    for accuracy in worst:
        total, left = total + min(1.0, left) * accuracy, left - min(1.0, left)
    return {
        "accuracy": right / count, "accuracy_uniform": sum(accuracies) / len(accuracies), "worst_decile": total / wanted,
        "loss": loss / count, "devices": holders, "accuracy_fallback": all_right / all_count,
    }  # fmt: skip


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("model", ["global", "edge", "personal"])
def test_scores_are_a_loop_over_devices(model: str, part: str) -> None:
    run = started(parts=("train", "validation", "test"))
    for record in run:
        score = record.models[model].scores[part]
        expected = naive(run, model, part, regression=False)
        for name, value in expected.items():
            assert getattr(score, name) == pytest.approx(
                value, abs=0.0101 if name == "worst_decile" else 1e-9
            ), name
        if model != "global":
            assert score.devices < 15
    assert record.accuracy(model, part) == pytest.approx(expected["accuracy"])


def test_the_scores_differ_so_that_the_loop_can_tell_them_apart() -> None:
    *_, record = started()
    figures = [s.loss for m in record.models.values() for s in m.scores.values()]
    assert len(set(figures)) == len(figures)
    test = record.models["personal"].scores["test"]
    assert test.accuracy != test.accuracy_fallback


def test_regression_has_a_loss_and_no_accuracy_that_means_anything() -> None:
    run = started(regression=True)
    for record in run:
        for model in ("global", "edge", "personal"):
            assert record.models[model].scores["test"].loss == pytest.approx(
                naive(run, model, "test", regression=True)["loss"]
            )


def test_regression_has_no_accuracy() -> None:
    record = next(started(regression=True))
    score = record.models["global"].scores["test"]
    assert score.accuracy is None
    assert score.accuracy_uniform is None
    assert score.worst_decile is None
    assert score.accuracy_fallback is None


def test_holders_age_and_nonzeros() -> None:
    run = started()
    records = list(run)
    models = records[-1].models
    # not "_secret", and not what is narrower than a model
    assert list(models) == ["global", "edge", "personal"]
    assert [models[name].tier for name in models] == ["server", "edge", "device"]
    for name, cut in (("edge", 0.0), ("personal", CUT)):
        ids, rows = run.rows(name)
        assert models[name].holders == len(ids)
        last = {
            node: record.round for record in records for node in record.cohorts[models[name].tier]
        }
        assert sorted(last) == ids.tolist()
        assert models[name].age == pytest.approx(
            sum(1 - round for round in last.values()) / len(last)
        )
        assert models[name].nonzeros == pytest.approx(float((rows.abs() > cut).double().mean()))
        assert models[name].cut == cut
    assert models["personal"].holders < 15
    assert 0 < models["personal"].nonzeros < 1
    assert models["personal"].age > 0
    assert (models["global"].holders, models["global"].age) == (1, 0)


def test_a_model_from_above_is_scored_with_each_devices_own_private_layers() -> None:
    algorithm = FedAlt(steps=2, personal_steps=2, lr=0.3, personal_lr=0.3, batch=None, sample=2)
    here = Experiment(
        algorithm, shards(), mlp(2, 4, 3), TREE, rounds=2, private="head", dtype=torch.float64,
        parts=("test",),
    )  # fmt: skip
    run = covey.run(here)
    record = list(run)[-1]
    task, w = run.runtime.task, run.w.clone()
    ids, personal = run.rows("personal")
    rows = w.repeat(TREE.devices, 1)
    rows[ids, task.space.shared :] = personal[:, task.space.shared :]
    tally = task.evaluate(rows, "test", torch.arange(TREE.devices))
    assert 0 < len(ids) < TREE.devices
    assert record.models["global"].scores["test"].loss == pytest.approx(
        float(tally.loss.sum() / tally.count.sum()), rel=1e-12
    )
    alone = task.evaluate(w.repeat(TREE.devices, 1), "test", torch.arange(TREE.devices))
    assert abs(float(alone.loss.sum() - tally.loss.sum())) > 1e-3


def test_scoring_changes_nothing() -> None:
    often, never = started(), started(score_every=2)
    for a, b in zip(often, never, strict=True):
        assert bool(a.models)
        assert bool(b.models) == (b.round == 1)
        assert a.bytes() == b.bytes()
    assert torch.equal(often.w, never.w)
    assert torch.equal(often.rows("personal")[1], never.rows("personal")[1])


def test_an_empty_part_has_no_scores() -> None:
    record = next(started(protocol="paper"))
    empty = record.models["global"].scores["validation"]
    assert (
        empty.accuracy, empty.accuracy_uniform, empty.worst_decile, empty.loss, empty.devices,
    ) == (None, None, None, None, 0)  # fmt: skip
    assert record.accuracy("global", "validation") is None
    assert record.accuracy("nobody") is None


class SameName(Keeper):
    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("personal", me.ask(self.device, w).mean())


def test_two_tiers_use_different_names() -> None:
    with pytest.raises(ProgramError, match="'personal' is kept on two tiers"):
        covey.run(Experiment(SameName(), shards(), linear(2, 3), TREE, 1))
