"""Who may take which seat: the checks of a process that dials in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import covey
from covey import draws
from covey.deployed.operate.certificates import SeatCertificate
from covey.deployed.transport.grpc_options import TLS
from covey.deployed.transport.transport import Admission, Seat
from covey.deployed.transport.wire import PROTOCOL, Hello
from covey.errors import ConfigError, CoveyError, shown

EVICTED = "covey-evicted"
"""The key of the trailing metadata of a stream that ends because its seat is evicted."""
_MIN_NONCE = 16


class Refusal(CoveyError):
    """Why a process is refused, with the name of the gRPC status that it gets.

    After PERMISSION_DENIED and FAILED_PRECONDITION it does not try again.
    """

    def __init__(
        self, code: str, text: str, seats: Sequence[str] = (), *, evicted: bool = False
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
