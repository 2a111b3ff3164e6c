"""Codecs are found by name, and refuse what they cannot carry."""

import pytest
import torch

import covey.codecs
from covey.codecs import Bitmap, Dense
from covey.errors import ConfigError


def test_codecs_are_found_by_name() -> None:
    assert covey.codecs.codec("dense") == Dense()
    assert covey.codecs.codec("bitmap") == Bitmap()


def test_a_wrong_name_gets_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'bitmpa' \(did you mean 'bitmap'\?\); the known ones are dense, bitmap"):
        covey.codecs.codec("bitmpa")
    with pytest.raises(ConfigError, match="'zzz'; the known ones"):
        covey.codecs.codec("zzz")


@pytest.mark.parametrize("codec", [Dense(), Bitmap()])
def test_what_cannot_be_carried_is_refused(codec: Dense | Bitmap) -> None:
    row = torch.ones(3)
    with pytest.raises(ConfigError, match=r"not torch\.float16"):
        codec.encode(row.half())
    with pytest.raises(ConfigError, match=r"not torch\.int64"):
        codec.nbytes(row.long()[None])
    with pytest.raises(ConfigError, match=r"one row \[P\], got shape \[1, 3\]"):
        codec.encode(row[None])
    with pytest.raises(ConfigError, match=r"rows \[n, P\], got shape \[3\]"):
        codec.nbytes(row)
    with pytest.raises(ConfigError, match=r"bool and as wide, got torch.bool \[2\]"):
        codec.encode(row, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ConfigError, match=r"bool and as wide, got torch.float32 \[3\]"):
        codec.encode(row, row)
