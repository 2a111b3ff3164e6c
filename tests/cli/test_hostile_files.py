"""TOML with numbers that are huge or not finite, or half of it, ends in a message and exit code 2."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from covey.errors import ConfigError, CoveyError
from covey.fields import options
from covey.files import config
from covey.files.validate import check_plain
from covey.radio import scenario
from covey.tree import Tree
from tests.cli.command import exits

FILES = {
    "a number of 5,000 digits": "rounds = " + "9" * 5000,
    "a hexadecimal number of 5,000 digits": "rounds = 0x" + "f" * 5000,
    "a number of 24 digits": "rounds = " + "9" * 24,
    "infinity": "seed = inf",
    "not a number, deep inside": "[devices]\nweight = [1.0, nan]",
    "a date": "seed = 2020-01-01",
    "no text": "\0",
    "half a file": "[algorithm",
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("load", [config.load, scenario.load])
def test_hostile_toml_is_refused(what: str, load: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(FILES[what])
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("command", ["run", "advise", "plan"])
def test_it_ends_with_exit_code_2(command: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(FILES["infinity"])
    ended = exits(2, command, path)
    assert "seed = inf" in ended.err
    assert "Traceback" not in ended.err


CHANGES = [
    "rounds=" + "9" * 5000,
    "rounds=" + "9" * 24,
    "algorithm.lam1=inf",
    "data.split=[nan, 0.5, 0.5]",
    "holdout_devices=1" + "0" * 23,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[:20])
def test_hostile_changes_are_refused(change: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(None, [change])
    assert len(str(caught.value)) < 1000


def test_what_is_plain_passes() -> None:
    check_plain(
        {"a": [1, -1.5, "inf", True, {"b": [[[1e308, 0.0]]]}], "c": 2**63 - 1, "d": -(2**63)}
    )


HOSTILE = [
    *(
        "0",
        "-1",
        "1" + "0" * 23,
        "1e308",
        "-1e308",
        "1e-308",
        "inf",
        "-inf",
        "nan",
        '""',
        "[]",
        "true",
        "{}",
    ),
    *(f'"{"x" * 10_000}"', "9223372036854775807", "[1e308]", "2020-01-01"),
]
SMALL = (
    "algorithm.name=fedavg", "tree.edges=none", "data.name=digits", "data.devices=3", "rounds=1",
    "model.name=linear",
)  # fmt: skip


def experiment(*changes: str) -> None:
    made = config.load(None, [*SMALL, *changes])
    made.experiment(made.seed)


def walked(places: list[str], values: list[str], make: Callable[[str], Any]) -> None:
    """A CoveyError or success; a place that takes nothing of all this, or everything, would be
    suspect.
    """
    refused = 0
    for place in places:
        for value in values:
            change = f"{place}={value}"
            try:
                make(change)
            except CoveyError:
                refused += 1
            except Exception as error:
                raise AssertionError(change[:100]) from error
    assert len(places) < refused < len(places) * len(values)


def test_every_key_of_an_experiment_takes_or_refuses_any_value() -> None:
    places = [
        key for key in options(config.Config) if key not in ("device", "algorithm", "data", "model")
    ]
    places += [f"tree.{key}" for key in options(config.TreeConfig)]
    walked(places, HOSTILE, experiment)


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_every_key_of_a_model_takes_or_refuses_any_value(name: str) -> None:
    places = [f"model.{key}" for key in config.defaults("models", name) if key != "name"]
    for place in places:
        for value in HOSTILE:
            with suppress(CoveyError):
                experiment(f"model.name={name}", f"{place}={value}")


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
        scenario.radio(scenario.RadioSettings.read(made.radio), Tree.flat(3))

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
    ended = exits(2, "plan", tmp_path / "plan.toml", change, "--json")
    assert change.partition("=")[0] in ended.err


TABLES = {
    "a digit that is no number": "distance,cell\n50 m,²\n",
    "a cell beyond all cells": "distance,cell\n50 m," + "9" * 30 + "\n",
    "a row too long": "distance,cell\n50 m,0\n50 m,0,7\n",
    "a row too short": "distance,cell\n50 m\n",
    "a column twice": "distance,distance\n50 m,60 m\n",
    "not a number": "weight\nnan\n",
    "infinity": "weight\ninf\n",
    "no text": "\udcff",
    "nothing": "",
    "a cell of a million characters": "weight\n" + "1" * 1_000_000 + "\n",
}


@pytest.mark.parametrize("what", TABLES)
def test_tables_of_devices_that_are_none(what: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(TABLES[what].encode("utf-8", "surrogateescape"))
    (tmp_path / "plan.toml").write_text('[devices]\ntable = "table.csv"\n')
    with pytest.raises(ConfigError, match=r"table|weight"):
        scenario.load(tmp_path / "plan.toml")
