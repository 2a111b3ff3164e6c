"""Draws which parts of covey import which: `python -m tools.imports OUT.png [REVISION ...]`.

Each revision of the repository is a panel; "." is the working tree. A node is a folder of covey, or
a module that lies at its root. A node stands above all that it imports; parts that import each
other stand on one level and are red.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Graph = dict[str, set[str]]
ROOT = Path(__file__).parents[1]
BASE = {"draws", "errors", "installed", "origin", "tree", "types"}
"""The modules at the root that everything stands on, drawn as one node where there are folders for
the rest.
"""


def sources(revision: str) -> dict[str, str]:
    """The text of every module of covey by its path, in the working tree or in a revision."""
    if revision == ".":
        return {
            str(path.relative_to(ROOT)): path.read_text()
            for path in sorted((ROOT / "covey").rglob("*.py"))
        }
    listed = _git("ls-tree", "-r", "--name-only", revision, "covey").split()
    return {path: _git("show", f"{revision}:{path}") for path in listed if path.endswith(".py")}


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def graph(texts: dict[str, str]) -> tuple[Graph, int]:
    """Which node imports which, and the number of import statements between different nodes."""
    folders = {Path(path).parts[1] for path in texts if len(Path(path).parts) > 2}
    modules = {Path(path).stem for path in texts if len(Path(path).parts) == 2}
    few = modules - {"__init__", "__main__"} <= BASE

    def node(name: str) -> str:
        return "base" if few and name in BASE else name

    out: Graph = defaultdict(set)
    count = 0
    for path, text in texts.items():
        parts = Path(path).parts
        own = node(parts[1] if len(parts) > 2 else Path(path).stem)
        if own in ("__init__", "__main__"):
            continue
        out[own] |= set()
        for name in imported(text):
            other = node(name)
            if (name in folders or name in modules) and other != own:
                out[own].add(other)
                count += 1
    return dict(out), count


def imported(text: str) -> list[str]:
    """The first name below covey of every import, also of those inside functions and for types
    alone.
    """
    names = []
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ImportFrom) and statement.module == "covey":
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(
            "covey."
        ):
            names.append(str(statement.module).split(".")[1])
    return names


def cycles(edges: Graph) -> dict[str, frozenset[str]]:
    """For each node all nodes that it imports, directly or not, and that import it; itself alone in
    a graph without cycles.
    """
    reach: Graph = {}
    for start in edges:
        seen: set[str] = set()
        stack = [start]
        while stack:
            for other in edges.get(stack.pop(), set()) - seen:
                seen.add(other)
                stack.append(other)
        reach[start] = seen
    return {a: frozenset({a} | {b for b in reach[a] if a in reach.get(b, set())}) for a in edges}


def heights(edges: Graph) -> dict[str, int]:
    """How high each node stands: above everything it imports, on one level with those in a cycle
    with it.
    """
    cycle = cycles(edges)
    known: dict[frozenset[str], int] = {}

    def height(group: frozenset[str]) -> int:
        if group not in known:
            below = {cycle[b] for a in group for b in edges.get(a, set()) if b not in group}
            known[group] = 1 + max((height(other) for other in below), default=-1)
        return known[group]

    return {name: height(cycle[name]) for name in edges}


def panel(axes: Any, title: str, edges: Graph) -> None:
    """Draw one graph."""
    levels: dict[int, list[str]] = defaultdict(list)
    cycle = cycles(edges)
    for name, level in heights(edges).items():
        levels[level].append(name)
    place = {}
    for level, names in levels.items():
        for number, name in enumerate(sorted(names)):
            place[name] = ((number + 1) / (len(names) + 1), level)
    for name, others in edges.items():
        for other in others:
            red = other in cycle[name]
            style = {
                "arrowstyle": "-|>",
                "color": "#c0392b" if red else "#9aa5b1",
                "lw": 1.0 if red else 0.5,
            }
            axes.annotate(
                "", place[other], place[name], arrowprops={**style, "shrinkA": 8, "shrinkB": 8}
            )
    for name, (x, y) in place.items():
        red = len(cycle[name]) > 1
        box = {
            "boxstyle": "round,pad=0.25",
            "fc": "#fdecea" if red else "#eef3f8",
            "ec": "#c0392b" if red else "#5b7a99",
        }
        axes.text(x, y, name, ha="center", va="center", fontsize=7.5, bbox=box, zorder=3)
    in_cycles = sum(len(group) > 1 for group in cycle.values())
    facts = f"{len(edges)} parts on {len(levels)} levels, {in_cycles} of them in cycles"
    axes.set_title(f"{title}\n{facts}", fontsize=9)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.7, max(levels) + 0.7)
    axes.axis("off")


def draw(out: Path, revisions: list[str]) -> None:
    """One panel for each revision."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(revisions), figsize=(7.2 * len(revisions), 8.5), squeeze=False
    )
    for revision, ax in zip(revisions, axes[0], strict=True):
        edges, count = graph(sources(revision))
        panel(ax, f"{'now' if revision == '.' else 'before'}: {count} imports between parts", edges)
    figure.tight_layout()
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:] or ["."])
