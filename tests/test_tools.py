"""The measures of tools/ on examples small enough to count by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import density, imports

ROOT = Path(density.__file__).parents[1]
TEXT = '''"""A docstring is no code."""


def first(found: int, b):
    """Nor is this one."""
    x, y = found, b  # nor a comment
    return x if y else 0


def second(values: list[int]) -> int:
    total = 0
    for value in values:
        total += value
    return total
'''


def test_density_of_two_functions() -> None:
    measures = density.Measures()
    measures.add(TEXT)
    assert measures.lines == 14
    assert measures.code_lines == 8
    assert measures.conditionals == 1
    assert measures.tuples == 1
    assert measures.vague == 1  # found
    assert measures.names == 8  # found, b, x, y, values, total twice, value
    assert measures.lengths == [3, 5]
    assert measures.complexities == [2, 2]
    # def first(found: int, b): has 10 tokens, the tuple 7, the return 6
    # def second has 13, then 3, 5, 3 and 2
    assert measures.tokens == 10 + 7 + 6 + 13 + 3 + 5 + 3 + 2
    figures = measures.figures()
    assert figures["tokens/line"] == pytest.approx(49 / 8)
    assert figures["if-else/1000"] == pytest.approx(1000 / 14)
    assert figures["% vague"] == pytest.approx(100 / 8)
    assert figures["% typed"] == 50
    assert figures["% docs"] == 50
    assert figures["% complex"] == figures["% > 100"] == 0


def test_density_counts_long_lines_and_complex_functions() -> None:
    measures = density.Measures()
    branches = "".join(f"    if x == {k}:\n        return {k}\n" for k in range(10))
    measures.add(f"def many(x):\n{branches}    return {'1' * 100}\n")
    assert measures.complexities == [11]
    assert measures.figures()["% complex"] == 100
    assert measures.long == 1


def test_density_prints_a_line_for_each_folder(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(TEXT)
    ran = subprocess.run(
        [sys.executable, "-m", "tools.density", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    head, line = ran.stdout.splitlines()
    assert "tokens/line" in head
    assert line.removeprefix(str(tmp_path)).split()[:4] == ["14.0", "4.0", "5.0", "6.1"]


FILES = {
    "covey/errors.py": "",
    "covey/kernel/nodes.py": "from covey.errors import ConfigError\n",
    "covey/kernel/store/store.py": "from covey.kernel.nodes import Nodes\n",
    "covey/links/link.py": "from covey.kernel import nodes\nfrom covey import errors\n",
    "covey/runs/run.py": "def late():\n    from covey.links.link import Link\n",
}


def test_imports_between_folders() -> None:
    edges, count = imports.graph(FILES)
    assert edges == {
        "base": set(),
        "kernel": {"base"},
        "links": {"base", "kernel"},
        "runs": {"links"},
    }
    assert count == 4
    assert imports.heights(edges) == {"base": 0, "kernel": 1, "links": 2, "runs": 3}
    assert all(len(group) == 1 for group in imports.cycles(edges).values())


def test_parts_that_import_each_other_stand_on_one_level() -> None:
    edges, _ = imports.graph({**FILES, "covey/kernel/rates.py": "from covey.runs import run\n"})
    together = frozenset({"kernel", "links", "runs"})
    assert imports.cycles(edges) == {
        "base": frozenset({"base"}), "kernel": together, "links": together, "runs": together,
    }  # fmt: skip
    assert imports.heights(edges) == {"base": 0, "kernel": 1, "links": 1, "runs": 1}


def test_covey_itself_has_no_cycle_and_can_be_drawn(tmp_path: Path) -> None:
    edges, count = imports.graph(imports.sources("."))
    assert count > len(edges)
    # the modules that tests/test_layers.py lists as UP, and old names, close the other cycles
    assert imports.cycles(edges)["engine"] == {"engine"}
    imports.draw(tmp_path / "graph.png", ["."])
    assert (tmp_path / "graph.png").stat().st_size > 20_000
