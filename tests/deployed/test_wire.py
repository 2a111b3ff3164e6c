"""The wire format, against protobuf's own runtime, by hand, and under fire."""

import random
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.deployed import wire
from covey.deployed.frames import CHUNK, MAX_HEAD, Assembler, Message, cut
from covey.deployed.transport import AskKey
from covey.deployed.wire import (
    Frame,
    Head,
    Hello,
    Key,
    Part,
    Reply,
    Request,
    Taken,
    Welcome,
    read_frame,
    read_head,
    write,
    write_head,
)
from covey.errors import DecodeError
from fuzz import stream

PROTO = (Path(covey.__file__).parent / "deployed" / "wire.proto").read_text(encoding="utf-8")
KEY = AskKey("run-1", 3, "train", 2**64 - 7, "algorithm.device", "ab12", 2)
HEADS: list[Head] = [
    Hello(1, "f" * 32, b"i" * 16, b"n" * 32, (Taken("device0", "k"), Taken("device1")), 2, "0.1.0"),
    Welcome(1, "f" * 32, b"certificate", b"signature"),
    Request(Key.of(KEY), 5, (Part(0, 2), Part(70_000, 0))),
    Reply(Key.of(KEY), 2**63, 9),
    Reply(),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_a_head_arrives_as_it_was(head: Head) -> None:
    assert read_head(write_head(head)) == head


def test_a_key_arrives_as_it_was() -> None:
    reply = read_head(write_head(Reply(Key.of(KEY))))
    assert isinstance(reply, Reply)
    assert reply.key.asked() == KEY
    with pytest.raises(DecodeError, match="in the lane 'no'"):
        Key(lane="no").asked()


def test_bytes_by_hand() -> None:
    assert write(Frame(number=1, head=b"ab", pieces=(b"c",))) == b"\x08\x01\x12\x02ab\x1a\x01c"
    assert write_head(Reply(seat=3)) == b"\x22\x04\x0a\x00\x10\x03"
    assert write(Key(round=-1, path=1)) == b"\x10\x01\x20\x01"


def test_the_proto_file_has_the_same_fields() -> None:
    for kind in wire.KINDS:
        (body,) = re.findall(rf"^message {kind.__name__} {{\n(.*?)^}}", PROTO, re.S | re.M)
        lines = re.findall(r"^  (repeated )?(\w+) (\w+) = (\d+);", body, re.M)
        told = [(bool(many), word, name, int(number)) for many, word, name, number in lines]
        own = []
        for part in fields(kind):
            word = part.metadata["kind"]
            if isinstance(word, type):
                word = word.__name__
            many = part.metadata.get("repeated", False)
            own.append((many, word, part.name, part.metadata["number"]))
        assert told == own
    listed = re.findall(r"^    (\w+) \w+ = (\d+);", PROTO, re.M)
    assert [(name, int(number)) for name, number in listed] == [
        (kind.__name__, number) for number, kind in wire.HEADS.items()
    ]


def google_kinds() -> dict[str, Any]:
    """The messages as protobuf's runtime makes them, without a compiler."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
    message_factory = pytest.importorskip("google.protobuf.message_factory")
    types = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "uint64": types.TYPE_UINT64,
        "sint64": types.TYPE_SINT64,
        "string": types.TYPE_STRING,
        "bytes": types.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(name="wire", package="covey", syntax="proto3")
    for kind in wire.KINDS:
        message = file.message_type.add(name=kind.__name__)
        for part in fields(kind):
            word = part.metadata["kind"]
            entry = message.field.add(name=part.name, number=part.metadata["number"])
            entry.label = types.LABEL_OPTIONAL
            if part.metadata.get("repeated"):
                entry.label = types.LABEL_REPEATED
            if isinstance(word, type):
                entry.type = types.TYPE_MESSAGE
                entry.type_name = f".covey.{word.__name__}"
            else:
                entry.type = scalars[word]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        kind.__name__: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"covey.{kind.__name__}")
        )
        for kind in wire.KINDS
    }


def test_protobuf_reads_and_writes_the_same_bytes() -> None:
    google = google_kinds()
    for message in (*HEADS, Frame(7, b"head", (b"a", b"bc")), Key.of(KEY), Part(1, 2**64 - 1)):
        data = write(message)
        theirs = google[type(message).__name__].FromString(data)
        assert theirs.SerializeToString(deterministic=True) == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "a head with 0 fields"),
        (write_head(HEADS[0]) * 2, "a head with 2 fields"),
        (b"\x2a\x00", "unknown kind 5"),
        (b"\x08\x01", "unknown kind 1"),
        (b"\x22\x02\x10", "where 1 are left"),
        (b"\x22\x01\x10", "cut off"),
        (b"\x22\x03\x10\x80\x00", "more bytes than it needs"),
        (b"\x22\x0b\x10" + b"\xff" * 10, "more than ten bytes"),
        (b"\x22\x0b\x10" + b"\xff" * 9 + b"\x02", "more bytes than it needs"),
        (b"\x22\x04\x10\x01\x10\x01", "seat twice"),
        (b"\x22\x02\x28\x01", "unknown field 5"),
        (b"\x22\x02\x12\x00", "seat of wire type 2"),
        (b"\x22\x01\x0d", "wire type 5"),
        (b"\x22\x05\x0a\x03\x0a\x01\xff", "not UTF-8"),
    ],
)
def test_bad_heads_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        read_head(data)


def test_long_texts_and_many_parts_are_refused() -> None:
    with pytest.raises(DecodeError, match="a text of 4097 bytes"):
        read_head(write_head(Hello(fingerprint="f" * 4097)))
    with pytest.raises(DecodeError, match="more than 65536 pieces"):
        read_frame(b"\x1a\x00" * 65_537)


def of_sizes(*sizes: int) -> Message:
    """A request with blobs of these sizes."""
    blobs = tuple(random.Random(size).randbytes(size) for size in sizes)
    parts = tuple(Part(seat, size) for seat, size in enumerate(sizes[1:]))
    return Message(Request(Key.of(KEY), sizes[0], parts), blobs)


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
    return write(Frame(number, b"" if head is None else write_head(head), pieces))


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
        ([frame(1, Request(Key(), 2**63, (Part(0, 2**63),)))], "more than 1000"),
        ([b"\xff" * 40], "more than ten bytes"),
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
    assert min(counts[f"parent: {end}"] for end in ("answer", "lie", "refused")) > 20
