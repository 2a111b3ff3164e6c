"""A codec turns one flat model row into bytes and back.

It also gives the length of the message without encoding.
"""

from typing import Protocol

from torch import Tensor


class Codec(Protocol):
    """What a link does to a model row.

    Every codec in `covey.codecs.CODECS` obeys `tests/laws/test_codecs.py`. A row is `[P]`, float32
    or float64. A mask is `[P]`, bool: only these coordinates are sent, the receiver gets the mask
    too, and the others arrive as zeros (a kept weight may itself be 0). A key is the address of the
    draws by which some codecs round (`covey.draws.key`); the others leave it alone. The laws:

        codec.decode(codec.encode(row, mask, key), limit=P)[0] is, bit for bit,
        codec.roundtrip(row[None], mask, keys)[0]

        codec.roundtrip changes nothing the second time

        len(codec.encode(row, mask, key)) == codec.nbytes(row[None], mask)[0]
    """

    @property
    def name(self) -> str:
        """What an experiment calls it."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether every row arrives as it was, bit for bit."""
        ...

    @property
    def draws(self) -> bool:
        """Whether it rounds by draws, and so needs keys."""
        ...

    def encode(
        self,
        row: Tensor,
        mask: Tensor | None = None,
        key: int | None = None,
    ) -> bytes:
        """The message for one row, from any device and with any strides."""
        ...

    def decode(self, message: bytes, *, limit: int) -> tuple[Tensor, Tensor | None]:
        """The row and, if it was sent, its mask.

        DecodeError for bytes that are no message of at most `limit` values. Bytes that are refused
        take memory in proportion to their number, whatever width they declare. So do those that are
        not, at most 64 values of the row for each byte of the message, with one exception: a
        message with gaps may be a few bytes and its row all zeros but for those, of any width up to
        `limit`. Then only the pages of memory that hold a value are written.

        Bytes come from other machines and may be hostile: nothing is allocated before its size has
        been checked.
        """
        ...

    def nbytes(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """The length of each row's message, `[n]` int64, without encoding.

        A mask is `[P]`, or one per row `[n, P]`.
        """
        ...

    def lengths(
        self,
        sent: Tensor,
        *,
        width: int,
        size: int,
        masked: bool,
    ) -> Tensor | None:
        """The length of each message from the number of values sent, `[n]`.

        `sent` counts the values that arrive as not 0, or those inside the mask. None where the
        length depends on more than that. `size` is that of one value of the row in bytes. A link
        that has counted already need not read the rows again.
        """
        ...

    def roundtrip(
        self,
        rows: Tensor,
        mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """The rows that the receiver gets, `[n, P]`.

        It is the same tensor when the codec is lossless and there is no mask. `keys`, `[n]` int64,
        are the addresses of the draws: a row rounds in the same way whoever stands beside it.
        """
        ...
