from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("number", "head", "pieces")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    number: int
    head: bytes
    pieces: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., head: _Optional[bytes] = ..., pieces: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("hello", "welcome", "request", "reply")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    request: Request
    reply: Reply
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "fingerprint", "instance", "nonce", "seats", "draws", "covey")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    COVEY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    fingerprint: str
    instance: bytes
    nonce: bytes
    seats: _containers.RepeatedCompositeFieldContainer[Taken]
    draws: int
    covey: str
    def __init__(self, protocol: _Optional[int] = ..., fingerprint: _Optional[str] = ..., instance: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., seats: _Optional[_Iterable[_Union[Taken, _Mapping]]] = ..., draws: _Optional[int] = ..., covey: _Optional[str] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("name", "last_key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    last_key: str
    def __init__(self, name: _Optional[str] = ..., last_key: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "fingerprint", "certificate", "signature")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    fingerprint: str
    certificate: bytes
    signature: bytes
    def __init__(self, protocol: _Optional[int] = ..., fingerprint: _Optional[str] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("run", "round", "lane", "path", "program", "parameters", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    lane: str
    path: int
    program: str
    parameters: str
    attempt: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., lane: _Optional[str] = ..., path: _Optional[int] = ..., program: _Optional[str] = ..., parameters: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("key", "common", "parts")
    KEY_FIELD_NUMBER: _ClassVar[int]
    COMMON_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    key: Key
    common: int
    parts: _containers.RepeatedCompositeFieldContainer[SeatShare]
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., common: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[SeatShare, _Mapping]]] = ...) -> None: ...

class SeatShare(_message.Message):
    __slots__ = ("seat", "size")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    seat: int
    size: int
    def __init__(self, seat: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("key", "seat", "size")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: Key
    seat: int
    size: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., seat: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...
