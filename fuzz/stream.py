"""Hostile frames for a stream of a deployed tree: a message, None or a DecodeError, within the limit.

An input is a list of frames. Random inputs are good streams with bytes changed, frames left out, doubled or swapped,
fields added, and bytes of no kind at all. With atheris, inputs are found by coverage; fuzz/README.md says how.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import covey
from covey import draws
from covey.deployed.transport.admission import AllowList, Refusal
from covey.deployed.transport.answers import SentKeys
from covey.deployed.transport.frames import Assembler, Message, cut
from covey.deployed.transport.transport import AskKey
from covey.deployed.transport.wire import (
    PROTOCOL,
    Hello,
    Reply,
    Request,
    SeatShare,
    Taken,
    Welcome,
    key_asked,
    key_sent,
    sizes_of,
)
from covey.errors import DecodeError

LIMIT = 5_000
SEPARATOR = b"\xff\x00\xff"
KEY = key_sent(AskKey("run", 3, "train", 7, "algorithm.device", "ab", 1))
SEATS = [Taken(name="device0", last_key="key"), Taken(name="d1")]


def check(frames: list[bytes]) -> str:
    """Give the frames to an assembler; what became of the last one."""
    assembler = Assembler(limit=LIMIT)
    state = "waits"
    for frame in frames:
        try:
            message = assembler.take(frame)
        except DecodeError:
            return "refused"
        assert assembler.kept <= LIMIT, "more bytes than the limit are kept"
        state = "waits"
        if message is not None:
            state = "taken"
            _check_message(message)
    return state


def _check_message(message: Message) -> None:
    """A message that was taken has the sizes that it states, and can be sent again."""
    assert sizes_of(message.head) == [len(blob) for blob in message.blobs]
    again = Assembler(limit=LIMIT)
    arrived = [again.take(frame) for frame in cut(1, message)]
    assert arrived[-1] == message, "it does not arrive again as it is"


def _messages() -> list[Message]:
    """Good messages of every kind."""
    out = [
        Message(
            Hello(
                protocol=PROTOCOL,
                fingerprint="print",
                instance=b"i",
                nonce=b"n" * 16,
                seats=SEATS,
                draws=draws.VERSION,
                covey=covey.__version__,
            )
        ),
        Message(Welcome(protocol=PROTOCOL, fingerprint="print", certificate=b"c", signature=b"s")),
    ]
    for blob in (b"", b"a", bytes(range(40))):
        parts = [SeatShare(), SeatShare(seat=300, size=2)]
        request = Request(key=KEY, common=len(blob), parts=parts)
        out.append(Message(request, (blob, b"", b"ab")))
        out.append(Message(Reply(key=KEY, seat=2**20, size=len(blob)), (blob,)))
    return out


GOOD = [[b"".join(cut(number, message)) for message in _messages()] for number in (1, 2, 3)]
"""The one frame of every message, by the number that it has in its stream."""


def good(draw: random.Random) -> list[bytes]:
    """The frames of a few good messages."""
    return [draw.choice(GOOD[number]) for number in range(draw.randint(1, 3))]


def changed(frames: list[bytes], draw: random.Random) -> list[bytes]:
    """The frames with one thing wrong, or nothing."""
    out = list(frames)
    place = draw.randrange(len(out))
    data = bytearray(out[place] or b"\0")
    kind = draw.randrange(8)
    if kind == 0:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[draw.randrange(len(data)) :]
    elif kind == 2:
        position = draw.randrange(len(data))
        data[position:position] = draw.randbytes(draw.randint(1, 12))
    elif kind == 3:
        data = bytearray(draw.randbytes(draw.randint(0, 60)))
    elif kind == 4:
        position = draw.randrange(len(data))
        data[position : position + draw.randint(1, 8)] = b"\xff" * draw.randint(1, 11)
    out[place] = bytes(data)
    if kind == 5:
        out.insert(draw.randrange(len(out)), out[place])
    elif kind == 6:
        draw.shuffle(out)
    return out


def check_parent(frames: list[bytes], draw: random.Random) -> str:
    """Give the frames to what a parent checks with: nothing is believed that was not asked."""
    allowed = AllowList({"device0": 0, "d1": 300}, "print")
    owed = SentKeys()
    asked = [AskKey("run", 3, "train", 7, "algorithm.device", "ab", number) for number in (0, 1)]
    for key in asked[: draw.randint(0, 2)]:
        owed.send(2**20, key)
    assembler = Assembler(limit=LIMIT)
    taken: Counter[AskKey] = Counter()
    state = "nothing"
    for frame in frames:
        begins = not assembler.within
        try:
            message = assembler.take(frame)
            head = assembler.head if message is None else message.head
            if isinstance(head, Hello) and begins:
                assert set(allowed.check(head, None)) <= {"device0", "d1"}
                state = "admitted"
                continue
            if begins and owed.lie(head, {0, 2**20}) is not None:
                state = "lie"
                if message is None:
                    assembler.discard()
            elif message is not None and message.kept and isinstance(head, Reply):
                owed.answered(head.seat, key_asked(head.key))
                taken[key_asked(head.key)] += 1
                state = "answer"
        except (DecodeError, Refusal):
            return "refused"
    assert set(taken) <= set(asked)
    assert all(times == 1 for times in taken.values())
    return state


def fuzz(count: int, seed: int) -> Counter[str]:
    """Try random inputs; how many were taken, refused, or wait for more."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    for _ in range(count):
        frames = good(draw)
        for _ in range(draw.randint(0, 2)):
            frames = changed(frames, draw)
        counts[check(frames)] += 1
        counts[f"parent: {check_parent(frames, draw)}"] += 1
    return counts


def one(data: bytes) -> None:
    """One input of a fuzzer that is guided by coverage."""
    check(data.split(SEPARATOR))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--random"]:
        begin = time.perf_counter()
        found = fuzz(int(sys.argv[2]), seed=int(sys.argv[3]))
        print(dict(found), f"{time.perf_counter() - begin:.0f} s")
    else:
        import atheris

        atheris.Setup(sys.argv, one)
        atheris.Fuzz()
