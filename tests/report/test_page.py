"""The report's page: its data, its policy, and that no name in it can do harm."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import covey
from covey.report.page.page import build
from tests.report.made_facts import FLAT, LOCAL, Facts, Shape, facts

PACKAGE = Path(covey.__file__).parent
ASSETS = PACKAGE / "report" / "page" / "assets"
HOSTILE = "</script><img src=x onerror=alert(1)><!--\u2028'\"&"
PLAIN = facts(("sFedHP", Shape()), ("FedAvg", FLAT), ("Local", LOCAL))
ADDRESS = re.compile(r"""(?:src|href|action)\s*=|url\(|@import|\bimport\s*\(|fetch\(|EventSource""")


class Elements(HTMLParser):
    """The tags of a page with their attributes, and the texts of its scripts and its style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: str | None = None  # the script or style that is read
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.open = dict(attrs).get("id") or tag
            self.texts.append((self.open, ""))

    def handle_endtag(self, tag: str) -> None:
        self.open = None

    def handle_data(self, data: str) -> None:
        if self.open:
            name, text = self.texts.pop()
            self.texts.append((name, text + data))

    def policy(self) -> dict[str, list[str]]:
        """The content policy: its directives and their sources."""
        metas = [attributes for tag, attributes in self.tags if tag == "meta"]
        text = next(meta["content"] for meta in metas if "http-equiv" in meta)
        rules = [rule.split() for rule in (text or "").split(";")]
        return {name: sources for name, *sources in rules}


def embedded(page: str) -> Facts:
    """The facts that a page holds."""
    return json.loads(dict(Elements(page).texts)["data"])


def test_the_page_holds_its_facts() -> None:
    assert embedded(build(PLAIN)) == PLAIN


def test_a_hostile_name_is_data_only() -> None:
    hostile = facts((HOSTILE, Shape(names=[HOSTILE] * 12)), title=HOSTILE)
    hostile["populations"][0]["classes"] = [HOSTILE] * 10
    page = build(hostile)
    assert embedded(page) == hostile
    assert [tag for tag, _ in Elements(page).tags] == [
        tag for tag, _ in Elements(build(PLAIN)).tags
    ]


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_allows_the_page_s_own_code_and_nothing_else(live: bool) -> None:
    elements = Elements(build(PLAIN, live=live))
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for name, text in elements.texts:
        if name in hashes:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            hashes[name].append(f"'sha256-{digest}'")
    policy = elements.policy()
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == hashes["script"]
    assert policy["style-src"] == hashes["style"]
    assert policy.get("connect-src") == (["'self'"] if live else None)


def test_the_page_names_no_address() -> None:
    """What could ask for something: links to a part of the page itself are allowed."""
    page = build(PLAIN)
    asks = [page[match.start() : match.end() + 40] for match in ADDRESS.finditer(page)]
    assert [text for text in asks if not text.startswith('href="#')] == []
    http = set(re.findall(r"https?://[^\s\"'`)]+", page))
    assert http == {"http://www.w3.org/2000/svg"}  # the name of SVG


def test_a_live_page_asks_its_own_server_only() -> None:
    page = build(PLAIN, live=True)
    assert re.findall(r"(?:fetch|EventSource)\(\"([^\"]*)\"", page) == ["facts.json", "events"]


SCRIPTS = [*ASSETS.glob("*.js"), *PACKAGE.glob("*/panel.js")]
"""The scripts of the page, those of rooms too."""


def test_every_script_is_part_of_the_page() -> None:
    page = build(PLAIN, live=True)
    assert [file.name for file in SCRIPTS if file.read_text() not in page] == []
    places = re.findall(r"^PARTS\[(\d+)\] = function \w+Part\(\) {$", page, re.M)
    assert len(set(places)) == len(places) > 10


def test_names_never_become_markup_and_lines_are_short() -> None:
    """The scripts set text alone; none writes HTML."""
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
    for file in (*SCRIPTS, ASSETS / "report.css"):
        text = file.read_text()
        assert not [word for word in words if word in text], file.name
        assert [line for line in text.splitlines() if len(line) > 100] == [], file.name


def test_not_a_number_is_refused() -> None:
    broken = facts(("FedAvg", FLAT))
    broken["runs"][0]["seeds"][0]["seconds"] = float("nan")
    with pytest.raises(ValueError, match="JSON compliant"):
        build(broken)


def test_a_thousand_devices_and_800_rounds_take_less_than_3_mb() -> None:
    big = Shape(sizes=(1, 20, 1000), rounds=800)
    page = build(facts(("sFedHP", big), ("FedAvg", big), ("Local", big)))
    assert len(page.encode()) < 3_000_000
