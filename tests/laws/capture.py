"""The bits of every law case, the demo and the examples, as hashes: a change of the code's shape
must not move one of them.

`python -m tests.laws.capture --write` takes them anew. Rows depend in their last bits on the
processor, so a hash is compared only where the same processor and the same torch made it. Elsewhere
the figures of `outline` are compared, with a tolerance.
"""

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import covey
from covey import Run
from covey.files.config import load
from tests import peek
from tests.cli.command import DEMO, EXAMPLES
from tests.given import drained
from tests.laws.cases import CASES, state, whole

FILE = Path(__file__).with_name("captured.json")
FILES = {path.stem: path for path in (DEMO, *EXAMPLES)}
RULE = "rewritten on purpose by `python -m tests.laws.capture --write`"


def machine() -> str:
    """What the last bits of a row depend on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return f"{model}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def digest(values: dict[str, Any]) -> str:
    """A hash of everything in a state: rows bit by bit, texts as they are."""
    out = hashlib.sha256()
    for key in sorted(values):
        value = values[key]
        out.update(key.encode())
        if isinstance(value, Tensor):
            out.update(f"{value.dtype} {tuple(value.shape)}".encode())
            out.update(value.contiguous().cpu().numpy().tobytes())
        else:
            out.update(str(value).encode())
    return out.hexdigest()[:16]


def outline(run: Run) -> dict[str, float]:
    """What another processor reproduces up to rounding: norms of rows, bytes, losses."""
    out = {"global": float(run.w.double().norm()), "bytes": float(run.meter.bytes())}
    for tier, name, _, _, rows in peek.columns(run):
        out[f"{tier} {name}"] = float(rows.double().norm())
    for name, model in run.history[-1].models.items():
        out |= {
            f"loss {name} {part}": score.loss
            for part, score in model.scores.items()
            if score.loss is not None
        }
    return {key: float(f"{value:.6g}") for key, value in out.items()}


def law(name: str) -> Run:
    """A law case after its last round."""
    return whole(name)


def file(name: str) -> Run:
    """Two rounds of the demo or of an example."""
    return _finished(covey.run(load(FILES[name], ["rounds=2", "score_every=1"]).experiment(0)))


def _finished(run: Run) -> Run:
    return drained(run)


def everything() -> Iterator[tuple[str, Callable[[], Run]]]:
    """(name, what runs it) of all that is captured."""
    for name in CASES:
        yield f"law {name}", lambda name=name: law(name)
    for name in FILES:
        yield f"file {name}", lambda name=name: file(name)


def taken(run: Run) -> dict[str, Any]:
    """What is written of a run: its hash and its outline; that it can be saved and restored belongs
    to the same promise.
    """
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder, "checkpoint"))
    return {"bits": digest(state(run)), "outline": outline(run)}


def main() -> None:
    """Print what differs; with --write, write the file."""
    found = {name: taken(run()) for name, run in everything()}
    if "--write" in sys.argv:
        FILE.write_text(
            json.dumps({"machine": machine(), "runs": found}, indent=1, sort_keys=True) + "\n"
        )
        return
    known = json.loads(FILE.read_text())
    print(
        "the processor of the file"
        if known["machine"] == machine()
        else f"another processor: {machine()}"
    )
    for name, values in found.items():
        before = known["runs"].get(name)
        if before is None or before["bits"] != values["bits"]:
            print(f"{name}: {'new' if before is None else 'other bits'}")


if __name__ == "__main__":
    main()
