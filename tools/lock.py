"""`make lock`: requirements.lock, the first part of constraints.txt with the hashes of an index.

Only wheels of Linux count, for the versions of Python that covey is tried with: a source
distribution would run code of its own when it is built. torch, which has several builds, is left
out.
"""

from __future__ import annotations

import html
import re
import sys
import urllib.request
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

INDEX = "https://pypi.org/simple"
LEFT_OUT = ("torch", "covey")
PYTHONS = ("py3", "cp311", "cp312", "cp313")
MACHINES = ("x86_64", "aarch64")
HEAD = """\
# Made by `make lock` from constraints.txt: all that `make demo` and `make test` install but torch
# and covey, with the hashes of their wheels for Linux. `make locked` installs it.
"""
_LINK = re.compile(r'<a [^>]*href="[^"#]*#sha256=([0-9a-f]{64})"[^>]*>([^<]+)</a>')


def pinned(text: str) -> dict[str, str]:
    """The versions in the first part of a file of constraints, by name; torch is left out."""
    lines = [line for line in text.split("\n\n")[0].splitlines() if not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {name: version for name, version in pairs if name not in LEFT_OUT}


def hashes(name: str, version: str, page: str) -> list[str]:
    """The hashes of a version's wheels, from the page of an index; sorted."""
    return sorted(
        {hash for hash, file in _LINK.findall(page) if _fits(html.unescape(file), name, version)}
    )


def _fits(file: str, name: str, version: str) -> bool:
    """Whether a file is a wheel of this version that covey may run with."""
    try:
        its_name, its_version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    if its_name != canonicalize_name(name) or str(its_version) != version:
        return False
    return any(_runs(tag.interpreter, tag.abi, tag.platform) for tag in tags)


def _runs(python: str, abi: str, platform: str) -> bool:
    machine = platform == "any" or (
        platform.startswith("manylinux") and platform.endswith(MACHINES)
    )
    old = abi == "abi3" and re.fullmatch(r"cp3\d+", python) is not None  # and all later ones
    return machine and (old or (python in PYTHONS and abi in ("none", python)))


def locked(pins: dict[str, str]) -> str:
    """The text of requirements.lock."""
    out = [HEAD]
    for name, version in sorted(pins.items()):
        with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
            found = hashes(name, version, answer.read().decode())
        if not found:
            sys.exit(f"error: the index has no wheel of {name} {version} for Linux.")
        out.append(
            " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in found)])
        )
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    text = Path("constraints.txt").read_text(encoding="utf-8")
    Path("requirements.lock").write_text(locked(pinned(text)), encoding="utf-8")
