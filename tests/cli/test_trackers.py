"""`covey run --log`: trackers have every round once, and cannot end a run."""

import csv
import io
import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.algorithms import FedAvg
from covey.errors import ConfigError
from covey.folder import trackers
from covey.folder.terminal import Console
from covey.folder.trackers import Maker, Past, Tracked
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.record import Round
from covey.runs.tracker import to_csv
from tests.cli.command import SMALL, exits

MINE = '''
"""Trackers of a user's own."""
import json

class Lines:
    """One line per call; as a Ctrl-C would, it stops the first command in round 3."""

    def __init__(self, folder):
        self.file = folder / "lines.jsonl"

    def write(self, *words):
        with open(self.file, "a") as file:
            file.write(json.dumps(words) + "\\n")

    def start(self, config):
        self.write("start", config["algorithm"]["name"], config["seed"])

    def log(self, record):
        if record.round == 2 and "finish" not in self.file.read_text():
            raise KeyboardInterrupt
        self.write("log", record.round + 1, record.figures()["personal/test/accuracy"])

    def finish(self, summary):
        self.write("finish", summary["finished"], summary["rounds"], "models" in summary)


class Torn(Lines):
    def __init__(self, folder):
        self.file = folder / "torn.jsonl"

    def log(self, record):
        return {}["no such key"]


def not_a_class(folder):
    return Lines(folder)
'''


def lines(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with trackers of a user's own, which is the current one."""
    (tmp_path / "mine_tracked.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_tracked", raising=False)
    return tmp_path


def test_a_stopped_and_resumed_run_logs_every_round_once(mine: Path) -> None:
    folder = mine / "run"
    own = ("--log", "mine_tracked:Lines", "--log", "mine_tracked:Torn")
    ended = exits(130, "run", *SMALL, *own, "--out", folder)
    assert ended.out.count("the tracker mine_tracked:Torn failed: KeyError: 'no such key'") == 1
    exits(0, "run", "--resume", folder, "--log", "mine_tracked:Lines")
    started = ["start", "sfedhp", 0]
    ends = [["finish", False, 3, True], ["finish", True, 4, True]]
    assert [line for line in lines(folder) if line[0] != "log"] == [
        started,
        ends[0],
        started,
        ends[1],
    ]
    assert [line[1] for line in lines(folder) if line[0] == "log"] == [1, 2, 3, 4]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [line[2] for line in lines(folder) if line[0] == "log"]
    scores = [record["models"]["personal"]["scores"]["test"]["accuracy"] for record in records]
    assert logged == scores
    table = list(csv.DictReader(io.StringIO((folder / "metrics.csv").read_text())))
    assert [row["round"] for row in table] == ["1", "2", "3", "4"]
    assert [float(row["personal/test/accuracy"]) for row in table] == scores


def history(rounds: int = 3) -> list[Round]:
    data = covey.data.digits(devices=4)
    model = covey.models.linear(64, 10)
    tree = covey.Tree.flat(4)
    experiment = covey.Experiment(FedAvg(steps=1), data, model, tree, rounds=rounds, score_every=2)
    return list(covey.run(experiment))


@pytest.fixture(scope="module")
def records() -> list[Round]:
    """Three rounds; the first is not scored."""
    return history()


class Kept:
    """Keeps what it is told, for all of its instances."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kept"

    def start(self, config: Mapping[str, Any]) -> None:
        assert config["seed"] == 0

    def log(self, record: Round) -> None:
        with open(self.path, "a") as file:
            file.write(f"{record.round} ")

    def finish(self, summary: Mapping[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write("end ")


CONFIG = {"seed": 0, "protocol": "paper", "algorithm": {"name": "fedavg", "lr": 0.1}}


def tracked(
    makers: Mapping[str, Maker], folder: Path, history: list[Round], *, done: bool = True
) -> tuple[Tracked, io.StringIO]:
    """The trackers of a seed that has these rounds from before."""
    said = io.StringIO()
    console = Console(file=said, width=200)
    return Tracked(makers, RunFolder(folder), console, CONFIG, Past(history, done)), said


def test_rounds_that_are_run_again_are_not_logged_again(
    records: list[Round], tmp_path: Path
) -> None:
    first, _ = tracked({"kept": Kept}, tmp_path, [])
    first.begin()
    first.log(records[:1])
    first.log(records[1:])  # then the process is killed; its last checkpoint has one round
    again, _ = tracked({"kept": Kept, "late": Kept}, tmp_path, records[:1])
    again.begin()
    again.log(records[1:])
    again.log(records[2:])
    again.end(None)
    # "late" has the first round when it starts, the others as they come
    assert (tmp_path / "kept").read_text() == "0 1 0 1 2 2 end end "
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"kept": 3, "late": 3}


@pytest.mark.parametrize("text", ["", "[]", '{"kept": "x"}', "\x00"])
def test_a_damaged_count_is_no_count(records: list[Round], tmp_path: Path, text: str) -> None:
    (tmp_path / "trackers.json").write_text(text)
    new, said = tracked({"kept": Kept}, tmp_path, records)
    new.begin()
    assert (tmp_path / "kept").read_text() == "0 1 2 "
    assert said.getvalue() == ""


@pytest.mark.parametrize("method", ["__init__", "start", "log", "finish"])
@pytest.mark.parametrize("error", [OSError("no space"), SystemExit(3)], ids=["error", "exit"])
def test_a_tracker_that_fails_is_shown_once_and_called_no_more(
    records: list[Round], tmp_path: Path, method: str, error: BaseException
) -> None:
    calls = []

    def fail(self: Kept, *arguments: object) -> None:
        calls.append(method)
        raise error

    torn = type("Torn", (Kept,), {method: fail})
    both, said = tracked({"torn": torn, "kept": Kept}, tmp_path, records[:1])
    both.begin()
    both.log(records[1:])
    both.end(None)
    assert len(calls) == 1
    assert said.getvalue().count("the tracker torn failed") == 1
    assert "The run goes on without it." in said.getvalue()
    assert "0 1 end " in (tmp_path / "kept").read_text().replace("0 0", "0").replace("1 1", "1")


def test_a_table_has_a_column_for_every_figure(records: list[Round]) -> None:
    table = list(csv.DictReader(io.StringIO(to_csv(records))))
    assert [row["round"] for row in table] == ["1", "2", "3"]
    assert table[0]["global/test/accuracy"] == ""  # that round was not scored
    assert float(table[2]["global/test/accuracy"]) == records[2].accuracy()
    assert float(table[1]["bytes/server-device/up"]) == records[1].bytes(direction="up")
    assert to_csv([]) == "round\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tensorbord", "there is no such tracker (did you mean tensorboard?)"),
        ("mine:", "--log mine:: write it as package.module:Class"),
        ("no_such_module:Lines", "there is no module no_such_module"),
        ("mine_tracked:Nothing", "mine_tracked has no Nothing; it has Lines, Torn"),
        ("mine_tracked:not_a_class", "is a function; name a class with the methods"),
        ("subprocess:Popen", "subprocess is Python's own"),
    ],
)
def test_names_that_are_no_tracker(mine: Path, name: str, says: str) -> None:
    assert says in exits(2, "run", *SMALL, "--log", name, "--out", mine / "run").err
    assert not (mine / "run").exists()


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_missing_library_is_named_before_anything_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, library = trackers.TRACKERS[name]
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"To log to {name}, {library} is needed .*pip install"):
        trackers.makers([name])


def logged(name: str, folder: Path, records: list[Round]) -> None:
    """Three rounds in two commands, the second of which runs the second round again."""
    for part in (records[:2], records[1:]):
        one, said = tracked(trackers.makers([name]), folder, [], done=part is not records)
        one.begin()
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps(record.as_dict()) + "\n" for record in records)
        )
        for record in part:
            one.log([record])
        one.end(None)
        assert said.getvalue() == ""


def logged_after_a_kill(name: str, folder: Path, records: list[Round]) -> None:
    """Two rounds, a kill before the second is in a checkpoint, and a second command."""
    first, _ = tracked(trackers.makers([name]), folder, [])
    first.begin()
    first.log(records[:1])
    first.log(records[1:])
    again, said = tracked(trackers.makers([name]), folder, records[:1])
    again.begin()
    again.log(records[1:])
    again.log(records[2:])
    again.end(None)
    assert said.getvalue() == ""


REAL = pytest.mark.filterwarnings("ignore")  # of the libraries' own imports


@REAL
def test_tensorboard_reads_what_was_written(records: list[Round], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged("tensorboard", tmp_path, records)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    gradients = [(event.step, event.value) for event in events.Scalars("gradients")]
    assert gradients == [(record.round + 1, record.gradients) for record in records]
    scores = [event.value for event in events.Scalars("global/test/accuracy")]
    assert scores == pytest.approx([record.accuracy() for record in records[1:]], abs=1e-6)
    (tmp_path / "killed").mkdir()
    logged_after_a_kill("tensorboard", tmp_path / "killed", records)
    folder = str(tmp_path / "killed" / "tensorboard")
    again = EventAccumulator(folder, purge_orphaned_data=False)
    again.Reload()
    assert [event.step for event in again.Scalars("gradients")] == [1, 2, 3]


@REAL
def test_mlflow_reads_what_was_written(
    records: list[Round], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged("mlflow", tmp_path, records)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    run = (tmp_path / "mlflow-run.txt").read_text().split()[0]
    steps = [(m.step, m.value) for m in client.get_metric_history(run, "gradients")]
    assert steps == [(record.round + 1, record.gradients) for record in records]
    assert client.get_run(run).data.params["algorithm.lr"] == "0.1"
    assert client.get_run(run).info.status == "FINISHED"
    (killed := tmp_path / "killed").mkdir()
    logged_after_a_kill("mlflow", killed, records)
    client = mlflow.MlflowClient(tracking_uri=(killed / "mlruns").as_uri())
    run = (killed / "mlflow-run.txt").read_text().split()[0]
    assert [m.step for m in client.get_metric_history(run, "gradients")] == [1, 2, 3]
    experiments = [one.experiment_id for one in client.search_experiments()]
    states = {one.info.status for one in client.search_runs(experiments)}
    assert states == {"FINISHED", "KILLED"}


@REAL
def test_an_offline_run_of_wandb_has_every_round(
    records: list[Round], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged("wandb", tmp_path, records)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    steps = [step for file in files for step in wandb_steps(file)]
    assert steps == [(record.round + 1, record.gradients) for record in records]


def wandb_steps(file: Path) -> Iterator[tuple[int, float]]:
    """(step, gradients) of the rounds in a .wandb file, by its own messages."""
    from wandb.proto import wandb_internal_pb2

    for message in leveldb(file.read_bytes()[7:]):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            yield items["_step"], items["gradients"]


def leveldb(log: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, whose first block has lost 7 bytes to a header."""
    position = 0
    parts: list[bytes] = []
    while position + 7 <= len(log):
        left = 32768 - (position + 7) % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", log[position : position + 7])
        parts.append(log[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


@REAL
def test_parquet_has_the_columns_of_the_table(records: list[Round], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    logged("parquet", tmp_path, records)
    table = parquet.read_table(tmp_path / "metrics.parquet")
    assert table.column("round").to_pylist() == [1, 2, 3]
    assert table.column("global/test/accuracy").to_pylist()[0] is None
    assert table.column_names == to_csv(records).partition("\n")[0].split(",")
