"""The meter adds up, can be saved, and its formulas give the papers' numbers (fact 7.13)."""

import json

import pytest
import torch

from covey.codecs import CODECS
from covey.errors import CheckpointError, ConfigError
from covey.kernel.replies import exact
from covey.links.link import Ledger, Link, Route, Sending
from covey.links.meter import Meter, Traffic, bitmap_bits, dense_bits, paper_bits
from covey.links.spec import LinkSpec

D = 79_510  # the papers' two-layer MNIST network


def filled() -> Meter:
    meter = Meter()
    meter.count("server-edge", "down", "train", Traffic(100, 1, 20, 10))
    meter.count("server-edge", "down", "train", Traffic(50, 1, 20, 5))
    meter.count("server-edge", "up", "train", Traffic(7, 1, 20, 1))
    meter.count("edge-device", "up", "train", Traffic(3, 1, 20, 0))
    meter.count("edge-device", "up", "score", Traffic(1000, 1))
    return meter


def test_totals_by_link_direction_and_lane() -> None:
    meter = filled()
    assert meter.totals["server-edge", "down", "train"] == Traffic(150, 2, 40, 15)
    assert meter.bytes() == 160
    assert meter.bytes(link="server-edge") == 157
    assert meter.bytes(direction="up") == 10
    assert meter.bytes(link="edge-device", direction="down") == 0
    assert meter.bytes(lane="score") == 1000
    assert meter.bytes(lane=None) == 1160
    assert meter.traffic(direction="up") == Traffic(10, 2, 40, 1)


def test_a_typing_error_is_not_counted_apart() -> None:
    with pytest.raises(ConfigError, match="'downn'"):
        Meter().count("server-edge", "downn", "train", Traffic(1))
    with pytest.raises(ConfigError, match="'test'"):
        Meter().count("server-edge", "down", "test", Traffic(1))


def test_it_survives_a_checkpoint() -> None:
    meter = filled()
    assert Meter.from_state(json.loads(json.dumps(meter.state()))) == meter
    assert Meter.from_state([]) == Meter()


@pytest.mark.parametrize(
    "row",
    [[], ["a", "up", "train", 1], ["a", "up", "train", 1, 2, 3, 0.5, 4], [1, 2, 3, 4, 5, 6, 7, 8]],
)
def test_a_corrupt_checkpoint_is_refused(row: list[str | int]) -> None:
    with pytest.raises(CheckpointError, match="expected three names and five whole numbers"):
        Meter.from_state([row])


def test_the_papers_dense_cost() -> None:
    assert dense_bits(2 * D) == 10_177_280


@pytest.mark.parametrize(("s", "bits"), [(1.0, 10_256_790), (0.5, 5_247_660), (0.2, 2_242_182)])
def test_the_papers_sparse_cost(s: float, bits: int) -> None:
    one_way = Traffic(values=D, nonzeros=round(s * D))
    printed = 2 * 64 * s * D + 2 * (1 - s) * D + D  # a bit for each zero, one bitmap for both ways
    assert printed == pytest.approx(bits, abs=1e-6)
    assert paper_bits(one_way, one_way) == bits
    assert bitmap_bits(one_way, one_way) == pytest.approx(2 * (64 * s * D + D), abs=1e-6)


def test_the_two_directions_may_differ() -> None:
    down, up = Traffic(values=10, nonzeros=10), Traffic(values=5, nonzeros=1)
    assert paper_bits(down, up) == 64 * 11 + 4 + 7.5
    assert bitmap_bits(down, up) == 64 * 11 + 15


def test_numbers_that_no_codec_changes_cost_bytes_and_are_no_values() -> None:
    """The papers' formulas count the values of models alone."""
    meter = Meter()
    ledger = Ledger([meter])
    link = Link(LinkSpec(CODECS["bitmap"]), ledger)
    once = torch.ones(2, dtype=torch.int64)
    route = Route(("server-device", "up", "train"), once, tree=torch.zeros_like(once))
    link.send(Sending(exact(torch.ones(2, 1))), route)
    ledger.settle()
    number = len(CODECS["dense"].encode(torch.ones(1)))
    assert meter.traffic() == Traffic(bytes=2 * number, messages=2, dense=2 * number)
    link.send(Sending(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])), route)
    ledger.settle()
    assert (meter.traffic().values, meter.traffic().nonzeros) == (6, 2)
