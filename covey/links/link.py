"""A link between two tiers: it transforms the rows that cross it, and counts their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey import native
from covey.codecs import CODECS, Codec
from covey.codecs.blocks import check_dtype, check_rows, kept, patterns
from covey.codecs.blocks import count as count_nonzero
from covey.codecs.dense import Dense
from covey.errors import DecodeError
from covey.kernel.moved import in_main_memory
from covey.kernel.replies import Exact, Masked, Message, rows_of
from covey.links.meter import Key, LowerEnds, Meter, NodeBytes, Traffic
from covey.links.packed import NOTHING, Packed, Schema
from covey.links.spec import LinkSpec, difference, largest
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Route:
    """Where a message goes: the link's name, direction and lane.

    Each row has its number of receivers, `copies`, and the number of its tree. `heard` is called
    with the length of every row's message, in bytes; to know it, a GPU is waited for. `ends` are
    the nodes below, where the bytes of single nodes are counted.
    """

    key: Key
    copies: Tensor
    tree: Tensor
    heard: Callable[[Tensor], None] | None = None
    ends: LowerEnds | None = None


@dataclass(frozen=True, eq=False)
class RowMessages:
    """One message per row: how many values it sends; its length, if the values decide it."""

    route: Route
    codec: Codec
    width: int
    size: int
    masked: bool
    exact: bool
    sent: Tensor
    lengths: Tensor | None = None

    @staticmethod
    def joined(entries: Sequence[RowMessages]) -> RowMessages:
        """The messages of entries of one kind, which are counted together."""
        first = entries[0]
        ends = first.route.ends
        if ends is not None:
            ids = []
            rows = []
            before = 0
            for entry in entries:
                assert entry.route.ends is not None
                ids.append(entry.route.ends.ids)
                rows.append(entry.route.ends.rows + before)
                before += len(entry.route.copies)
            ends = LowerEnds(ends.tier, torch.cat(ids), torch.cat(rows))
        copies = torch.cat([entry.route.copies for entry in entries])
        tree = torch.cat([entry.route.tree for entry in entries])
        sent = torch.cat([entry.sent for entry in entries])
        lengths = [entry.lengths for entry in entries if entry.lengths is not None]
        return replace(
            first,
            route=replace(first.route, copies=copies, tree=tree, ends=ends),
            sent=sent,
            lengths=torch.cat(lengths) if lengths else None,
        )

    def lengths_by(self, codec: Codec) -> Tensor:
        """The lengths of such messages of a codec, where the numbers of values decide them."""
        lengths = codec.lengths(self.sent, width=self.width, size=self.size, masked=self.masked)
        assert lengths is not None
        return lengths


class Ledger:
    """The messages that have crossed links and are not yet in the meters.

    A run has one meter for each tree, and `nodes` for the bytes of single nodes. The counts stay on
    the device that made them until `settle` reads all at once: a GPU that is asked after every
    message waits.
    """

    def __init__(self, meters: Sequence[Meter], nodes: NodeBytes | None = None) -> None:
        self._meters = meters
        self._nodes = nodes or NodeBytes()
        self.entries: list[RowMessages] = []
        """The messages that are not settled."""

    def add(self, entry: RowMessages) -> None:
        """Messages that have crossed."""
        self.entries.append(entry)
        if entry.route.heard is not None:
            lengths = entry.lengths
            if lengths is None:
                lengths = entry.lengths_by(entry.codec)
            entry.route.heard(lengths.cpu())

    def settle(self) -> None:
        """Everything into the meters, messages of one kind together."""
        kinds: dict[tuple[object, ...], list[RowMessages]] = {}
        for entry in self.entries:
            form = (entry.width, entry.size, entry.masked, entry.exact, entry.lengths is None)
            kind = (entry.route.key, id(entry.codec), *form)
            kinds.setdefault(kind, []).append(entry)
        together = list(map(RowMessages.joined, kinds.values()))
        numbers = []
        for entry in together:
            numbers.append(entry.sent)
            if entry.lengths is not None:
                numbers.append(entry.lengths)
        arrived = iter(in_main_memory(numbers))  # with one wait for a GPU
        for entry in together:
            entry = replace(entry, sent=next(arrived))
            if entry.lengths is not None:
                entry = replace(entry, lengths=next(arrived))
            self.count(entry)
        self.entries.clear()

    def count(self, entry: RowMessages) -> None:
        """Count messages in the meters of their trees, and at the nodes below."""
        route = entry.route
        lengths = entry.lengths
        if lengths is None:
            lengths = entry.lengths_by(entry.codec)
        ones = torch.ones_like(entry.sent)
        dense_lengths = entry.lengths_by(CODECS["dense"])
        numbers = torch.stack([lengths, dense_lengths, entry.sent, ones]) * route.copies
        totals = torch.zeros(len(self._meters), 4, dtype=torch.int64)
        totals.index_add_(0, route.tree, numbers.t())
        for meter, total in zip(self._meters, totals.tolist(), strict=True):
            length, dense, nonzeros, crossed = total
            if crossed:
                values = 0 if entry.exact else entry.width * crossed
                meter.count(*route.key, Traffic(length, crossed, values, nonzeros, dense))
        if route.ends is not None:
            _, direction, _ = route.key
            self._nodes.add(route.ends.tier, direction, route.ends.ids, lengths[route.ends.rows])


_NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Residuals:
    """The residuals of the senders: the errors of their earlier messages of this kind."""

    recall: Callable[[Rows], Rows]  # takes zeros, and returns them for senders without a residual
    keep: Callable[[Rows], None]


@dataclass(frozen=True, eq=False)
class Sending:
    """A message that is to be sent: what its senders have beside it.

    Sending(rows, cut=0.01)                     # small entries are sent as zeros
    Sending(rows, reference=received)           # what an update is the difference from
    Sending(rows, keys=keys, memory=residuals)  # for codecs that draw, for feedback
    """

    message: Message
    cut: float | None = None
    reference: Rows | None = None
    """The rows that came down to the senders."""
    keys: Callable[[], Tensor] | None = None
    """The addresses of their draws."""
    memory: Residuals | None = None


@dataclass(frozen=True, eq=False)
class _Sent:
    """Rows on their way, as the sender sees them."""

    codec: Codec
    rows: Rows  # the input of the codec
    mask: Tensor | None
    keys: Tensor | None  # the addresses of the codec's draws
    arriving: Rows  # the output of the codec, zeros outside the mask
    count: Tensor  # the number of values of each row that are sent
    reference: Rows | None  # the rows that the receiver adds


@dataclass(frozen=True)
class Link:
    """One direction of a link: its specification, and the ledger that counts its bytes.

    A simulator calls `send`, which makes no bytes. Nodes that share no memory call `pack`, `count`
    and, on the other side, `unpack`: together they do the same to the bit.
    """

    wire: LinkSpec
    ledger: Ledger

    def send(self, sending: Sending, route: Route) -> Message:
        """The message that the receivers get."""
        message = sending.message
        if message is None:
            return None
        sent = self._sent(sending)
        rows = sent.arriving
        width = rows.shape[1]
        size = rows.element_size()
        masked = sent.mask is not None
        exact = isinstance(message, Exact)
        lengths = None
        if sent.codec.lengths(_NOTHING, width=width, size=size, masked=masked) is None:
            lengths = sent.codec.nbytes(rows, sent.mask)  # counts do not decide them
        entry = RowMessages(route, sent.codec, width, size, masked, exact, sent.count, lengths)
        self.ledger.add(entry)
        return message if exact else _received(rows, sent.mask, sent.reference)

    def pack(self, sending: Sending) -> Packed:
        """The bytes that the senders of rows put on the link."""
        message = sending.message
        rows = rows_of(message)
        if rows is None:
            return Packed(NOTHING, ())
        check_rows(rows, None, ndim=2)
        sent = self._sent(sending)
        return Packed(Schema.of(message), tuple(_encoded(sent)), sent.count.cpu())

    def count(self, packed: Packed, route: Route) -> None:
        """Count packed rows in the ledger, as `send` does."""
        schema = packed.schema
        if schema.kind == "nothing":
            return
        entry = RowMessages(
            route,
            _EXACT if schema.kind == "exact" else self.wire.codec,
            schema.width,
            size=schema.dtype.itemsize,
            masked=schema.kind == "masked",
            exact=schema.kind == "exact",
            sent=packed.sent,
            lengths=packed.lengths,
        )
        self.ledger.add(entry)

    def unpack(
        self,
        packed: Packed,
        *,
        reference: Rows | None = None,
        expect: Schema | None = None,
        count: int | None = None,
        borrow: bool = False,
    ) -> Message:
        """The message in these bytes: to the bit what `send` returns.

        With `borrow` its rows may lie in the memory of the bytes, and must not be written.
        `reference` are the rows that went down to the senders, as they arrived. Bytes come from
        other machines and may be hostile: anything but `count` rows of the schema `expect` is a
        DecodeError, before memory for them is taken.
        """
        packed.check(expect, count)
        schema = packed.schema
        if schema.kind == "nothing":
            return None
        exact = schema.kind == "exact"
        rows, mask = _decoded(_EXACT if exact else self.wire.codec, packed, borrow=borrow)
        if exact:
            return Exact(rows)
        if not self.wire.update or reference is None or reference.shape != rows.shape:
            reference = None
        return _received(rows, mask, reference)

    def _sent(self, sending: Sending) -> _Sent:
        """The steps of the sender: cut, difference, residual, the largest entries, the codec."""
        wire = self.wire
        message = sending.message
        rows = rows_of(message)
        assert rows is not None
        check_dtype(rows)
        if isinstance(message, Exact):
            none = torch.zeros(len(rows), dtype=torch.int64)
            return _Sent(_EXACT, rows, None, None, rows, none, None)
        mask = message.mask if isinstance(message, Masked) else None
        memory = sending.memory
        cut_rows, count = native.cut_count(rows, sending.cut)
        rows = cut_rows
        added = None
        if wire.update:
            rows, added = difference(rows, sending.reference)
        if memory is not None:
            rows = rows + memory.recall(torch.zeros_like(rows))
        chosen = rows
        if wire.keep is not None:
            chosen = largest(kept(rows, mask), wire.keep)
        addresses = None
        if sending.keys is not None and wire.codec.draws:
            addresses = sending.keys()
        arriving = wire.codec.roundtrip(chosen, mask, addresses)
        if memory is not None:
            residual = rows - arriving
            if mask is not None:  # nothing was sent outside it, where the old residual stays
                old = memory.recall(torch.zeros_like(residual))
                residual = torch.where(mask, residual, old)
            memory.keep(residual)
        if mask is not None:
            arriving = kept(arriving, mask)
            count = count_nonzero(mask.expand(rows.shape))
        elif arriving is not cut_rows:
            count = count_nonzero(patterns(arriving))
        return _Sent(wire.codec, chosen, mask, addresses, arriving, count, added)


_EXACT = CODECS["dense"]
"""The codec of rows that no codec may change: a header, then little-endian numbers."""


def _received(rows: Rows, mask: Tensor | None, reference: Rows | None) -> Message:
    """The message that decoded rows are for the receiver, which adds a reference to them."""
    if reference is not None:
        rows = rows + kept(reference, mask)
    if mask is None:
        return rows
    return Masked(rows, mask)


def _encoded(sent: _Sent) -> Iterator[bytes]:
    """The bytes of each row, which do not depend on the other rows."""
    count = len(sent.rows)
    masks: Sequence[Tensor | None] = [None] * count
    if sent.mask is not None:
        masks = sent.mask.expand(sent.rows.shape).unbind()
    keys: Sequence[int | None] = [None] * count
    if sent.keys is not None:
        keys = sent.keys.tolist()
    yield from map(sent.codec.encode, sent.rows, masks, keys)


def _decoded(codec: Codec, packed: Packed, *, borrow: bool) -> tuple[Rows, Tensor | None]:
    """The rows in packed messages and their masks, each checked before the next is read."""
    schema = packed.schema
    n = len(packed)
    if borrow and n == 1 and isinstance(codec, Dense):
        row, mask = codec.decode(packed.messages[0], limit=schema.width, borrow=True)
        schema.check_row(row, mask)
        return row[None], None if mask is None else mask[None]
    rows = _empty(n, schema.width, schema.dtype)
    masks = None
    if schema.kind == "masked":
        masks = _empty(n, schema.width, torch.bool)
    for k, message in enumerate(packed.messages):
        row, mask = codec.decode(message, limit=schema.width)
        schema.check_row(row, mask)
        if n == 1:  # the common case between two nodes, without a copy
            if mask is not None:
                mask = mask[None]
            return row[None], mask
        rows[k] = row
        if masks is not None and mask is not None:
            masks[k] = mask
    return rows, masks


def _empty(n: int, width: int, dtype: torch.dtype) -> Tensor:
    """Memory for rows, which the system hands out when they are written."""
    try:
        return torch.empty(n, width, dtype=dtype)
    except (MemoryError, RuntimeError):
        text = f"{n} rows of {width} values of {dtype} do not fit in memory"
        raise DecodeError(f"{text}; tell unpack the expected schema and count.") from None
