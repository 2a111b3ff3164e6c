"""Certificates of a tree: an authority, one certificate per process, and what is revoked.

The names in a certificate are the seats that its holder may take. A folder of the authority holds

    ca.pem  ca.key  revoked.pem  issued.json
    device17/  ca.pem  certificate.pem  key.pem  revoked.pem

and the folder `device17` is what the machine of that seat needs. Keys are readable by their owner
alone. A renewed certificate has the old key, so that a renewal replaces one file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from covey.deployed.extras import cryptography
from covey.errors import ConfigError, TransportError, shown

CERTIFICATE = "certificate.pem"
KEY = "key.pem"
REQUEST = "request.pem"
AUTHORITY = "ca.pem"
AUTHORITY_KEY = "ca.key"
REVOKED = "revoked.pem"
ISSUED = "issued.json"
DAYS = 90
AUTHORITY_DAYS = 3650
_SKEW = timedelta(minutes=5)  # between the clocks of two machines
_SEAT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Certificate:
    """What a certificate says: the seats of its holder, its number, and how long it is valid."""

    seats: tuple[str, ...]
    serial: int
    begins: datetime
    ends: datetime

    @staticmethod
    def of(pem: bytes) -> Certificate:
        """Read a certificate; an error where the bytes are none."""
        return _described(_certificate(pem, "the certificate"))

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
class Issued:
    """One certificate that an authority has signed."""

    name: str
    seats: tuple[str, ...]
    serial: int
    ends: datetime
    revoked: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON can hold it."""
        return {
            "name": self.name,
            "seats": list(self.seats),
            "serial": f"{self.serial:x}",
            "ends": self.ends.isoformat(),
            "revoked": self.revoked,
        }

    @staticmethod
    def from_dict(entry: dict[str, Any]) -> Issued:
        """The entry that `as_dict` wrote."""
        return Issued(
            name=entry["name"],
            seats=tuple(entry["seats"]),
            serial=int(entry["serial"], 16),
            ends=datetime.fromisoformat(entry["ends"]),
            revoked=entry["revoked"],
        )


@dataclass(frozen=True)
class Authority:
    """The folder that signs certificates. Its key stays with the operator."""

    folder: Path

    @staticmethod
    def create(folder: Path, *, days: float = AUTHORITY_DAYS) -> Authority:
        """Make an authority in a folder that has none."""
        crypto = cryptography()
        for name in (AUTHORITY, AUTHORITY_KEY):
            if (folder / name).exists():
                fix = "choose another --dir, or remove it"
                raise ConfigError(f"{folder / name} exists already; {fix}.")
        folder.mkdir(parents=True, exist_ok=True)
        key = crypto.curves.generate_private_key(crypto.curves.SECP256R1())
        name = _name("covey authority")
        builder = _builder(name, name, key.public_key(), timedelta(days=days))
        for extension, critical in _authority_extensions(key.public_key()):
            builder = builder.add_extension(extension, critical=critical)
        certificate = builder.sign(key, crypto.hashes.SHA256())
        _write_private(folder / AUTHORITY_KEY, _private_bytes(key))
        _write(folder / AUTHORITY, _pem(certificate))
        authority = Authority(folder)
        authority._write_issued([])
        return authority

    def issue(
        self,
        name: str,
        *,
        seats: Sequence[str] = (),
        days: float = DAYS,
        request: Path | None = None,
    ) -> Path:
        """Sign a certificate for a process; return the folder that its machine needs.

        Without seats, the name is the seat. With a request, the key stays where it was made.
        """
        held = check_seats(seats or [name])
        check_seats([name])
        self._refuse_current(name)
        folder = self.folder / name
        if request is None:
            folder.mkdir(exist_ok=True)
            public = _new_key(folder / KEY)
        else:
            public = _requested(request)
        self._sign(name, held, public, timedelta(days=days))
        return folder

    def renew(self, name: str, *, days: float = DAYS) -> Path:
        """Sign a certificate with the same key and the same seats, valid from now on."""
        current = self._current(name)
        if current is None:
            fix = f"covey certs issue {name}"
            raise ConfigError(f"{self.folder} has no valid certificate of {name}; {fix}.")
        file = self.folder / name / CERTIFICATE
        public = _certificate(_read(file), str(file)).public_key()
        self._sign(name, current.seats, public, timedelta(days=days))
        return self.folder / name

    def revoke(self, name: str) -> int:
        """Revoke every certificate of a name; return how many were valid until now."""
        entries = self.issued()
        if all(entry.name != name for entry in entries):
            names = ", ".join(sorted({entry.name for entry in entries})) or "none"
            raise ConfigError(f"{self.folder} has issued no {shown(name)}; it has issued: {names}.")
        changed = []
        count = 0
        for entry in entries:
            if entry.name == name and not entry.revoked:
                count += entry.ends > _now()
                entry = Issued(entry.name, entry.seats, entry.serial, entry.ends, revoked=True)
            changed.append(entry)
        self._write_issued(changed)
        return count

    def issued(self) -> list[Issued]:
        """Every certificate that was signed, in order."""
        file = self.folder / ISSUED
        if not (self.folder / AUTHORITY).exists():
            fix = f"covey certs init --dir {self.folder}"
            raise ConfigError(f"{self.folder} is no authority: it lacks {AUTHORITY}; {fix}.")
        return [Issued.from_dict(entry) for entry in json.loads(_read(file))]

    def _current(self, name: str) -> Issued | None:
        """The newest certificate of a name, unless it is revoked."""
        own = [entry for entry in self.issued() if entry.name == name]
        if not own or own[-1].revoked:
            return None
        return own[-1]

    def _refuse_current(self, name: str) -> None:
        current = self._current(name)
        if current is not None:
            fix = f"covey certs renew {name}, or covey certs revoke {name} first"
            raise ConfigError(f"{name} has a certificate until {current.ends:%Y-%m-%d}; {fix}.")

    def _sign(self, name: str, seats: Sequence[str], public: Any, lifetime: timedelta) -> None:
        """Sign, note and write the certificate of a process."""
        crypto = cryptography()
        own_key = _private_key(self.folder / AUTHORITY_KEY)
        own = _certificate(_read(self.folder / AUTHORITY), AUTHORITY)
        builder = _builder(_name(name), own.subject, public, lifetime)
        for extension, critical in _seat_extensions(seats, own.public_key()):
            builder = builder.add_extension(extension, critical=critical)
        certificate = builder.sign(own_key, crypto.hashes.SHA256())
        entries = self.issued()
        ends = certificate.not_valid_after_utc
        entries.append(Issued(name, tuple(seats), certificate.serial_number, ends))
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        _write(folder / AUTHORITY, _read(self.folder / AUTHORITY))
        _write(folder / CERTIFICATE, _pem(certificate))
        self._write_issued(entries)

    def _write_issued(self, entries: list[Issued]) -> None:
        """Write the list of certificates, and the revoked ones to every folder of a seat."""
        text = json.dumps([entry.as_dict() for entry in entries], indent=1)
        _write(self.folder / ISSUED, text.encode())
        revoked = self._revocation_list([entry.serial for entry in entries if entry.revoked])
        _write(self.folder / REVOKED, revoked)
        for name in sorted({entry.name for entry in entries}):
            if (self.folder / name).is_dir():
                _write(self.folder / name / REVOKED, revoked)

    def _revocation_list(self, serials: Iterable[int]) -> bytes:
        """The numbers of revoked certificates, signed."""
        crypto = cryptography()
        own_key = _private_key(self.folder / AUTHORITY_KEY)
        own = _certificate(_read(self.folder / AUTHORITY), AUTHORITY)
        builder = crypto.x509.CertificateRevocationListBuilder()
        builder = builder.issuer_name(own.subject)
        builder = builder.last_update(_now())
        builder = builder.next_update(own.not_valid_after_utc)
        for serial in serials:
            entry = crypto.x509.RevokedCertificateBuilder()
            entry = entry.serial_number(serial).revocation_date(_now())
            builder = builder.add_revoked_certificate(entry.build())
        return _pem(builder.sign(own_key, crypto.hashes.SHA256()))


@dataclass(frozen=True)
class Identity:
    """The folder of one machine: its certificate and key, the authority, what is revoked.

    Files are read anew whenever they are asked for, so that a renewal needs no restart.
    """

    folder: Path

    def check(self) -> Certificate:
        """The certificate; an error where a file is missing, open to others or out of date."""
        certificate = Certificate.of(self.certificate())
        refusal = certificate.refusal(self.revoked(), _now())
        if refusal is not None:
            fix = f"covey certs renew {certificate.seats[0]}"
            raise ConfigError(f"{self.folder / CERTIFICATE}: {refusal}; {fix}.")
        self.key()
        return certificate

    def certificate(self) -> bytes:
        """The certificate in PEM."""
        return _read(self.folder / CERTIFICATE)

    def key(self) -> bytes:
        """The private key in PEM; an error if others may read it or if it is another's."""
        file = self.folder / KEY
        public = _private_key(file).public_key()
        certificate = _certificate(self.certificate(), str(self.folder / CERTIFICATE))
        if public != certificate.public_key():
            fix = f"{CERTIFICATE} must be of the request that belongs to this key"
            raise ConfigError(f"{file} is not the key of {CERTIFICATE}; {fix}.")
        return _read(file)

    def authority(self) -> bytes:
        """The certificate of the authority in PEM."""
        return _read(self.folder / AUTHORITY)

    def sign(self, data: bytes) -> bytes:
        """A signature with the private key of this machine."""
        crypto = cryptography()
        own = _private_key(self.folder / KEY)
        out: bytes = own.sign(data, crypto.curves.ECDSA(crypto.hashes.SHA256()))
        return out

    def verify(self, pem: bytes, signature: bytes, data: bytes, seat: str) -> Certificate:
        """The certificate of the holder of a seat that has signed the data.

        An error says why the signature, or the certificate, does not count.
        """
        crypto = cryptography()
        certificate = _certificate(pem, f"what {seat} shows")
        described = _described(certificate)
        authority = _certificate(self.authority(), AUTHORITY)
        algorithm = crypto.curves.ECDSA(crypto.hashes.SHA256())
        try:
            certificate.verify_directly_issued_by(authority)
            certificate.public_key().verify(signature, data, algorithm)
        except (crypto.invalid, ValueError, TypeError, AttributeError):
            raise TransportError(f"{seat} does not hold the key of its certificate.") from None
        refusal = described.refusal(self.revoked(), _now())
        if seat not in described.seats:
            refusal = f"its certificate is of {', '.join(described.seats)}"
        if refusal is not None:
            raise TransportError(f"{seat}: {refusal}.")
        return described

    def revoked(self) -> frozenset[int]:
        """The numbers of revoked certificates; an error unless the authority has signed them."""
        crypto = cryptography()
        file = self.folder / REVOKED
        try:
            listed = crypto.x509.load_pem_x509_crl(_read(file))
        except ValueError as error:
            raise ConfigError(f"{file} is no list of revoked certificates: {error}.") from None
        public = _certificate(self.authority(), AUTHORITY).public_key()
        if not listed.is_signature_valid(public):
            fix = f"copy {REVOKED} from the authority's folder"
            raise ConfigError(f"{file} is not signed by {self.folder / AUTHORITY}; {fix}.")
        return frozenset(entry.serial_number for entry in listed)


def request(folder: Path, name: str) -> Path:
    """Make a key in a folder and write the request to sign it; return the request's file."""
    crypto = cryptography()
    check_seats([name])
    folder.mkdir(parents=True, exist_ok=True)
    _new_key(folder / KEY)
    builder = crypto.x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    signed = builder.sign(_private_key(folder / KEY), crypto.hashes.SHA256())
    _write(folder / REQUEST, _pem(signed))
    return folder / REQUEST


def check_seats(seats: Iterable[str]) -> tuple[str, ...]:
    """The names of seats; an error where one cannot stand in a certificate.

    >>> check_seats(["device17", "edge3"])
    ('device17', 'edge3')
    """
    out = tuple(seats)
    for seat in out:
        if not _SEAT.fullmatch(seat):
            fix = "use up to 63 lower-case letters, digits and -"
            raise ConfigError(f"{shown(seat)} cannot be the name of a seat; {fix}.")
    if len(set(out)) < len(out):
        raise ConfigError(f"a seat is named twice among {', '.join(out)}; name it once.")
    return out


# The parts of certificates


def _described(certificate: Any) -> Certificate:
    crypto = cryptography()
    kind = crypto.x509.SubjectAlternativeName
    try:
        names = certificate.extensions.get_extension_for_class(kind).value
        seats = tuple(names.get_values_for_type(crypto.x509.DNSName))
    except (crypto.x509.ExtensionNotFound, ValueError):
        seats = ()
    return Certificate(
        seats=seats,
        serial=certificate.serial_number,
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )


def _builder(subject: Any, issuer: Any, public: Any, lifetime: timedelta) -> Any:
    """A certificate without extensions, valid from a little before now on."""
    crypto = cryptography()
    now = _now()
    begins = min(now, now + lifetime) - _SKEW
    builder = crypto.x509.CertificateBuilder()
    builder = builder.subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(crypto.x509.random_serial_number())
    return builder.not_valid_before(begins).not_valid_after(now + lifetime)


def _authority_extensions(public: Any) -> list[tuple[Any, bool]]:
    """The extensions of an authority, and whether each is critical."""
    x509 = cryptography().x509
    return [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(signs_certificates=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
    ]


def _seat_extensions(seats: Sequence[str], authority: Any) -> list[tuple[Any, bool]]:
    """The extensions of a process's certificate, and whether each is critical."""
    crypto = cryptography()
    x509 = crypto.x509
    usages = [crypto.usages.CLIENT_AUTH, crypto.usages.SERVER_AUTH]
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage(usages), False),
        (x509.SubjectAlternativeName([x509.DNSName(seat) for seat in seats]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), False),
    ]


def _key_usage(*, signs_certificates: bool) -> Any:
    return cryptography().x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> Any:
    crypto = cryptography()
    return crypto.x509.Name([crypto.x509.NameAttribute(crypto.names.COMMON_NAME, common)])


def _certificate(pem: bytes, source: str) -> Any:
    try:
        return cryptography().x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(f"{source} is no certificate: {error}.") from None


def _requested(file: Path) -> Any:
    """The public key of a signing request, whose sender must hold the private one."""
    try:
        signed = cryptography().x509.load_pem_x509_csr(_read(file))
    except ValueError as error:
        raise ConfigError(f"{file} is no signing request: {error}.") from None
    if not signed.is_signature_valid:
        raise ConfigError(f"{file} is not signed by its own key; make it anew.")
    return signed.public_key()


# Keys and files


def _new_key(file: Path) -> Any:
    """Write a new private key; return the public one."""
    crypto = cryptography()
    key = crypto.curves.generate_private_key(crypto.curves.SECP256R1())
    _write_private(file, _private_bytes(key))
    return key.public_key()


def _private_key(file: Path) -> Any:
    """The private key in a file that its owner alone may read."""
    data = _read(file)
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(f"{file} is open to others (mode {mode:o}); chmod 600 {file}.")
    try:
        return cryptography().serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        raise ConfigError(f"{file} is no private key in PEM without a password.") from None


def _private_bytes(key: Any) -> bytes:
    serialization = cryptography().serialization
    out: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return out


def _pem(signed: Any) -> bytes:
    out: bytes = signed.public_bytes(cryptography().serialization.Encoding.PEM)
    return out


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None


def _write(file: Path, data: bytes) -> None:
    """Replace a file; a reader sees the old bytes or the new ones."""
    _replace(file, data, 0o644)


def _write_private(file: Path, data: bytes) -> None:
    """Replace a file that its owner alone may read, from its first byte on."""
    _replace(file, data, 0o600)


def _replace(file: Path, data: bytes, mode: int) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        temporary.replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None


def _now() -> datetime:
    return datetime.now(UTC)
