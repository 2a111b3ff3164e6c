"""Every picture shows its colours on a good part of the canvas; a blank picture does not pass."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

import covey
from covey.algorithms import PerMFL
from covey.report.pictures import compare, data_picture, plot
from tests.report.picture import assert_drawn, hues, ink, share
from tests.report.test_plot import CLASSES, OTHER, SCORES

pytestmark = pytest.mark.pictures


def blank(path: Path, *, axes: int = 0) -> Path:
    """A canvas with nothing on it but empty panels."""
    figure = Figure(figsize=(11, 4.2))
    for number in range(axes):
        figure.add_subplot(1, axes, number + 1)
    figure.savefig(path, dpi=120)
    return path


def three_tiers() -> covey.Run:
    """A run whose server, edges and devices have a model each."""
    data = covey.data.synthetic(devices=6, seed=1)
    model = covey.models.linear(60, 10)
    tree = covey.Tree.grouped([3, 3])
    algorithm = PerMFL(steps=2, edge_rounds=1)
    run = covey.run(covey.Experiment(algorithm, data, model, tree, rounds=3))
    list(run)
    return run


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_a_blank_picture_is_found_out(axes: int, tmp_path: Path) -> None:
    path = blank(tmp_path / "blank.png", axes=axes)
    with pytest.raises(AssertionError):
        assert_drawn(path, plot.COLOURS["server"])
    with pytest.raises(AssertionError):
        assert_drawn(path, plot.COLOURS["device"])
    assert hues(path) == 0


def test_a_canvas_of_one_colour_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "full.png"
    Figure(figsize=(11, 4.2), facecolor="C0").savefig(path, dpi=120)
    assert ink(path) == 1.0
    assert share(path, "C0") == 1.0
    with pytest.raises(AssertionError, match="not white"):
        assert_drawn(path, "C0")


def test_a_run_shows_every_tier_in_its_colour(tmp_path: Path) -> None:
    run = three_tiers()
    plot.draw([run.history], tmp_path / "plot.png", "PerMFL")
    assert_drawn(tmp_path / "plot.png", *(plot.COLOURS[t] for t in ("server", "edge", "device")))


def test_a_run_of_one_model_shows_no_colour_of_another_tier(tmp_path: Path) -> None:
    plot.draw([CLASSES], tmp_path / "plot.png")
    assert_drawn(tmp_path / "plot.png", plot.COLOURS["server"])
    other = share(tmp_path / "plot.png", plot.COLOURS["new device"])
    assert other == 0.0


def test_the_picture_of_devices(tmp_path: Path) -> None:
    plot.draw_devices([CLASSES], tmp_path / "devices.png", "Ditto", [SCORES])
    assert_drawn(tmp_path / "devices.png", plot.COLOURS["device"])


def test_the_picture_of_a_comparison(tmp_path: Path) -> None:
    compare.draw({"FedAvg": [CLASSES], "other": [OTHER]}, tmp_path / "compare.png")
    assert_drawn(tmp_path / "compare.png", plot.COLOURS["server"])


def test_the_picture_of_data(tmp_path: Path) -> None:
    shards = covey.data.synthetic(devices=6, seed=1)
    data_picture.draw(shards, covey.Tree.grouped([3, 3]), tmp_path / "data.png", "six devices")
    low, high = 0.01, 0.9
    assert low < ink(tmp_path / "data.png") < high
    assert hues(tmp_path / "data.png") >= 3
