"""What an operator does with a running node, over real sockets: look, evict, admit, from afar."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from covey.deployed.node.process import Member, fingerprint_of
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.plan.plan import DeploySettings
from covey.deployed.transport.grpc_port import GrpcPort
from covey.errors import EvictedError
from covey.files.config import load
from tests.cli.command import BASE, SMALL, exits
from tests.cli.command import covey as command
from tests.deployed.members import ADDRESS, call, member, planned
from tests.deployed.tree import FAST, Family, echo, until

LOCAL = (*SMALL[1:], "rounds=2", "data.devices=4")


class Edge:
    """The edge of two devices, with its control port; devices are dialled in by hand."""

    def __init__(self, one: Member) -> None:
        self.member = one
        process = one.process
        self.control = f"127.0.0.1:{process.control_port}"
        one.node(process.nodes[0])

    def child(self, seat: int) -> GrpcPort:
        parts = self.member.parts
        return GrpcPort(
            str(self.member.process.listen),
            "edge0",
            {f"device{seat}": seat},
            fingerprint=fingerprint_of(parts.experiment, parts.start[0]),
            identity=None,
            limits=FAST,
        )

    def ctl(self, *words: object) -> Any:
        return command("ctl", *words, "--node", self.control)

    def states(self) -> dict[str, str]:
        status = json.loads(call("GET", ("127.0.0.1", self.member.process.control_port), "/status"))
        return {seat["seat"]: seat["state"] for seat in status["seats"]}


@contextmanager
def edge(folder: Path, identity: Identity | None = None, **changes: Any) -> Iterator[Edge]:
    experiment = load(BASE, [*LOCAL]).experiment(0)
    processes = planned(experiment, folder, DeploySettings(address=ADDRESS))
    process = replace(next(one for one in processes if one.name == "edge0"), **changes)
    one = member(process, experiment)
    one.identity = identity
    with one.running():
        yield Edge(one)


def test_a_seat_is_evicted_and_admitted_again(tmp_path: Path) -> None:
    people = Family(tmp_path / "unused", 1, secure=False)  # its threads serve the children
    try:
        with edge(tmp_path) as parent:
            first = people.serve(parent.child(0), {0: echo})
            people.serve(parent.child(1), {1: echo})
            until(lambda: parent.states() == {"device0": "waiting", "device1": "waiting"})
            said = parent.ctl("evict", "device0")
            assert "evicted device0: its stream is closed" in said.out
            assert "covey ctl admit device0" in said.out
            assert parent.states() == {"device0": "evicted", "device1": "waiting"}
            screen = parent.ctl("status").out
            assert "evicted" in next(line for line in screen.splitlines() if "device0" in line)
            first.thread.join(5)
            assert "PERMISSION_DENIED: device0 is evicted" in str(first.errors[0])
            assert isinstance(first.errors[0], EvictedError)
            again = people.serve(parent.child(0), {0: echo})  # as systemd would start it
            again.thread.join(5)
            assert "device0 is evicted" in str(again.errors[0])
            assert isinstance(again.errors[0], EvictedError)
        with edge(tmp_path) as parent:  # started again: its disk remembers
            after = people.serve(parent.child(0), {0: echo})
            after.thread.join(5)
            assert "device0 is evicted" in str(after.errors[0])
            people.serve(parent.child(1), {1: echo})
            assert "admitted device0" in parent.ctl("admit", "device0").out
            people.serve(parent.child(0), {0: echo})
            until(lambda: parent.states() == {"device0": "waiting", "device1": "waiting"})
            metrics = parent.member.progress.prometheus()
            assert 'covey_seat_evicted{process="edge0",seat="device0"} 0' in metrics
            refused = parent.ctl("admit", "device7")
            assert (refused.code, "its children: device0, device1" in refused.err) == (2, True)
    finally:
        people.close()


def test_a_control_port_beyond_loopback_hears_operators_alone(
    tmp_path: Path, authority: Authority
) -> None:
    identity = Identity(authority.issue("edge0"))
    operator = authority.issue("operator")
    device = authority.issue("device0")
    with edge(tmp_path, identity, control_host="0.0.0.0") as parent:
        status = parent.ctl("status", "--certs", operator)
        assert status.code == 0, status.err
        assert "device0" in status.out
        without = parent.ctl("status")
        assert without.code == 2
        assert "it answers with --certs alone" in without.err
        other = parent.ctl("evict", "device0", "--certs", device)
        assert other.code == 2
        assert "needs the certificate of operator, not of device0" in other.err
        assert parent.ctl("evict", "device0", "--certs", operator).code == 0
        authority.renew("edge0")  # the next connection shows the new one
        assert parent.ctl("status", "--certs", operator).code == 0
        assert not parent.member.progress.draining


def test_a_plan_says_where_the_control_port_listens(tmp_path: Path) -> None:
    out = tmp_path / "fleet"
    words = ("deploy.address.server=s.example", "deploy.address.edge={seat}.example")
    exits(0, "deploy", "plan", BASE, *LOCAL, *words, "deploy.control_host=0.0.0.0", "--out", out)
    assert 'control_host = "0.0.0.0"' in (out / "edge0" / "node.toml").read_text(encoding="utf-8")
