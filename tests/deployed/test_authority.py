"""Lists of revoked certificates from before, open folders, and keys of authorities."""

from __future__ import annotations

import shutil
from pathlib import Path
from subprocess import run as subprocess_run

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("grpc")

from covey.deployed.commands import certs
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.plan.local import free_ports
from covey.deployed.transport.extras import cryptography
from covey.errors import ConfigError
from covey.files.config import load
from tests.cli.command import BASE, SMALL, Result, covey, exits


def test_a_list_from_before_a_revocation_is_refused(authority: Authority, tmp_path: Path) -> None:
    """Also by a node that is started again: what it has read is on its disk."""
    folder = authority.issue("edge0")
    authority.issue("device0")
    before = (folder / "revoked.pem").read_bytes()
    identity = Identity(folder, tmp_path / "number")
    assert identity.revoked() == frozenset()
    authority.revoke("device0")
    assert len(identity.revoked()) == 1
    (folder / "revoked.pem").write_bytes(before)
    again = Identity(folder, tmp_path / "number")
    with pytest.raises(
        ConfigError, match=r"is list 0, and list 1 was read before.*copy revoked.pem"
    ):
        again.check()
    other = Authority.create(tmp_path / "other").issue("edge0")
    assert Identity(other, tmp_path / "number").revoked() == frozenset()  # it begins anew


def test_a_list_counts_where_its_number_cannot_be_written(
    authority: Authority, tmp_path: Path
) -> None:
    folder = authority.issue("edge0")
    authority.issue("device0")
    authority.revoke("device0")
    assert len(Identity(folder, tmp_path / "none" / "number").revoked()) == 1


def test_a_node_remembers_the_list_in_its_state(authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue("device0")
    authority.issue("device1")
    before = (folder / "revoked.pem").read_bytes()
    authority.revoke("device1")
    state = tmp_path / "state"
    state.mkdir()
    Identity(folder, state / "revoked.number").revoked()
    (folder / "revoked.pem").write_bytes(before)
    file = tmp_path / "tree.toml"
    [port] = free_ports(1)
    text = load(BASE, [*SMALL[1:], "data.devices=4", "rounds=2"]).text()
    file.write_text(text, encoding="utf-8")
    words = ["--name", "device0", "--parent", "localhost:1", "--control-port", port]
    result = exits(2, "node", *words, "--experiment", file, "--certs", folder, "--state", state)
    assert "list 1 was read before" in result.err


def test_a_folder_that_all_may_write_is_refused(authority: Authority, tmp_path: Path) -> None:
    """Whoever may write it can put another list there, or another authority."""
    folder = authority.issue("device0")
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=f"everybody .mode 777.; chmod go-w {folder}"):
        Identity(folder).check()
    folder.chmod(0o755)
    Identity(folder).check()
    authority.folder.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        authority.issue("device1")


def command(*words: object) -> Result:
    certs._passphrase.cache_clear()
    return covey("certs", *words)


def test_a_key_has_a_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "certs"
    result = command("init", "--dir", folder, "--passphrase")
    assert result.code == 2
    assert "put it into COVEY_CA_PASSPHRASE" in result.err
    monkeypatch.setenv("COVEY_CA_PASSPHRASE", "long and secret")
    assert command("init", "--dir", folder, "--passphrase").code == 0
    assert b"ENCRYPTED" in (folder / "ca.key").read_bytes()
    assert command("issue", "device0", "device1", "--dir", folder).code == 0
    assert b"ENCRYPTED" not in (folder / "device0" / "key.pem").read_bytes()
    Identity(folder / "device0").check()
    assert command("renew", "device0", "--dir", folder).code == 0
    assert command("revoke", "device0", "--dir", folder).code == 0
    monkeypatch.setenv("COVEY_CA_PASSPHRASE", "another")
    result = command("issue", "device2", "--dir", folder)
    assert (result.code, "or of another passphrase" in result.err) == (2, True)
    monkeypatch.delenv("COVEY_CA_PASSPHRASE")
    result = command("issue", "device2", "--dir", folder)
    assert (result.code, "COVEY_CA_PASSPHRASE" in result.err) == (2, True)
    assert command("list", "--dir", folder).code == 0  # it needs no key


def test_a_key_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "certs"
    stick = tmp_path / "stick"
    stick.mkdir()
    assert command("init", "--dir", folder, "--key", stick / "ca.key").code == 0
    assert not (folder / "ca.key").exists()
    result = command("issue", "device0", "--dir", folder)
    assert (result.code, "ca.key cannot be read" in result.err) == (2, True)
    assert command("issue", "device0", "--dir", folder, "--key", stick / "ca.key").code == 0
    Identity(folder / "device0").check()
    other = Authority.create(tmp_path / "other").folder / "ca.key"
    result = command("renew", "device0", "--dir", folder, "--key", other)
    assert (result.code, "is not the key of" in result.err) == (2, True)
    monkeypatch.setenv("COVEY_CA_KEY", str(stick / "ca.key"))
    assert command("revoke", "device0", "--dir", folder).code == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("kind", ["EC", "RSA"])
def test_a_key_from_outside_is_taken(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    more = ["ec_paramgen_curve:P-384"] if kind == "EC" else ["rsa_keygen_bits:2048"]
    words = ["openssl", "genpkey", "-algorithm", kind, "-pkeyopt", *more, "-out", str(file)]
    subprocess_run(words, check=True, capture_output=True)
    file.chmod(0o600)
    result = command("init", "--dir", tmp_path / "certs", "--key", file)
    if kind == "RSA":
        assert (result.code, "no key of an elliptic curve" in result.err) == (2, True)
        return
    assert result.code == 0
    authority = Authority(tmp_path / "certs", file)
    identity = Identity(authority.issue("server"))
    identity.check()
    signed = identity.sign(b"data")
    identity.verify(identity.certificate(), signed, b"data", "server")
    own = cryptography().x509.load_pem_x509_certificate(identity.authority())
    assert own.public_key().curve.name == "secp384r1"
