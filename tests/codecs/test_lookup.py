# mypy: disable-error-code="arg-type"
"""Codecs are found by name, take options, and refuse what they cannot carry."""

from typing import Any

import pytest
import torch

import covey.codecs
from covey.codecs import CODECS, Bitmap, Codec, Coo, Dense, Quantised
from covey.errors import ConfigError

every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def test_codecs_are_found_by_name() -> None:
    assert covey.codecs.codec("dense") == Dense()
    assert covey.codecs.codec("bitmap") is CODECS["bitmap"]
    assert covey.codecs.codec("coo_bf16") == Coo("bf16")
    assert covey.codecs.codec("int4") == Quantised(4)


def test_codecs_take_options() -> None:
    assert covey.codecs.codec("int8", block=64, rounding="stochastic") == Quantised(
        8, 64, "stochastic"
    )
    assert covey.codecs.codec("bitmap", values="f16") == Bitmap("f16") == CODECS["bitmap_f16"]
    assert [
        covey.codecs.codec("int8", rounding=how).draws for how in ("nearest", "stochastic")
    ] == [False, True]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("bitmpa", {}, r"'bitmpa' \(did you mean 'bitmap'\?\); known codecs are dense, .*int8"),
        ("zzz", {}, "'zzz'; known codecs"),
        ("int8", {"blocks": 3}, r"unknown key codec int8.blocks \(did you mean .*block\?\)"),
        ("int8", {"bits": 4}, "unknown key codec int8.bits"),
        ("auto", {"values": "f16"}, "unknown key codec auto.values; known are none"),
        ("dense_f16", {"values": "bf16"}, "unknown key codec dense_f16.values; known are none"),
        ("dense", {"values": "f8"}, 'values = "f8" must be "own" or "f16" or "bf16"'),
        ("int8", {"block": 0}, "block = 0 must be a whole number between 1 and 65,535"),
        ("int8", {"block": 65536}, "block = 65536 must be"),
        ("int8", {"block": True}, "block = true must be"),
        ("int8", {"block": 2.5}, "block = 2.5 must be"),
        ("int4", {"rounding": "up"}, 'rounding = "up" must be "nearest" or "stochastic"'),
    ],
)
def test_what_is_not_there_is_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        covey.codecs.codec(name, **options)


def test_there_are_two_numbers_of_bits() -> None:
    with pytest.raises(ConfigError, match="bits = 2 must be 4 or 8"):
        Quantised(2)


def test_draws_need_an_address() -> None:
    drawn, rows = Quantised(8, rounding="stochastic"), torch.ones(3, 2)
    with pytest.raises(ConfigError, match="int8 with stochastic rounding draws by address"):
        drawn.encode(rows[0])
    for keys, got in (
        (None, "none"),
        (torch.zeros(2, dtype=torch.int64), r"torch.int64 \[2\]"),
        (torch.zeros(3), "float32"),
    ):
        with pytest.raises(
            ConfigError, match=rf"needs a key for each row, int64 \[3\], got .*{got}"
        ):
            drawn.roundtrip(rows, keys=keys)


@every_codec
def test_what_cannot_be_carried_is_refused(codec: Codec) -> None:
    row = torch.ones(3)
    with pytest.raises(ConfigError, match=r"not torch\.float16"):
        codec.encode(row.half())
    with pytest.raises(ConfigError, match=r"not torch\.int64"):
        codec.nbytes(row.long()[None])
    with pytest.raises(ConfigError, match=r"one row \[P\], got shape \[1, 3\]"):
        codec.encode(row[None])
    for wrong in (codec.nbytes, codec.roundtrip):
        with pytest.raises(ConfigError, match=r"rows \[n, P\], got shape \[3\]"):
            wrong(row)
    with pytest.raises(ConfigError, match=r"bool and as wide, got torch.bool \[2\]"):
        codec.encode(row, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ConfigError, match=r"bool and as wide, got torch.float32 \[3\]"):
        codec.encode(row, row)
