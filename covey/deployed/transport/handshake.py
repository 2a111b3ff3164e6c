"""A process that dials in: its certificate and its hello, and the parent's welcome or refusal."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from covey.deployed.operate.certificates import Identity, SeatCertificate
from covey.deployed.transport.admission import EVICTED, AllowList, Refusal, signed_text
from covey.deployed.transport.extras import grpc
from covey.deployed.transport.frames import Assembler
from covey.deployed.transport.grpc_options import (
    LOG,
    Failures,
    Limits,
    Revoked,
    broken,
    next_frame,
)
from covey.deployed.transport.seat_table import SeatTable
from covey.deployed.transport.wire import PROTOCOL, Hello, Welcome
from covey.errors import DecodeError

_HARMLESS = ("UNAVAILABLE", "ABORTED")  # a connection that broke, or an end that closes
_PASSING = ("ALREADY_EXISTS", "UNAVAILABLE", "RESOURCE_EXHAUSTED")  # what passes by itself
_HELLO = 2**15  # bytes of a hello, and for each of its seats: a name and a key
_HELLO_SEAT = 2**11


@dataclass(eq=False)
class Handshakes:
    """Takes processes that dial in, and turns away those that may have no seat."""

    identity: Identity | None
    allowed: AllowList
    limits: Limits
    refused: Counter[str]
    """Refused processes by the reason's status."""
    refusals: dict[tuple[str, ...], Failures] = field(default_factory=lambda: defaultdict(Failures))
    """Why processes were refused, by the first seat of their certificate, where it is known."""
    _dialling: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.revoked = Revoked(self.identity)
        if self.identity is not None:
            self.identity.check()
            self.revoked.numbers = self.identity.revoked()

    def certificate(self, context: Any) -> SeatCertificate | None:
        """The certificate of a peer; None where the tree has none."""
        if self.identity is None:
            return None
        return self.allowed.certificate(context.auth_context(), self.revoked.read())

    def refusal(self, certificate: SeatCertificate | None) -> str | None:
        """Why the certificate of an open stream does not count any more; None: it does."""
        if certificate is None:
            return None
        return certificate.refusal(self.revoked.numbers, datetime.now(UTC))

    @contextmanager
    def dialling(self, certificate: SeatCertificate | None) -> Iterator[None]:
        """While a process dials: no certificate does so more than twice at once."""
        serial = 0
        if certificate is not None:
            serial = certificate.serial
            if self._dialling[serial] >= 2:
                seat = certificate.seats[0]
                raise Refusal("RESOURCE_EXHAUSTED", f"{seat} dials too often at once")
        self._dialling[serial] += 1
        try:
            yield
        finally:
            self._dialling[serial] -= 1

    async def hello(self, context: Any, certificate: SeatCertificate | None) -> Hello:
        """The first message of a process; one of more bytes than its seats need is not read."""
        names = len(self.allowed.seats if certificate is None else certificate.seats)
        most = _HELLO + _HELLO_SEAT * names
        try:
            data = await next_frame(context, self.limits.hello_seconds)
            if data is None:
                raise Refusal("INVALID_ARGUMENT", "it ends before its hello")
            if len(data) > most:
                text = f"a hello of {len(data)} bytes, more than its seats need ({most})"
                raise Refusal("INVALID_ARGUMENT", text)
            message = Assembler(limit=0).take(data)
        except TimeoutError:
            seconds = self.limits.hello_seconds
            raise Refusal("DEADLINE_EXCEEDED", f"no hello in {seconds:g} s") from None
        except DecodeError as error:
            raise Refusal("INVALID_ARGUMENT", str(error)) from None
        if message is None or not isinstance(message.head, Hello):
            raise Refusal("INVALID_ARGUMENT", "its first message is no hello")
        return message.head

    def welcome(self, hello: Hello) -> Welcome:
        """What a process gets that has taken its seats: it is signed for this hello."""
        welcome = Welcome(protocol=PROTOCOL, fingerprint=self.allowed.fingerprint)
        if self.identity is not None:
            welcome.certificate = self.identity.certificate()
            welcome.signature = self.identity.sign(signed_text(hello))
        return welcome

    def welcomed(self, certificate: SeatCertificate | None) -> None:
        """A process has its seats: why it was refused before does not count any more."""
        self.refusals.pop(certificate.seats[:1] if certificate is not None else (), None)

    async def turn_away(
        self,
        context: Any,
        peer: str,
        refusal: Refusal,
        certificate: SeatCertificate | None,
        table: SeatTable,
    ) -> None:
        """Refuse a process, and remember why its seats stay empty.

        One that may take its seat later says nothing of that.
        """
        names = refusal.seats if certificate is None else certificate.seats
        if refusal.code not in _PASSING:
            for name in names:
                if name in self.allowed.seats and self.allowed.seats[name] not in table.streams:
                    self.allowed.turned_away[name] = str(refusal)
        await self.refuse(context, peer, refusal, self.refusals[names[:1]])

    async def refuse(
        self, context: Any, peer: str, refusal: Refusal, earlier: Failures | None = None
    ) -> None:
        """End a stream with a reason, which is logged: ever more rarely where `earlier` has it."""
        if refusal.code in _HARMLESS:
            LOG.info("closed %s: %s", peer, refusal)
        else:
            self.refused[refusal.code] += 1
            if earlier is None or earlier.add(str(refusal)):
                facts = {"code": refusal.code, "count": self.refused[refusal.code]}
                level = logging.ERROR if refusal.code == "INTERNAL" else logging.WARNING
                LOG.log(level, "refused %s: %s", peer, refusal, extra={"facts": facts})
        metadata = ((EVICTED, "yes"),) if refusal.evicted else ()
        code = getattr(grpc().StatusCode, refusal.code)
        # A process that reads nothing gets no reason: gRPC ends its stream when this returns.
        with suppress(TimeoutError, grpc().aio.InternalError):
            async with asyncio.timeout(self.limits.hello_seconds):
                await context.abort(code, str(refusal), metadata)


def judged(error: Exception) -> Refusal:
    """Why a stream has ended: a refusal, a connection that broke, or an error of this parent."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, broken()):
        return Refusal("UNAVAILABLE", f"its connection broke: {error!r}")
    return Refusal("INTERNAL", f"the parent failed: {type(error).__name__}: {error}")
