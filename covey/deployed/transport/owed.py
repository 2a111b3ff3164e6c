"""Which answers the seats owe to their parent: what was sent, and what was answered since.

A request is sent again where a stream has ended before its answer came. A process that was working
on it may then answer twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from covey.deployed.transport import parcel
from covey.deployed.transport.transport import AskKey, Seat
from covey.deployed.transport.wire import Head, Reply, key_asked
from covey.errors import DecodeError

REMEMBERED = 64
"""Keys of a seat; an answer to an older one is a lie."""


@dataclass
class Owed:
    """The keys that were sent to every seat, and how many answers each may still have."""

    _sent: dict[Seat, OrderedDict[AskKey, int]] = field(default_factory=dict)

    def ask(self, seat: Seat, key: AskKey) -> None:
        """A request with this key is sent to a seat."""
        keys = self._sent.setdefault(seat, OrderedDict())
        keys[key] = keys.get(key, 0) + 1
        keys.move_to_end(key)
        while len(keys) > REMEMBERED:
            keys.popitem(last=False)

    def settle(self, seat: Seat, key: AskKey) -> None:
        """A seat has answered this key."""
        keys = self._sent[seat]
        if key in keys:
            keys[key] -= 1

    def lie(self, head: Head | None, seats: Collection[Seat]) -> str | None:
        """Why a reply from a process with these seats is none that is owed; None: it is.

        What is no reply at all is a DecodeError.
        """
        if not isinstance(head, Reply):
            raise DecodeError(f"a {type(head).__name__} where a Reply should come.")
        key = key_asked(head.key)
        if head.seat not in seats:
            return f"an answer for the seat {head.seat}"
        left = self._sent.get(head.seat, OrderedDict()).get(key)
        if left is None:
            return f"an answer to {key}, which was not asked"
        if left < 1:
            return f"a second answer to {key}"
        return None


def failure_of(answer: bytes) -> str | None:
    """Why an order was not followed, as the answer to it says; None: it says no such thing.

    >>> failure_of(parcel.pack({"error": ["CheckpointError", "the disk is full"]}))
    'the disk is full'
    """
    try:
        header, _ = parcel.unpack(answer)
        _, text = header["error"]
        return str(text)
    except (DecodeError, KeyError, TypeError, ValueError):
        return None
