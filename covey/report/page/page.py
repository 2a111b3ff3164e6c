"""The report of runs as one HTML page that needs no network: its text from their facts.

The page's style and scripts lie in covey/report/page/assets. A script that is added there is part
of the page. A strict content policy names them by their hashes, so that nothing else runs, and
forbids every request.
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

_ASSETS = resources.files("covey.report").joinpath("page", "assets")
_OTHERS = ("theme", "main", "live")
"""theme.js is a script of its own; the others end the page's script."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def build(facts: Mapping[str, Any], live: bool = False) -> str:
    """The page of these facts (covey/report/facts.py).

    A `live` page reads `facts.json` of its own server again whenever `events` says so.
    """
    names = ["main", "live"] if live else ["main"]
    scripts = [_file(f"{name}.js") for name in ("base", *parts_of_script())]
    for where in rooms.added("panels").values():
        package, _, name = where.partition(":")
        scripts.append(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
    joined = "\n".join([*scripts, *(_file(f"{name}.js") for name in names)])
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


def parts_of_script() -> list[str]:
    """The parts between base.js and main.js, each with the sections of the page that it adds."""
    names = [file.name.partition(".")[::2] for file in _ASSETS.iterdir()]
    return sorted({stem for stem, kind in names if kind == "js"} - {"base", *_OTHERS})


def _file(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
