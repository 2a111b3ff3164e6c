"""A language model from a file: its run, its table, predictions of texts, a new speaker."""

from pathlib import Path

import numpy as np
import pytest

import covey
from covey.data.arrays.windows import UNKNOWN
from covey.errors import ConfigError, DataError
from covey.files.config import load
from tests.cli.command import BASE, SPEECH, exits
from tests.cli.command import covey as command

SMALL = (
    "rounds=1", "score_every=1", "compare=[]", "algorithm.steps=1", "algorithm.tune_steps=1",
    "data.length=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one round on texts in files."""
    place = tmp_path_factory.mktemp("speech")
    texts = place / "texts"
    texts.mkdir()
    for name in ("ada", "bob"):
        (texts / f"{name}.txt").write_text(f"{name} says to be or not to be " * 9, encoding="utf-8")
    file = place / "own.toml"
    lines = SPEECH.read_text(encoding="utf-8").splitlines()
    data = f'name = "text"\npath = "{texts}"'
    dropped = ("devices =", "characters =")
    kept = [line for line in lines if not line.startswith(dropped)]
    file.write_text("\n".join(kept).replace('name = "speakers"', data), encoding="utf-8")
    ended = exits(0, "run", file, *SMALL, "--out", place / "run")
    assert "global perplexity" in ended.out
    assert "test accuracy in % and perplexity, per token" in ended.out
    return place / "run"


def test_a_finished_run_takes_texts(folder: Path) -> None:
    run = covey.load(folder)
    assert run.names.tokens[0] == UNKNOWN
    said = run.predict("to be o", device="bob")
    assert said.shape == (1, 8)
    assert set(said.flatten()) <= set(run.names.tokens)
    both = run.probabilities(["to be", "or#not"], device="bob")
    assert both.shape == (2, 8, len(run.names.tokens))
    ids = np.array([[run.names.tokens.index(letter) for letter in "to be or"]])
    assert np.array_equal(run.predict(ids, device="bob"), run.predict("to be or", device="bob"))
    with pytest.raises(DataError, match="has 9 characters, but this run was trained on 8"):
        run.predict("to be or ", device="bob")
    with pytest.raises(DataError, match="the token ids are 0 to 99"):
        run.predict(np.array([[99, 0, 0, 0, 0, 0, 0, 0]]), device="bob")


def test_devices_are_listed_by_perplexity(folder: Path) -> None:
    ended = command("show", folder, "--devices")
    head, worst, best = [line.split() for line in ended.out.splitlines()[-3:]]
    assert head[-2:] == ["personal", "perplexity"]
    assert float(worst[-1]) >= float(best[-1])


def test_a_new_speaker_gets_a_model_of_its_own(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "eve.txt"
    text.write_text("eve says not to be " * 6, encoding="utf-8")
    assert "test perplexity" in exits(0, "personalize", folder, "--data", text).out


def test_the_example_is_a_file_of_speakers() -> None:
    experiment = load(SPEECH, ["data.devices=2", "data.characters=200"]).experiment(0)
    assert experiment.data.name == "speakers"
    assert experiment.data.by_position
    assert experiment.model(experiment.data.x[:2]).shape == (2, 24, experiment.data.tokens)


def test_a_model_of_tokens_needs_tokens() -> None:
    with pytest.raises(ConfigError, match="takes token ids, but the data digits has numbers"):
        load(BASE, ["model={name = 'gru'}"]).experiment(0)
