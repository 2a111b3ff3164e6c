"""The page of all options is what the classes of options say, and every option has a meaning."""

import pytest

from covey.fields import meanings, options
from covey.files.settings import SETTINGS
from covey.runs.settings import ExperimentSettings
from tools import reference


def test_the_page_is_up_to_date() -> None:
    told = "run python -m tools.reference"
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), told


RADIO = ["radio", "radio.cells", "radio.devices", "radio.channel"]


@pytest.mark.parametrize("name", ["experiment", "tree", "stop", "deploy", "node", "model", *RADIO])
def test_every_option_has_a_meaning(name: str) -> None:
    kind = SETTINGS[name]
    assert [key for key in options(kind) if not meanings(kind).get(key)] == []


def test_options_are_on_the_page() -> None:
    page = reference.page()
    assert [key for key in options(ExperimentSettings) if f"| `{key}` |" not in page] == []
