"""Forms of kept rows: `python -m benchmarks.kept_forms --folder FOLDER`.

Bytes on the disk and CPU seconds, by turns in one process, on one thread. First a store alone:
1,000 rows of 7,850 float32 numbers are kept and recalled, with a share of them not 0. Then rounds of
PerMFL with 1,000 of 20,000 devices asked (benchmarks/million.py has the work).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

import covey
from benchmarks.million import experiment
from covey.kernel.store.segments import RowForm
from covey.kernel.store.store import Store

FORMS: tuple[RowForm, ...] = get_args(RowForm)
ROWS = 1000
WIDTH = 7850
SHARES = (1.0, 0.5, 0.1, 0.02)
TURNS = 15
ROUNDS = 20
DEVICES = 20_000


def rows_with(share: float) -> Tensor:
    """Rows of which a share of the numbers is not 0."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, WIDTH, generator=draw)
    return torch.where(torch.rand(ROWS, WIDTH, generator=draw) < share, rows, 0.0)


def disk(folder: Path) -> int:
    """The bytes of all files of rows."""
    return sum(file.stat().st_size for file in folder.rglob("*.rows"))


def stores(folder: Path, share: float) -> dict[str, Any]:
    """Milliseconds of CPU to keep and to recall, and bytes of a row, by form."""
    rows = rows_with(share)
    ids = torch.arange(ROWS)
    by_form: dict[str, Any] = {}
    for form in FORMS:
        by_form[form] = Store({"device": ROWS}, folder=folder / f"{form}-{share}", form=form)
    keep: dict[str, list[float]] = {form: [] for form in FORMS}
    recall: dict[str, list[float]] = {form: [] for form in FORMS}
    for turn in range(TURNS):
        for name, store in by_form.items():
            began = time.process_time()
            store.put("device", "personal", ids, rows, turn)
            keep[name].append(time.process_time() - began)
            store.commit()
            began = time.process_time()
            store.get("device", "personal", ids, None, 0)
            recall[name].append(time.process_time() - began)
    out: dict[str, Any] = {}
    for name, store in by_form.items():
        column = store.columns["device", "personal"]
        slots = column.present.slots(ids)
        numbers = column.segments.number_of(slots).tolist()
        sizes = [column.segments.segments[number].rows[0].nbytes for number in numbers]
        out[name] = {
            "bytes of a row": round(statistics.fmean(sizes)),
            "keep ms": round(1000 * statistics.median(keep[name]), 1),
            "recall ms": round(1000 * statistics.median(recall[name]), 1),
        }
    return out


def runs(folder: Path) -> dict[str, Any]:
    """CPU seconds of a round, and bytes on the disk after all rounds, by form."""
    work = experiment(DEVICES, 10**9, 10**9)
    by_form: dict[str, Any] = {}
    for form in FORMS:
        by_form[form] = covey.run(replace(work, store_rows=form), store=folder / f"run-{form}")
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(ROUNDS):
        for name, run in by_form.items():
            began = time.process_time()
            next(run)
            seconds[name].append(time.process_time() - began)
    out: dict[str, Any] = {}
    for name, run in by_form.items():
        out[name] = {
            "CPU s of a round": round(statistics.median(seconds[name]), 4),
            "GB": round(disk(folder / f"run-{name}") / 1e9, 2),
            "holders": len(run.snapshot("personal", mapped=True).ids),
        }
    return out


def main() -> None:
    """All figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder / "kept-forms"
    torch.set_num_threads(1)
    out: dict[str, Any] = {}
    for share in SHARES:
        out[f"{share:.0%} not 0"] = stores(folder, share)
    out["rounds"] = runs(folder)
    print(json.dumps(out, indent=2))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
