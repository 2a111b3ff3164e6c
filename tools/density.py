"""How dense the code is: `python -m tools.density [FOLDER ...]` prints one line of measures for
each folder.

A reader pays for every token, so short functions made of packed lines gain nothing. Aims: at most 7
tokens per line, no line over 100 characters, 12 conditional expressions and 2 tuple assignments of
unrelated values per 1,000 lines, 1 % of vague names, 1 % of functions with a cyclomatic complexity
above 10.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
VAGUE = {"at", "found", "given", "here", "known", "mine", "one", "place", "some", "there", "what"}
"""Names that say nothing of what they hold."""
_LIMIT = 100
_COMPLEX = 10
_SKIPPED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Measures:
    """Sums over some files, and the figures that follow from them."""

    lines: int = 0
    long: int = 0
    code_lines: int = 0
    tokens: int = 0
    conditionals: int = 0
    tuples: int = 0
    names: int = 0
    vague: int = 0
    lengths: list[int] = field(default_factory=list)
    complexities: list[int] = field(default_factory=list)
    typed: int = 0
    documented: int = 0

    def add(self, text: str) -> None:
        """Add one file."""
        tree = ast.parse(text)
        lines = text.splitlines()
        self.lines += len(lines)
        self.long += sum(len(line) > _LIMIT for line in lines)
        self._add_tokens(text, docstrings(tree))
        for node in ast.walk(tree):
            self.conditionals += isinstance(node, ast.IfExp)
            self.tuples += is_packed(node)
            name = bound(node)
            self.names += name is not None
            self.vague += name in VAGUE
            if isinstance(node, _FUNCTIONS):
                self._add_function(node)

    def _add_tokens(self, text: str, skipped: set[int]) -> None:
        rows = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _SKIPPED and token.start[0] not in skipped:
                self.tokens += 1
                rows.add(token.start[0])
        self.code_lines += len(rows)

    def _add_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        text = ast.get_docstring(function, clean=False)
        first = function.body[0]
        length = (function.end_lineno or 0) - function.lineno + 1
        if text is not None:
            length -= (first.end_lineno or 0) - first.lineno + 1
        self.lengths.append(length)
        self.complexities.append(complexity(function))
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        annotated = all(a.annotation for a in named if a.arg not in ("self", "cls"))
        self.typed += annotated and function.returns is not None
        self.documented += text is not None

    def figures(self) -> dict[str, float]:
        """The measures by name."""
        functions = max(len(self.lengths), 1)
        lengths = sorted(self.lengths) or [0]
        return {
            "lines": self.lines,
            "median": statistics.median(lengths),
            "p90": lengths[min(len(lengths) - 1, int(0.9 * len(lengths)))],
            "tokens/line": self.tokens / max(self.code_lines, 1),
            "% > 100": 100 * self.long / max(self.lines, 1),
            "if-else/1000": 1000 * self.conditionals / max(self.lines, 1),
            "tuples/1000": 1000 * self.tuples / max(self.lines, 1),
            "% vague": 100 * self.vague / max(self.names, 1),
            "% complex": 100 * sum(c > _COMPLEX for c in self.complexities) / functions,
            "% typed": 100 * self.typed / functions,
            "% docs": 100 * self.documented / functions,
        }


def docstrings(tree: ast.AST) -> set[int]:
    """The lines of all strings that stand alone: docstrings, and those below a field."""
    out: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return out


def is_packed(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names: `a, b = x, y`.

    >>> texts = ("a, b = x, y", "a, b = b, a", "a, b = f()")
    >>> [is_packed(ast.parse(text).body[0]) for text in texts]
    [True, False, False]
    """
    if (
        not isinstance(node, ast.Assign)
        or not isinstance(node.value, ast.Tuple)
        or len(node.targets) != 1
    ):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple):
        return False
    left = sorted(ast.unparse(part) for part in target.elts)
    right = sorted(ast.unparse(part) for part in node.value.elts)
    return left != right


def bound(node: ast.AST) -> str | None:
    """The name that a node binds: a variable or an argument."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
        return node.arg
    return None


def complexity(function: ast.AST) -> int:
    """The number of independent ways through a function (McCabe), without the functions inside it.

    >>> complexity(ast.parse("def f(x):\\n    return 1 if x and x > 2 else 0").body[0])
    3
    """
    return 1 + sum(_ways(node) for node in _inside(function))


def _ways(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, _BRANCHES))


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        yield child
        yield from _inside(child)


def measure(paths: list[Path]) -> dict[str, float]:
    """The figures of some files together."""
    measures = Measures()
    for path in paths:
        measures.add(path.read_text())
    return measures.figures()


def table(folders: dict[str, list[Path]]) -> str:
    """One line for each folder."""
    lines: list[str] = []
    for name, paths in folders.items():
        figures = measure(paths)
        if not lines:
            lines.append(" ".join([f"{'':12}", *(f"{head:>12}" for head in figures)]))
        lines.append(" ".join([f"{name:12}", *(f"{value:12.1f}" for value in figures.values())]))
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Print the table: all of covey, then its folders, or the folders named."""
    everything = sorted((ROOT / "covey").rglob("*.py"))
    folders = {"covey": everything}
    for path in everything:
        parts = path.relative_to(ROOT / "covey").parts
        folders.setdefault(parts[0] if len(parts) > 1 else "root", []).append(path)
    if names:
        folders = {name: sorted(Path(name).rglob("*.py")) for name in names}
    print(table(folders))


if __name__ == "__main__":
    main(sys.argv[1:])
