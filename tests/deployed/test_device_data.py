"""Data that stay with their devices: a census, own files, and a tree that trains on them."""

import json
from pathlib import Path

import pytest
import torch

import covey
from covey.cli.config import Config, load
from covey.cli.device_data import own_data
from covey.data import Part, Shards, census
from covey.data.shards import SPLITS
from covey.deployed.plan import Settings
from covey.errors import DataError, ProgramError
from tests.cli.command import covey as command
from tests.deployed.members import ADDRESS, member, planned, serving
from tests.deployed.test_process import facts

pytest.importorskip("grpc")
TREE = """
name = "pumps"
rounds = 2
score_every = 1

[algorithm]
name = "permfl"
edge_rounds = 2
steps = 2

[data]
name = "census"
path = "facts"
features = ["heat", "speed"]
classes = ["hot", "ok"]

[model]
name = "linear"

[tree]
edges = [2, 1]

[deploy]
address = {server = "server.example", edge = "{seat}.example"}

[deploy.data]
device = "FOLDER/{seat}.csv"
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A tree of three devices with files of 20, 30 and 40 rows, and their census."""
    file = tmp_path / "tree.toml"
    file.write_text(TREE.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    (tmp_path / "facts").mkdir()
    for device, count in enumerate((20, 30, 40)):
        draws = torch.Generator().manual_seed(device)
        rows = torch.randn(count, 2, generator=draws).tolist()
        lines = [f"{heat},{speed},{'hot' if heat > speed else 'ok'}" for heat, speed in rows]
        own = tmp_path / f"device{device}.csv"
        own.write_text("\n".join(["heat,speed,label", *lines]), encoding="utf-8")
        told = command("deploy", "describe", file, own)
        assert told.code == 0, told.err
        (tmp_path / "facts" / f"device{device}.json").write_text(told.out, encoding="utf-8")
    return load(file)


def test_a_census_has_counts_and_no_examples(config: Config) -> None:
    shards = census(str(config.data["path"]), features=("heat", "speed"), classes=("hot", "ok"))
    sizes = sum(shards.part(split).counts() for split in SPLITS)
    assert sizes.tolist() == [20, 30, 40]
    assert not shards.x.any()
    assert not shards.present.any()
    with pytest.raises(ProgramError, match="not on this node"):
        list(covey.run(config.experiment(0)))


def joined(parts: list[Shards]) -> Shards:
    """All examples in one place, as only a simulation can have them."""
    first = parts[0]
    shift = torch.tensor([0, *(len(part.x) for part in parts)]).cumsum(0)

    def pieces(split: str) -> Part:
        return Part.of(
            [(part.part(split).held(d) + shift[d]).numpy() for d, part in enumerate(parts)]
        )

    train, validation, test = map(pieces, SPLITS)
    x = torch.cat([part.x for part in parts])
    y = torch.cat([part.y for part in parts])
    return Shards(x, y, train, validation, test, classes=2, name="census", names=first.names)


def test_a_tree_trains_on_files_that_stay_with_their_devices(
    config: Config, tmp_path: Path
) -> None:
    experiment = config.experiment(0)
    settings = Settings(address=ADDRESS, data={"device": f"{tmp_path}/{{seat}}.csv"})
    members = {}
    parts: list[Shards] = []
    for process in planned(experiment, tmp_path / "local", settings):
        own = own_data(config, process, experiment.data)
        parts += own.values()
        members[process.name] = member(process, experiment, own)
    with serving(members):
        run = members["server"].run()
        list(members["server"].rounds(run))
        simulated = covey.run(covey.Experiment(**vars(experiment) | {"data": joined(parts)}))
        list(simulated)
        assert facts(run) == facts(simulated)


def test_the_plan_carries_the_census_and_no_file(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    out = tmp_path / "out"
    result = command("deploy", "plan", tmp_path / "tree.toml", "--out", out)
    assert result.code == 0, result.err
    own = load(out / "device1" / "experiment.toml")
    assert own.data["path"] == str(out / "device1" / "census.json")
    assert own.experiment(0).data.train.counts().tolist() == config.experiment(0).data.train.counts().tolist()  # fmt: skip
    assert not list(out.rglob("*.csv"))


def test_a_file_that_changed_is_refused(config: Config, tmp_path: Path) -> None:
    own = tmp_path / "device1.csv"
    own.write_text(own.read_text(encoding="utf-8") + "\n1,2,ok", encoding="utf-8")
    text = config.text()
    (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    result = command(
        "node", "--insecure", "--name", "device1", "--parent", "localhost:1", "--data", own,
        "--experiment", tmp_path / "experiment.toml", "--state", tmp_path / "state",
    )  # fmt: skip
    assert result.code == 2
    assert "Describe it again" in result.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("deploy.data=source", 'give deploy.data.device = "/srv/covey/{seat}.csv"'),
        ("data.name=digits", 'use data.name = "census"'),
        ("protocol=paper", "leave it out"),
    ],
)
def test_files_and_census_belong_together(config: Config, tmp_path: Path, change: str, words: str) -> None:  # fmt: skip
    more = ["data.devices=3"] if "digits" in change else []
    result = command("deploy", "plan", tmp_path / "tree.toml", change, *more, "--out", tmp_path / "o")  # fmt: skip
    assert result.code == 2
    assert words in result.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device2.json", "not json"),
        ("device2.json", "[]"),
        ("device2.json", '{"shape": [2], "counts": {"train": -1, "validation": 0, "test": 0}, "labels": 1}'),
        ("device2.json", '{"shape": [3], "counts": {"train": 1, "validation": 1, "test": 1}, "labels": 1}'),
        ("device2.json", '{"shape": [2], "counts": {"train": 1, "validation": 1, "test": 1}, "labels": 9}'),
        ("device4.json", '{"shape": [2], "counts": {"train": 1, "validation": 1, "test": 1}, "labels": 1}'),
        ("pump.json", "{}"),
    ],
)  # fmt: skip
def test_a_census_that_is_none_is_refused(config: Config, tmp_path: Path, name: str, text: str) -> None:  # fmt: skip
    (tmp_path / "facts" / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError):
        census(str(tmp_path / "facts"), classes=("hot", "ok"))


def test_a_description_has_no_example(config: Config, tmp_path: Path) -> None:
    told = json.loads((tmp_path / "facts" / "device0.json").read_text(encoding="utf-8"))
    assert set(told) == {"shape", "counts", "labels"}
    assert sum(told["counts"].values()) == 20
