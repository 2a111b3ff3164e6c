"""Run folders: never overwritten, never shared, never half-written; what is foreign or damaged is
refused by name.
"""

import fcntl
import os
import resource
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from covey.runs.saved import checkpoint
from covey.runs.saved.run_folder import RunFolder
from experiments.kills.run import difference
from tests.cli.command import SMALL, contents, covey, exits, spawn


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds, undisturbed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    exits(0, "run", *SMALL, "--out", folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    ended = exits(2, "run", *SMALL, "--out", tmp_path)
    assert f"{tmp_path} is not empty; give another --out, or continue it" in ended.err
    assert contents(tmp_path) == {"mine.txt": b"precious"}


def test_an_empty_folder_will_do_and_so_will_one_killed_at_its_very_start(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.7.part").write_text("rou")
    exits(0, "run", *SMALL, "rounds=1", "--out", tmp_path)
    assert not (tmp_path / ".config.toml.7.part").exists()


def test_without_a_folder_the_next_free_number_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exits(0, "run", *SMALL, "rounds=1")
    assert sorted(os.listdir("runs")) == ["small-sfedhp-1", "small-sfedhp-2"]


@pytest.mark.parametrize(
    ("name", "algorithm", "folder"),
    [
        ("demo", "sfedhp", "demo-sfedhp-1"),
        ("", "pfedme", "pfedme-1"),
        ("pfedme", "pfedme", "pfedme-1"),
        ("fedmac-sparse", "fedmac", "fedmac-sparse-1"),
        ("PerMFL_long", "permfl", "PerMFL_long-1"),
        ("fedavgm", "fedavg", "fedavgm-fedavg-1"),
        ("own", "mine:Mean", "own-mine-Mean-1"),
    ],
)
def test_the_default_folder_names_run_and_algorithm_once(
    name: str, algorithm: str, folder: str
) -> None:
    assert RunFolder.unused(name, algorithm) == Path("runs") / folder


@pytest.mark.parametrize("resumed", [False, True])
def test_one_process_at_a_time(folder: Path, tmp_path: Path, resumed: bool) -> None:
    place = folder if resumed else tmp_path / "new"
    place.mkdir(exist_ok=True)
    before = contents(place)
    with open(place / ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = covey(
            "run", *(["--resume", place, "rounds=9"] if resumed else [*SMALL, "--out", place])
        )
    assert ended.code == 2
    assert f"another run is writing to {place}; wait for it, or give another folder." in ended.err
    assert contents(place) == before


@pytest.mark.parametrize("below", ["file", "file/deep/er"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("a file")
    ended = exits(4, "run", *SMALL, "--out", tmp_path / below)
    assert f"cannot write {tmp_path / below}: " in ended.err
    assert contents(tmp_path) == {"file": b"a file"}


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    ended = covey("run", *SMALL, "--out", tmp_path / "new")
    tmp_path.chmod(stat.S_IRWXU)
    assert ended.code == 4
    assert f"cannot write {tmp_path / 'new'}: " in ended.err


def test_a_full_disk_leaves_the_last_checkpoint_from_which_it_goes_on(
    finished: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk."""
    folder = tmp_path / "run"
    exits(0, "run", *SMALL, "rounds=2", "--out", folder)
    saved = folder / "checkpoint.safetensors"
    before, size = saved.read_bytes(), saved.stat().st_size

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
    try:
        ended = covey("run", "--resume", folder, "rounds=4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ended.code == 4
    assert f"cannot write {saved}: " in ended.err
    assert "older checkpoint there is untouched" in ended.err
    assert f"resume with: covey run --resume {folder}" in ended.err
    assert saved.read_bytes() == before
    assert not list(folder.rglob("*.part"))
    assert checkpoint.read(saved).facts["round"] == 2
    exits(0, "run", "--resume", folder)
    assert difference(finished, folder) is None


@pytest.mark.parametrize("name", ["models", "plot.png", "summary.json"])
def test_a_file_that_cannot_be_written_at_the_end(
    finished: Path, tmp_path: Path, name: str
) -> None:
    """A folder stands where the file should be, or a file where the folder should."""
    folder = tmp_path / "run"
    exits(0, "run", *SMALL, "rounds=3", "--out", folder)
    if name == "models":
        shutil.rmtree(folder / name)
        (folder / name).write_text("in the way")
    else:
        (folder / name).unlink()
        (folder / name / "in the way").mkdir(parents=True)
    ended = exits(4, "run", "--resume", folder, "rounds=4")
    assert f"cannot write {folder / name}" in ended.err
    assert f"resume with: covey run --resume {folder}" in ended.err
    (folder / name).unlink() if name == "models" else shutil.rmtree(folder / name)
    exits(0, "run", "--resume", folder)
    assert difference(finished, folder) is None
    assert (folder / "plot.png").is_file()


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


def _other_version(path: Path) -> None:
    save_file(load_file(path), path, metadata=_metadata(path) | {"format": "covey-checkpoint-0"})


def _flip_the_last_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def _cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("rounds", [4, 9], ids=["finished", "to go on"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_other_version, "is not a checkpoint of this version: its format is covey-checkpoint-0"),
        (_flip_the_last_byte, "is damaged: its checksum"),
        (_cut_in_half, "is damaged or not a checkpoint"),
    ],
)
def test_a_checkpoint_that_is_no_good(folder: Path, rounds: int, spoil: Any, words: str) -> None:
    saved = folder / "checkpoint.safetensors"
    checkpoint.previous(saved).unlink()
    spoil(saved)
    before = saved.read_bytes()
    assert f"{saved} {words}" in exits(4, "run", "--resume", folder, f"rounds={rounds}").err
    assert saved.read_bytes() == before


@pytest.mark.parametrize("spoil", [_flip_the_last_byte, _cut_in_half])
def test_a_damaged_checkpoint_is_made_up_for_by_the_one_before(
    finished: Path, folder: Path, spoil: Any
) -> None:
    saved = folder / "checkpoint.safetensors"
    spoil(saved)
    ended = exits(0, "run", "--resume", folder)
    assert f"note: {saved} is damaged" in ended.out
    assert "The run continues after round 2" in ended.out
    assert difference(finished, folder) is None
    assert (folder / "checkpoint.damaged.safetensors").exists()


def test_a_damaged_history_is_named(folder: Path) -> None:
    records = folder / "checkpoint.history.jsonl"
    records.write_bytes(b" " + records.read_bytes()[1:])
    ended = exits(4, "run", "--resume", folder, "rounds=9")
    assert f"{records} is damaged: it is not what was written with" in ended.err
    records.unlink()
    assert "keep both files together" in exits(4, "run", "--resume", folder, "rounds=9").err


def test_a_lock_that_is_just_going_is_waited_for(folder: Path) -> None:
    held = open(folder / ".lock", "w")  # noqa: SIM115
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.4, held.close).start()
    exits(0, "run", "--resume", folder, "rounds=5")


def test_equal_runs_leave_equal_files(finished: Path, tmp_path: Path) -> None:
    # in another process, whose hashes differ
    process = spawn("run", *SMALL, "--out", tmp_path / "again")
    process.communicate()
    models = sorted((finished / "models").rglob("*.safetensors"))
    assert len(models) == 8
    for path in models:
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(finished)).read_bytes()


@pytest.mark.parametrize("rounds", [4, 9], ids=["finished", "to go on"])
def test_a_checkpoint_of_another_experiment(folder: Path, tmp_path: Path, rounds: int) -> None:
    exits(0, "run", *SMALL, "algorithm.lr1=0.3", "--out", tmp_path / "other")
    for name in ("checkpoint.safetensors", "checkpoint.history.jsonl"):
        shutil.copy(tmp_path / "other" / name, folder)
    ended = exits(4, "run", "--resume", folder, f"rounds={rounds}")
    assert "is of another experiment: its algorithm is" in ended.err
    assert "lr1=0.3" in ended.err
    assert "lr1=0.4" in ended.err


PUMPS = [
    "data.name=files", "data.split=[0.5, 0.25, 0.25]", "algorithm.name=fedavg", "model.name=linear",
    "rounds=2",
]  # fmt: skip


def pumps(path: Path, *, heat: float = 0.0, columns: int = 2) -> str:
    """A table of three pumps; its path as a change."""
    head = ",".join(["device", *(f"x{k}" for k in range(columns)), "label"])
    rows = []
    for number in range(36):
        values = [str(number % (5 + k) + heat * (number == 3)) for k in range(columns)]
        rows.append(",".join([f"pump-{number % 3}", *values, ("ok", "hot")[number % 2]]))
    path.write_text("\n".join([head, *rows]))
    return f"data.path={path}"


@pytest.mark.parametrize("rounds", [2, 4], ids=["finished", "to go on"])
@pytest.mark.parametrize("change", [{"heat": 1.0}, {"columns": 3}], ids=["a number", "a column"])
def test_a_data_file_that_changed_is_named(
    tmp_path: Path, rounds: int, change: dict[str, Any]
) -> None:
    table = tmp_path / "pumps.csv"
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    exits(0, "run", empty, *PUMPS, pumps(table), "--out", tmp_path / "run")
    pumps(table, **change)
    ended = exits(4, "run", "--resume", tmp_path / "run", f"rounds={rounds}")
    assert "pumps.csv changed since it was written" in ended.err
    assert "put the old data back, or start a new run" in ended.err


def test_what_is_no_run_folder_cannot_be_resumed(tmp_path: Path) -> None:
    ended = exits(2, "run", "--resume", tmp_path)
    assert f"{tmp_path} is not a run folder: it has no config.toml;" in ended.err
    assert contents(tmp_path) == {}


def test_what_a_killed_run_left_half_written_is_swept_up(folder: Path) -> None:
    left = [
        folder / ".checkpoint.safetensors.123.part",
        folder / ".metrics.jsonl.part",
        folder / "models" / ".edge.part",
    ]
    for part in left:
        part.write_text("half")
    exits(0, "run", "--resume", folder, "rounds=5")
    assert not any(part.exists() for part in left)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("two") / "run"
    exits(0, "run", *SMALL, "rounds=2", "seeds=2", "--out", folder)
    return folder


@pytest.mark.parametrize(
    ("seed", "seeds", "had"),
    [
        (0, 3, "the seeds 0 to 1"),
        (0, 1, "the seeds 0 to 1"),
        (1, 2, "the seeds 0 to 1"),
        (0, 2, None),
    ],
)
def test_other_seeds_in_the_file_of_a_run_are_refused(
    two: Path, tmp_path: Path, seed: int, seeds: int, had: str | None
) -> None:
    folder = Path(shutil.copytree(two, tmp_path / "copy"))
    file = folder / "config.toml"
    text = file.read_text()
    assert text.count("\nseeds = 2\n") == text.count("\nseed = 0\n") == 1
    file.write_text(
        text.replace("\nseeds = 2\n", f"\nseeds = {seeds}\n").replace(
            "\nseed = 0\n", f"\nseed = {seed}\n"
        )
    )
    before = contents(folder)
    ended = covey("run", "--resume", folder, "rounds=3")
    if had is None:
        assert ended.code == 0, ended.err
        return
    assert ended.code == 2
    assert f"says seed = {seed} and seeds = {seeds}, but the run has {had}" in ended.err
    assert contents(folder) == before


def test_several_seeds_in_the_file_of_a_run_of_one_are_refused(folder: Path) -> None:
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("\nseeds = 1\n", "\nseeds = 2\n"))
    before = contents(folder)
    ended = exits(2, "run", "--resume", folder, "rounds=6")
    assert "says seed = 0 and seeds = 2, but the run has one seed" in ended.err
    assert contents(folder) == before


@pytest.mark.parametrize(("old", "new", "words"), [
    ("\nseed = 0\n", "\nseed = 1\n", "its seed is 0, this one's is 1"),
    ("\nrounds = 4\n", "\nrounds = 2\n", "has run 4 already; give more rounds"),
    ("\nprotocol = \"honest\"\n", "\nprotocol = \"paper\"\n", "its protocol is honest"),
])  # fmt: skip
def test_a_file_of_a_run_that_was_edited_is_refused(
    folder: Path, old: str, new: str, words: str
) -> None:
    file = folder / "config.toml"
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    ended = covey("run", "--resume", folder, *(() if "rounds" in old else ("rounds=6",)))
    assert ended.code in (2, 4)
    assert words in ended.err
