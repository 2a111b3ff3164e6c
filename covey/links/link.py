"""A link between two tiers: it transforms the rows that cross it, and counts their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from covey.types import Ids, Rows


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

    def lengths_of(self, sent: Tensor, codec: Codec) -> Tensor:
        """The length of messages of this kind, where the number of values sent decides it."""
        lengths = codec.lengths(sent, width=self.width, size=self.size, masked=self.masked)
        assert lengths is not None
        return lengths


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of one kind, which are counted together."""

    entry: RowMessages
    """The first of them."""
    copies: Tensor
    tree: Tensor
    ends: Mapping[str, tuple[Ids, Tensor]]
    """By tier: the nodes below, and the position of the message of each."""

    @staticmethod
    def of(entries: Sequence[RowMessages]) -> Messages:
        """The messages of entries of one kind."""
        copies = []
        trees = []
        ids: dict[str, list[Tensor]] = {}
        rows: dict[str, list[Tensor]] = {}
        first = 0
        for entry in entries:
            route = entry.route
            if route.ends is not None:
                ids.setdefault(route.ends.tier, []).append(route.ends.ids)
                rows.setdefault(route.ends.tier, []).append(route.ends.rows + first)
            first += len(route.copies)
            copies.append(route.copies)
            trees.append(route.tree)
        ends = {tier: (torch.cat(ids[tier]), torch.cat(rows[tier])) for tier in ids}
        return Messages(entries[0], torch.cat(copies), torch.cat(trees), ends)


def by_kind(entries: Sequence[RowMessages]) -> list[list[int]]:
    """The positions of the entries of each kind, which are counted together."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for number, entry in enumerate(entries):
        form = (entry.width, entry.size, entry.masked, entry.exact, entry.lengths is None)
        kind = (entry.route.key, id(entry.codec), *form)
        kinds.setdefault(kind, []).append(number)
    return list(kinds.values())


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
                lengths = entry.lengths_of(entry.sent, entry.codec)
            entry.route.heard(lengths.cpu())

    def settle(self) -> None:
        """Everything into the meters, messages of one kind together."""
        entries = self.entries
        measured = {}
        for number, entry in enumerate(entries):
            if entry.lengths is not None:
                measured[number] = entry.lengths
        sent_by_entry = [entry.sent for entry in entries]
        arrived = in_main_memory([*sent_by_entry, *measured.values()])  # with one wait for a GPU
        lengths_of = dict(zip(measured, arrived[len(entries) :], strict=True))
        for alike in by_kind(entries):
            messages = Messages.of([entries[number] for number in alike])
            sent = torch.cat([arrived[number] for number in alike])
            lengths = [lengths_of[number] for number in alike if number in lengths_of]
            self.count(messages, sent, torch.cat(lengths) if lengths else None)
        entries.clear()

    def count(self, messages: Messages, sent: Tensor, lengths: Tensor | None) -> None:
        """Count messages in the meters of their trees, and at the nodes below.

        `sent` are their numbers of values, `lengths` their bytes where the values decide them.
        """
        entry = messages.entry
        dense_lengths = entry.lengths_of(sent, CODECS["dense"])
        if lengths is None:
            lengths = entry.lengths_of(sent, entry.codec)
        ones = torch.ones_like(sent)
        numbers = torch.stack([lengths, dense_lengths, sent, ones]) * messages.copies
        totals = torch.zeros(len(self._meters), 4, dtype=torch.int64)
        totals.index_add_(0, messages.tree, numbers.t())
        for meter, total in zip(self._meters, totals.tolist(), strict=True):
            length, dense, nonzeros, crossed = total
            if crossed:
                values = 0 if entry.exact else entry.width * crossed
                meter.count(*entry.route.key, Traffic(length, crossed, values, nonzeros, dense))
        _, direction, _ = entry.route.key
        for tier, (ids, rows) in messages.ends.items():
            self._nodes.add(tier, direction, ids, lengths[rows])


_NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Residuals:
    """The residuals of the senders: the errors of their earlier messages of this kind."""

    recall: Callable[[Rows], Rows]  # takes zeros, and returns them for senders without a residual
    keep: Callable[[Rows], None]


@dataclass(frozen=True, eq=False)
class _Sent:
    """Model rows on their way, as the sender sees them."""

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

    def send(
        self,
        message: Message,
        route: Route,
        *,
        cut: float | None,
        reference: Rows | None = None,
        keys: Callable[[], Tensor] | None = None,
        memory: Residuals | None = None,
    ) -> Message:
        """The message that the receivers get.

        `reference` are the rows that came down to the senders, `keys` the addresses of their draws.
        """
        if message is None:
            return None
        if isinstance(message, Exact):
            check_dtype(message.rows)
            width = message.rows.shape[1]
            size = message.rows.element_size()
            counts = torch.zeros(len(message.rows), dtype=torch.int64)
            entry = RowMessages(route, _EXACT, width, size, masked=False, exact=True, sent=counts)
            self.ledger.add(entry)
            return message
        sent = self._sent(message, cut, reference, keys, memory)
        rows = sent.arriving
        width = rows.shape[1]
        size = rows.element_size()
        masked = sent.mask is not None
        codec = self.wire.codec
        lengths = None
        if codec.lengths(_NOTHING, width=width, size=size, masked=masked) is None:
            lengths = codec.nbytes(rows, sent.mask)  # counts do not decide them
        exact = False
        entry = RowMessages(route, codec, width, size, masked, exact, sent.count, lengths)
        self.ledger.add(entry)
        return _received(rows, sent.mask, sent.reference)

    def pack(
        self,
        message: Message,
        *,
        cut: float | None,
        reference: Rows | None = None,
        keys: Callable[[], Tensor] | None = None,
        memory: Residuals | None = None,
    ) -> Packed:
        """The bytes that the senders of rows put on the link; the arguments are those of `send`."""
        rows = rows_of(message)
        if message is None or rows is None:
            return Packed(NOTHING, ())
        check_rows(rows, None, ndim=2)
        schema = Schema.of(message)
        if isinstance(message, Exact):
            encoded = tuple(_EXACT.encode(row) for row in rows)
            counts = torch.zeros(len(rows), dtype=torch.int64)
            return Packed(schema, encoded, counts)
        sent = self._sent(message, cut, reference, keys, memory)
        encoded = tuple(_encoded(self.wire.codec, sent))
        return Packed(schema, encoded, sent.count.cpu())

    def count(self, packed: Packed, route: Route) -> None:
        """Count packed rows in the ledger, as `send` does."""
        schema = packed.schema
        if schema.kind == "nothing":
            return
        entry = RowMessages(
            route,
            self._codec(schema),
            schema.width,
            size=schema.dtype.itemsize,
            masked=schema.kind == "masked",
            exact=schema.kind == "exact",
            sent=packed.sent,
            lengths=packed.lengths,
        )
        self.ledger.add(entry)

    def _codec(self, schema: Schema) -> Codec:
        """The codec of messages of a schema."""
        if schema.kind == "exact":
            return _EXACT
        return self.wire.codec

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
        rows, mask = _decoded(self._codec(schema), packed, borrow=borrow)
        if schema.kind == "exact":
            return Exact(rows)
        if not self.wire.update or reference is None or reference.shape != rows.shape:
            reference = None
        return _received(rows, mask, reference)

    def _sent(
        self,
        message: Rows | Masked,
        cut: float | None,
        reference: Rows | None,
        keys: Callable[[], Tensor] | None,
        memory: Residuals | None,
    ) -> _Sent:
        """The steps of the sender: cut, difference, residual, the largest entries, the codec."""
        wire = self.wire
        rows = message.rows if isinstance(message, Masked) else message
        mask = message.mask if isinstance(message, Masked) else None
        check_dtype(rows)
        cut_rows, count = native.cut_count(rows, cut)
        rows = cut_rows
        added = None
        if wire.update:
            rows, added = difference(rows, reference)
        if memory is not None:
            rows = rows + memory.recall(torch.zeros_like(rows))
        chosen = rows
        if wire.keep is not None:
            chosen = largest(kept(rows, mask), wire.keep)
        addresses = None
        if keys is not None and wire.codec.draws:
            addresses = keys()
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
        return _Sent(chosen, mask, addresses, arriving, count, added)


_EXACT = CODECS["dense"]
"""The codec of rows that no codec may change: a header, then little-endian numbers."""


def _received(rows: Rows, mask: Tensor | None, reference: Rows | None) -> Message:
    """The message that decoded rows are for the receiver, which adds a reference to them."""
    if reference is not None:
        rows = rows + kept(reference, mask)
    if mask is None:
        return rows
    return Masked(rows, mask)


def _encoded(codec: Codec, sent: _Sent) -> Iterator[bytes]:
    """The bytes of each row, which do not depend on the other rows."""
    count = len(sent.rows)
    masks: Sequence[Tensor | None] = [None] * count
    if sent.mask is not None:
        masks = sent.mask.expand(sent.rows.shape).unbind()
    keys: Sequence[int | None] = [None] * count
    if sent.keys is not None:
        keys = sent.keys.tolist()
    yield from map(codec.encode, sent.rows, masks, keys)


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
