"""Small integers instead of values.

Each block of a row has a scale, and each value becomes a multiple of it.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from covey.codecs import bits, blocks, header, integers, numbers
from covey.codecs.blocks import LITTLE_ENDIAN, Reader
from covey.codecs.header import Header, Tag
from covey.errors import ConfigError, DecodeError
from covey.fields import Range, check

_BLOCK = 2  # bytes of the block size
_LARGEST = (1 << 8 * _BLOCK) - 1


@dataclass(frozen=True)
class Quantised:
    """`bits` for each value, and a scale for each `block` of them.

    A block that holds NaN or infinity arrives as NaN. `rounding` is "nearest" (ties to even), or
    "stochastic": up with the probability of what is left over, by the draw at the row's key and the
    value's place, so that the mean over many keys is the value itself. Zeros arrive as +0.0. With a
    mask only the integers inside it travel.

    >>> message = Quantised(8).encode(torch.tensor([-127.0, 0.0, 3.4]))
    >>> len(message), Quantised(8).decode(message, limit=3)[0].tolist()
    (15, [-127.0, 0.0, 3.0])
    """

    bits: Literal[4, 8]
    block: Annotated[int, Range(1, _LARGEST, whole=True)] = 256  # values that share a scale
    rounding: Literal["nearest", "stochastic"] = "nearest"  # to even, or up with a probability
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """int8 or int4."""
        return f"int{self.bits}"

    @property
    def draws(self) -> bool:
        """Where rounding is stochastic."""
        return self.rounding == "stochastic"

    @property
    def levels(self) -> int:
        """The largest integer."""
        return (1 << self.bits - 1) - 1

    def encode(
        self,
        row: Tensor,
        mask: Tensor | None = None,
        key: int | None = None,
    ) -> bytes:
        """The header, the block size, the mask if there is one, the scales and the integers."""
        blocks.check_rows(row, mask, ndim=1)
        if self.draws and key is None:
            raise ConfigError(
                f"{self.name} with stochastic rounding draws by address: give encode a key, "
                "as draws.key makes it."
            )
        if mask is not None:
            row = row.detach().cpu()
            mask = mask.cpu()
        if not self.draws:
            key = None
        values = numbers.to_little(blocks.kept(row, mask))
        numbered, scales = integers.quantise(values, block=self.block, levels=self.levels, key=key)
        tag = Tag.QUANTISED
        packed = np.empty(0, np.uint8)
        if mask is not None:
            tag = Tag.QUANTISED_MASKED
            packed = bits.of_mask(mask.numpy())
            numbered = numbered[mask.numpy()]
        head = Header(tag, row.dtype, len(row), self.name).pack()
        block_size = self.block.to_bytes(_BLOCK, "little")
        if self.bits == 4:
            return blocks.join(head + block_size, packed, scales, integers.pack_nibbles(numbered))
        return blocks.join(head + block_size, packed, scales, numbered)

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row, and its mask if one was sent."""
        tags = (Tag.QUANTISED, Tag.QUANTISED_MASKED)
        head = header.read(message, tags=tags, values=self.name, limit=limit)
        reader = Reader(message, head)
        block = reader.number(_BLOCK, "the block size")
        if block != self.block:
            raise DecodeError(
                f"message in blocks of {block}, expected {self.block}; "
                "use the same codec on both ends of a link."
            )
        mask = None
        sent = head.width
        if head.masked:
            packed = reader.bits()
            mask = reader.mask(packed)
            sent = bits.count(packed, head.width)
        count = integers.blocks(head.width, self.block)
        dtype = LITTLE_ENDIAN[head.dtype]
        block_of_scales = reader.block(count * dtype.itemsize, f"{count} scales of {head.dtype}")
        scales = block_of_scales.view(dtype).copy()
        integers.check_scales(scales, self.levels)
        packed = reader.block((sent * self.bits + 7) // 8, f"{sent} integers of {self.bits} bits")
        numbered = packed.view(np.int8) if self.bits == 8 else integers.unpack_nibbles(packed, sent)
        reader.end()
        if mask is not None:
            inside = numbered
            numbered = np.zeros(head.width, np.int8)
            numbered[mask.numpy()] = inside
        row, peaks = integers.dequantise(numbered, scales, block=self.block)
        integers.check_peaks(scales, peaks, self.levels)
        return blocks.kept(numbers.to_tensor(row), mask), mask

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Counted from the mask, or the same for every row."""
        blocks.check_rows(rows, mask, ndim=2)
        sent = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        if mask is not None:
            sent = blocks.count(mask.expand(rows.shape))
        width = rows.shape[1]
        return self.lengths(sent, width=width, size=rows.element_size(), masked=mask is not None)

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor:
        """All scales, and the integers inside the mask or all of them."""
        always = header.SIZE + _BLOCK + size * integers.blocks(width, self.block)
        if masked:
            always += bits.length(width)
        else:
            sent = torch.full_like(sent, width)
        return always + (sent * self.bits + 7) // 8

    def roundtrip(
        self,
        rows: Tensor,
        mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Integers times scales."""
        blocks.check_rows(rows, mask, ndim=2)
        if self.draws and (
            keys is None or keys.dtype != torch.int64 or keys.shape != rows.shape[:1]
        ):
            got = "none"
            if keys is not None:
                got = f"{keys.dtype} {list(keys.shape)}"
            raise ConfigError(
                f"{self.name} with stochastic rounding needs a key for each row, "
                f"int64 [{len(rows)}], got {got}."
            )
        if not self.draws:
            keys = None
        sent = blocks.kept(rows.detach(), mask)
        back = integers.rounded(sent, block=self.block, levels=self.levels, keys=keys)
        return blocks.kept(back, mask)


CODECS = (Quantised(8), Quantised(4))
