"""Scenarios and tables [radio] with numbers that are huge or not finite, or half of them, end in a
message and exit code 2.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest

from covey.errors import ConfigError
from covey.fields import options
from covey.files import config
from covey.radio import scenario
from covey.tree import Tree
from tests.cli.command import covey, exits
from tests.cli.test_hostile_files import FILES, HOSTILE, SMALL, walked

SPREADS = [
    '{disc=["1e300 m","1e300 m"]}', '{uniform=["-1e9 dBm","1e9 dBm"]}', '{normal=["0 dBm","1e9 dBm"]}',
    "{uniform=[-1e308,1e308]}", "{log_uniform=[1e-308,1e308]}", "{normal=[0,1e308]}", "{choice=[]}", "{none=[1]}",
    '"1e5 dBm"', '"1e400 m"', '"1e308 GHz"', '"nan"', '"inf"', '"-1e5 dBm"', "[[]]",
]  # fmt: skip


def test_every_key_of_a_radio_takes_or_refuses_any_value() -> None:
    kinds: dict[str, Any] = {
        "radio.": scenario.RadioSettings, "radio.cells.": scenario.BandSettings,
        "radio.devices.": scenario.ColumnSettings, "radio.channel.": scenario.ChannelSettings,
    }  # fmt: skip
    places = [f"{place}{key}" for place, kind in kinds.items() for key in options(kind)]

    def radio(change: str) -> None:
        made = config.load(None, [*SMALL, 'radio.deadline="25 ms"', change])
        assert made.radio is not None
        scenario.RadioSettings.read(made.radio).spec(Tree.flat(3))

    walked(places, [*HOSTILE, *SPREADS], radio)


def test_every_key_of_a_scenario_takes_or_refuses_any_value(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("")
    kinds: dict[str, Any] = {
        "": scenario.ScenarioSettings, "cells.": scenario.CellSettings, "devices.": scenario.DeviceSettings,
        "channel.": scenario.ChannelSettings, "model.": scenario.WorkSettings,
    }  # fmt: skip
    places = [f"{place}{key}" for place, kind in kinds.items() for key in options(kind)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        walked(places, [*HOSTILE, *SPREADS], lambda change: scenario.load(path, [change]))


ABSURD = [
    'cells.bandwidth="1e300 Hz"', 'cells.wire_rate="1e-300 bit/s"', 'devices.distance="1e300 m"',
    'devices.cpu="1e-300 Hz"', "devices.cycles=1e308", 'devices.power="-3000 dBm"', "devices.capacitance=1e308",
    'channel.reference_loss="3000 dB"', "channel.exponent=1e100", 'channel.near="1e-300 m"', "model.shared=1e100",
    'name="a/b"', "model.bits=100000", "rounds=9223372036854775807",
]  # fmt: skip


@pytest.mark.parametrize("change", ABSURD)
def test_quantities_of_which_no_plan_follows_are_refused(change: str, tmp_path: Path) -> None:
    """They gave plans of NaN, or a traceback."""
    (tmp_path / "plan.toml").write_text("")
    ended = covey("plan", tmp_path / "plan.toml", change, "--json")
    assert ended.code == 2, ended.out[:200]
    assert change.partition("=")[0] in ended.err


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_scenario_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(FILES[what])
    with pytest.raises(ConfigError) as caught:
        scenario.load(path)
    assert len(str(caught.value)) < 1000


def test_it_ends_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(FILES["infinity"])
    ended = exits(2, "plan", path)
    assert "seed = inf" in ended.err
    assert "Traceback" not in ended.err


TABLES = {
    "a digit that is no number": "distance,cell\n50 m,²\n",
    "a cell beyond all cells": "distance,cell\n50 m," + "9" * 30 + "\n",
    "a row too long": "distance,cell\n50 m,0\n50 m,0,7\n",
    "a row too short": "distance,cell\n50 m\n", "a column twice": "distance,distance\n50 m,60 m\n",
    "not a number": "weight\nnan\n", "infinity": "weight\ninf\n", "no text": "\udcff",
    "nothing": "", "a cell of a million characters": "weight\n" + "1" * 1_000_000 + "\n",
}  # fmt: skip


@pytest.mark.parametrize("what", TABLES)
def test_tables_of_devices_that_are_none(what: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(TABLES[what].encode("utf-8", "surrogateescape"))
    (tmp_path / "plan.toml").write_text('[devices]\ntable = "table.csv"\n')
    with pytest.raises(ConfigError, match=r"table|weight"):
        scenario.load(tmp_path / "plan.toml")
