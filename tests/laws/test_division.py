"""No program divides whole numbers by whole numbers: torch does that in float32 in any run."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.laws.cases import Case, every_algorithm, finished


class Divisions(TorchDispatchMode):
    """Counts divisions, and those of whole numbers that give a fraction."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.whole = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        divides = func._overloadpacket in (torch.ops.aten.div, torch.ops.aten.div_)
        if divides and out.is_floating_point():
            self.total += 1
            self.whole += not any(_fraction(operand) for operand in args[:2])
        return out


def _fraction(operand: Tensor | float) -> bool:
    if isinstance(operand, Tensor):
        return operand.is_floating_point()
    return isinstance(operand, float)


@every_algorithm
def test_whole_numbers_are_not_divided(case: Case) -> None:
    with Divisions() as divisions:
        finished(case, rounds=1, score_every=1, dtype=torch.float64)
    assert divisions.total > 0
    assert divisions.whole == 0
