"""The hash of a user's code: what changes the run changes it, what does not leaves it alone, in
every process.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import covey
from covey.algorithms import FedAvg
from covey.errors import CheckpointError
from covey.runs.saved import source
from tests.cli.command import ROOT

NETS = '''
"""Some nets."""

import importlib
import math

import helpers
from base import Base
from torch import nn, no_grad

WIDTH = 3  # of the layer
RATES = []
RATES.append(0.5)


def act(x):
    """An activation."""
    return x.relu() * WIDTH


def other(x):
    return x


class Net(Base):
    """A net."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 10)

    def forward(self, x):
        from lazy import scale
        x = self.before(x)
        late = importlib.import_module("late").scale * __import__("kit.later").later.scale
        return helpers.half(act(self.layer(x))) * scale * late

    @no_grad()
    def unused(self, other=1):
        WIDER = 4
        return other + RATES[0]


class Second(nn.Module):
    pass


if __name__ == "__main__":
    rounds = 20
    run = Net()
'''
FILES = {
    "nets.py": NETS,
    "base.py": "from torch import nn\n\n\nclass Base(nn.Module):\n    def before(self, x):\n        return x + 1\n",
    "helpers.py": "from kit import parts\n\n\ndef half(x):\n    return x / parts.TWO\n",
    "kit/__init__.py": "", "kit/parts.py": "from .numbers import TWO\n",
    "kit/numbers.py": "TWO = 2\n",
    "kit/later.py": "from importlib import import_module\n\nscale = import_module('.last', 'kit').scale\n",
    "kit/last.py": "scale = 1.0\n", "late.py": "scale = 1.0\n", "lazy.py": "scale = 1.0\n",
    "alone.py": "value = 1\n",
}  # fmt: skip
MINE = {name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for name in FILES}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with these files, from which modules come."""
    (tmp_path / "kit").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget()


def forget() -> None:
    for name in MINE:
        sys.modules.pop(name, None)


def nets() -> ModuleType:
    forget()
    importlib.invalidate_caches()
    return importlib.import_module("nets")


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} in {file}"
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("nets.py", "x = self.before(x)", "x = self.before(x) + 0"),
        ("nets.py", "x.relu() * WIDTH", "x.tanh() * WIDTH"),
        ("nets.py", "WIDTH = 3", "WIDTH = 4"),
        ("nets.py", "RATES.append(0.5)", "RATES.append(0.6)"),
        ("nets.py", "return other + RATES[0]", "return other - RATES[0]"),
        ("nets.py", "class Second", "Net.forward = other\n\n\nclass Second"),
        ("nets.py", "def other(x):\n    return x", "def other(x):\n    return -x"),
        ("nets.py", "class Second(nn.Module):\n    pass", "class Second(nn.Module):\n    more = 1"),
        ("nets.py", "import math\n", ""),
        ("base.py", "x + 1", "x + 2"),
        ("helpers.py", "x / parts.TWO", "x / parts.TWO / 1"),
        ("kit/__init__.py", "", "import math"),
        ("kit/numbers.py", "2", "3"),
        ("lazy.py", "1.0", "2.0"),
        ("late.py", "1.0", "2.0"),
        ("kit/later.py", "scale = ", "scale = -"),
        ("kit/last.py", "1.0", "2.0"),
    ],
)
def test_its_module_and_what_that_imports_change_the_hash_of_a_class(
    folder: Path, file: str, old: str, new: str
) -> None:
    before = source.digest([nets().Net])
    if old:
        change(folder / file, old, new)
    else:
        (folder / file).write_text(new)
    assert source.digest([nets().Net]) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("nets.py", "# of the layer", "# of the only layer"),
        ("nets.py", '    """A net."""\n', '    """A net for this and that."""\n'),
        ("nets.py", '    """An activation."""\n', ""),
        ("nets.py", '"""Some nets."""', "# no docstring"),
        ("nets.py", "x.relu() * WIDTH", "(x.relu()\n            * WIDTH)"),
        ("helpers.py", "def half", "# twice as small\n\ndef half"),
        ("alone.py", "1", "2"),
    ],
)
def test_comments_and_modules_that_are_not_imported_leave_the_hash_alone(
    folder: Path, file: str, old: str, new: str
) -> None:
    before = source.digest([nets().Net])
    change(folder / file, old, new)
    assert source.digest([nets().Net]) == before


@pytest.mark.usefixtures("folder")
def test_a_lazy_import_that_has_happened_changes_nothing() -> None:
    net = nets().Net
    before = source.digest([net])
    net()(torch.zeros(1, 60))
    assert "lazy" in sys.modules
    assert source.digest([net]) == before


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import covey, torch
from covey.algorithms import FedAvg
from nets import Net

def loss(outputs, y):
    return torch.nn.functional.cross_entropy(outputs, y, reduction="none")

class Inner(Net):
    kinds = {{"a", "b", "c"}}
    def forward(self, x):
        return super().forward(x) if "a" in {{"a", "b", "c", "d"}} else x

exec("class Outer(Inner):\\n    def forward(self, x):\\n        return x if 'a' in {{'a', 'b'}} else 2", globals())
data = covey.data.synthetic(devices=2, sizes=[20, 20])
for net in (Inner(), Outer()):
    net.act = lambda x: loss(x, 1)
    experiment = covey.Experiment(FedAvg(), data, net, covey.Tree.flat(2), rounds={rounds}, loss=loss)
    print(experiment.fingerprint())
"""


def printed(folder: Path, seed: int, rounds: int) -> list[str]:
    """The fingerprints of a script's experiments in a process of its own."""
    (folder / "script.py").write_text(SCRIPT.format(folder=str(folder), rounds=rounds))
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "script.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=-1, check=True
    ).stdout.splitlines()


def test_equal_experiments_have_equal_fingerprints_in_every_process(folder: Path) -> None:
    first = printed(folder, seed=1, rounds=1)
    assert len(set(first)) == 2
    assert printed(folder, seed=2, rounds=5) == first  # a script may change its rounds, to go on


def executed(text: str) -> Any:
    scope: dict[str, Any] = {}
    exec(text, scope)
    return scope["Net"]


NET = '''
import torch
def act(x):
    return x * {factor}
class Net(torch.nn.Module):
    """{about}"""
    def forward(self, x):
        return act(x) + {plus}
'''


def test_classes_without_a_file_count_by_their_compiled_code() -> None:
    one = source.digest([executed(NET.format(factor=2, plus=1, about="A net."))])
    assert source.digest([executed(NET.format(factor=2, plus=1, about="Another."))]) == one
    assert source.digest([executed(NET.format(factor=2, plus=3, about="A net."))]) != one
    assert source.digest([executed(NET.format(factor=3, plus=1, about="A net."))]) != one


def loss_one(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return outputs.sum(-1)


def loss_two(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return outputs.sum(-1) * 2


def test_lambdas_and_functions_count_by_what_they_do() -> None:
    def hashed(function: Callable[..., Any]) -> str:
        return source.digest([function])

    assert hashed(lambda x: x + 1) == hashed(lambda x: x + 1)
    assert hashed(lambda x: x + 1) != hashed(lambda x: x + 2)
    assert hashed(lambda x: loss_one(x, x)) != hashed(lambda x: loss_two(x, x))
    assert hashed(loss_one) != hashed(loss_two)


def test_a_shipped_algorithm_counts_by_its_file_without_comments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = Path(str(sys.modules[FedAvg.__module__].__file__))
    before = source.digest([FedAvg])
    other = tmp_path / "fedavg.py"
    monkeypatch.setattr(sys.modules[FedAvg.__module__], "__file__", str(other))
    monkeypatch.setattr(source, "own_file", lambda name: False)
    other.write_text("# a comment\n" + file.read_text())
    assert source.digest([FedAvg]) == before
    other.write_text(file.read_text() + "\nmore = 1\n")
    assert source.digest([FedAvg]) != before


@pytest.mark.parametrize(
    ("file", "old", "new", "refused"),
    [
        ("base.py", "x + 1", "x + 2", True),
        ("kit/numbers.py", "2", "3", True),
        ("nets.py", '"""A net."""', '"""The net."""', False),
    ],
)
def test_a_checkpoint_of_other_code_is_refused(
    folder: Path, file: str, old: str, new: str, refused: bool
) -> None:
    def experiment(rounds: int) -> covey.Experiment:
        data = covey.data.synthetic(devices=2, sizes=[20, 20])
        return covey.Experiment(FedAvg(), data, nets().Net(), covey.Tree.flat(2), rounds=rounds)

    run = covey.run(experiment(1))
    list(run)
    run.save(folder / "saved")
    change(folder / file, old, new)
    if refused:
        with pytest.raises(
            CheckpointError,
            match=r"the model code changed .* go on anyway: covey run --resume DIR --anyway",
        ):
            covey.run(experiment(2), resume=folder / "saved")
    else:
        assert len(list(covey.run(experiment(2), resume=folder / "saved"))) == 1
