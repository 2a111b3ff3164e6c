"""The generated parts of the docs site, and its table of contents.

`COVEY_TEST_ALL` builds the whole site where mkdocs is installed, which takes half a minute.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from covey.algorithms import ALGORITHMS
from tools import licences
from tools.site import api, decisions, linked

ROOT = Path(__file__).parent.parent
NAV = re.findall(r"^ +- .+?: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """The pages of the API."""
    return api.pages()


def test_every_entry_of_the_contents_has_a_page(reference: dict[str, str]) -> None:
    generated = reference | decisions.pages(ROOT) | linked.pages(ROOT) | licences.pages()
    assert len(NAV) > 20
    for uri in NAV:
        assert uri in generated or (ROOT / "docs" / uri).exists(), uri


def test_links_out_of_docs_lead_to_pages_of_the_site() -> None:
    text = "[a](../examples/radio.toml) [b](../experiments/RESULTS.md#kills) [c](links.md) `[d](x)`"
    out = linked.relinked(ROOT, text, "radio.md")
    assert "[a](examples/radio.toml.md)" in out
    assert "[b](experiments/RESULTS.md#kills)" in out
    assert "[c](links.md)" in out
    record = "decisions/0001-rows-and-programs.md"
    deeper = linked.relinked(ROOT, "[a](../../examples/own_data)", record)
    assert deeper == "[a](../examples/own_data/index.md)"


def test_text_in_fences_is_not_changed() -> None:
    text = "```\n[a](../README.md)\n```\n[b](../README.md)"
    out = linked.relinked(ROOT, text, "data.md")
    assert out == "```\n[a](../README.md)\n```\n[b](index.md)"


def test_linked_files_are_pages_and_their_pictures_are_there() -> None:
    pages = linked.pages(ROOT)
    assert "[radio.cells]" in pages["examples/radio.toml.md"]
    assert "## pumps.csv" in pages["examples/own_data/index.md"]
    assert "The first 200 of 637 lines" in pages["examples/own_data/index.md"]
    assert all(path.exists() for path in linked.pictures(ROOT).values())


def test_the_index_of_decisions_is_complete() -> None:
    index = decisions.pages(ROOT)["decisions/index.md"]
    records = list((ROOT / "docs" / "decisions").glob("*.md"))
    assert index.count("](") == len(records)
    assert "Theory checks before a run, and when they are errors](0012-advice.md)" in index


def test_the_api_has_every_algorithm_with_its_fields(reference: dict[str, str]) -> None:
    page = reference["api/covey.algorithms.md"]
    for kind in ALGORITHMS.values():
        assert f"heading: covey.algorithms.{kind.__name__}\n" in page
    assert "| `lam` | `5.0` | a number above 0: pull of the personal model" in page


def test_the_api_names_where_a_name_is_defined(reference: dict[str, str]) -> None:
    page = reference["api/covey.md"]
    assert "::: covey.runs.experiment.Experiment\n" in page
    assert "::: covey.Rows\n" in page  # an alias of torch's, which is not searched
    assert "::: torch" not in page


def test_a_licence_of_the_gpl_family_or_none_is_refused() -> None:
    listed = {item.name: item for item in licences.packages()}
    assert {"torch", "numpy", "rich"} <= set(listed)
    assert "pytest" not in listed
    assert listed["numpy"].permissive
    for licence in ("GPL-3.0-only", "LGPLv2+", "GNU AGPL", licences.UNKNOWN):
        assert not licences.Package("name", "1", licence, "").permissive


@pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="half a minute; COVEY_TEST_ALL=1")
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ended = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for page in tmp_path.rglob("*.html"):
        assert not re.search(r'(src|rel="stylesheet" href)="https?://', page.read_text()), page
    assert "<math" in (tmp_path / "idea.html").read_text()
