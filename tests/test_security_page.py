"""SECURITY.md: every promise names a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_promise_has_a_test() -> None:
    rows = re.findall(r"^\|(?! ?who|---)(.*)\|(.*)\|(.*)\|$", PAGE, re.M)
    assert len(rows) > 15
    for who, promise, tests in rows:
        named = re.findall(r"`(tests/[^`]*)`", tests)
        assert named, f"{who}: {promise}"
        for name in named:
            file, _, function = name.partition("::")
            assert (ROOT / file).exists(), name
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not function or f"def {function}(" in text, name
            assert function or not file.startswith("tests/deployed"), f"{name}: which test?"


@pytest.mark.parametrize(
    "name",
    ["attacks", "authority", "checked", "doubles", "epochs", "fleet", "hostile", "hostile_parent"],
)
def test_what_holds_promises_is_named(name: str) -> None:
    assert f"tests/deployed/test_{name}.py::" in PAGE


def test_nobody_has_to_write_to_an_address() -> None:
    assert "@" not in PAGE
    assert "through the repository's host" in re.sub(r"\s+", " ", PAGE)
