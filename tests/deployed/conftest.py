"""What tests of deployed trees begin with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.deployed.node.local_tree import LocalTree
from covey.deployed.operate.authority import Authority


@pytest.fixture
def local(folder: Path) -> Iterator[LocalTree]:
    """A tree whose nodes pass bytes to each other in this process."""
    tree = LocalTree(folder)
    yield tree
    tree.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    pytest.importorskip("cryptography")
    return Authority.create(tmp_path / "certs")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Any]:
    """A parent of two children over sockets, without certificates."""
    from tests.deployed.tree import family

    with family(tmp_path, count=2, secure=False) as out:
        yield out


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A machine for every node of a fleet, on one switch."""
    from tests.deployed.fleet import NAMES
    from tests.deployed.namespaces import Machines, skip_without_namespaces

    skip_without_namespaces()
    with Machines(NAMES) as out:
        yield out
