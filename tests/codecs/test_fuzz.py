"""The fuzzer's own start: its seeds are good messages, and its check finds nothing wrong with them
or with their neighbours.
"""

from pathlib import Path

import pytest
import torch

from covey import native
from covey.codecs import Dense
from fuzz import decode


def test_seeds_pass(tmp_path: Path) -> None:
    assert decode.seeds(tmp_path) == len(list(tmp_path.iterdir())) <= 200
    for seed in tmp_path.iterdir():
        data = seed.read_bytes()
        number, limit = decode.PREFIX.unpack_from(data)
        assert decode.survives(decode.ALL[number], data[decode.PREFIX.size :], limit) is not None
        for other in (data, data[:-1], data + b"\0", data[:9] + b"\xff" + data[10:]):
            decode.check(other)
            decode.check(bytes([number | 128]) + other[1:])
        assert (
            decode.mended(decode.ALL[number], data[decode.PREFIX.size :])
            == data[decode.PREFIX.size :]
        )
    decode.check(b"")
    assert native._library is decode.KERNEL


def test_a_decoder_that_does_not_refuse_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Dense().encode(torch.ones(3))
    monkeypatch.setattr(Dense, "decode", lambda self, message, limit: (torch.ones(5), None))
    with pytest.raises(AssertionError):
        decode.check(decode.PREFIX.pack(0, 3) + message)
