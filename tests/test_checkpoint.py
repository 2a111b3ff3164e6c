"""Files of a run: whole or not at all, and never trusted."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import covey
from covey import draws
from covey.errors import CheckpointError
from covey.runs.saved import checkpoint
from covey.runs.saved.checkpoint import FORMAT, Checkpoint
from tests.laws.cases import PLAIN, experiment

TENSORS = {
    "server": torch.arange(6.0).view(1, 6),
    "ids": torch.tensor([3, 1]),
    "none": torch.empty(0, 4),
}
FACTS: dict[str, Any] = {"round": 3, "experiment": {"seed": "0"}, "history": [{"a": None}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "deep" / "run.covey"
    checkpoint.write(target, Checkpoint(TENSORS, FACTS))
    return target


def test_what_was_written_is_read(path: Path) -> None:
    back = checkpoint.read(path)
    assert back.facts == FACTS
    assert back.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(back.tensors[name], tensor)
        assert back.tensors[name].dtype == tensor.dtype
    assert os.listdir(path.parent) == [path.name]


def test_views_and_strides_are_no_obstacle(path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    checkpoint.write(
        path, Checkpoint({"a": base.t(), "b": base[1:], "c": torch.ones(1, 1).expand(3, 2)}, FACTS)
    )
    back = checkpoint.read(path).tensors
    assert torch.equal(back["a"], base.t())
    assert torch.equal(back["b"], base[1:])
    assert torch.equal(back["c"], torch.ones(3, 2))


@pytest.mark.parametrize("broken", ["save_file", "replace", "fsync"])
def test_a_failed_write_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    before = path.read_bytes()
    monkeypatch.setattr(checkpoint if broken == "save_file" else os, broken, fail)
    with pytest.raises(
        CheckpointError,
        match=r"cannot write .*run\.covey: disk full; an older checkpoint there is untouched",
    ):
        checkpoint.write(path, Checkpoint({"server": torch.zeros(1, 6)}, {}))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_an_interrupt_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tensors: Any, name: str, metadata: Any) -> None:
        Path(name).write_bytes(b"half of it")
        raise KeyboardInterrupt

    before = path.read_bytes()
    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(path, Checkpoint(TENSORS, {}))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_where_nothing_can_be_written(path: Path) -> None:
    (path.parent / "folder").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        checkpoint.write(path.parent / "folder", Checkpoint(TENSORS, {}))


def test_a_folder_that_is_a_file(path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot write"):
        checkpoint.write(path / "below", Checkpoint(TENSORS, {}))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*nothing"):
        checkpoint.read(tmp_path / "nothing")
    with pytest.raises(CheckpointError):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(
        CheckpointError, match=r"damaged or not a checkpoint.*there is none before it"
    ):
        checkpoint.read(path)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes(path: Path, seed: int) -> None:
    noise = torch.randint(
        256, (400,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    path.write_bytes(noise.numpy().tobytes())
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.read(path)


def test_a_pickle_is_not_opened(path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(path.parent / "exploded"),)

    torch.save({"server": Bomb()}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.read(path)
    assert os.listdir(path.parent) == [path.name]
    source = Path(checkpoint.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source


@pytest.mark.parametrize(
    "metadata", [None, {}, {"format": "pt"}, {"format": "covey-checkpoint-0", "facts": "{}"}]
)
def test_another_format(path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"a": torch.ones(1)}, path, metadata=metadata)
    found = (metadata or {}).get("format", "none")
    with pytest.raises(CheckpointError, match=f"its format is {found}, not {FORMAT}"):
        checkpoint.read(path)


@pytest.mark.parametrize("facts", ["", "{", "nonsense", None, "[]", "3", "[" * 100_000])
def test_facts_that_are_no_facts(path: Path, facts: str | None) -> None:
    given = (
        {} if facts is None else {"facts": facts, "facts_sum": checkpoint._digest(facts.encode())}
    )
    save_file(
        {"a": torch.ones(1)},
        path,
        metadata={"format": FORMAT, "sum": checkpoint._sum({"a": torch.ones(1)}), **given},
    )
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.read(path)


@pytest.mark.parametrize("fact", ["round", "experiment"])
@pytest.mark.parametrize("value", ["x", None, -1, 1.5, True, [], "absent"])
def test_facts_of_another_kind(path: Path, fact: str, value: Any) -> None:
    facts = FACTS | {fact: value}
    if value == "absent":
        del facts[fact]
    checkpoint.write(path, Checkpoint(TENSORS, facts))
    for tensors in (True, False):
        with pytest.raises(CheckpointError, match=f"damaged or not a checkpoint.*{fact}"):
            checkpoint.read(path, tensors=tensors)


def test_a_flipped_bit_is_seen(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"damaged: its checksum is not .*; there is none"):
        checkpoint.read(path)
    assert checkpoint.read(path, tensors=False).facts == FACTS


def test_what_differs_is_named_with_both_values() -> None:
    wanted = {"algorithm": "FedAvg(lr=1)", "seed": "0"}
    checkpoint.same_experiment("x", wanted, dict(wanted))
    with pytest.raises(CheckpointError, match="another experiment: its seed is 7, this one's is 0"):
        checkpoint.same_experiment("x", wanted | {"seed": "7"}, wanted)
    with pytest.raises(CheckpointError, match="its seed is None"):
        checkpoint.same_experiment("x", {"algorithm": "FedAvg(lr=1)"}, wanted)


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [("draws", "1", "with draws = 1, this is covey"), ("covey", "0.0.9", "by covey 0.0.9 with")],
)
def test_a_checkpoint_of_other_draws_does_not_go_on(
    tmp_path: Path, fact: str, value: str, text: str
) -> None:
    """The rounds to come would draw by another rule than those before."""
    run = covey.run(experiment(PLAIN["HierFAVG"]))
    next(run)
    path = tmp_path / "run.covey"
    run.save(path)
    saved = checkpoint.read(path)
    facts = saved.facts["experiment"]
    assert (facts["draws"], facts["covey"]) == (str(draws.VERSION), covey.__version__)
    facts[fact] = value
    checkpoint.write(path, saved)
    with pytest.raises(CheckpointError, match=f"{text}.*or start a new run"):
        covey.run(run.experiment, resume=path)


def test_a_difference_far_to_the_right_is_shown() -> None:
    long = "SFedHP(" + ", ".join(f"field{k}=0.1" for k in range(20))
    with pytest.raises(CheckpointError, match=r"lr2=0\.5"):
        checkpoint.same_experiment(
            "x", {"algorithm": long + ", lr2=0.5)"}, {"algorithm": long + ", lr2=0.7)"}
        )


def test_the_file_is_json_and_plain_tensors(path: Path) -> None:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + length])
    assert json.loads(head["__metadata__"]["facts"]) == FACTS
    assert head["server"]["shape"] == [1, 6]


def test_the_checkpoint_before_the_last_stays(path: Path) -> None:
    first = path.read_bytes()
    checkpoint.write(path, Checkpoint(TENSORS, FACTS | {"round": 4}))
    second = path.read_bytes()
    checkpoint.write(path, Checkpoint(TENSORS, FACTS | {"round": 5}))
    older = checkpoint.previous(path)
    assert older.name == "run.previous.covey"
    assert older.read_bytes() == second != first
    assert checkpoint.read(path).facts["round"] == 5
    assert sorted(os.listdir(path.parent)) == ["run.covey", "run.previous.covey"]
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"damaged.*one before it is .*run\.previous"):
        checkpoint.read(path)


def test_a_disk_without_links_keeps_a_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    before = path.read_bytes()
    checkpoint.write(path, Checkpoint(TENSORS, FACTS | {"round": 4}))
    assert checkpoint.previous(path).read_bytes() == before


def test_equal_contents_are_equal_bytes(tmp_path: Path) -> None:
    """The writer of safetensors orders metadata as a hash table does, another way in every process."""
    metadata = {f"key {k}": f"välue {k}" for k in range(20)}
    files = []
    for k in range(4):
        mixed = dict(sorted(metadata.items(), key=lambda item: hash((k, item))))
        checkpoint.write_tensors(
            tmp_path / str(k), {"b": torch.ones(3), "a": torch.arange(5)}, mixed
        )
        files.append((tmp_path / str(k)).read_bytes())
    assert files == [files[0]] * 4
    assert torch.equal(load_file(tmp_path / "0")["a"], torch.arange(5))
    with safe_open(tmp_path / "0", framework="pt") as file:
        assert file.metadata() == metadata


def test_the_last_bits_depend_on_the_files_of_folders_that_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the command, the report or a room is none of what may change bits."""
    package = Path(checkpoint.__file__).parents[2]
    assert all((package / name).is_dir() for name in checkpoint._NO_BITS)
    copy = tmp_path / "covey"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(checkpoint, "__file__", str(copy / "runs" / "saved" / "checkpoint.py"))
    hashes = []
    for name in (None, "folder/show.py", "deployed/plan/plan.py", "engine/descend.py"):
        if name is not None:
            (copy / name).write_text("changed")
        checkpoint.versions.cache_clear()
        hashes.append(checkpoint.versions()["covey"])
    checkpoint.versions.cache_clear()
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def test_what_may_change_the_last_bits_is_named() -> None:
    versions = checkpoint.versions()
    assert versions["MKL_CBWR"] == os.environ["MKL_CBWR"] == "AUTO"
    assert versions["processor"] == torch.backends.cpu.get_cpu_capability()
