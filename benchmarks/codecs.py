"""How fast rows become bytes and come back: `python -m benchmarks.codecs`.

A float32 row of ten million values, of which 1, 10 or 50 % are not zero, on one thread. The
yardstick is a copy between arrays that fit in no cache: a codec at 50 % of it takes twice as long
to write or read the message as copying the row. Beside them what numpy and zlib do in a few lines:
packed bits, compressed, and the values under them.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey import native
from covey.codecs import CODECS, codec

SHARES = (0.01, 0.1, 0.5)


def best(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def copy_seconds(width: int, repeats: int) -> float:
    """Of copying one row, measured on ten of them at once."""
    one, other = np.ones(10 * width, np.float32), np.ones(10 * width, np.float32)
    return best(lambda: np.copyto(other, one), repeats) / 10


@dataclass(frozen=True)
class Zip:
    """The bits of what is not zero, compressed, and the values."""

    level: int

    def encode(self, row: Tensor, mask: None, key: int) -> bytes:
        values = row.numpy()
        bits = zlib.compress(np.packbits(values != 0, bitorder="little").tobytes(), self.level)
        sent: bytes = values[values != 0].tobytes()
        return len(bits).to_bytes(8, "little") + bits + sent

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, None]:
        end = 8 + int.from_bytes(message[:8], "little")
        bits = np.frombuffer(zlib.decompress(message[8:end]), np.uint8)
        row = np.zeros(limit, np.float32)
        row[np.unpackbits(bits, count=limit, bitorder="little").view(np.bool_)] = np.frombuffer(
            message[end:], np.float32
        )
        return torch.from_numpy(row), None


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="codecs to time; all if left out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    drawn = {
        "int8, drawn": codec("int8", rounding="stochastic"),
        "int4, drawn": codec("int4", rounding="stochastic"),
    }
    known: dict[str, Any] = {
        **CODECS,
        **drawn,
        "packbits + zlib 1": Zip(1),
        "packbits + zlib 6": Zip(6),
    }
    chosen = {name: known[name] for name in asked.only or known}
    copied, size = copy_seconds(asked.width, asked.repeats), 4 * asked.width
    print(
        f"A copy of the row takes {copied:.4f} s ({size / copied / 1e9:.1f} GB/s); the kernel is {native.status()}.\n"
    )
    print(
        "| non-zeros | codec | MB | encode, s | GB/s | of a copy | decode, s | GB/s | of a copy |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    generator = torch.Generator().manual_seed(0)
    values, coin = (
        torch.randn(asked.width, generator=generator),
        torch.rand(asked.width, generator=generator),
    )
    for share in SHARES:
        row = torch.where(coin < share, values, 0.0)  # a product would leave -0.0, which is a value
        for name, one in chosen.items():
            message = one.encode(row, None, 1)
            there = best(lambda one=one, row=row: one.encode(row, None, 1), asked.repeats)
            back = best(
                lambda one=one, message=message: one.decode(message, limit=asked.width),
                asked.repeats,
            )
            times = " | ".join(
                f"{s:.4f} | {size / s / 1e9:.1f} | {copied / s:.0%}" for s in (there, back)
            )
            print(f"| {share:.0%} | {name} | {len(message) / 1e6:.2f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
