"""Runs whose rows lie in files: the bits of a run in memory, and checkpoints that link files."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm, Experiment, Nodes, Rows, Run, Tree, models
from covey.algorithms import PerMFL
from covey.data import Part, Shards
from covey.errors import CheckpointError, ConfigError
from covey.kernel.store import segments
from covey.kernel.store.store import Store
from covey.runs.run import Runs
from covey.runs.saved import checkpoint, kept_rows
from tests import peek
from tests.given import signal_of

DEVICES = 40
WIDTH = 6 * 3 + 3


def pool(devices: int = DEVICES) -> Shards:
    """Devices that hold examples of a common pool, by number."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator)
    y = torch.randint(0, 3, (200,), generator=generator)

    def part(count: int) -> Part:
        index = torch.randint(0, 200, (devices * count,), generator=generator)
        return Part(index, torch.arange(devices + 1) * count)

    return Shards(x, y, part(8), part(2), part(2), classes=3)


def experiment(rounds: int = 12, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {"score_every": 2, "workers": 1, **changes}
    algorithm = PerMFL(edge_rounds=1, device_sample=3, steps=2, batch=4)
    tree = Tree.uniform(4, DEVICES // 4)
    return Experiment(algorithm, pool(), models.linear(6, 3), tree, rounds, **settings)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of eight rows."""
    monkeypatch.setattr(segments, "SEGMENT", 8 * WIDTH * 4)


def bits(run: Run) -> dict[str, Any]:
    """Everything of a run that its next rounds, or a reader of it, depend on."""
    rows: dict[str, Any] = {"w": run.w}
    for model in run.models():
        for which in ("last", "chosen"):
            snapshot = run.snapshot(model, which)
            rows[f"{model} {which}"] = (snapshot.round, snapshot.ids, snapshot.rows)
    totals = run.totals
    records = [{**record.as_dict(), "seconds": 0, "spent": 0} for record in run.history]
    return {**rows, "totals": totals, "devices": run.devices(), "history": records}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def ran(run: Run, rounds: int | None = None) -> Run:
    """The run after some rounds, or its last one."""
    while not run.done and (rounds is None or run.round < rounds):
        next(run)
    return run


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return bits(ran(covey.run(experiment())))


def test_rows_in_files_have_the_bits_of_rows_in_memory(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    run = ran(covey.run(experiment(), store=tmp_path))
    assert same(bits(run), whole)
    column = peek.store(run).columns["device", "personal"]
    assert len(column.segments.segments) > 3
    assert all(segment.path is not None for segment in column.segments.segments)


def test_a_run_goes_on_from_every_save(whole: dict[str, Any], tmp_path: Path) -> None:
    """Saved after each round into one place, and resumed from many, also from the one before."""
    run = covey.run(experiment(), store=tmp_path / "live")
    path = tmp_path / "run.safetensors"
    for round in range(1, 10):
        ran(run, round).save(path)
        if round % 3 == 0:
            ways = {"files": path, "before": checkpoint.previous(path)}
            for name, saved in ways.items():
                if saved.exists():
                    resumed = covey.run(experiment(), resume=saved, store=tmp_path / name)
                    assert resumed.round == round - (name == "before")
                    assert same(bits(ran(resumed)), whole)
    assert same(bits(ran(covey.run(experiment(), resume=path))), whole)  # into memory
    assert len(checkpoint_files(path)) < 20


def checkpoint_files(path: Path) -> list[str]:
    return os.listdir(path.with_suffix(".rows"))


def test_a_chain_of_resumes_saves_into_the_same_place(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    ran(covey.run(experiment(), store=tmp_path / "live"), 1).save(path)
    for round in range(2, 12):
        run = covey.run(experiment(), resume=path, store=tmp_path / "live")
        ran(run, round).save(path)
        del run
    assert same(bits(ran(covey.run(experiment(), resume=path, store=tmp_path / "live"))), whole)
    assert len(list((tmp_path / "live").iterdir())) <= 1
    assert len(checkpoint_files(path)) < 30


def test_checkpoints_in_several_places_stay_as_they_were(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    """A row that an old checkpoint counts on is not written again."""
    run = covey.run(experiment(), store=tmp_path / "live")
    for round in range(1, 12):
        ran(run, round).save(tmp_path / "often.safetensors")
        if round in (2, 5):
            run.save(tmp_path / f"{round}.safetensors")
    for round in (2, 5):
        resumed = covey.run(experiment(), resume=tmp_path / f"{round}.safetensors")
        assert resumed.round == round
        assert same(bits(ran(resumed)), whole)


def test_a_run_that_goes_on_beside_the_first(tmp_path: Path) -> None:
    """A run resumes from a checkpoint of one that goes on and writes over rows out of its use."""
    work = experiment(rounds=24, score_every=24)
    first = covey.run(work, store=tmp_path / "live")
    path = tmp_path / "run.safetensors"
    ran(first, 3).save(path)
    second = covey.run(work, resume=path, store=tmp_path / "live")
    _, before = second.rows("personal")
    for round in range(4, 25):
        ran(first, round).save(path)
    _, after = second.rows("personal")
    assert torch.equal(before, after)
    assert same(bits(ran(second)), bits(first))


def test_a_checkpoint_in_memory_goes_on_in_files(whole: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    ran(covey.run(experiment()), 5).save(path)
    run = covey.run(experiment(), resume=path, store=tmp_path / "live")
    ran(run, 8).save(path)
    assert same(bits(ran(covey.run(experiment(), resume=path, store=tmp_path / "live"))), whole)


def test_a_round_that_fails_leaves_the_rows(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ran(covey.run(experiment(), store=tmp_path), 4)
    with monkeypatch.context() as patch:
        patch.setattr(type(peek.runs(run)), "_choose", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(run)
    assert same(bits(ran(run)), whole)


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_save_writes_what_changed(tmp_path: Path) -> None:
    """The log grows by the nodes of the round, and files are links."""
    run = ran(covey.run(experiment(), store=tmp_path / "live"), 8)
    path = tmp_path / "run.safetensors"
    run.save(path)
    (log,) = path.with_suffix(".rows").glob("*.log")
    before = log.stat().st_size
    ran(run, 9).save(path)
    record, tensors = list(kept_rows._records(log.parent, facts_of(path)))[-1]
    ids = dict(zip(("device", "edge"), (tensors["0.0.ids"], tensors["1.0.ids"]), strict=True))
    assert [tier for tier, _, _ in record["columns"]] == ["device", "edge"]
    assert ids["device"].tolist() == run.history[-1].cohorts["device"]
    assert log.stat().st_size - before < 12_000
    for file in log.parent.glob("*.rows"):
        assert file.stat().st_nlink == 2


def test_rows_out_of_use_are_written_again(tmp_path: Path) -> None:
    """The files of many saves hold few rows more than those of two checkpoints."""
    run = covey.run(experiment(rounds=60, score_every=60), store=tmp_path / "live")
    path = tmp_path / "run.safetensors"
    while not run.done:
        next(run)
        run.save(path)
    column = peek.store(run).columns["device", "personal"]
    assert column.capacity <= DEVICES + 5 * 12 + 8


def facts_of(path: Path) -> Any:
    return checkpoint.read(path).facts["rows"]


def test_damage_is_named(tmp_path: Path) -> None:
    run = ran(covey.run(experiment(), store=tmp_path / "live"), 4)
    path = tmp_path / "run.safetensors"
    run.save(path)
    facts = facts_of(path)
    folder = path.with_suffix(".rows")
    _, _, name, _ = facts["columns"][0]["segments"][0]
    for file, words in ((name, "rows are not those"), (facts["log"], "not what was written")):
        good = (folder / file).read_bytes()
        (folder / file).write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
        with pytest.raises(CheckpointError, match=words):
            covey.run(experiment(), resume=path, store=tmp_path / "live")
        (folder / file).write_bytes(good)
    os.truncate(folder / name, 10)
    with pytest.raises(CheckpointError, match="cannot be read"):
        covey.run(experiment(), resume=path)
    (folder / facts["log"]).unlink()
    with pytest.raises(CheckpointError, match="keep a checkpoint and its folder"):
        covey.run(experiment(), resume=path)


def test_what_cannot_lie_in_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave store= out"):
        covey.run(experiment(), store=tmp_path, runtime="loopback")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="give store= another one"):
        covey.run(experiment(), store=tmp_path / "file")


MOMENTS = {
    "round": (Runs, "_choose"),
    "log": (kept_rows, "sync"),
    "manifest": (checkpoint, "_sort_header"),
    "after": (kept_rows.RowsFolder, "clean"),
}
"""Functions in which a process dies: in a round, and in a save from its first write to its end."""


def killed(folder: Path, moment: str, **changes: Any) -> int:
    """Run seven rounds in a process that dies; the signal that ended it."""

    def work() -> None:
        run = covey.run(experiment(**changes), store=folder / "live")
        ran(run, 4).save(folder / "run.safetensors")
        ran(run, 5).save(folder / "run.safetensors")
        place, name = MOMENTS[moment]
        if moment != "round":
            ran(run, 7)
        assert hasattr(place, name)
        setattr(place, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        ran(run, 7).save(folder / "run.safetensors")

    return signal_of(work)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_loses_no_checkpoint(
    whole: dict[str, Any], tmp_path: Path, moment: str
) -> None:
    assert killed(tmp_path, moment) == signal.SIGKILL
    path = tmp_path / "run.safetensors"
    run = covey.run(experiment(), resume=path, store=tmp_path / "live")
    assert run.round == (7 if moment == "after" else 5)
    ran(run, 8).save(path)
    assert same(bits(ran(run)), whole)
    assert same(bits(ran(covey.run(experiment(), resume=path))), whole)


# Rows in float16


@dataclass(frozen=True)
class Halving(Algorithm):
    """Devices keep a number that follows what they kept before; the server's row stays."""

    sends: ClassVar[str] = "nothing"

    def server(self, me: Nodes, w: Rows) -> Rows:
        me.ask(self.device, w)
        return w

    def device(self, me: Nodes, w: Rows) -> Rows:
        before = me.recall("personal", torch.ones_like(w))
        return me.keep("personal", before / 3 + me.ids[:, None] * 1e-3)


def test_a_number_is_rounded_whenever_it_is_kept(tmp_path: Path) -> None:
    """x <- half(x / 3 + id / 1000), in float64, by numpy's own rounding."""
    shards = pool(4)
    work = Experiment(
        Halving(), shards, models.linear(6, 3), Tree.flat(4), rounds=5, dtype=torch.float64,
        store_rows="float16",
    )  # fmt: skip
    for store in (None, tmp_path):
        run = ran(covey.run(work, store=store))
        _, rows = run.rows("personal")
        x = np.ones(4)
        for _ in range(5):
            x = (x / 3 + np.arange(4) * 1e-3).astype(np.float16).astype(np.float64)
        assert rows.dtype == torch.float64
        assert np.array_equal(rows.numpy(), np.repeat(x[:, None], WIDTH, 1))
        column = peek.store(run).columns["device", "personal"]
        assert column.segments.row_bytes == 2 * WIDTH
        assert run.engine["sentence"].endswith("; kept rows are rounded to float16")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_loses_no_checkpoint_of_rounded_rows(tmp_path: Path) -> None:
    work = experiment(store_rows="float16")
    expected = bits(ran(covey.run(work)))
    assert killed(tmp_path, "manifest", store_rows="float16") == signal.SIGKILL
    path = tmp_path / "run.safetensors"
    for store in (tmp_path / "live", None):
        run = covey.run(work, resume=path, store=store)
        assert run.round == 5
        assert same(bits(ran(run)), expected)
    with pytest.raises(CheckpointError, match="store_rows"):
        covey.run(experiment(), resume=path)


def test_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    rows = torch.tensor([[1.0, 7e4]])
    store = Store({"device": 3}, form="float16")
    with pytest.raises(ConfigError, match=r"of size 7e\+04, and float16 ends at 65504; use"):
        store.put("device", "personal", torch.tensor([1]), rows, 0)
    store.put("device", "diverged", torch.tensor([1]), torch.tensor([[1.0, torch.inf]]), 0)
    with pytest.raises(ConfigError, match="store_rows = 'float16' is for the simulator on a CPU"):
        covey.run(experiment(store_rows="float16"), runtime="loopback")
    with pytest.raises(ConfigError, match="did you mean float16"):
        experiment(store_rows="float6")
