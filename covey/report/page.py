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
"""The parts of the page's script, in the order in which they are joined."""

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def build(facts: Mapping[str, Any], live: bool = False) -> str:
    """The page of these facts (covey/report/facts.py).

    A `live` page reads `facts.json` of its own server again whenever `events` says so.
    """
    names = [*SCRIPTS, "live"] if live else SCRIPTS
    joined = "\n".join(_file(f"{name}.js") for name in names)
    css = _file("report.css")
    js = f'"use strict";\n(() => {{\n{joined}}})();\n'
    theme = _file("theme.js")
    parts = {
        "title": html.escape(f"{facts['title']} · covey"),
        "policy": _policy(css, [theme, js], live),
        "css": css,
        "theme": theme,
        "data": _json(facts),
        "js": js,
    }
    return _PLACE.sub(lambda place: parts[place[1]], _file("report.html"))


def _file(name: str) -> str:
    return resources.files("covey.report").joinpath("page", name).read_text(encoding="utf-8")


def _json(facts: Mapping[str, Any]) -> str:
    """The facts as JSON inside HTML: no name in them can end the element."""
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for letter in "<\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _policy(css: str, scripts: list[str], live: bool) -> str:
    """The content policy: this style, these scripts, and no request but to a live page's server."""
    rules = [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        f"style-src {_hash(css)}",
        f"script-src {' '.join(_hash(script) for script in scripts)}",
    ]
    if live:
        rules.append("connect-src 'self'")
    return "; ".join(rules)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
