"""Who may take which seat: a process dials in, and gets a welcome or a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import covey
from covey import draws
from covey.deployed.operate.certificates import Identity, SeatCertificate
from covey.deployed.transport.extras import grpc
from covey.deployed.transport.frames import Assembler
from covey.deployed.transport.grpc_options import (
    LOG,
    TLS,
    Failures,
    Limits,
    Revoked,
    broken,
    next_frame,
)
from covey.deployed.transport.transport import Admission, Seat
from covey.deployed.transport.wire import PROTOCOL, Hello, Welcome
from covey.errors import ConfigError, CoveyError, DecodeError, shown

EVICTED = "covey-evicted"
"""The key of the trailing metadata of a stream that ends because its seat is evicted."""
_MIN_NONCE = 16
_HARMLESS = ("UNAVAILABLE", "ABORTED")  # a connection that broke, or an end that closes
_PASSING = ("ALREADY_EXISTS", "UNAVAILABLE", "RESOURCE_EXHAUSTED")  # what passes by itself
_HELLO = 2**15  # bytes of a hello, and for each of its seats: a name and a key
_HELLO_SEAT = 2**11


class Refusal(CoveyError):
    """Why a process is refused, with the name of the gRPC status that it gets.

    After PERMISSION_DENIED and FAILED_PRECONDITION it does not try again.
    """

    def __init__(
        self,
        code: str,
        text: str,
        seats: Sequence[str] = (),
        *,
        evicted: bool = False,
    ) -> None:
        """`seats` are those of its certificate, where they are known.

        `evicted` says that an operator may let the process in again.
        """
        super().__init__(text)
        self.code = code
        self.seats = tuple(seats)
        self.evicted = evicted


@dataclass
class AllowList:
    """The seats that may be taken: checks certificates and hellos, and knows who was evicted."""

    seats: Mapping[str, Seat]
    """The allow-list: the names of the seats below this parent, with their ids."""
    fingerprint: str
    admission: Admission | None = None
    strikes: int = 3
    evicted: frozenset[str] = frozenset()
    """The names of the seats that are refused, by an order or after too many bad messages."""
    turned_away: dict[str, str] = field(default_factory=dict)
    """Why a process was refused that has a certificate of a seat, until one takes it; by name."""
    _struck: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.evicted &= frozenset(self.seats)

    def certificate(self, facts: Mapping[str, Any], revoked: frozenset[int]) -> SeatCertificate:
        """The certificate of a peer, from what gRPC knows about its connection."""
        version = b"".join(facts.get("ssl_tls_version", []))
        if version != TLS:
            shown_version = version.decode(errors="replace") or "no TLS"
            raise Refusal("UNAUTHENTICATED", f"it uses {shown_version}; TLSv1.3 is needed")
        try:
            certificate = SeatCertificate.of(b"".join(facts.get("x509_pem_cert", [])))
        except ConfigError as error:
            raise Refusal("UNAUTHENTICATED", str(error)) from None
        refusal = certificate.refusal(revoked, datetime.now(UTC))
        if refusal is not None:
            raise Refusal("UNAUTHENTICATED", refusal, certificate.seats)
        if not set(certificate.seats) & set(self.seats):
            names = ", ".join(certificate.seats) or "nobody"
            text = f"its certificate is of {names}, not listed here"
            raise Refusal("PERMISSION_DENIED", text, certificate.seats)
        return certificate

    def check(self, hello: Hello, certificate: SeatCertificate | None) -> dict[str, Seat]:
        """The seats that a process asks for; a Refusal where it may not take one of them."""
        if hello.protocol != PROTOCOL:
            text = f"it speaks protocol {hello.protocol}, this parent {PROTOCOL}"
            raise Refusal("FAILED_PRECONDITION", f"{text}; install the same covey on both")
        if (hello.draws, hello.covey) != (draws.VERSION, covey.__version__):
            text = f"it is covey {shown(hello.covey)} with draws = {hello.draws}"
            own = f"this parent covey {covey.__version__!r} with draws = {draws.VERSION}"
            why = "a tree draws batches and cohorts by one rule"
            raise Refusal(
                "FAILED_PRECONDITION", f"{text}, {own}; {why}: install the same covey on both"
            )
        if hello.fingerprint != self.fingerprint:
            text = f"its program has the fingerprint {shown(hello.fingerprint[:16])}"
            own = f"this parent's has {shown(self.fingerprint[:16])}"
            raise Refusal(
                "FAILED_PRECONDITION", f"{text}, {own}; use the same experiment file and code"
            )
        names = [seat.name for seat in hello.seats]
        if not names or len(set(names)) < len(names) or len(hello.nonce) < _MIN_NONCE:
            raise Refusal("INVALID_ARGUMENT", "it asks for no seat, for one twice, or has no nonce")
        for name in names:
            if certificate is not None and name not in certificate.seats:
                own = ", ".join(certificate.seats)
                raise Refusal("PERMISSION_DENIED", f"it asks for {shown(name)} and is {own}")
            if name not in self.seats:
                raise Refusal("PERMISSION_DENIED", f"{shown(name)} is not listed here")
            if name in self.evicted:
                fix = f"once its process is mended: covey ctl admit {name}"
                raise Refusal("PERMISSION_DENIED", f"{name} is evicted; {fix}", evicted=True)
        return {name: self.seats[name] for name in names}

    def check_disks(self, hello: Hello) -> None:
        """Refuse a disk that is behind what this parent has received."""
        if self.admission is None:
            return
        for seat in hello.seats:
            refusal = self.admission.refusal(self.seats[seat.name], seat.last_key or None)
            if refusal is not None:
                raise Refusal("FAILED_PRECONDITION", f"{seat.name}: {refusal}")

    def strike(self, names: frozenset[str]) -> bool:
        """Count a bad message; return whether it was one too many and its seats are evicted."""
        self._struck.update(names)
        worst = max(self._struck[name] for name in names)
        if worst >= self.strikes:
            self.evicted |= names
        return worst >= self.strikes

    def readmit(self, name: str) -> None:
        """Let a seat be taken again."""
        self._struck[name] = 0
        self.evicted -= {name}


def signed_text(hello: Hello) -> bytes:
    """What a parent signs in its welcome, so that a child knows that it is not a revoked one."""
    names = [seat.name for seat in hello.seats]
    text = "\0".join(["covey welcome", str(PROTOCOL), *names])
    return text.encode() + b"\0" + hello.nonce


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
        count = len(self.allowed.seats if certificate is None else certificate.seats)
        most = _HELLO + _HELLO_SEAT * count
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
        taken: Collection[Seat],
    ) -> None:
        """Refuse a process, and remember why its seats stay empty, which are not `taken`.

        One that may take its seat later says nothing of that.
        """
        names = refusal.seats if certificate is None else certificate.seats
        if refusal.code not in _PASSING:
            for name in names:
                if name in self.allowed.seats and self.allowed.seats[name] not in taken:
                    self.allowed.turned_away[name] = str(refusal)
        await self.refuse(context, peer, refusal, self.refusals[names[:1]])

    async def refuse(
        self,
        context: Any,
        peer: str,
        refusal: Refusal,
        earlier: Failures | None = None,
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
