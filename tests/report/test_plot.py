"""The picture is a whole PNG, whatever a run has and lacks."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

import covey
from covey.algorithms import FedAvg, Local
from covey.meter import Traffic
from covey.report.plot import _spent, draw
from covey.run import Round
from covey.wireless import Aired
from tests.report.rounds import link, record

TRAFFIC = link(Traffic(2_000_000, 1, 50, 20, 4_000_000), Traffic(1_000_000, 1, 50, 10, 4_000_000))
CLASSES = [record(k, validation=0.5, test=0.2 * k, traffic=TRAFFIC) for k in range(4)]
OTHER = [record(k, validation=0.5, test=0.1 * k, traffic=TRAFFIC) for k in range(4)]


def size(path: Path) -> tuple[int, int]:
    """Width and height in the head of a PNG."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.mark.parametrize(
    "histories",
    [
        [CLASSES],
        [CLASSES, OTHER],
        [CLASSES, OTHER[:2]],
        [[record(k, validation=None, test=None, loss=1.0 / (k + 1), traffic=TRAFFIC) for k in range(3)]],
        [[record(k, validation=0.5, test=0.5) for k in range(3)]],
        [[Round(0, {}, TRAFFIC, {}, 0.1), *CLASSES[1:]]],
        [[Round(0, {}, {}, {}, 0.1)]],
    ],
    ids=["one seed", "two seeds", "seeds of different length", "regression", "no traffic", "a round not scored", "nothing"],
)
def test_a_picture_opens(histories: list[list[Round]], tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    draw(histories, path, title="a run")
    assert size(path) == (1320, 504)
    assert imread(path).shape == (504, 1320, 4)
    assert [item.name for item in tmp_path.iterdir()] == ["plot.png"]


@pytest.mark.parametrize("algorithm", [Local(steps=2), FedAvg(steps=2)], ids=["Local", "FedAvg"])
def test_a_picture_of_a_real_run(algorithm: covey.Algorithm, tmp_path: Path) -> None:
    data = covey.data.digits(devices=4)
    experiment = covey.Experiment(algorithm, data, covey.models.linear(64, 10), covey.Tree.flat(4), rounds=2)
    draw([list(covey.run(experiment))], tmp_path / "plot.png")
    assert size(tmp_path / "plot.png") == (1320, 504)


def test_an_old_picture_is_replaced_and_differs(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    draw([CLASSES], path)
    before = path.read_bytes()
    draw([OTHER], path)
    assert path.read_bytes() != before


def test_with_a_radio_models_are_drawn_against_seconds_and_joules(tmp_path: Path) -> None:
    aired = [replace(one, radio=Aired(0.5 * (at + 1), 2.0, 1.0, 100)) for at, one in enumerate(CLASSES)]
    assert _spent(aired, "round") == [1, 2, 3, 4]
    assert _spent(aired, "seconds") == [0.5, 1.5, 3.0, 5.0]
    assert _spent([replace(aired[0], models={}), *aired[1:]], "joules") == [4, 6, 8]
    draw([aired, aired[:2]], tmp_path / "plot.png")
    assert size(tmp_path / "plot.png") == (1980, 504)
