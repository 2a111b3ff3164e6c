"""Certificates: who may sign what, which files hold keys, and when a certificate no longer counts."""

import base64
import errno
import importlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from covey.deployed.operate import certificates
from covey.deployed.operate.authority import Authority, request
from covey.deployed.operate.certificates import Identity, SeatCertificate
from covey.deployed.transport import extras
from covey.deployed.transport.admission import AllowList, Refusal
from covey.deployed.transport.grpc_options import TLS
from covey.errors import ConfigError, TransportError
from tests.cli.command import contents, covey, exits

pytest.importorskip("cryptography")
NOW = datetime.now(UTC)


def test_the_name_is_the_seat(authority: Authority) -> None:
    certificate = Identity(authority.issue("device17")).check()
    assert certificate.seats == ("device17",)
    assert timedelta(days=89) < certificate.ends - NOW < timedelta(days=91)


def test_a_process_may_have_several_seats(authority: Authority) -> None:
    folder = authority.issue("gateway", seats=["device0", "device1"])
    assert Identity(folder).check().seats == ("device0", "device1")


def test_keys_are_readable_by_their_owner_alone(authority: Authority) -> None:
    folder = authority.issue("device0")
    for file in (authority.folder / "ca.key", folder / "key.pem"):
        assert file.stat().st_mode & 0o777 == 0o600
    (folder / "key.pem").chmod(0o640)
    with pytest.raises(ConfigError, match=r"key.pem is open to others \(mode 640\); chmod 600"):
        Identity(folder).check()


def test_no_key_is_shown_or_leaves_the_folder(authority: Authority) -> None:
    folder = authority.issue("device0")
    secret = (folder / "key.pem").read_text().splitlines()[1]
    assert secret not in repr(Identity(folder)) + repr(authority)
    public = [path for path in authority.folder.rglob("*") if path.is_file()]
    assert [path.name for path in public if secret in path.read_text()] == ["key.pem"]


def test_a_renewal_keeps_key_and_seats(authority: Authority) -> None:
    folder = authority.issue("device0", days=1)
    key = Identity(folder).key()
    before = Identity(folder).check()
    authority.renew("device0", days=30)
    after = Identity(folder).check()
    assert Identity(folder).key() == key
    assert after.seats == before.seats
    assert after.serial != before.serial
    assert after.ends > before.ends + timedelta(days=28)


def test_revocation_takes_every_certificate_of_the_name(authority: Authority) -> None:
    folder = authority.issue("device0")
    other = authority.issue("device1")
    old = Identity(folder).check()
    authority.renew("device0")
    new = Identity(folder).check()
    assert authority.revoke("device0") == 2
    revoked = Identity(other).revoked()
    assert revoked == {old.serial, new.serial}
    assert old.refusal(revoked, NOW) == f"its certificate {old.serial:x} is revoked"
    with pytest.raises(ConfigError, match="is revoked"):
        Identity(folder).check()
    with pytest.raises(ConfigError, match="covey certs issue device0"):
        authority.renew("device0")
    again = Identity(authority.issue("device0")).check()
    assert again.serial not in Identity(other).revoked()


def test_a_certificate_ends(authority: Authority) -> None:
    certificate = Identity(authority.issue("device0", days=1)).check()
    late = certificate.ends + timedelta(seconds=1)
    early = certificate.begins - timedelta(seconds=1)
    assert "ended at" in str(certificate.refusal(frozenset(), late))
    assert "valid only from" in str(certificate.refusal(frozenset(), early))
    assert certificate.refusal(frozenset(), NOW) is None
    with pytest.raises(ConfigError, match="ended at"):
        Identity(authority.issue("device1", days=-1)).check()


def test_a_list_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue("device0")
    other = Authority.create(tmp_path / "other")
    shutil.copy(other.folder / "revoked.pem", folder / "revoked.pem")
    with pytest.raises(ConfigError, match=r"is not signed by .*ca\.pem"):
        Identity(folder).revoked()
    (folder / "revoked.pem").write_text("none")
    with pytest.raises(ConfigError, match="is no list of revoked certificates"):
        Identity(folder).revoked()
    (folder / "revoked.pem").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        Identity(folder).revoked()


def test_a_request_leaves_the_key_on_its_machine(authority: Authority, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    signed = request(machine, "device4")
    with pytest.raises(ConfigError, match=r"key.pem exists already"):
        request(machine, "device4")
    folder = authority.issue("device4", request=signed)
    assert not (folder / "key.pem").exists()
    for name in ("ca.pem", "certificate.pem", "revoked.pem"):
        shutil.copy(folder / name, machine / name)
    assert Identity(machine).check().seats == ("device4",)
    authority.renew("device4")
    shutil.copy(authority.issue("device5") / "key.pem", machine / "key.pem")
    with pytest.raises(ConfigError, match="is not the key of"):
        Identity(machine).check()


@pytest.mark.parametrize("name", ["", "Device", "a.b", "../up", "a/b", "-a", "a" * 64, "*"])
def test_bad_names_are_refused(authority: Authority, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a seat"):
        authority.issue(name)


def test_bytes_that_are_no_certificate_are_an_error() -> None:
    with pytest.raises(ConfigError, match="is no certificate"):
        SeatCertificate.of(b"-----BEGIN CERTIFICATE-----\nabc\n")


def test_the_command(tmp_path: Path) -> None:
    certs = ("--dir", tmp_path / "certs")
    exits(0, "certs", "init", *certs)
    exits(0, "certs", "issue", "server", "device0", *certs)
    exits(0, "certs", "issue", "gate", "--seat", "device1", *certs)
    exits(0, "certs", "renew", "server", *certs)
    typo = covey("certs", "revoke", "device0", "devise1", *certs)
    assert (typo.code, "has issued no 'devise1'" in typo.err) == (2, True)
    revoked = covey("certs", "revoke", "device0", *certs).out
    assert "revoked 1 certificates of device0" in revoked
    assert f"copy {tmp_path / 'certs' / 'revoked.pem'} to the folder of every node" in revoked
    listed = json.loads(covey("certs", "list", "--json", *certs).out)
    names = [(entry["name"], entry["seats"], entry["revoked"]) for entry in listed]
    assert names == [
        ("server", ["server"], False),
        ("device0", ["device0"], True),
        ("gate", ["device1"], False),
        ("server", ["server"], False),
    ]
    assert "device0  revoked" in covey("certs", "list", *certs).out
    exits(0, "certs", "request", "device9", "--dir", tmp_path / "own")
    signed = tmp_path / "own" / "request.pem"
    exits(0, "certs", "issue", "device9", "--request", signed, *certs)


def test_the_command_refuses(tmp_path: Path) -> None:
    certs = ("--dir", tmp_path / "certs")
    assert "covey certs init" in exits(2, "certs", "issue", "device0", *certs).err
    covey("certs", "init", *certs)
    assert "exists already" in covey("certs", "init", *certs).err
    covey("certs", "issue", "device0", *certs)
    assert "covey certs renew device0" in covey("certs", "issue", "device0", *certs).err
    assert "has issued no 'device1'" in covey("certs", "revoke", "device1", *certs).err
    two = covey("certs", "issue", "a", "b", "--seat", "c", *certs)
    assert "issue one name at a time" in two.err


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"needs cryptography .* pip install '.\[deploy\]'"):
        extras.cryptography()


def test_no_file_is_open_to_others_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {}
    opened = os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            modes[Path(path).name.split(".")[1]] = mode
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    Authority.create(tmp_path / "certs").issue("device0")
    assert modes["key"] == 0o600


def test_no_certificate_leaves_before_it_can_be_revoked(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    replaced = os.replace

    def killed(source: Path, target: Path) -> None:
        replaced(source, target)
        if Path(target).name == "certificate.pem":
            raise Killed  # the process ends as soon as the certificate is there

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        authority.issue("device0")
    monkeypatch.undo()
    serial = Identity(authority.folder / "device0").check().serial
    assert [entry.serial for entry in authority.issued()] == [serial]
    authority.revoke("device0")
    assert Identity(authority.folder / "device0").revoked() == {serial}


def test_two_commands_forget_no_certificate(authority: Authority) -> None:
    names = [f"device{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(authority.issue, names))
    assert sorted(entry.name for entry in authority.issued()) == sorted(names)


def test_a_full_disk_leaves_what_was_there(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = authority.issue("device0")
    before = contents(authority.folder)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"issued.json cannot be written: No space left"):
        authority.revoke("device0")
    monkeypatch.undo()
    assert contents(authority.folder) == before
    Identity(folder).check()


def test_the_key_of_a_certificate_before_goes_with_it(authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue("device0")
    authority.revoke("device0")
    authority.issue("device0", request=request(tmp_path / "machine", "device0"))
    assert not (folder / "key.pem").exists()


def test_errors_say_what_to_do(authority: Authority) -> None:
    folder = authority.issue("gate", seats=["device1", "device2"])
    with pytest.raises(ConfigError, match=r"device2.*seat of gate: covey certs revoke gate"):
        authority.revoke("device2")
    (folder / "certificate.pem").unlink()
    with pytest.raises(ConfigError, match=r"is gone.*covey certs revoke gate"):
        authority.renew("gate")
    authority.revoke("gate")
    again = authority.issue("gate", seats=["device1"])
    authority.revoke("gate")
    with pytest.raises(ConfigError, match="is revoked; covey certs issue"):
        Identity(again).check()
    (authority.folder / "issued.json").write_text("[{}]")
    with pytest.raises(ConfigError, match=r"issued.json is no list of certificates"):
        authority.issue("device3")


def test_a_file_that_is_no_request_is_named_once(authority: Authority, tmp_path: Path) -> None:
    missing = tmp_path / "request.pem"
    with pytest.raises(ConfigError) as error:
        authority.issue("device4", request=missing)
    assert str(error.value) == f"{missing} cannot be read: No such file or directory."
    missing.write_text("no PEM", encoding="utf-8")
    with pytest.raises(ConfigError, match="in PEM; make one with covey certs request device4"):
        authority.issue("device4", request=missing)


def test_a_request_of_another_is_not_signed(authority: Authority, tmp_path: Path) -> None:
    """All requests are called request.pem, and are easily mixed up."""
    other = request(tmp_path / "other", "device5")
    with pytest.raises(ConfigError, match="is the request of 'device5', not of device4"):
        authority.issue("device4", request=other)
    crypto = extras.cryptography()
    rsa = importlib.import_module("cryptography.hazmat.primitives.asymmetric.rsa")
    name = crypto.x509.Name([crypto.x509.NameAttribute(crypto.names.COMMON_NAME, "device4")])
    builder = crypto.x509.CertificateSigningRequestBuilder().subject_name(name)
    signed = builder.sign(rsa.generate_private_key(65537, 1024), crypto.hashes.SHA256())
    other.write_bytes(signed.public_bytes(crypto.serialization.Encoding.PEM))
    with pytest.raises(ConfigError, match="no key of an elliptic curve"):
        authority.issue("device4", request=other)
    assert authority.issued() == []


def test_a_new_certificate_has_the_seats_of_the_last(authority: Authority) -> None:
    authority.issue("device2-3", seats=["device2", "device3"])
    authority.revoke("device2-3")
    with pytest.raises(ConfigError, match="is revoked; covey certs issue device2-3 makes another"):
        Identity(authority.folder / "device2-3").check()
    again = Identity(authority.issue("device2-3")).check()
    assert again.seats == ("device2", "device3")
    with pytest.raises(ConfigError, match=r"seat of device2-3: covey certs renew device2-3\."):
        authority.renew("device3")
    with pytest.raises(ConfigError, match=r"it has issued: device2-3\."):
        authority.renew("device9")


def test_a_seat_has_one_holder(authority: Authority) -> None:
    authority.issue("device2-3", seats=["device2", "device3"])
    with pytest.raises(ConfigError, match=r"device2-3 has a certificate for device3; .*--replace"):
        authority.issue("device3")
    assert [entry.name for entry in authority.issued()] == ["device2-3"]
    assert not (authority.folder / "device3").exists()
    certs = ("--dir", authority.folder)
    replaced = covey("certs", "issue", "device3", "--replace", *certs)
    assert "revoked device2-3" in replaced.out
    assert "to the folder of every node" in replaced.out
    assert [entry.revoked for entry in authority.issued()] == [True, False]
    ended = authority.issue("device5", days=-1)
    authority.issue("gate", seats=["device5"])
    assert ended.exists()
    with pytest.raises(ConfigError, match="gate has a certificate for device5"):
        authority.renew("device5")


def test_a_request_is_signed_once(authority: Authority, tmp_path: Path) -> None:
    """A script that signs may be started again, also after its end."""
    seats = ["device0", "device1"]
    authority.issue("gate", seats=["device0"])
    signed = request(tmp_path / "machine", "gate")
    with pytest.raises(ConfigError, match="gate has a certificate until"):
        authority.issue("gate", seats=seats, request=signed)
    for _ in range(2):
        folder = authority.issue("gate", seats=seats, request=signed, holders="revoke")
        assert [entry.revoked for entry in authority.issued()] == [True, False]
    certificate = SeatCertificate.of((folder / "certificate.pem").read_bytes())
    assert certificate.refusal(Identity(folder).revoked(), NOW) is None
    other = request(tmp_path / "other", "gate")
    with pytest.raises(ConfigError, match="gate has a certificate until"):
        authority.issue("gate", seats=seats, request=other)


def test_no_certificate_outlives_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path / "certs", days=10)
    with pytest.raises(ConfigError, match=r"ends at .* 90 days would; give --days 9, or make"):
        authority.issue("device0")
    assert not (authority.folder / "device0").exists()
    identity = Identity(authority.issue("device0", days=9))
    with pytest.raises(ConfigError, match="give --days 9"):
        authority.renew("device0")
    left = identity.seconds_left()
    assert left is not None
    assert 8.9 < left / 86_400 < 9
    short = Authority.create(tmp_path / "short", days=0.5)
    with pytest.raises(ConfigError, match=r"give --days 0.499, or make"):
        short.issue("device0")
    monkeypatch.setattr(certificates, "now", lambda: NOW + timedelta(days=11))
    with pytest.raises(ConfigError, match="; make another authority with covey certs init"):
        authority.issue("device1")
    assert "the authority ended at" in str(identity.refusal())
    with pytest.raises(ConfigError, match=r"ended at .*: .* there is nothing to revoke\."):
        authority.revoke("device0")


def test_a_request_prints_the_seats(tmp_path: Path) -> None:
    seats = ("--seat", "device2", "--seat", "device3")
    told = covey("certs", "request", "device2-3", *seats, "--dir", tmp_path / "own")
    signing = "covey certs issue device2-3 --request request.pem --seat device2 --seat device3"
    assert f"there: {signing}" in told.out


def test_a_folder_that_is_no_authority_is_not_made_one(tmp_path: Path) -> None:
    """Another authority's certificates would be refused by every node."""
    told = covey("certs", "issue", "operator", "--dir", tmp_path)
    assert "give --dir the authority's folder; covey certs init makes a new" in told.err


def test_two_commands_make_one_authority(tmp_path: Path) -> None:
    """Otherwise the key of one could lie beside the certificate of the other."""
    folder = tmp_path / "certs"

    def create(_: int) -> str:
        try:
            Authority.create(folder)
        except ConfigError as error:
            return str(error)
        return "made"

    with ThreadPoolExecutor(8) as threads:
        said = sorted(threads.map(create, range(8)))
    assert said[-1] == "made"
    assert all("exists already" in text for text in said[:-1])
    assert Identity(Authority(folder).issue("device0")).check().seats == ("device0",)


def test_a_system_without_modes_reads_keys(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows every file that may be written has the mode 666; its folder says who reads it."""
    folder = authority.issue("device0")
    (folder / "key.pem").chmod(0o666)
    with pytest.raises(ConfigError, match="open to others"):
        Identity(folder).check()
    monkeypatch.setattr(certificates, "_HAS_MODES", False)
    Identity(folder).check()


def test_a_key_that_cannot_be_removed_is_named(authority: Authority, tmp_path: Path) -> None:
    made = request(tmp_path / "elsewhere", "device0")
    (authority.folder / "device0" / "key.pem").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"key\.pem cannot be removed"):
        authority.issue("device0", request=made)


def _odd(certificate: bytes, kind: str) -> bytes:
    """A certificate with one extension twice, or of a version that there is not; not signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    if kind == "version":
        old, new = bytes.fromhex("a003020102"), bytes.fromhex("a003020107")
    else:  # the extended usage of the key becomes a second usage of the key
        old, new = bytes.fromhex("0603551d25"), bytes.fromhex("0603551d0f")
    assert der.count(old) == 1
    text = base64.encodebytes(der.replace(old, new))
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("kind", ["version", "extension twice"])
def test_an_odd_certificate_is_refused(authority: Authority, kind: str) -> None:
    """By a parent, and by a child to which a parent shows it."""
    identity = Identity(authority.issue("device0"))
    odd = _odd(identity.certificate(), kind)
    facts = {"ssl_tls_version": [TLS], "x509_pem_cert": [odd]}
    with pytest.raises(Refusal, match=r"no certificate in PEM|of nobody, not listed"):
        AllowList({"device0": 0}, "").certificate(facts, frozenset())
    with pytest.raises((ConfigError, TransportError)):
        identity.verify(odd, b"", b"", "device0")
