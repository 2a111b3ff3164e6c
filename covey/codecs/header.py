"""The six bytes that every message starts with.

They say which layout follows, in which number format, and how many values the row has.

    byte 0     version (high four bits, now 2) and tag (low four bits: the layout of what follows)
    byte 1     format of the values (high four bits: 0 the row's own, 1 IEEE half, 2 bfloat16,
               3 int8, 4 int4) and type of the row (low four bits: 1 float32, 2 float64)
    bytes 2-5  width P of the row, uint32

All numbers are little-endian. What follows, by tag (bits: ceil(P / 8) bytes, lowest bit first,
padding bits 0; B is a block's size, uint16; scales are ceil(P / B) numbers in the row's type):

    0 DENSE             P values
    1 DENSE_MASKED      bits of the mask, P values (zeros outside the mask)
    2 BITMAP            bits of the non-zero values, those values
    3 BITMAP_MASKED     bits of the mask, the values inside it
    4 COO               number n of non-zero values, uint32; n gaps; those values
    5 COO_MASKED        the same for the values inside the mask
    6 QUANTISED         B; scales; P integers
    7 QUANTISED_MASKED  B; bits of the mask; scales; the integers inside the mask

A gap is how many values are left out before one that is sent, seven bits to a byte, lowest first,
the highest bit set on all of its bytes but the last, in as few bytes as it takes. int4 are two to a
byte, low half first, the last half 0 where they are odd. Of the many bit patterns of a NaN, half,
bfloat16 and scales have the one with only the highest bit of the fraction set.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

import torch

from covey.errors import ConfigError, DecodeError

VERSION = 2
LAYOUT = struct.Struct("<BBI")
SIZE = LAYOUT.size
WIDEST = 2**32 - 1
TYPES = {torch.float32: 1, torch.float64: 2}
DTYPES = {number: dtype for dtype, number in TYPES.items()}
FORMATS = ("own", "f16", "bf16", "int8", "int4")  # by number


class Tag(IntEnum):
    """The layout of what follows the header."""

    DENSE = 0
    DENSE_MASKED = 1
    BITMAP = 2
    BITMAP_MASKED = 3
    COO = 4
    COO_MASKED = 5
    QUANTISED = 6
    QUANTISED_MASKED = 7


@dataclass(frozen=True)
class Header:
    """What a message says about itself.

    >>> message = Header(Tag.BITMAP, torch.float32, 7).pack()
    >>> read(message, tags=[Tag.BITMAP], values="own", limit=7).width
    7
    """

    tag: Tag
    dtype: torch.dtype
    width: int
    values: str = "own"

    @property
    def masked(self) -> bool:
        """Whether a mask follows, as it does for odd tags."""
        return bool(self.tag & 1)

    def pack(self) -> bytes:
        """The six bytes."""
        if self.width > WIDEST:
            raise ConfigError(
                f"a row has {self.width} values, but a message holds at most {WIDEST}; "
                "split the row."
            )
        return LAYOUT.pack(
            VERSION << 4 | self.tag,
            FORMATS.index(self.values) << 4 | TYPES[self.dtype],
            self.width,
        )


def read(
    message: bytes,
    *,
    tags: Collection[Tag],
    values: str,
    limit: int,
) -> Header:
    """The header of a message.

    DecodeError unless it has one of these layouts, values in this format, and at most `limit` of
    them.
    """
    if len(message) < SIZE:
        raise DecodeError(f"message of {len(message)} bytes, but the header alone needs {SIZE}.")
    first, second, width = LAYOUT.unpack_from(message)
    version = first >> 4
    tag = first & 15
    form = second >> 4
    kind = second & 15
    if version != VERSION:
        raise DecodeError(
            f"message of format version {version}, expected {VERSION}; "
            "run one version of covey everywhere."
        )
    if tag not in tags:
        listed = ", ".join(f"{t.value} ({t.name})" for t in tags)
        raise DecodeError(
            f"message with tag {tag}, expected one of {listed}; "
            "use the same codec on both ends of a link."
        )
    if kind not in DTYPES:
        raise DecodeError(f"message of a row of type {kind}, expected one of {DTYPES}.")
    if form != FORMATS.index(values):
        want = f"{FORMATS.index(values)} ({values})"
        raise DecodeError(
            f"message with values in format {form}, expected {want}; "
            "use the same codec on both ends of a link."
        )
    if width > limit:
        raise DecodeError(f"message declares {width} values, expected at most {limit}.")
    return Header(Tag(tag), DTYPES[kind], width, values)
