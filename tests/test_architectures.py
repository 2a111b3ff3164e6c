"""The benchmark of architectures: its loop computes what covey computes, and it reports."""

import pytest

from benchmarks import architectures
from benchmarks.architectures import ALGORITHMS, Cell
from benchmarks.networks import ARCHITECTURES


def test_two_cells(capsys: pytest.CaptureFixture[str]) -> None:
    cells = architectures.main(["--quick", "--threads", "1"])
    assert [cell.architecture for cell in cells] == ["mlp-class", "squeeze-excite-class"]
    for cell in cells:
        assert cell.refusal is None
        assert cell.difference is not None
        assert cell.difference < 1e-5
        assert cell.ratio > 0
    assert [cell.path for cell in cells] == ["fused", "each"]
    assert "| mlp-class | fused |" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loop_computes_the_same_in_every_algorithm(algorithm: str) -> None:
    difference = architectures._difference(ARCHITECTURES["regression"], algorithm)
    assert difference < 1e-5


def test_a_slow_cell_stands_out_and_a_refused_one_gives_its_reason() -> None:
    slow = Cell("a", "FedAvg", covey=2.0, loop=1.0, path="each", solver="in place")
    refused = Cell("b", "FedAvg", refusal="no such layer")
    text = architectures.table([slow, refused])
    assert "| a | each | **0.50** in place |" in text
    assert "- b is refused: no such layer" in text
