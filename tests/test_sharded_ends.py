"""How a sharded run ends: killed, stopped, cut off; and how it goes on, bit for bit.

Everything here starts processes and waits for them, so only `make test-all` runs it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import covey
from tests.given import drained
from tests.laws.cases import CASES, differences, experiment, state, whole

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "base.toml"
SETTINGS = ("checkpoint_every=5", "score_every=5")
LIMIT = 60.0
"""Seconds in which all ranks must have ended."""

pytestmark = [
    pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="takes minutes: make test-all"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds ranks in /proc"),
]


def torchrun(ranks: int, *words: str, **changes: str) -> subprocess.Popen[str]:
    return started(
        [*("-m", "torch.distributed.run", "--standalone", "--nproc-per-node"), str(ranks), *words],
        **changes,
    )


def started(
    words: Sequence[str], before: Sequence[str] = (), **changes: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | changes,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_words(folder: Path, rounds: int) -> list[str]:
    return ["-m", "covey", "run", str(FILE), f"rounds={rounds}", *SETTINGS, "--out", str(folder)]


def ranks_of(launcher: int) -> dict[int, int]:
    """The process of every rank that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="utf-8")
    out = {}
    for child in children.split():
        values = Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
        for value in values:
            if value.startswith("RANK="):
                out[int(value.removeprefix("RANK="))] = int(child)
    return out


def succeed(process: subprocess.Popen[str]) -> None:
    """Wait for a process that must end well."""
    text, _ = process.communicate(timeout=5 * LIMIT)
    assert process.returncode == 0, text[-2000:]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 rounds in one process."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    succeed(started(run_words(folder, 20)))
    return folder


def same_files(left: Path, right: Path) -> list[str]:
    """The files of models and figures in which two run folders differ."""
    names = [str(path.relative_to(left)) for path in sorted(left.glob("models/**/*.safetensors"))]
    names += ["devices.csv", "nodes.jsonl", "totals.json"]
    assert len(names) > 5
    return [name for name in names if (left / name).read_bytes() != (right / name).read_bytes()]


@pytest.mark.parametrize(
    ("sent", "rank", "ranks"),
    [(signal.SIGKILL, 1, 2), (signal.SIGKILL, 0, 2), (signal.SIGSTOP, 1, 3)],
    ids=str,
)
def test_a_dead_rank_ends_all_within_a_minute(
    sent: signal.Signals, rank: int, ranks: int, tmp_path: Path, uninterrupted: Path
) -> None:
    """Those that are left say whom they miss, and the run goes on with another number of ranks."""
    folder = tmp_path / "run"
    process = torchrun(ranks, *run_words(folder, 1000))
    wait_for(folder / "checkpoint.safetensors", process)
    began = time.monotonic()
    os.kill(ranks_of(process.pid)[rank], sent)
    text, _ = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert time.monotonic() - began < LIMIT
    assert f"rank {rank} has" in text, text[-2000:]
    assert "its last checkpoint is intact" in text or "the last checkpoint is intact" in text
    resumed = torchrun(5 - ranks, "-m", "covey", "run", "--resume", str(folder), "rounds=20")
    succeed(resumed)
    assert same_files(uninterrupted, folder) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_inside_a_save_leaves_the_checkpoint_before(rank: int, tmp_path: Path) -> None:
    """Rank 0 dies when all parts are written, rank 1 before it has written its own."""
    path = tmp_path / "run.safetensors"
    process = torchrun(2, "-m", "tests.killed_save", str(path), str(rank))
    text, _ = process.communicate(timeout=2 * LIMIT)
    assert "SIGKILL" in text, text[-2000:]
    assert len(list(tmp_path.glob("run.part-*"))) == 4 - rank
    run = covey.run(experiment(CASES["PerMFL"]), resume=path)
    assert run.round == 1
    drained(run)
    assert differences(state(whole("PerMFL")), state(run)) == []


def test_a_signal_stops_all_ranks_after_the_same_round(tmp_path: Path, uninterrupted: Path) -> None:
    folder = tmp_path / "run"
    process = torchrun(2, *run_words(folder, 1000))
    wait_for(folder / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=LIMIT)
    assert "stopped: the state after round" in text
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "stopped"
    alone = started(["-m", "covey", "run", "--resume", str(folder), "rounds=20"])
    succeed(alone)
    assert same_files(uninterrupted, folder) == []


def test_a_rank_that_does_not_come_is_missed(tmp_path: Path) -> None:
    """WORLD_SIZE says two, but one process was started."""
    changes = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29571"}
    process = started(run_words(tmp_path / "run", 5), **changes)
    text, _ = process.communicate(timeout=3 * LIMIT)
    assert process.returncode == 2
    assert "WORLD_SIZE = 2, but after 60 s rank 1 has not started covey" in text


# Two network namespaces are two machines to everything but the disk.

MACHINES = (f"covey-{os.getpid()}-a", f"covey-{os.getpid()}-b")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[Sequence[str]]:
    """Two namespaces with a cable between them: 10.99.7.1 and 10.99.7.2."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2")
    try:
        ip("netns", "add", MACHINES[0])
    except subprocess.CalledProcessError:
        pytest.skip("the system allows no network namespaces")
    ip("netns", "add", MACHINES[1])
    ends = ("type", "veth", "peer", "name", "cable", "netns", MACHINES[1])
    ip("link", "add", "cable", "netns", MACHINES[0], *ends)
    for number, name in enumerate(MACHINES, start=1):
        ip("-n", name, "addr", "add", f"10.99.7.{number}/24", "dev", "cable")
        ip("-n", name, "link", "set", "cable", "up")
        ip("-n", name, "link", "set", "lo", "up")
    try:
        yield MACHINES
    finally:
        for name in MACHINES:
            ip("netns", "del", name)


def on_machines(names: Sequence[str], port: int, words: list[str]) -> list[subprocess.Popen[str]]:
    """The same command on both machines, with one rank each."""
    where = ("--master-addr", "10.99.7.1", "--master-port", str(port))
    out = []
    for number, name in enumerate(names):
        nodes = ("--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1")
        launcher = ["-m", "torch.distributed.run", *nodes, *where, *words]
        before = ("ip", "netns", "exec", name)
        out.append(started(launcher, before, GLOO_SOCKET_IFNAME="cable"))
    return out


def test_two_machines_have_the_bits_of_one(
    machines: Sequence[str], tmp_path: Path, uninterrupted: Path
) -> None:
    folder = tmp_path / "run"
    for process in on_machines(machines, 29572, run_words(folder, 20)):
        succeed(process)
    assert same_files(uninterrupted, folder) == []


def test_a_cable_that_is_cut_ends_both_machines(machines: Sequence[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    processes = on_machines(machines, 29573, run_words(folder, 1000))
    wait_for(folder / "checkpoint.safetensors", processes[0])
    ip("-n", machines[0], "link", "set", "cable", "down")
    began = time.monotonic()
    texts = [process.communicate(timeout=2 * LIMIT)[0] for process in processes]
    assert time.monotonic() - began < LIMIT
    assert "rank 1 has not been heard of" in texts[0]
    assert "rank 0's machine, or torchrun on it, cannot be reached" in texts[1]
