"""The report of runs as one HTML page that needs no network: its text from their facts.

The page's style and scripts lie in covey/report/page. A strict content policy names them by their
hashes, so that nothing else runs, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from covey import rooms

SCRIPTS = (
    "base",
    "facts",
    "state",
    "figure",
    "overview",
    "curves",
    "tree",
    "node",
    "devices",
    "metrics",
    "links",
    "settings",
    "main",
)
"""The parts of the page's script, in the order in which they are joined; those of rooms come before
the last.
"""

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def build(facts: Mapping[str, Any], live: bool = False) -> str:
    """The page of these facts (covey/report/facts.py).

    A `live` page reads `facts.json` of its own server again whenever `events` says so.
    """
    scripts = [_file(f"{name}.js") for name in SCRIPTS]
    scripts[-1:-1] = [_panel(where) for where in rooms.added("panels").values()]
    if live:
        scripts.append(_file("live.js"))
    joined = "\n".join(scripts)
    css = _file("report.css")
    js = f'"use strict";\n(() => {{\n{joined}}})();\n'
    theme = _file("theme.js")
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for letter in "<\u2028\u2029":  # no name in the facts can end the element
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    rules = [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        f"style-src {_hash(css)}",
        f"script-src {_hash(theme)} {_hash(js)}",
    ]
    if live:  # it asks its own server alone
        rules.append("connect-src 'self'")
    parts = {
        "title": html.escape(f"{facts['title']} · covey"),
        "policy": "; ".join(rules),
        "css": css,
        "theme": theme,
        "data": text,
        "js": js,
    }
    return _PLACE.sub(lambda place: parts[place[1]], _file("report.html"))


def _file(name: str) -> str:
    return (
        resources.files("covey.report").joinpath("page", "assets", name).read_text(encoding="utf-8")
    )


def _panel(where: str) -> str:
    """The script of a room, as package:file."""
    package, _, name = where.partition(":")
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
