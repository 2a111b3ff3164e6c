"""The six bytes every message starts with: what follows, in which number format, and how many values the row has.

    byte 0     version (high four bits, now 1) and tag (low four bits: the layout of what follows)
    byte 1     number format: 1 float32, 2 float64
    bytes 2-5  width P of the row, uint32

All numbers are little-endian. What follows, by tag (bits: ceil(P / 8) bytes, lowest bit first, padding bits 0):

    0 DENSE          P values
    1 DENSE_MASKED   bits of the mask, P values (zeros outside the mask)
    2 BITMAP         bits of the non-zero values, those values
    3 BITMAP_MASKED  bits of the mask, the values inside it
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

import torch

from covey.errors import ConfigError, DecodeError

VERSION = 1
LAYOUT = struct.Struct("<BBI")
SIZE = LAYOUT.size
WIDEST = 2**32 - 1
FORMATS = {torch.float32: 1, torch.float64: 2}
DTYPES = {number: dtype for dtype, number in FORMATS.items()}


class Tag(IntEnum):
    """The layout of what follows the header."""

    DENSE = 0
    DENSE_MASKED = 1
    BITMAP = 2
    BITMAP_MASKED = 3


@dataclass(frozen=True)
class Header:
    """What a message says about itself.

    >>> read(Header(Tag.BITMAP, torch.float32, 7).pack(), tags=[Tag.BITMAP], limit=7).width
    7
    """

    tag: Tag
    dtype: torch.dtype
    width: int

    def pack(self) -> bytes:
        """The six bytes."""
        if self.width > WIDEST:
            raise ConfigError(f"a row has {self.width} values, but a message holds at most {WIDEST}; split the row.")
        return LAYOUT.pack(VERSION << 4 | self.tag, FORMATS[self.dtype], self.width)


def read(message: bytes, *, tags: Collection[Tag], limit: int) -> Header:
    """The header of a message, if it is one of these layouts and declares at most `limit` values."""
    if len(message) < SIZE:
        raise DecodeError(f"message of {len(message)} bytes, but the header alone needs {SIZE}.")
    first, number, width = LAYOUT.unpack_from(message)
    version, tag = first >> 4, first & 15
    if version != VERSION:
        raise DecodeError(f"message of format version {version}, expected {VERSION}; run one version of covey everywhere.")
    if tag not in tags:
        known = ", ".join(f"{t.value} ({t.name})" for t in tags)
        raise DecodeError(f"message with tag {tag}, expected one of {known}; use the same codec on both ends of a link.")
    if number not in DTYPES:
        raise DecodeError(f"message with number format {number}, expected one of {DTYPES}.")
    if width > limit:
        raise DecodeError(f"message declares {width} values, expected at most {limit}.")
    return Header(Tag(tag), DTYPES[number], width)
