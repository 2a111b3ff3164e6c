"""Pictures show what a run has, no panel is empty or flat, and a tier has one colour."""

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.image import imread
from matplotlib.lines import Line2D

import covey
from covey.algorithms import FedAvg, HierFAVG, Local
from covey.links.meter import Traffic
from covey.report.pictures.compare import lines
from covey.report.pictures.plot import (
    COLOURS,
    compare,
    devices_figure,
    draw,
    draw_devices,
    run_figure,
)
from covey.runs.run import Round
from covey.runs.scores.devices import DeviceScore
from covey.runs.scores.scoring import Model
from covey.wireless import RadioRecord
from tests.report.rounds import link, record

pytestmark = pytest.mark.pictures

TRAFFIC = link(Traffic(2_000_000, 1, 50, 20, 4_000_000), Traffic(1_000_000, 1, 50, 10, 4_000_000))
CLASSES = [record(k, validation=0.5, test=0.2 * k, traffic=TRAFFIC) for k in range(4)]
OTHER = [record(k, validation=0.5, test=0.1 * k, traffic=TRAFFIC) for k in range(4)]


def size(path: Path) -> tuple[int, int]:
    """Width and height in the head of a PNG."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def labels(axes: Axes) -> list[str]:
    """What the legend of a panel names, without the figures of models."""
    return [re.sub(r" [\d.]+$", "", str(label)) for label in axes.get_legend_handles_labels()[1]]


def curve(axes: Axes, label: str) -> Line2D:
    """The line of that name."""
    return next(line for line in axes.lines if str(line.get_label()).startswith(label))


def device(
    name: object, model: str, accuracy: float | None, loss: float = 1.0, part: str = "test"
) -> DeviceScore:
    """One line of a device's table."""
    figures = {"accuracy": accuracy, "loss": loss}
    return DeviceScore(str(name), None, model, part, 10, 1, 1, True, figures, figures)


SCORES = [
    device(k, model, share)
    for k in range(3)
    for model, share in (("global", 0.5), ("personal", 0.3 * k))
]


@pytest.mark.parametrize(
    ("histories", "panels"),
    [
        ([CLASSES], 2),
        ([CLASSES, OTHER], 2),
        ([CLASSES, OTHER[:2]], 2),
        ([[record(k, validation=None, test=None, loss=1.0 / (k + 1), traffic=TRAFFIC) for k in range(3)]], 2),
        ([[record(k, validation=0.5, test=0.5) for k in range(3)]], 1),
        ([[Round(0, {}, TRAFFIC, {}, 0.1), *CLASSES[1:]]], 2),
        ([[Round(0, {}, {}, {}, 0.1)]], 1),
        ([CLASSES[:1]], 2),
    ],
    ids=[
        "one seed", "two seeds", "seeds of different length", "regression", "no traffic", "a round not scored",
        "nothing", "one round",
    ],
)  # fmt: skip
def test_every_panel_of_a_picture_shows_something(
    histories: list[list[Round]], panels: int, tmp_path: Path
) -> None:
    path = tmp_path / "plot.png"
    draw(histories, path, title="a run")
    assert size(path) == (660 * panels, 504)
    picture = imread(path)
    assert picture.shape == (504, 660 * panels, 4)
    assert [item.name for item in tmp_path.iterdir()] == ["plot.png"]
    figure = run_figure(histories, "a run")
    assert figure.axes[0].get_title() == "a run"
    scored = [entry for entry in histories[0] if entry.models]
    if not scored:
        assert [text.get_text() for text in figure.axes[0].texts] == ["no round was scored"]
        return
    line = curve(figure.axes[0], "global")
    assert np.size(line.get_xdata()) == min(
        len([r for r in history if r.models]) for history in histories
    )
    assert line.get_marker() == "o"  # a line of one point would not be seen
    colour = np.array(to_rgba(line.get_color()))
    assert (np.abs(picture[:, :660] - colour).max(-1) < 0.02).sum() > 50  # and it is in the file
    for axes in figure.axes:
        assert all(np.size(drawn.get_xdata()) for drawn in axes.lines)
        assert labels(axes)


@pytest.mark.parametrize(
    "algorithm",
    [Local(steps=2), FedAvg(steps=2), HierFAVG(steps=2)],
    ids=["Local", "FedAvg", "HierFAVG"],
)
def test_a_dense_run_shows_devices_and_one_that_sends_nothing_no_links(
    algorithm: covey.Algorithm,
) -> None:
    data = covey.data.digits(devices=4)
    tree = covey.Tree.grouped([2, 2]) if isinstance(algorithm, HierFAVG) else covey.Tree.flat(4)
    run = covey.run(covey.Experiment(algorithm, data, covey.models.linear(64, 10), tree, rounds=2))
    list(run)
    models, devices = run_figure([run.history], "x", [run.devices()]).axes
    assert devices.get_title() == "how every device does"
    points = {
        str(dots.get_label()): dots
        for dots in devices.collections
        if isinstance(dots, PathCollection)
    }
    expected = {Local: {"personal"}, FedAvg: {"global"}, HierFAVG: {"global", "edge"}}[
        type(algorithm)
    ]
    assert set(points) == expected
    assert (
        set(labels(models)) == expected
    )  # Local's global model stays as it began, and is not shown
    lines = {(line.model, line.device): line for line in run.devices() if line.part == "test"}
    for name, dots in points.items():
        order = [tick.get_text() for tick in devices.get_xticklabels()]
        shown = np.asarray(dots.get_offsets())[:, 1]
        np.testing.assert_allclose(
            shown, [100 * (lines[name, device].accuracy or 0) for device in order]
        )


def test_a_sparse_run_shows_its_links() -> None:
    figure = run_figure([CLASSES], "x", [SCORES])
    assert figure.axes[1].get_title() == "what the links carried"
    assert labels(figure.axes[1]) == ["server-device", "server-device, if dense"]
    assert curve(figure.axes[1], "server-device").get_color() == COLOURS["device"]


def test_a_tier_has_one_colour_and_its_models_differ_by_style() -> None:
    def model(tier: str) -> Model:
        return replace(CLASSES[0].models["global"], tier=tier)

    tiers = {
        "global": "server", "region": "region", "edge": "edge", "edge_global": "edge", "personal": "device",
        "new_global": "server", "new_personal": "device",
    }  # fmt: skip
    history = [
        replace(entry, models={name: model(tier) for name, tier in tiers.items()})
        for entry in CLASSES
    ]
    axes = run_figure([history]).axes[0]
    assert labels(axes) == list(tiers)
    drawn = {
        name: (curve(axes, name).get_color(), curve(axes, name).get_linestyle()) for name in tiers
    }
    assert drawn["global"][0] == COLOURS["server"]
    assert drawn["edge"][0] == drawn["edge_global"][0] == COLOURS["edge"]
    assert drawn["personal"][0] == COLOURS["device"]
    assert drawn["new_global"][0] == drawn["new_personal"][0] == COLOURS["new device"]
    assert drawn["region"][0] not in COLOURS.values()
    assert len(set(drawn.values())) == len(drawn)


@pytest.mark.parametrize("count", [10, 1000])
def test_who_gains_and_who_loses(count: int, tmp_path: Path) -> None:
    own = np.linspace(0.2, 0.9, count)
    scores = [device(k, "global", 0.5) for k in range(count)]
    scores += [device(k, "personal", share) for k, share in enumerate(own.tolist())]
    figure = devices_figure([CLASSES], "Ditto", [scores])
    assert figure is not None
    left, right = figure.axes
    assert left.get_title() == "Ditto: how every device does"
    better, worse = int((own > 0.5).sum()), int((own < 0.5).sum())
    assert labels(right) == [f"{better} gain", f"{worse} lose"]
    gains = 100 * (own - 0.5)
    if count == 10:
        assert sorted(bar.get_height() for bar in right.patches) == pytest.approx(  # type: ignore[attr-defined]
            sorted(gains.tolist())
        )
    areas = [area.get_paths()[0].get_extents() for area in right.collections]
    if count == 1000:
        assert [area.y1 for area in areas] == pytest.approx([gains.max(), 0])
        assert [area.y0 for area in areas] == pytest.approx([0, gains.min()])
        assert [area.width for area in areas] == [better, worse]
    assert ("9" in [tick.get_text() for tick in left.get_xticklabels()]) == (
        count == 10
    )  # names, where there is room
    draw_devices([CLASSES], tmp_path / "devices.png", "Ditto", [scores])
    assert size(tmp_path / "devices.png") == (1320, 504)


@pytest.mark.parametrize("count", [90, 3000])
def test_one_device_that_loses_is_seen(count: int, tmp_path: Path) -> None:
    scores = [device(k, "global", 0.5) for k in range(count)]
    scores += [device(k, "personal", 0.25 if k == 5 else 0.5) for k in range(count)]
    draw_devices([CLASSES], tmp_path / "devices.png", "Ditto", [scores])
    picture = imread(tmp_path / "devices.png")[80:, 660:1180]  # without the legend
    red = np.abs(picture - np.array(to_rgba("tab:red"))).max(-1) < 0.02
    assert red.any(1).sum() > 100  # a bar, as high as the panel


def test_a_model_stands_with_its_figure_in_the_chosen_round() -> None:
    shares = {0.9: 0.3, 0.8: 0.7}  # the first round is the best on validation data
    history = [
        record(k, validation=validation, test=test, traffic=TRAFFIC)
        for k, (validation, test) in enumerate(shares.items())
    ]
    axes = run_figure([history]).axes[0]
    assert axes.get_legend_handles_labels()[1] == ["global 30.0"]
    ring = next(line for line in axes.lines if line.get_markerfacecolor() == "white")
    assert (*ring.get_xdata(), *ring.get_ydata()) == (1, pytest.approx(30))
    axes = run_figure([history], protocol="paper").axes[0]
    assert axes.get_legend_handles_labels()[1] == ["global 70.0"]
    (line,) = lines({"FedAvg": [history]})
    assert (line.reported, line.ring, line.end) == pytest.approx((30, 0, 70))
    (line,) = lines({"FedAvg": [history, history]})
    assert line.reported == pytest.approx(30)
    assert line.ring is None


def test_devices_without_classes_gain_by_a_smaller_loss_and_seeds_are_pooled() -> None:
    seed = [device("a", "global", None, 4.0), device("b", "global", None, 4.0)]
    seed += [
        device("a", "personal", None, 1.0),
        device("b", "personal", None, 5.0),
        device("a", "personal", None, 9.0, "train"),
    ]
    pairs = compare([seed, seed])
    assert pairs is not None
    assert pairs.metric.name == "loss"
    assert pairs.names == ["b", "b", "a", "a"]  # worst first
    assert pairs.gain.tolist() == [-1, -1, 3, 3]
    errors = [
        replace(line, figures=line.figures | {"rmse": 2 * (line.loss or 0.0)}) for line in seed
    ]
    pairs = compare([errors])
    assert pairs is not None
    assert (pairs.metric.name, pairs.names, pairs.gain.tolist()) == ("rmse", ["b", "a"], [-2, 6])
    assert compare([[]]) is None
    assert devices_figure([CLASSES], "x", [[]]) is None


def test_an_old_picture_is_replaced_and_differs(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    draw([CLASSES], path)
    before = path.read_bytes()
    draw([OTHER], path)
    assert path.read_bytes() != before


def test_with_a_radio_models_are_drawn_against_seconds_and_joules(tmp_path: Path) -> None:
    aired = [
        replace(one, radio=RadioRecord(0.5 * (at + 1), 2.0, 1.0, 100))
        for at, one in enumerate(CLASSES)
    ]
    first, *others = aired
    figure = run_figure([[replace(first, models={}), *others]])
    drawn = [np.asarray(curve(axes, "global").get_xdata()).tolist() for axes in figure.axes[:2]]
    assert drawn == [[1.5, 3.0, 5.0], [4.0, 6.0, 8.0]]
    draw([aired, aired[:2]], tmp_path / "plot.png")
    assert size(tmp_path / "plot.png") == (1980, 504)
