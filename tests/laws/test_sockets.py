"""Over gRPC, with certificates, nodes do what they do in the simulator, bit for bit."""

from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

import covey
from tests.deployed.socket_tree import SocketTree
from tests.given import drained
from tests.laws.cases import CASES, Case, differences, experiment, whole
from tests.laws.test_loopback import ALL, WIRED, everything

SOME = list(WIRED.values()) if ALL else list(WIRED.values())[1::3]
"""The third of the cases that CI tries; `make test-deployed` tries every one."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certs")


@pytest.mark.parametrize("case", SOME, ids=str)
def test_every_case_is_the_simulators(case: Case, folder: Path, certificates: Path) -> None:
    tree = SocketTree(folder, certificates)
    try:
        run = drained(covey.run(experiment(case), runtime=tree))
        assert differences(everything(whole(case.name)), everything(run)) == []
        assert not tree.errors
    finally:
        tree.close()


@pytest.mark.parametrize("name", ["SFedHP", "Scaffold-sample"] if ALL else ["SFedHP"])
def test_several_seats_in_a_process(name: str, folder: Path, certificates: Path) -> None:
    tree = SocketTree(folder, certificates, host=3)
    try:
        run = drained(covey.run(experiment(CASES[name]), runtime=tree))
        assert differences(everything(whole(name)), everything(run)) == []
        assert len(tree.ports) < len(tree.nodes) - 1
    finally:
        tree.close()
