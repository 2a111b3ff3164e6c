"""TOML that is deep, huge or not finite ends in a message and exit code 2."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from covey.errors import ConfigError, CoveyError
from covey.fields import options
from covey.files import config
from covey.files.validate import check_plain
from tests.cli.command import exits

DEEP = 5000
FILES = {
    "deep lists": "seed = " + "[" * DEEP + "]" * DEEP,
    "deep lists of tables": "algorithm = " + "{a = [" * DEEP + "]}" * DEEP,
    "deep tables": "algorithm = " + "{a = " * 1000 + "1" + "}" * 1000,
    "a deep key": ".".join("a" * DEEP) + " = 1",
    "a deep header": "[" + ".".join("a" * DEEP) + "]",
    "deep options of an algorithm": "[algorithm]\nname = 'fedavg'\n[data" + ".a" * DEEP + "]",
    "lists of 100 levels": "private = " + "[" * 100 + "]" * 100,
    "a number of 5,000 digits": "rounds = " + "9" * 5000,
    "a hexadecimal number of 5,000 digits": "rounds = 0x" + "f" * 5000,
    "a number of 24 digits": "rounds = " + "9" * 24,
    "infinity": "seed = inf",
    "not a number, deep inside": "[devices]\nweight = [1.0, nan]",
    "a date": "seed = 2020-01-01",
    "no text": "\0",
    "half a file": "[algorithm",
}


@pytest.mark.parametrize("what", FILES)
def test_hostile_toml_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(FILES[what])
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("command", ["run", "advise"])
def test_it_ends_with_exit_code_2(command: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    for what, told in (("infinity", "seed = inf"), ("deep lists", "too deep")):
        path.write_text(FILES[what])
        ended = exits(2, command, path)
        assert told in ended.err
        assert "Traceback" not in ended.err


CHANGES = [
    "rounds=" + "[" * DEEP + "]" * DEEP,
    ".".join("a" * DEEP) + "=1",
    "rounds=" + "9" * 5000,
    "rounds=" + "9" * 24,
    "algorithm.lam1=inf",
    "data.split=[nan, 0.5, 0.5]",
    "holdout_devices=1" + "0" * 23,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[:20])
def test_hostile_changes_are_refused(change: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(None, [change])
    assert len(str(caught.value)) < 1000


def test_what_is_plain_passes() -> None:
    check_plain(
        {"a": [1, -1.5, "inf", True, {"b": [[[1e308, 0.0]]]}], "c": 2**63 - 1, "d": -(2**63)}
    )


HOSTILE = [
    *(
        "0", "-1", "1" + "0" * 23, "1e308", "-1e308", "1e-308", "inf", "-inf", "nan", '""', "[]",
        "true", "{}",
    ),
    *(f'"{"x" * 10_000}"', "9223372036854775807", "[1e308]", "2020-01-01"),
]  # fmt: skip
SMALL = (
    "algorithm.name=fedavg", "tree.edges=none", "data.name=digits", "data.devices=3", "rounds=1",
    "model.name=linear",
)  # fmt: skip


def experiment(*changes: str) -> None:
    made = config.load(None, [*SMALL, *changes])
    made.experiment(made.seed)


def walked(places: list[str], values: list[str], make: Callable[[str], Any]) -> None:
    """A CoveyError or success; a place that takes nothing of all this, or everything, would be
    suspect.
    """
    refused = 0
    for place in places:
        for value in values:
            change = f"{place}={value}"
            try:
                make(change)
            except CoveyError:
                refused += 1
            except Exception as error:
                raise AssertionError(change[:100]) from error
    assert len(places) < refused < len(places) * len(values)


def test_every_key_of_an_experiment_takes_or_refuses_any_value() -> None:
    places = [
        key for key in options(config.Config) if key not in ("device", "algorithm", "data", "model")
    ]
    places += [f"tree.{key}" for key in options(config.TreeConfig)]
    walked(places, HOSTILE, experiment)


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_every_key_of_a_model_takes_or_refuses_any_value(name: str) -> None:
    places = [f"model.{key}" for key in config.defaults("models", name) if key != "name"]
    for place in places:
        for value in HOSTILE:
            with suppress(CoveyError):
                experiment(f"model.name={name}", f"{place}={value}")
