"""The messages of a stream: what wire.proto says, by hand, and under fire."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey.deployed.transport import wire, wire_pb2
from covey.deployed.transport.frames import Assembler, Message, cut
from covey.deployed.transport.transport import CHUNK, MAX_HEAD, AskKey
from covey.deployed.transport.wire import (
    Frame,
    Head,
    Hello,
    Key,
    Reply,
    Request,
    SeatShare,
    Taken,
    Welcome,
    key_asked,
    key_sent,
    read_frame,
    read_head,
    write,
    write_head,
)
from covey.errors import DecodeError
from fuzz import stream

PROTO = (Path(covey.__file__).parent / "deployed" / "transport" / "wire.proto").read_text(
    encoding="utf-8"
)
WITHOUT = """
import sys
sys.modules["google.protobuf"] = None
import covey.deployed.commands.node, covey.deployed.node.local_tree
from covey.deployed.transport.extras import needed
try:
    needed("google.protobuf")
except Exception as error:
    print(error)
"""
KEY = AskKey("run-1", 3, "train", 2**64 - 7, "algorithm.device", "ab12", 2)
HEADS: list[Head] = [
    Hello(
        protocol=1,
        fingerprint="f" * 32,
        instance=b"i" * 16,
        nonce=b"n" * 32,
        seats=[Taken(name="device0", last_key="k"), Taken(name="device1")],
        draws=2,
        covey="0.1.0",
    ),
    Welcome(protocol=1, fingerprint="f" * 32, certificate=b"certificate", signature=b"signature"),
    Request(key=key_sent(KEY), common=5, parts=[SeatShare(size=2), SeatShare(seat=70_000)]),
    Reply(key=key_sent(KEY), seat=2**63, size=9),
    Reply(),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_a_head_arrives_as_it_was(head: Head) -> None:
    assert read_head(write_head(head)) == head


def test_a_key_arrives_as_it_was() -> None:
    reply = read_head(write_head(Reply(key=key_sent(KEY))))
    assert isinstance(reply, Reply)
    assert key_asked(reply.key) == KEY
    with pytest.raises(DecodeError, match="in the lane 'no'"):
        key_asked(Key(lane="no"))


def test_the_command_does_without_protobuf() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert "A deployed tree needs google.protobuf" in done.stdout, done.stderr
    assert "pip install '.[deploy]'" in done.stdout


def test_bytes_by_hand() -> None:
    assert write(Frame(number=1, head=b"ab", pieces=[b"c"])) == b"\x08\x01\x12\x02ab\x1a\x01c"
    assert write_head(Reply(seat=3)) == b"\x22\x02\x10\x03"
    assert write(Key(round=-1, path=1)) == b"\x10\x01\x20\x01"


def test_the_classes_fit_the_proto_file() -> None:
    """Whoever changes wire.proto makes wire_pb2.py anew, as wire.py says."""
    file = wire_pb2.DESCRIPTOR
    assert f"package {file.package};" in PROTO
    bodies = re.findall(r"^message (\w+) {\n(.*?)^}", PROTO, re.S | re.M)
    assert [name for name, _ in bodies] == list(file.message_types_by_name)
    for name, body in bodies:
        lines = re.findall(r"^ +(repeated )?(\w+) (\w+) = (\d+);", body, re.M)
        fields = file.message_types_by_name[name].fields
        assert len(lines) == len(fields)
        for (many, kind, word, number), field in zip(lines, fields, strict=True):
            assert (word, int(number)) == (field.name, field.number)
            assert bool(many) == hasattr(getattr(getattr(wire_pb2, name)(), word), "append")
            if field.message_type is not None:
                assert kind == field.message_type.name
            else:
                assert getattr(field, f"TYPE_{kind.upper()}") == field.type
    heads = [field.message_type.name for field in wire_pb2.Head.DESCRIPTOR.fields]
    assert heads == [kind.__name__ for kind in wire.Head.__args__]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "of no kind", id="empty"),
        pytest.param(write_head(HEADS[0]) * 2, "another form", id="two heads"),
        pytest.param(write_head(HEADS[0]) + write_head(HEADS[1]), "another form", id="two kinds"),
        pytest.param(b"\x2a\x00", "another form", id="an unknown kind"),
        pytest.param(b"\x08\x01", "another form", id="a kind of another type"),
        pytest.param(b"\x22\x02\x10", "cannot be read", id="a length beyond the end"),
        pytest.param(b"\x22\x01\x10", "cannot be read", id="a number cut off"),
        pytest.param(b"\x22\x03\x10\x80\x00", "another form", id="two bytes of a 0"),
        pytest.param(b"\x22\x02\x10\x00", "another form", id="a 0 that is left out"),
        pytest.param(b"\x22\x0b\x10" + b"\xff" * 10, "cannot be read", id="ten bytes and more"),
        pytest.param(
            b"\x22\x0b\x10" + b"\xff" * 9 + b"\x02", "another form", id="more than 64 bits"
        ),
        pytest.param(b"\x22\x04\x10\x01\x10\x01", "another form", id="a field twice"),
        pytest.param(b"\x22\x04\x18\x01\x10\x01", "another form", id="another order"),
        pytest.param(b"\x22\x02\x28\x01", "another form", id="an unknown field"),
        pytest.param(b"\x22\x02\x12\x00", "another form", id="bytes for a number"),
        pytest.param(b"\x22\x01\x0d", "cannot be read", id="a fixed number cut off"),
        pytest.param(b"\x22\x05\x0a\x03\x0a\x01\xff", "cannot be read", id="not UTF-8"),
    ],
)
def test_bad_heads_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        read_head(data)


def test_bad_texts_are_refused_by_the_protobuf_in_python_too() -> None:
    command = "from covey.deployed.transport.wire import read_head; read_head(bytes.fromhex('22050a030a01ff'))"
    pure = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    ended = subprocess.run(
        [sys.executable, "-c", command], env=pure, capture_output=True, text=True
    )
    assert "DecodeError: a Head that cannot be read" in ended.stderr


def test_long_texts_and_many_parts_are_refused() -> None:
    with pytest.raises(DecodeError, match="fingerprint of 4097 characters"):
        read_head(write_head(Hello(fingerprint="f" * 4097)))
    with pytest.raises(DecodeError, match="65537 pieces, more than"):
        read_frame(b"\x1a\x00" * 65_537)


def of_sizes(*sizes: int) -> Message:
    """A request with blobs of these sizes."""
    blobs = tuple(random.Random(size).randbytes(size) for size in sizes)
    parts = [SeatShare(seat=seat, size=size) for seat, size in enumerate(sizes[1:])]
    return Message(Request(key=key_sent(KEY), common=sizes[0], parts=parts), blobs)


@pytest.mark.parametrize(
    "sent",
    [
        [of_sizes(0), of_sizes(0, 0, 0), of_sizes(0, 1, 0)],
        [of_sizes(CHUNK - 1), of_sizes(CHUNK), of_sizes(CHUNK + 1)],
        [of_sizes(3 * CHUNK, 5), of_sizes(5, 2 * CHUNK, 0), of_sizes(CHUNK, CHUNK)],
        [of_sizes(*[1] * 10_000)],
        [Message(head) for head in HEADS[:2]],
    ],
    ids=["empty", "edges", "long", "many", "no blobs"],
)
def test_messages_arrive_as_they_were(sent: list[Message]) -> None:
    assembler = Assembler()
    arrived = []
    for number, message in enumerate(sent, start=1):
        for frame in cut(number, message):
            assert len(frame) < CHUNK + MAX_HEAD
            whole = assembler.take(frame)
            if whole is not None:
                arrived.append(whole)
        assert not assembler.within
    assert arrived == sent
    assert assembler.kept == 0


def frame(number: int, head: Head | None, *pieces: bytes) -> bytes:
    return write(
        Frame(number=number, head=b"" if head is None else write_head(head), pieces=pieces)
    )


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([frame(2, Reply())], "message 2 after message 0"),
        ([frame(1, Reply()), frame(1, Reply())], "message 1 after message 1"),
        ([frame(1, Reply(size=3)), frame(2, Reply())], "begins within message 1"),
        ([frame(1, None, b"a")], "without a head where a message should begin"),
        ([frame(1, Reply(size=3)), frame(2, None, b"abc")], "of message 2 within message 1"),
        ([frame(1, Reply(size=3)), frame(1, None)], "without bytes"),
        ([frame(1, Reply(size=3), b"abcd")], "4 bytes where 3 are missing"),
        ([frame(1, Reply(size=3), b"ab", b"c")], "two pieces of one blob"),
        ([frame(1, Reply(size=3), b"ab")], f"2 bytes, expected {CHUNK}"),
        ([frame(1, Reply(), b"a")], "1 bytes where 0 are missing"),
        ([frame(1, Reply(size=1001))], "a message of 1001 bytes, more than 1000"),
        ([frame(1, Request(common=2**63, parts=[SeatShare(size=2**63)]))], "more than 1000"),
        ([b"\xff" * 40], "cannot be read"),
    ],
)
def test_bad_frames_are_refused(frames: list[bytes], why: str) -> None:
    assembler = Assembler(limit=1000)
    *good, bad = frames
    for data in good:
        assembler.take(data)
    with pytest.raises(DecodeError, match=why):
        assembler.take(bad)


def test_nothing_is_kept_for_bytes_that_have_not_come() -> None:
    assembler = Assembler()
    assert assembler.take(frame(1, Reply(size=2**30))) is None
    assert assembler.within
    assert assembler.kept == 0
    with pytest.raises(DecodeError, match="more than"):
        Assembler(limit=2**40).take(frame(1, Reply(size=2**21), bytes(2**21)))


def test_a_sender_cannot_state_other_sizes() -> None:
    with pytest.raises(ValueError, match="of other blobs"):
        list(cut(1, Message(Reply(size=4), (b"abc",))))


def test_fuzz() -> None:
    """2,000 inputs here; `make test-deployed` tries a million (fuzz/stream.py)."""
    counts = stream.fuzz(2_000, seed=5)
    assert counts["refused"] > 500
    assert counts["taken"] > 100
    assert min(counts[f"parent: {end}"] for end in ("admitted", "answer", "lie", "refused")) > 20
