"""An l1 penalty by round and by device: its schedule, its floor and its cut."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from covey.engine.solvers import smooth_l1
from covey.errors import ConfigError
from covey.maths.penalty import L1

SPARSE = L1(0.5, rho=0.01, lr=0.1, lam=2.0)


class Kept:
    """Nodes that remember rows, each with its round."""

    def __init__(self, round: int = 0) -> None:
        self.round = round
        self.rows: dict[str, tuple[Tensor, int]] = {}

    def keep(self, name: str, rows: Tensor) -> Tensor:
        self.rows[name] = rows, self.round
        return rows

    def recall(self, name: str, default: Tensor, since: int = 0) -> Tensor:
        rows, round = self.rows.get(name, (default, since))
        return rows if round >= since else default


def test_the_term_is_off_from_its_round_on() -> None:
    ending = replace(SPARSE, until=3)
    terms = [ending.term(round) for round in (0, 2, 3, 9)]
    assert terms == [(0.5, 0.01)] * 2 + [(0.0, 0.01)] * 2
    assert [SPARSE.term(round) for round in (0, 999)] == [(0.5, 0.01)] * 2
    assert replace(SPARSE, until=0).term(0) == (0.0, 0.01)


def test_a_soft_threshold_has_no_width() -> None:
    assert replace(SPARSE, kind="prox").term() == (0.5, 0.0)


def test_the_cut_is_that_of_the_smooth_l1_and_ends_only_if_told_to() -> None:
    cut = smooth_l1.threshold(rho=0.01, lr=0.1, gamma=0.5, lam=2.0)
    assert cut is not None
    keep, off = (replace(SPARSE, until=3, cut_after=after) for after in ("keep", "off"))
    assert [keep.cut(2), keep.cut(3), off.cut(2), off.cut(3)] == [cut, cut, cut, None]
    assert replace(SPARSE, gamma=0.0).cut() is None
    with pytest.raises(ConfigError, match="must be below 2"):
        replace(SPARSE, lam=30.0).cut()


def test_without_a_floor_all_devices_have_one_weight_and_nothing_is_kept() -> None:
    me = Kept(round=4)
    assert replace(SPARSE, until=4).term_of(me, torch.ones(2, 3), kept="_gamma") == (0.0, 0.01)
    assert me.rows == {}


def test_below_the_floor_a_device_has_the_low_weight_until_its_next_round() -> None:
    sparse = replace(SPARSE, floor=0.6, low=0.1)
    me, dense, thin = Kept(), torch.ones(1, 4), torch.tensor([[1.0, 1e-3, 0.0, 0.0]])
    start = torch.cat([dense, thin])

    def gammas(kept: str | None = "_gamma") -> Tensor:
        value, rho = sparse.term_of(me, start, kept=kept)
        assert isinstance(value, Tensor)
        assert rho == 0.01
        return value

    first = gammas()
    assert first.tolist() == [[0.5], [pytest.approx(0.1)]]
    me.keep("personal", torch.cat([thin, dense]))
    assert torch.equal(gammas(), first)  # decided once a round
    assert torch.equal(gammas(kept=None), first.flip(0))  # without a name, at every call
    me.round = 1
    assert torch.equal(gammas(), first.flip(0))
