"""Rows without their zeros: the bits that were kept, in cells of the right size."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import covey
from covey.kernel.store.bitmap_rows import CellLayout, capacities, kinds
from covey.kernel.store.store import PRESENT, Store
from tests import peek
from tests.test_kept_rows import bits, experiment, ran, same


def sparse(counts: list[int], width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows with so many numbers that are not 0, at random places."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(counts), width, dtype=dtype)
    for row, count in zip(rows, counts, strict=True):
        places = torch.randperm(width, generator=draw)[:count]
        row[places] = torch.randn(count, generator=draw, dtype=dtype)
    return rows


def same_bits(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(
        left.view(torch.uint8), right.view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 64, 101])
def test_what_is_read_is_what_was_written(width: int, dtype: torch.dtype) -> None:
    counts = [0, 1, width // 3, width - 1, width]
    rows = sparse(counts, width, dtype)
    rows[-1, 0] = -0.0
    rows[-2] = rows[-2].where(rows[-2] == 0, torch.inf)
    rows[-1, -1] = torch.nan
    numbers = kinds(rows)
    sizes = capacities(width)
    for row, kind, count in zip(rows, numbers.tolist(), counts, strict=True):
        assert sizes[kind] >= count
        assert kind == len(sizes) - 1 or sizes[kind + 1] < count
        cell = CellLayout(width, kind, dtype)
        encoded = cell.encode(row[None])
        assert encoded.shape == (1, cell.bytes)
        assert same_bits(cell.decode(encoded), row[None])


def test_cells_of_rows_with_few_numbers_are_small() -> None:
    """784-10: a bit per number, and room for at most a third more numbers than a row has."""
    rows = sparse([785], 7850, torch.float32)
    (kind,) = kinds(rows).tolist()
    cell = CellLayout(7850, kind, torch.float32)
    assert cell.bytes <= 7850 / 8 + 8 + 4 * 785 * 4 / 3 + 8
    assert cell.bytes < 0.17 * 7850 * 4


@pytest.mark.parametrize("in_files", [True, False])
def test_a_store_of_sparse_rows_does_what_a_dense_one_does(tmp_path: Path, in_files: bool) -> None:
    """Puts of rows that grow and shrink, holds, rollbacks and commits, against dense rows."""
    draw = torch.Generator().manual_seed(1)
    width = 200
    stores = [
        Store({"device": 20}),
        Store({"device": 20}, form="bitmap", folder=tmp_path if in_files else None),
    ]
    for round in range(40):
        ids = torch.randperm(20, generator=draw)[:6].sort().values
        counts = torch.randint(0, width + 1, (6,), generator=draw).tolist()
        rows = sparse(counts, width, torch.float32, seed=round)
        for store in stores:
            store.put("device", "x", ids, rows, round)
            store.put("device", "x", ids[:2], rows[2:4], round)  # in place, or elsewhere
            column = store.columns["device", "x"]
            if round % 5 == 1:
                column.hold("best", slice(0, 20))
            if round % 7 == 3:
                store.rollback()
            else:
                store.commit()
        for label in (PRESENT, "best"):
            left, right = (
                store.columns["device", "x"].read(label, slice(0, 20)) for store in stores
            )
            assert all(map(torch.equal, left, right))
    dense, bitmap = (store.columns["device", "x"].segments for store in stores)
    assert not dense.has_kinds
    assert len({segment.kind for segment in bitmap.segments}) > 3


def test_another_form_of_a_checkpoint_is_taken_over(tmp_path: Path) -> None:
    """Rows are the same in both forms, so a run may change from one to the other."""
    whole = bits(ran(covey.run(experiment())))
    path = tmp_path / "run.safetensors"
    run = covey.run(experiment(), store=tmp_path / "live")
    ran(run, 4).save(path)
    for round, form in ((7, "bitmap"), (9, "dense")):
        run = covey.run(experiment(store_rows=form), resume=path, store=tmp_path / "live")
        ran(run, round).save(path)
    assert same(bits(ran(covey.run(experiment(store_rows="bitmap"), resume=path))), whole)
    assert peek.store(run).columns["device", "personal"].segments.form == "dense"
