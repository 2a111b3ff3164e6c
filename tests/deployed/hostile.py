"""Peers that do not keep to the protocol, over real sockets."""

import queue
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import covey
from covey import draws
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.frames import Message, cut
from covey.deployed.transport.transport import AskKey
from covey.deployed.transport.wire import (
    PROTOCOL,
    Frame,
    Head,
    Hello,
    Reply,
    Taken,
    key_sent,
    write,
    write_head,
)
from tests.deployed.tree import FINGERPRINT

JOIN = "/covey.Tree/Join"


def hello(
    *names: str,
    fingerprint: str = FINGERPRINT,
    protocol: int = PROTOCOL,
    last_key: str | None = None,
    draws: int = draws.VERSION,
    version: str = covey.__version__,
) -> bytes:
    """The frame of a hello; `last_key` is what the disks have written last."""
    seats = [Taken(name=name, last_key=last_key or "") for name in names]
    said = Hello(
        protocol=protocol, fingerprint=fingerprint, instance=b"i" * 16, nonce=b"n" * 32, seats=seats,
        draws=draws, covey=version,
    )  # fmt: skip
    return frame(1, said)


def frame(number: int, head: Head | None, *pieces: bytes) -> bytes:
    return write(
        Frame(number=number, head=b"" if head is None else write_head(head), pieces=pieces)
    )


def reply(number: int, asked: AskKey, seat: int, data: bytes) -> list[bytes]:
    head = Reply(key=key_sent(asked), seat=seat, size=len(data))
    return list(cut(number, Message(head, (data,))))


@dataclass
class Peer:
    """A stream on which anything can be sent. `end` is the status that it gets."""

    address: str
    identity: Identity | None = None
    authority: bytes | None = None
    """Without an identity: the authority for a connection without a certificate; None: no TLS."""
    parent: str = "server"
    frames: "queue.SimpleQueue[bytes | None]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        import grpc

        options = [
            ("grpc.ssl_target_name_override", self.parent),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_send_message_length", -1),
        ]
        self.channel: Any
        if self.identity is not None:
            credentials = grpc.ssl_channel_credentials(
                self.identity.authority(), self.identity.key(), self.identity.certificate()
            )
            self.channel = grpc.secure_channel(self.address, credentials, options)
        elif self.authority is not None:
            credentials = grpc.ssl_channel_credentials(self.authority)
            self.channel = grpc.secure_channel(self.address, credentials, options)
        else:
            self.channel = grpc.insecure_channel(self.address, options[1:])
        self.call = self.channel.stream_stream(JOIN)(self._frames())
        self._error: type[Exception] = grpc.RpcError

    def _frames(self) -> Iterator[bytes]:
        while (data := self.frames.get()) is not None:
            yield data

    def send(self, *frames: bytes) -> "Peer":
        for data in frames:
            self.frames.put(data)
        return self

    def read(self) -> bytes:
        """The next frame of the parent, which comes within a minute."""
        with self._patience():
            out: bytes = next(self.call)
        return out

    def end(self) -> tuple[str, str]:
        """Read until the parent ends the stream, a minute at most; the status and its text."""
        with self._patience(), suppress(self._error):
            for _ in self.call:
                pass
        self.frames.put(None)
        status = (self.call.code().name, self.call.details())
        self.channel.close()
        return status

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """The stream ends where something takes longer than a minute."""
        timer = Timer(60, self.call.cancel)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        self.frames.put(None)
        self.call.cancel()
        self.channel.close()


def by_hand(
    address: str, folder: Path, version: ssl.TLSVersion, parent: str = "server"
) -> tuple[str, bytes]:
    """A call in HTTP/2 by hand, with this version of TLS; the version agreed on, and the answer."""
    with connected(address, folder, version, parent) as stream:
        agreed = str(stream.version())
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2(4, 0, 0, b""))
        stream.sendall(_http2(1, 4, 1, _headers(parent)))
        out = b""
        while b"grpc-status" not in out:
            data = stream.recv(65_536)
            if not data:
                break
            out += data
    return agreed, out


def connected(
    address: str, folder: Path, version: ssl.TLSVersion, parent: str = "server"
) -> ssl.SSLSocket:
    """A connection for HTTP/2 by hand."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.minimum_version = version
    context.maximum_version = version
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 5)
    return context.wrap_socket(plain, server_hostname=parent)


def deaf(address: str, folder: Path, first: bytes, window: int = 0) -> ssl.SSLSocket:
    """A process that says hello and takes `window` bytes of the parent's messages, no more."""
    stream = connected(address, folder, ssl.TLSVersion.TLSv1_3)
    initial_window = struct.pack(">HI", 4, window)
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2(4, 0, 0, initial_window))
    stream.sendall(_http2(1, 4, 1, _headers("server")))
    stream.sendall(_http2(0, 0, 1, b"\0" + struct.pack(">I", len(first)) + first))
    return stream


def _http2(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def _headers(parent: str) -> bytes:
    """The headers of a call, none of them compressed."""
    headers = {
        ":method": "POST", ":scheme": "https", ":path": JOIN, ":authority": parent,
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    out = b""
    for name, value in headers.items():
        out += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return out
