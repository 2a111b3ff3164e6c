"""Asks, answers, commits and rollbacks out of order; fuzz/machine.py says what must hold."""

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from fuzz import machine


def test_fuzz() -> None:
    """160 sequences here; `make test-deployed` tries 20,000."""
    counts = machine.fuzz(160, seed=5, parents=10)
    assert counts["parent: sequences"] == 16
    assert min(counts[f"child: {end}"] for end in ("answer", "error")) > 20
    ends = ("answered", "late", "absent", "bad", "bad, asked again", "rolled back")
    assert all(counts[f"parent: {end}"] for end in ends), counts
