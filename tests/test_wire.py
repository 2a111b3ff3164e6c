"""What links do to rows: codecs per direction, the largest entries, updates, and what was lost
coming back later.
"""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import covey
from covey.algorithms import FedAvg, PerMFL, SFedHP
from covey.codecs import codec
from covey.errors import ConfigError
from covey.links.spec import LinkSpec, largest, wires
from tests import peek
from tests.given import drained, played
from tests.laws.cases import differences, state

LINKS = ("server-edge", "edge-device")
HALF = {"name": "int4", "update": True, "feedback": True}
ROUGH: dict[str, Any] = {
    "int8": "int8",
    "f16 down, bf16 up": {"down": "dense_f16", "up": "dense_bf16"},
    "stochastic": {"name": "int8", "rounding": "stochastic"},
    "int4 of updates, fed back": {"down": "dense", "up": HALF},
    "largest tenth": {"down": "int8", "up": {"name": "auto", "keep": 0.1, "update": True, "feedback": True}},
    "fed back both ways": {"name": "int4", "feedback": True},
}  # fmt: skip
every_rough = pytest.mark.parametrize("spec", ROUGH.values(), ids=ROUGH.keys())


def experiment(
    spec: Any, algorithm: covey.Algorithm | None = None, **changes: Any
) -> covey.Experiment:
    plain: dict[str, Any] = {
        "rounds": 4, "workers": 1, "tree": covey.Tree.grouped([3, 3]), **changes,
    }  # fmt: skip
    data = covey.data.digits(devices=plain["tree"].devices)
    links = dict.fromkeys(LINKS, spec)
    return covey.Experiment(
        algorithm or PerMFL(edge_rounds=2, lr=0.1),
        data,
        covey.models.mlp(64, 8, 10),
        codec=links,
        **plain,
    )


def test_one_name_serves_every_link_and_direction() -> None:
    found = wires("bitmap", LINKS)
    assert set(found) == {(link, way) for link in LINKS for way in ("down", "up")}
    assert {wire.codec.name for wire in found.values()} == {"bitmap"}


def test_links_and_directions_may_differ_and_dense_is_the_default() -> None:
    found = wires({"edge-device": {"up": {"name": "int8", "block": 64, "keep": 0.5}}}, LINKS)
    assert found["server-edge", "up"].codec == found["edge-device", "down"].codec == codec("dense")
    assert found["edge-device", "up"] == LinkSpec(codec("int8", block=64), keep=0.5)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("zip", ["there is no codec 'zip'"]),
        ({"server-moon": "dense"}, ["the link 'server-moon'", "server-edge, edge-device"]),
        ({"server-edge": {"sideways": "dense"}}, ["codec.server-edge", "'sideways'"]),
        ({"server-edge": {"up": {"codec": "int8"}}}, ["codec.server-edge", "a table with a name"]),
        ({"server-edge": {"up": 3}}, ["codec.server-edge = 3"]),
        ({"server-edge": {"up": {"name": "int8", "keep": 0}}}, ["keep = 0"]),
        ({"server-edge": {"up": {"name": "int8", "keep": 1.5}}}, ["keep = 1.5"]),
        ({"server-edge": {"up": {"name": "int8", "feedback": "yes"}}}, ["feedback = 'yes'"]),
        ({"server-edge": {"up": {"name": "bitmap", "feedback": True}}}, ["bitmap loses nothing"]),
        ({"server-edge": {"down": {"name": "int8", "update": True}}}, ["give it under up"]),
        ({"server-edge": {"up": {"name": "int8", "blocks": 7}}}, ["up", "blocks"]),
    ],
)
def test_what_is_wrong_is_named(spec: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        wires(spec, LINKS)
    for part in parts:
        assert part in str(caught.value)


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_the_largest_entries_stay(values: list[float], share: float) -> None:
    row = torch.tensor([values])
    kept = largest(row, share)
    count = max(1, round(share * len(values)))
    least = sorted(map(abs, values), reverse=True)[count - 1]
    assert torch.equal(kept, torch.where(row.abs() >= least, row, 0.0))
    assert torch.equal(largest(torch.cat([row, -row]), share)[:1], kept)  # whoever stands beside it


@every_rough
def test_a_rough_link_changes_what_the_receiver_computes_with_and_learns_nevertheless(
    spec: Any,
) -> None:
    plain, rough = covey.run(experiment("dense", rounds=12)), covey.run(experiment(spec, rounds=12))
    last = [list(run)[-1] for run in (plain, rough)]
    assert not torch.equal(plain.w, rough.w)
    assert last[1].bytes() < last[0].bytes()
    assert (last[1].accuracy("personal") or 0) > (last[0].accuracy("personal") or 0) - 0.1


@every_rough
def test_chunks_workers_and_seeds_change_no_bit(spec: Any) -> None:
    first = played(experiment(spec))
    each: list[dict[str, Any]] = [{"workers": 3}, {"memory": 1}]
    for changes in each:
        other = played(experiment(spec, **changes))
        assert differences(state(first), state(other)) == []
    side = drained(covey.runs([experiment(spec), experiment(spec, seed=5)]))
    assert torch.equal(side.seeds[0].w, first.w)
    assert side.seeds[0].meter.bytes() == first.meter.bytes()


@every_rough
def test_what_was_lost_survives_a_checkpoint(spec: Any, tmp_path: Path) -> None:
    whole = played(experiment(spec))
    half = covey.run(experiment(spec))
    next(half)
    next(half)
    half.save(tmp_path / "half")
    again = played(experiment(spec), resume=tmp_path / "half")
    assert differences(state(whole), state(again)) == []


@dataclasses.dataclass(frozen=True)
class Constant(covey.Algorithm):
    """Every round each device answers the same row; the server sums what arrives."""

    def server(self, me: covey.Nodes, w: Tensor) -> Tensor:
        return me.keep(
            "sum", me.recall("sum", default=torch.zeros_like(w)) + me.ask(self.device, w).mean()
        )

    def device(self, me: covey.Nodes, w: Tensor) -> Tensor:
        return me.keep("row", me.initial() + me.normal("noise", w.shape[1]) * 0 + 0.37)


@pytest.mark.parametrize(
    "spec", [{"name": "int4", "feedback": True}, {"name": "auto", "keep": 0.02, "feedback": True}]
)
def test_what_is_fed_back_adds_up(spec: Any) -> None:
    """After t rounds all that was sent is t times the row, up to what the last message lost."""
    here = replace(
        experiment("dense", Constant(), rounds=60, tree=covey.Tree.flat(1)),
        codec={"server-device": {"up": spec}},
    )
    run = played(here)
    row, total = run.rows("row")[1], run.rows("sum")[1]
    lost = peek.store(run).get(
        "device", "_lost server-device up device 0", torch.arange(1), torch.zeros_like(row), 0
    )
    assert lost is not None
    torch.testing.assert_close(total + lost, 60 * row, rtol=1e-4, atol=1e-3)
    if "keep" in spec:
        assert record_nonzeros(run) <= 0.03
    assert float(lost.abs().max()) < 60 * 0.02 * 60


@dataclasses.dataclass(frozen=True)
class Alternating(covey.Algorithm):
    """Devices answer the same row every round, its even coordinates in all rounds and its odd ones
    in every second.
    """

    def server(self, me: covey.Nodes, w: Tensor) -> Tensor:
        arrived = me.ask(self.device, w).mean(default=torch.zeros_like(w))
        return me.keep("sum", me.recall("sum", default=torch.zeros_like(w)) + arrived)

    def device(self, me: covey.Nodes, w: Tensor) -> covey.Masked:
        mask = torch.ones_like(w, dtype=torch.bool)
        mask[:, 1::2] = me.round % 2 == 0
        return covey.Masked(
            me.keep("row", torch.linspace(-1, 1, w.shape[1]).expand(w.shape).clone()), mask
        )


@pytest.mark.parametrize(
    "spec", [{"name": "int4", "feedback": True}, {"name": "auto", "keep": 0.02, "feedback": True}]
)
def test_what_lies_outside_a_mask_is_still_to_be_sent(spec: Any) -> None:
    """A coordinate that is left out of a message keeps what its earlier ones lost, to the bit, and
    sends it later.
    """
    plain = experiment("dense", Alternating(), rounds=5, tree=covey.Tree.flat(2))
    run = covey.run(replace(plain, codec={"server-device": {"up": spec}}))
    lost = []
    for _ in run:
        zeros = torch.zeros(2, run.w.shape[1])
        found = peek.store(run).get(
            "device", "_lost server-device up device 0", torch.arange(2), zeros, 0
        )
        lost.append(found.clone())
    assert all(float(rows[:, 1::2].abs().max()) > 1e-3 for rows in lost)
    assert torch.equal(lost[1][:, 1::2], lost[0][:, 1::2])
    assert torch.equal(lost[3][:, 1::2], lost[2][:, 1::2])
    assert not torch.equal(lost[2][:, 1::2], lost[1][:, 1::2])
    row, total = run.rows("row")[1][:1], run.rows("sum")[1]
    sent = torch.full_like(row, 5.0)
    sent[:, 1::2] = 3.0
    torch.testing.assert_close(total + lost[-1][:1], sent * row, rtol=1e-4, atol=1e-4)


def record_nonzeros(run: covey.Run) -> float:
    found = run.history[-1].traffic["server-device", "up", "train"]
    return found.nonzeros / found.values


def test_an_update_is_the_difference_from_what_came_down() -> None:
    """With int8 the error of an update is a 127th of the largest change, not of the largest weight."""
    algorithm = FedAvg(steps=1, lr=1e-4)
    errors = []
    for up in ("dense", "int8", {"name": "int8", "update": True}):
        here = replace(
            experiment("dense", algorithm, rounds=1, tree=covey.Tree.flat(4)),
            codec={"server-device": {"up": up}},
        )
        run = covey.run(here)
        next(run)
        errors.append(run.w)
    assert float((errors[2] - errors[0]).abs().max()) < 0.05 * float(
        (errors[1] - errors[0]).abs().max()
    )


def test_a_cut_comes_before_the_codec() -> None:
    """sFedHP's cut rows, sent as int8, arrive with the same zeros."""
    sparse = SFedHP(gamma1=0.05, gamma2=0.05, edge_rounds=5, lam1=5.0, lam2=5.0)
    shares = []
    for spec in ("bitmap", "int8"):
        run = covey.run(experiment(spec, sparse))
        record = list(run)[-1]
        found = record.traffic["edge-device", "up", "train"]
        shares.append(found.nonzeros / found.values)
    assert abs(shares[0] - shares[1]) < 0.15
    assert shares[1] < 0.9
