"""The authority of a tree, which signs and revokes certificates. Its folder holds

    ca.pem  ca.key  revoked.pem  issued.json
    device17/  ca.pem  certificate.pem  key.pem  revoked.pem

and the folder `device17` is what the machine of that seat needs. A renewed certificate has the old
key, so that a renewal replaces one file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from covey.deployed.operate import certificates
from covey.deployed.operate.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    REVOKED,
    Passphrase,
    common_name,
    private_key,
    read_certificate,
    read_file,
    reported,
    write_file,
)
from covey.deployed.plan.seats import is_name
from covey.deployed.transport.extras import cryptography
from covey.errors import ConfigError, shown
from covey.runs.saved.lock import locked

AUTHORITY_KEY = "ca.key"
REQUEST = "request.pem"
ISSUED = "issued.json"
AUTHORITY_FILES = (AUTHORITY, AUTHORITY_KEY, REVOKED, ISSUED)
Holders = Literal["refuse", "revoke", "keep"]
"""What becomes of valid certificates of others with a seat that a new certificate names."""
DAYS = 90
AUTHORITY_DAYS = 3650
_SHORTEST = 0.001  # days that a certificate may be valid
_SKEW = timedelta(minutes=5)  # between the clocks of two machines
_LOCK = ".authority.lock"
_PATIENCE = 30.0  # s that one command waits for another that signs or revokes


@dataclass(frozen=True)
class Issued:
    """One certificate that an authority has signed."""

    name: str
    seats: tuple[str, ...]
    serial: int
    ends: datetime
    revoked: bool = False

    @property
    def is_valid(self) -> bool:
        """Whether it counts now."""
        return not self.revoked and self.ends > certificates.now()

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON can hold it."""
        serial, ends = f"{self.serial:x}", self.ends.isoformat()
        return vars(self) | {"seats": list(self.seats), "serial": serial, "ends": ends}

    @staticmethod
    def from_dict(entry: dict[str, Any]) -> Issued:
        """The entry that `as_dict` wrote."""
        serial, ends = int(entry["serial"], 16), datetime.fromisoformat(entry["ends"])
        return Issued(entry["name"], tuple(entry["seats"]), serial, ends, entry["revoked"])


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
        x509 = cryptography().x509  # an error before anything is written
        authority = Authority(folder, key, passphrase)
        _make_folder(folder)
        with authority._alone(new=True):
            for name in (AUTHORITY, AUTHORITY_KEY):
                if (folder / name).exists():
                    fix = "choose another --dir, or remove it"
                    raise ConfigError(f"{folder / name} exists already; {fix}.")
            file = key or folder / AUTHORITY_KEY
            if not file.exists():
                _new_key(file, passphrase)
            own_key = private_key(file, passphrase)
            public = own_key.public_key()
            subject = _subject("covey authority")
            extensions = [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_key_usage(signs_certificates=True), True),
                (x509.SubjectKeyIdentifier.from_public_key(public), False),
            ]
            lifetime = timedelta(days=days)
            own = _signed(own_key, subject, subject, public, lifetime, extensions)
            write_file(folder / AUTHORITY, _pem(own))
            authority._write([])
        return authority

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
            if not seats:  # also those of a certificate that is revoked
                seats = next((one.seats for one in self._newest_first(name)), (name,))
            own_seats = check_seats(seats)
            self._check_lifetime(days)
            public = None if request is None else _requested(request, name)
            if public is not None and self._has_signed(name, own_seats, public):
                return folder
            self._make_room(name, own_seats, holders)
            _make_folder(folder)
            if public is None:
                public = _new_key(folder / KEY)
            else:
                with reported(folder / KEY, "cannot be removed"):
                    (folder / KEY).unlink(missing_ok=True)  # of a certificate before this one
            self._sign(name, own_seats, public, days)
        return folder

    def renew(self, name: str, *, days: float = DAYS) -> Path:
        """Sign a certificate with the same key and the same seats, valid from now on."""
        with self._alone():
            self._check_lifetime(days)
            current = self._current(name)
            if current is None:
                fix = self._near(name, "renew")
                raise ConfigError(f"{self.folder} has no valid certificate of {name}; {fix}.")
            file = self.folder / name / CERTIFICATE
            if not file.exists():
                fix = f"covey certs revoke {name}, then covey certs issue {name}"
                raise ConfigError(f"{file} is gone, and its key with it; {fix}.")
            self._check_holders(name, current.seats)
            public = read_certificate(read_file(file), str(file)).public_key()
            self._sign(name, current.seats, public, days)
        return self.folder / name

    def revoke(self, name: str) -> int:
        """Revoke every certificate of a name; return how many were valid until now."""
        with self._alone():
            self.check_issued([name])
            ends = self._ends()
            if certificates.now() >= ends:
                why = "no certificate of it counts now, so there is nothing to revoke"
                end = f"the authority in {self.folder} ended at {ends:%Y-%m-%d %H:%M} UTC"
                raise ConfigError(f"{end}: {why}.")
            valid = sum(entry.is_valid for entry in self._newest_first(name))
            self._revoke([name])
        return valid

    def check_issued(self, names: Sequence[str]) -> None:
        """Refuse names that have no certificate, revoked or not."""
        for name in names:
            if not self._newest_first(name):
                fix = self._near(name, "revoke")
                raise ConfigError(f"{self.folder} has issued no {shown(name)}; {fix}.")

    def issued(self) -> list[Issued]:
        """Every certificate that was signed, in order."""
        file = self.folder / ISSUED
        if not (self.folder / AUTHORITY).exists():
            fix = "give --dir the authority's folder; covey certs init makes a new authority"
            raise ConfigError(f"{self.folder} is no authority: it lacks {AUTHORITY}; {fix}.")
        try:
            return [Issued.from_dict(entry) for entry in json.loads(read_file(file))]
        except (ValueError, KeyError, TypeError) as error:
            fix = "restore it from a copy: without it no certificate can be revoked"
            raise ConfigError(f"{file} is no list of certificates ({error!r}); {fix}.") from None

    @contextmanager
    def _alone(self, *, new: bool = False) -> Iterator[None]:
        """One command at a time changes an authority: two would each forget the other's entry."""
        if not new:
            self.issued()  # an error where this is no authority
        busy = f"another command changes {self.folder}; wait for its end"
        with locked(self.folder / _LOCK, busy, _PATIENCE):
            yield

    # What it has signed

    def _newest_first(self, name: str) -> list[Issued]:
        """The certificates of a name, revoked or not."""
        return [entry for entry in reversed(self.issued()) if entry.name == name]

    def _current(self, name: str) -> Issued | None:
        """The newest certificate of a name, unless it is revoked."""
        return next((one for one in self._newest_first(name)[:1] if not one.revoked), None)

    def _near(self, name: str, verb: str) -> str:
        """Which command was meant, where a name has no certificate: it may be a seat of others."""
        entries = self.issued()
        if any(entry.name == name for entry in entries):
            return f"covey certs issue {name}"
        holders = [entry.name for entry in entries if name in entry.seats]
        if holders:
            return f"it is a seat of {holders[-1]}: covey certs {verb} {holders[-1]}"
        names = sorted({entry.name for entry in entries})
        return f"it has issued: {', '.join(names) or 'none'}"

    def _has_signed(self, name: str, seats: Sequence[str], public: Any) -> bool:
        """Whether the valid certificate of a name is of this key and these seats.

        So a command that signs a request can be given again, whatever came of it before.
        """
        current = self._current(name)
        file = self.folder / name / CERTIFICATE
        if current is None or not current.is_valid or not file.exists():
            return False
        certificate = read_certificate(read_file(file), str(file))
        same_key = certificate.public_key() == public
        same_seats = set(current.seats) == set(seats)
        return same_key and same_seats and certificate.serial_number == current.serial

    # What stands against another certificate

    def _ends(self) -> datetime:
        """When the authority's own certificate ends."""
        ends: datetime = self._certificate.not_valid_after_utc
        return ends

    def _check_lifetime(self, days: float) -> None:
        """Refuse a certificate that would be valid for longer than its authority."""
        ends = self._ends()
        left = (ends - certificates.now()) / timedelta(days=1)
        if days <= left:
            return
        fix = "make another authority with covey certs init, and issue all certificates anew"
        if left >= _SHORTEST:
            unit = 1 if left >= 1 else _SHORTEST
            fix = f"give --days {math.floor(left / unit) * unit:g}, or {fix}"
        end = f"the authority in {self.folder} ends at {ends:%Y-%m-%d %H:%M} UTC"
        raise ConfigError(f"{end}, before a certificate of {days:g} days would; {fix}.")

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
            if entry.name != name and entry.is_valid and {*seats} & {*entry.seats}
        }

    def _check_holders(self, name: str, seats: Sequence[str]) -> None:
        """Refuse a certificate for seats that another has one for."""
        for holder, shared in self._holders(name, seats).items():
            fix = f"if {name} is to have it, issue with --replace, which revokes that of {holder}"
            raise ConfigError(f"{holder} has a certificate for {', '.join(shared)}; {fix}.")

    # What it signs

    @property
    def _certificate(self) -> Any:
        return read_certificate(read_file(self.folder / AUTHORITY), AUTHORITY)

    def _own(self) -> tuple[Any, Any]:
        """The authority's certificate and its private key."""
        own = self._certificate
        file = self.key or self.folder / AUTHORITY_KEY
        key = private_key(file, self.passphrase)
        if key.public_key() != own.public_key():
            fix = "give --key the one with which it was made"
            raise ConfigError(f"{file} is not the key of {self.folder / AUTHORITY}; {fix}.")
        return own, key

    def _sign(
        self,
        name: str,
        seats: Sequence[str],
        public: Any,
        days: float,
    ) -> None:
        """Sign, note and write the certificate of a process.

        The note comes first: a certificate that nobody knows of could not be revoked.
        """
        crypto = cryptography()
        x509 = crypto.x509
        own, own_key = self._own()
        usages = [crypto.usages.CLIENT_AUTH, crypto.usages.SERVER_AUTH]
        extensions = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(usages), False),
            (x509.SubjectAlternativeName([x509.DNSName(seat) for seat in seats]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), False),
        ]
        lifetime = timedelta(days=days)
        certificate = _signed(own_key, _subject(name), own.subject, public, lifetime, extensions)
        number, ends = certificate.serial_number, certificate.not_valid_after_utc
        entries = [*self.issued(), Issued(name, tuple(seats), number, ends)]
        folder = self.folder / name
        _make_folder(folder)
        self._write_issued(entries)
        for file in (REVOKED, AUTHORITY):
            write_file(folder / file, read_file(self.folder / file))
        write_file(folder / CERTIFICATE, _pem(certificate))

    def _revoke(self, names: Collection[str]) -> None:
        """Revoke every certificate of these names."""
        entries = self.issued()
        self._write([replace(one, revoked=one.revoked or one.name in names) for one in entries])

    def _write(self, entries: list[Issued]) -> None:
        """Write the list of certificates, and which are revoked, also to all processes' folders."""
        self._write_issued(entries)
        revoked = self._revocation_list([entry.serial for entry in entries if entry.revoked])
        write_file(self.folder / REVOKED, revoked)
        for name in sorted({entry.name for entry in entries}):
            if (self.folder / name).is_dir():
                write_file(self.folder / name / REVOKED, revoked)

    def _write_issued(self, entries: list[Issued]) -> None:
        text = json.dumps([entry.as_dict() for entry in entries], indent=1)
        write_file(self.folder / ISSUED, text.encode())

    def _revocation_list(self, serials: Sequence[int]) -> bytes:
        """The numbers of revoked certificates, signed; the list's own number is how many."""
        crypto = cryptography()
        own, own_key = self._own()
        now = certificates.now()
        builder = crypto.x509.CertificateRevocationListBuilder().issuer_name(own.subject)
        builder = builder.last_update(now).next_update(own.not_valid_after_utc)
        builder = builder.add_extension(crypto.x509.CRLNumber(len(serials)), critical=False)
        for serial in serials:
            entry = crypto.x509.RevokedCertificateBuilder()
            entry = entry.serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        return _pem(builder.sign(own_key, crypto.hashes.SHA256()))


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
    builder = crypto.x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    signed = builder.sign(private_key(folder / KEY), crypto.hashes.SHA256())
    write_file(folder / REQUEST, _pem(signed))
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


def _requested(file: Path, name: str) -> Any:
    """The public key of a signing request of this name, whose sender must hold the private one."""
    crypto = cryptography()
    data = read_file(file)
    try:
        signed = crypto.x509.load_pem_x509_csr(data)
    except ValueError:
        fix = f"make one with covey certs request {name}"
        raise ConfigError(f"{file} is no signing request in PEM; {fix}.") from None
    if not signed.is_signature_valid:
        raise ConfigError(f"{file} is not signed by its own key; make it anew.")
    asked = common_name(signed)
    if asked != name:
        other = shown(asked) if asked else "nobody"
        raise ConfigError(f"{file} is the request of {other}, not of {name}; give that of {name}.")
    public = signed.public_key()
    if not isinstance(public, crypto.curves.EllipticCurvePublicKey):
        fix = f"make the key with covey certs request {name}"
        raise ConfigError(f"{file} has no key of an elliptic curve; {fix}.")
    return public


def _signed(
    key: Any,
    subject: Any,
    issuer: Any,
    public: Any,
    lifetime: timedelta,
    extensions: Sequence[tuple[Any, bool]],
) -> Any:
    """A certificate, valid from a little before now on; critical extensions are marked True."""
    crypto = cryptography()
    now = certificates.now()
    builder = crypto.x509.CertificateBuilder()
    builder = builder.subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(crypto.x509.random_serial_number())
    builder = builder.not_valid_before(min(now, now + lifetime) - _SKEW)
    builder = builder.not_valid_after(now + lifetime)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, crypto.hashes.SHA256())


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


def _subject(name: str) -> Any:
    crypto = cryptography()
    return crypto.x509.Name([crypto.x509.NameAttribute(crypto.names.COMMON_NAME, name)])


def _new_key(file: Path, passphrase: Passphrase | None = None) -> Any:
    """Write a new private key; return the public one."""
    crypto = cryptography()
    key = crypto.curves.generate_private_key(crypto.curves.SECP256R1())
    form = crypto.serialization
    hidden = form.NoEncryption()
    if passphrase is not None:
        hidden = form.BestAvailableEncryption(passphrase().encode())
    data = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden)
    write_file(file, data, 0o600)  # its owner alone may read it, from its first byte on
    return key.public_key()


def _pem(signed: Any) -> bytes:
    out: bytes = signed.public_bytes(cryptography().serialization.Encoding.PEM)
    return out


def _make_folder(folder: Path) -> None:
    with reported(folder, "cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
