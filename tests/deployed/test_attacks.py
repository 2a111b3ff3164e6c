"""Every attack on a run over sockets: who refuses it, what is logged, and the bits of the run."""

from collections.abc import Iterator

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from tests.deployed.attacks import ATTACKS, CORE, Attack, Siege, attacked


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    out = Siege(tmp_path_factory.mktemp("siege"))
    yield out
    out.close()


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_a_round_under_attack_has_the_bits_of_an_undisturbed_one(
    attack: Attack, siege: Siege
) -> None:
    outcome = attacked(siege, attack)
    assert outcome.line is not None, outcome.covey
    if attack.who == CORE:
        assert not any("refused" in line for line in outcome.covey)
