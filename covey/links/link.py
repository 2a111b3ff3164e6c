"""A link between two tiers: what it does to rows that cross it, and what that costs in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey import native
from covey.codecs import CODECS, Codec
from covey.codecs.blocks import check_dtype, check_rows, kept, patterns
from covey.codecs.blocks import count as count_nonzero
from covey.errors import DecodeError
from covey.kernel.replies import Exact, Masked, Message
from covey.links.meter import Key, Meter, Traffic
from covey.links.packed import NOTHING, Packed, Schema
from covey.links.spec import LinkSpec, difference, largest
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Route:
    """Where a message goes: the link's name, direction and lane.

    Each row has its number of receivers, `copies`, and the number of its tree. `heard` is told how
    long the message of every row is, in bytes; it waits for a GPU.
    """

    key: Key
    copies: Tensor
    tree: Tensor
    heard: Callable[[Tensor], None] | None = None


@dataclass(frozen=True, eq=False)
class _Entry:
    """One message per row: how many values it sends, and its length if only the values decide it."""

    route: Route
    codec: Codec
    width: int
    size: int
    masked: bool
    exact: bool
    sent: Tensor
    lengths: Tensor | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What messages that are counted together have in common."""
        facts = (self.width, self.size, self.masked, self.exact, self.lengths is None)
        return (self.route.key, id(self.codec), *facts)


class Ledger:
    """What has crossed links and is not yet in the meters, one for each tree of a run.

    The counts stay on the device that made them until `settle` reads all at once: a GPU that is
    asked after every message waits.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = meters
        self._entries: list[_Entry] = []

    def add(self, entry: _Entry) -> None:
        """Messages that have crossed."""
        self._entries.append(entry)
        if entry.route.heard is not None:
            lengths = entry.lengths
            if lengths is None:
                lengths = _lengths(entry.codec, entry.sent, entry.width, entry.size, entry.masked)
            entry.route.heard(lengths.cpu())

    def clear(self) -> None:
        """Forget what is not settled."""
        self._entries.clear()

    def settle(self) -> None:
        """Everything into the meters, messages of one kind together."""
        sent = _read([entry.sent for entry in self._entries])
        measured = [entry.lengths for entry in self._entries if entry.lengths is not None]
        lengths = iter(_read(measured))
        groups: dict[tuple[object, ...], list[tuple[_Entry, Tensor, Tensor | None]]] = {}
        for entry, counts in zip(self._entries, sent, strict=True):
            known = None if entry.lengths is None else next(lengths)
            groups.setdefault(entry.kind, []).append((entry, counts, known))
        for group in groups.values():
            self._count(group)
        self.clear()

    def _count(self, group: list[tuple[_Entry, Tensor, Tensor | None]]) -> None:
        entry = group[0][0]
        copies = torch.cat([each.route.copies for each, _, _ in group])
        tree = torch.cat([each.route.tree for each, _, _ in group])
        sent = torch.cat([counts for _, counts, _ in group])
        known = [lengths for _, _, lengths in group if lengths is not None]
        facts = entry.width, entry.size, entry.masked
        lengths = torch.cat(known) if known else _lengths(entry.codec, sent, *facts)
        dense_lengths = _lengths(CODECS["dense"], sent, *facts)
        numbers = torch.stack([lengths, dense_lengths, sent, torch.ones_like(sent)]) * copies
        totals = torch.zeros(len(self._meters), 4, dtype=torch.int64)
        totals.index_add_(0, tree, numbers.t())
        for meter, total in zip(self._meters, totals.tolist(), strict=True):
            length, dense, nonzeros, messages = total
            if messages:
                values = 0 if entry.exact else entry.width * messages
                meter.count(*entry.route.key, Traffic(length, messages, values, nonzeros, dense))


def _read(counts: list[Tensor]) -> Sequence[Tensor]:
    """Numbers of many messages in main memory, with one wait for the device."""
    if not counts:
        return ()
    there = next((some.device for some in counts if some.device.type != "cpu"), counts[0].device)
    together = torch.cat([some.to(there, non_blocking=True) for some in counts])
    return torch.split(together.cpu(), [len(some) for some in counts])


def _lengths(codec: Codec, sent: Tensor, width: int, size: int, masked: bool) -> Tensor:
    lengths = codec.lengths(sent, width=width, size=size, masked=masked)
    assert lengths is not None
    return lengths


_NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Residuals:
    """The residual: what the senders lost in earlier messages of this kind, and where they keep it."""

    recall: Callable[[Rows], Rows]  # what is left over, given zeros where nothing is
    keep: Callable[[Rows], None]


@dataclass(frozen=True, eq=False)
class _Sent:
    """Model rows on their way, as the sender sees them."""

    rows: Rows  # what the codec is given
    mask: Tensor | None
    keys: Tensor | None  # the addresses of its draws
    arriving: Rows  # what comes out of it, zeros outside the mask
    count: Tensor  # values of each row that are sent
    reference: Rows | None  # what the receiver adds


@dataclass(frozen=True)
class Link:
    """One direction of a link: what it does to model rows, and the ledger that counts their bytes.

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
        """What the receivers get.

        `reference` is what came down to those who send now, `keys` the addresses of their draws.
        """
        if message is None:
            return None
        if isinstance(message, Exact):
            self.ledger.add(self._exact_entry(route, message.rows))
            return message
        sent = self._sent(message, cut, reference, keys, memory)
        self.ledger.add(self._entry(route, sent))
        return _received(sent.arriving, sent.mask, sent.reference)

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
        if message is None:
            return Packed(NOTHING, ())
        check_rows(message if isinstance(message, Tensor) else message.rows, None, ndim=2)
        schema = Schema.of(message)
        if isinstance(message, Exact):
            nothing = torch.zeros(len(message.rows), dtype=torch.int64)
            return Packed(schema, tuple(_EXACT.encode(row) for row in message.rows), nothing)
        sent = self._sent(message, cut, reference, keys, memory)
        return Packed(schema, tuple(_encoded(self.wire.codec, sent)), sent.count.cpu())

    def count(self, packed: Packed, route: Route) -> None:
        """Count packed rows in the ledger, as `send` does."""
        schema = packed.schema
        if schema.kind == "nothing":
            return
        exact, masked = schema.kind == "exact", schema.kind == "masked"
        codec = _EXACT if exact else self.wire.codec
        size = schema.dtype.itemsize
        sent, lengths = packed.sent, packed.lengths
        self.ledger.add(_Entry(route, codec, schema.width, size, masked, exact, sent, lengths))

    def unpack(
        self,
        packed: Packed,
        *,
        reference: Rows | None = None,
        expect: Schema | None = None,
        count: int | None = None,
    ) -> Message:
        """What the receiver makes of the bytes: to the bit what `send` returns.

        `reference` is what went down to the senders, as it arrived there. Bytes come from other
        machines and may be hostile: what is not `count` rows of the schema `expect` is a
        DecodeError, before memory for them is taken.
        """
        packed.check(expect, count)
        schema = packed.schema
        if schema.kind == "nothing":
            return None
        codec = _EXACT if schema.kind == "exact" else self.wire.codec
        rows, mask = _decoded(codec, packed)
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
        """What the sender does: cut, difference, residual, the largest entries, the codec."""
        wire, mask = self.wire, None
        rows = message
        if isinstance(message, Masked):
            rows, mask = message.rows, message.mask
        assert isinstance(rows, Tensor)
        check_dtype(rows)
        cut_rows, count = native.cut_count(rows, cut)
        rows, added = cut_rows, None
        if wire.update:
            rows, added = difference(rows, reference)
        if memory is not None:
            rows = rows + memory.recall(torch.zeros_like(rows))
        chosen = rows
        if wire.keep is not None:
            chosen = largest(kept(rows, mask), wire.keep)
        addresses = keys() if keys is not None and wire.codec.draws else None
        arriving = wire.codec.roundtrip(chosen, mask, addresses)
        if memory is not None:
            memory.keep(_lost(rows - arriving, mask, memory))
        if mask is not None:
            arriving = kept(arriving, mask)
            count = count_nonzero(mask.expand(rows.shape))
        elif arriving is not cut_rows:
            count = count_nonzero(patterns(arriving))
        return _Sent(chosen, mask, addresses, arriving, count, added)

    def _entry(self, route: Route, sent: _Sent) -> _Entry:
        """What the ledger counts of model rows; their lengths only if counts do not decide them."""
        codec, rows, masked = self.wire.codec, sent.arriving, sent.mask is not None
        width, size = rows.shape[1], rows.element_size()
        lengths = None
        if codec.lengths(_NOTHING, width=width, size=size, masked=masked) is None:
            lengths = codec.nbytes(rows, sent.mask)
        return _Entry(route, codec, width, size, masked, False, sent.count, lengths)

    def _exact_entry(self, route: Route, rows: Rows) -> _Entry:
        """What the ledger counts of rows that no codec may change."""
        check_dtype(rows)
        nothing = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return _Entry(route, _EXACT, rows.shape[1], rows.element_size(), False, True, nothing)


_EXACT = CODECS["dense"]
"""How rows travel that no codec may change: a header, then little-endian numbers."""


def _lost(lost: Rows, mask: Tensor | None, memory: Residuals) -> Rows:
    """What the senders remember: outside a mask nothing was sent, so what they remembered stays."""
    if mask is None:
        return lost
    return torch.where(mask, lost, memory.recall(torch.zeros_like(lost)))


def _received(rows: Rows, mask: Tensor | None, reference: Rows | None) -> Message:
    """What the receiver makes of decoded rows, given what it adds to them."""
    if reference is not None:
        rows = rows + kept(reference, mask)
    return rows if mask is None else Masked(rows, mask)


def _encoded(codec: Codec, sent: _Sent) -> Iterator[bytes]:
    """The bytes of each row, whoever stands beside it."""
    masks = None if sent.mask is None else sent.mask.expand(sent.rows.shape)
    keys = None if sent.keys is None else sent.keys.tolist()
    for k, row in enumerate(sent.rows):
        mask = None if masks is None else masks[k]
        yield codec.encode(row, mask, None if keys is None else keys[k])


def _decoded(codec: Codec, packed: Packed) -> tuple[Rows, Tensor | None]:
    """The rows in packed messages and their masks, each checked before the next is read."""
    schema, n = packed.schema, len(packed)
    rows = _empty(n, schema.width, schema.dtype)
    masks = None
    if schema.kind == "masked":
        masks = _empty(n, schema.width, torch.bool)
    for k, message in enumerate(packed.messages):
        row, mask = codec.decode(message, limit=schema.width)
        schema.check_row(row, mask)
        if n == 1:  # the common case between two nodes, without a copy
            return row[None], None if mask is None else mask[None]
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
