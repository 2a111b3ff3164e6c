"""Three broken variants of every experiment and what covey says: `python -m experiments.tables.broken`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from covey.errors import CoveyError
from covey.files.config import load

HERE = Path(__file__).parent
CHANGES = {
    "penguins": ["data.missing=error", "data.label=kind", "data.partition=dirichlets"],
    "cars": ["data.exclude=[]", "data.label=Origin loss=mse", "data.device=Factory"],
    "diabetes": ["loss=cross_entropy", "data.decimal=;", "data.devices=500"],
    "wine": ["data.labels=4", "solver.momentum=1.5", "data.path=data/wines.csv"],
    "birdstrikes": [
        'data.features=["Flight Date"]',
        'data.features=["Aircraft Make Model"]',
        "loss.weights=[1,2]",
    ],
    "icons": ["data.partition=iid data.devices=4", "data.size=[16]", "model.name=cnns"],
    "yeast": [
        'data={name="files",path="data/yeast.csv.gz",label=["Class1","Class2"]}',
        "loss=cross_entropy",
        "data.name=genes:yeasts",
    ],
}


def main() -> None:
    """Print every change and its error."""
    for name, changes in CHANGES.items():
        for change in changes:
            print(f"{name} {change}\n    {answer(name, change)}")
    for name, answered in damaged().items():
        print(f"{name}\n    {answered}")


def answer(name: str, change: str, folder: Path = HERE) -> str:
    """The error of an experiment with changes, or that it has none."""
    try:
        load(
            folder / f"{name}.toml", change.split(" ") if '["' not in change else [change]
        ).experiment(0)
    except CoveyError as error:
        return str(error)
    return "NO ERROR"


def damaged() -> dict[str, str]:
    """Files that are damaged: a short row, a word among numbers, a text file called png."""
    errors = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(HERE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs"))
        table = folder / "data" / "wine.csv"
        lines = table.read_text(encoding="utf-8").splitlines()
        table.write_text("\n".join([*lines, "1,2,3"]), encoding="utf-8")
        errors["wine, a short row"] = answer("wine", "rounds=1", folder)
        table.write_text("\n".join([*lines, lines[1].replace("14.23", "much")]), encoding="utf-8")
        errors["wine, a word"] = answer("wine", "rounds=1", folder)
        Path(folder, "data/icons/Tango/status/new.png").write_text("no image", encoding="utf-8")
        errors["icons, no image"] = answer("icons", "rounds=1", folder)
    return errors


if __name__ == "__main__":
    main()
