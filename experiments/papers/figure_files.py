"""Figures of an experiment in one JSON file, which its script completes row by row."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def arguments(description: str | None, out: Path) -> argparse.ArgumentParser:
    """What every script of this kind can be asked; `out` is where its file is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", default="*", help="only settings that match this")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--show", action="store_true", help="print what is there, and run nothing")
    return parser


def read(path: Path) -> dict[str, Any]:
    """The figures of a file; none where there is no file."""
    if not path.exists():
        return {}
    figures: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return figures


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Replace the file at once, so that it is never half written."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
