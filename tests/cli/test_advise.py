"""`covey advise` on files that fail the law of the defaults: what it writes passes, and the file is
otherwise as it was.
"""

import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from covey import Experiment, run
from covey.advice.edit import edited
from covey.errors import ConfigError
from covey.files.config import load
from experiments.defaults.law import WORLDS, YARDSTICKS, Scores, limits, scores
from tests.cli.command import DEMO, SMALL, covey, exits

# Every value that decides, written down: a default that changes later must not make these files
# better.
FAILING: dict[str, dict[str, Any]] = {
    "PFedMe": {"name": "pfedme", "lam": 15.0, "local_rounds": 20, "steps": 5, "lr": 0.005, "personal_lr": 0.09},
    "PerMFL": {
        "name": "permfl", "lam": 0.5, "gamma": 1.5, "beta": 0.6, "lr": 0.01, "edge_lr": 0.03, "edge_rounds": 10, "steps": 20,
    },
    "SFedHP": {"name": "sfedhp", "lam1": 25.0, "lam2": 25.0, "lr1": 0.05, "lr2": 0.05, "edge_rounds": 20, "steps": 5},
    "Pruned": {
        "name": "pruned", "ratio": 0.5, "steps": 20, "personal_steps": 20, "lr": 0.001, "personal_lr": 0.001, "batch": 128,
    },
    "PerFedAvg": {"name": "perfedavg", "alpha": 0.03, "steps": 20, "lr": 0.003},
    "FedRep": {"name": "fedrep", "head_steps": 20, "head_lr": 0.02, "steps": 5, "lr": 0.02},
    "FedAvg": {"name": "fedavg", "steps": 20, "lr": 0.02},
    "FedProx": {"name": "fedprox", "mu": 0.001, "steps": 20, "lr": 0.02},
}  # fmt: skip
DATA: dict[str, dict[str, Any]] = {
    "digits": {"name": "digits", "devices": 20, "labels": 2},
    "synthetic": {"name": "synthetic", "devices": 100, "sizes": "fedprox"},
}
HIDDEN = {"digits": 32, "synthetic": 20}
EDGES = {"digits": 4, "synthetic": 10}
THREE_TIERS = ("PerMFL", "SFedHP", "Pruned")
LATER = pytest.mark.skipif(
    "COVEY_TEST_ALL" not in os.environ, reason="takes minutes: make test-all"
)
QUICK = ("PFedMe", "FedRep")


def cases() -> list[Any]:
    """Every failing file; those that take long only when asked for."""
    # these two fail on synthetic alone
    digits = [name for name in FAILING if name not in ("FedAvg", "FedProx")]
    # and these two on the digits alone
    synthetic = [name for name in FAILING if name not in ("PerMFL", "FedRep")]
    quick = [pytest.param(name, "digits") for name in QUICK]
    slow = [(name, "digits") for name in digits if name not in QUICK] + [
        (name, "synthetic") for name in synthetic
    ]
    return quick + [pytest.param(*case, marks=LATER) for case in slow]


def file(folder: Path, name: str, world: str = "digits") -> Path:
    """The law's experiment as a file, with a comment behind every field of the algorithm."""
    table = {
        "algorithm": FAILING[name],
        "data": DATA[world],
        "model": {"name": "mlp", "hidden": [HIDDEN[world]]},
    }
    if name in THREE_TIERS:
        table["tree"] = {"edges": EDGES[world]}
    plain: dict[str, Any] = {"rounds": 60, "score_every": 60}
    if name in ("FedRep", "Pruned"):
        plain["private"] = []
    lines = tomli_w.dumps({**plain, **table}).splitlines()
    path = folder / f"{name}.toml"
    path.write_text(
        "# mine\n" + "\n".join(f"{line}  # why" if " = " in line else line for line in lines) + "\n"
    )
    return path


def last(experiment: Experiment) -> Scores:
    """Every model on test data in the last round."""
    record = list(run(experiment))[-1]
    return {name: 100 * (record.accuracy(name) or 0.0) for name in record.models}


@pytest.fixture(scope="module")
def yardsticks() -> dict[str, dict[str, Scores]]:
    """Made when they are asked for."""
    return {}


@pytest.mark.parametrize(("name", "world"), cases())
def test_what_is_written_passes_the_law(
    name: str, world: str, tmp_path: Path, yardsticks: dict[str, dict[str, Scores]]
) -> None:
    path = file(tmp_path, name, world)
    before = load(path).experiment(0)
    text = path.read_text()
    began = time.process_time()
    said = covey("advise", path, "--write")
    spent = time.process_time() - began
    assert said.code == 0, said.err
    after = load(path).experiment(0)
    changed = [
        key
        for key, value in vars(before.algorithm).items()
        if getattr(after.algorithm, key) != value
    ]
    assert changed
    lines = [line for line in said.out.splitlines() if line.startswith("algorithm.")]
    assert [line.split()[0].removeprefix("algorithm.") for line in lines] == changed
    assert all(line.endswith(")") and " -> " in line and "  (" in line for line in lines)
    assert len(path.read_text().splitlines()) >= len(text.splitlines())
    assert path.read_text().count("# why") == text.count("# why")
    if world not in yardsticks:
        yardsticks[world] = {
            key: scores(algorithm, WORLDS[world], 0) for key, algorithm in YARDSTICKS.items()
        }
    good = limits(name, world, last(after), yardsticks[world], slack=1.0)
    assert all(limit.holds for limit in good), good
    bad = limits(name, world, last(before), yardsticks[world], slack=0.0)
    assert not all(limit.holds for limit in bad), (
        "the file passed before, so that this test shows nothing"
    )
    if world == "digits":
        assert spent < 15, f"{spent:.1f} s of one core"  # 1 to 11 seen on shared cores


def test_files_are_the_experiments_of_the_law(tmp_path: Path) -> None:
    for name in ("PFedMe", "SFedHP"):
        from_file = load(file(tmp_path, name)).experiment(0)
        of_law = WORLDS["digits"].experiment(from_file.algorithm, 0)
        assert from_file.fingerprint() == of_law.fingerprint()


def test_a_file_that_was_advised_needs_nothing_more_and_json_has_everything(tmp_path: Path) -> None:
    path = file(tmp_path, "FedRep")
    first = json.loads(covey("advise", path, "--write", "--json").out)
    assert first["written"] == str(path)
    assert [change["field"] for change in first["changes"]] == ["algorithm.head_lr", "algorithm.lr"]
    assert all(change["old"] < change["new"] and change["reason"] for change in first["changes"])
    assert first["advised"]["figures"]["personal"] > first["given"]["figures"]["personal"] + 1
    assert first["part"] == "validation"
    assert first["rounds"] == 3 * first["trial_rounds"] == 60
    assert len(first["trials"]) >= 3
    assert first["trials"][1]["curvature"]["high"] > first["curvature"]["start"]["typical"] > 0
    second = covey("advise", path)
    assert "nothing to change" in second.out
    assert "algorithm." not in second.out
    third = json.loads(covey("advise", path, "--json").out)
    assert third["changes"] == []
    assert third["written"] is None
    assert third["given"]["figures"] == first["advised"]["figures"], (
        "a trial is a function of the setting alone"
    )


def test_without_write_the_file_is_as_it_was_and_the_command_is_said(tmp_path: Path) -> None:
    path = file(tmp_path, "FedRep")
    text = path.read_bytes()
    said = covey("advise", path)
    assert f"covey advise {path} --write" in said.out
    assert path.read_bytes() == text
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--write"], "none was given: covey advise my.toml --write"),
        ([DEMO, "--write"], "is the demo that covey ships; copy it"),
        (["FILE", "rounds=3", "--write"], "does not say rounds=3; write that into the file first"),
        (["FILE", "--fast", "--write"], "--fast tries nothing"),
    ],
)
def test_what_write_refuses(words: list[object], what: str, tmp_path: Path) -> None:
    path = file(tmp_path, "FedRep")
    text = path.read_bytes()
    demo = DEMO.read_bytes()
    assert what in exits(2, "advise", *(path if word == "FILE" else word for word in words)).err
    assert path.read_bytes() == text
    assert DEMO.read_bytes() == demo


def test_a_file_that_may_not_be_replaced_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path, "FedRep")
    text = path.read_bytes()

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("covey.atomic.os.replace", full)
    assert "No space left" in exits(4, "advise", path, "--write").err
    assert path.read_bytes() == text
    assert sorted(tmp_path.iterdir()) == [path]


def test_fast_runs_nothing_and_theory_prints_the_theorems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "covey.advice.command.advice.improve", lambda *a, **k: pytest.fail("something was run")
    )
    assert "Theorem" not in exits(0, "advise", *SMALL, "--fast").out
    theory = covey("advise", *SMALL, "--fast", "--theory")
    assert "Theorem 3 of sFedHP" in theory.out
    assert "personal_lr*lam" in covey("advise", *UNSTABLE, "--fast").out


UNSTABLE = (
    *SMALL[:-1], "algorithm.name=pfedme", "algorithm.lam=30", "algorithm.personal_lr=0.09",
    "algorithm.lr=0.005", "algorithm.steps=5", "algorithm.local_rounds=20",
)  # fmt: skip


def test_certain_divergence_is_exit_code_2_until_it_is_written(tmp_path: Path) -> None:
    bad = exits(2, "advise", *UNSTABLE, "--json")
    said = json.loads(bad.out)
    assert said["advice"][0]["level"] == "error"
    assert said["smoothness"] > 0
    assert "algorithm.personal_lr" in [change["field"] for change in said["changes"]]
    path = tmp_path / "bad.toml"
    path.write_text("rounds = 4\n[algorithm]\nname = \"pfedme\"\nlam = 30.0\npersonal_lr = 0.09\n"
                    "lr = 0.005\nsteps = 5\nlocal_rounds = 20\n"
                    '[data]\nname = "digits"\ndevices = 6\n[model]\nname = "linear"\n')  # fmt: skip
    exits(2, "advise", path, "--fast")
    exits(0, "advise", path, "--write")
    assert tomllib.loads(path.read_text())["algorithm"]["personal_lr"] != 0.09
    exits(0, "advise", path, "--fast")


LINEAR = (*SMALL[:-1], "model.name=linear", "l2=0.01", "--fast", "--theory")


@pytest.mark.parametrize(
    ("name", "theorem"),
    [("pfedme", "Theorem 1 of pFedMe"), ("fedmac", "Theorem 1 of FedMac"), ("sfedhp", "Theorem 2 of sFedHP")],
)  # fmt: skip
def test_theorems_on_strong_convexity_are_printed_for_a_linear_model_with_l2(
    name: str, theorem: str
) -> None:
    assert theorem in covey("advise", *LINEAR, f"algorithm.name={name}").out
    nonconvex = exits(0, "advise", *LINEAR, f"algorithm.name={name}", "model.name=mlp")
    assert theorem not in nonconvex.out
    assert theorem not in covey("advise", *LINEAR, f"algorithm.name={name}", "loss=focal").out


def test_a_schedule_leaves_no_divergence_certain() -> None:
    words = ("advise", *UNSTABLE, "--fast")
    exits(2, *words)
    for schedule in ('solver={name="sgd",schedule="linear"}', "schedules.personal_lr=cosine"):
        assert "warning (one round) while every list and schedule" in exits(0, *words, schedule).out


def test_algorithms_without_a_step_say_why() -> None:
    said = exits(0, "advise", *SMALL[:-1], "algorithm.name=pfedgp")
    assert "no change is advised: its loss is a Gaussian process's" in said.out


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[algorithm]\nlr=1 # a\n[data]\nlr = 2\n", "[algorithm]\nlr=0.5 # a\nlam = 3.0\n[data]\nlr = 2\n"),
        (
            "[data]\nlr = 2\n\n[algorithm] # b\n\n# c\n\n",
            "[data]\nlr = 2\n\n[algorithm] # b\nlr = 0.5\nlam = 3.0\n\n# c\n\n",
        ),
        ('[algorithm]\r\nlr = 1\r\nname = "x"\r\n\r\n', '[algorithm]\r\nlr = 0.5\r\nname = "x"\r\nlam = 3.0\r\n\r\n'),
        ("[algorithm]\nlam = 1", "[algorithm]\nlam = 3.0\nlr = 0.5\n"),
        ("algorithm.lr = 1\nseed = 2\n[data]\n", "algorithm.lr = 0.5\nalgorithm.lam = 3.0\nseed = 2\n[data]\n"),
        ('[algorithm]\n"lr" = 1e-3\nlr2 = 4\n', '[algorithm]\n"lr" = 0.5\nlr2 = 4\nlam = 3.0\n'),
    ],
)  # fmt: skip
def test_an_edit_changes_two_numbers_alone(text: str, wanted: str) -> None:
    assert edited(text, "algorithm", {"lr": 0.5, "lam": 3.0}) == wanted


@pytest.mark.parametrize(
    "text",
    [
        'algorithm = { name = "x", lr = 1 }\n',
        "seed = 1\n",
        "[algorithm]\nlr = [\n 1,\n 2]\n",
        '[algorithm]\nname = """\nlr = 1"""\n',
    ],
)
def test_an_edit_refuses_what_it_cannot_change(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write into it: lr = 0\.5"):
        edited(text, "algorithm", {"lr": 0.5})


ONCE = """
import torch
from torch import nn

class {name}(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return torch.special.i1(x)  # no layer is known for it
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def backward(ctx, g):
        {backward}
"""
NET = """
class Net(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
    def forward(self, x):
        return First.apply(self.layer(x))
"""
REFUSES = 'raise RuntimeError("no derivative")'
DETACHES = "return 2 * g.detach()"


@pytest.mark.parametrize(
    ("module", "refuses", "code", "said"),
    [
        ("mine_refuses", True, 2, "cannot be measured: no derivative `--fast` does without"),
        ("mine_detaches", False, 0, "no change is advised: the loss has no curvature"),
    ],
)
def test_a_model_without_second_derivatives(
    module: str, refuses: bool, code: int, said: str, tmp_path: Path
) -> None:
    first = "return Second.apply(g)" if refuses else DETACHES
    source = (
        ONCE.format(name="Second", backward=REFUSES)
        + ONCE.format(name="First", backward=first)
        + NET
    )
    (tmp_path / f"{module}.py").write_text(source)
    path = tmp_path / "once.toml"
    path.write_text('rounds = 2\n[algorithm]\nname = "fedavg"\nlr = 0.001\n'
                    f'[data]\nname = "digits"\ndevices = 4\n[model]\nname = "{module}:Net"\n')  # fmt: skip
    advised = covey("advise", path)
    assert advised.code == code
    assert said in advised.out + advised.err
    exits(0, "advise", path, "--fast")
