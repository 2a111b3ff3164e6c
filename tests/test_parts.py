"""`make test-all` in parts runs every test once."""

from collections import Counter
from pathlib import Path

from tests.parts import ROOT, files, named, parts


def test_every_test_file_is_in_exactly_one_part() -> None:
    written = {str(path.relative_to(ROOT)) for path in Path(ROOT, "tests").rglob("test_*.py")}
    assert written < set(files())
    given = Counter(path for paths in parts().values() for path in paths)
    assert given == Counter(["covey", *files()])
    assert all(parts().values())


def test_what_a_part_names_is_there_and_in_no_other() -> None:
    paths = [path for some in named().values() for path in some]
    assert len(set(paths)) == len(paths)
    assert all((ROOT / path).exists() for path in paths)


def test_make_runs_the_parts_of_this_file() -> None:
    rule = (ROOT / "Makefile").read_text().partition("\ntest-all:")[2].partition("\n\n")[0]
    assert rule.count("python -m tests.parts") == 2
