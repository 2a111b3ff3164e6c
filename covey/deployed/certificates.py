"""Certificates of a tree: an authority, one certificate per process, and what is revoked.

The names in a certificate are the seats that its holder may take. A folder of the authority holds

    ca.pem  ca.key  revoked.pem  issued.json
    device17/  ca.pem  certificate.pem  key.pem  revoked.pem

and the folder `device17` is what the machine of that seat needs. Keys are readable by their owner
alone. A renewed certificate has the old key, so that a renewal replaces one file.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar

from covey.deployed.extras import cryptography
from covey.deployed.seats import is_name
from covey.errors import ConfigError, TransportError, shown
from covey.runs.lock import locked

CERTIFICATE = "certificate.pem"
KEY = "key.pem"
REQUEST = "request.pem"
AUTHORITY = "ca.pem"
AUTHORITY_KEY = "ca.key"
REVOKED = "revoked.pem"
ISSUED = "issued.json"
AUTHORITY_FILES = (AUTHORITY, AUTHORITY_KEY, REVOKED, ISSUED)
Holders = Literal["refuse", "revoke", "keep"]
"""What becomes of valid certificates of others with a seat that a new certificate names."""
FileMark = tuple[int, int, int]
"""The number, the size and the time of a file: one that is written anew has another."""
DAYS = 90
AUTHORITY_DAYS = 3650
_SHORTEST = 0.001  # days that a certificate may be valid
_HAS_MODES = os.name == "posix"
"""Whether the mode of a file says who may read it; elsewhere its folder does."""
_SKEW = timedelta(minutes=5)  # between the clocks of two machines
_LOCK = ".authority.lock"
_COPY = f"copy {REVOKED} from the authority's folder"
_PATIENCE = 30.0  # s that one command waits for another that signs or revokes
_PAUSE = 0.02  # s between two attempts
_READS = 25  # attempts to read a file that somebody may be copying
Passphrase = Callable[[], str]
"""Asks the operator for the passphrase of a key."""
_T = TypeVar("_T")


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
    key: Path | None = None
    """The file of its key; None: `ca.key` in the folder."""
    passphrase: Passphrase | None = None
    """Asked where the key has one."""

    @staticmethod
    def create(
        folder: Path,
        *,
        days: float = AUTHORITY_DAYS,
        key: Path | None = None,
        passphrase: Passphrase | None = None,
    ) -> Authority:
        """Make an authority in a folder that has none.

        A `key` from outside is taken where its file is there. With a passphrase a new key has it.
        """
        crypto = cryptography()  # an error before anything is written
        _make_folder(folder)
        with _locked(folder):
            for name in (AUTHORITY, AUTHORITY_KEY):
                if (folder / name).exists():
                    fix = "choose another --dir, or remove it"
                    raise ConfigError(f"{folder / name} exists already; {fix}.")
            file = key or folder / AUTHORITY_KEY
            if not file.exists():
                _new_key(file, passphrase)
            own_key = _private_key(file, passphrase)
            public = own_key.public_key()
            subject = _name("covey authority")
            builder = _builder(subject, subject, public, timedelta(days=days))
            for extension, critical in _authority_extensions(public):
                builder = builder.add_extension(extension, critical=critical)
            _write(folder / AUTHORITY, _pem(builder.sign(own_key, crypto.hashes.SHA256())))
            authority = Authority(folder, key, passphrase)
            authority._write_issued([])
            authority._write_revoked([])
            return authority

    def _own(self) -> tuple[Any, Any]:
        """The authority's certificate and its private key."""
        own = _certificate(_read(self.folder / AUTHORITY), AUTHORITY)
        file = self.key or self.folder / AUTHORITY_KEY
        key = _private_key(file, self.passphrase)
        if key.public_key() != own.public_key():
            fix = "give --key the one with which it was made"
            raise ConfigError(f"{file} is not the key of {self.folder / AUTHORITY}; {fix}.")
        return own, key

    def issue(
        self,
        name: str,
        *,
        seats: Sequence[str] = (),
        days: float = DAYS,
        request: Path | None = None,
        holders: Holders = "refuse",
    ) -> Path:
        """Sign a certificate for a process; return the folder that its machine needs.

        Without seats, it has those of the name's last certificate, or else the name is the seat.
        With a request, the key stays where it was made; a request is not signed twice.
        """
        check_seats([name])
        folder = self.folder / name
        with self._alone():
            own_seats = check_seats(seats or self._last_seats(name))
            self._check_lifetime(days)
            if request is None:
                self._make_room(name, own_seats, holders)
                _make_folder(folder)
                public = _new_key(folder / KEY)
            else:
                public = _requested(request, name)
                if self._has_signed(name, own_seats, public):
                    return folder
                self._make_room(name, own_seats, holders)
                _remove(folder / KEY)  # of a certificate before this one
            self._sign(name, own_seats, public, timedelta(days=days))
        return folder

    def renew(self, name: str, *, days: float = DAYS) -> Path:
        """Sign a certificate with the same key and the same seats, valid from now on."""
        with self._alone():
            self._check_lifetime(days)
            current = self._current(name)
            if current is None:
                fix = _near(name, self.issued(), "renew")
                raise ConfigError(f"{self.folder} has no valid certificate of {name}; {fix}.")
            file = self.folder / name / CERTIFICATE
            if not file.exists():
                fix = f"covey certs revoke {name}, then covey certs issue {name}"
                raise ConfigError(f"{file} is gone, and its key with it; {fix}.")
            self._check_holders(name, current.seats)
            public = _certificate(_read(file), str(file)).public_key()
            self._sign(name, current.seats, public, timedelta(days=days))
        return self.folder / name

    def revoke(self, name: str) -> int:
        """Revoke every certificate of a name; return how many were valid until now."""
        with self._alone():
            self.check_issued([name])
            self._check_alive()
            entries = self.issued()
            self._revoke([name])
        return sum(entry.name == name and _is_valid(entry) for entry in entries)

    def check_issued(self, names: Sequence[str]) -> None:
        """Refuse names that have no certificate, revoked or not."""
        entries = self.issued()
        for name in names:
            if all(entry.name != name for entry in entries):
                fix = _near(name, entries, "revoke")
                raise ConfigError(f"{self.folder} has issued no {shown(name)}; {fix}.")

    def issued(self) -> list[Issued]:
        """Every certificate that was signed, in order."""
        file = self.folder / ISSUED
        if not (self.folder / AUTHORITY).exists():
            fix = "give --dir the authority's folder; covey certs init makes a new authority"
            raise ConfigError(f"{self.folder} is no authority: it lacks {AUTHORITY}; {fix}.")
        try:
            return [Issued.from_dict(entry) for entry in json.loads(_read(file))]
        except (ValueError, KeyError, TypeError) as error:
            fix = "restore it from a copy: without it no certificate can be revoked"
            raise ConfigError(f"{file} is no list of certificates ({error!r}); {fix}.") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One command at a time changes an authority: two would each forget the other's entry."""
        self.issued()  # an error where this is no authority
        with _locked(self.folder):
            yield

    def _current(self, name: str) -> Issued | None:
        """The newest certificate of a name, unless it is revoked."""
        own = [entry for entry in self.issued() if entry.name == name]
        if not own or own[-1].revoked:
            return None
        return own[-1]

    def _last_seats(self, name: str) -> Sequence[str]:
        """The seats of the newest certificate of a name, revoked or not; without one, the name."""
        own = [entry for entry in self.issued() if entry.name == name]
        if own:
            return own[-1].seats
        return [name]

    def _has_signed(self, name: str, seats: Sequence[str], public: Any) -> bool:
        """Whether the valid certificate of a name is of this key and these seats.

        So a command that signs a request can be given again, whatever came of it before.
        """
        current = self._current(name)
        file = self.folder / name / CERTIFICATE
        if current is None or not _is_valid(current) or not file.exists():
            return False
        certificate = _certificate(_read(file), str(file))
        same_key = certificate.public_key() == public
        same_seats = set(current.seats) == set(seats)
        return same_key and same_seats and certificate.serial_number == current.serial

    def _make_room(self, name: str, seats: Sequence[str], holders: Holders) -> None:
        """Refuse or revoke certificates beside which a new one would be a second."""
        if holders == "revoke":
            self._revoke([name, *self._holders(name, seats)])
            return
        current = self._current(name)
        if current is not None:
            fix = f"covey certs renew {name}, or issue with --replace, which revokes it"
            raise ConfigError(f"{name} has a certificate until {current.ends:%Y-%m-%d}; {fix}.")
        if holders == "refuse":
            self._check_holders(name, seats)

    def _holders(self, name: str, seats: Sequence[str]) -> dict[str, list[str]]:
        """Which of these seats others have a valid certificate for, by the name of the other."""
        return {
            entry.name: sorted({*seats} & {*entry.seats})
            for entry in self.issued()
            if entry.name != name and _is_valid(entry) and {*seats} & {*entry.seats}
        }

    def _check_holders(self, name: str, seats: Sequence[str]) -> None:
        """Refuse a certificate for seats that another has one for."""
        for holder, shared in self._holders(name, seats).items():
            fix = f"if {name} is to have it, issue with --replace, which revokes that of {holder}"
            raise ConfigError(f"{holder} has a certificate for {', '.join(shared)}; {fix}.")

    def _revoke(self, names: Collection[str]) -> None:
        """Revoke every certificate of these names."""
        entries = []
        for entry in self.issued():
            revoked = entry.revoked or entry.name in names
            entries.append(replace(entry, revoked=revoked))
        self._write_issued(entries)
        self._write_revoked(entries)

    def _check_alive(self) -> None:
        """Refuse to revoke when the authority has ended: its certificates count nowhere now."""
        ends = _certificate(_read(self.folder / AUTHORITY), AUTHORITY).not_valid_after_utc
        if _now() >= ends:
            why = "no certificate of it counts now, so there is nothing to revoke"
            raise ConfigError(
                f"the authority in {self.folder} ended at {ends:%Y-%m-%d %H:%M} UTC: {why}."
            )

    def _check_lifetime(self, days: float) -> None:
        """Refuse a certificate that would be valid for longer than its authority."""
        ends = _certificate(_read(self.folder / AUTHORITY), AUTHORITY).not_valid_after_utc
        left = (ends - _now()) / timedelta(days=1)
        if days <= left:
            return
        fix = "make another authority with covey certs init, and issue all certificates anew"
        if left >= _SHORTEST:
            fix = f"give --days {_rounded_down(left):g}, or {fix}"
        end = f"the authority in {self.folder} ends at {ends:%Y-%m-%d %H:%M} UTC"
        raise ConfigError(f"{end}, before a certificate of {days:g} days would; {fix}.")

    def _sign(self, name: str, seats: Sequence[str], public: Any, lifetime: timedelta) -> None:
        """Sign, note and write the certificate of a process.

        The note comes first: a certificate that nobody knows of could not be revoked.
        """
        crypto = cryptography()
        own, own_key = self._own()
        builder = _builder(_name(name), own.subject, public, lifetime)
        for extension, critical in _seat_extensions(seats, own.public_key()):
            builder = builder.add_extension(extension, critical=critical)
        certificate = builder.sign(own_key, crypto.hashes.SHA256())
        entries = self.issued()
        ends = certificate.not_valid_after_utc
        entries.append(Issued(name, tuple(seats), certificate.serial_number, ends))
        folder = self.folder / name
        _make_folder(folder)
        self._write_issued(entries)
        _write(folder / REVOKED, _read(self.folder / REVOKED))
        _write(folder / AUTHORITY, _read(self.folder / AUTHORITY))
        _write(folder / CERTIFICATE, _pem(certificate))

    def _write_issued(self, entries: list[Issued]) -> None:
        """Write the list of certificates."""
        text = json.dumps([entry.as_dict() for entry in entries], indent=1)
        _write(self.folder / ISSUED, text.encode())

    def _write_revoked(self, entries: list[Issued]) -> None:
        """Write which certificates are revoked, also to the folder of every process."""
        revoked = self._revocation_list([entry.serial for entry in entries if entry.revoked])
        _write(self.folder / REVOKED, revoked)
        for name in sorted({entry.name for entry in entries}):
            if (self.folder / name).is_dir():
                _write(self.folder / name / REVOKED, revoked)

    def _revocation_list(self, serials: Sequence[int]) -> bytes:
        """The numbers of revoked certificates, signed; the list's own number is how many."""
        crypto = cryptography()
        own, own_key = self._own()
        builder = crypto.x509.CertificateRevocationListBuilder()
        builder = builder.issuer_name(own.subject)
        builder = builder.last_update(_now())
        builder = builder.next_update(own.not_valid_after_utc)
        builder = builder.add_extension(crypto.x509.CRLNumber(len(serials)), critical=False)
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
    memory: Path | None = None
    """The file with the number of the last list of revoked certificates; None: none is kept."""

    def check(self) -> Certificate:
        """The certificate; an error where a file is missing, open to others or out of date."""
        refusal = self.refusal()
        if refusal is not None:
            raise ConfigError(refusal)
        self.key()
        return Certificate.of(self.certificate())

    def refusal(self) -> str | None:
        """Why the certificate does not count now, and what to do; None: it counts."""
        certificate = Certificate.of(self.certificate())
        revoked = self.revoked()
        refusal = certificate.refusal(revoked, _now())
        clock = f"the clock of this machine says {_now():%Y-%m-%d %H:%M} UTC"
        ends = self._authority_ends()
        if refusal is None and _now() < ends:
            return None
        if _now() >= ends:  # a renewal would not help
            fix = "another authority must sign all certificates anew: covey certs init"
            file = self.folder / AUTHORITY
            return f"{file}: the authority ended at {ends:%Y-%m-%d %H:%M} UTC; {fix}; {clock}."
        name = _common_name(_certificate(self.certificate(), CERTIFICATE))
        fix = f"covey certs renew {name}; {clock}"
        if certificate.serial in revoked:
            fix = f"covey certs issue {name} makes another one"
        return f"{self.folder / CERTIFICATE}: {refusal}; {fix}."

    def seconds_left(self) -> float | None:
        """Until the certificate or its authority ends; None while one cannot be read."""
        with suppress(ConfigError):
            ends = min(Certificate.of(self.certificate()).ends, self._authority_ends())
            return (ends - _now()).total_seconds()
        return None

    def _authority_ends(self) -> datetime:
        file = self.folder / AUTHORITY
        return _described(_certificate(_read(file), str(file))).ends

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

    def verify(
        self, pem: bytes, signature: bytes, data: bytes, seat: str, *, ended: bool = False
    ) -> Certificate:
        """The certificate of the holder of a seat that has signed the data.

        An error says why the signature, or the certificate, does not count. `ended` says that one
        counts which was valid once.
        """
        crypto = cryptography()
        authority = _certificate(self.authority(), AUTHORITY)
        algorithm = crypto.curves.ECDSA(crypto.hashes.SHA256())
        try:
            certificate = _certificate(pem, f"what {seat} shows")
            certificate.verify_directly_issued_by(authority)
            certificate.public_key().verify(signature, data, algorithm)
        except ConfigError as error:
            raise TransportError(str(error)) from None
        except (crypto.invalid, crypto.unsupported, ValueError, TypeError, AttributeError):
            raise TransportError(f"{seat} does not hold the key of its certificate.") from None
        described = _described(certificate)
        refusal = described.refusal(self.revoked(), described.begins if ended else _now())
        if seat not in described.seats:
            refusal = f"its certificate is of {', '.join(described.seats)}"
        if refusal is not None:
            raise TransportError(f"{seat}: {refusal}.")
        return described

    def revoked_files(self) -> tuple[FileMark, ...]:
        """What changes when the files change that `revoked` reads."""
        return (_mark(self.folder / REVOKED), _mark(self.folder / AUTHORITY))

    def revoked(self) -> frozenset[int]:
        """The numbers of revoked certificates; an error unless the authority has signed them.

        A list from before one that was read here is an error too.
        """
        crypto = cryptography()
        file = self.folder / REVOKED
        data = _read(file)
        try:
            listed = crypto.x509.load_pem_x509_crl(data)
        except ValueError:
            what = "is no list of revoked certificates in PEM"
            raise ConfigError(f"{file} {what}; {_COPY}.") from None
        public = _certificate(self.authority(), AUTHORITY).public_key()
        if not listed.is_signature_valid(public):
            raise ConfigError(f"{file} is not signed by {self.folder / AUTHORITY}; {_COPY}.")
        self._remember(crypto.x509, listed)
        return frozenset(entry.serial_number for entry in listed)

    def _remember(self, x509: Any, listed: Any) -> None:
        """Refuse a list that is older than the last; a new authority begins anew."""
        if self.memory is None:
            return
        number = len(listed)
        with suppress(x509.ExtensionNotFound):
            number = listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        authority = sha256(self.authority()).hexdigest()
        last = -1
        with suppress(OSError, ValueError):
            read, of = self.memory.read_text(encoding="utf-8").split()
            if of == authority:
                last = int(read)
        if number < last:
            what = f"{self.folder / REVOKED} is list {number}, and list {last} was read before"
            raise ConfigError(f"{what}: what was revoked since would count again; {_COPY}.")
        if number > last:
            with suppress(ConfigError):  # on a full disk the new list counts all the same
                _write(self.memory, f"{number} {authority}\n".encode(), 0o600)


def read_again(read: Callable[[], _T]) -> _T:
    """What `read` gives; for half a second it is tried again: a file may be half copied."""
    for _ in range(_READS):
        with suppress(ConfigError):
            return read()
        time.sleep(_PAUSE)
    return read()


def request(folder: Path, name: str) -> Path:
    """Make a key in a folder and write the request to sign it; return the request's file.

    A key that is there is never replaced: its certificate would be lost with it.
    """
    crypto = cryptography()
    check_seats([name])
    if (folder / KEY).exists():
        fix = "remove it for a new one, or give another --dir"
        raise ConfigError(f"{folder / KEY} exists already, and a certificate may need it; {fix}.")
    _make_folder(folder)
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
        if not is_name(seat):
            fix = "use up to 63 lower-case letters, digits and -"
            raise ConfigError(f"{shown(seat)} cannot be the name of a seat; {fix}.")
    if len(set(out)) < len(out):
        raise ConfigError(f"a seat is named twice among {', '.join(out)}; name it once.")
    return out


def _is_valid(entry: Issued) -> bool:
    return not entry.revoked and entry.ends > _now()


def _rounded_down(days: float) -> float:
    """Whole days, or thousandths where there is no whole one."""
    if days >= 1:
        return math.floor(days)
    return math.floor(days / _SHORTEST) * _SHORTEST


def _near(name: str, entries: Sequence[Issued], verb: str) -> str:
    """Which command was meant, where a name has no certificate: a seat may be one of several."""
    if any(entry.name == name for entry in entries):
        return f"covey certs issue {name}"
    holders = [entry.name for entry in entries if name in entry.seats]
    if holders:
        return f"it is a seat of {holders[-1]}: covey certs {verb} {holders[-1]}"
    names = sorted({entry.name for entry in entries})
    return f"it has issued: {', '.join(names) or 'none'}"


# The parts of certificates


def _described(certificate: Any) -> Certificate:
    crypto = cryptography()
    kind = crypto.x509.SubjectAlternativeName
    try:
        names = certificate.extensions.get_extension_for_class(kind).value
        seats = tuple(names.get_values_for_type(crypto.x509.DNSName))
    except (
        crypto.x509.ExtensionNotFound,
        crypto.x509.DuplicateExtension,
        crypto.x509.UnsupportedGeneralNameType,
        ValueError,
    ):
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


def _common_name(certificate: Any) -> str:
    """The name of the process that a certificate was issued to."""
    names = certificate.subject.get_attributes_for_oid(cryptography().names.COMMON_NAME)
    return ", ".join(str(name.value) for name in names)


def _certificate(pem: bytes, source: str) -> Any:
    x509 = cryptography().x509
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion):
        raise ConfigError(f"{source} is no certificate in PEM.") from None


def _requested(file: Path, name: str) -> Any:
    """The public key of a signing request of this name, whose sender must hold the private one."""
    crypto = cryptography()
    data = _read(file)
    try:
        signed = crypto.x509.load_pem_x509_csr(data)
    except ValueError:
        fix = f"make one with covey certs request {name}"
        raise ConfigError(f"{file} is no signing request in PEM; {fix}.") from None
    if not signed.is_signature_valid:
        raise ConfigError(f"{file} is not signed by its own key; make it anew.")
    asked = _common_name(signed)
    if asked != name:
        other = shown(asked) if asked else "nobody"
        raise ConfigError(f"{file} is the request of {other}, not of {name}; give that of {name}.")
    public = signed.public_key()
    if not isinstance(public, crypto.curves.EllipticCurvePublicKey):
        fix = f"make the key with covey certs request {name}"
        raise ConfigError(f"{file} has no key of an elliptic curve; {fix}.")
    return public


# Keys and files


def _new_key(file: Path, passphrase: Passphrase | None = None) -> Any:
    """Write a new private key; return the public one."""
    crypto = cryptography()
    key = crypto.curves.generate_private_key(crypto.curves.SECP256R1())
    form = crypto.serialization
    hidden = form.NoEncryption()
    if passphrase is not None:
        hidden = form.BestAvailableEncryption(passphrase().encode())
    data = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden)
    _write(file, data, 0o600)  # its owner alone may read it, from its first byte on
    return key.public_key()


def _private_key(file: Path, passphrase: Passphrase | None = None) -> Any:
    """The private key in a file that its owner alone may read, in a folder not all may write."""
    crypto = cryptography()
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode & 0o777
            data = stream.read()
        of_folder = file.parent.stat().st_mode & 0o777
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
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


def _pem(signed: Any) -> bytes:
    out: bytes = signed.public_bytes(cryptography().serialization.Encoding.PEM)
    return out


def _mark(file: Path) -> FileMark:
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None


def _remove(file: Path) -> None:
    """Remove a file, if it is there."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file} cannot be removed: {error.strerror}.") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """With the lock of an authority's folder, which one command at a time has."""
    busy = f"another command changes {folder}; wait for its end"
    with locked(folder / _LOCK, busy, _PATIENCE):
        yield


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}.") from None


def _write(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file whole; the new bytes are on the disk before they have its name."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None


def _now() -> datetime:
    return datetime.now(UTC)
