"""The messages between a parent and a child: what protoc made of `wire.proto`, read strictly.

A message counts only in the one form in which it is written. So a field that is unknown or there
twice, and a number in more bytes than it needs, are a DecodeError.

protoc 31.1 of grpcio-tools 1.76.0 made `wire_pb2`, at the root of the repository:

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. covey/deployed/transport/wire.proto
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf import message as protobuf

from covey.deployed.transport import wire_pb2
from covey.deployed.transport.transport import AskKey
from covey.deployed.transport.wire_pb2 import (
    Frame,
    Hello,
    Key,
    Reply,
    Request,
    SeatShare,
    Taken,
    Welcome,
)
from covey.errors import DecodeError

__all__ = [
    "PROTOCOL",
    "Frame",
    "Head",
    "Hello",
    "Key",
    "Reply",
    "Request",
    "SeatShare",
    "Taken",
    "Welcome",
    "key_asked",
    "key_sent",
    "read_frame",
    "read_head",
    "sizes_of",
    "write",
    "write_head",
]

PROTOCOL = 2
"""The version of these messages and of the order in which they are sent."""
MAX_TEXT = 4096
MAX_PARTS = 65_536

Head = Hello | Welcome | Request | Reply
_M = TypeVar("_M", Frame, wire_pb2.Head)


def write(message: Any) -> bytes:
    """A message as bytes; fields that have their default are left out.

    >>> write(SeatShare(seat=300, size=2)).hex()
    '08ac021002'
    """
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def write_head(head: Head) -> bytes:
    """A head as bytes: a message with one field, whose name says what it is."""
    name = type(head).__name__.lower()
    return write(wire_pb2.Head(**{name: head}))


def read_frame(data: bytes) -> Frame:
    """The frame in these bytes, or a DecodeError."""
    return _read(Frame, data)


def read_head(data: bytes) -> Head:
    """The head in these bytes, or a DecodeError."""
    message = _read(wire_pb2.Head, data)
    name = message.WhichOneof("kind")
    if name is None:
        raise DecodeError("a head of no kind.")
    head: Head = getattr(message, name)
    return head


def _read(kind: type[_M], data: bytes) -> _M:
    """The message in these bytes, which must be those as which it is written again."""
    try:
        message: _M = kind.FromString(data)
    except (protobuf.DecodeError, UnicodeDecodeError) as error:  # the second without its C library
        reason = str(error).rstrip(".")
        raise DecodeError(f"a {kind.__name__} that cannot be read: {reason}.") from None
    message.DiscardUnknownFields()
    if write(message) != data:
        raise DecodeError(f"a {kind.__name__} in another form than it is written in.")
    _check_limits(message)
    return message


def _check_limits(message: Any) -> None:
    """Refuse long texts and many entries, in the messages inside as well."""
    for field, value in message.ListFields():
        if isinstance(value, protobuf.Message):
            _check_limits(value)
        elif isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise DecodeError(f"{field.name} of {len(value)} characters, more than {MAX_TEXT}.")
        elif not isinstance(value, int | bytes):
            if len(value) > MAX_PARTS:
                raise DecodeError(f"{len(value)} {field.name}, more than {MAX_PARTS}.")
            for entry in value:
                if isinstance(entry, protobuf.Message):
                    _check_limits(entry)


def sizes_of(head: Head) -> list[int]:
    """The bytes of every blob behind a head: of a request, `common` and then each seat's own."""
    if isinstance(head, Request):
        return [head.common, *(part.size for part in head.parts)]
    if isinstance(head, Reply):
        return [head.size]
    return []


def key_sent(key: AskKey) -> Key:
    """The key of an ask, to be sent."""
    return Key(**key.as_dict())


def key_asked(key: Key) -> AskKey:
    """The key of an ask, as received; one that makes no sense is a DecodeError."""
    return AskKey.from_dict({name: getattr(key, name) for name in AskKey.__dataclass_fields__})
