"""Certificates of a tree: one for each process, of its authority, and which of them are revoked.

The names in a certificate are the seats that its holder may take. The folder of a machine has

    ca.pem  certificate.pem  key.pem  revoked.pem

The key is readable by its owner alone. `authority.py` makes all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from covey import atomic
from covey.deployed.transport.extras import cryptography
from covey.errors import ConfigError, TransportError

CERTIFICATE = "certificate.pem"
KEY = "key.pem"
AUTHORITY = "ca.pem"
REVOKED = "revoked.pem"
FileMark = tuple[int, int, int]
"""The number, the size and the time of a file: one that is written anew has another."""
Passphrase = Callable[[], str]
"""Asks the operator for the passphrase of a key."""
_HAS_MODES = os.name == "posix"
"""Whether the mode of a file says who may read it; elsewhere its folder does."""
_COPY = f"copy {REVOKED} from the authority's folder"
_PAUSE = 0.02  # s between two attempts
_READS = 25  # attempts to read a file that somebody may be copying
_T = TypeVar("_T")


@dataclass(frozen=True)
class SeatCertificate:
    """What a certificate says: the seats of its holder, its number, and how long it is valid."""

    seats: tuple[str, ...]
    serial: int
    begins: datetime
    ends: datetime

    @staticmethod
    def of(pem: bytes, source: str = "the certificate") -> SeatCertificate:
        """Read a certificate; an error where the bytes are none."""
        return SeatCertificate.described(read_certificate(pem, source))

    @staticmethod
    def described(certificate: Any) -> SeatCertificate:
        """What a certificate of cryptography says; one without names is of no seat."""
        x509 = cryptography().x509
        seats: tuple[str, ...] = ()
        with suppress(
            x509.ExtensionNotFound,
            x509.DuplicateExtension,
            x509.UnsupportedGeneralNameType,
            ValueError,
        ):
            kind = x509.SubjectAlternativeName
            names = certificate.extensions.get_extension_for_class(kind).value
            seats = tuple(names.get_values_for_type(x509.DNSName))
        return SeatCertificate(
            seats=seats,
            serial=certificate.serial_number,
            begins=certificate.not_valid_before_utc,
            ends=certificate.not_valid_after_utc,
        )

    def refusal(self, revoked: frozenset[int], now: datetime) -> str | None:
        """Why the certificate does not count now, or None."""
        if self.serial in revoked:
            return f"its certificate {self.serial:x} is revoked"
        if now < self.begins:
            return f"its certificate is valid only from {self.begins:%Y-%m-%d %H:%M} UTC on"
        if now >= self.ends:
            return f"its certificate ended at {self.ends:%Y-%m-%d %H:%M} UTC"
        return None


@dataclass(frozen=True)
class Identity:
    """The folder of one machine: its certificate and key, the authority, what is revoked.

    Files are read anew whenever they are asked for, so that a renewal needs no restart.
    """

    folder: Path
    memory: Path | None = None
    """The file with the number of the last list of revoked certificates; None: none is kept."""

    def check(self) -> SeatCertificate:
        """The certificate; an error where a file is missing, open to others or out of date."""
        refusal = self.refusal()
        if refusal is not None:
            raise ConfigError(refusal)
        self.key()
        return SeatCertificate.of(self.certificate())

    def refusal(self) -> str | None:
        """Why the certificate does not count now, and what to do; None: it counts."""
        certificate = SeatCertificate.of(self.certificate())
        revoked = self.revoked()
        refusal = certificate.refusal(revoked, now())
        clock = f"the clock of this machine says {now():%Y-%m-%d %H:%M} UTC"
        ends = self._authority_ends()
        if refusal is None and now() < ends:
            return None
        if now() >= ends:  # a renewal would not help
            fix = "another authority must sign all certificates anew: covey certs init"
            file = self.folder / AUTHORITY
            return f"{file}: the authority ended at {ends:%Y-%m-%d %H:%M} UTC; {fix}; {clock}."
        name = common_name(read_certificate(self.certificate(), CERTIFICATE))
        fix = f"covey certs renew {name}; {clock}"
        if certificate.serial in revoked:
            fix = f"covey certs issue {name} makes another one"
        return f"{self.folder / CERTIFICATE}: {refusal}; {fix}."

    def seconds_left(self) -> float | None:
        """Until the certificate or its authority ends; None while one cannot be read."""
        with suppress(ConfigError):
            ends = min(SeatCertificate.of(self.certificate()).ends, self._authority_ends())
            return (ends - now()).total_seconds()
        return None

    def _authority_ends(self) -> datetime:
        return SeatCertificate.of(self.authority(), str(self.folder / AUTHORITY)).ends

    def certificate(self) -> bytes:
        """The certificate in PEM."""
        return read_file(self.folder / CERTIFICATE)

    def key(self) -> bytes:
        """The private key in PEM; an error if others may read it or if it is another's."""
        file = self.folder / KEY
        public = private_key(file).public_key()
        certificate = read_certificate(self.certificate(), str(self.folder / CERTIFICATE))
        if public != certificate.public_key():
            fix = f"{CERTIFICATE} must be of the request that belongs to this key"
            raise ConfigError(f"{file} is not the key of {CERTIFICATE}; {fix}.")
        return read_file(file)

    def authority(self) -> bytes:
        """The certificate of the authority in PEM."""
        return read_file(self.folder / AUTHORITY)

    def sign(self, data: bytes) -> bytes:
        """A signature with the private key of this machine."""
        crypto = cryptography()
        own = private_key(self.folder / KEY)
        out: bytes = own.sign(data, crypto.curves.ECDSA(crypto.hashes.SHA256()))
        return out

    def verify(
        self,
        pem: bytes,
        signature: bytes,
        data: bytes,
        seat: str,
        *,
        ended: bool = False,
    ) -> SeatCertificate:
        """The certificate of the holder of a seat that has signed the data.

        An error says why the signature, or the certificate, does not count. `ended` says that one
        counts which was valid once.
        """
        crypto = cryptography()
        authority = read_certificate(self.authority(), AUTHORITY)
        algorithm = crypto.curves.ECDSA(crypto.hashes.SHA256())
        try:
            certificate = read_certificate(pem, f"what {seat} shows")
            certificate.verify_directly_issued_by(authority)
            certificate.public_key().verify(signature, data, algorithm)
        except ConfigError as error:
            raise TransportError(str(error)) from None
        except (crypto.invalid, crypto.unsupported, ValueError, TypeError, AttributeError):
            raise TransportError(f"{seat} does not hold the key of its certificate.") from None
        described = SeatCertificate.described(certificate)
        refusal = described.refusal(self.revoked(), described.begins if ended else now())
        if seat not in described.seats:
            refusal = f"its certificate is of {', '.join(described.seats)}"
        if refusal is not None:
            raise TransportError(f"{seat}: {refusal}.")
        return described

    def revoked_files(self) -> tuple[FileMark, ...]:
        """What changes when the files change that `revoked` reads."""
        marks = []
        for name in (REVOKED, AUTHORITY):
            file = self.folder / name
            with reported(file, "cannot be read"):
                status = file.stat()
            marks.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(marks)

    def revoked(self) -> frozenset[int]:
        """The numbers of revoked certificates; an error unless the authority has signed them.

        A list from before one that was read here is an error too.
        """
        crypto = cryptography()
        file = self.folder / REVOKED
        data = read_file(file)
        try:
            listed = crypto.x509.load_pem_x509_crl(data)
        except ValueError:
            what = "is no list of revoked certificates in PEM"
            raise ConfigError(f"{file} {what}; {_COPY}.") from None
        public = read_certificate(self.authority(), AUTHORITY).public_key()
        if not listed.is_signature_valid(public):
            raise ConfigError(f"{file} is not signed by {self.folder / AUTHORITY}; {_COPY}.")
        if self.memory is not None:
            self._remember(listed, self.memory)
        return frozenset(entry.serial_number for entry in listed)

    def _remember(self, listed: Any, memory: Path) -> None:
        """Refuse a list that is older than the last; a new authority begins anew."""
        x509 = cryptography().x509
        number = len(listed)
        with suppress(x509.ExtensionNotFound):
            number = listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        authority = sha256(self.authority()).hexdigest()
        last = -1
        with suppress(OSError, ValueError):
            read, of = memory.read_text(encoding="utf-8").split()
            if of == authority:
                last = int(read)
        if number < last:
            what = f"{self.folder / REVOKED} is list {number}, and list {last} was read before"
            raise ConfigError(f"{what}: what was revoked since would count again; {_COPY}.")
        if number > last:
            with suppress(ConfigError):  # on a full disk the new list counts all the same
                write_file(memory, f"{number} {authority}\n".encode(), 0o600)


def read_again(read: Callable[[], _T]) -> _T:
    """What `read` gives; for half a second it is tried again: a file may be half copied."""
    for _ in range(_READS):
        with suppress(ConfigError):
            return read()
        time.sleep(_PAUSE)
    return read()


def read_certificate(pem: bytes, source: str) -> Any:
    """The certificate in PEM; an error that names its source where the bytes are none."""
    x509 = cryptography().x509
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion):
        raise ConfigError(f"{source} is no certificate in PEM.") from None


def common_name(signed: Any) -> str:
    """The name of the process that a certificate, or a request for one, is of."""
    names = signed.subject.get_attributes_for_oid(cryptography().names.COMMON_NAME)
    return ", ".join(str(name.value) for name in names)


def private_key(file: Path, passphrase: Passphrase | None = None) -> Any:
    """The private key in a file that its owner alone may read, in a folder not all may write."""
    crypto = cryptography()
    with reported(file, "cannot be read"):
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode & 0o777
            data = stream.read()
        of_folder = file.parent.stat().st_mode & 0o777
    if _HAS_MODES and mode & 0o077:
        raise ConfigError(f"{file} is open to others (mode {mode:o}); chmod 600 {file}.")
    if _HAS_MODES and of_folder & 0o002:
        what = f"{file.parent} can be written by everybody (mode {of_folder:o})"
        raise ConfigError(f"{what}; chmod go-w {file.parent}.")
    password = None
    if passphrase is not None and b"ENCRYPTED" in data:
        password = passphrase().encode()
    try:
        key = crypto.serialization.load_pem_private_key(data, password)
    except (ValueError, TypeError):
        without = " without a passphrase" if passphrase is None else ", or of another passphrase"
        raise ConfigError(f"{file} is no private key in PEM{without}.") from None
    if not isinstance(key, crypto.curves.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} has no key of an elliptic curve; covey certs makes one.")
    return key


def read_file(file: Path) -> bytes:
    """What a file holds; an error that names it where it cannot be read."""
    with reported(file, "cannot be read"):
        return file.read_bytes()


def write_file(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file whole; the new bytes are on the disk before they have its name."""
    with reported(file, "cannot be written"):
        atomic.write(file, data, mode)


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Errors of the system in a block, with the name of the path and what it `cannot be`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} {what}: {error.strerror}.") from None


def now() -> datetime:
    """The time, as certificates have it."""
    return datetime.now(UTC)
