"""Bytes for every decoder, found by coverage: a row within the limit or a DecodeError, the same with the kernel and without.

An input is the number of a codec (one byte), the limit (two bytes) and the message; where the number's highest bit is set, the
header is put right first, so that what follows it is reached. fuzz/README.md says how to run it.
"""

from __future__ import annotations

import struct
import sys
from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

try:
    import atheris
except ImportError:  # to write the seeds, or to try one input again, it takes no fuzzer
    atheris = None

with atheris.instrument_imports(include=["covey"]) if atheris else nullcontext():
    import torch

    from covey import native
    from covey.codecs import CODECS, Codec, Quantised
    from covey.errors import DecodeError

ALL: list[Codec] = [
    *CODECS.values(),
    Quantised(8, block=3),
    Quantised(4, block=3, rounding="stochastic"),
]
PREFIX = struct.Struct("<BH")
KERNEL = native._library


def check(data: bytes) -> None:
    """One input; by numpy as well for one in four, since that takes longer."""
    if len(data) < PREFIX.size:
        return
    number, limit = PREFIX.unpack_from(data)
    codec, message = ALL[(number & 127) % len(ALL)], data[PREFIX.size :]
    if number & 128:
        message = mended(codec, message)
    found = survives(codec, message, limit)
    if crc32(data) % 4 == 0:
        native._library = "switched off"
        try:
            assert survives(codec, message, limit) == found, "the kernel and numpy disagree"
        finally:
            native._library = KERNEL


def mended(codec: Codec, message: bytes) -> bytes:
    """The message with a header that the codec takes, unless its tag is one of another: below 512 values of either type."""
    good, out = codec.encode(torch.ones(1), None, 0), bytearray(message.ljust(8, b"\0"))
    out[0] = good[0] & 0xF0 | out[0] & 7
    out[1] = good[1] & 0xF0 | 2 - (out[1] & 1)
    out[3:6] = (out[3] & 1, 0, 0)
    if isinstance(codec, Quantised):
        out[0] |= 6
        out[6:8] = good[6:8]
    return bytes(out)


def survives(codec: Codec, message: bytes, limit: int) -> tuple[bytes, bytes] | None:
    """What the message is, as the bits of its row and mask, or None where it is refused."""
    try:
        row, mask = codec.decode(message, limit=limit)
    except DecodeError:
        return None
    assert row.numel() <= limit
    assert mask is None or (mask.shape == row.shape and not row.numpy()[~mask.numpy()].any())
    found = _bits(row, mask)
    assert _bits(*codec.decode(codec.encode(row, mask, 3), limit=limit)) == found, (
        "it does not arrive again as it is"
    )
    return found


def _bits(row: torch.Tensor, mask: torch.Tensor | None) -> tuple[bytes, bytes]:
    return row.numpy().tobytes(), b"none" if mask is None else mask.numpy().tobytes()


def seeds(folder: Path) -> int:
    """Write good messages of every codec to start from; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    short = torch.tensor([0.0, 1.5, 0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
    long = torch.nn.functional.pad(short, (150, 50))
    rows = [
        (short, None),
        (short, short > 0),
        (short.double(), None),
        (long, None),
        (long, long > 0),
        (short * torch.nan, None),
    ]
    for number, codec in enumerate(ALL):
        for k, (row, mask) in enumerate(rows):
            folder.joinpath(f"{number}-{k}").write_bytes(
                PREFIX.pack(number, len(row)) + codec.encode(row, mask, 7)
            )
    return len(ALL) * len(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["seeds"]:
        print(f"{seeds(Path(sys.argv[2]))} seeds in {sys.argv[2]}")
    elif atheris is None:
        for name in sys.argv[1:]:
            check(Path(name).read_bytes())
    else:
        atheris.Setup(sys.argv, check)
        atheris.Fuzz()
