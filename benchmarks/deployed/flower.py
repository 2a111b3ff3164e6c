"""The same FedAvg in Flower: a SuperLink and 12 SuperNodes on this machine, over TLS.

Flower verifies its server's certificate. It has no certificates of clients: a SuperNode may sign
its messages with a key, which is left out here. Each message starts a process of its own there, and
the server looks for replies every 3 s: both are part of an ask.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.deployed.latency import DEVICES, HIDDEN
from benchmarks.deployed.tree import spread
from covey.deployed.plan.local import free_ports

APP = Path(__file__).parent / "flower_app"
HOST = "127.0.0.1"
WARM_UP = 1
_PATIENCE = 900.0  # s to the end of the run


def run(python: Path, rounds: int, *, train: bool, tls: bool = True) -> dict[str, Any]:
    """All rounds; with `train`, a device imports torch and takes one step in each."""
    with tempfile.TemporaryDirectory(prefix="covey-flower-") as name:
        folder = Path(name)
        facts = _ran(folder, python.parent, rounds, train=train, tls=tls)
    walls = [end - begin for begin, end in zip(facts["ends"], facts["ends"][1:], strict=False)]
    beyond = [wall - longest for wall, longest in zip(walls, facts["training"], strict=True)]
    return {
        "system": "Flower",
        "tree": f"1 + {DEVICES}",
        "TLS": tls,
        "trains": train,
        "rounds": rounds - WARM_UP,
        "bytes of the model": 4 * (71 * HIDDEN + 10),
        "s beyond training": spread(beyond[WARM_UP:], 1.0),
        "s of a round": spread(walls[WARM_UP:], 1.0),
        "s of the longest training": spread(facts["training"][WARM_UP:], 1.0),
        "MB of a SuperNode, all its processes": facts["supernode"],
        "MB of the SuperLink, all its processes": facts["superlink"],
    }


def _ran(folder: Path, scripts: Path, rounds: int, *, train: bool, tls: bool) -> dict[str, Any]:
    """Start everything, wait for the facts that the server writes, and end everything."""
    ports = free_ports(DEVICES + 1)
    out = folder / "facts.json"
    server = ["--insecure"]
    node = ["--insecure"]
    connection = "insecure = true"
    if tls:
        _certificates(folder)
        server = ["--ssl-ca-certfile", str(folder / "ca.pem")]
        server += ["--ssl-certfile", str(folder / "server.pem")]
        server += ["--ssl-keyfile", str(folder / "server.key")]
        node = ["--root-certificates", str(folder / "ca.pem")]
        connection = f'root-certificates = "{folder / "ca.pem"}"'
    home = folder / "home"
    home.mkdir()
    text = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{HOST}:{ports[0]}"\n'
    (home / "config.toml").write_text(f"{text}{connection}\n", encoding="utf-8")
    app = folder / "app"
    shutil.copytree(APP, app)
    address = f"{HOST}:{ports[0]}"
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{scripts}:{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)
    commands = [[str(scripts / "flower-superlink"), "--port", str(ports[0]), *server]]
    for number, port in enumerate(ports[1:]):
        words = ["--superlink", address, "--port", str(port), *node]
        words += ["--node-config", f"partition-id={number}"]
        commands.append([str(scripts / "flower-supernode"), *words])
    config = f"rounds={rounds} train={str(train).lower()} hidden={HIDDEN} devices={DEVICES}"
    start = [str(scripts / "flwr"), "run", str(app), "here"]
    start += ["--run-config", f'{config} out="{out}"']
    with _started(commands, environment, folder) as started:
        subprocess.run(start, env=environment, check=True, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _PATIENCE
        most = [0.0, 0.0]
        while not out.exists():
            if time.monotonic() > until:
                raise RuntimeError(f"no end of the run in {_PATIENCE} s; see {folder}")
            time.sleep(0.5)
            for place in (0, 1):
                most[place] = max(most[place], _megabytes(started[place]))
        time.sleep(0.5)
        facts: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return {**facts, "superlink": most[0], "supernode": most[1]}


@contextmanager
def _started(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path
) -> Iterator[list[int]]:
    """With all processes running, each with its children in a session of its own."""
    running = []
    try:
        for number, command in enumerate(commands):
            with open(folder / f"{number}.log", "wb") as log:
                process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                )
            running.append(process)
            if number == 0:
                time.sleep(5)  # nodes that dial too early wait long
        time.sleep(10)
        yield [process.pid for process in running]
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        time.sleep(3)
        for process in running:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _megabytes(leader: int) -> float:
    """Proportional memory of all processes of a session, in MB."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if os.getsid(int(folder.name)) != leader:
                continue
            for line in (folder / "smaps_rollup").read_text(encoding="utf-8").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total / 1e3


def _certificates(folder: Path) -> None:
    """An authority, and a certificate of this machine."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"]
    names = f"subjectAltName=IP:{HOST},DNS:localhost"
    own = ["-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", "/CN=localhost"]
    own += ["-addext", names, "-addext", "basicConstraints=critical,CA:FALSE"]
    own += ["-keyout", "server.key", "-out", "server.pem"]
    for words in (authority, own):
        command = ["openssl", "req", *words, *key]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
