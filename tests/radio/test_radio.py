"""The table [radio] of an experiment: its example, what it makes, what it prints, and mistakes that
are named.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.algorithms import FedAvg
from covey.errors import ConfigError, DataError
from covey.files.config import load
from covey.radio.clock import RadioClock
from covey.runtimes.simulator import Simulator
from tests.cli.command import ROOT, exits
from tests.cli.command import covey as command
from tests.radio.law_cases import AIR
from tests.test_no_examples import experiment as receiving

EXAMPLE = ROOT / "examples" / "radio.toml"


def problem(*changes: str) -> str:
    with pytest.raises(ConfigError) as caught:  # noqa: PT012
        config = load(EXAMPLE, changes)
        covey.run(config.experiment(config.seed))
    return str(caught.value)


def test_a_run_has_seconds_and_joules_everywhere(tmp_path: Path) -> None:
    ended = exits(0, "run", EXAMPLE, "rounds=3", "seeds=2", "--out", tmp_path / "run")
    assert "over the air, all rounds of one seed:" in ended.out
    assert "devices excluded" in ended.out
    assert "optimality gap of every plan" in ended.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["radio"]
    for seed in range(2):
        folder = tmp_path / "run" / f"seed-{seed}"
        records = [
            json.loads(line)["radio"]
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        assert all(record["seconds"] >= record["formula_seconds"] > 0 for record in records)
        assert all(record["upload_bytes"] > record["formula_bytes"] > 0 for record in records)
        saved = covey.history(folder / "checkpoint.safetensors")
        joules = [record.radio.joules for record in saved if record.radio]
        assert joules == [record["joules"] for record in records]
        assert sum(record["seconds"] for record in records) == pytest.approx(
            summary["seconds"]["mean"], rel=0.05
        )
    exits(0, "run", "--resume", tmp_path / "run", "rounds=4")


def test_two_tiers_keep_their_cells() -> None:
    """FedAvg takes the devices from under their edges, and they stay in their cells."""
    config = load(
        EXAMPLE, ["algorithm.name=fedavg", "private=[]", "radio.policy=personal_only", "rounds=1"]
    )
    run = covey.run(config.experiment(0))
    assert run.runtime.tree.depth == 2
    assert isinstance(run.runtime, Simulator)
    assert isinstance(run.runtime.environment, RadioClock)
    assert run.runtime.environment.devices.cell.tolist() == [0] * 6 + [1] * 6
    assert next(run).radio is not None


def test_devices_from_a_table(tmp_path: Path) -> None:
    lines = ["distance,cpu", *(f"{10 * (at + 1)} m,{at + 1} GHz" for at in range(12))]
    (tmp_path / "devices.csv").write_text("\n".join(lines))
    (tmp_path / "here.toml").write_text(EXAMPLE.read_text())
    config = load(EXAMPLE, [f"radio.devices.table={tmp_path / 'devices.csv'}"])
    radio: Any = config.experiment(0).radio
    assert radio is not None
    assert radio.devices.distance.tolist() == [10.0 * (at + 1) for at in range(12)]
    assert radio.devices.cpu[2] == 3e9
    (tmp_path / "here.toml").write_text(
        EXAMPLE.read_text().replace("[radio.devices]", '[radio.devices]\ntable = "devices.csv"')
    )
    assert load(tmp_path / "here.toml").resolved()["radio"]["devices"]["table"] == str(
        tmp_path / "devices.csv"
    )


def test_a_table_named_in_a_change_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolved file lies in the run's folder, and the run goes on from there."""
    monkeypatch.chdir(tmp_path)
    devices = load(EXAMPLE, ["radio.devices.table=devices.csv"]).resolved()["radio"]["devices"]
    assert devices["table"] == str(tmp_path / "devices.csv")


def test_what_was_resolved_is_the_same_experiment(tmp_path: Path) -> None:
    config = load(EXAMPLE)
    (tmp_path / "again.toml").write_text(config.text())
    again = load(tmp_path / "again.toml")
    assert again.resolved() == config.resolved() == tomllib.loads(config.text())
    assert again.experiment(0).fingerprint() == config.experiment(0).fingerprint()
    assert "radio" not in load(None).resolved()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("radio.polcy=fair", ["unknown key radio.polcy", "did you mean radio.policy?"]),
        ("radio.policy=best", ['radio.policy = "best"', '"optimal"']),
        ("radio.cells.count=3", ["unknown key radio.cells.count", "bandwidth"]),
        ("radio.devices.count=3", ["unknown key radio.devices.count"]),
        ("radio.cells.bandwidth=20", ["radio.cells.bandwidth"]),
        ("radio.cells.bandwidth=20 m", ["radio.cells.bandwidth", "20 m"]),
        ("radio.cells.bandwidth=['1 MHz', '1 MHz', '1 MHz']", ["3 values for 2 cells"]),
        ("radio.deadline=soon", ["radio.deadline", "soon"]),
        ("radio.deadline=0 ms", ["deadline = 0.0 must be above 0"]),
        ("radio.late=drops", ['radio.late = "drops"', '"wait" or "drop"']),
        ("radio.channel.noise=3 dB", ["radio.channel.noise"]),
        ("radio.channel.fadin=none", ["unknown key radio.channel.fadin"]),
        ("radio.devices.cpu=[1, 2]", ["radio.devices.cpu"]),
        (
            "radio.devices.table=nowhere.csv",
            ["radio.devices.table", "nowhere.csv", "there is no such file"],
        ),
        ("algorithm.ratio=0.5", ["policy optimal prunes", "takes no ratio from a plan"]),
        ("radio=none", ["give a radio, or a number"]),
        ("idle=train", ["use 'skip'"]),
    ],
)
def test_mistakes(change: str, words: list[str]) -> None:
    said = problem(change)
    for word in words:
        assert word in said, said


def test_none_is_the_default() -> None:
    """As everywhere in a file, and as the messages about these fields say."""
    keys = ("policy", "deadline", "devices.table", "channel.edge_height")
    nothing = [f"radio.{key}=none" for key in keys]
    radio: Any = load(EXAMPLE, [*nothing, "algorithm.ratio=0.5"]).experiment(0).radio
    assert radio is not None
    assert (radio.policy, radio.deadline) == (None, None)


def test_a_plan_needs_examples_of_every_device() -> None:
    with pytest.raises(DataError, match="a radio plan counts on every device's work"):
        receiving(FedAvg(), radio=AIR)


def test_a_newcomer_needs_no_plan(tmp_path: Path) -> None:
    """Nobody shares a band with a device that adapts on its own, so it prunes nothing."""
    exits(0, "run", EXAMPLE, "rounds=2", "--out", tmp_path / "run")
    digits = covey.data.digits(devices=12, labels=3)
    held = digits.train.held(0)
    lines = [
        ",".join(map(str, [*digits.x[at].tolist(), int(digits.y[at])])) for at in held.tolist()
    ]
    head = ",".join([*(f"x{at}" for at in range(64)), "label"])
    (tmp_path / "new.csv").write_text("\n".join([head, *lines]))
    ended = exits(0, "personalize", tmp_path / "run", "--data", tmp_path / "new.csv")
    assert "personal" in ended.out


def test_what_a_run_will_plan_can_be_planned_before(tmp_path: Path) -> None:
    """The same channel, the same ratios but for whole weights; both counts of seconds are those of
    the run.
    """
    words = ("rounds=3", "seed=4", "radio.policy=fair")
    ended = exits(0, "plan", EXAMPLE, *words, "--out", tmp_path / "plan.png", "--json")
    planned = json.loads(ended.out)["summary"]
    records = list(covey.run(load(EXAMPLE, words).experiment(4)))
    kept = [record.notes["device"]["kept"] for record in records]
    assert planned["policy"] == "fair"
    assert planned["asked"] == sum(note.count for note in kept) / 3
    assert 1 - planned["mean_ratio"] == pytest.approx(
        sum(note.mean * note.count for note in kept) / sum(n.count for n in kept), abs=1e-3
    )
    aired = [record.radio for record in records if record.radio is not None]
    assert planned["round_ms"] / 1e3 == pytest.approx(
        sum(one.formula_seconds or 0.0 for one in aired) / 3, rel=1e-9
    )
    assert planned["late"] == 0
    sweep = command(
        "plan", EXAMPLE, "--sweep", "deadline=15 ms,25 ms", "--out", tmp_path / "plan.png", "--json"
    )
    assert [point["deadline"] for point in json.loads(sweep.out)["sweep"]] == ["15 ms", "25 ms"]


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("permfl.toml", [], "without a table [radio]"),
        (
            "radio.toml",
            ["algorithm.name=fedavg", "private=[]", "radio.policy=none"],
            "FedAvg does not state the work of its devices",
        ),
        (
            "radio.toml",
            ["algorithm.name=fedalt", "radio.policy=none", "radio.deadline=none"],
            "a plan needs a deadline",
        ),
        ("radio.toml", ["radio.deadlin=1 s"], "did you mean radio.deadline?"),
    ],
)
def test_experiments_that_cannot_be_planned(
    file: str, changes: list[str], words: str, tmp_path: Path
) -> None:
    ended = exits(2, "plan", EXAMPLE.with_name(file), *changes, "--out", tmp_path / "plan.png")
    assert words in ended.err
