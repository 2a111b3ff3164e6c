"""The messages between a parent and a child, in the wire format of protocol buffers.

`wire.proto` has the same messages for other languages. This reader is stricter than the format: a
field that is unknown, of another type or there twice, a number in more bytes than it needs, and a
text that is not UTF-8 are a DecodeError. Nothing is allocated for a length that the bytes do not
have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, cast

from covey.deployed.transport import AskKey
from covey.errors import DecodeError

PROTOCOL = 1
"""The version of these messages and of the order in which they are sent."""
MAX_TEXT = 4096
MAX_PARTS = 65_536

_VARINT = 0
_BYTES = 2
_WORD = 2**64
_M = TypeVar("_M")


# Fields


def _uint(number: int) -> Any:
    return field(default=0, metadata={"number": number, "kind": "uint64"})


def _sint(number: int) -> Any:
    return field(default=0, metadata={"number": number, "kind": "sint64"})


def _text(number: int) -> Any:
    return field(default="", metadata={"number": number, "kind": "string"})


def _bytes(number: int) -> Any:
    return field(default=b"", metadata={"number": number, "kind": "bytes"})


def _all_bytes(number: int) -> Any:
    return field(default=(), metadata={"number": number, "kind": "bytes", "repeated": True})


def _messages(number: int, kind: type[Any]) -> Any:
    return field(default=(), metadata={"number": number, "kind": kind, "repeated": True})


# Messages


@dataclass(frozen=True)
class Frame:
    """A piece of a message: its number, its head in the first frame, and pieces of its blobs."""

    number: int = _uint(1)
    head: bytes = _bytes(2)
    pieces: tuple[bytes, ...] = _all_bytes(3)


@dataclass(frozen=True)
class Taken:
    """A seat that a process wants to take, and the last key that its disk has written."""

    name: str = _text(1)
    last_key: str = _text(2)


@dataclass(frozen=True)
class Hello:
    """The first message of a child."""

    protocol: int = _uint(1)
    fingerprint: str = _text(2)
    instance: bytes = _bytes(3)
    """A random number of the process: it may take its own seats again, and no other process may."""
    nonce: bytes = _bytes(4)
    """What the parent has to sign."""
    seats: tuple[Taken, ...] = _messages(5, Taken)
    draws: int = _uint(6)
    """The rule of the child's draws (`covey.draws.VERSION`)."""
    covey: str = _text(7)
    """Its version of covey."""

    def sizes(self) -> list[int]:
        """A hello has no blobs."""
        return []


@dataclass(frozen=True)
class Welcome:
    """The first message of a parent, once the child has its seats."""

    protocol: int = _uint(1)
    fingerprint: str = _text(2)
    certificate: bytes = _bytes(3)
    signature: bytes = _bytes(4)
    """Of the nonce and the names of the seats: a revoked parent cannot make it."""

    def sizes(self) -> list[int]:
        """A welcome has no blobs."""
        return []


@dataclass(frozen=True)
class Key:
    """An `AskKey`."""

    run: str = _text(1)
    round: int = _sint(2)
    lane: str = _text(3)
    path: int = _uint(4)
    program: str = _text(5)
    parameters: str = _text(6)
    attempt: int = _sint(7)

    @staticmethod
    def of(key: AskKey) -> Key:
        """The key of an ask, to be sent."""
        return Key(**key.as_dict())

    def asked(self) -> AskKey:
        """The key of an ask, as received; one that makes no sense is a DecodeError."""
        return AskKey.from_dict({part.name: getattr(self, part.name) for part in fields(self)})


@dataclass(frozen=True)
class Part:
    """The share of one seat in a request: how many bytes are its own."""

    seat: int = _uint(1)
    size: int = _uint(2)


@dataclass(frozen=True)
class Request:
    """An ask for several seats of one process. Its blobs: `common`, then each seat's own."""

    key: Key = field(default_factory=Key, metadata={"number": 1, "kind": Key})
    common: int = _uint(2)
    parts: tuple[Part, ...] = _messages(3, Part)

    def sizes(self) -> list[int]:
        """The bytes of every blob."""
        return [self.common, *(part.size for part in self.parts)]


@dataclass(frozen=True)
class Reply:
    """The answer of one seat; its blob is the answer."""

    key: Key = field(default_factory=Key, metadata={"number": 1, "kind": Key})
    seat: int = _uint(2)
    size: int = _uint(3)

    def sizes(self) -> list[int]:
        """The bytes of every blob."""
        return [self.size]


Head = Hello | Welcome | Request | Reply
HEADS: dict[int, type[Head]] = {1: Hello, 2: Welcome, 3: Request, 4: Reply}
"""A head is a message with one field, whose number says what it is."""


KINDS: tuple[type[Any], ...] = (Frame, Hello, Taken, Welcome, Key, Request, Part, Reply)
_PARTS = {kind: {part.metadata["number"]: part for part in fields(kind)} for kind in KINDS}
"""The fields of every message by their numbers."""


# Writing


def write_head(head: Head) -> bytes:
    """A head as bytes."""
    number = next(number for number, kind in HEADS.items() if isinstance(head, kind))
    return b"".join(_sized(number, write(head)))


def write(message: Any) -> bytes:
    """A message as bytes; fields that have their default are left out.

    >>> write(Part(seat=300, size=2)).hex()
    '08ac021002'
    """
    out: list[bytes] = []
    for part in _PARTS[type(message)].values():
        value = getattr(message, part.name)
        if part.metadata.get("repeated"):
            for item in value:
                out += _written(part, item)
        elif value or isinstance(part.metadata["kind"], type):
            out += _written(part, value)
    return b"".join(out)


def _written(part: Field[Any], value: Any) -> list[bytes]:
    """The pieces of one field with its tag; long ones are copied once, when they are joined."""
    number = part.metadata["number"]
    kind = part.metadata["kind"]
    if kind == "uint64":
        return [_varint(number << 3 | _VARINT), _varint(value)]
    if kind == "sint64":
        return [_varint(number << 3 | _VARINT), _varint(_zigzag(value))]
    if kind == "string":
        return _sized(number, value.encode())
    if kind == "bytes":
        return _sized(number, value)
    return _sized(number, write(value))


def _sized(number: int, data: bytes) -> list[bytes]:
    return [_varint(number << 3 | _BYTES), _varint(len(data)), data]


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    if not 0 <= value < _WORD:
        raise ValueError(f"{value} does not fit into 64 bits")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    """0, -1, 1, -2 ... as 0, 1, 2, 3 ..."""
    if value < 0:
        return -2 * value - 1
    return 2 * value


# Reading


def read_head(data: bytes) -> Head:
    """The head in these bytes, or a DecodeError."""
    heads = list(_fields(memoryview(data)))
    if len(heads) != 1:
        raise DecodeError(f"a head with {len(heads)} fields, expected one.")
    number, wire, value = heads[0]
    kind = HEADS.get(number)
    if kind is None or wire != _BYTES:
        raise DecodeError(f"a head of the unknown kind {number}.")
    return _read(kind, cast(memoryview, value))


def read_frame(data: bytes) -> Frame:
    """The frame in these bytes, or a DecodeError."""
    return _read(Frame, memoryview(data))


def _read(kind: type[_M], data: memoryview) -> _M:
    """A message of this kind, or a DecodeError."""
    parts = _PARTS[kind]
    values: dict[str, Any] = {}
    for number, wire, value in _fields(data):
        part = parts.get(number)
        if part is None:
            raise DecodeError(f"a {kind.__name__} with the unknown field {number}.")
        item = _item(part, wire, value)
        if part.metadata.get("repeated"):
            items = values.setdefault(part.name, [])
            if len(items) == MAX_PARTS:
                raise DecodeError(f"a {kind.__name__} with more than {MAX_PARTS} {part.name}.")
            items.append(item)
        elif part.name in values:
            raise DecodeError(f"a {kind.__name__} with {part.name} twice.")
        else:
            values[part.name] = item
    ready = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return kind(**ready)


def _item(part: Field[Any], wire: int, value: int | memoryview) -> Any:
    """One value of a field."""
    kind = part.metadata["kind"]
    expected = _VARINT if kind in ("uint64", "sint64") else _BYTES
    if wire != expected:
        raise DecodeError(f"the field {part.name} of wire type {wire}, expected {expected}.")
    if isinstance(value, int):
        return _signed(value) if kind == "sint64" else value
    if isinstance(kind, type):
        return _read(kind, value)
    return _READERS[kind](value)


def _signed(value: int) -> int:
    """The inverse of `_zigzag`."""
    half = value >> 1
    if value & 1:
        return -half - 1
    return half


def _read_text(value: memoryview) -> str:
    if len(value) > MAX_TEXT:
        raise DecodeError(f"a text of {len(value)} bytes, more than {MAX_TEXT}.")
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise DecodeError("a text that is not UTF-8.") from None


_READERS: dict[str, Callable[[memoryview], Any]] = {"string": _read_text, "bytes": bytes}


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """(number, wire type, value) of every field."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        number = tag >> 3
        wire = tag & 7
        if not 0 < number < 2**29 or wire not in (_VARINT, _BYTES):
            raise DecodeError(f"a field {number} of wire type {wire}.")
        value, position = _read_varint(data, position)
        if wire == _VARINT:
            yield number, wire, value
            continue
        left = len(data) - position
        if value > left:
            raise DecodeError(f"a field of {value} bytes where {left} are left.")
        yield number, wire, data[position : position + value]
        position += value


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number, and the position behind it."""
    value = 0
    for count in range(10):
        if position + count >= len(data):
            raise DecodeError("a number that is cut off.")
        byte = data[position + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            if (byte == 0 and count) or value >= _WORD:
                raise DecodeError("a number in more bytes than it needs.")
            return value, position + count + 1
    raise DecodeError("a number of more than ten bytes.")
