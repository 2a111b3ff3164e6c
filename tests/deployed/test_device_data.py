"""Data that stay with their devices: a census, own files, and a tree that trains on them."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import covey
from covey.data import Shards, census, files
from covey.data.shards import SPLITS
from covey.data.tables.census import read
from covey.deployed.commands import node
from covey.deployed.files.deployment import Deployment
from covey.deployed.files.device_data import described, own_data, own_examples, with_whole_paths
from covey.deployed.plan.plan import DeploySettings
from covey.errors import ConfigError, DataError, ProgramError
from covey.files.config import Config, load
from tests.cli.command import covey as command
from tests.cli.command import exits
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
        lines = [
            f"{300 + 25 * heat},{speed / 1000},{'hot' if heat > speed else 'ok'}"
            for heat, speed in rows
        ]
        own = tmp_path / f"device{device}.csv"
        own.write_text("\n".join(["heat,speed,label", *lines]), encoding="utf-8")
        told = exits(0, "deploy", "describe", file, own)
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


def test_a_tree_trains_on_files_that_stay_with_their_devices(
    config: Config, tmp_path: Path
) -> None:
    experiment = config.experiment(0)
    settings = DeploySettings(address=ADDRESS, data={"device": f"{tmp_path}/{{seat}}.csv"})
    members = {}
    for process in planned(experiment, tmp_path / "local", settings):
        own = own_data(config, process, experiment.data)
        members[process.name] = member(process, experiment, own)
    with serving(members):
        run = members["server"].run()
        list(members["server"].rounds(run))
        simulated = covey.run(covey.Experiment(**vars(experiment) | {"data": files(str(tmp_path))}))
        list(simulated)
        assert facts(run) == facts(simulated)


def test_the_plan_carries_the_census_and_no_file(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    out = tmp_path / "out"
    exits(0, "deploy", "plan", tmp_path / "tree.toml", "--out", out)
    own = load(out / "device1" / "experiment.toml")
    assert own.data["path"] == str(out / "device1" / "census.json")
    assert own.experiment(0).data.train.counts().tolist() == config.experiment(0).data.train.counts().tolist()  # fmt: skip
    assert not list(out.rglob("*.csv"))
    planned_facts, columns = read(out / "device1" / "census.json")
    assert not any(facts.columns for facts in planned_facts)  # what others told stays at the server
    assert columns["x"].rows == sum(facts.counts["train"] for facts in planned_facts)


def test_a_file_that_changed_is_refused(config: Config, tmp_path: Path) -> None:
    own = tmp_path / "device1.csv"
    own.write_text(own.read_text(encoding="utf-8") + "\n1,2,ok", encoding="utf-8")
    text = config.text()
    (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    result = exits(
        2, "node", "--insecure", "--name", "device1", "--parent", "localhost:1", "--data", own,
        "--experiment", tmp_path / "experiment.toml", "--state", tmp_path / "state",
    )  # fmt: skip
    assert "Describe it again" in result.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("deploy.data=source", 'give deploy.data.device = "/srv/covey/{seat}.csv"'),
        ("data.name=digits", 'use data.name = "census"'),
        ("protocol=paper", "leave it out"),
        ("data.path=~no-such-user/facts", 'data.path = "~no-such-user/facts": this machine has no'),
    ],
)
def test_files_and_census_belong_together(config: Config, tmp_path: Path, change: str, words: str) -> None:  # fmt: skip
    more = ["data.devices=3"] if "digits" in change else []
    result = exits(
        2, "deploy", "plan", tmp_path / "tree.toml", change, *more, "--out", tmp_path / "o"
    )
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


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"counts": {"train": 10**11, "validation": 1, "test": 1}}, "is no number of examples"),
        ({"counts": {"train": 2**28, "validation": 1, "test": 1}}, "268435458 examples, more than"),
        ({"shape": [2**39]}, "is no number of examples"),
        ({"shape": [2**20] * 4}, "is too large"),
    ],
    ids=str,
)
def test_a_description_cannot_take_all_memory(
    tmp_path: Path, facts: dict[str, object], words: str
) -> None:
    told = {"shape": [2], "counts": {"train": 4, "validation": 1, "test": 1}, "labels": 2, "number": 0, "columns": {}}  # fmt: skip
    (tmp_path / "device0.json").write_text(json.dumps(told | facts), encoding="utf-8")
    with pytest.raises(DataError, match=words):
        census(str(tmp_path), features=("heat", "speed"), classes=("hot", "ok"))
    with pytest.raises(DataError):
        census(str(tmp_path), features=("heat", "speed"))


SITES = """
[data]
name = "census"
path = "facts"
label = "LABEL"
missing = "MISSING"
CLASSES

[algorithm]
name = "fedavg"

[model]
name = "linear"
"""


def sites(folder: Path, missing: str, label: str = "state") -> tuple[Config, Shards]:
    """A census of three sites with words, gaps and three scales; and the simulator's data."""
    (folder / "sites").mkdir()
    (folder / "facts").mkdir()
    classes = {"heat": "", "state": 'classes = ["hot", "ok"]'}[label]
    text = SITES.replace("MISSING", missing).replace("LABEL", label).replace("CLASSES", classes)
    file = folder / "tree.toml"
    file.write_text(text, encoding="utf-8")
    config = load(file)
    for site in range(3):
        draws = np.random.default_rng(site)
        lines = ["heat,flow,since,kind,state"]
        for heat, flow, since in draws.normal(size=(40 + site, 3)):
            cells = [f"{300 + 25 * heat:.3f}", f"{flow / 1000:.6f}", f"{1.7e9 + 1e5 * since:.0f}"]
            cells.append(draws.choice(["axial", "gear"] if site else ["gear", "screw"]))
            if missing != "error":
                gaps = draws.random(4) < 0.1
                gaps[0] &= label != "heat"
                cells = ["" if gap else cell for cell, gap in zip(cells, gaps, strict=True)]
            lines.append(",".join([*cells, "hot" if heat > flow else "ok"]))
        own = folder / "sites" / f"device{site}.csv"
        own.write_text("\n".join(lines), encoding="utf-8")
        told = json.dumps(described(config, own))
        (folder / "facts" / f"device{site}.json").write_text(told, encoding="utf-8")
    same = files(
        str(folder / "sites"),
        label=label,
        missing=missing,  # type: ignore[arg-type]
        regression=label == "heat",
    )
    return config, same


@pytest.mark.parametrize("missing", ["error", "drop", "mean", "indicator"])
def test_a_tree_has_the_inputs_of_the_simulator(tmp_path: Path, missing: str) -> None:
    config, same = sites(tmp_path, missing)
    whole = census(str(tmp_path / "facts"), classes=("hot", "ok"), missing=missing)  # type: ignore[arg-type]
    assert whole.names.features == same.names.features
    assert whole.scaling.shift.equal(same.scaling.shift)
    for device in range(3):
        own = own_examples(config, tmp_path / "sites" / f"device{device}.csv", whole, device)
        for split in SPLITS:
            ours = own.part(split).held(device)
            theirs = same.part(split).held(device)
            assert own.x[ours].equal(same.x[theirs])
            assert own.y[ours].equal(same.y[theirs])


def test_targets_are_told_as_sums(tmp_path: Path) -> None:
    _, same = sites(tmp_path, "mean", label="heat")
    _, columns = read(tmp_path / "facts")
    told = columns["y"].scaling(None)
    targets = same.y[same.train.index].double()
    assert told.shift.item() == pytest.approx(targets.mean().item(), rel=1e-12)
    assert 1 / told.factor.item() == pytest.approx(targets.std(correction=0).item(), rel=1e-12)


RARE = """
[data]
name = "census"
path = "facts"
normalise = "standard"
missing = "mean"
split = [0.8, 0.1, 0.1]
categorical = ["kind"]

[algorithm]
name = "fedavg"

[model]
name = "linear"
"""


def rare(folder: Path, rows: int, least: str = "") -> dict[str, Any]:
    """What a device tells of rows with a word that one of them has, and a column of two values."""
    file = folder / "tree.toml"
    file.write_text(least + RARE, encoding="utf-8")
    lines = ["heat,flow,kind,label"]
    for row in range(rows):
        flow = row if row < 2 else ""
        kind = "secret" if row == 0 else ("gear", "screw")[row % 2]
        lines.append(f"{300 + row},{flow},{kind},{row / 7}")
    own = folder / "device0.csv"
    own.write_text("\n".join(lines), encoding="utf-8")
    return described(load(file), own)


def test_a_description_tells_what_five_rows_have_in_common(tmp_path: Path) -> None:
    told = rare(tmp_path, 60)
    x = told["columns"]["x"]
    assert x["rows"] == told["counts"]["train"]
    assert set(x["words"]["kind"]) == {"gear", "screw"}
    at = x["names"].index("flow")
    assert [x["moments"][name][at] for name in ("count", "mean", "squares")] == [0, 0, 0]
    assert x["moments"]["count"][x["names"].index("heat")] == x["rows"]


def test_a_description_of_few_rows_has_no_sums(tmp_path: Path) -> None:
    told = rare(tmp_path, 6)
    assert 0 < told["counts"]["train"] < 5
    for columns in told["columns"].values():
        assert columns["rows"] == 0
        assert not any(any(column) for column in columns["moments"].values())
        assert not any(columns["words"].values())
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "device0.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(DataError, match="fewer training rows than least; set least lower"):
        census(str(tmp_path / "facts"))


def test_a_file_may_say_that_single_rows_are_told(tmp_path: Path) -> None:
    told = rare(tmp_path, 6, "least = 1\n")
    assert told["columns"]["y"]["rows"] == told["counts"]["train"]
    assert sum(told["columns"]["x"]["words"]["kind"].values()) == told["counts"]["train"]


TOLD = {
    "rows": 4,
    "names": ["heat", "kind"],
    "moments": {"count": [4.0, 0.0], "mean": [1.0, 0.0], "squares": [2.0, 0.0]},
    "words": {"kind": {"gear": 3}},
}


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 2**29},
        {"rows": 10**400},
        {"rows": True},
        {"names": ["heat"]},
        {"names": ["heat", "heat"]},
        {"names": ["heat", 3]},
        {"names": ["heat", "k" * 257], "words": {}},
        {"moments": {"count": [5.0, 0.0], "mean": [1.0, 0.0], "squares": [2.0, 0.0]}},
        {"moments": {"count": [4.0, 0.0], "mean": [float("nan"), 0.0], "squares": [2.0, 0.0]}},
        {"moments": {"count": [4.0, 0.0], "mean": [1e39, 0.0], "squares": [2.0, 0.0]}},
        {"moments": {"count": [4.0, 0.0], "mean": [1.0, 0.0], "squares": [-1.0, 0.0]}},
        {"moments": {"count": [4.0, 0.0], "mean": [1.0, 0.0], "squares": [float("inf"), 0.0]}},
        {"moments": {"count": [4.0], "mean": [1.0], "squares": [2.0]}},
        {"moments": []},
        {"words": {"kind": {"gear": 5}}},
        {"words": {"kind": {"gear": 0.5}}},
        {"words": {"kind": {"g" * 257: 1}}},
        {"words": {"kind": ["gear"]}},
        {"words": {"speed": {"gear": 3}}},
        {"words": {"heat": {"gear": 3}}},
        {"rows": 2**13, "words": {"kind": {str(word): 1 for word in range(2**12 + 1)}}},
    ],
)
def test_facts_of_columns_that_are_none_are_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    told = {"shape": [2], "counts": {"train": 4, "validation": 1, "test": 1}, "labels": 2, "number": 0}  # fmt: skip
    file = tmp_path / "device0.json"
    file.write_text(json.dumps(told | {"columns": {"x": TOLD}}), encoding="utf-8")
    assert census(str(tmp_path), classes=("hot", "ok")).names.features == ("heat", "kind=gear")
    file.write_text(json.dumps(told | {"columns": {"x": TOLD | change}}), encoding="utf-8")
    with pytest.raises(DataError, match="its columns are no counts"):
        census(str(tmp_path), classes=("hot", "ok"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ["heat", "form"], "words": {}}, "device 1 has the columns heat, form"),
        ({"moments": {**TOLD["moments"], "count": [4.0, 1.0]}, "words": {}}, "'kind' has words on"),  # type: ignore[dict-item]
        ({"names": ["kind", "heat"], "words": {}}, "'kind' has words on some"),
    ],
    ids=["names", "numbers", "order"],
)
def test_devices_tell_of_the_same_columns(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    told = {"shape": [2], "counts": {"train": 4, "validation": 1, "test": 1}, "labels": 2, "number": 0}  # fmt: skip
    for device, columns in enumerate((TOLD, TOLD | change)):
        text = json.dumps(told | {"columns": {"x": columns}})
        (tmp_path / f"device{device}.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        census(str(tmp_path), classes=("hot", "ok"))


def test_names_do_not_leave_a_device(tmp_path: Path) -> None:
    config, _ = sites(tmp_path, "mean")
    rows = [f"{row},patient {row},ok" for row in range(40)]
    file = tmp_path / "device0.csv"
    file.write_text("\n".join(["heat,who,state", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match=r"'who' .*seems to be a name"):
        described(config, file)


def test_the_simulator_refuses_examples_that_it_cannot_have(config: Config, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "covey deploy local" in exits(2, "run", tmp_path / "tree.toml", "--out", out).err
    assert not out.exists()


def test_a_description_has_no_example(config: Config, tmp_path: Path) -> None:
    told = json.loads((tmp_path / "facts" / "device0.json").read_text(encoding="utf-8"))
    assert set(told) == {"shape", "counts", "labels", "number", "columns"}
    assert set(told["columns"]) == {"x"}
    assert set(told["columns"]["x"]) == {"rows", "names", "moments", "words"}
    assert set(told["columns"]["x"]["moments"]) == {"count", "mean", "squares"}
    assert sum(told["counts"].values()) == 20


def test_the_place_of_a_file_depends_on_no_folder(config: Config, tmp_path: Path) -> None:
    deploy = (config.deploy or {}) | {"data": {"device": "{seat}.csv"}}
    here = config.with_section("deploy", deploy)
    with pytest.raises(ConfigError, match=r'device0 has "device0.csv"; .* whole path'):
        Deployment.of(here)
    local = Deployment.of(with_whole_paths(here, tmp_path), local=True)
    assert local.processes[-1].data == {"device2": str(tmp_path / "device2.csv")}
    deploy["data"] = {"device": "~no-such-user/{seat}.csv"}
    with pytest.raises(ConfigError, match=r"deploy.data.device = .* no such user"):
        with_whole_paths(config.with_section("deploy", deploy), tmp_path)


def test_a_device_by_hand_has_its_file_beside_the_experiment(
    config: Config, tmp_path: Path
) -> None:
    change = 'deploy.data.device="{seat}.csv"'
    tree = load(tmp_path / "tree.toml", [change, 'data.order=["a", "b", "c"]'])
    for old, new in zip(("device0", "device1", "device2"), ("a", "b", "c"), strict=True):
        (tmp_path / "facts" / f"{old}.json").rename(tmp_path / "facts" / f"{new}.json")
    (tmp_path / "by-hand.toml").write_text(tree.text(), encoding="utf-8")
    words = ["--name", "c", "--parent", "localhost:1", "--experiment", tmp_path / "by-hand.toml"]
    with patch.object(node, "_run") as run:
        result = command("node", "--insecure", *words)
    assert result.code == 0, result.err
    assert run.call_args.args[0].data == {"c": str(tmp_path / "c.csv")}


NETS = """
import torch


def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    )
"""


def test_statistics_of_norm_layers_stay_with_the_data(config: Config, tmp_path: Path) -> None:
    (tmp_path / "census_nets.py").write_text(NETS, encoding="utf-8")
    norms = load(tmp_path / "tree.toml", ["model={name='census_nets:net'}"])
    run = covey.Run(norms.experiment(0))
    read = run.snapshot("global")
    assert read.statistics is None
    with pytest.raises(ConfigError, match="in the folder of a device"):
        read.statistics_of([0], run.runtime.task.space)


@pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="starts many processes")
@pytest.mark.parametrize(
    "changes",
    [["model={name='census_nets:net'}"], ["algorithm={name='pfedgp'}", "model={name='mlp'}"]],
    ids=["BatchNorm", "pFedGP"],
)
def test_devices_predict_with_what_stays_with_them(
    config: Config, tmp_path: Path, changes: list[str]
) -> None:
    (tmp_path / "census_nets.py").write_text(NETS, encoding="utf-8")
    out = tmp_path / "local"
    exits(0, "deploy", "local", tmp_path / "tree.toml", *changes, "--out", out)
    device = covey.load(out / "device1" / "state" / "device1")
    own = own_examples(device.config, tmp_path / "device1.csv", device.config.experiment(0).data, 1)
    test = own.part("test").index
    rows = own.scaling.undone(own.x[test].double())  # in the units of the device's file
    right = device.predict(rows.numpy()) == np.asarray(("hot", "ok"))[own.y[test]]
    if "pfedgp" not in changes[0]:  # which predicts otherwise than by the module alone
        bare = device.module("personal", scaled=True)
        torch.testing.assert_close(device.module("personal")(rows), bare(own.x[test]))
    scores = covey.load(out / "server" / "state" / "run").devices()
    (told,) = [
        one for one in scores if (one.device, one.model, one.part) == ("1", "personal", "test")
    ]
    assert right.mean() == pytest.approx(told.accuracy, abs=1e-9)
