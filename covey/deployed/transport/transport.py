"""What carries asks between the nodes of a deployed tree, and the key of an ask.

A parent has a `Transport`, which reaches the seats below it. A child process has a port, which
takes the requests for the seats that the process hosts. A request is two strings of bytes: `common`
is the same for all seats of an ask, so it is sent once to a process with several seats; `own` is
for one seat alone. Both are opaque to a transport. So is an answer.

A transport owes seven things.

1. All requests of an ask are under way at once; answers are told apart by seat, not by arrival.
2. The requests for one seat are handled in the order of the asks, one at a time.
3. A request without an answer is sent again when the seat is taken again. The node below knows the
   key, and does not train twice.
4. An answer to an ask that is no longer open is dropped.
5. An answer is handed over only if it names the key that was asked of its seat.
6. A seat that is late still owes the ask: it ends it before it gets the next request, also where
   its process was started again meanwhile. A seat that was absent never gets the ask. An order is
   owed in both cases. Scores and orders that only read may be forgotten, and an order to write
   models after which another one came.
7. An answer that `check` refuses is dropped, and counted against its sender, who is evicted after a
   limit. The ask goes on without the seat where enough others can answer. Else the seat is asked
   again, also after somebody else has taken it. A `Diverged` answer counts against nobody, and is
   not asked for again: the same training would diverge again. Where the other seats are too few for
   a quorum, the ask raises a DivergedError.

A transport need not wait for a seat that has been empty for as long as patience lasts, where enough
others have answered.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

from covey.deployed.transport.stored import Stored
from covey.errors import ConfigError, DecodeError, shown
from covey.runtimes.alone.envelope import Pieces

CHUNK = 2**20
"""Bytes of blobs in a frame."""
MAX_HEAD = 2**21
"""Bytes of a head: 65,536 seats of one process."""
MAX_FRAME = CHUNK + MAX_HEAD + 2**16
"""Bytes of a frame; gRPC refuses a larger one before it is read."""
MAX_MESSAGE = 2**30
"""Bytes of all blobs of a message, where a transport is given no other limit."""
Seat = int
"""The id of a node in the tier below: its position in the tree, which never changes."""
AskLane = Literal["train", "score", "order"]
"""Training, scoring, or an order such as "hold", which runs no program of an algorithm."""
Status = Literal["answered", "late", "absent", "bad"]


class Diverged(str):
    """Why an answer is refused: its sender says that its training diverged."""


Check = Callable[[Seat, bytes], str | None]
"""Says why the answer of a seat is refused; None: it is good.

What it raises is a fault of the parent, and `ask` raises it as a TransportError.
"""


def failed_in(check: Check | None) -> Collection[Seat]:
    """The seats whose answer is an error that ends the round, as far as a check tells."""
    failed: Collection[Seat] = getattr(check, "failed", frozenset())
    return failed


_DIGEST = 16


@dataclass(frozen=True)
class AskKey:
    """What identifies an ask among all asks that a node ever gets from its parent.

    Equal keys mean equal requests. A node answers a key that it has answered before from its disk.

    >>> key = AskKey("r1", 3, "train", 7, "algorithm.device", digest({}))
    >>> AskKey.from_dict(key.as_dict()) == key
    True
    """

    run: str
    """The run; a run that starts anew has another one."""
    round: int
    lane: AskLane
    path: int
    """The number of the ask within its round, as the kernel counts it."""
    program: str
    """The owner and the name of the program, such as "algorithm.device"."""
    parameters: str
    """The digest of the owner's parameters and, when scoring, of the rows that go down."""
    attempt: int = 0
    """How many rounds of this run were rolled back before: a round that is run again is new."""

    def __str__(self) -> str:
        words = [self.run, self.attempt, self.round, self.lane, self.path, self.program]
        return "/".join(map(str, [*words, self.parameters]))

    def as_dict(self) -> dict[str, Any]:
        """The key as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Any) -> AskKey:
        """The inverse of `as_dict`; anything else is a DecodeError."""
        if not isinstance(values, dict) or set(values) != set(AskKey.__dataclass_fields__):
            raise DecodeError("a key of an ask without its fields.")
        for name, value in values.items():
            kind = int if name in ("round", "path", "attempt") else str
            if type(value) is not kind:
                raise DecodeError(f"a key of an ask with {name} = {shown(value)}.")
        if values["lane"] not in get_args(AskLane):
            raise DecodeError(f"a key of an ask in the lane {shown(values['lane'])}.")
        return AskKey(**values)


Blob = bytes | Pieces
"""Bytes to send: in one piece, or in several that are never joined."""


def digest(parameters: Any, rows: Pieces | None = None) -> str:
    """A short text that differs where parameters or rows differ."""
    text = json.dumps(parameters, sort_keys=True).encode()
    whole = hashlib.blake2b(text, digest_size=_DIGEST)
    whole.update(b"\0")
    if rows is not None:
        for part in rows.parts:
            whole.update(part)
    return whole.hexdigest()


@dataclass(frozen=True)
class Answer:
    """What came back from one seat.

    "late": the seat was taken and had the request, so its memory may have moved. "absent": nobody
    had taken the seat, so nothing moved. "bad": what came was refused. Only "answered" has data,
    which may wait outside memory.
    """

    status: Status
    data: bytes | Stored = b""

    def read(self) -> bytes:
        """The bytes."""
        if isinstance(self.data, Stored):
            return self.data.read()
        return self.data


@dataclass(frozen=True)
class Patience:
    """How long an ask waits for answers.

    It ends when all seats have answered. After `seconds` it ends as soon as `quorum` of them have.
    """

    seconds: float
    quorum: int

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ConfigError(f"deadline = {self.seconds}: give a number of seconds.")
        if self.quorum < 1:
            raise ConfigError(f"quorum = {self.quorum}: give 1 or more answers.")


class Transport(Protocol):
    """The parent's end: it reaches the seats of the tier below."""

    def ask(
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[Seat, bytes],
        patience: Patience | None = None,
        check: Check | None = None,
        most: int | None = None,
    ) -> Mapping[Seat, Answer]:
        """Send a request to every seat in `own`, all at once, and wait for the answers.

        There is an entry for every seat. Without `patience` all seats are waited for, however long
        it takes. Threads may call `check` at the same time. An answer of more than `most` bytes is
        refused before it is received. A transport that is closed meanwhile raises a TransportError.
        """
        ...

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that was given before, and that these seats have not followed.

        They get it before any later request. Nobody waits for them.
        """
        ...

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...


Handler = Callable[[AskKey, bytes, bytes], bytes]
"""Answers (key, common, own); it does not raise for anything that a request may contain.

`common` may be a memoryview, which the handler may release when it has read it.
"""


class Admission(Protocol):
    """What a parent decides about a process that wants to take a seat."""

    def refusal(self, seat: Seat, last_key: str | None) -> str | None:
        """Why the seat cannot be taken with a disk whose last written key is this; None: it can.

        A disk that is behind what the parent has already received has lost rows.
        """
        ...
