"""`covey plan`: the example, its table, picture and JSON, a sweep, tables of devices, and mistakes
that are named.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from covey.radio.scenario import load
from tests.cli.command import ROOT, covey, exits

EXAMPLE = ROOT / "examples" / "plan" / "scenario.toml"


def facts(tmp_path: Path, *words: object) -> dict[str, Any]:
    ended = exits(0, "plan", EXAMPLE, *words, "--out", tmp_path / "plan.png", "--json")
    return json.loads(ended.out)


def test_the_example_is_planned(tmp_path: Path) -> None:
    ended = exits(0, "plan", EXAMPLE, "--out", tmp_path / "plan.png")
    for words in (
        "device 9",
        "certificate: stationarity",
        "personal_fastest",
        f"picture: {tmp_path / 'plan.png'}",
    ):
        assert words in ended.out
    assert (tmp_path / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_json_has_every_device_and_policy(tmp_path: Path) -> None:
    found = facts(tmp_path, "rounds=3")
    assert len(found["devices"]) == 10
    assert sum(device["share"] for device in found["devices"]) <= 1 + 1e-9
    assert {one["policy"] for one in found["policies"]} == {
        "optimal", "equal", "fair", "personal_only", "personal_fastest", "pruning_only",
    }  # fmt: skip
    assert max(found["summary"]["certificate"].values()) < 1e-9
    assert found["summary"]["round_ms_encoded"] > found["summary"]["round_ms"]


def test_a_sweep_of_the_deadline(tmp_path: Path) -> None:
    points = facts(tmp_path, "--sweep", "deadline=15 ms,20 ms,30 ms")["sweep"]
    assert [point["deadline"] for point in points] == ["15 ms", "20 ms", "30 ms"]
    ratios = [point["sum_ratio"] for point in points]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize("sweep", ["bandwidth=10 MHz,40 MHz", "devices=5,20"])
def test_other_sweeps(sweep: str, tmp_path: Path) -> None:
    assert len(facts(tmp_path, "--sweep", sweep)["sweep"]) == 2


def test_units_are_interchangeable(tmp_path: Path) -> None:
    plain = facts(tmp_path)["devices"]
    words = ("deadline=0.025 s", "cells.bandwidth=20000 kHz", "channel.noise=-140 dBW")
    assert facts(tmp_path, *words)["devices"] == plain


def test_a_table_of_devices(tmp_path: Path) -> None:
    (tmp_path / "devices.csv").write_text(
        "name,cell,distance,cpu,shared\npump,0,50 m,2 GHz,10000\nvalve,1,0.1 km,1000 MHz,30000\n"
    )
    (tmp_path / "s.toml").write_text(
        '[cells]\ncount = 2\n[devices]\ntable = "devices.csv"\ncycles = { choice = [10, 20] }\npower = ["20 dBm", "100 mW"]\n'
    )
    s = load(tmp_path / "s.toml").scenario
    assert s.devices.names == ("pump", "valve")
    assert s.devices.distance.tolist() == [50, 100]
    assert s.devices.cpu.tolist() == [2e9, 1e9]
    assert s.devices.power.tolist() == pytest.approx([0.1, 0.1])
    assert s.work.shared.tolist() == [10_000, 30_000]
    assert set(s.devices.cycles.tolist()) <= {10.0, 20.0}


def test_a_spread_in_dbm_is_even_in_dbm(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        '[devices]\ncount = 4000\npower = { uniform = ["0 dBm", "20 dBm"] }\n'
    )
    assert load(tmp_path / "s.toml").scenario.devices.power.median().item() == pytest.approx(
        0.01, rel=0.1
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["deadline=25"], "deadline = 25 must be"),
        (["deadline=25 MHz"], "deadline = '25 MHz' is a frequency; it must be a time"),
        (["cells.bandwidth=20"], "cells.bandwidth"),
        (["channel.noise=-110"], "channel.noise"),
        (["channel.noise=3 dB"], "is a decibels; it must be a power or a power per hertz"),
        (["devices.power=28"], "devices.power = 28 must be a number with a unit"),
        (["devices.speed=3"], "unknown key devices.speed"),
        (["policy=best"], "policy"),
        (["devices.cycles={uniform = [40, 15]}"], "the smaller first"),
        (['devices.distance={uniform = ["1 m", "1 km"]}'], "write all values in one"),
        (["devices.count=[5, 5]"], "a number for each of 1 cells"),
        (['devices.table="none.csv"'], "there is no such file"),
        (["--sweep", "power=1,2"], "--sweep 'power=1,2' must be one of deadline, bandwidth"),
    ],
)
def test_mistakes_are_named(words: list[str], error: str, tmp_path: Path) -> None:
    assert error in exits(2, "plan", EXAMPLE, *words, "--out", tmp_path / "plan.png").err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing = covey("plan", tmp_path / "none.toml")
    assert "examples/plan/scenario.toml is one to start from" in missing.err
