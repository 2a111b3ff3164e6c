"""The experiment of a command is built once: the data of a seed is loaded once, and stands in
memory once.
"""

import json
from pathlib import Path

import pytest

from tests.cli.command import exits

SETS = '''
"""Data that counts how often it is loaded, and an algorithm that counts the tensors of its shape."""

import gc
import json
from dataclasses import dataclass
from pathlib import Path

import torch

import covey

FOLDER = Path(__file__).parent
SHAPE = (126, 3)  # of the features of all devices


def blobs(seed: int = 0):
    """Points around one corner per class; every load is written down."""
    with open(FOLDER / "loads.txt", "a") as file:
        file.write(f"{seed}\\n")
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(42) % 2
    pieces = [(torch.randn(42, 3, generator=g) + y[:, None], y) for _ in range(3)]
    return covey.data.own(pieces)


def held() -> int:
    """How many tensors with the shape of all features are in memory."""
    tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == SHAPE]
    return len({x.untyped_storage().data_ptr() for x in tensors})


@dataclass(frozen=True)
class Counting(covey.Algorithm):
    """One step of every device; each round writes down how many copies of the data are held."""

    lr: float = 0.1

    def server(self, me, w):
        if len(me):
            with open(FOLDER / "held.txt", "a") as file:
                file.write(f"{held()}\\n")
        return me.ask(self.device, w).mean()

    def device(self, me, w):
        return w - self.lr * me.grad(None)(w)
'''

FILE = """
rounds = 3
checkpoint_every = 1

[algorithm]
name = "sets:Counting"

[data]
name = "sets:blobs"

[model]
name = "linear"
"""


@pytest.fixture
def folder(project: Path) -> Path:
    """A folder with a file and its own data."""
    (project / "sets.py").write_text(SETS)
    (project / "own.toml").write_text(FILE)
    return project


def counted(folder: Path, name: str) -> list[int]:
    """The numbers in a file, which is then empty."""
    path = folder / name
    numbers = [int(line) for line in path.read_text().split()] if path.exists() else []
    path.write_text("")
    return numbers


@pytest.mark.parametrize("beside", ["compare=[]", 'compare=["local", "fedavg"]'])
def test_a_run_loads_the_data_once_and_holds_it_once(folder: Path, beside: str) -> None:
    exits(0, "run", "own.toml", beside, "--out", "run")
    assert counted(folder, "loads.txt") == [0]
    assert counted(folder, "held.txt") == [1, 1, 1]


def test_every_seed_is_loaded_once(folder: Path) -> None:
    exits(0, "run", "own.toml", "seeds=3", 'compare=["local"]', "--out", "run")
    assert sorted(counted(folder, "loads.txt")) == [0, 1, 2]


def test_seeds_that_memory_keeps_apart_are_loaded_once(folder: Path) -> None:
    ended = exits(0, "run", "own.toml", "seeds=3", "memory=1", "--out", "run")
    assert sorted(counted(folder, "loads.txt")) == [0, 1, 2]
    assert "seed 0  round 3/3" in ended.out


def test_going_on_loads_every_seed_once_finished_or_not(folder: Path) -> None:
    exits(0, "run", "own.toml", "seeds=3", 'compare=["local"]', "--out", "run")
    (folder / "run" / "seed-1" / "checkpoint.safetensors").unlink()
    counted(folder, "loads.txt")
    exits(0, "run", "--resume", "run")
    assert sorted(counted(folder, "loads.txt")) == [0, 1, 2]


NO_LINK = 'codec={"edge-device"="bitmap"}'


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([NO_LINK], "codec names the link 'edge-device'"),
        (["model.outputs=1"], "the model has 1 outputs"),
        (['compare=["hierfavg"]'], "HierFAVG"),
        (['compare=["hierfavg", "local"]', NO_LINK], "codec names the link 'edge-device'"),
    ],
    ids=["link", "model", "beside", "own mistakes first"],
)
def test_what_is_wrong_is_said_before_a_folder_is_made(
    folder: Path, changes: list[str], error: str
) -> None:
    assert error in exits(2, "run", "own.toml", *changes, "--out", "run").err
    assert not (folder / "run").exists()
    assert counted(folder, "loads.txt") == [0]


def test_a_seed_that_cannot_be_built_is_said_before_a_folder_is_made(folder: Path) -> None:
    text = (folder / "sets.py").read_text()
    (folder / "sets.py").write_text(
        text.replace("    y = torch", "    assert seed < 2\n    y = torch")
    )
    exits(2, "run", "own.toml", "seeds=3", "--out", "run")
    assert not (folder / "run").exists()


def test_the_records_are_those_of_the_algorithm_by_itself(folder: Path) -> None:
    """The data is shared with the algorithms beside it; none of them changes it."""
    exits(0, "run", "own.toml", "--out", "alone")
    exits(0, "run", "own.toml", 'compare=["fedavg", "local"]', "--out", "both")
    alone, both = (
        json.loads((folder / name / "summary.json").read_text()) for name in ("alone", "both")
    )
    assert alone["models"] == both["models"]
    states = [
        (folder / name / "models" / "global.safetensors").read_bytes() for name in ("alone", "both")
    ]
    assert states[0] == states[1]
