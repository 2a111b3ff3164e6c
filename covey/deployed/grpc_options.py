"""What both ends of a gRPC stream have in common: limits, options, and one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from covey.deployed.certificates import Identity
from covey.deployed.extras import grpc
from covey.deployed.frames import MAX_FRAME, MAX_MESSAGE
from covey.errors import ConfigError, CoveyError

SERVICE = "covey.Tree"
METHOD = "Join"
TLS = b"TLSv1.3"
LOG = logging.getLogger("covey.deployed")
Option = tuple[str, int | str]


@dataclass(frozen=True)
class Limits:
    """What a stream may take: bytes, seconds and mistakes."""

    message: int = MAX_MESSAGE
    """Bytes of a message."""
    window: int = 2
    """Requests that a seat may have without an answer; the next one waits."""
    hello_seconds: float = 10
    """From the opening of a stream to its first message."""
    stall_seconds: float = 60
    """Between two frames of a message."""
    keepalive_seconds: float = 10
    """Between two pings; both ends ping."""
    keepalive_timeout: float = 5
    """Until a ping without an answer ends the connection."""
    check_seconds: float = 2
    """Between two checks of the certificates of open streams."""
    strikes: int = 3
    """Bad messages after which a seat is evicted."""


def options(limits: Limits) -> list[Option]:
    """The options of both ends."""
    milliseconds = int(1000 * limits.keepalive_seconds)
    return [
        ("grpc.max_receive_message_length", MAX_FRAME),
        ("grpc.max_send_message_length", MAX_FRAME),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", int(1000 * limits.keepalive_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.ping_timeout_ms", int(1000 * limits.keepalive_timeout)),
        ("grpc.http2.max_ping_strikes", 0),  # both ends ping, and gRPC pings after data too
    ]


def server_options(limits: Limits) -> list[Option]:
    """The options of a parent."""
    return [
        *options(limits),
        ("grpc.so_reuseport", 0),  # a second parent on a port must fail
        ("grpc.max_concurrent_streams", 2),
        ("grpc.max_connection_idle_ms", 60_000),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.hello_seconds)),
    ]


def channel_options(limits: Limits, parent: str | None) -> list[Option]:
    """The options of a child; its parent must show a certificate of this name."""
    out = [
        *options(limits),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if parent is not None:
        out.append(("grpc.ssl_target_name_override", parent))
    return out


def server_credentials(identity: Identity) -> Any:
    """Mutual TLS with the certificate that lies in the folder at every handshake."""
    library = grpc()
    shown = [(identity.key(), identity.certificate(), identity.authority())]

    def configuration() -> Any:
        key, certificate, authority = shown[0]
        return library.ssl_server_certificate_configuration([(key, certificate)], authority)

    def renewed() -> Any:
        """The new configuration, or None where the files are the same or cannot be read."""
        try:
            now = (identity.key(), identity.certificate(), identity.authority())
        except CoveyError as error:
            LOG.error("the certificate is not renewed: %s", error)
            return None
        if now == shown[0]:
            return None
        shown[0] = now
        return configuration()

    return library.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=True
    )


def channel_credentials(identity: Identity) -> Any:
    """Mutual TLS with the certificate that lies in the folder now."""
    return grpc().ssl_channel_credentials(
        identity.authority(), identity.key(), identity.certificate()
    )


def check_plain(address: str) -> None:
    """Refuse an address that other machines reach, where there are no certificates.

    >>> check_plain("127.0.0.1:8443")
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        fix = "use certificates (covey certs), or an address such as 127.0.0.1"
        raise ConfigError(f"{address} without certificates would be open to others; {fix}.")


def waits(base: float = 0.1, most: float = 5.0) -> Iterator[float]:
    """Seconds to wait before each attempt: random, up to a bound that doubles."""
    draw = random.Random()
    bound = base
    while True:
        yield draw.uniform(base / 2, bound)
        bound = min(2 * bound, most)


_LOCK = threading.Lock()
_LOOP: list[asyncio.AbstractEventLoop] = []


def shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, in a thread of its own.

    grpc.aio knows one loop per process, so all ends of streams share it.
    """
    with _LOCK:
        if not _LOOP:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="covey-grpc", daemon=True)
            thread.start()
            _LOOP.append(loop)
        return _LOOP[0]
