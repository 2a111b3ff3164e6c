"""`python -m covey.cli.grid FILE KEY=VALUE ...`: `covey compare` where typer and rich are missing.

Options: --budget, --trials, --model, --jobs, --out, --resume. There are no pictures; `covey compare
--resume` of the same folder draws them later, without running anything again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from covey.cli.grid import compare, store
from covey.cli.grid.planning import TRIALS, options
from covey.cli.grid.pool import cores
from covey.cli.grid.tables import plain, tables
from covey.errors import CoveyError


def main() -> int:
    """The command; 0, or 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m covey.cli.grid")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--budget", default="gradients")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--model", default="")
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path)
    words = parser.parse_intermixed_args()
    try:
        if words.resume is not None:
            folder = store.resumed(words.resume, "compare")
        else:
            chosen = options(words.budget, words.trials, words.model)
            folder = compare.start(words.file, words.changes, chosen, words.out, print)
        result = compare.run(folder, words.jobs, _told, words.model)
    except CoveyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(plain(list(tables(result))))
    print(f"folder: {folder.path}")
    return 0


def _told(finished: int, total: int, text: str) -> None:
    print(f"{finished}/{total} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
