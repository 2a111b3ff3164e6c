"""A run whose rows lie in files, resumed from its checkpoints there, has the bits of one in memory:
with all that is kept, metered and recorded.
"""

import os
from pathlib import Path

import pytest
from torch import Tensor

import covey
from covey.kernel.store import segments
from covey.kernel.store.segments import RowForm
from covey.kernel.store.store import Store
from tests.given import drained
from tests.laws.cases import CASES, Case, differences, every, experiment, finished, state, whole

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
STEP = 1 if ALL else 12  # every case, or every twelfth
FEWER = 1 if ALL else 30


@every(dict(list(CASES.items())[::STEP]))
def test_rows_in_files_have_the_bits_of_rows_in_memory(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT", 2**10)  # a few rows
    check_files(case, "dense", tmp_path)


@every(dict(list(CASES.items())[::FEWER]))
def test_rows_without_zeros_have_these_bits_too(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT", 2**10)
    check_files(case, "bitmap", tmp_path)


def check_files(case: Case, form: RowForm, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    work = experiment(case, store_rows=form)
    run = covey.run(work, store=tmp_path / "live")
    for _ in range(2):
        next(run)
        run.save(path)
        run = covey.run(work, resume=path, store=tmp_path / "live")
    drained(run)
    assert differences(state(whole(case.name)), state(run)) == []


def rounding(store: Store, tier: str, name: str, ids: Tensor, rows: Tensor, round: int) -> None:
    """Keep rows whose numbers are rounded by hand."""
    if rows.is_floating_point():
        rows = rows.half().to(rows.dtype)
    KEEP(store, tier, name, ids, rows, round)


KEEP = Store.put


@every(dict(list(CASES.items())[::FEWER]))
def test_rows_in_float16_are_rows_rounded_by_hand(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT", 2**10)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", rounding)
        expected = state(finished(case))
    short = experiment(case, store_rows="float16")
    path = tmp_path / "run.safetensors"
    run = covey.run(short, store=tmp_path / "live")
    for store in (tmp_path / "live", None):  # None: in memory
        next(run)
        run.save(path)
        run = covey.run(short, resume=path, store=store)
    drained(run)
    assert differences(expected, state(run)) == []
