"""A codec turns one flat model row into bytes and back, and says how many bytes without doing it."""

from typing import Protocol

from torch import Tensor


class Codec(Protocol):
    """What a link does to a model row; every codec in `covey.codecs.CODECS` obeys `tests/laws/test_codecs.py`.

    A row is `[P]`, float32 or float64. A mask is `[P]`, bool: only these coordinates are sent, the receiver gets the
    mask too, and the others arrive as zeros (a kept weight may itself be 0). The laws:

        codec.decode(codec.encode(row), limit=P)[0] is codec.roundtrip(row[None])[0], bit for bit
        len(codec.encode(row)) == codec.nbytes(row[None])[0]
    """

    @property
    def name(self) -> str:
        """What an experiment calls it."""
        ...

    def encode(self, row: Tensor, mask: Tensor | None = None) -> bytes:
        """The message for one row, from any device and with any strides."""
        ...

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row and, if it was sent, its mask; DecodeError for bytes that are no message of `limit` values or less.

        Bytes come from other machines and may be hostile: nothing is allocated before its size has been checked.
        """
        ...

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """The length of each row's message, `[n]` int64, without encoding; a mask is `[P]`, or one per row `[n, P]`."""
        ...

    def lengths(self, sent: Tensor, *, width: int, size: int, masked: bool) -> Tensor | None:
        """The same from the number of values that are not 0, or inside the mask, `[n]`; None where more than that decides.

        `size` is that of one value in bytes. A link that has counted already need not read the rows again.
        """
        ...

    def roundtrip(self, rows: Tensor) -> Tensor:
        """What the receiver gets, `[n, P]`; the same tensor when the codec is lossless."""
        ...
