"""The virtual clock by hand: two devices, a deadline and a straggler; edges, wires, several asks;
and a plan that drives a run.

A linear model 2 -> 2 has 6 weights, its dense message 24 bytes and a header. The signals are 3
times and as strong as the noise, so over half of 40 kHz each the devices send 40 and 20 kbit/s.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import covey
from covey import Experiment, Tree, data, models
from covey.algorithms import AL2GD, FedAlt, FedAvg, HierFAVG, Local, Pruned, Scaffold
from covey.codecs import header
from covey.errors import CheckpointError, ConfigError
from covey.radio.clock import RadioRecord
from covey.wireless import (
    Cells,
    Channel,
    Devices,
    LogDistance,
    Noise,
    Radio,
    Reason,
    Scenario,
    Work,
    fair,
    fixed,
    optimal,
    personal_fastest,
    plan,
    pruning_only,
    weighted,
)
from tests.given import drained

BITS = 8 * (24 + header.SIZE)
CHANNEL = Channel(Noise(1.0), LogDistance(reference=0.0, exponent=1.0), fading="none")
PAIR = Devices.of(
    [0, 0], distance=1.0, cpu=[1e6, 0.5e6], cycles=100.0, power=[3.0, 1.0], capacitance=1e-12
)
TRIO = Devices.of(
    [0, 0, 1], distance=1.0, cpu=[1e6, 0.5e6, 0.5e6], cycles=100.0, power=[3.0, 1.0, 1.0]
)
TWO = Radio(PAIR, Cells.of(40e3), CHANNEL)
STEPS = 5 * 6 * 100  # cycles of five steps on six weights: 3 and 6 ms
FAST, SLOW = STEPS / 1e6 + BITS / 40e3, STEPS / 0.5e6 + BITS / 20e3


def shards(devices: int = 2) -> data.Shards:
    draw = torch.Generator().manual_seed(3)
    pairs = [
        (x := torch.randn(20, 2, generator=draw), (x[:, 0] > 0.3 * at).long())
        for at in range(devices)
    ]
    return data.own(pairs, classes=2)


def experiment(
    algorithm: covey.Algorithm, radio: Radio | None, tree: Tree | None = None, **changes: Any
) -> Experiment:
    tree = tree or Tree.flat(len(radio.devices) if radio else 2)
    plain: dict[str, Any] = {
        "data": shards(tree.devices), "model": models.linear(2, 2), "tree": tree, "rounds": 1, "radio": radio,
    }  # fmt: skip
    return Experiment(algorithm, **{**plain, **changes})


def first(
    algorithm: covey.Algorithm, radio: Radio, tree: Tree | None = None, **changes: Any
) -> covey.Round:
    return next(covey.run(experiment(algorithm, radio, tree, **changes)))


def on_air(
    algorithm: covey.Algorithm, radio: Radio, tree: Tree | None = None, **changes: Any
) -> RadioRecord:
    """What the first round says of the radio."""
    found = first(algorithm, radio, tree, **changes).radio
    assert found is not None
    return found


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


def test_the_slowest_is_waited_for() -> None:
    radio = on_air(FedAvg(steps=5, batch=4), TWO)
    assert radio.seconds == near(SLOW)
    assert radio.upload_joules == near(3 * BITS / 40e3 + BITS / 20e3)
    assert radio.joules == near(radio.upload_joules + STEPS * 1e-12 * (1e12 + 0.25e12))
    assert radio.upload_bytes == BITS // 4
    assert (radio.formula_seconds, radio.left_out, radio.late, radio.certificate) == (
        None, [], [], None,
    )  # fmt: skip


def test_a_straggler_is_dropped_at_the_deadline() -> None:
    """The round ends at the deadline, the server takes the other's model, and the straggler has
    spent its joules all the same.
    """
    deadline = (FAST + SLOW) / 2
    algorithm, radio = FedAvg(steps=5, batch=4), replace(TWO, deadline=deadline)
    waited = on_air(algorithm, radio)
    dropped = covey.run(experiment(algorithm, replace(radio, late="drop")))
    aired = next(dropped).radio
    assert (waited.seconds, waited.late) == (near(SLOW), [1])
    assert (aired.seconds, aired.late, aired.joules) == (near(deadline), [1], near(waited.joules))
    alone = covey.run(experiment(algorithm, None, Tree.flat(1), data=shards().chosen([0])))
    next(alone)
    assert torch.equal(dropped.w, alone.w)


def test_when_all_are_late_the_first_counts() -> None:
    run = covey.run(
        experiment(FedAvg(steps=5, batch=4), replace(TWO, deadline=FAST / 2, late="drop"))
    )
    aired = next(run).radio
    assert (aired.seconds, aired.late) == (near(FAST), [0, 1])
    alone = covey.run(
        experiment(FedAvg(steps=5, batch=4), None, Tree.flat(1), data=shards().chosen([0]))
    )
    next(alone)
    assert torch.equal(run.w, alone.w)


def test_edges_wait_round_by_round_and_cross_their_wires() -> None:
    """Two cells: a pair, and the straggler's like alone on the whole band.

    Three rounds at each edge, then 7 ms and the wire.
    """
    cells = Cells.of(40e3, wire_rate=[1e6, 1e3], wire_delay=0.007, count=2)
    tree, algorithm = Tree.grouped([2, 1]), HierFAVG(steps=5, batch=4, edge_rounds=3)
    aired = on_air(algorithm, Radio(TRIO, cells, CHANNEL), tree)
    lone = STEPS / 0.5e6 + BITS / 40e3
    assert aired.seconds == near(max(3 * SLOW + BITS / 1e6, 3 * lone + BITS / 1e3) + 0.007)


def test_without_edges_the_base_stations_pass_messages_on() -> None:
    cells = Cells.of(40e3, wire_rate=[1e6, 1e4], wire_delay=0.007, count=2)
    aired = on_air(FedAvg(steps=5, batch=4), Radio(TRIO, cells, CHANNEL), Tree.grouped([2, 1]))
    assert aired.seconds == near(
        max(SLOW + 2 * BITS / 1e6, STEPS / 0.5e6 + BITS / 40e3 + BITS / 1e4) + 0.007
    )


def test_the_base_station_passes_on_only_the_answers_that_count() -> None:
    """The straggler's message arrives after the deadline and does not cross the wire; waiting for
    both, both do.
    """
    deadline = (FAST + SLOW) / 2
    cells = Cells.of(40e3, wire_rate=1e3, wire_delay=0.007)
    radio = replace(TWO, cells=cells, deadline=deadline)
    dropped = on_air(FedAvg(steps=5, batch=4), replace(radio, late="drop"), Tree.flat(2))
    waited = on_air(FedAvg(steps=5, batch=4), radio, Tree.flat(2))
    assert dropped.late == [1]
    assert dropped.seconds == near(deadline + 0.007 + BITS / 1e3)
    assert waited.seconds == near(SLOW + 0.007 + 2 * BITS / 1e3)


def test_a_wire_that_nothing_crosses_takes_no_time() -> None:
    """Local sends nothing; in AL2GD the edges answer once, and are then told how far to move."""
    radio = Radio(TRIO, Cells.of(40e3, wire_delay=1000.0, count=2), CHANNEL)
    for algorithm, wires in ((Local(steps=5, batch=4), 0), (AL2GD(batch=4), 1)):
        aired = on_air(algorithm, radio, Tree.grouped([2, 1]))
        assert aired.seconds // 1000.0 == wires


WIDE = Devices.of(
    [0] * 4 + [1] * 4, distance=[50.0, 80.0, 120.0, 900.0] * 2, cpu=1e9, cycles=[20.0, 30.0] * 4, power=0.6,
)  # fmt: skip
CELLS = Cells.of([2e6, 1e6], wire_rate=1e8, wire_delay=0.001)
GROUPS = Tree.grouped([4, 4])
FADING = Channel(Noise(1e-14), shadowing=4.0)
SPARSE: dict[str, Any] = {"private": "head", "codec": "bitmap", "model": models.mlp(2, 40, 2)}
PLANNED = Pruned(
    ratio="plan", steps=4, probe_steps=2, personal_steps=3, lr=0.1, personal_lr=0.1, batch=4
)


def planned(policy: Any = None, **changes: Any) -> covey.Run:
    radio = Radio(WIDE, CELLS, FADING, deadline=0.0004, policy=policy, **changes)
    return covey.run(experiment(PLANNED, radio, GROUPS, rounds=3, seed=7, **SPARSE))


@pytest.mark.parametrize("policy", [optimal, fair], ids=["optimal", "fair"])
def test_a_plan_drives_a_run(policy: Any) -> None:
    """Ratios are those that `plan` gives for the seed's channel, and the real bytes meet the
    deadline they were planned for.
    """
    run = planned(policy)
    work = Work(120, 82, steps=4, probe_steps=2, personal_steps=3)
    expected = plan(
        Scenario(WIDE, CELLS, FADING, work, 0.0004, mask=True, seed=7), policy, rounds=3
    )
    assert 12 < int(expected.asked.sum()) < 24
    assert float(expected.kept[expected.asked].mean()) < 0.9
    for row, record in enumerate(run):
        assert record.radio is not None
        asked, note = expected.asked[row], record.notes["device"]["kept"]
        kept = torch.floor(expected.kept[row][asked] * 120 + 1e-6) / 120
        assert note.count == int(asked.sum())
        assert (note.least, note.most) == pytest.approx(
            (float(kept.min()), float(kept.max())), rel=1e-6
        )  # noted in float32
        assert record.cohorts["device"] == asked.nonzero()[:, 0].tolist()
        assert record.radio.left_out == (~asked).nonzero()[:, 0].tolist()
        assert record.radio.certificate is not None
        assert 0 <= record.radio.certificate < 1e-9
        named = {
            device: name for name, devices in record.radio.reasons.items() for device in devices
        }
        why = {at: Reason(int(expected.reason[row, at])) for at in record.radio.left_out}
        assert named == {at: reason.name.lower() for at, reason in why.items()}
        assert record.radio.late == []
        assert record.radio.formula_seconds == near(float(expected.round_seconds()[row]))
        most = 0.0004 + 0.001 + 8 * (500 + header.SIZE) / 1e8
        assert record.radio.formula_seconds <= record.radio.seconds <= most
        assert record.radio.formula_bytes == near(4 * 120 * float(expected.kept[row][asked].sum()))
        assert record.radio.upload_bytes == int((4 * kept * 120 + header.SIZE + 15).round().sum())


def test_plans_reckon_with_the_codec_of_the_link() -> None:
    """Fewer bits a weight prune less, and whatever the codec its bytes meet the deadline."""
    radio, parts = Radio(WIDE, CELLS, FADING, deadline=0.0004), []
    for codec in ("bitmap", "bitmap_f16", "int8", "int4"):
        settings = {**SPARSE, "codec": codec, "rounds": 3, "seed": 7}
        here = experiment(replace(PLANNED, weight="samples"), radio, GROUPS, **settings)
        records = list(covey.run(here))
        aired = [record.radio for record in records if record.radio is not None]
        assert [one.late for one in aired] == [[], [], []]
        for record, one in zip(records, aired, strict=True):
            assert one.upload_bytes == record.bytes("edge-device", "up")
            assert one.seconds <= 0.0004 + 0.001 + 8 * (500 + 2 * header.SIZE + 4) / 1e8
        parts.append(sum(record.notes["device"]["kept"].mean for record in records))
    assert parts == sorted(parts)
    assert parts[0] < parts[1] < parts[2]


def test_dense_links_are_warned_of() -> None:
    assert not any("dense" in note for note in planned().notes)
    radio = Radio(WIDE, CELLS, FADING, deadline=0.0004)
    run = covey.run(
        experiment(PLANNED, radio, Tree.grouped([4, 4]), private="head", model=models.mlp(2, 40, 2))
    )
    assert any("edge-device sends dense rows up" in note for note in run.notes)
    record = next(run)
    assert record.radio.late


@pytest.mark.parametrize("policy", [optimal, fair], ids=["optimal", "fair"])
def test_seeds_side_by_side_have_the_seconds_of_seeds_alone(policy: Any) -> None:
    """To the last bit, though noise by the hertz takes one cell more of Newton's steps than
    another.
    """
    channel = Channel(Noise(1e-20, per_hertz=True), shadowing=8.0)
    radio = Radio(WIDE, CELLS, channel, deadline=0.002, policy=policy)
    settings = {**SPARSE, "rounds": 3, "score_every": 3}
    apart = [experiment(PLANNED, radio, GROUPS, seed=seed, **settings) for seed in range(4)]
    together = drained(covey.runs(apart))
    for seed, one in zip(together.seeds, apart, strict=True):
        assert [record.radio for record in seed.history] == [
            record.radio for record in covey.run(one)
        ]


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_the_number_of_examples_is_planned_for(late: Any) -> None:
    """With weight = "samples" a device sends one number more, which must not make it late."""
    radio = Radio(WIDE, CELLS, FADING, deadline=0.0015, late=late)
    record = first(replace(PLANNED, weight="samples"), radio, GROUPS, seed=7, **SPARSE)
    assert record.notes["device"]["kept"].least < 1
    assert record.radio.late == []


def test_the_paper_leaves_the_mask_out_of_the_plan_and_ends_late() -> None:
    record = next(planned(mask=False))
    assert len(record.radio.late) == 8 - len(record.radio.left_out)


def test_who_gets_no_band_is_left_out() -> None:
    """Without a cap on ratios the sum starves far devices of all band, and over none not even a
    mask is ever sent.
    """
    devices = Devices.of(
        [0] * 4, distance=[50.0, 80.0, 3000.0, 9000.0], cpu=1e9, cycles=20.0, power=0.6
    )
    channel = Channel(Noise(1e-14), fading="none")
    radio = Radio(devices, Cells.of(1e5), channel, deadline=0.004, rho_max=1.0, mask=False)
    aired = on_air(PLANNED, radio, **SPARSE)
    assert aired.left_out == [2, 3]
    assert aired.seconds < 0.005


def test_held_out_devices_leave_their_band_to_the_others() -> None:
    radio = Radio(WIDE, CELLS, FADING, deadline=0.0004)
    record = first(PLANNED, radio, GROUPS, holdout_devices=(0, 5), **SPARSE)
    assert len(record.cohorts["device"]) + len(record.radio.left_out) == 6
    assert record.accuracy("new_personal") is not None


TWO_CELLS = replace(TWO, cells=Cells.of(1.0, count=2))


def timed(**changes: Any) -> Radio:
    return replace(TWO, deadline=1.0, **changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: Radio(PAIR, Cells.of(1.0), CHANNEL, deadline=-1.0), "deadline = -1"),
        (lambda: Radio(PAIR, Cells.of(1.0), CHANNEL, late="drop"), "needs a deadline"),
        (lambda: Radio(PAIR, Cells.of(1.0), CHANNEL, late="never"), "late = 'never'"),  # type: ignore[arg-type]
        (lambda: Radio(PAIR, Cells.of(1.0), CHANNEL, rho_max=2.0), "rho_max = 2"),
        (lambda: Radio(replace(PAIR, cell=torch.tensor([0, 3])), Cells.of(1.0), CHANNEL), "cell 3"),
        (lambda: experiment(FedAvg(), TWO, Tree.flat(3)), "2 devices, the tree 3"),
        (lambda: experiment(FedAvg(), replace(TWO), Tree.grouped([1, 1])), "1 cells for 2 edges"),
        (lambda: experiment(FedAvg(), TWO_CELLS, Tree.grouped([1, 1])), "device 1 stands in"),
        (lambda: experiment(FedAvg(), TWO_CELLS, Tree.grouped([2])), "2 cells for 1 edges"),
        (lambda: replace(TWO, devices=replace(PAIR, cell=torch.tensor([0, -1]))), "cell -1"),
        (lambda: covey.run(experiment(Pruned(ratio="plan"), None)), "give a radio"),
        (lambda: covey.run(experiment(Pruned(ratio="plan"), TWO)), "needs a deadline"),
        (lambda: covey.run(experiment(FedAvg(), timed(policy=optimal))), "optimal prunes"),
        (lambda: covey.run(experiment(Pruned(0.5), timed(policy=fixed(0.5)))), "fixed 0.5 prunes"),
        (lambda: experiment(Scaffold(), timed(late="drop")), "Scaffold counts on every answer"),
        (lambda: experiment(Pruned("plan"), timed(), idle="train"), "use 'skip'"),
        (lambda: Pruned(ratio="some"), "ratio = 'some'"),  # type: ignore[arg-type]
        (lambda: planned(pruning_only), "pruning_only prunes and sends the private layers"),
        (lambda: planned(weighted(torch.ones(8))), "weighted has a value for each device"),
        (lambda: planned(fixed(torch.full((8,), 0.5))), "a run asks some of them"),
        (lambda: planned(fixed(0.5, share=torch.full((8,), 0.1))), "a run asks some of them"),
    ],
)
def test_bad_values(change: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        change()


def test_fastest_shares_end_together() -> None:
    """FedAlt says what its devices do, so the band can be shared for the last to end soonest, as
    `plan` has it.
    """
    algorithm = FedAlt(steps=5, personal_steps=1)
    settings: dict[str, Any] = {"private": "head", "model": models.mlp(2, 40, 2)}
    equal_shares, fastest = (
        on_air(algorithm, replace(TWO, policy=p), **settings) for p in (None, personal_fastest)
    )
    work = Work(120, 82, steps=5, personal_steps=1, probe_steps=0)
    expected = plan(Scenario(PAIR, TWO.cells, CHANNEL, work, 1.0), personal_fastest)
    assert fastest.formula_seconds == near(float(expected.round_seconds()))
    assert fastest.seconds < 0.95 * equal_shares.seconds


def test_seeds_side_by_side_have_one_radio() -> None:
    timed, plain = experiment(FedAvg(), TWO), experiment(FedAvg(), None, seed=1)
    for pair in (
        (timed, plain),
        (plain, timed),
        (timed, replace(timed, seed=1, radio=replace(TWO, deadline=3.0))),
    ):
        with pytest.raises(ConfigError, match="they differ in radio"):
            covey.runs(pair)


def test_another_radio_is_another_experiment(tmp_path: object) -> None:
    run = covey.run(experiment(FedAvg(), TWO, rounds=2))
    next(run)
    run.save(tmp_path / "saved")
    for other in (None, replace(TWO, deadline=3.0)):
        with pytest.raises(CheckpointError, match="its radio is"):
            covey.run(experiment(FedAvg(), other, rounds=2), resume=tmp_path / "saved")
    again = covey.run(experiment(FedAvg(), TWO, rounds=2), resume=tmp_path / "saved")
    assert again.history == run.history
