"""Files of the repository outside docs/ as pages of the site.

The pages of docs/ link to experiments/, examples/ and others by relative paths, as they must on any
site that shows the repository. Each of these files becomes a page, at its path in the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^```.*?^```$", re.S | re.M)
PICTURES = (".png", ".svg", ".jpg")
ALWAYS = (
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/RESULTS.md",
    "experiments/RESULTS.md",
    "experiments/papers/README.md", "experiments/papers/pfedme.md", "experiments/papers/fedmac.md",
    "experiments/papers/permfl.md",
)  # fmt: skip
MAX_LINES = 200


def pages(root: Path) -> dict[str, str]:
    """The text of every page of this kind, by its address in the site."""
    texts = {}
    for name in _reached(root):
        if not name.endswith(PICTURES):
            texts[address(root, name)] = _text(root, name)
    return texts


def pictures(root: Path) -> dict[str, Path]:
    """The pictures that these pages show, by address."""
    names = [name for name in _reached(root) if name.endswith(PICTURES)]
    return {name: root / name for name in names}


def relinked(root: Path, markdown: str, uri: str) -> str:
    """The text of a page with its links out of docs/ changed to addresses of the site."""
    source = _source(root, uri)

    def change(match: re.Match[str]) -> str:
        start, path, anchor, end = match.groups()
        if "://" in path or path.startswith("mailto:"):
            return match[0]
        target = address(root, _joined(source, path))
        relative = posixpath.relpath(target, posixpath.dirname(uri) or ".")
        return f"{start}{relative}{anchor or ''}{end}"

    return _outside_fences(markdown, lambda text: LINK.sub(change, text))


def address(root: Path, name: str) -> str:
    """Where a file of the repository stands in the site.

    >>> root = Path(__file__).parents[2]
    >>> address(root, "docs/links.md"), address(root, "examples/radio.toml")
    ('links.md', 'examples/radio.toml.md')
    """
    if name == "README.md":
        return "index.md"
    path = root / name
    inside = name.removeprefix("docs/")
    if path.is_dir():
        return f"{inside}/index.md"
    if path.suffix == ".md" or name.endswith(PICTURES):
        return inside
    return f"{inside}.md"


@cache
def _reached(root: Path) -> tuple[str, ...]:
    """The files outside docs/ that pages link to, and those that these link to in turn."""
    waiting = [*ALWAYS]
    for page in sorted((root / "docs").rglob("*.md")):
        waiting += _targets(root, page.relative_to(root).as_posix())
    reached: dict[str, None] = {}
    while waiting:
        name = waiting.pop()
        if name.startswith("docs/") or name == "README.md" or name in reached:
            continue
        if not (root / name).exists():
            continue  # a broken link stays as it is, and mkdocs names it
        reached[name] = None
        if name.endswith(".md"):
            waiting += _targets(root, name)
    return tuple(sorted(reached))


def _targets(root: Path, name: str) -> list[str]:
    """The files that a page links to, by their paths in the repository."""
    text = FENCE.sub("", (root / name).read_text())
    paths = [match[1] for match in LINK.findall(text)]
    return [_joined(name, path) for path in paths if "://" not in path]


def _joined(source: str, path: str) -> str:
    """
    >>> _joined("docs/decisions/0001-rows.md", "../../examples/own_data/")
    'examples/own_data'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _source(root: Path, uri: str) -> str:
    """The file of the repository that a page of the site comes from."""
    if (root / "docs" / uri).exists():
        return f"docs/{uri}"
    return uri


def _text(root: Path, name: str) -> str:
    path = root / name
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".toml", ".csv", ".py"))
        return f"# {name}\n\n" + "\n".join(_listing(file, file.name) for file in files)
    return f"# {name}\n\n" + _listing(path, "")


def _listing(path: Path, title: str) -> str:
    """A file as a block of code, under a heading where it has a title."""
    lines = path.read_text().splitlines()
    shown = lines[:MAX_LINES]
    heading = f"## {title}\n\n" if title else ""
    block = "\n".join([f"```{path.suffix[1:]}", *shown, "```", ""])
    if len(lines) > MAX_LINES:
        block += f"\nThe first {MAX_LINES} of {len(lines)} lines.\n"
    return heading + block


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text with what lies outside fences changed."""
    parts = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])
