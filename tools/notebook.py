"""Executes a notebook in place, so that its outputs are those of this version.

    pip install nbclient nbformat ipykernel
    python -m tools.notebook examples/notebook.ipynb

Lines that were written over, as those of progress, are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def execute(path: Path) -> None:
    """Run all cells in the notebook's own folder, and write it with their outputs."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    cells = json.loads(nbformat.writes(notebook))
    path.write_text(json.dumps(cleaned(cells), indent=1, ensure_ascii=False) + "\n", "utf-8")


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook without what differs from machine to machine."""
    notebook["metadata"]["language_info"] = {"name": "python"}
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        if "outputs" in cell:
            cell["outputs"] = _joined(cell["outputs"])
    return notebook


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs of a cell; all that it printed is one of them."""
    printed = [output for output in outputs if output["output_type"] == "stream"]
    text = "".join("".join(output["text"]) for output in printed)
    others = [output for output in outputs if output["output_type"] != "stream"]
    if not text:
        return others
    stream = {"name": "stdout", "output_type": "stream", "text": _last(text)}
    return [stream, *others]


def _last(text: str) -> list[str]:
    """The lines of a text as a terminal shows them at the end.

    >>> _last("\\rround 1/2\\rround 2/2 \\ndone\\n")
    ['round 2/2\\n', 'done\\n']
    """
    return [line.rpartition("\r")[2].rstrip() + "\n" for line in text.rstrip("\n").split("\n")]


if __name__ == "__main__":
    execute(Path(sys.argv[1]))
