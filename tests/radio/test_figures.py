"""The figures of a run on the virtual clock: its summary, its picture, the facts of its report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.report.pictures.plot import draw, run_figure
from covey.report.summary import OverSeeds, summarise
from covey.wireless import RadioRecord
from tests.cli.command import ROOT
from tests.report.folders import run_into
from tests.report.rounds import record
from tests.report.test_plot import CLASSES, curve, size


def test_the_virtual_clock_of_two_seeds() -> None:
    first = [
        replace(
            record(k, validation=0.5, test=0.5),
            environment=RadioRecord(1.0, 4.0, 3.0, 100, 0.9, 80.0, [1], {"channel": [1]}),
        )
        for k in range(2)
    ]
    second = [
        replace(one, environment=RadioRecord(2.0, 6.0, 5.0, 300, 1.9, 280.0, [], {}, [1, 2]))
        for one in first
    ]
    radio = summarise([first, second]).radio
    assert radio is not None
    assert (
        radio.seconds.mean, radio.joules.mean, radio.upload_joules.mean, radio.upload_bytes.mean,
    ) == (3.0, 10.0, 8.0, 400.0)  # fmt: skip
    assert (radio.left_out.mean, radio.late.mean) == (0.5, 1.0)
    assert radio.formula_seconds is not None
    assert radio.formula_seconds.mean == pytest.approx(2.8)
    plain = [replace(one, environment=RadioRecord(1.0, 4.0, 3.0, 100)) for one in first]
    figures: Any = summarise([first]).radio
    assert summarise([plain]).radio == replace(
        figures, formula_seconds=None, formula_bytes=None, left_out=OverSeeds(0, None)
    )
    assert summarise([[record(0, validation=0.5, test=0.5)]]).radio is None


def test_with_a_radio_models_are_drawn_against_seconds_and_joules(tmp_path: Path) -> None:
    aired = [
        replace(one, environment=RadioRecord(0.5 * (at + 1), 2.0, 1.0, 100))
        for at, one in enumerate(CLASSES)
    ]
    first, *others = aired
    figure = run_figure([[replace(first, models={}), *others]])
    drawn = [np.asarray(curve(axes, "global").get_xdata()).tolist() for axes in figure.axes[:2]]
    assert drawn == [[1.5, 3.0, 5.0], [4.0, 6.0, 8.0]]
    draw([aired, aired[:2]], tmp_path / "plot.png")
    assert size(tmp_path / "plot.png") == (1980, 504)


def test_a_radio(tmp_path: Path) -> None:
    """Devices' joules add up to the run's; bands are shared; a device that is excluded has none."""
    page = pytest.importorskip("covey.report.facts")
    words = ("rounds=3", "score_every=1", "radio.deadline='3 ms'")
    folder = run_into(tmp_path / "run", *words, file=ROOT / "examples" / "radio.toml")
    seed = page.facts([folder])["runs"][0]["seeds"][0]
    records = [record.radio for record in covey.load(folder).history]
    radio = seed["radio"]
    assert radio["seconds"] == [record.seconds for record in records]
    assert radio["left_out"] == [len(record.left_out) for record in records]
    devices = radio["devices"]
    assert sum(devices["joules"]) == pytest.approx(sum(radio["joules"]), rel=1e-4)
    assert sum(devices["left_out"]) == sum(radio["left_out"]) > 0
    for name in ("ratio", "rate", "bandwidth", "seconds"):
        missing = [value is None for value in devices[name]]
        assert missing == [count == 3 for count in devices["left_out"]]
    assert all(0 <= ratio < 1 for ratio in devices["ratio"] if ratio is not None)
    assert max(value for value in devices["bandwidth"] if value is not None) <= 4e6
