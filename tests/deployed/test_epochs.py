"""Where the server stands: nobody else can say it, and an operator can mend what a lie has left."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("grpc")

from covey.deployed.commands import node
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import open_order, seal_order
from covey.deployed.node.server_run import server_run
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.transport import AskKey
from covey.errors import ConfigError, CoveyError, TransportError
from covey.files.config import load
from covey.runtimes.alone.envelope import header_of, open_sealed, seal
from tests.cli.command import BASE, SMALL
from tests.cli.command import covey as command
from tests.given import drained
from tests.laws.cases import CASES, PLAIN, differences, experiment, state, whole

NAME = "SFedHP"
FAR = 10**6
Request = tuple[AskKey, bytes, bytes]


class Certified(LocalTree):
    """A tree whose nodes have certificates, though they are objects of one process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "nodes")
        self.authority = Authority.create(folder / "certs")

    def restart(self, tier: str, number: int) -> Node:
        node = super().restart(tier, number)
        name = "server" if tier == "server" else f"{tier}{number}"
        if not (self.authority.folder / name).exists():
            self.authority.issue(name)
        node.standing.identity = Identity(self.authority.folder / name)
        return node


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Certified]:
    tree = Certified(tmp_path)
    yield tree
    tree.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[LocalTree]:
    tree = LocalTree(tmp_path / "nodes")
    yield tree
    tree.close()


def overheard(tree: LocalTree) -> list[Request]:
    """What device 3 is asked from now on, as its edge knows it."""
    out: list[Request] = []

    def recorded(*request: Any) -> bytes:
        out.append(request)
        return tree.nodes["device", 3].answer(*request)

    tree.transport_above("device", 3).take(3, recorded)
    return out


def trainings(asked: list[Request]) -> list[Request]:
    return [one for one in asked if one[0].lane == "train"]


def lie(request: Request, epoch: Epoch, **changes: Any) -> Request:
    """The same request with another epoch, and with a key to suit it but for `changes`."""
    key, common, own = request
    header, messages = open_sealed(own)
    told = {"run": epoch.run, "round": epoch.before, "attempt": epoch.attempt}
    forged = seal({**header, "epoch": asdict(epoch)}, messages)
    return replace(key, **{**told, **changes}), common, forged


def order(name: str, epoch: Epoch, arguments: dict[str, Any], round: int) -> Request:
    header = {"name": name, "arguments": arguments, "round": epoch.before, "deepest": "device"}
    key = AskKey(epoch.run, round, "order", 0, name, "ab", attempt=epoch.attempt)
    return key, b"", seal_order({**header, "epoch": asdict(epoch)})


def refusal(node: Node, request: Request) -> str:
    """What a node says to a lie; its disk has not moved."""
    before = list(node.database.file.connection.iterdump())
    answer = node.answer(*request)
    reply = open_order(answer)[0] if request[0].lane == "order" else header_of(answer)
    kind, text = reply["error"]
    assert kind == "TransportError"
    assert list(node.database.file.connection.iterdump()) == before
    return str(text)


def test_only_the_server_says_where_it_stands(certified: Certified, tmp_path: Path) -> None:
    """A stolen edge lies to a device in every way; the run then ends as if nobody had lied."""
    run = server_run(experiment(CASES[NAME]), certified)
    asked = overheard(certified)
    next(run)
    device = certified.nodes["device", 3]
    stolen = certified.nodes["edge", 0].standing.identity
    assert stolen is not None
    other = Authority.create(tmp_path / "other").issue("server")
    request = trainings(asked)[-1]
    true = Epoch.from_dict(header_of(request[2])["epoch"])
    far = replace(true, before=FAR)
    lies = [
        replace(far, certificate="", signature=""),
        far,  # with the signature of another epoch
        far.signed(stolen),
        far.signed(Identity(other)),
        replace(far, signature="no digits"),
        replace(far, certificate="\ud800"),
        replace(true, rollbacks=(0,)),
        replace(true, run="another"),
        Epoch("", 0),
    ]
    for epoch in lies:
        text = refusal(device, lie(request, epoch))
        assert "device 3 is told that round" in text
        assert "which the server has not signed" in text
        assert "a parent lied" in text
    others: list[dict[str, Any]] = [{"attempt": 1}, {"run": "another"}]
    for changes in others:
        forged = lie(request, true, **changes)
        assert "a key that is not of the epoch beside it" in refusal(device, forged)
    later = [lie(request, true, round=FAR), order("release", true, {"label": "chosen global"}, FAR)]
    for forged in later:
        assert "and asked for" in refusal(device, forged)
    certified.restart("device", 3)
    drained(run)
    assert differences(state(whole(NAME)), state(run)) == []


def test_the_certificate_of_the_server_may_end_but_not_be_revoked(certified: Certified) -> None:
    """An order may wait for long, and its epoch with it; a stolen key is of no use."""
    certified.authority.issue("server", days=-1)
    run = server_run(experiment(PLAIN["FedAvg"]), certified)
    next(run)
    server = certified.nodes["server", 0].epoch
    device = certified.nodes["device", 3]
    certified.authority.issue("server", holders="revoke")
    device.standing.epoch = Epoch("", 0)
    hold = order("release", server, {"label": "chosen global"}, 0)
    assert "is revoked; a parent lied" in refusal(device, hold)
    drained(run)  # the server signs with its new key


def test_a_list_from_before_on_a_node_is_no_lie_of_its_parent(
    certified: Certified, tmp_path: Path
) -> None:
    """The file lies on the node's own machine: who copied it there must mend it."""
    run = server_run(experiment(PLAIN["FedAvg"]), certified)
    next(run)
    device = certified.nodes["device", 3]
    assert device.standing.identity is not None
    device.standing.identity = replace(device.standing.identity, memory=tmp_path / "number")
    old = (device.standing.identity.folder / "revoked.pem").read_bytes()
    certified.authority.issue("stolen")
    certified.authority.revoke("stolen")
    next(run)
    (device.standing.identity.folder / "revoked.pem").write_bytes(old)
    with pytest.raises(ConfigError, match="is list 0, and list 1 was read before") as refused:
        next(run)
    assert "lied" not in str(refused.value)
    assert "device 3" in str(refused.value)


def test_a_lie_far_ahead_needs_certificates_or_the_operator(plain: LocalTree) -> None:
    """Without certificates a jump is bounded, and what a smaller lie has left can be mended."""
    run = server_run(experiment(CASES[NAME]), plain)
    asked = overheard(plain)
    next(run)
    device = plain.nodes["device", 3]
    request = trainings(asked)[-1]
    true = Epoch.from_dict(header_of(request[2])["epoch"])
    text = refusal(device, lie(request, replace(true, before=FAR)))
    assert f"--jump {FAR}" in text
    assert "more than 1000 rounds at once, and no certificate tells who says so" in text
    assert "behind" not in text
    small = replace(true, before=500)
    assert header_of(device.answer(*lie(request, small)))["error"] is None
    hold = order("release", small, {"label": "chosen global"}, 500)
    assert open_order(device.answer(*hold))[0]["error"] is None
    with pytest.raises(TransportError) as refused:
        next(run)
    text = str(refused.value)
    assert "device 3 is told that round 2 comes next, after round 501 did" in text
    assert "or a parent lied" in text
    assert "covey node ... --jump 499, once" in text
    plain.restart("device", 3).standing.jump = 498
    with pytest.raises(TransportError, match="--jump 499"):
        next(run)
    plain.restart("device", 3).standing.jump = 499
    drained(run)
    assert plain.nodes["device", 3].standing.jump == 0
    assert differences(state(whole(NAME)), state(run)) == []


def test_a_server_from_a_backup_goes_on_where_the_operator_says(
    plain: LocalTree, tmp_path: Path
) -> None:
    """The devices of FedAvg keep nothing, so the rounds that are run again are the same."""
    run = server_run(experiment(PLAIN["FedAvg"]), plain)
    next(run)
    plain.nodes["server", 0].database.file.copy(tmp_path / "backup")
    next(run)
    plain.close()
    disk = plain.folder / "server0" / "node.sqlite"
    for file in disk.parent.iterdir():
        file.unlink()
    shutil.copy(tmp_path / "backup", disk)
    again = server_run(experiment(PLAIN["FedAvg"]), plain)
    with pytest.raises(TransportError, match=r"comes next, after round 2 did.*--jump 1, once"):
        next(again)
    again = server_run(experiment(PLAIN["FedAvg"]), plain)
    for one in plain.nodes.values():
        one.standing.jump = 1
    drained(again)
    assert differences(state(whole("FedAvg")), state(again)) == []


def test_a_certificate_that_is_being_copied_ends_no_run(certified: Certified) -> None:
    run = server_run(experiment(PLAIN["FedAvg"]), certified)
    next(run)
    file = certified.authority.folder / "server" / "certificate.pem"
    whole_file = file.read_bytes()
    file.write_bytes(whole_file[:99])

    def copied() -> None:
        time.sleep(0.1)
        file.write_bytes(whole_file)

    copying = threading.Thread(target=copied)
    copying.start()
    next(run)
    copying.join()


def test_the_command_tells_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps: list[int] = []

    def stop(*_: Any, jump: int) -> None:
        jumps.append(jump)
        raise CoveyError("enough")

    monkeypatch.setattr(node, "Member", stop)
    file = tmp_path / "tree.toml"
    file.write_text(load(BASE, [*SMALL[1:], "data.devices=4"]).text(), encoding="utf-8")
    words = ["--insecure", "--name", "device0", "--parent", "localhost:1", "--experiment", file]
    command("node", *words, "--jump", 7)
    assert jumps == [7]
